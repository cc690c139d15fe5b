"""Local updates of Keras models move the rows of a minibatch alone, as parameter servers do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from elasticdl_worker.trainers.tensorflow.model.optimizers import build_optimizer
from elasticdl_worker.trainers.tensorflow.step.touched_rows import TouchedRows
from tests.unit.worker.test_local_features import run

pytestmark = pytest.mark.unit

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Adam": {"amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "Adagrad": {"weight_decay": 0.1},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Adadelta": {},
    "Adamax": {},
    "Ftrl": {},
}


@pytest.mark.parametrize("dense", [False, True], ids=["slices", "dense"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_moves_the_rows_of_its_minibatch_and_no_others(name: str, dense: bool) -> None:
    table = tf.keras.Variable(np.arange(1.0, 13.0, dtype=np.float32).reshape(6, 2))
    weight = tf.keras.Variable(np.ones(2, np.float32))
    optimizer = getattr(tf.keras.optimizers, name)(0.1, **OPTIMIZERS[name])
    build_optimizer(optimizer, [weight, table])
    touched = TouchedRows(optimizer, [weight, table], [table])
    held = [table, *(one for one in optimizer.variables if tuple(one.shape) == (6, 2))]

    def update(ids: list[int]) -> Any:
        slices = tf.IndexedSlices(tf.constant([[1.0, 2.0]] * len(ids)), tf.constant(ids), tf.constant([6, 2]))
        pairs = [(tf.ones(2), weight), (tf.convert_to_tensor(slices) if dense else slices, table)]
        with touched.updating(pairs):
            optimizer.apply_gradients(pairs)
        return np.stack([one.numpy() for one in held])

    first, both = update([0, 1]), update([4, 2])
    assert np.array_equal(both[:, [0, 1, 3, 5]], first[:, [0, 1, 3, 5]])
    assert not np.any(both[:, [4, 2]] == first[:, [4, 2]])
    assert not np.any(weight.numpy() == 1.0)


def test_a_run_says_by_which_rule_rows_move_and_does_so(make_spec: Any, tmp_path: Path) -> None:
    data = tmp_path / "clicks.csv"
    data.write_text("1,1,2,3\n" * 8 + "0,4,5,6\n" * 8)
    fields = {"training_data": str(data), "minibatch_size": 8, "shuffle": False, "embedding_threshold_bytes": 0}
    fields |= {"optimizer_params": {"kind": "Adam"}}
    events = run(make_spec(**fields), tmp_path / "two")
    run(make_spec(**fields, max_steps=1), tmp_path / "one")
    said = [event["message"] for event in events if event["event"] == "started"]
    assert "moves those of a minibatch alone, on parameter servers and with --local" in said[1]
    for after, before in zip(tables(tmp_path / "two"), tables(tmp_path / "one"), strict=True):
        assert np.array_equal(after[1:4], before[1:4])
        assert not np.any(after[4:7] == before[4:7])


def tables(folder: Path) -> list[Any]:
    model = tf.keras.models.load_model(folder / "model.keras")
    return [layer.get_weights()[0] for layer in model.layers if isinstance(layer, tf.keras.layers.Embedding)]
