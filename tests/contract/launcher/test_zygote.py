"""A process that a zygote forked is like one with an interpreter of its own, and zygotes may die."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.processes.child import Child, Command
from elasticdl_agent.processes.environment import common_environment
from elasticdl_agent.zygote.client import ForkedShim, ZygoteClient, wanted
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.ports.launcher import ProcessId, ProcessState, Role
from tests.contract.launcher.conftest import (
    FORKED_COMMANDS,
    NODE_TOKEN,
    SLOTS,
    STUB,
    AgentHarness,
    forking_harness,
    printed,
    until,
)

pytestmark = [
    pytest.mark.contract,
    pytest.mark.skipif(not wanted("auto"), reason="no zygotes on this system, or too little memory"),
]

JOB = "digits-x7k2p9"
WORKER = ProcessId(JOB, Role.WORKER, 0, 1)


async def about(harness: AgentHarness, process: ProcessId, **asked: str) -> tuple[dict[str, Any], psutil.Process]:
    """Starts a process that tells of itself; returns that and its shim."""
    spec = harness.spec(process, "self")
    await harness.launcher.launch(replace(spec, environment={**spec.environment, **asked}))
    text = await printed(harness.launcher, process, b"ready\n")
    shim = psutil.Process((await harness.ready(process)).pid).parent()
    assert shim is not None
    return json.loads(text.splitlines()[0]), shim


def is_forked(shim: psutil.Process) -> bool:
    parent = shim.parent()
    assert parent is not None
    return "elasticdl_agent.zygote.process" in " ".join(parent.cmdline())


async def test_a_forked_process_finds_what_one_of_its_own_interpreter_finds(directories: AgentDirectories) -> None:
    found = {}
    for preload in ("", "json"):
        async with forking_harness(directories, {Role.WORKER: preload} if preload else {}) as harness:
            process = replace(WORKER, index=len(found))
            found[preload], shim = await about(harness, process)
            assert is_forked(shim) == bool(preload)
            mine = found[preload]
            assert mine.pop("group") == mine.pop("session") == mine.pop("parent") == shim.pid
            mine.pop("random")
            # The pipe of the output has another number each time.
            mine["descriptors"] = {fd: where.partition(":")[0] for fd, where in mine["descriptors"].items()}
            await harness.launcher.terminate(process, grace_s=20.0)
            ended = await until(harness.launcher, process, ProcessState.EXITED)
            assert ended.exit_code == -signal.SIGTERM
    assert found["json"] == found[""]
    assert found["json"]["descriptors"] == {"0": "/dev/null", "1": "pipe", "2": "pipe"}
    assert found["json"]["threads"] == 1
    assert found["json"]["directory"] == str(directories.job_dir(JOB))


async def test_what_ps_shows_is_the_process_not_the_zygote(zygote_harness: AgentHarness) -> None:
    told, shim = await about(zygote_harness, WORKER, MINE="yes")
    process = psutil.Process((await zygote_harness.launcher.list(JOB))[0].pid)
    assert [word for word in process.cmdline() if word] == told["original"] == list(FORKED_COMMANDS[Role.WORKER])
    variables = process.environ()
    assert (variables["ELASTICDL_JOB_ID"], variables["MINE"], variables["STUB"]) == (JOB, "yes", "self")
    assert "ELASTICDL_ZYGOTE_ROOM" not in variables
    assert not {"ELASTICDL_JOB_ID", "MINE", "STUB", "ELASTICDL_ZYGOTE_ROOM"} & shim.environ().keys()


async def test_a_zygote_and_its_forks_hold_no_secret(
    directories: AgentDirectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTICDL_CLUSTER_SECRET", "s3cret-of-the-cluster")
    monkeypatch.setenv("ELASTICDL_NODE_TOKEN", NODE_TOKEN)
    async with forking_harness(directories, {Role.WORKER: "json"}) as harness:
        _, first = await about(harness, WORKER, ELASTICDL_JOB_TOKEN="token-of-another-job")
        zygote = first.parent()
        assert zygote is not None and is_forked(first)
        _, second = await about(harness, replace(WORKER, index=1))
        for process in (zygote, second, psutil.Process((await harness.launcher.list(JOB))[1].pid)):
            texts = strings_of(process.pid)
            assert b"s3cret-of-the-cluster" not in texts
            assert NODE_TOKEN.encode() not in texts
        # What the zygote was once asked for another process is gone from its environment, too.
        assert "token-of-another-job" not in " ".join(psutil.Process(second.pid).environ().values())


def strings_of(pid: int) -> bytes:
    """All readable memory of a process that can be written to: where its data are."""
    found = b""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            bounds, rights = line.split()[:2]
            if rights.startswith("rw"):
                start, end = (int(bound, 16) for bound in bounds.split("-"))
                memory.seek(start)
                with contextlib.suppress(OSError):
                    found += memory.read(end - start)
    return found


async def test_forks_draw_different_numbers(directories: AgentDirectories) -> None:
    async with forking_harness(directories, {Role.WORKER: "numpy.random"}) as harness:
        told = [(await about(harness, replace(WORKER, index=index)))[0] for index in range(SLOTS)]
    assert told[0]["random"] != told[1]["random"]
    assert [each["threads"] for each in told] == [1, 1]


@pytest.mark.parametrize(
    ("name", "value"),
    [("TF_USE_LEGACY_KERAS", "1"), ("XLA_FLAGS", "--xla_cpu"), ("PYTHONHASHSEED", "1"), ("OMP_NUM_THREADS", "3")],
)
async def test_variables_that_imports_read_get_an_interpreter_of_their_own(
    zygote_harness: AgentHarness, name: str, value: str
) -> None:
    _, shim = await about(zygote_harness, WORKER, **{name: value})
    assert not is_forked(shim)
    _, shim = await about(zygote_harness, replace(WORKER, index=1), ANY_OTHER=value)
    assert is_forked(shim)


async def test_a_killed_zygote_takes_nobody_along_and_is_replaced(zygote_harness: AgentHarness) -> None:
    _, shim = await about(zygote_harness, WORKER)
    zygote = shim.parent()
    assert zygote is not None
    zygote.kill()
    await asyncio.to_thread(zygote.wait, 20)
    # Whether the next is forked already or not: it runs.
    await about(zygote_harness, replace(WORKER, index=1))
    assert (await zygote_harness.launcher.list(JOB))[0].state is ProcessState.RUNNING
    await zygote_harness.launcher.terminate(WORKER, grace_s=20.0)
    ended = await until(zygote_harness.launcher, WORKER, ProcessState.EXITED)
    assert (ended.exit_code, ended.reason) == (-signal.SIGTERM, "terminated")


async def test_another_zygote_follows_one_that_died() -> None:
    async with ZygoteClient("json", common_environment(), start_delay_s=0.0) as zygote:
        assert await zygote.warm()
        first = zygote.pid
        assert first > 0
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(60):
            while zygote.pid in (0, first):  # noqa: ASYNC110 - no event of its own for what only tests wait for
                await asyncio.sleep(0.01)


async def test_a_zygote_that_hangs_is_replaced_and_the_process_starts_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticdl_agent.zygote.client._ANSWER_S", 0.2)
    environment = common_environment()
    async with ZygoteClient("json", environment, start_delay_s=0.0) as zygote:
        assert await zygote.warm() and zygote.pid > 0
        hanging = psutil.Process(zygote.pid)
        hanging.suspend()
        child = await Child.start(command(tmp_path, environment, "exit:5"), zygote.spawn)
        assert await child.wait() == 5
        await asyncio.to_thread(psutil.wait_procs, [hanging], timeout=20)
        assert not hanging.is_running() or hanging.status() == psutil.STATUS_ZOMBIE


def command(directory: Path, environment: dict[str, str], behaviour: str) -> Command:
    argv = (sys.executable, "-P", str(STUB))
    return Command(argv, {**environment, "STUB": behaviour}, directory, directory / "log")


async def test_a_module_that_cannot_be_imported_means_no_zygote(tmp_path: Path) -> None:
    environment = common_environment()
    async with ZygoteClient("no_such_module", environment, start_delay_s=0.0) as zygote:
        assert not await zygote.warm()
        child = await Child.start(command(tmp_path, environment, "exit:6"), zygote.spawn)
        assert await child.wait() == 6


async def test_with_a_second_thread_nothing_is_forked(tmp_path: Path) -> None:
    package = tmp_path / "with_thread.py"
    package.write_text("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n")
    environment = {**common_environment(), "PYTHONPATH": str(tmp_path)}
    async with ZygoteClient("with_thread", environment, start_delay_s=0.0) as zygote:
        assert not await zygote.warm()
        child = await Child.start(command(tmp_path, environment, "exit:7"), zygote.spawn)
        assert await child.wait() == 7


async def test_a_thread_that_comes_later_is_noticed(tmp_path: Path) -> None:
    package = tmp_path / "late_thread.py"
    package.write_text(
        "import os, signal, threading\n"
        "def start(*_):\n    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        f"    open({str(tmp_path / 'started')!r}, 'w').close()\n"
        "signal.signal(signal.SIGUSR1, start)\n"
    )
    environment = {**common_environment(), "PYTHONPATH": str(tmp_path)}
    async with ZygoteClient("late_thread", environment, start_delay_s=0.0) as zygote:
        assert await zygote.warm()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            shim = await zygote.spawn(command(tmp_path, environment, "exit:0"), theirs.fileno())
            assert isinstance(shim, ForkedShim)
            shim.kill()
            assert shim.wait(20) == -signal.SIGKILL
        assert zygote.pid > 0
        os.kill(zygote.pid, signal.SIGUSR1)
        async with asyncio.timeout(60):
            while not (tmp_path / "started").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        child = await Child.start(command(tmp_path, environment, "self"), zygote.spawn)
        assert not is_forked(psutil.Process(child.shim_pid))
        # A shim that is only just starting may not have its command to ask yet.
        assert await child.stop(grace_s=20.0) in (-signal.SIGTERM, -signal.SIGKILL)


async def test_an_order_that_is_too_long_gets_an_interpreter(tmp_path: Path) -> None:
    environment = common_environment()
    async with ZygoteClient("json", environment, start_delay_s=0.0) as zygote:
        long = {**environment, "LONG": "x" * (100 << 10)}
        child = await Child.start(command(tmp_path, long, "exit:8"), zygote.spawn)
        assert await child.wait() == 8


async def test_a_program_that_is_not_there_fails_as_it_does_otherwise(tmp_path: Path) -> None:
    environment = common_environment()
    async with ZygoteClient("json", environment, start_delay_s=0.0) as zygote:
        argv = (sys.executable, "-P", "-m", "no_such_module")
        child = await Child.start(Command(argv, environment, tmp_path, tmp_path / "log"), zygote.spawn)
        assert await child.wait() == 1
    assert "no_such_module" in (tmp_path / "log").read_text()


def test_the_setting_is_checked() -> None:
    assert not wanted("off")
    with pytest.raises(InvalidInputError, match="ELASTICDL_ZYGOTE"):
        wanted("yes")
