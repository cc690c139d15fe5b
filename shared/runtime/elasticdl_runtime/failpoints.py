"""Failpoints: instants at which tests make a process die, stop, wait or fail. Off unless the cluster's owner says so.

``ELASTICDL_FAILPOINTS`` in the environment that brings up the cluster names a folder. A file in it that has the name
of a failpoint arms it: its text is ``kill``, ``stop``, ``raise`` or ``sleep SECONDS``; ``@N`` behind it waits for the
N-th time that a process comes by. Whoever acts renames the file to ``NAME.fired`` first: so a failpoint acts once,
whichever process gets there, and whoever armed it can tell that it did.

A job cannot set the variable: names that begin with ``ELASTICDL_`` are refused in its ``envs``, and the agent gives
its own to every process.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from elasticdl_core.errors import InvalidInputError, UnavailableError

VARIABLE = "ELASTICDL_FAILPOINTS"
FAILPOINTS: Mapping[str, str] = {
    "master.after_job_lease": "the job is leased, nothing else is known",
    "master.after_strategy": "the strategy is chosen and durable, nothing else is begun",
    "master.after_queue_load": "the queue was read, the state machine is not made yet",
    "master.before_serving": "the machine has started, nobody can reach it",
    "master.after_serving": "workers can reach it, its background tasks do not run",
    "master.after_listing": "some shards are listed and have not become tasks",
    "master.after_lease": "tasks are in hands in Redis, and nobody was told",
    "master.after_report": "a report moved the queue, and no done-mark is on its way",
    "master.after_return": "a task came back in Redis, and the machine does not know",
    "master.after_release": "the leases of a lost worker came back in Redis, and the machine does not know",
    "master.before_rebuild": "the queue is to be made anew",
    "master.queue_cleared": "the queue is empty, and not filled again yet",
    "master.before_process_order": "a process is to be launched or ended",
    "master.after_process_order": "the launcher took the order",
    "master.before_restore": "the PS are to take a checkpoint",
    "master.after_restore": "the PS hold a checkpoint, the ledger does not go back yet",
    "master.after_parts_saved": "all PS have written their parts, there is no manifest",
    "master.after_manifest_written": "the manifest is on disk and not committed",
    "master.after_checkpoint_committed": "the checkpoint is committed, the machine does not know",
    "master.after_entry_forgotten": "a checkpoint's entry is removed, its files are there",
    "master.before_plan": "the plan is made and not durable",
    "master.after_plan": "the plan is durable, the master does not know",
    "master.before_done_marks": "done-marks are about to be sent",
    "master.after_done_marks": "done-marks are durable, the master does not know",
    "master.before_state": "a state of the job is about to be reported",
    "master.after_state": "a state of the job is durable, the master does not know",
    "master.before_queue_discard": "the job has ended, its queue is there",
    "master.after_meeting": "a member of a group was heard, and has no answer",
    "ps.before_serving": "it is about to listen",
    "ps.after_model_pushed": "it has a model, the worker does not know",
    "ps.before_apply": "a gradient is read and not applied",
    "ps.after_apply": "a gradient is applied, the worker does not know",
    "ps.before_save": "a checkpoint was asked for",
    "ps.after_snapshot": "a version is kept for the checkpoint, nothing is written",
    "ps.before_rename": "the file is written and synced under another name",
    "ps.after_save": "the file is there, the master does not know",
    "ps.after_load": "a checkpoint was read, the old parameters are in force",
    "ps.after_restore": "the checkpoint is in force, the master does not know",
    "worker.before_register": "nobody knows of it",
    "worker.after_register": "it is known and has no task",
    "worker.after_lease": "it has a task and did nothing",
    "worker.after_step": "a minibatch was computed",
    "worker.after_compute": "its part of a group's step is computed, and not given to the others",
    "worker.after_group_step": "a group's step is in the model and noted, and not reported",
    "worker.before_trace": "all of a task is applied and not noted",
    "worker.after_trace": "all of a task is applied and noted, not reported",
    "worker.after_report": "a task is reported",
    "worker.before_give_back": "it shall leave and has not returned its task",
    "worker.before_other_task": "it shall export, evaluate or list",
    "worker.after_other_task": "it has, and the master does not know",
    "agent.after_accepted": "a launch is written down, the process is not started",
    "agent.before_start": "a process is about to be started",
    "agent.after_start": "a process runs, the journal does not say so",
    "agent.before_exit_told": "a process has ended, nobody knows",
    "api.before_intent": "a launch intent is locked and not delivered",
    "api.after_intent": "a launch intent is delivered and not settled",
    "api.before_done_commit": "done-marks are written and not committed",
    "api.after_done_commit": "done-marks are committed, the master does not know",
    "api.before_checkpoint_commit": "a manifest is written and not committed",
    "api.before_state_commit": "a state is written and not committed",
    "api.after_job_removed": "a job's row is gone, its processes and files are there",
    "api.before_bundle_placed": "a bundle is received and not in its place",
    "api.after_bundle_placed": "a bundle is in its place, and no row knows it",
    "api.after_reservation": "the agent changed a reservation, nobody was told",
    "scheduler.after_read": "it has a snapshot and no plan",
    "scheduler.before_launch_intent": "a job's state is STARTING, the launch of its master is not written",
    "scheduler.before_plan_commit": "a plan is written and not committed",
    "scheduler.after_plan_commit": "a plan is in force, the scheduler does not know",
}
"""All failpoints, and what is true at each."""

_passed: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Does what was armed under this name, if anything was.

    Raises:
        UnavailableError: that was armed.
    """
    folder = _folder()
    if folder:
        _act(Path(folder) / name)


def arm(folder: Path, name: str, action: str) -> Path:
    """Arms a failpoint, for tests.

    Args:
        folder: what ``ELASTICDL_FAILPOINTS`` names.
        name: of the failpoint.
        action: ``kill``, ``stop``, ``raise`` or ``sleep SECONDS``, and ``@N`` behind it if not at once.

    Returns:
        The file that exists once it has fired.

    Raises:
        InvalidInputError: there is no such failpoint, or no such action.
    """
    if name not in FAILPOINTS:
        raise InvalidInputError(f"there is no failpoint {name}", fix="take one of FAILPOINTS")
    _parse(action)
    fresh = folder / f".{name}.new"
    fresh.write_text(action)
    fresh.rename(folder / name)
    return folder / f"{name}.fired"


@functools.cache
def _folder() -> str:
    """Read once a process; a fork of the zygote reads its own."""
    return os.environ.get(VARIABLE, "")


def _act(armed: Path) -> None:
    try:
        words, _, count = armed.read_text().partition("@")
    except OSError:
        return
    _passed[armed.name] += 1
    if _passed[armed.name] < int(count or 1):
        return
    try:
        armed.rename(armed.with_name(f"{armed.name}.fired"))
    except OSError:
        return  # another process was first
    what, seconds = _parse(words)
    if what == "raise":
        raise UnavailableError(f"failpoint {armed.name}", fix="it was armed by a test")
    if what == "sleep":
        time.sleep(seconds)
    else:
        os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGSTOP)


def _parse(action: str) -> tuple[str, float]:
    words = action.partition("@")[0].split()
    try:
        what, seconds = words[0], float(words[1]) if len(words) > 1 else 0.0
    except (IndexError, ValueError):
        what, seconds = "", 0.0
    if what not in ("kill", "stop", "raise", "sleep"):
        raise InvalidInputError(
            f"{action!r} is nothing that a failpoint does", fix="write kill, stop, raise or sleep 2"
        )
    return what, seconds
