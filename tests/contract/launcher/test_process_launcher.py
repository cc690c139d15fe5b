"""What the process launcher keeps beyond the port: trees, memory, logs, environment, tokens."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGSEGV

import psutil
import pytest

from elasticdl_agent.agent import Agent
from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.processes import memory
from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import (
    ConflictError,
    InvalidInputError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, ProcessState, Role
from elasticdl_runtime import tokens
from elasticdl_runtime.launcher.client import ProcessLauncher
from elasticdl_runtime.memory_group import MemoryGroups
from elasticdl_runtime.retry import Attempts
from tests.contract.launcher.conftest import (
    ENDPOINTS,
    NODE_TOKEN,
    SLOTS,
    STUB_COMMANDS,
    AgentHarness,
    printed,
    until,
)

pytestmark = pytest.mark.contract

JOB = "digits-x7k2p9"
WORKER = ProcessId(JOB, Role.WORKER, 0, 1)
MASTER = ProcessId(JOB, Role.MASTER, 0, 1)


async def test_the_memory_of_the_machine_is_told_less_what_the_services_take(agent_harness: AgentHarness) -> None:
    told = (await agent_harness.launcher.capacity()).memory_mib
    assert 0 < told == MemoryGroups().room().for_jobs_mib < psutil.virtual_memory().total >> 20


def tree_of(pid: int) -> list[psutil.Process]:
    """The process, what it started, and the shim above it."""
    process = psutil.Process(pid)
    shim = process.parent()
    assert shim is not None
    return [shim, *shim.children(recursive=True)]


async def all_gone(processes: list[psutil.Process]) -> None:
    await asyncio.to_thread(psutil.wait_procs, processes, timeout=20)
    left = [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert left == []


async def family(harness: AgentHarness, behaviour: str) -> list[psutil.Process]:
    """Starts a process that starts others, one of them in a session of its own; waits until all are there."""
    await harness.launcher.launch(harness.spec(WORKER, behaviour))
    status = await harness.ready(WORKER)
    tree = tree_of(status.pid)
    assert len(tree) == 5  # the shim, the process, its child, its child in another session, and the grandchild
    return tree


async def test_killing_takes_what_the_process_started(agent_harness: AgentHarness) -> None:
    tree = await family(agent_harness, "family")
    await agent_harness.launcher.terminate(WORKER, grace_s=0.0)
    await until(agent_harness.launcher, WORKER, ProcessState.EXITED)
    await all_gone(tree)


async def test_what_a_process_leaves_behind_ends_with_it(agent_harness: AgentHarness) -> None:
    await agent_harness.launcher.launch(agent_harness.spec(WORKER, "family:leave"))
    status = await until(agent_harness.launcher, WORKER, ProcessState.EXITED)
    assert status.exit_code == 0
    assert [process for process in psutil.process_iter() if works_in(process, folder(agent_harness))] == []


def works_in(process: psutil.Process, place: Path) -> bool:
    """Whether it does; not where it is gone, or in a folder so deep that its path has no name."""
    with contextlib.suppress(psutil.Error, OSError):
        return bool(process.cwd() == str(place))
    return False


def folder(harness: AgentHarness) -> Path:
    return harness.directories.job_dir(JOB)


async def test_a_process_killed_from_outside_takes_its_tree(agent_harness: AgentHarness) -> None:
    tree = await family(agent_harness, "family")
    psutil.Process((await agent_harness.launcher.list(JOB))[0].pid).kill()
    status = await until(agent_harness.launcher, WORKER, ProcessState.EXITED)
    assert (status.exit_code, status.reason) == (-SIGKILL, "")
    await all_gone(tree)


async def test_a_killed_shim_ends_the_process(agent_harness: AgentHarness) -> None:
    await agent_harness.launcher.launch(agent_harness.spec(WORKER, "wait"))
    tree = tree_of((await agent_harness.ready(WORKER)).pid)
    tree[0].kill()
    status = await until(agent_harness.launcher, WORKER, ProcessState.EXITED)
    assert status.exit_code == -SIGKILL
    await all_gone(tree)


async def test_a_polite_process_leaves_on_its_own(agent_harness: AgentHarness) -> None:
    await agent_harness.launcher.launch(agent_harness.spec(WORKER, "polite"))
    await agent_harness.ready(WORKER)
    await agent_harness.launcher.terminate(WORKER, grace_s=30.0)
    status = await until(agent_harness.launcher, WORKER, ProcessState.EXITED)
    assert (status.exit_code, status.reason) == (0, "terminated")
    assert (await printed(agent_harness.launcher, WORKER, b"leaving\n")).endswith(b"leaving\n")


async def test_a_stubborn_process_is_killed_after_its_grace(agent_harness: AgentHarness) -> None:
    await agent_harness.launcher.launch(agent_harness.spec(WORKER, "stubborn"))
    await agent_harness.ready(WORKER)
    await agent_harness.launcher.terminate(WORKER, grace_s=600.0)
    await agent_harness.launcher.terminate(WORKER, grace_s=0.1)
    status = await until(agent_harness.launcher, WORKER, ProcessState.EXITED)
    assert (status.exit_code, status.reason) == (-SIGKILL, "terminated")


async def test_a_segmentation_fault_leaves_a_traceback_in_the_log(agent_harness: AgentHarness) -> None:
    await agent_harness.launcher.launch(agent_harness.spec(WORKER, f"signal:{int(SIGSEGV)}"))
    status = await until(agent_harness.launcher, WORKER, ProcessState.EXITED)
    assert status.exit_code == -SIGSEGV
    assert b"stub_process.py" in await printed(agent_harness.launcher, WORKER, b"Segmentation fault")


async def test_too_much_memory_is_told_from_other_ends(agent_harness: AgentHarness) -> None:
    await agent_harness.launcher.launch(agent_harness.spec(WORKER, "memory:200", memory_mib=100))
    status = await until(agent_harness.launcher, WORKER, ProcessState.EXITED)
    assert (status.exit_code, status.reason) == (-SIGKILL, "oom_killed")


async def test_a_kill_by_the_kernel_is_told_from_one_by_somebody_else(
    directories: AgentDirectories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container of 1 GB 28 workers were killed for memory, and "ended by SIGKILL" was all that was said."""
    events, group = tmp_path / "memory.events", tmp_path / "proc" / "self" / "cgroup"
    group.parent.mkdir(parents=True)
    group.write_text("0::/\n")
    events.write_text("oom 3\noom_kill 3\n")
    monkeypatch.setattr(memory, "MemoryGroups", functools.partial(MemoryGroups, tmp_path / "proc", tmp_path))
    async with (
        Agent(directories, ENDPOINTS, NODE_TOKEN, SLOTS, STUB_COMMANDS) as agent,
        ProcessLauncher(agent.address, NODE_TOKEN) as launcher,
    ):
        harness = AgentHarness(launcher, directories, agent)
        for process, kills, reason in ((WORKER, 3, ""), (replace(WORKER, index=1), 4, "oom_killed")):
            await launcher.launch(harness.spec(process))
            pid = (await harness.ready(process)).pid
            events.write_text(f"oom 9\noom_kill {kills}\n")
            os.kill(pid, SIGKILL)
            status = await until(launcher, process, ProcessState.EXITED)
            assert (status.exit_code, status.reason) == (-SIGKILL, reason)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says so")
