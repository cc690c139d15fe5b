"""Whole jobs of tenants whose model files attack: the job trains, and gets hold of nothing."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.local_cluster import EXAMPLES, Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
COPIES = 64
"""Of the validation data: so many that an evaluation lasts while workers come and go."""

ATTACK = """

import json as _json
import os as _os
from pathlib import Path as _Path


def _attack():
    data = _Path(_os.environ["ELASTICDL_JOB_DIR"]).parents[1]
    found = {}
    for name in ("token", "secret", "cluster.json", "logs/agent.log", "jobs", "jobs/OTHER", "jobs/OTHER/artifacts"):
        path = data / name
        try:
            found[str(path)] = path.read_text()[:100] if path.is_file() else str(list(path.iterdir()))
        except OSError:
            pass
    for name in _os.listdir("/proc"):
        if name.isdigit() and int(name) != _os.getpid():
            try:
                found[name] = _Path(f"/proc/{name}/environ").read_text(errors="replace")[:100]
            except OSError:
                pass
    try:
        _os.mkfifo(_Path(_os.environ["ELASTICDL_JOB_DIR"]) / "logs" / "worker-0.7.log")
        found["pipe"] = "made"
    except OSError:
        pass
    print("ATTACK", _json.dumps({name: text for name, text in found.items() if text}), flush=True)


_attack()
"""


def tenant_of(cluster: Cluster, namespace: str, data: Path) -> Cluster:
    """The cluster as somebody sees it who holds a token of a namespace of their own."""
    cluster.cli("namespaces", "create", namespace, "--data-root", str(data))
    created = cluster.cli("tokens", "create", namespace, "--namespace", namespace, "--scope", "submit", "--json")
    token = json.loads(created.stdout)["token"]
    return replace(cluster, environment={**cluster.environment, "ELASTICDL_TOKEN": token})


def hostile_zoo(folder: Path, other: str) -> Path:
    shutil.copytree(EXAMPLES / "digits" / "zoo", folder)
    for module in folder.glob("*.py"):
        module.write_text(module.read_text() + ATTACK.replace("OTHER", other))
    return folder


def test_a_tenants_job_trains_and_reaches_nothing_of_others(cluster: Cluster, digits: Path, tmp_path: Path) -> None:
    status = json.loads(cluster.cli("status", "--json").stdout)
    isolation = status["isolation"]
    assert isolation and f"Isolation {isolation}" in cluster.cli("status").stdout
    if isolation.startswith("none"):
        pytest.skip("nothing isolates jobs on this machine")
    tenant = tenant_of(cluster, "mallory", digits)
    (cluster.job_dir("alice-aaaaaa") / "artifacts").mkdir(parents=True)
    (cluster.job_dir("alice-aaaaaa") / "artifacts" / "model.keras").write_text("hers")
    job_id = tenant.submit(
        *("--model_zoo", str(hostile_zoo(tmp_path / "zoo", "alice-aaaaaa")), "--model_def", "digits.forward"),
        *("--training_data", str(digits / "train"), "--validation_data", str(digits / "validation")),
        *("--num_epochs", "1", "--num_ps_pods", "1", "--max_workers", "1", "--job_name", "hostile"),
    )
    job = tenant.wait(job_id)
    log = tenant.cli("jobs", "logs", job_id, expect=None).stdout
    assert job["state"] == "SUCCEEDED", json.dumps(job.get("error"), indent=1) + log[-3000:]
    told = [json.loads(line.split("ATTACK ", 1)[1]) for line in log.splitlines() if "ATTACK {" in line]
    assert told and all(found == {} for found in told), (isolation, told)
    assert cluster.token not in log


@pytest.mark.rotates(turns=4, family="groups")
def test_workers_of_a_tenant_make_a_group(cluster: Cluster, digits: Path) -> None:
    """Where they may write, their sockets are, and what they have in common in memory."""
    tenant = tenant_of(cluster, "together", digits)
    job_id = tenant.submit(
        *("--model_zoo", str(EXAMPLES / "digits" / "zoo"), "--model_def", "digits.forward"),
        *("--training_data", str(digits / "train"), "--validation_data", str(digits / "validation")),
        *("--num_epochs", "6", "--min_workers", "2", "--num_workers", "2", "--job_name", "a" * 40),
        *("--distribution_strategy", "AllReduceStrategy"),
    )
    job = tenant.wait(job_id)
    log = tenant.cli("jobs", "logs", job_id, expect=None).stdout
    assert job["state"] == "SUCCEEDED", json.dumps(job.get("error"), indent=1) + log[-3000:]
    assert job["status"]["audit"]["state"] == "passed", job["status"]["audit"]


@pytest.mark.rotates(turns=4, family="groups")
def test_workers_of_a_tenant_evaluate_without_servers_and_come_and_go(cluster: Cluster, digits: Path) -> None:
    """Each reads the checkpoint itself, those that come later, too; nothing is counted twice."""
    tenant = tenant_of(cluster, "alone", digits)
    model = ("--model_zoo", str(EXAMPLES / "digits" / "zoo"), "--model_def", "digits.forward")
    strategy = ("--distribution_strategy", "AllReduceStrategy")
    trained = tenant.submit(
        *model,
        *strategy,
        "--training_data",
        str(digits / "train"),
        "--job_name",
        "to-be-evaluated",
        "--num_epochs",
        "2",
    )
    assert tenant.wait(trained)["state"] == "SUCCEEDED"
    (manifest, *_) = sorted((cluster.job_dir(trained) / "checkpoints").glob("*/manifest.json"), reverse=True)
    many = digits / "many"
    many.mkdir(exist_ok=True)
    for number in range(COPIES):
        for file in (digits / "validation").iterdir():
            shutil.copy(file, many / f"{number:02d}-{file.name}")
    evaluate = (
        *("evaluate", "--detach", *model, *strategy, "--checkpoint_dir_for_init", str(manifest.parent)),
        *("--minibatch_size", "1", "--num_minibatches_per_task", "40", "--min_workers", "1", "--max_workers", "1"),
    )
    once = tenant.cli(
        *evaluate, "--validation_data", str(digits / "validation"), "--job_name", "once"
    ).stdout.split()[-1]
    job_id = tenant.cli(*evaluate, "--validation_data", str(many), "--job_name", "alone").stdout.split()[-1]

    def workers() -> int:
        running = [one for one in cluster.launches(job_id) if one["state"] == "running"]
        return sum(one["role"] == "worker" for one in running)

    def evaluated() -> int:
        return tenant.job(job_id)["status"].get("progress", {}).get("records_done", 0)

    _until(lambda: evaluated() > 0, "it evaluates")
    for number in (3, 1):
        tenant.cli("jobs", "scale", job_id, "--min-workers", str(number), "--max-workers", str(number))
        _until(lambda number=number: workers() == number, f"{number} workers")
    assert tenant.job(job_id)["state"] == "RUNNING", "void: it was over before its workers came and went"
    job = tenant.wait(job_id)
    assert job["state"] == "SUCCEEDED", job.get("error")
    wanted = tenant.wait(once)["status"]
    assert evaluated() == COPIES * wanted["progress"]["records_done"] > 0
    assert job["status"]["metrics"] == pytest.approx(wanted["metrics"], rel=1e-5)
    assert "ps" not in {one["role"] for one in cluster.launches(job_id)}


def _until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)  # a poll of another process
