"""Faults of a real job by AllReduce: for how long no update is counted; and the same job under ``torchrun``.

``./dev bench reform`` measures it along with groups that only sum.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

from benchmarks.harness import Report
from benchmarks.peers.torchrun import restart_seconds
from benchmarks.training.data import ZOO
from benchmarks.training.images import group_fields, write_records
from benchmarks.training.setting import Setting, setting

MEMBERS, BATCH = 4, 128
MINIBATCH = BATCH // MEMBERS
WIDE = 10_240
KILL_GOAL_S, STOP_GOAL_S, JOIN_GOAL_S, AWAY_GOAL_S, RESTART_GOAL = 0.25, 1.25, 0.1, 60.0, 0.1
_LATE_S = 180.0
_POLL_S = 0.002
_LIST_S = 0.05
_SETTLE_S = 3.0
_WINDOW_S = 1.0
_SURE = 5
_PARTS = 1
"""Of an epoch, so that some end while there is no master."""
_ABOUT = """## In a job

{members} workers train a convolutional network of 212,000 parameters in PyTorch, {batch} images an update, on a
cluster of their own, and write each update that counts in their traces, which are looked at every {poll:g} ms. One is
killed, and another one takes its place; one is stopped; the master is killed while the agent, which would start
another one, stands still. *Waiting* is the time from the signal to the first update that the others did without the
one that is lost, less the median time of an update before: its own computing. *Joining* is the longest pause between
two updates from when the others went on to {window:g} s after the first update of the newcomer, less the same: its
start, the making of the group with it, the sending of the state and its first updates. *With a large state* it is
that of a job whose layer before the last is {wide:,} wide: the newcomer is sent 33 MB of parameters, and 66 MB that
Adam keeps of them. All processes share this machine's cores.

