"""Faults for the processes of a cluster and a job: who is hit, that it was hit, and that somebody took its place."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass
from typing import Any

import psutil

from elasticdl_agent.zygote import process as zygote_process
from tests.chaos.counting import CountingJob, until
from tests.e2e.local_cluster import Cluster

JOBS_PROCESSES = ("worker", "ps", "master")
COMPONENTS = ("postgres", "redis", "api", "agent", "scheduler")
VICTIMS = (*JOBS_PROCESSES, *COMPONENTS, "zygote")
"""All but the supervisor, with which everything goes."""


@dataclass(frozen=True)
class Victim:
    """A running process.

    Attributes:
        name: one of ``VICTIMS``.
        process: names it for ever.
        life: tells it from who takes its place: the incarnation, or the number of restarts.
    """

    name: str
    process: psutil.Process
    life: int


def find(job: CountingJob, name: str) -> Victim | None:
    """The process of that name now; None while there is none. Of workers and PS it is the one with index 0."""
    if name in JOBS_PROCESSES:
        return _of_the_job(job, name)
    if name in COMPONENTS:
        return component(job.cluster, name)
    return _zygote(job)


def kill(job: CountingJob, name: str) -> Victim:
    """Kills a process under the running job, at once and without a word.

    Raises:
        AssertionError: the fault did not hit a running job.
    """
    victim = _running(job, name)
    victim.process.kill()
    assert victim.process.wait(timeout=30) in (-signal.SIGKILL, None)
    return victim


def stop_for(job: CountingJob, name: str, seconds: float) -> Victim:
    """Stops a process under the running job for that long; it neither answers nor ends.

    Raises:
        AssertionError: the fault did not hit a running job.
    """
    victim = _running(job, name)
    victim.process.suspend()
    try:
        until(lambda: _state(victim.process) in (psutil.STATUS_STOPPED, "gone"), f"the {name} has stopped")
        time.sleep(seconds)  # how long the fault lasts
    finally:
        if victim.process.is_running():
            victim.process.resume()
    return victim


def replaced(job: CountingJob, victim: Victim, timeout_s: float = 300.0) -> Victim:
    """Waits until somebody took the victim's place."""

    def next_one() -> Victim | None:
        found = find(job, victim.name)
        return found if found is not None and found.process != victim.process else None

    found: Victim = until(next_one, f"another {victim.name} takes the place of {victim.process.pid}", timeout_s)
    return found


def processes_of(job: CountingJob) -> list[psutil.Process]:
    """What runs for the job, whoever started it."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ELASTICDL_JOB_ID") == job.id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def nothing_left(job: CountingJob) -> None:
    """Waits until no process of the job is left."""
    until(lambda: not processes_of(job), f"every process of {job.id} has ended", 60.0)


def _running(job: CountingJob, name: str) -> Victim:
    victim: Victim = until(lambda: find(job, name), f"there is a {name}")
    assert job.running(), f"void: the job was nearly over when the {name} was to be hit"
    return victim


def _of_the_job(job: CountingJob, role: str) -> Victim | None:
    """From the agent's own record of what it launched."""
    lines = (job.cluster.data_dir / "agent" / "processes.jsonl").read_text().splitlines()
    newest: dict[str, Any] = {}
    for line in lines:
        entry = json.loads(line)
        if (entry["job"], entry["role"], entry["index"]) == (job.id, role, 0):
            newest = entry
    if newest.get("state") != "running" or not newest["pid"]:
        return None
    return _victim(role, newest["pid"], newest["incarnation"])


def component(cluster: Cluster, name: str) -> Victim | None:
    """A process of the cluster that runs."""
    state = json.loads((cluster.data_dir / "cluster.json").read_text())["components"][name]
    return _victim(name, state["pid"], state["restarts"]) if state["state"] == "running" else None


def _zygote(job: CountingJob) -> Victim | None:
    agent = component(job.cluster, "agent")
    if agent is None:
        return None
    try:
        children = agent.process.children(recursive=True)
        for child in children:
            if zygote_process.__name__ in child.cmdline():
                return _victim("zygote", child.pid, 0)
    except psutil.Error:
        pass
    return None


def _victim(name: str, pid: int, life: int) -> Victim | None:
    try:
        process = psutil.Process(pid)
        return Victim(name, process, life) if _state(process) not in ("gone", psutil.STATUS_ZOMBIE) else None
    except psutil.NoSuchProcess:
        return None


def _state(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return "gone"
