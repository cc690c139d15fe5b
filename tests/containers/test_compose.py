"""docker-compose.yml, run for real: what docs/compose.md shows, and what jobs outlive."""

from __future__ import annotations

import json
import os
import shlex
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from tests.chaos.counting import MODULES, TASK, submitted, until
from tests.containers.containers import SERVICES, UP_S, Containers, JobInContainers, in_containers
from tests.containers.engine import lacking, run
from tests.e2e.local_cluster import ROOT
from tests.e2e.test_documents import commands

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(3600)]
RESTART = "ELASTICDL_TEST_ENGINE_RESTART"
"""The command that restarts the engine, where tests may: ``systemctl restart docker``."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    if lacking():
        pytest.skip(lacking())
    with in_containers(tmp_path_factory.mktemp("containers")) as cluster:
        yield cluster


def containers(cluster: Containers) -> dict[str, dict]:
    """What the engine says of each container, by service."""
    found = json.loads(run("docker", "inspect", *cluster.compose("ps", "--quiet").split()).stdout)
    return {one["Config"]["Labels"]["com.docker.compose.service"]: one for one in found}


def test_the_document_on_containers(cluster: Containers) -> None:
    """All of its commands as they stand, from the secrets to a model."""
    session = {**cluster.environment, "ELASTICDL_API_URL": "", "ELASTICDL_TOKEN": ""}
    done = run("bash", "-c", commands(ROOT / "docs" / "compose.md"), cwd=cluster.checkout, env=session, timeout=1800)
    assert done.returncode == 0, f"--- stdout\n{done.stdout[-4000:]}\n--- stderr\n{done.stderr[-6000:]}"
    assert '"state":"SUCCEEDED"' in done.stdout.replace(" ", "")
    assert (cluster.checkout / "model.keras").stat().st_size > 10_000
    assert any((cluster.checkout / "digits-export").rglob("*.keras"))


def test_nothing_answers_but_the_api_on_loopback_with_a_token(cluster: Containers) -> None:
    cluster.up()
    found = containers(cluster)
    assert set(found) == set(SERVICES)
    bound = {
        (service, one["HostIp"])
        for service, container in found.items()
        for each in (container["NetworkSettings"]["Ports"] or {}).values()
        for one in each or ()
    }
    assert bound == {("api", "127.0.0.1")}
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{cluster.environment['ELASTICDL_API_URL']}/jobs", timeout=10)
    with refused.value:
        assert refused.value.code == 401


def test_prometheus_collects_with_a_token_of_its_own(cluster: Containers) -> None:
    cluster.up()
    token = cluster.cli("tokens", "create", "prometheus", "--cluster").stdout
    (cluster.checkout / "deploy" / "docker" / "secrets" / "prometheus_token").write_text(token)
    profile = ("--profile", "observability")
    cluster.compose(*profile, "up", "--no-build", "--wait", "prometheus", timeout=UP_S)
    query = ("exec", "prometheus", "wget", "--quiet", "--output-document=-")

    def collected() -> bool:
        said = cluster.compose(*profile, *query, "http://127.0.0.1:9090/api/v1/query?query=up{job='elasticdl'}")
        return [one["value"][1] for one in json.loads(said)["data"]["result"]] == ["1"]

    until(collected, "Prometheus has collected from the api")
    cluster.compose(*profile, "rm", "--stop", "--force", "prometheus")


def test_a_job_outlives_each_container_all_of_them_the_engine_and_down(cluster: Containers) -> None:
    """No record is missing in its parameters, and those that are in them once more are told to the record."""
    cluster.up()
    options = ("--num_minibatches_per_task", "5", "--num_ps_pods", "2", "--checkpoint_steps", "100")
    with submitted(
        JobInContainers, cluster, "outlives", MODULES["tensorflow"], *options, records=1000, epochs=30, workers=1
    ) as job:
        trains_beyond(job, 0)
        for workers in (3, 2):
            cluster.cli("jobs", "scale", job.id, "--min_workers", str(workers), "--max_workers", str(workers))
            until(lambda workers=workers: ready(job) == workers, f"the job has {workers} workers")
        hit: list[Callable[[], object]] = [lambda service=service: killed(cluster, service) for service in SERVICES]
        hit += [lambda: crashed(cluster), lambda: (cluster.compose("down"), cluster.up())]
        if restart := os.environ.get(RESTART):
            hit.append(lambda: (run(*shlex.split(restart)), cluster.up()))
        for fault in hit:
            after(job, fault)
        ended = job.finish()
        audit = ended["status"]["audit"]
        assert audit["state"] == "passed" and audit["planned"] == audit["committed"] == 30_000, audit
        job.nothing_lost(most_again=job.in_flight(len(hit)))
        again = {name: int((counts - job.epochs).sum()) for name, counts in job.counts().items()}
        assert set(again.values()) == {audit["duplicates"]}, (again, audit)


def ready(job: JobInContainers) -> int:
    """Workers that train."""
    with job.cluster.client() as client:
        status = client.get(job.id).get("status") or {}
    return sum(one["state"].upper() == "RUNNING" for one in status.get("workers", ()))


def after(job: JobInContainers, fault: Callable[[], object]) -> None:
    """Has a fault hit a job in its midst, and waits until it has done more than before."""
    assert job.running(), "the job has ended too soon to be hit"
    begun = job.applied()
    fault()
    trains_beyond(job, begun)


def trains_beyond(job: JobInContainers, begun: int) -> None:
    goal = begun + job.workers * TASK + TASK // 2
    until(lambda: job.applied() >= goal, f"job {job.id} does records beyond the {begun} of before")


def killed(cluster: Containers, service: str) -> None:
    """Kills a container, which the engine takes for a wish, and has Compose bring it up."""
    cluster.compose("kill", service)
    assert containers(cluster).get(service, {"State": {"Running": False}})["State"]["Running"] is False
    cluster.up()


def crashed(cluster: Containers) -> None:
    """Ends what runs in each container, so that the engine starts it again by itself.

    Postgres is the first process of its container, which only the engine could kill: it starts its others again.
    """
    before = {service: one["RestartCount"] for service, one in containers(cluster).items()}
    for service in SERVICES:
        user = ("--user", "0:0") if service == "node" else ()
        run("docker", "exec", *user, containers(cluster)[service]["Id"], "sh", "-c", "kill -9 -1")

    def back() -> bool:
        now = containers(cluster)
        return all(
            service in now
            and (service == "postgres" or now[service]["RestartCount"] > count)
            and now[service]["State"].get("Health", {}).get("Status") == "healthy"
            for service, count in before.items()
        )

    until(back, "the engine has started all of them again")
