"""Tenants who attack: what they try is refused, no canary is seen, agent and slots are fine afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from elasticdl_agent import limits
from elasticdl_agent.agent import Agent
from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.processes.confinement import MIN_ABI, filters_calls, landlock_abi
from elasticdl_agent.processes.environment import Endpoints
from elasticdl_agent.processes.isolation import CONFINEMENT
from elasticdl_agent.zygote.client import wanted
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, ProcessState, ProcessStatus, Role, Tenant
from elasticdl_runtime.launcher.client import ProcessLauncher
from elasticdl_runtime.lifecycle import within
from tests.contract.launcher.conftest import NODE_TOKEN, printed, until
from tests.fakes import bad_inputs

pytestmark = [
    pytest.mark.contract,
    pytest.mark.hostile,
    pytest.mark.skipif(sys.platform != "linux", reason="Linux confines"),
]

HOSTILE = Path(__file__).with_name("hostile_tenant.py")
SLOTS = 8
CANARY = "canary-7d1f"
JOB, OTHER = "mallory-aaaaaa", "alice-bbbbbb"
UIDS = range(200_000, 200_010)
READS = [
    "read_token",
    "read_secret",
    "read_journal",
    "read_service_log",
    "list_data_directory",
    "list_jobs",
    "list_run_directory",
    "list_other_job",
    "read_other_artifact",
    "read_other_log",
    "list_other_sockets",
    "read_master_environment",
    "read_master_memory",
    "list_master_descriptors",
    "read_other_worker_environment",
    "read_agent_environment",
    "read_shim_memory",
    "read_everybodys_environment",
    "read_shadow",
    "read_kernel_memory",
    "trace_master",
    "copy_master_memory",
]
WRITES = [
    "write_token",
    "write_journal",
    "write_bundle",
    "write_other_artifact",
    "write_own_code",
    "write_own_checkpoints",
    "write_beside_own_folders",
    "plant_pipe_among_logs",
    "plant_link_among_logs",
    "replace_masters_socket",
    "write_system",
    "open_the_data_directory",
    "link_token_into_artifacts",
    "second_name_for_token",
]
ESCAPES = [
    "become_root",
    "become_another_tenant",
    "run_setuid_program",
    "make_device",
    "mount_over",
    "be_root_in_a_namespace_of_users",
    "leave_root",
    "enter_masters_namespaces",
    "load_program_into_kernel",
    "signal_agent",
    "signal_shim",
    "signal_master",
    "signal_other_worker",
    "be_spared_when_memory_runs_out",
    "go_before_all_others",
    "raise_limits",
    "dump_memory",
]
CALLS = [
    "trace_own_child",
    "make_key",
    "handle_page_faults",
    "count_performance",
    "make_ring_of_calls",
    "fork_into_namespaces",
    "call_the_hypervisor",
    "use_the_kernels_ciphers",
    "limit_other_worker",
    "limit_agent",
    "read_limits_of_agent",
    "choose_cores_of_other_worker",
    "schedule_other_worker",
    "describe_schedule_of_other_worker",
    "put_other_worker_last",
    "put_all_of_a_user_last",
    "let_disks_of_other_worker_wait",
    "leave_shared_memory",
    "leave_queue",
    "leave_semaphores",
    "leave_posix_queue",
    "let_others_run_own_file_as_its_owner",
    "let_others_run_open_file_as_its_owner",
    "give_an_access_list",
    "watch_others",
]
"""System calls that no worker needs and that have been ways out of one, with how the filter refuses them."""
KEPT_OPEN_BY_LANDLOCK = {"open_the_data_directory"}
"""Landlock says nothing of modes: who keeps the agent's user can change those of its files (docs/security.md)."""
ENDINGS = {
    "open_files_without_end": (0, ""),
    "one_endless_file": (0, ""),
    "fork_without_end": (0, ""),
    "log_without_end": (0, ""),
    "leave_a_daemon": (0, ""),
    "memory_without_end": (-9, "oom_killed"),
}
FREEZES = [
    "stop_itself",
    "listen_to_no_signal",
    "close_all_descriptors",
    "many_children_that_ignore",
]


def reachable_python() -> str | None:
    """An interpreter that any user may run; our own may lie in somebody's home."""
    for python in (sys.executable, "/usr/bin/python3"):
        plan = json.dumps({"user": [UIDS[-1], UIDS[-1]], "capabilities": 0})
        found = subprocess.run(
            [sys.executable, "-I", "-S", str(CONFINEMENT), plan, python, "-I", "-c", "import json"],
            capture_output=True,
            timeout=30,
            check=False,
        )
        if found.returncode == 0:
            return python
    return None


