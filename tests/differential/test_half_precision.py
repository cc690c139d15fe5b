"""A job in bfloat16, outputs included, does what others do, in every way: it trains, evaluates and predicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.differential.data import columns, table, validated
from tests.differential.driver import BASE, Bench, Outcome, Row, differences
from tests.differential.rows.torch_models import module_of
from tests.differential.zoo import module
from tests.fakes.frameworks import NEEDS_TORCH

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
ROUNDING = 2e-2
KERAS = Row(
    "half",
    module(
        "keras.config.set_dtype_policy('mixed_bfloat16')",
        """
        def loss(labels, predictions):
            return tf.reduce_mean(tf.square(labels - tf.cast(predictions, tf.float32)))


        def eval_metrics_fn():
            return {"error": lambda labels, predictions: tf.abs(labels - tf.cast(predictions, tf.float32))[:, 0]}
        """,
    ),
    "precision",
    {"export_formats": "keras,saved_model"},
    data=validated,
    tolerance=ROUNDING,
)
TORCH = Row(
    "torch_half",
    module_of(
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(0))

            def forward(self, x):
                return self.net(x).bfloat16()


        forward = Net


        def loss(labels, predictions):
            return nn.functional.mse_loss(predictions.float(), labels)


        def eval_metrics_fn():
            return {"error": lambda labels, predictions: (labels - predictions).abs()}
        """
    ),
    "precision",
    {"export_formats": "safetensors,pt2", "autocast": "bfloat16"},
    data=validated,
    tolerance=ROUNDING,
)
NOT_FOR_OTHERS = {name: None for name in ("export_formats", "num_epochs", "shuffle") if name in BASE}


def _data(field: str) -> Any:
    def made(place: Path, alike: bool) -> Mapping[str, Any]:
        return {field: columns(place, alike)["training_data"]}

    return made


def _predictions(outcome: Outcome) -> np.ndarray[Any, Any]:
    """All that was predicted, in the order of the records."""
    folder = outcome.output if outcome.output.is_dir() else outcome.output.parents[1]
    found: list[Any] = []
    for path in sorted(folder.rglob("train.csv-*")):
        if path.suffix == ".npz":
            with np.load(path) as held:
                found.append(held["predictions"])
        else:
            found.append(pq.read_table(path)["predictions"].to_numpy())
    return np.concatenate([np.asarray(one).reshape(len(one), -1)[:, 0] for one in found])


def _of_export(local: Outcome) -> np.ndarray[Any, Any]:
    """What the exported model makes of all records."""
    x = np.array([[float(value) for value in record[2:6]] for record in table()], np.float32)
    if (local.output / "model.keras").is_file():
        import tensorflow as tf

        return np.asarray(tf.cast(tf.keras.models.load_model(local.output / "model.keras")(x), tf.float32))[:, 0]
    import torch

    program: Any = torch.export.load(local.output / "model.pt2")
    return np.asarray(program.module()(torch.from_numpy(x)).detach().float())


@pytest.mark.slow
@pytest.mark.parametrize("row", [KERAS, pytest.param(TORCH, marks=NEEDS_TORCH)], ids=lambda row: row.name)
def test_a_job_in_bfloat16_does_all_that_others_do(bench: Bench, row: Row) -> None:
    local = bench.local(row, keep_checkpoint_max=1)
    assert local.error == ("", "") and len(local.evaluations) == 2
    assert differences(row, local, bench.cluster(row, workers=1)) == []
    group = bench.group(row)
    assert differences(row, local, replace(group, evaluations=local.evaluations)) == []
    for own, theirs in zip(local.evaluations, group.evaluations, strict=True):
        assert theirs == pytest.approx(own, rel=ROUNDING)

    begun = {**NOT_FOR_OTHERS, "checkpoint_dir_for_init": str(local.checkpoints)}
    plain = {key: value for key, value in row.spec.items() if key != "export_formats"}
    for way in (bench.local, lambda *given, **fields: bench.cluster(*given, workers=1, **fields)):
        evaluated = way(replace(row, data=_data("validation_data"), spec=plain), type="evaluation", **begun)
        assert evaluated.evaluations == (pytest.approx(local.evaluations[-1], rel=1e-6),), evaluated.error
        for kind in ("npz", "parquet"):
            predicting = replace(row, data=_data("prediction_data"), spec=plain)
            predicted = way(predicting, type="prediction", output_format=kind, **begun)
            assert predicted.error == ("", "")
            values = _predictions(predicted)
            assert values.dtype == np.float32
            np.testing.assert_allclose(values, _of_export(local), rtol=ROUNDING, atol=ROUNDING)
