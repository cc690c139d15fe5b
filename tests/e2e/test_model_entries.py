"""The less common entries of a model module, each in a whole job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.local_cluster import EXAMPLES, Cluster
from tests.e2e.traces import applied_records, read_traces

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.rotates(turns=4, family="entries")]

SQUARES = '''
"""Learns y = 3x - 1 from a reader of its own."""

import pathlib

import tensorflow as tf

from elasticdl.callbacks import LearningRateScheduler


class Lines:
    """Records are lines of text made on the fly; the data's origin says how many."""

    metadata = None

    def __init__(self, count):
        self.count = count

    def create_shards(self):
        half = self.count // 2
        return {"first": (0, half), "second": (0, self.count - half)}

    def read_records(self, task):
        offset = 0 if task.name == "first" else self.count // 2
        for number in range(task.start, task.end):
            x = ((offset + number) * 37 % self.count) / self.count
            yield f"{x},{3.0 * x - 1.0}".encode()


def custom_data_reader(data_origin, records_per_task=None, **params):
    return Lines(int(data_origin.rpartition("lines:")[2]))


def forward(units=1):
    return tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(units)])


def loss(labels, predictions):
    return tf.reduce_mean(tf.square(tf.reshape(labels, [-1]) - tf.reshape(predictions, [-1])))


def optimizer(lr=0.5):
    return tf.keras.optimizers.SGD(lr)


def feed(dataset, mode, metadata):
    def parse(record):
        numbers = tf.strings.to_number(tf.strings.split(record, ","), tf.float32)
        x = tf.ensure_shape(numbers[:1], [1])
        return x if mode == "prediction" else (x, numbers[1])

    return dataset.map(parse)


def eval_metrics_fn():
    return {"error": lambda labels, predictions: tf.abs(tf.reshape(labels, [-1]) - tf.reshape(predictions, [-1]))}


def callbacks():
    return [LearningRateScheduler(lambda version: 0.5 if version < 200 else 0.1)]


class PredictionOutputsProcessor:
    """Writes what it gets beside this file's job."""

    def process(self, predictions, worker_id):
        with pathlib.Path(OUTPUT).open("a") as file:
            for value in predictions.reshape(-1):
                file.write(f"{value:.4f}\\n")
'''


@pytest.fixture(scope="module")
def line_zoo(cluster: Cluster) -> tuple[str, ...]:
    zoo = cluster.directory / "squares"
    zoo.mkdir()
    (zoo / "squares.py").write_text(SQUARES + f"\n\nOUTPUT = {str(cluster.directory / 'squares.txt')!r}\n")
    return (
        *("--model_zoo", str(zoo), "--model_def", "squares.forward", "--custom_data_reader", "custom_data_reader"),
        *("--minibatch_size", "16", "--num_minibatches_per_task", "4"),
    )


@pytest.fixture(scope="module")
def trained(cluster: Cluster, line_zoo: tuple[str, ...]) -> dict:
    job = cluster.wait(
        cluster.submit(
            *(*line_zoo, "--job_name", "lines", "--training_data", "lines:1000", "--validation_data", "lines:100"),
            *("--num_epochs", "8", "--get_model_steps", "4", "--lr_staleness_modulation"),
        )
    )
    assert job["state"] == "SUCCEEDED", json.dumps(job.get("error"), indent=1)
    return job


def test_a_readers_shards_are_listed_by_a_worker_and_wholly_trained(cluster: Cluster, trained: dict) -> None:
    assert trained["status"]["progress"]["records_total"] == 8000
    assert applied_records(read_traces(cluster.job_dir(trained["id"]))) == 8000
    assert trained["status"]["metrics"]["error"] < 0.05, "local steps and the schedule still reach y = 3x - 1"


def test_predictions_go_through_the_modules_processor(
    cluster: Cluster, line_zoo: tuple[str, ...], trained: dict
) -> None:
    job_id = cluster.cli(
        *("predict", "--detach", *line_zoo, "--job_name", "guesses", "--prediction_data", "lines:50"),
        *("--checkpoint_dir_for_init", str(cluster.job_dir(trained["id"]) / "checkpoints")),
    ).stdout.split()[-1]
    job = cluster.wait(job_id)
    assert job["state"] == "SUCCEEDED", json.dumps(job.get("error"), indent=1)
    values = [float(line) for line in (cluster.directory / "squares.txt").read_text().splitlines()]
    assert len(values) == 50
    assert min(values) == pytest.approx(-1.0, abs=0.15)
    assert max(values) == pytest.approx(2.0, abs=0.15)


def test_training_goes_on_from_a_checkpoint_and_stops_at_max_step(
    cluster: Cluster, line_zoo: tuple[str, ...], trained: dict
) -> None:
    job = cluster.wait(
        cluster.submit(
            *(*line_zoo, "--job_name", "warm", "--training_data", "lines:1000", "--validation_data", "lines:100"),
            *("--num_epochs", "50", "--max_step", "40", "--num_ps", "2"),
            *("--checkpoint_dir_for_init", str(cluster.job_dir(trained["id"]) / "checkpoints")),
        )
    )
    assert job["state"] == "SUCCEEDED", json.dumps(job.get("error"), indent=1)
    assert job["status"]["metrics"]["error"] < 0.06
    assert job["status"]["progress"]["records_done"] < 50_000


def test_eager_runs_print_the_layers(cluster: Cluster, digits: Path) -> None:
    shown = cluster.cli(
        *("train", "--local", "--eager", "--model_zoo", str(EXAMPLES / "digits" / "zoo")),
        *("--model_def", "digits.forward", "--training_data", str(digits / "validation")),
        *("--minibatch_size", "256", "--max_step", "1", "--output", str(cluster.directory / "eager")),
    )
    assert "conv2d" in (shown.stdout + shown.stderr).lower()
