"""Training by AllReduce, the way a user runs it: workers hold the model, and come and go while it is trained."""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from elasticdl_runtime.checkpoint_files import CheckpointFile, read_checkpoint
from tests.e2e.local_cluster import EXAMPLES, Cluster, user_environment
from tests.e2e.test_training import exported_accuracies
from tests.fakes.frameworks import NEEDS_TORCH

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.rotates(turns=5, family="group")]

DIGITS = ("--model_def", "digits.forward", "--minibatch_size", "64")
EPOCHS = 80
"""So many that members that join late, on a busy machine, find the job at work."""
TORCH_EPOCHS = 16


def _submit(cluster: Cluster, digits: Path, name: str, workers: int, *flags: str, zoo: str = "digits") -> str:
    strategy = ("--distribution_strategy", "AllReduceStrategy", "--microbatches", "4", "--job_name", name)
    workers_of_it = ("--max_workers", str(workers), "--min_workers", str(workers))
    model = ("--model_zoo", str(EXAMPLES / zoo / "zoo"), *DIGITS)
    return cluster.submit(*model, "--training_data", str(digits / "train"), *strategy, *workers_of_it, *flags)


def _check_exact(job: dict[str, Any]) -> None:
    assert job["state"] == "SUCCEEDED", json.dumps(job.get("error"), indent=1)
    progress, audit = job["status"]["progress"], job["status"]["audit"]
    assert progress["records_done"] == progress["records_total"] > 0
    assert audit["state"] == "passed", audit
    assert audit["planned"] == audit["committed"] == progress["records_total"]
    assert audit["duplicates"] == 0


@NEEDS_TORCH
def test_a_torch_model_is_the_same_to_the_last_bit_though_a_member_was_killed(cluster: Cluster, digits: Path) -> None:
    """Dropout and BatchNorm in it; all are killed, too; and it is evaluated and exported."""
    evaluation = ("--validation_data", str(digits / "validation"))
    quiet = _submit(cluster, digits, "torch-quiet", 1, "--num_epochs", str(TORCH_EPOCHS), zoo="digits_torch")
    more = ("--num_epochs", str(TORCH_EPOCHS), "--checkpoint_steps", "20", *evaluation)
    job_id = _submit(cluster, digits, "torch-killed", 2, *more, zoo="digits_torch")
    _until(lambda: _members(cluster, job_id) == 2, "two members train")
    _signal(_processes(cluster, job_id)[1], signal.SIGKILL)
    _until(lambda: _members(cluster, job_id) == 2 and len(_launched(cluster, job_id)) == 3, "another took its place")
    _until(lambda: "checkpoint of version 20" in str(_events(cluster, job_id)), "there is a checkpoint")
    for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none can hand on what it has
        for pid in _processes(cluster, job_id).values():
            _signal(pid, number)
    job = cluster.wait(job_id)
    _check_exact(job)
    kinds = [event["kind"] for event in _events(cluster, job_id)]
    assert (kinds.count("worker_lost"), kinds.count("restored")) == (3, 1), kinds
    assert job["status"]["metrics"]["accuracy"] >= 0.9
    assert 0.5 < job["status"]["training_metrics"]["accuracy"] <= 1.0
    assert 0.0 < job["status"]["learning_rate"] < 0.001, "it falls with each update"
    _check_exact(cluster.wait(quiet))
    _check_equal(_parameters(cluster, quiet), _parameters(cluster, job_id))

    target = cluster.directory / "torch-group-artifacts"
    cluster.cli("jobs", "artifacts", job_id, "--download", str(target))
    for found in exported_accuracies(cluster, "torch", target, digits):
        assert found == pytest.approx(job["status"]["metrics"]["accuracy"], abs=1e-6)


