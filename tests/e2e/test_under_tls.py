"""A whole cluster that speaks TLS everywhere, and a tenant's jobs on it, with users of their own where possible."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from elasticdl import Client
from elasticdl.client.retry import RetryPolicy
from elasticdl_core.job import JobState
from elasticdl_runtime.cluster import locate
from tests.e2e.local_cluster import EXAMPLES, Cluster, user_environment

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="other systems answer to 127.0.0.1 alone"),
    pytest.mark.rotates(turns=3, family="wires"),
]
CERTIFICATE_S = 18.0
"""So short that each process gets several in the life of a job."""


@pytest.fixture(scope="module")
def secured() -> Iterator[Cluster]:
    """A cluster of two slots in a folder that users of jobs could reach, and the digits."""
    directory = Path(tempfile.mkdtemp(prefix="edl-"))
    directory.chmod(0o711)
    settings = {"ELASTICDL_RPC": "tls", "ELASTICDL_CERTIFICATE_HOURS": str(CERTIFICATE_S / 3600)}
    cluster = Cluster(directory, {**user_environment(directory), **settings})
    cluster.cli("data", "generate", "digits", str(directory / "digits"))
    try:
        cluster.cli(
            "up", "--port", "0", "--slots", "2", "--policy", "fair", "--detach", "--tls-generate", timeout=240
        )
        yield cluster
    finally:
        cluster.cli("down", expect=None, timeout=120)
        shutil.rmtree(directory)


def processes(job_id: str, role: str) -> list[psutil.Process]:
    """The living processes of a role of the job, without their shims, which have none of their variables."""
    mine = []
    for process in psutil.process_iter():
        try:
            words, variables = process.cmdline(), process.environ()
        except psutil.Error:
            continue
        if f"elasticdl_{role}" in words and variables.get("ELASTICDL_JOB_ID") == job_id:
            mine.append(process)
    return mine


def first_server(job_id: str) -> psutil.Process | None:
    """The parameter server 0 of the job, if it runs now."""
    found = [one for one in processes(job_id, "ps") if one.environ()["ELASTICDL_INDEX"] == "0"]
    return found[0] if found else None


@pytest.fixture(scope="module")
def tenant(secured: Cluster) -> Cluster:
    """The cluster as somebody of a namespace sees it."""
    secured.cli("namespaces", "create", "ada", "--data-root", str(secured.directory / "digits"))
    made = secured.cli("tokens", "create", "ada", "--namespace", "ada", "--scope", "submit", "--json")
    token = json.loads(made.stdout)["token"]
    return replace(secured, environment={**secured.environment, "ELASTICDL_TOKEN": token})


def submit(tenant: Cluster, epochs: int) -> str:
    return tenant.submit(
        *("--model_zoo", str(EXAMPLES / "digits" / "zoo"), "--model_def", "digits.forward"),
        *("--training_data", str(tenant.directory / "digits" / "train"), "--num_epochs", str(epochs)),
        *("--num_ps_pods", "2", "--min_workers", "2", "--max_workers", "2"),
    )


def client_of(cluster: Cluster) -> Client:
    """A client that finds by itself what the API is verified by."""
    address = locate(cluster.data_dir)
    assert address is not None and address.api_url.startswith("https://") and address.ca_file
    endpoint = {"ELASTICDL_CA_FILE": address.ca_file}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*endpoint.popitem())
        return Client(address.api_url, cluster.environment["ELASTICDL_TOKEN"], retry=RetryPolicy(attempts=10))


def test_a_tenants_job_trains_with_tls_on_every_wire(tenant: Cluster) -> None:
    job_id = submit(tenant, 1)
    run = Path(json.loads((tenant.data_dir / "cluster.json").read_text())["run_dir"])
    with client_of(tenant) as client:
        job = client.wait(job_id, 300)
    assert job.state is JobState.SUCCEEDED, tenant.cli("jobs", "logs", job_id, expect=None).stdout[-4000:]
    (log,) = (tenant.job_dir(job_id) / "logs").glob("ps-0.*.log")
    assert f"tls://ps-0.{job_id}@127." in log.read_text()
    assert [path.name for path in run.rglob("*.sock")] == ["redis.sock"]


def test_certificates_are_replaced_while_a_job_runs_and_who_runs_it(tenant: Cluster) -> None:
    isolation = json.loads(tenant.cli("status", "--json").stdout)["isolation"]
    run = Path(json.loads((tenant.data_dir / "cluster.json").read_text())["run_dir"])
    job_id = submit(tenant, 100_000)
    files = [run / job_id / "tls" / role / "0.pem" for role in ("master", "ps", "worker")]
    first: list[bytes] = []
    killed: psutil.Process | None = None
    resumed_at = -1
    with client_of(tenant) as client:
        for job in client.follow(job_id):
            assert not job.state.terminal, job
            done = job.status.progress.records_done
            if not first and done:
                first = [file.read_bytes() for file in files]
                workers = processes(job_id, "worker")
                assert len(workers) == 2
                users = {worker.uids().real for worker in workers}
                assert users == ({200_000} if isolation.startswith("uid") else {os.getuid()}), isolation
                assert all("elasticdl_agent.zygote.process" in zygote_of(worker) for worker in workers)
                assert {one.uids().real for one in processes(job_id, "ps")} == {os.getuid()}
            elif first and killed is None:
                if all(file.read_bytes() != old for file, old in zip(files, first, strict=True)):
                    # A parameter server that comes back is connected to anew, with what was issued meanwhile.
                    killed = first_server(job_id)
                    assert killed is not None
                    killed.kill()
            elif killed is not None and resumed_at < 0:
                if first_server(job_id) not in (None, killed):
                    resumed_at = done
            elif resumed_at >= 0 and done > resumed_at:
                break
        client.cancel(job_id)
        assert client.wait(job_id, 120).state is JobState.CANCELLED


def zygote_of(worker: psutil.Process) -> list[str]:
    """The command line of what forked a worker's shim."""
    shim = worker.parent()
    zygote = shim.parent() if shim is not None else None
    return zygote.cmdline() if zygote is not None else []
