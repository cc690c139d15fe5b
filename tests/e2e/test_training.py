"""Training jobs from submission to a checked export, the way a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.chaos.counting import counting_job
from tests.chaos.faults import kill, replaced
from tests.e2e.local_cluster import EXAMPLES, Cluster
from tests.e2e.predicted_rows import read_predictions
from tests.e2e.traces import applied_records, read_traces, repeated_leases, uncovered
from tests.fakes.frameworks import NEEDS_TORCH

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

both = pytest.mark.parametrize("framework", ["tensorflow", pytest.param("torch", marks=NEEDS_TORCH)])
both_slowly = pytest.mark.parametrize(
    "framework", ["tensorflow", pytest.param("torch", marks=[NEEDS_TORCH, pytest.mark.slow])]
)
"""The same test for jobs of each framework, the second one among the slow tests."""


def example_of(framework: str) -> Path:
    return EXAMPLES / ("digits" if framework == "tensorflow" else "digits_torch")


def digits_of(framework: str) -> tuple[str, ...]:
    zoo = str(example_of(framework) / "zoo")
    return ("--model_zoo", zoo, "--model_def", "digits.forward", "--minibatch_size", "32")


DIGITS = digits_of("tensorflow")


def exported_accuracies(cluster: Cluster, framework: str, export: Path, digits: Path) -> list[float]:
    """The accuracy of everything that an export consists of, measured in a process without ElasticDL."""
    data = digits / "validation"
    if framework == "torch":
        from elasticdl.data import create_data_reader, decode_example

        reader = create_data_reader(str(data))
        records = [decode_example(r) for shard in reader.create_shards() for r in reader.read_records(shard)]
        data = cluster.directory / f"{export.name}.npz"
        images = np.array([one["image"] for one in records], np.float32).reshape(-1, 8, 8)
        np.savez(data, images=images, labels=np.array([one["label"][0] for one in records]))
    script = example_of(framework) / "check_export.py"
    checked = cluster.run(sys.executable, str(script), str(export), str(data))
    assert checked.returncode == 0, checked.stderr
    return list(json.loads(checked.stdout.splitlines()[-1]).values())


def data_flags(digits: Path) -> tuple[str, ...]:
    return ("--training_data", str(digits / "train"), "--validation_data", str(digits / "validation"))


def tasks_of(cluster: Cluster, job: dict) -> dict[int, tuple[int, int]]:
    """The plan of an epoch from the job's status: index to range, recomputed from the data's index."""
    from elasticdl.data import create_data_reader

    size = job["spec"]["minibatch_size"] * job["spec"]["num_minibatches_per_task"]
    tasks: dict[int, tuple[int, int]] = {}
    for shard in create_data_reader(job["spec"]["training_data"]).create_shards():
        for start in range(shard.start, shard.end, size):
            tasks[len(tasks)] = (start, min(start + size, shard.end))
    return tasks


def processes_of(cluster: Cluster, job_id: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ELASTICDL_JOB_ID") == job_id:
                found.append(process)
        except psutil.Error:
            continue
    return found


@both
@pytest.mark.rotates(turns=2)
def test_digits_train_on_two_ps_and_export_for_plain_use(cluster: Cluster, digits: Path, framework: str) -> None:
    job_id = cluster.submit(
        *digits_of(framework),
        *data_flags(digits),
        "--job_name",
        f"road-{framework}",
        "--num_epochs",
        "12",
        "--num_ps_pods",
        "2",
        "--max_workers",
        "2",
    )
    job = cluster.wait(job_id)
    assert job["state"] == "SUCCEEDED", json.dumps(job.get("error"), indent=1)
    assert job["status"]["metrics"]["accuracy"] >= 0.95
    progress = job["status"]["progress"]
    assert progress["records_done"] == progress["records_total"] > 0

    target = cluster.directory / f"road-artifacts-{framework}"
    cluster.cli("jobs", "artifacts", job_id, "--download", str(target))
    for accuracy in exported_accuracies(cluster, framework, target, digits):
        assert accuracy == pytest.approx(job["status"]["metrics"]["accuracy"], abs=1e-6)

    lines = read_traces(cluster.job_dir(job_id))
    assert uncovered(lines, tasks_of(cluster, job), 12) == []
    assert applied_records(lines) == progress["records_total"], "without faults no record is applied twice"
    assert processes_of(cluster, job_id) == []


@both_slowly
@pytest.mark.rotates(turns=5, family="one framework")
def test_the_same_file_trains_locally_and_on_the_cluster_alike(
    cluster: Cluster, digits: Path, framework: str
) -> None:
    flags = (*digits_of(framework), *data_flags(digits), "--num_epochs", "12")
    output = cluster.directory / f"local-export-{framework}"
    cluster.cli("train", "--local", *flags, "--output", str(output), timeout=400)
    job = cluster.wait(cluster.submit(*flags, "--job_name", f"alike-{framework}"))
    assert job["state"] == "SUCCEEDED"
    accuracy = exported_accuracies(cluster, framework, output, digits)[0]
    # 360 held-out digits: three standard deviations of an accuracy around 0.97 are 0.027.
    assert accuracy == pytest.approx(job["status"]["metrics"]["accuracy"], abs=0.03)
    assert accuracy >= 0.95


@both_slowly
def test_no_record_is_lost_when_workers_are_added_drained_and_killed(
    cluster: Cluster, digits: Path, framework: str
) -> None:
    epochs = 60
    job_id = cluster.submit(
        *(*digits_of(framework), *data_flags(digits), "--job_name", f"shaken-{framework}"),
        *("--num_epochs", str(epochs), "--num_ps_pods", "2"),
    )
    killed = 0
    scaled: list[int] = []
    with cluster.client() as client:
        for job in client.follow(job_id):
            training = [w for w in (job.get("status") or {}).get("workers", []) if w.get("phase") == "training"]
            if not scaled and len(training) == 1:
                client.scale(job_id, max_workers=3)
                scaled.append(3)
            elif scaled == [3] and len(training) == 3 and not killed:
                victim = next(
                    p
                    for p in processes_of(cluster, job_id)
                    if p.environ().get("ELASTICDL_ROLE") == "worker" and "elasticdl_worker" in " ".join(p.cmdline())
                )
                os.kill(victim.pid, signal.SIGKILL)
                killed += 1
            elif scaled == [3] and killed and len(training) >= 2:
                client.scale(job_id, max_workers=1)
                scaled.append(1)
    job = cluster.job(job_id)
    assert job["state"] == "SUCCEEDED", json.dumps(job.get("error"), indent=1)
    assert (scaled, killed) == ([3, 1], 1), "the job ended before it was shaken"
    tasks = tasks_of(cluster, job)
    records = sum(end - start for start, end in tasks.values())
    progress = job["status"]["progress"]
    assert progress["records_done"] == progress["records_total"] == records * epochs
    lines = read_traces(cluster.job_dir(job_id))
    assert uncovered(lines, tasks, epochs) == []
    size = max(end - start for start, end in tasks.values())
    assert applied_records(lines) - records * epochs <= killed * size * 2, "only its leases are repeated"
    assert repeated_leases(lines) <= killed * 2
    assert job["status"]["metrics"]["accuracy"] >= 0.95


@both_slowly
@pytest.mark.rotates(turns=5, family="one framework")
def test_synchronous_training_reaches_the_same(cluster: Cluster, digits: Path, framework: str) -> None:
    job = cluster.wait(
        cluster.submit(
            *(*digits_of(framework), *data_flags(digits), "--job_name", f"synchronous-{framework}"),
            *("--num_epochs", "16", "--num_ps_pods", "2"),
            *("--max_workers", "2", "--use_async=false", "--grads_to_wait", "2", "--optimizer_params", "lr=0.002"),
        )
    )
    assert job["state"] == "SUCCEEDED", json.dumps(job.get("error"), indent=1)
    assert job["status"]["metrics"]["accuracy"] >= 0.94


@both_slowly
@pytest.mark.rotates(turns=5, family="one framework")
def test_synchronous_training_outlives_a_worker_and_a_parameter_server(cluster: Cluster, framework: str) -> None:
    waited_for = 2
    flags = ("--use_async=false", "--grads_to_wait", str(waited_for))
    with counting_job(cluster, f"in-step-{framework}", *flags, epochs=10, framework=framework) as job:
        job.trains()
        replaced(job, kill(job, "worker"))
        job.trains_on_after_a_checkpoint()
        replaced(job, kill(job, "ps"))
        job.trains()
        job.finish()
        # A round applies the mean of its gradients; the last one of all may have fewer than the others.
        for name, values in job.parameters().items():
            lost = np.flatnonzero(values * waited_for < job.epochs - 1e-3)
            assert not len(lost), f"{name}: gradients of {len(lost)} records were lost, down to {values.min()}"


@both
@pytest.mark.rotates(turns=4, family="checkpoints")
def test_a_job_is_evaluated_and_predicted_from_its_checkpoint(cluster: Cluster, digits: Path, framework: str) -> None:
    flags, name = (*digits_of(framework), "--num_ps_pods", "2"), f"first-{framework}"
    first = cluster.wait(cluster.submit(*flags, *data_flags(digits), "--job_name", name, "--num_epochs", "10"))
    assert first["state"] == "SUCCEEDED"
    directory = str(cluster.job_dir(first["id"]) / "checkpoints")
    evaluated = cluster.cli(
        *(
            "evaluate",
            "--detach",
            *flags,
            "--job_name",
            f"again-{framework}",
            "--validation_data",
            str(digits / "validation"),
        ),
        *("--checkpoint_dir_for_init", directory, "--num_ps_pods", "3"),
    ).stdout.split()[-1]
    job = cluster.wait(evaluated)
    assert job["state"] == "SUCCEEDED", json.dumps(job.get("error"), indent=1)
    assert job["status"]["metrics"]["accuracy"] == pytest.approx(first["status"]["metrics"]["accuracy"], abs=1e-6)

    output = cluster.directory / f"predictions-{framework}"
    predicted = cluster.cli(
        *(
            "predict",
            "--detach",
            *flags,
            "--job_name",
            f"guess-{framework}",
            "--prediction_data",
            str(digits / "validation"),
        ),
        *("--checkpoint_dir_for_init", directory, "--output", str(output), "--output_format", "csv"),
    ).stdout.split()[-1]
    job = cluster.wait(predicted)
    assert job["state"] == "SUCCEEDED", json.dumps(job.get("error"), indent=1)
    here = cluster.directory / f"predicted-here-{framework}"
    data = ("--prediction_data", str(digits / "validation"), "--model_zoo", str(example_of(framework) / "zoo"))
    written = ("--output", str(here), "--output_format", "csv")
    cluster.cli("predict", "--local", "--from", name, *data, "--minibatch_size", "32", *written, timeout=300)
    there, local = read_predictions(output), read_predictions(here)
    assert list(there) == list(local), "both have each record once, in files of the same names"
    np.testing.assert_allclose(np.array(list(there.values())), np.array(list(local.values())), atol=1e-5)
    assert [path.name for path in sorted(output.iterdir())] == [path.name for path in sorted(here.iterdir())]


@both
@pytest.mark.rotates(turns=4, family="checkpoints")
def test_a_dead_ps_comes_back_from_the_checkpoint(cluster: Cluster, framework: str) -> None:
    with counting_job(cluster, f"amnesia-{framework}", epochs=8, framework=framework) as job:
        job.trains_on_after_a_checkpoint()
        replaced(job, kill(job, "ps"))
        job.trains()
        job.finish()
        # What was done after the checkpoint went away with the PS, and was done again: traces cannot tell.
        job.nothing_lost(most_again=job.in_flight(2))
        (again,) = job.events("rolled_back")
        assert int(again.split()[0]) > 0


def test_nothing_is_left_after_ctrl_c(tmp_path: Path) -> None:
    from tests.e2e.local_cluster import user_environment

    environment = user_environment(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "elasticdl", "up", "--port", "0", "--slots", "1"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "is up" in line:
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) in (0, 130)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    left = []
    for other in psutil.process_iter():
        try:
            if str(tmp_path) in " ".join([*other.cmdline(), *other.environ().values()]) and other.pid != os.getpid():
                left.append(other)
        except psutil.Error:
            continue
    _, alive = psutil.wait_procs(left, timeout=60)
    assert [p.cmdline() for p in alive] == []
