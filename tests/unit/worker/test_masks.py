"""Steps that Keras masks count neither in the loss nor in the metrics of evaluations and of training minibatches."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.data import Shard, create_data_reader
from elasticdl_core.job import JobSpec
from elasticdl_worker.local import run_local
from elasticdl_worker.trainers.in_group import make_replica
from elasticdl_worker.trainers.job_sources import JobSources
from elasticdl_worker.trainers.tensorflow.compiled import CompiledFunction
from elasticdl_worker.trainers.tensorflow.implementation import TensorFlowFramework

pytestmark = pytest.mark.unit
STEPS, RECORDS = 6, 40
MODEL = f"""
import keras
import tensorflow as tf


def model():
    ids = keras.Input(({STEPS},), dtype="int32")
    rows = keras.layers.Embedding(20, 4, mask_zero=True)(ids)
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.LSTM(3, return_sequences=True)(rows)))


loss = keras.losses.MeanSquaredError()


def optimizer():
    return keras.optimizers.SGD(0.1)


def feed(dataset, mode, metadata):
    def parse(row):
        numbers = tf.strings.to_number(row)
        return tf.cast(numbers[:{STEPS}], tf.int32), numbers[{STEPS}:, None]

    return dataset.map(parse)


def eval_metrics_fn():
    return {{"error": keras.metrics.MeanAbsoluteError()}}
"""


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    drawing = np.random.default_rng(3)
    ids = drawing.integers(1, 20, (RECORDS, STEPS)) * (np.arange(STEPS) < drawing.integers(1, STEPS, (RECORDS, 1)))
    rows = np.hstack([ids, drawing.normal(size=(RECORDS, STEPS)).round(3) + 3.0])
    (tmp_path / "data.csv").write_text("\n".join(",".join(map(str, row)) for row in rows.tolist()) + "\n")
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "masked.py").write_text(MODEL)
    data = str(tmp_path / "data.csv")
    return JobSpec.from_mapping(
        {
            "model_zoo": str(tmp_path / "zoo"),
            "model_def": "masked.model",
            "training_data": data,
            "validation_data": data,
            "minibatch_size": RECORDS,
            "export_formats": "keras",
        }
    )


def numbers_of(spec: JobSpec) -> tuple[Any, Any]:
    rows = np.loadtxt(spec.training_data, delimiter=",", dtype=np.float32)
    return rows[:, :STEPS].astype(np.int32), rows[:, STEPS:, None]


@pytest.mark.parametrize("eager", [False, True])
def test_an_evaluation_gives_the_numbers_of_keras(spec: JobSpec, tmp_path: Path, eager: bool) -> None:
    events: list[dict[str, Any]] = []
    run_local(dataclasses.replace(spec, eager=eager), tmp_path / "out", events.append)
    plain: Any = keras.models.load_model(tmp_path / "out" / "model.keras", compile=False)
    plain.compile(loss="mse", metrics=[keras.metrics.MeanAbsoluteError(name="error")])
    wanted = plain.evaluate(*numbers_of(spec), batch_size=RECORDS, verbose=0, return_dict=True)
    assert events[-1]["metrics"] == pytest.approx(wanted, rel=1e-5)
    assert set(events[-1]["training_metrics"]) == {"error"}
    assert events[-1]["training_metrics"]["error"] != pytest.approx(wanted["error"], rel=1e-3), "before the update"


def test_members_and_compiled_forward_passes_keep_masks(spec: JobSpec) -> None:
    framework = TensorFlowFramework()
    module = framework.load_module(spec, Path(spec.model_zoo))
    sources = JobSources(framework, spec, module)
    replica: Any = make_replica(framework, spec, module, sources)
    reader = create_data_reader(spec.training_data)
    (shard,) = reader.create_shards()
    (batch,) = sources.source(sources.main).minibatches(Shard(shard.name, 0, RECORDS))
    ids, labels = numbers_of(spec)
    predictions = replica.predict(batch.features)
    np.testing.assert_array_equal(predictions._keras_mask, ids != 0)
    squares = np.square(predictions.numpy() - labels)[ids != 0]
    assert float(replica.evaluation_loss(batch.labels, predictions)) == pytest.approx(squares.mean(), rel=1e-5)
    metrics = framework.make_metrics(module, None, replica.outputs)
    half = metrics._kind.cut(predictions, 0, 10)
    np.testing.assert_array_equal(half._keras_mask, ids[:10] != 0)
    plain = CompiledFunction(lambda x: {"y": x + 1.0}, (tf.TensorSpec([None]),))
    assert not hasattr(plain(tf.zeros(3))["y"], "_keras_mask")