@dataclass
class Scene:
    """A cluster with a victim in it."""

    launcher: ProcessLauncher
    directories: AgentDirectories
    mode: str
    place: dict[str, object]
    tenants: dict[str, Tenant]
    launched: int = 0
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SLOTS))

    def spec(self, attack: str, *, memory_mib: int = 0, role: Role = Role.WORKER, job: str = JOB) -> ProcessSpec:
        self.launched += 1
        variables = {"ATTACK": attack, "PLACE": json.dumps(self.place)}
        if job == OTHER:
            variables["ELASTICDL_JOB_TOKEN"] = f"{CANARY}-neighbour"
        index = 0 if role is Role.MASTER else self.launched
        process = ProcessId(job, role, index, 1)
        return ProcessSpec(process, variables, memory_mib, int(role is Role.WORKER), self.tenants[job])

    async def run(self, attack: str, memory_mib: int = 0) -> tuple[ProcessStatus, dict[str, str]]:
        """Launches an attack and waits until it has ended; returns how, and what it told."""
        spec = self.spec(attack, memory_mib=memory_mib)
        async with self.slots:
            await self.launcher.launch(spec)
            status = await until(self.launcher, spec.id, ProcessState.EXITED)
        return status, await self.told(spec.id)

    async def told(self, process: ProcessId) -> dict[str, str]:
        pieces = self.launcher.logs(process.job_id, process.role, process.index, tail=64 << 10, follow=False)
        text = b"".join([piece async for piece in pieces]).decode(errors="replace")
        bad_inputs.count("the node, by tenants' programs", leaks=text.count(CANARY))
        assert CANARY not in text, text[-2000:]
        lines = [line for line in text.splitlines() if line.startswith("{")]
        found: dict[str, str] = json.loads(lines[-1]) if lines else {"outcome": "nothing", "detail": text[-2000:]}
        return found

    async def require_calm(self) -> None:
        """The agent answers, no slot is taken but the victim's, and no process of the attacker lives."""
        capacity = await within(self.launcher.capacity(), 60)
        bad_inputs.count("the node, by tenants' programs", 0, slots_leaked=sum(capacity.used.values()) - 1)
        assert dict(capacity.used) == {OTHER: 1}
        living = [one for one in await self.launcher.list(JOB) if one.state is not ProcessState.EXITED]
        assert [one.id.role for one in living] == [Role.MASTER]
        mine = str(self.directories.work_dir(JOB))
        left = [one for one in psutil.process_iter(["cwd", "status"]) if one.info["cwd"] == mine]
        assert [one for one in left if one.info["status"] != psutil.STATUS_ZOMBIE] == []
        for folder in (self.directories.job_dir(JOB), self.directories.job_run_dir(JOB)):
            for path in folder.rglob("*"):
                if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 20:
                    text = path.read_bytes()
                    bad_inputs.count("the node, by tenants' programs", 0, leaks=text.count(CANARY.encode()))
                    assert CANARY.encode() not in text, path


@pytest.fixture(params=["landlock", "landlock-zygote", "uid", "uid-zygote"])
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    mode = str(request.param)
    python: str | None = sys.executable
    forked = mode.endswith("-zygote")
    if mode.startswith("uid"):
        python = reachable_python() if os.geteuid() == 0 else None
        if python is None or (forked and python != sys.executable):
            pytest.skip("only root may change users, to an interpreter that others can reach")
    elif landlock_abi() < MIN_ABI:
        pytest.skip("this kernel has no Landlock")
    if forked and not wanted("auto"):
        pytest.skip("no zygotes on this system, or too little memory")
    folder = Path(tempfile.mkdtemp(prefix="edl-"))
    folder.chmod(0o711)
    directories = AgentDirectories(folder / "data", folder / "run")
    endpoints = Endpoints(
        f"{CANARY}-cluster-secret", "http://127.0.0.1:1", f"unix:///nowhere?password={CANARY}-redis"
    )
    for name in ("token", "secret"):
        (directories.data / "jobs").mkdir(parents=True, mode=0o700, exist_ok=True)
        (directories.data / name).write_text(f"{CANARY}-{name}")
        (directories.data / name).chmod(0o600)
    for name in ("bundles", "logs"):
        (directories.data / name).mkdir()
    (directories.data / "logs" / "agent.log").write_text(f"{CANARY}-log")
    agent = Agent(
        directories,
        endpoints,
        NODE_TOKEN,
        SLOTS,
        dict.fromkeys(Role, (str(python), "-P", str(HOSTILE))),
        stop_grace_s=0.0,
        master_grace_s=0.0,
        isolation=mode.partition("-")[0],
        uids=UIDS,
        preloads={Role.WORKER: "json"} if forked else None,
    )
    async with agent, ProcessLauncher(agent.address, NODE_TOKEN) as launcher:
        readable = (str(HOSTILE.parent),)
        tenants = {JOB: Tenant("mallory", True, readable), OTHER: Tenant("alice", True, readable)}
        found = Scene(launcher, directories, mode, {}, tenants)
        await set_up(found)
        yield found
    shutil.rmtree(folder)