def test_two_members_train_evaluate_and_export(cluster: Cluster, digits: Path) -> None:
    job_id = _submit(
        cluster, digits, "group", 2, "--num_epochs", "6", "--validation_data", str(digits / "validation")
    )
    job = cluster.wait(job_id)
    _check_exact(job)
    assert job["status"]["metrics"]["accuracy"] >= 0.9
    assert 0.5 < job["status"]["training_metrics"]["accuracy"] <= 1.0
    assert 0.0 < job["status"]["learning_rate"] < 0.001, "it falls with each update"
    assert not [one for one in cluster.launches(job_id) if one["role"] == "ps"]

    target = cluster.directory / "group-artifacts"
    cluster.cli("jobs", "artifacts", job_id, "--download", str(target))
    checked = cluster.run(
        sys.executable, str(EXAMPLES / "digits" / "check_export.py"), str(target), str(digits / "validation")
    )
    assert checked.returncode == 0, checked.stderr
    accuracy = job["status"]["metrics"]["accuracy"]
    for found in json.loads(checked.stdout.splitlines()[-1]).values():
        assert found == pytest.approx(accuracy, abs=1e-6)


def test_members_that_fuse_their_minibatches_count_each_record_once_though_one_was_killed(
    cluster: Cluster, digits: Path
) -> None:
    epochs = ("--num_epochs", str(EPOCHS), "--deterministic", "false")
    job_id = _submit(cluster, digits, "fused", 2, *epochs, "--validation_data", str(digits / "validation"))
    _until(lambda: _members(cluster, job_id) == 2, "two members train")
    _signal(_processes(cluster, job_id)[1], signal.SIGKILL)
    job = cluster.wait(job_id)
    _check_exact(job)
    assert [event["kind"] for event in _events(cluster, job_id)].count("worker_lost") == 1
    assert job["status"]["metrics"]["accuracy"] >= 0.9
    status = job["status"]
    progress, strategy = status["progress"], status["strategy"]
    assert (strategy["chosen"], strategy["deterministic"]) == ("AllReduceStrategy", False)
    assert status["model_version"] == EPOCHS * math.ceil(progress["records_total"] / EPOCHS / 64), "constant updates"
    assert "not deterministic" in cluster.cli("jobs", "get", job_id).stdout


@NEEDS_TORCH
def test_sums_of_tensors_are_made_on_declared_devices_though_a_member_was_killed(
    tmp_path_factory: pytest.TempPathFactory, digits: Path
) -> None:
    """The way to NCCL, with gloo in its place: nothing is behind a declared device."""
    directory = tmp_path_factory.mktemp("nccl")
    asked = ("--collective", "nccl", "--deterministic", "false", "--worker_resource_request", "gpu=1")
    more = ("--num_epochs", str(TORCH_EPOCHS), "--validation_data", str(digits / "validation"))
    with Cluster(directory, user_environment(directory)).running(
        "--slots", "3", "--policy", "fair", "--devices", "gpu=2"
    ) as devices:
        job_id = _submit(devices, digits, "nccl", 2, *asked, *more, zoo="digits_torch")
        _until(lambda: _members(devices, job_id) == 2, "two members train")
        _signal(_processes(devices, job_id)[1], signal.SIGKILL)
        job = devices.wait(job_id)
        _check_exact(job)
        assert job["status"]["metrics"]["accuracy"] >= 0.9
        assert [event["kind"] for event in _events(devices, job_id)].count("worker_lost") == 1
        (log,) = (devices.job_dir(job_id) / "logs").glob("worker-0.*.log")
        assert "gloo sums instead of NCCL" in log.read_text()


def test_the_strategy_follows_from_the_model(cluster: Cluster, digits: Path) -> None:
    data = ("--training_data", str(digits / "train"), "--num_epochs", "1", "--distribution_strategy", "auto")
    model = ("--model_zoo", str(EXAMPLES / "digits" / "zoo"), *DIGITS)
    job_id = cluster.submit(*model, *data, "--job_name", "chosen")
    job = cluster.wait(job_id)
    _check_exact(job)
    assert job["status"]["strategy"]["chosen"] == "AllReduceStrategy", job["status"]["strategy"]
    assert "it has no embedding tables" in job["status"]["strategy"]["reason"]
    assert [one["kind"] for one in _events(cluster, job_id)].count("strategy") == 1
    assert not [one for one in cluster.launches(job_id) if one["role"] == "ps"]
    assert "AllReduceStrategy" in cluster.cli("jobs", "get", job_id).stdout


