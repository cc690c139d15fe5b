"""Whole runs in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from elasticdl.data import recordio
from elasticdl_worker.local import run_local

pytestmark = pytest.mark.unit


@pytest.fixture
def events() -> list[dict[str, Any]]:
    return []


@pytest.fixture(scope="session")
def digit_records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 images whose bright row is their label."""
    path = tmp_path_factory.mktemp("digits") / "digits.recordio"
    rng = np.random.default_rng(3)
    with recordio.Writer(str(path)) as writer:
        for number in range(64):
            image = rng.random((28, 28)) * 20
            image[2 * (number % 10)] += 235
            features = {
                "image": tf.train.Feature(float_list=tf.train.FloatList(value=image.ravel())),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 10])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    return path


def test_the_listing_of_the_article_runs(
    make_spec: Any, digit_records: Path, tmp_path: Path, events: list[dict[str, Any]]
) -> None:
    spec = make_spec(
        model_def="article_mnist.forward",
        training_data=str(digit_records),
        validation_data=str(digit_records),
        minibatch_size=16,
        num_epochs=12,
        optimizer_params={"lr": 0.02},
        export_formats="auto",
    )
    run_local(spec, tmp_path, events.append)
    done = events[-1]
    assert done["event"] == "done"
    assert done["records"] == 64 * 12
    assert done["steps"] == 4 * 12
    assert done["metrics"]["accuracy"] > 0.9
    assert [e["epoch"] for e in events if e["event"] == "evaluation"] == list(range(12))
    image = np.zeros((1, 28, 28), np.float32)
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    served = tf.saved_model.load(str(tmp_path / "saved_model"))
    np.testing.assert_allclose(loaded(image), served.serve({"image": image}), rtol=1e-5)