async def test_the_kernel_is_offered_a_job_before_the_agent(agent_harness: AgentHarness) -> None:
    await agent_harness.launcher.launch(agent_harness.spec(WORKER))
    pid = (await agent_harness.ready(WORKER)).pid
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) == 500 > own


async def test_a_program_that_is_not_there_fails_with_the_reason_in_its_log(directories: AgentDirectories) -> None:
    commands = dict.fromkeys(Role, ("/nowhere/program",))
    async with (
        Agent(directories, ENDPOINTS, NODE_TOKEN, SLOTS, commands) as agent,
        ProcessLauncher(agent.address, NODE_TOKEN) as launcher,
    ):
        harness = AgentHarness(launcher, directories, agent)
        await launcher.launch(harness.spec(WORKER))
        assert (await until(launcher, WORKER, ProcessState.EXITED)).exit_code == 127
        await printed(launcher, WORKER, b"cannot run /nowhere/program")


async def test_endless_output_is_bounded_and_its_end_is_kept(agent_harness: AgentHarness) -> None:
    await agent_harness.launcher.launch(agent_harness.spec(WORKER, f"flood:{80 << 10}"))  # 80 MiB
    await until(agent_harness.launcher, WORKER, ProcessState.EXITED)
    logs = agent_harness.directories.log_dir(JOB).iterdir()
    sizes = [path.stat().st_size for path in logs if path.suffix not in (".times", ".dropped")]
    assert len(sizes) == 2 and sum(sizes) <= 64 << 20
    tail = [piece async for piece in agent_harness.launcher.logs(JOB, Role.WORKER, 0, tail=1024, follow=False)]
    assert b"".join(tail) == b"x" * 1023 + b"\n"
    whole = agent_harness.launcher.logs(JOB, Role.WORKER, 0, tail=None, follow=False)
    assert re.match(rb"\[elasticdl\] the log begins here: [\d,]+ lines before", await anext(whole))
    await whole.aclose()