async def set_up(scene: Scene) -> None:
    """Both tenants have a master, Alice a worker with a secret, a log and an artifact."""
    pids = {}
    for job, role in ((OTHER, Role.MASTER), (OTHER, Role.WORKER), (JOB, Role.MASTER)):
        spec = scene.spec("", role=role, job=job)
        await scene.launcher.launch(spec)
        pids[job, role] = (await until(scene.launcher, spec.id, ProcessState.RUNNING)).pid
    where = scene.directories
    for path in (where.job_dir(OTHER) / "artifacts" / "model.keras", where.log_dir(OTHER) / "worker-0.1.log"):
        path.write_text(f"{CANARY}-of-alice")
    for name in ("code", "checkpoints"):
        (where.job_dir(JOB) / name).mkdir()
        (where.job_dir(JOB) / name / "model.py").write_text("")
    scene.place = {
        "data": str(where.data),
        "run": str(where.run),
        "job": str(where.job_dir(JOB)),
        "other": str(where.job_dir(OTHER)),
        "agent": os.getpid(),
        "master": pids[JOB, Role.MASTER],
        "neighbour": pids[OTHER, Role.WORKER],
        "other_uid": UIDS[0],
    }


async def test_nothing_that_a_tenant_tries_to_read_write_or_become_succeeds(scene: Scene) -> None:
    attacks = [*READS, *WRITES, *ESCAPES]
    results = await asyncio.gather(*(scene.run(attack) for attack in attacks))
    outcomes = {attack: told for attack, (_, told) in zip(attacks, results, strict=True)}
    succeeded = {attack: told for attack, told in outcomes.items() if told["outcome"] != "refused"}
    assert set(succeeded) == (set() if scene.mode.startswith("uid") else KEPT_OPEN_BY_LANDLOCK), succeeded
    _, called = await scene.run("call_agent_without_credentials")
    assert called["outcome"] == "refused" if scene.mode.startswith("uid") else NODE_TOKEN not in called["detail"]
    assert (await scene.run("move_own_file"))[1]["outcome"] == "done"
    where = scene.directories
    assert (where.job_dir(OTHER) / "artifacts" / "model.keras").read_text() == f"{CANARY}-of-alice"
    assert (where.data / "token").read_text() == f"{CANARY}-token"
    assert (where.data / "token").stat().st_nlink == 1
    await scene.require_calm()


async def test_system_calls_that_no_worker_needs_are_refused(scene: Scene) -> None:
    if not filters_calls():
        pytest.skip("this kernel has no seccomp, or nobody has numbered its system calls here")
    results = await asyncio.gather(*(scene.run(attack) for attack in CALLS))
    told = {
        attack: (one["outcome"], one["detail"].partition(": ")[0])
        for attack, (_, one) in zip(CALLS, results, strict=True)
    }
    not_permitted = ("refused", "[Errno 1] Operation not permitted")
    assert told == {
        **dict.fromkeys(CALLS, not_permitted),
        "make_ring_of_calls": ("refused", "[Errno 38] Function not implemented"),
        "call_the_hypervisor": ("refused", "[Errno 97] Address family not supported by protocol"),
        "use_the_kernels_ciphers": ("refused", "[Errno 97] Address family not supported by protocol"),
        "give_an_access_list": ("refused", f"[Errno 95] {os.strerror(95)}"),
    }
    _, ordinary = await scene.run("do_ordinary_things")
    assert ordinary == {"outcome": "done", "detail": "[b'7\\n', 42, 1, True, True]"}
    await scene.require_calm()


async def test_nothing_that_a_tenant_uses_up_or_leaves_behind_stays(scene: Scene) -> None:
    results = await asyncio.gather(*(scene.run(attack, 100 if "memory" in attack else 0) for attack in ENDINGS))
    ended = {attack: (status.exit_code, status.reason) for attack, (status, _) in zip(ENDINGS, results, strict=True)}
    assert ended == ENDINGS
    told = {attack: told["outcome"] for attack, (_, told) in zip(ENDINGS, results, strict=True)}
    assert told["open_files_without_end"] == told["one_endless_file"] == "refused"
    sizes = [path.stat().st_size for path in scene.directories.log_dir(JOB).iterdir()]
    assert max(sizes) <= 32 << 20
    await scene.require_calm()


async def test_a_fork_bomb_is_ended(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PROCESSES", 100)
    status, _ = await scene.run("fork_and_stay")
    assert (status.exit_code, status.reason) == (-9, "too_many_processes")
    await scene.require_calm()


async def test_a_tenant_that_freezes_is_ended_all_the_same(scene: Scene) -> None:
    specs = [scene.spec(attack) for attack in FREEZES]
    for spec in specs:
        await scene.launcher.launch(spec)
    for spec in specs:
        await until(scene.launcher, spec.id, ProcessState.RUNNING)
        await printed(scene.launcher, spec.id, b"ready")
        await scene.launcher.terminate(spec.id, grace_s=0.0)
    for spec in specs:
        assert (await until(scene.launcher, spec.id, ProcessState.EXITED)).exit_code in (-9, -15)
    await scene.require_calm()
