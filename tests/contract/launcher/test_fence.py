"""Jobs of the administrator: all files that the administrator has, and no other process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from elasticdl_agent.agent import Agent
from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.processes.confinement import landlock_abi
from elasticdl_agent.processes.credentials import worker_credentials
from elasticdl_agent.processes.environment import check_variables
from elasticdl_agent.processes.isolation import Isolation, IsolationLevel, parse_uids
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, ProcessState, Role, Tenant
from elasticdl_runtime.launcher.client import ProcessLauncher
from tests.contract.launcher.conftest import ENDPOINTS, NODE_TOKEN, until

pytestmark = pytest.mark.contract

HOSTILE = Path(__file__).with_name("hostile_tenant.py")
JOB = "digits-x7k2p9"
FILES = ["read_token", "write_bundle", "list_data_directory", "move_between_folders"]
PROCESSES = [
    "read_master_environment",
    "read_master_memory",
    "trace_master",
    "copy_master_memory",
    "signal_agent",
    "signal_master",
    "signal_shim",
    "enter_masters_namespaces",
    "run_setuid_program",
]


@pytest.mark.skipif(landlock_abi() < 6, reason="this kernel's Landlock has no scopes")
async def test_a_job_of_the_administrator_reaches_files_and_no_processes(directories: AgentDirectories) -> None:
    (directories.data / "bundles").mkdir(parents=True)
    (directories.data / "token").write_text("for me")
    agent = Agent(
        directories,
        ENDPOINTS,
        NODE_TOKEN,
        len(FILES) + len(PROCESSES),
        dict.fromkeys(Role, (sys.executable, "-P", str(HOSTILE))),
        stop_grace_s=0.0,
        master_grace_s=0.0,
        isolation="auto",
    )
    async with agent, ProcessLauncher(agent.address, NODE_TOKEN) as launcher:
        assert "fence" in (await launcher.capacity()).isolation
        master = ProcessId(JOB, Role.MASTER, 0, 1)
        await launcher.launch(ProcessSpec(master))
        pid = (await until(launcher, master, ProcessState.RUNNING)).pid
        place = json.dumps({"data": str(directories.data), "master": pid, "agent": os.getpid()})
        outcomes = {}
        for index, attack in enumerate([*FILES, *PROCESSES]):
            process = ProcessId(JOB, Role.WORKER, index, 1)
            await launcher.launch(ProcessSpec(process, {"ATTACK": attack, "PLACE": place}, slots=1))
            await until(launcher, process, ProcessState.EXITED)
            text = b"".join(
                [piece async for piece in launcher.logs(JOB, Role.WORKER, index, tail=None, follow=False)]
            )
            outcomes[attack] = json.loads(text.splitlines()[-1])["outcome"]
        assert outcomes == {**dict.fromkeys(FILES, "done"), **dict.fromkeys(PROCESSES, "refused")}


def test_a_namespace_has_one_user_for_ever_and_no_two_share_one(directories: AgentDirectories) -> None:
    (directories.data / "agent").mkdir(parents=True)
    level = IsolationLevel(user=True)
    first = Isolation(directories, level, uids=range(5000, 5002))
    again = Isolation(directories, level, uids=range(5000, 5002))
    given = {name: first.user(Tenant(name, True)) for name in ("a", "b")}
    assert len({user.uid for user in given.values() if user is not None}) == 2
    assert {name: again.user(Tenant(name, True)) for name in ("b", "a")} == given
    with pytest.raises(Exception, match="given away"):
        again.user(Tenant("c", True))


def test_no_place_of_a_job_opens_the_clusters_own_files(
    directories: AgentDirectories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A model zoo that an earlier test loaded in this process is on the path still; an agent loads none.
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not path.startswith(str(tmp_path.parent))])
    (directories.data / "agent").mkdir(parents=True)
    isolation = Isolation(directories, IsolationLevel(files=True))
    link = tmp_path / "link"
    link.symlink_to(directories.data)
    jobs = directories.jobs
    cluster = [directories.data, directories.data.parent, directories.run, directories.run / "other", link, jobs]
    cluster += [jobs / "other", jobs / JOB, directories.data / "agent" / "a" / "b"]
    asked = ("/", *(str(path) for path in cluster), "s3://bucket/x", "relative")
    kept = str(jobs / "other" / "checkpoints")
    tenant = Tenant("a", True, (*asked, str(tmp_path), kept), (*asked, kept, str(tmp_path / "mine")))
    plan = isolation.plan(ProcessSpec(ProcessId(JOB, Role.WORKER, 0, 1)), tenant)
    opened = {(path, access) for path, access in plan["files"] if not path.startswith(("/usr", "/etc", "/dev"))}
    own = {path for path in opened if path[0].startswith((str(directories.data), str(directories.run)))}
    writable = {*directories.worker_folders(JOB), directories.worker_tmp(JOB)}
    assert {(str(tmp_path), "read"), (str(tmp_path / "mine"), "everything")} <= opened
    readable = {str(jobs / JOB), kept, str(worker_credentials(directories.job_run_dir(JOB)))}
    assert own == {(str(path), "everything") for path in writable} | {(path, "read") for path in readable}
    assert not {"/", str(tmp_path.parent), str(directories.data.parent)} & {path for path, _ in opened}


@pytest.mark.parametrize("setting", ["on", "", "UID"])
def test_an_unknown_setting_is_refused(directories: AgentDirectories, setting: str) -> None:
    with pytest.raises(InvalidInputError, match="ELASTICDL_ISOLATION"):
        Isolation.find(setting, directories, range(0), 1)


@pytest.mark.parametrize("text", ["", "0-10", "5", "9-", "3000-2000", "a-b", "1000-99999999999"])
def test_what_is_no_range_of_user_ids_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="ELASTICDL_UIDS"):
        parse_uids(text)


def test_half_a_character_is_no_variable() -> None:
    with pytest.raises(InvalidInputError, match="variable"):
        check_variables({"A": "\ud800"})
