"""What a real job's processes say of themselves, and whether what it did adds up."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.local_cluster import EXAMPLES, Cluster
from tests.fakes.trace_events import faults_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.rotates(turns=3, place=2)]
DIGITS = ("--model_zoo", str(EXAMPLES / "digits" / "zoo"), "--model_def", "digits.forward", "--minibatch_size", "16")


def names_of(recorded: dict, role: str) -> set[str]:
    """The names of what the processes of a role did."""
    named = {
        event["pid"]: event["args"]["name"] for event in recorded["traceEvents"] if event["name"] == "process_name"
    }
    return {one["name"] for one in recorded["traceEvents"] if "ts" in one and named[one["pid"]].startswith(role)}


def test_a_job_says_where_it_is_while_it_runs_and_its_audit_equals_its_ledger(cluster: Cluster, digits: Path) -> None:
    job_id = cluster.submit(
        *DIGITS, "--training_data", str(digits / "train"), "--num_epochs", "30", "--num_workers", "2"
    )
    with cluster.client() as client:
        for job in client.follow(job_id):
            if job.status.progress.records_done or job.state.terminal:
                break
        found = client.stacks(job_id)
        assert {one["role"] for one in found["processes"]} == {"master", "ps", "worker"}
        for one in found["processes"]:
            assert one["waits_for"]
            assert one["error"] == "" or one["waits_for"] == "starting", one
        workers = [one for one in found["processes"] if one["role"] == "worker" and not one["error"]]
        assert any(thread["name"] == "training" for one in workers for thread in one["threads"])
        assert_every_process_tells_its_numbers(client.endpoint.url, cluster, job_id)
        recorded = client.trace(job_id, 3.0)

    assert faults_of(recorded) == []
    assert {"read", "compute", "push"} <= names_of(recorded, "worker")
    assert {"take a push", "read parameters"} <= names_of(recorded, "ps")
    assert {"leased", "reported: accepted"} <= names_of(recorded, "master")
    told = [event["args"] for event in recorded["traceEvents"] if event["name"] == "compute"]
    assert all({"task", "lease", "version"} <= args.keys() for args in told)
    arrows = [event for event in recorded["traceEvents"] if event["ph"] in ("s", "t", "f")]
    roles = {
        event["pid"]: event["args"]["name"] for event in recorded["traceEvents"] if event["name"] == "process_name"
    }
    led = {"".join(sorted({roles[one["pid"]][0] for one in arrows if one["id"] == arrow["id"]})) for arrow in arrows}
    assert "mw" in led, "no arrow leads from the master's lease to what a worker did with it"
    moments = [event["ts"] for event in recorded["traceEvents"] if "ts" in event]
    assert min(moments) == 0
    assert max(moments) < 60e6, "one clock for all"

    assert cluster.wait(job_id)["state"] == "SUCCEEDED"

    audit = json.loads(cluster.cli("audit", job_id, "--json").stdout)
    with cluster.client() as client:
        headers = {"Authorization": f"Bearer {cluster.token}"}
        ledger = httpx.get(f"{client.endpoint.url}/v1/jobs/{job_id}/ledger", headers=headers, timeout=30).json()
    assert (audit["verdict"], audit["findings"]) == ("held", [])
    assert audit["total"] == ledger["total"]
    assert audit["epochs"] == ledger["epochs"]
    assert audit["total"]["todo"] == 0 < audit["total"]["committed"]
    assert sum(one["records"] for one in audit["workers"]) == audit["total"]["committed"] + audit["redone"]
    assert all(one["last_version"] > 0 for one in audit["workers"])
    assert_event_files_equal_the_series(cluster, job_id)


def assert_every_process_tells_its_numbers(url: str, cluster: Cluster, job_id: str) -> None:
    headers = {"Authorization": f"Bearer {cluster.token}"}
    text = httpx.get(f"{url}/metrics", headers=headers, timeout=30).text
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    answering = {
        one.labels["role"]
        for one in samples
        if one.name == "elasticdl_process_resident_memory_bytes" and one.labels["job"] in (job_id, "")
    }
    assert answering >= {"master", "ps", "worker", "api", "agent", "scheduler"}
    own = {one.name: one.value for one in samples if one.labels.get("job") == job_id}
    assert own["elasticdl_job_records_planned"] > 0
    assert own["elasticdl_ps_initialized"] == 1
    assert "elasticdl_worker_records_total" in own


def assert_event_files_equal_the_series(cluster: Cluster, job_id: str) -> None:
    from tensorflow.compat.v1.train import summary_iterator

    folder = cluster.directory / "runs"
    cluster.cli("tensorboard", job_id, "--logdir", str(folder), "--once")
    (file,) = (folder / job_id).iterdir()
    written: dict[str, list[tuple[float, float]]] = {}
    for event in summary_iterator(str(file)):
        for value in event.summary.value:
            written.setdefault(value.tag, []).append((event.step, value.simple_value))
    with cluster.client() as client:
        told = {one["name"]: one["points"] for one in client.series(job_id, by="version", points=2000)["series"]}
    assert {"loss", "samples_per_second"} <= set(written)
    for tag, points in written.items():
        expected = {round(x): mean for x, mean, _, _ in reversed(told[tag.replace("/", ".", 1)])}
        assert points == [(x, pytest.approx(mean, rel=1e-6)) for x, mean in sorted(expected.items())], tag