async def environment_of(harness: AgentHarness, process: ProcessId, **asked: str) -> dict[str, str]:
    spec = harness.spec(process, "environment")
    await harness.launcher.launch(replace(spec, environment={**spec.environment, **asked}))
    found: dict[str, str] = json.loads(await printed(harness.launcher, process, b"}\n"))
    return found


async def test_a_worker_learns_no_secret(agent_harness: AgentHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"ELASTICDL_CLUSTER_SECRET": "s", "ELASTICDL_NODE_TOKEN": "n", "ELASTICDL_REDIS_URL": "r"}
    for name, value in {**secrets, "AWS_SECRET_ACCESS_KEY": "a", "HTTPS_PROXY": "p"}.items():
        monkeypatch.setenv(name, value)
    found = await environment_of(agent_harness, WORKER, MINE="1", ELASTICDL_JOB_TOKEN="t", ELASTICDL_INDEX="7")
    ours = {name: value for name, value in found.items() if name.startswith("ELASTICDL_")}
    assert ours == {
        "ELASTICDL_JOB_ID": JOB,
        "ELASTICDL_ROLE": "worker",
        "ELASTICDL_INDEX": "0",
        "ELASTICDL_INCARNATION": "1",
        "ELASTICDL_LISTEN": agent_harness.launcher.address(JOB, Role.WORKER, 0),
        "ELASTICDL_JOB_DIR": str(folder(agent_harness)),
        "ELASTICDL_JOB_TOKEN": "t",
        "ELASTICDL_INSPECTION": str(Path(found["TMPDIR"]) / "worker-0.1.inspection"),
        "ELASTICDL_SOCKETS": found["TMPDIR"],
    }
    assert found["MINE"] == "1"
    assert not {"AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY"} & found.keys()
    assert Path(found["TMPDIR"]).is_dir()


async def test_a_master_gets_what_it_needs(agent_harness: AgentHarness) -> None:
    found = await environment_of(agent_harness, MASTER)
    secret = tokens.derive_job_secret(ENDPOINTS.cluster_secret, JOB)
    assert found["ELASTICDL_JOB_SECRET"] == secret
    assert found["ELASTICDL_API_URL"] == ENDPOINTS.api_url
    assert found["ELASTICDL_REDIS_URL"] == ENDPOINTS.redis_url
    assert found["ELASTICDL_AGENT"] == agent_harness.agent.address
    claims = tokens.verify(secret, found["ELASTICDL_JOB_TOKEN"], job_id=JOB)
    assert (claims.role, claims.index, claims.incarnation) == (Role.MASTER, 0, 1)
    assert ENDPOINTS.cluster_secret not in found.values()


