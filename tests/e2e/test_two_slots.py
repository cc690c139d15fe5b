"""Two people on a laptop with two slots: the explanations say what happens, and what they foretell comes true."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from elasticdl import Client
from tests.e2e.local_cluster import EXAMPLES, Cluster, user_environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.rotates(turns=4, family="slots")]
WAIT_S = 240.0


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two slots with the default policy, and the digits."""
    directory = tmp_path_factory.mktemp("laptop")
    with Cluster(directory, user_environment(directory)).running("--slots", "2") as laptop:
        laptop.cli("data", "generate", "digits", str(directory / "digits"))
        yield laptop


def state_of(laptop: Cluster) -> dict[str, Any]:
    return dict(json.loads((laptop.data_dir / "cluster.json").read_text()))


def database_url(laptop: Cluster) -> str:
    """As the cluster's own scheduler has it."""
    return scheduler_process(laptop).environ()["ELASTICDL_DATABASE_URL"]


def scheduler_process(laptop: Cluster) -> psutil.Process:
    """The scheduler of this cluster: a child of its supervisor."""
    for child in psutil.Process(state_of(laptop)["pid"]).children(recursive=True):
        if "elasticdl_scheduler" in child.cmdline():
            return child
    raise AssertionError("the cluster has no scheduler")


def user(laptop: Cluster, namespace: str) -> Client:
    """A client of somebody who sees one namespace."""
    laptop.cli("namespaces", "create", namespace, "--data-root", str(laptop.directory / "digits"))
    token = laptop.cli("tokens", "create", f"{namespace}-laptop", "--namespace", namespace, "--scope", "submit")
    return Client(api_url=state_of(laptop)["api_url"], token=token.stdout.split()[0])


def submit(client: Client, laptop: Cluster, name: str) -> str:
    return client.submit(
        model_zoo=EXAMPLES / "digits" / "zoo",
        model_def="digits.forward",
        training_data=str(laptop.directory / "digits" / "train"),
        name=name,
        distribution_strategy="ParameterServerStrategy",
        num_epochs=100_000,
        min_workers=1,
        max_workers=2,
    ).id


def until(client: Client, job_id: str, holds: Callable[[Any], bool], what: str) -> None:
    """Waits for a job's stream of views to show something."""
    import time

    deadline = time.monotonic() + WAIT_S
    for job in client.follow(job_id):
        if holds(job):
            return
        assert time.monotonic() < deadline, f"{job_id} never {what}: {job.raw}"
        assert not job.state.terminal, f"{job_id} ended before it {what}: {job.raw}"
    raise AssertionError(f"the stream of {job_id} ended before it {what}")


def works(workers: int) -> Callable[[Any], bool]:
    return lambda job: job.state == "RUNNING" and job.target_workers == workers and len(job.status.workers) == workers


def targets(plan: Any) -> dict[str, int]:
    return {job["job_id"]: job["workers"]["target"] for job in plan["jobs"]}


def test_two_people_share_two_slots_as_the_explanations_say(laptop: Cluster) -> None:
    with laptop.client() as admin, user(laptop, "ads") as ann, user(laptop, "vision") as bob:
        anns = submit(ann, laptop, "anns")
        until(ann, anns, lambda job: job.state == "RUNNING" and job.status.progress.records_done > 0, "worked")
        bobs = submit(bob, laptop, "bobs")
        until(bob, bobs, works(1), "had one worker")
        until(ann, anns, works(1), "had one worker")

        # Each has one of the two, is told so, and hears of the other only as a number.
        for client, own, other in ((ann, anns, bobs), (bob, bobs, anns)):
            found = client.explain(own)
            assert found["workers"] | {"present": 1} == {"present": 1, "target": 1, "min": 1, "max": 2}
            assert found["reason"]["text"].startswith("it has 1 of at most 2 workers"), found["reason"]
            assert other not in json.dumps(found)
            assert [job["job_id"] for job in client.plan()["jobs"]] == [own]

        # A third waits, and is told what it waits for.
        late = submit(bob, laptop, "late")
        until(bob, late, lambda job: "its minimum of 1 worker needs 1 slot" in job.target_reason, "was told to wait")
        waits = admin.explain(late)
        assert (waits["state"], waits["reason"]["code"]) == ("QUEUED", "waiting_for_capacity")
        assert {one["job_id"] for one in waits["blockers"]} == {anns, bobs}
        assert bob.explain(late)["hidden_blockers"] == {"jobs": 1, "workers": 1}
        shown = laptop.cli("explain", late).stdout
        assert "waiting_for_capacity" in shown
        assert f"elasticdl jobs scale {late} --priority" in shown

        # Who gets the slot when one ends is known before, and comes true.
        foretold = admin.what_if(cancel=[anns])
        after = {one["job_id"]: one["after"]["workers"] for one in foretold["jobs"] if one["after"]}
        assert after == {bobs: 1, late: 1}
        assert targets(admin.plan()) == {anns: 1, bobs: 1, late: 0}, "asking changed something"
        ann.cancel(anns)
        until(bob, late, works(1), "got the slot")
        assert targets(admin.plan()) == after
        assert late in laptop.cli("top", "--once").stdout
        (decision,) = (one for one in admin.explain(late)["decisions"] if one["after"] == 1)
        assert decision["before"] == 0
        for job_id in (bobs, late):
            bob.cancel(job_id)
            bob.wait(job_id, timeout_s=WAIT_S)


def test_a_killed_scheduler_comes_back_to_the_same_plan(laptop: Cluster) -> None:
    with laptop.client() as admin:
        jobs = [submit(admin, laptop, f"job-{i}") for i in range(3)]
        for job_id in jobs[:2]:
            until(admin, job_id, works(1), "had one worker")
        before = admin.plan()
        victim = scheduler_process(laptop)
        os.kill(victim.pid, signal.SIGKILL)
        # It takes part in deciding again: nobody else can start the job that waits.
        admin.cancel(jobs[0])
        until(admin, jobs[2], works(1), "got the slot")
        after = admin.plan()
        assert scheduler_process(laptop).pid != victim.pid
        assert after["epoch"] > before["epoch"]
        assert after["policy"] == before["policy"]
        assert targets(after) == {jobs[1]: 1, jobs[2]: 1}
        for decision in admin.decisions(job=jobs[1])["decisions"]:
            assert decision["epoch"] == before["epoch"], "a job that nobody changed was decided on again"
        for job_id in jobs[1:]:
            admin.cancel(job_id)
            admin.wait(job_id, timeout_s=WAIT_S)