def test_members_come_and_go_and_the_model_is_the_same_to_the_last_bit(cluster: Cluster, digits: Path) -> None:
    quiet = _submit(cluster, digits, "quiet", 1, "--num_epochs", str(EPOCHS))
    _check_exact(cluster.wait(quiet))

    job_id = _submit(cluster, digits, "faults", 4, "--num_epochs", str(EPOCHS))
    _until(lambda: _members(cluster, job_id) == 4, "four members train")
    first = _processes(cluster, job_id)
    _signal(first[1], signal.SIGKILL)
    _until(lambda: _members(cluster, job_id) == 4 and len(cluster.launches(job_id)) == 6, "another took its place")
    stopped = _processes(cluster, job_id)[2]
    _signal(stopped, signal.SIGSTOP)
    _until(lambda: _members(cluster, job_id) == 3, "the group goes on without the one that stands still")
    _signal(stopped, signal.SIGCONT)
    _until(lambda: _members(cluster, job_id) == 4, "it came back")
    master = [one for one in cluster.launches(job_id) if one["role"] == "master"][-1]
    _signal(master["pid"], signal.SIGKILL)
    _until(lambda: sum(one["role"] == "master" for one in cluster.launches(job_id)) == 2, "a master takes over")
    cluster.cli("jobs", "scale", job_id, "--min-workers", "1", "--max-workers", "3")
    _until(lambda: _members(cluster, job_id) == 3, "one was drained")
    cluster.cli("jobs", "scale", job_id, "--max-workers", "4")
    _until(lambda: _members(cluster, job_id) == 4, "one joined")
    assert cluster.job(job_id)["state"] == "RUNNING", "void: the job was over before the last fault"
    job = cluster.wait(job_id)

    _check_exact(job)
    kinds = [event["kind"] for event in _events(cluster, job_id)]
    assert kinds.count("worker_lost") == 1, kinds
    assert "rolled_back" not in kinds and "worker_stuck" not in kinds
    workers = [(one["index"], one["incarnation"]) for one in cluster.launches(job_id) if one["role"] == "worker"]
    assert len(set(workers)) == 6, "four, one in place of the killed one, and one that joined"
    _check_equal(_parameters(cluster, quiet), _parameters(cluster, job_id))


def _check_equal(expected: dict[str, Any], found: dict[str, Any]) -> None:
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(
            found[name].reshape(-1).view(np.uint8), values.reshape(-1).view(np.uint8), err_msg=name
        )


def _until(condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)  # a poll of another process


def _events(cluster: Cluster, job_id: str) -> list[dict[str, Any]]:
    with cluster.client() as client:
        return [{"kind": event.kind, "message": event.message} for event in client.events(job_id)]


def _members(cluster: Cluster, job_id: str) -> int:
    """How many are in the present generation."""
    told = [event["message"] for event in _events(cluster, job_id) if event["kind"] == "group"]
    formed = [message for message in told if message.startswith("generation")]
    return int(formed[-1].split(": ")[1].split()[0]) if formed else 0


def _processes(cluster: Cluster, job_id: str) -> dict[int, int]:
    """The process of each worker that runs."""
    running = [one for one in cluster.launches(job_id) if one["role"] == "worker" and one["state"] == "running"]
    return {one["index"]: one["pid"] for one in running}


def _launched(cluster: Cluster, job_id: str) -> list[dict[str, Any]]:
    """All workers that there were."""
    return [one for one in cluster.launches(job_id) if one["role"] == "worker"]


def _signal(pid: int, number: signal.Signals) -> None:
    psutil.Process(pid).send_signal(number)


def _parameters(cluster: Cluster, job_id: str) -> dict[str, Any]:
    """The parameters in the last checkpoint."""
    manifests = [json.loads(path.read_text()) for path in cluster.job_dir(job_id).glob("checkpoints/*/manifest.json")]
    last = max(manifests, key=lambda manifest: manifest["version"])
    files = [CheckpointFile(file["name"], file["size"], file["sha256"]) for file in last["files"]]
    return dict(read_checkpoint(last["directory"], files).dense)