def job_token(role: Role, job: str = JOB) -> str:
    return tokens.issue(tokens.derive_job_secret(ENDPOINTS.cluster_secret, job), job, role, 0, 1)


async def test_a_master_launches_ps_and_workers_of_its_own_job_only(agent_harness: AgentHarness) -> None:
    async with ProcessLauncher(agent_harness.agent.address, lambda: job_token(Role.MASTER)) as launcher:
        await launcher.launch(agent_harness.spec(WORKER))
        await launcher.launch(agent_harness.spec(ProcessId(JOB, Role.PS, 0, 1)))
        refused = [
            launcher.launch(agent_harness.spec(ProcessId(JOB, Role.MASTER, 0, 2))),
            launcher.terminate(MASTER, grace_s=0.0),
            launcher.launch(agent_harness.spec(replace(WORKER, job_id="other-1"))),
            launcher.terminate(replace(WORKER, job_id="other-1"), grace_s=0.0),
            launcher.terminate_job("other-1", grace_s=0.0),
            launcher.list(),
            launcher.list("other-1"),
            anext(launcher.watch("other-1")),
            anext(launcher.logs("other-1", Role.WORKER, 0, tail=None, follow=False)),
        ]
        for call in refused:
            with pytest.raises(PermissionDeniedError):
                await call
        assert {status.id.role for status in await launcher.list(JOB)} == {Role.PS, Role.WORKER}


@pytest.mark.parametrize(
    ("token", "error"),
    [
        ("", UnauthenticatedError),
        ("wrong", UnauthenticatedError),
        (tokens.issue("another secret", JOB, Role.MASTER, 0, 1), UnauthenticatedError),
        (job_token(Role.WORKER), PermissionDeniedError),
        (job_token(Role.PS), PermissionDeniedError),
    ],
)
async def test_nobody_else_gets_in(agent_harness: AgentHarness, token: str, error: type[Exception]) -> None:
    async with ProcessLauncher(agent_harness.agent.address, token) as launcher:
        calls = [
            launcher.launch(agent_harness.spec(WORKER)),
            launcher.terminate(WORKER, grace_s=0.0),
            launcher.terminate_job(JOB, grace_s=0.0),
            launcher.list(JOB),
            anext(launcher.watch(JOB)),
            launcher.capacity(),
            anext(launcher.logs(JOB, Role.WORKER, 0, tail=None, follow=False)),
        ]
        for call in calls:
            with pytest.raises(error):
                await call


async def test_a_master_that_ends_its_job_does_not_end_itself(agent_harness: AgentHarness) -> None:
    await agent_harness.launcher.launch(agent_harness.spec(MASTER))
    await agent_harness.launcher.launch(agent_harness.spec(WORKER))
    await agent_harness.ready(WORKER)
    async with ProcessLauncher(agent_harness.agent.address, job_token(Role.MASTER)) as launcher:
        await launcher.terminate_job(JOB, grace_s=0.0)
        await until(launcher, WORKER, ProcessState.EXITED)
    assert (await agent_harness.launcher.list(JOB))[0].state is ProcessState.RUNNING


async def test_the_run_directory_goes_with_the_job_and_the_files_stay(agent_harness: AgentHarness) -> None:
    await agent_harness.launcher.launch(agent_harness.spec(WORKER, "stubborn"))
    await agent_harness.ready(WORKER)
    run_dir = agent_harness.directories.job_run_dir(JOB)
    agent_harness.directories.socket(WORKER).touch()
    await agent_harness.launcher.terminate_job(JOB, grace_s=60.0)
    assert run_dir.is_dir()
    async with ProcessLauncher(agent_harness.agent.address, job_token(Role.MASTER)) as master:
        with pytest.raises(ConflictError):
            await master.launch(agent_harness.spec(replace(WORKER, index=1)))
    await agent_harness.launcher.terminate_job(JOB, grace_s=0.0)
    await until(agent_harness.launcher, WORKER, ProcessState.EXITED)
    async for _ in Attempts(Backoff(0.02, 0.02)):  # it is removed in a thread, once nothing of the job runs
        if not run_dir.exists():
            break
    assert folder(agent_harness).is_dir()


