"""A slot belongs to a living process: whatever goes wrong, at whichever step, it comes back."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from signal import SIGSTOP

import psutil
import pytest

from elasticdl_agent import table as table_module
from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.processes import child as child_module
from elasticdl_agent.table import ProcessTable
from elasticdl_core.errors import UnavailableError
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, ProcessState, Role
from tests.contract.launcher.conftest import ENDPOINTS, AgentHarness, until

pytestmark = pytest.mark.contract

SLOTS = 3
JOB = "digits-x7k2p9"
COMMANDS = dict.fromkeys(Role, ("/bin/sh", "-c", 'case "$STUB" in sleep) exec sleep 600;; *) exit 3;; esac'))
ERRORS: list[Callable[[], BaseException]] = [
    lambda: OSError(7, "Argument list too long"),
    lambda: ValueError("illegal environment variable name"),
    lambda: RuntimeError("nobody thought of this"),
    lambda: UnavailableError("failpoint", fix="none"),
    lambda: MemoryError(),
    lambda: asyncio.CancelledError(),
]
FAILPOINTS = ("agent.after_accepted", "agent.before_start", "agent.after_start", "agent.before_exit_told")
STEPS = (*FAILPOINTS, "prepare", "environment", "spawn", "wait", "journal", "note")


class Faults:
    """Raises at the next pass of the steps that are armed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, table: ProcessTable) -> None:
        self.armed: dict[str, BaseException] = {}
        self.raised: list[BaseException] = []
        monkeypatch.setattr(table_module, "failpoint", self.at)
        self._before(monkeypatch, AgentDirectories, "prepare", "prepare")
        self._before(monkeypatch, table_module, "process_environment", "environment")
        self._before(monkeypatch, child_module, "spawn_shim", "spawn")
        self._before(monkeypatch, child_module.Child, "wait", "wait")
        self._before(monkeypatch, table_module, "note", "note")
        self._before(monkeypatch, table._journal, "append", "journal")

    def at(self, step: str) -> None:
        error = self.armed.pop(step, None)
        if error is not None:
            self.raised.append(error)
            raise error

    def _before(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, step: str) -> None:
        real = getattr(owner, name)

        def wrapped(*args: object, **kwargs: object) -> object:
            self.at(step)
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapped)


async def all_ended(table: ProcessTable) -> None:
    deadline = time.monotonic() + 60
    while any(status.state is not ProcessState.EXITED for status in table.statuses()):
        assert time.monotonic() < deadline, table.statuses()
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("seed", range(6))
async def test_no_exception_at_any_step_keeps_a_slot(
    directories: AgentDirectories, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    draw = random.Random(seed)
    others = set(psutil.Process().children(recursive=True))
    table = ProcessTable(directories, ENDPOINTS, SLOTS, COMMANDS)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # what was raised in a callback
    faults = Faults(monkeypatch, table)
    for number in range(2 * len(STEPS)):
        step = STEPS[(number + seed) % len(STEPS)]
        error = draw.choice(ERRORS)()
        if step == "journal":
            error = OSError(28, "No space left on device")
        faults.armed[step] = error
        process = ProcessId(JOB, draw.choice([Role.WORKER, Role.PS]), draw.randrange(3), number + 1)
        spec = ProcessSpec(process, {"STUB": draw.choice(["sleep", "exit"])}, slots=draw.randint(1, SLOTS))
        try:
            table.launch(spec)
        except BaseException as raised:
            assert raised in faults.raised
        await asyncio.sleep(draw.choice([0.0, 0.0, 0.03]))
        if draw.random() < 0.6:
            try:
                table.terminate(process, grace_s=draw.choice([0.0, 0.01]))
            except BaseException as raised:
                assert raised in faults.raised
    assert len(faults.raised) > 5
    faults.armed.clear()
    table.terminate_job(JOB, grace_s=0.0)
    await all_ended(table)
    assert table.capacity().used == {}
    assert all(status.reason for status in table.statuses() if status.exit_code == 127)
    left = set(psutil.Process().children(recursive=True)) - others
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []
    last = ProcessId(JOB, Role.WORKER, 9, 1)
    table.launch(ProcessSpec(last, {"STUB": "exit"}, slots=SLOTS))
    await all_ended(table)
    assert table.statuses(JOB)[-1].exit_code == 3
    await table.close(grace_s=0.0)


async def test_a_process_that_cannot_start_ends_for_that_reason(
    exec_harness: AgentHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> dict[str, str]:
        raise ValueError("illegal environment variable name")

    monkeypatch.setattr(table_module, "process_environment", broken)
    process = ProcessId(JOB, Role.WORKER, 0, 1)
    await exec_harness.launcher.launch(exec_harness.spec(process, slots=1))
    status = await until(exec_harness.launcher, process, ProcessState.EXITED)
    assert (status.exit_code, status.reason) == (127, "cannot_start")
    text = b"".join(
        [piece async for piece in exec_harness.launcher.logs(JOB, Role.WORKER, 0, tail=None, follow=False)]
    )
    assert b"illegal environment variable name" in text


async def test_a_stopped_shim_keeps_no_slot_and_no_process(
    exec_harness: AgentHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "SHIM_ANSWER_S", 0.1)
    process = ProcessId(JOB, Role.WORKER, 0, 1)
    await exec_harness.launcher.launch(exec_harness.spec(process, "family", slots=1))
    status = await exec_harness.ready(process)
    shim = psutil.Process(status.pid).parent()
    assert shim is not None
    tree = [shim, *shim.children(recursive=True)]
    os.kill(shim.pid, SIGSTOP)
    await exec_harness.launcher.terminate(process, grace_s=0.0)
    await until(exec_harness.launcher, process, ProcessState.EXITED)
    await asyncio.to_thread(psutil.wait_procs, tree, timeout=20)
    assert not [one for one in tree if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert (await exec_harness.launcher.capacity()).used == {}


async def test_what_has_ended_is_not_remembered_without_bound(directories: AgentDirectories) -> None:
    """The table and its journal grew with every process that was ever launched."""
    table = ProcessTable(directories, ENDPOINTS, SLOTS, COMMANDS, keep_ended=20)
    living = ProcessId("lives-aaaaaa", Role.MASTER, 0, 2)
    table.launch(ProcessSpec(ProcessId("lives-aaaaaa", Role.MASTER, 0, 1), {"STUB": "exit"}))
    table.launch(ProcessSpec(living, {"STUB": "sleep"}))
    for number in range(60):
        table.launch(ProcessSpec(ProcessId(f"job-{number:06}", Role.MASTER, 0, 1), {"STUB": "exit"}))
    deadline = time.monotonic() + 60
    while sum(status.state is not ProcessState.EXITED for status in table.statuses()) > 1:
        assert time.monotonic() < deadline, table.statuses()
        await asyncio.sleep(0.01)
    known = [status.id for status in table.statuses()]
    assert len(known) <= 22
    assert known[:2] == [ProcessId("lives-aaaaaa", Role.MASTER, 0, 1), living]
    journal = directories.data / "agent" / "processes.jsonl"
    assert len(journal.read_text().splitlines()) <= 4 * 24 + 4
    table.terminate(living, grace_s=0.0)
    await all_ended(table)
    await table.close(grace_s=0.0)
    again = ProcessTable(directories, ENDPOINTS, SLOTS, COMMANDS, keep_ended=20)
    assert {status.id for status in again.statuses()} >= {living}
    await again.close(grace_s=0.0)