The same network, batch and number of processes with `DistributedDataParallel` under `torchrun --max-restarts`, its
images in memory and no checkpoint to read: from the signal to the first step of the restarted job. The ratio is that
of the medians, each with its own step."""


class _Update(NamedTuple):
    """An update that counts.

    Attributes:
        at: when its first line was seen.
        epoch: of its records.
        records: of each member.
    """

    at: float
    epoch: int
    records: dict[str, int]


class UpdateWatch:
    """Sees updates as the members write in their traces that they count.

    Args:
        folder: of the job's traces.

    Attributes:
        updates: by the version that they made, in order.
        owned_since: by member, when its first part of one was seen.
        twice: records that are in two updates.
    """

    def __init__(self, folder: Path) -> None:
        self.updates: dict[int, _Update] = {}
        self.owned_since: dict[str, float] = {}
        self.twice = 0
        self._folder = folder
        self._files: dict[str, IO[bytes]] = {}
        self._rest: dict[str, bytes] = {}
        self._listed = 0.0
        self._made_by: dict[tuple[int, str, int], int] = {}

    def until(self, condition: Callable[[], bool], what: str, seconds: float = _LATE_S) -> None:
        """Watches until something is so.

        Raises:
            RuntimeError: it does not come to that.
        """
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise RuntimeError(f"not within {seconds:.0f} s: {what}")
            self._look()
            time.sleep(_POLL_S)

    def watch(self, seconds: float) -> None:
        """Watches for so long."""
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end, "the time is over", seconds + 60.0)

    def gaps(self, since: float, until: float) -> list[float]:
        """The times between updates of which the later one was between two moments."""
        moments = [one.at for one in self.updates.values()]
        return [after - before for before, after in pairwise(moments) if since <= after <= until]

    def owners(self) -> set[str]:
        """Members that ever did a part of an update."""
        return set(self.owned_since)

    def steady(self) -> set[str]:
        """Members that did a part of each of the last updates."""
        last = [set(one.records) for _, one in zip(range(_SURE), reversed(self.updates.values()), strict=False)]
        return set.intersection(*last) if last else set()

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()

    def _look(self) -> None:
        now = time.monotonic()
        if now > self._listed + _LIST_S and self._folder.is_dir():
            self._listed = now
            for path in self._folder.glob("*.jsonl"):
                if path.stem not in self._files:
                    self._files[path.stem] = path.open("rb")
        for owner, file in self._files.items():
            if data := file.read():
                whole, _, self._rest[owner] = (self._rest.get(owner, b"") + data).rpartition(b"\n")
                for line in whole.splitlines():
                    self._add(owner, json.loads(line))

    def _add(self, owner: str, line: dict[str, Any]) -> None:
        version, start, end = line["version"], line["start"], line["end"]
        update = self.updates.setdefault(version, _Update(time.monotonic(), line["epoch"], {}))
        self.owned_since.setdefault(owner, update.at)
        update.records[owner] = update.records.get(owner, 0) + end - start
        for at in range(start, end, MINIBATCH):
            if self._made_by.setdefault((line["epoch"], line["task"], at), version) != version:
                self.twice += min(MINIBATCH, end - at)


class _Loss(NamedTuple):
    """The cost of a fault, in seconds.

    Attributes:
        passed: from the signal to the next update.
        waited: the same less an update's own time.
    """

    passed: float
    waited: float


def measure_faults(report: Report, *, quick: bool, kills: int, stops: int, restarts: int) -> None:
    """Adds what faults cost a job to a report.

    Args:
        report: the report.
        quick: the master is away for a short time.
        kills: how many members are killed.
        stops: how many are stopped.
        restarts: how often torchrun restarts its job.
    """
    report.text(_ABOUT.format(members=MEMBERS, batch=BATCH, wide=WIDE, window=_WINDOW_S, poll=_POLL_S * 1e3))
    restarted = [_restart(report, number + 1, restarts) for number in range(restarts)]
    options = argparse.Namespace(quick=quick, rounds=1, sides=[])
    with setting(options, MEMBERS) as here:
        data = write_records(here.folder / "images", _PARTS)
        with _job(here, report, data) as faults:
            faults.measure(kills, stops, restarted, quick=quick)
        with _job(here, report, data, width=WIDE) as faults:
            faults.measure_joins(kills)


@contextlib.contextmanager
def _job(here: Setting, report: Report, data: Path, **params: int) -> Iterator[_Faults]:
    """A job of the network, which is cancelled in the end."""
    fields = group_fields(data, "images_torch", batch=BATCH, minibatches=MEMBERS, deterministic=True)
    fields["model_params"] = params
    job = here.cluster.client.submit(model_zoo=ZOO, min_workers=1, max_workers=MEMBERS, **fields)
    watch = UpdateWatch(here.cluster.folder / "jobs" / job.id / "traces")
    try:
        yield _Faults(here, report, job.id, watch)
    finally:
        watch.close()
        here.cluster.client.cancel(job.id)


def _restart(report: Report, number: int, of: int) -> float:
    report.say(f"torchrun, SIGKILL {number} of {of}")
    with tempfile.TemporaryDirectory() as folder:
        return restart_seconds(Path(folder), MEMBERS, BATCH)


class _Faults:
    def __init__(self, here: Setting, report: Report, job: str, watch: UpdateWatch) -> None:
        self._here, self._report, self._job, self._watch = here, report, job, watch
        self._rng = random.Random(1)
        self._step = 0.0

    def measure(self, kills: int, stops: int, restarted: Sequence[float], *, quick: bool) -> None:
        """Does all of it, and tells."""
        killed, joined, stopped = [], [], []
        for number in range(kills):
            self._report.say(f"a job, SIGKILL {number + 1} of {kills}")
            loss, stalled = self._kill()
            killed.append(loss)
            joined.append(stalled)
        for number in range(stops):
            self._report.say(f"a job, SIGSTOP {number + 1} of {stops}")
            stopped.append(self._stop())
        self._tell(killed, joined, stopped, restarted)
        self._report.say("a job, its master away")
        self._leave_alone(10.0 if quick else AWAY_GOAL_S + 2.0, quick=quick)

    def measure_joins(self, kills: int) -> None:
        """Has members killed and tells how long the others pause for those who come instead."""
        joined = []
        for number in range(kills):
            self._report.say(f"a job with a large state, SIGKILL {number + 1} of {kills}")
            joined.append(self._kill()[1])
        spread = ", ".join(f"{1e3 * one:.0f} ms" for one in (min(joined), statistics.median(joined), max(joined)))
        self._report.text(
            f"With a large state {kills} members joined: the shortest pause, the median and the longest are "
            f"{spread}; an update takes {self._step * 1e3:.0f} ms there."
        )
        self._report.target("reform_job_join_large_stall_p95_s", _p95(joined), JOIN_GOAL_S, at_least=False)

    def _tell(
        self, killed: Sequence[_Loss], joined: Sequence[float], stopped: Sequence[_Loss], restarted: Sequence[float]
    ) -> None:
        found = {
            "SIGKILL, waiting": [one.waited for one in killed],
            "SIGKILL, to the next update": [one.passed for one in killed],
            "joining": joined,
            "SIGSTOP, waiting": [one.waited for one in stopped],
            "SIGKILL under torchrun, to the next step": restarted,
        }
        rows = [
            [name, len(values), *(1e3 * one for one in (min(values), statistics.median(values), max(values)))]
            for name, values in found.items()
        ]
        self._report.table(["fault", "times", "the shortest, ms", "median, ms", "the longest, ms"], rows)
        self._report.text(f"An update takes {self._step * 1e3:.0f} ms.")
        waited = found["SIGKILL, waiting"]
        self._report.target("reform_job_kill_p95_s", _p95(waited), KILL_GOAL_S, at_least=False)
        self._report.target("reform_job_stop_s", max(found["SIGSTOP, waiting"]), STOP_GOAL_S, at_least=False)
        self._report.target("reform_job_join_stall_p95_s", _p95(joined), JOIN_GOAL_S, at_least=False)
        ratio = statistics.median(found["SIGKILL, to the next update"]) / statistics.median(restarted)
        self._report.target("reform_job_of_torchrun", ratio, RESTART_GOAL, at_least=False)

    def _settle(self) -> None:
        """Has all members train undisturbed for a while, and takes the time of an update."""
        watch = self._watch
        watch.until(lambda: len(watch.steady()) == MEMBERS == len(self._running("worker")), "all members train")
        began = time.monotonic()
        watch.watch(_SETTLE_S)
        watch.until(lambda: len(watch.steady()) == MEMBERS, "all members train")
        self._step = statistics.median(watch.gaps(began, math.inf))

    def _lose(self, number: signal.Signals) -> tuple[str, int, float]:
        """Sends a signal to one of the members; its name, its process and the moment."""
        self._settle()
        self._watch.watch(self._rng.uniform(0.0, 2 * self._step))
        owner, pid = self._rng.choice(sorted(self._running("worker").items()))
        sent = time.monotonic()
        os.kill(pid, number)
        return owner, pid, sent

    def _kill(self) -> tuple[_Loss, float]:
        """The cost of a kill, and the pause for the newcomer."""
        watch = self._watch
        owner, _, sent = self._lose(signal.SIGKILL)
        known = watch.owners()
        loss = self._waited(owner, sent)
        watch.until(lambda: bool(watch.owners() - known), "another member takes its place")
        watch.watch(_WINDOW_S)
        first = min(watch.owned_since[one] for one in watch.owners() - known)
        # The group with it may be made seconds before its first part of an update: from there on it costs the others.
        gaps = watch.gaps(sent + loss.passed + self._step, first + _WINDOW_S)
        return loss, max(0.0, max(gaps) - self._step)

    def _stop(self) -> _Loss:
        """The cost of a stop; the stopped one goes on afterwards."""
        owner, pid, sent = self._lose(signal.SIGSTOP)
        try:
            return self._waited(owner, sent)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _waited(self, owner: str, sent: float) -> _Loss:
        """Watches until the others alone have done an update: what was under way needed the lost member's part."""
        watch = self._watch

        def alone() -> list[float]:
            late = [one for one in watch.updates.values() if one.at > sent]
            return [one.at for one in late if sum(one.records.values()) - one.records.get(owner, 0) >= BATCH]

        watch.until(lambda: len(alone()) > 1, "the others go on")
        first, second = alone()[:2]
        before = max(one.at for one in watch.updates.values() if one.at < first)
        # In the one that was under way the lost member may have had no part: then the pause comes after it.
        passed = (first if first - before > second - first else second) - sent
        return _Loss(passed, max(0.0, passed - self._step))

    def _leave_alone(self, seconds: float, *, quick: bool) -> None:
        """Lets updates go on without a master, and has another one take over."""
        self._settle()
        watch = self._watch
        agent = self._agent()
        [(before, pid)] = self._running("master").items()
        os.kill(agent, signal.SIGSTOP)
        try:
            sent = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            watch.watch(seconds)
            updates = [one for one in watch.updates.values() if one.at > sent]
            moments = [sent, *(one.at for one in updates), time.monotonic()]
        finally:
            os.kill(agent, signal.SIGCONT)
        longest = max(after - before for before, after in pairwise(moments))
        watch.until(lambda: bool(set(self._running("master")) - {before}), "another master takes over")
        self._settle()
        self._report.text(
            f"Without a master {len(updates)} updates were made in {seconds:.0f} s, in "
            f"{len({one.epoch for one in updates})} epochs; the longest pause was {longest * 1e3:.0f} ms. In all, "
            f"{len(watch.updates)} updates were seen, and {watch.twice} records in two of them."
        )
        if not quick:
            alone = next((one - sent for one, after in pairwise(moments) if after - one > STOP_GOAL_S), seconds)
            self._report.target("reform_job_steps_without_master_s", alone, AWAY_GOAL_S)
        self._report.target("reform_job_records_twice", watch.twice, 0, at_least=False)

    def _running(self, role: str) -> dict[str, int]:
        """The processes of a role that run, by their names, as the agent has noted them."""
        lines = (self._here.cluster.folder / "agent" / "processes.jsonl").read_text().splitlines()
        entries: list[dict[str, Any]] = [one for one in map(json.loads, lines) if one["job"] == self._job]
        newest = {f"{one['role']}-{one['index']}.{one['incarnation']}": one for one in entries if one["role"] == role}
        return {name: one["pid"] for name, one in newest.items() if one["state"] == "running"}

    def _agent(self) -> int:
        """The process that starts those of jobs."""
        state = json.loads((self._here.cluster.folder / "cluster.json").read_text())
        return int(state["components"]["agent"]["pid"])


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]