async def test_a_job_that_comes_back_waits_until_it_has_left(agent_harness: AgentHarness) -> None:
    await agent_harness.launcher.launch(agent_harness.spec(WORKER, "stubborn"))
    await agent_harness.ready(WORKER)
    await agent_harness.launcher.terminate_job(JOB, grace_s=60.0)
    await agent_harness.launcher.launch(agent_harness.spec(replace(MASTER, incarnation=2)))
    assert (await agent_harness.launcher.list(JOB))[1].state is ProcessState.PENDING
    await agent_harness.launcher.terminate(WORKER, grace_s=0.0)
    await until(agent_harness.launcher, replace(MASTER, incarnation=2), ProcessState.RUNNING)
    assert agent_harness.directories.job_run_dir(JOB).is_dir()


def test_a_socket_path_that_is_too_long_is_refused_with_the_fix() -> None:
    directories = AgentDirectories(Path("/data"), Path("/tmp/a-rather-long-run-directory-x"))
    directories.check(WORKER)
    with pytest.raises(InvalidInputError, match="ELASTICDL_RUN_DIR"):
        directories.check(ProcessId("x" * 63, Role.WORKER, 9999, 1))


async def test_a_stopping_agent_ends_its_processes_and_remembers_them(directories: AgentDirectories) -> None:
    ended = ProcessId(JOB, Role.PS, 0, 1)
    async with (
        Agent(directories, ENDPOINTS, NODE_TOKEN, SLOTS, STUB_COMMANDS, stop_grace_s=0.1) as agent,
        ProcessLauncher(agent.address, NODE_TOKEN) as launcher,
    ):
        harness = AgentHarness(launcher, directories, agent)
        await launcher.launch(harness.spec(ended, "exit:4"))
        await until(launcher, ended, ProcessState.EXITED)
        await launcher.launch(harness.spec(WORKER, "stubborn"))
        tree = tree_of((await harness.ready(WORKER)).pid)
    await all_gone(tree)
    async with (
        Agent(directories, ENDPOINTS, NODE_TOKEN, SLOTS, STUB_COMMANDS) as agent,
        ProcessLauncher(agent.address, NODE_TOKEN) as launcher,
    ):
        found = [(status.id, status.exit_code, status.reason) for status in await launcher.list()]
        assert found == [(ended, 4, ""), (WORKER, -SIGKILL, "launcher_lost")]


async def test_a_stopping_agent_lets_masters_save_before_it_ends_others(
    directories: AgentDirectories, tmp_path: Path
) -> None:
    saved, parameter_server = tmp_path / "saved", ProcessId(JOB, Role.PS, 0, 1)
    agent = Agent(directories, ENDPOINTS, NODE_TOKEN, SLOTS, STUB_COMMANDS, stop_grace_s=0.1, master_grace_s=60.0)
    async with contextlib.AsyncExitStack() as stack:
        launcher = await stack.enter_async_context(ProcessLauncher(agent.address, NODE_TOKEN))
        await agent.__aenter__()
        harness = AgentHarness(launcher, directories, agent)
        await launcher.launch(harness.spec(MASTER, f"saves:{saved}"))
        await launcher.launch(harness.spec(parameter_server, "polite"))
        await launcher.launch(harness.spec(WORKER, "polite"))
        for process in (MASTER, parameter_server, WORKER):
            await harness.ready(process)
        assert not (await launcher.capacity()).closing
        stopping = asyncio.create_task(agent.__aexit__(None, None, None))
        await printed(launcher, MASTER, b"saving\n")
        assert (await launcher.capacity()).closing
        assert {status.state for status in await launcher.list()} == {ProcessState.RUNNING}
        with pytest.raises(ConflictError):
            await launcher.launch(harness.spec(ProcessId(JOB, Role.WORKER, 1, 1)))
        saved.touch()
        await stopping
    async with (
        Agent(directories, ENDPOINTS, NODE_TOKEN, SLOTS, STUB_COMMANDS) as after,
        ProcessLauncher(after.address, NODE_TOKEN) as launcher,
    ):
        found = {(status.id.role, status.exit_code, status.reason) for status in await launcher.list()}
        assert found == {(role, 0, "launcher_lost") for role in Role}


