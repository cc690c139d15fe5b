"""Jobs of both strategies on one declared device: two compute on it in turns, a third waits and comes after."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.local_cluster import Cluster, user_environment

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
ZOO = '''
import os
import time

import tensorflow as tf


class Recorded(tf.keras.layers.Layer):
    """Writes down when it computes for training."""

    def call(self, inputs, training=False):
        if training and isinstance(inputs, tf.Tensor) and tf.executing_eagerly():
            began = time.monotonic_ns()
            result = tf.linalg.matmul(inputs, tf.random.normal((28 * 28, 28 * 28)))
            with open(os.environ["RECORD"], "a") as file:
                file.write(f"{os.getpid()} {began} {time.monotonic_ns()}\\n")
            return result * 0.0 + inputs
        return inputs


def forward():
    inputs = tf.keras.Input(shape=(28 * 28,))
    return tf.keras.Model(inputs, tf.keras.layers.Dense(10)(Recorded()(inputs)))


def loss(labels, predictions):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, predictions))


def optimizer():
    return tf.keras.optimizers.SGD(0.01)


def feed(dataset, mode, metadata):
    def parse(row):
        numbers = tf.strings.to_number(row)
        return numbers[0] * tf.ones((28 * 28,)), tf.cast(numbers[1], tf.int32)

    return dataset.map(parse)
'''


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of four slots with one declared device."""
    directory = tmp_path_factory.mktemp("devices")
    (directory / "zoo").mkdir()
    (directory / "zoo" / "recorded.py").write_text(ZOO)
    (directory / "data").mkdir()
    rows = "".join(f"{i % 7},{i % 10}\n" for i in range(4000))
    (directory / "data" / "rows.csv").write_text("x,y\n" + rows)
    with Cluster(directory, user_environment(directory)).running("--slots", "4", "--devices", "gpu=1") as machine:
        yield machine


def submit(client: Any, machine: Cluster, name: str, record: Path, strategy: str) -> str:
    return client.submit(
        model_zoo=machine.directory / "zoo",
        model_def="recorded.forward",
        training_data=str(machine.directory / "data"),
        name=name,
        distribution_strategy=strategy,
        eager=True,
        num_epochs=1000,
        worker_resource_request="gpu=0.5",
        envs={"RECORD": str(record)},
    ).id


def until(client: Any, job_id: str, holds: Any) -> Any:
    for job in client.follow(job_id):
        assert not job.state.terminal, job.reason
        if holds(job):
            return job
    raise AssertionError(f"the stream of {job_id} ended")


def worked(job: Any) -> bool:
    return job.state == "RUNNING" and job.status.progress.records_done >= 512


def test_two_jobs_share_a_device_in_turns_and_a_third_waits_for_it(machine: Cluster) -> None:
    record = machine.directory / "intervals"
    with machine.client() as client:
        jobs = [
            submit(client, machine, "servers", record, "ParameterServerStrategy"),
            submit(client, machine, "group", record, "AllReduceStrategy"),
        ]
        for job_id in jobs:
            until(client, job_id, worked)
        late = submit(client, machine, "late", record, "ParameterServerStrategy")
        waits = until(client, late, lambda job: "waits for 0.5 of a GPU: 1 of 1 in use" in job.target_reason)
        assert all(job_id in waits.target_reason for job_id in jobs)
        assert client.explain(late)["blockers"]
        after = client.what_if(devices=2)
        assert {one["job_id"]: one["after"]["workers"] for one in after["jobs"]}[late] == 1
        shown = machine.cli("status").stdout
        assert "gpu0  1 of 1 in use by 2 workers  (declared)" in shown
        client.cancel(jobs[0])
        until(client, late, worked)
        for job_id in (jobs[1], late):
            client.cancel(job_id)
            client.wait(job_id, timeout_s=120)
    intervals = sorted(
        (int(began), int(ended), pid) for pid, began, ended in map(str.split, record.read_text().splitlines())
    )
    assert len({pid for _, _, pid in intervals}) == 3
    changes = 0
    for one, following in itertools.pairwise(intervals):
        assert following[0] >= one[1], "two workers computed on one device at once"
        changes += one[2] != following[2]
    assert changes > 10, "the workers did not take turns"


def test_what_no_worker_could_be_given_is_refused_at_the_door(machine: Cluster) -> None:
    flags = ("--model_zoo", str(machine.directory / "zoo"), "--model_def", "recorded.forward")
    data = ("--training_data", str(machine.directory / "data"))
    wrong = machine.cli("train", *flags, *data, "--worker_resource_request", "cpu=1,memory=4096Mi", expect=2)
    assert "cpu is not applied" in wrong.stderr and "one slot" in wrong.stderr
    devices = json.loads(machine.cli("status", "--json").stdout)["devices"]
    assert [(one["name"], one["declared"], one["used"]) for one in devices] == [("gpu0", True, 0.0)]