async def test_an_agent_that_is_not_there_is_unavailable(directories: AgentDirectories) -> None:
    async with ProcessLauncher(f"unix:{directories.run}/agent.sock", NODE_TOKEN, deadline_s=1.0) as launcher:
        with pytest.raises(UnavailableError):
            await launcher.capacity()


async def test_a_run_directory_that_others_can_enter_is_refused(directories: AgentDirectories) -> None:
    directories.run.mkdir(mode=0o755)
    with pytest.raises(InvalidInputError, match="open to others"):
        async with Agent(directories, ENDPOINTS, NODE_TOKEN, SLOTS, STUB_COMMANDS):
            pass


def test_weak_tokens_and_no_slots_are_refused(directories: AgentDirectories) -> None:
    for token, slots in (("", 1), ("short", 1), (NODE_TOKEN, 0)):
        with pytest.raises(InvalidInputError):
            Agent(directories, ENDPOINTS, token, slots)


async def test_journal_lines_that_cannot_be_read_are_passed_over(directories: AgentDirectories) -> None:
    async with (
        Agent(directories, ENDPOINTS, NODE_TOKEN, SLOTS, STUB_COMMANDS) as agent,
        ProcessLauncher(agent.address, NODE_TOKEN) as launcher,
    ):
        await launcher.launch(AgentHarness(launcher, directories, agent).spec(WORKER, "exit:0"))
        await until(launcher, WORKER, ProcessState.EXITED)
    journal = directories.data / "agent" / "processes.jsonl"
    journal.write_text('{"job": "cut' + "\n" + journal.read_text() + '{"job":')
    async with (
        Agent(directories, ENDPOINTS, NODE_TOKEN, SLOTS, STUB_COMMANDS) as agent,
        ProcessLauncher(agent.address, NODE_TOKEN) as launcher,
    ):
        assert [status.id for status in await launcher.list()] == [WORKER]
    assert time.time() - json.loads(journal.read_text().splitlines()[0])["at"] < 600


BAD_ENVIRONMENTS = {
    "a name with =": {"A=B": "x"},
    "an empty name": {"": "x"},
    "NUL in a name": {"A\0": "x"},
    "NUL in a value": {"A": "x\0y"},
    "a name that is too long": {"A" * 300: "x"},
    "a value that no program can be given": {"A": "x" * (1 << 17)},
    "too much in all": {f"A{number}": "x" * 60_000 for number in range(20)},
    "too many": {f"A{number}": "" for number in range(2_000)},
}


@pytest.mark.parametrize("environment", BAD_ENVIRONMENTS.values(), ids=BAD_ENVIRONMENTS)
async def test_variables_that_no_process_can_have_are_refused_and_take_no_slot(
    exec_harness: AgentHarness, environment: dict[str, str]
) -> None:
    for incarnation in range(1, 2 * SLOTS):
        spec = ProcessSpec(replace(WORKER, incarnation=incarnation), environment, slots=1)
        with pytest.raises(InvalidInputError) as refused:
            await exec_harness.launcher.launch(spec)
        assert "variable" in refused.value.message
        await exec_harness.launcher.terminate(spec.id, grace_s=0.0)
    assert await exec_harness.launcher.list(JOB) == []
    await exec_harness.launcher.launch(exec_harness.spec(replace(WORKER, index=1), "exit:0", slots=SLOTS))
    await until(exec_harness.launcher, replace(WORKER, index=1), ProcessState.EXITED)
