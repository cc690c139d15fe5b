"""Isolation of a job's code from the cluster's secrets and from other tenants, and where that holds.

The setting ``ELASTICDL_ISOLATION`` says what is wanted, a probe with a real process what is possible, and a plan (see
``confinement``) what is taken from each process. Masters and parameter servers run no code of users and stay who the
agent is; workers of tenants become somebody else, or lose sight of all files but those that their job needs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from elasticdl_agent.directories import AgentDirectories, JobUser
from elasticdl_agent.processes.confinement import EVERYTHING, MIN_ABI, READ, WRITE, filters_calls, landlock_abi
from elasticdl_agent.processes.credentials import worker_credentials
from elasticdl_agent.processes.environment import base_environment
from elasticdl_core.errors import InvalidInputError, UnavailableError
from elasticdl_core.ports.launcher import ProcessSpec, Role, Tenant
from elasticdl_runtime import durable

SETTINGS = ("auto", "uid", "landlock", "off")
CONFINEMENT = Path(__file__).with_name("confinement.py")
FILE_CAPABILITIES = 0b11111
"""CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID: what makes root root for files, and for nothing else."""
MAX_FILE_BYTES = 64 << 30
MAX_OPEN_FILES = 65_536
THREADS_PER_SLOT = 1_024
"""Of all processes of a namespace together; TensorFlow has a few hundred in a worker on a large machine."""
_PROBE_S = 60.0
_FOLDER_OF_JOB = 3
"""Parts of ``jobs/<id>/<folder>``."""
_OURS = ("core", "proto", "runtime", "worker", "agent")
_PACKAGES = ("elasticdl", *(f"elasticdl_{name}" for name in _OURS))
_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix", "/proc", "/sys")
_SYSTEM_FILES = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ssl", "pki", "ca-certificates", "resolv.conf", "hosts"),
    *("host.conf", "gai.conf", "nsswitch.conf", "passwd", "group", "localtime", "timezone", "mime.types", "services"),
    *("protocols", "os-release", "alternatives", "OpenCL", "nvidia"),
)
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "dri", "kfd")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class IsolationLevel:
    """The degree of isolation of a namespace's workers.

    Attributes:
        user: they run as a user of their namespace's own.
        files: Landlock closes all files but those of the job and of the system.
        fence: no signal to, and no look into, a process outside of the job.
        calls: seccomp refuses system calls that no worker needs.
    """

    user: bool = False
    files: bool = False
    fence: bool = False
    calls: bool = False

    def __str__(self) -> str:
        words = (("uid", self.user), ("landlock", self.files), ("seccomp", self.calls))
        return "+".join(word for word, holds in words if holds) or ("fence" if self.fence else "none")


class Isolation:
    """Decides what is taken from each process.

    Args:
        directories: of the agent.
        tenants: what holds for jobs that are restricted to their namespace.
        own: what holds for jobs of the cluster's administrator.
        uids: user ids to give to namespaces, which are their groups' ids, too.
        slots: of this machine.
        python: the interpreter of workers.
    """

    def __init__(
        self,
        directories: AgentDirectories,
        tenants: IsolationLevel | None = None,
        own: IsolationLevel | None = None,
        uids: range = range(0),
        slots: int = 1,
        python: str = sys.executable,
    ) -> None:
        self._directories = directories
        self._tenants = tenants or IsolationLevel()
        self._own = own or IsolationLevel()
        self._uids = uids
        self._slots = slots
        self._python = python
        self._book = directories.data / "agent" / "identities.json"

    def __str__(self) -> str:
        return f"{self._tenants} (jobs of the administrator: {self._own})"

    @classmethod
    def find(
        cls, setting: str, directories: AgentDirectories, uids: range, slots: int, python: str = sys.executable
    ) -> Isolation:
        """Finds out by trial what is possible here; opens the way to the directories if users of their own are.

        Raises:
            InvalidInputError: the setting is unknown, or wants what is not possible here.
        """
        if setting not in SETTINGS:
            raise InvalidInputError(
                f"ELASTICDL_ISOLATION={setting!r} is unknown", fix=f"set it to one of {', '.join(SETTINGS)}"
            )
        if setting == "off":
            return cls(directories)
        for folder in (directories.jobs, directories.run):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        closed = landlock_abi() >= MIN_ABI and cls(
            directories, IsolationLevel(files=True, fence=True), python=python
        )._works("landlock")
        filtered = filters_calls() and cls(directories, IsolationLevel(calls=True), python=python)._works("seccomp")
        fenced = IsolationLevel(fence=closed)
        with_files = IsolationLevel(files=closed, fence=closed, calls=filtered)
        own_users = False
        if setting != "landlock" and os.name == "posix" and sys.platform == "linux":
            undo = directories.let_others_pass()
            trial = IsolationLevel(True, closed, closed, filtered)
            own_users = cls(directories, trial, trial, uids, slots, python)._works("uid")
            if not own_users:
                undo()
        if (setting == "uid" and not own_users) or (setting == "landlock" and not closed):
            why = (
                "the agent may not change users, or others cannot reach the data directory or the Python environment"
                if setting == "uid"
                else "the kernel has no Landlock, or it is switched off"
            )
            raise InvalidInputError(
                f"ELASTICDL_ISOLATION={setting} is not possible here: {why}",
                fix="set it to auto; for users of their own run the cluster as root with --data-dir "
                "/var/lib/elasticdl/data",
            )
        tenants = replace(with_files, user=own_users)
        return cls(directories, tenants, fenced if setting == "auto" else tenants, uids, slots)

    @property
    def uids(self) -> range:
        """The ids of the users that namespaces get."""
        return self._uids

    def level(self, tenant: Tenant) -> IsolationLevel:
        """The degree of isolation of a tenant's workers."""
        return self._tenants if tenant.restricted else self._own

    def user(self, tenant: Tenant) -> JobUser | None:
        """The user of a tenant's workers; None for the agent's own.

        Raises:
            UnavailableError: all user ids are given away.
        """
        if not self.level(tenant).user:
            return None
        known: dict[str, int] = json.loads(self._book.read_text()) if self._book.is_file() else {}
        name = tenant.namespace
        if name not in known:
            taken = set(known.values())
            uid = next((uid for uid in self._uids if uid not in taken), None)
            if uid is None:
                raise UnavailableError(
                    "every user id for namespaces is given away", fix="give the agent a longer ELASTICDL_UIDS"
                )
            known[name] = uid
            durable.write(self._book, json.dumps(known))
        return JobUser(known[name], known[name])

    def plan(
        self,
        spec: ProcessSpec,
        tenant: Tenant,
        *,
        accelerators: Sequence[str] | None = None,
        readable: Sequence[str] = (),
    ) -> dict[str, Any]:
        """The rights that are taken from a process before it starts.

        Args:
            spec: the process.
            tenant: whose it is.
            accelerators: files of accelerators that it may open; None for all that there are.
            readable: what else it may read.

        Raises:
            UnavailableError: all user ids are given away.
        """
        plan: dict[str, Any] = {"no_new_privileges": True, "limits": {"CORE": 0}}
        level, user = self.level(tenant), self.user(tenant)
        if os.geteuid() != 0:
            plan["capabilities"] = 0  # those with which the agent gives users to jobs are the agent's
        if user is not None:
            plan["umask"] = 0o002  # sockets that the group may use, files that the agent's group may remove
        if spec.id.role is not Role.WORKER:
            return plan
        plan["fence"] = level.fence
        plan["calls"] = level.calls
        if user is not None or level.files:
            plan["capabilities"] = 0
            plan["limits"] = {"CORE": 0, "FSIZE": MAX_FILE_BYTES, "NOFILE": MAX_OPEN_FILES}
        elif level.fence and os.geteuid() == 0:
            plan["capabilities"] = FILE_CAPABILITIES
        if user is not None:
            plan["user"] = [user.uid, user.gid]
            plan["limits"]["NPROC"] = THREADS_PER_SLOT * (self._slots + 1)
        if level.files:
            system = self._system(shared_memory=user is not None, accelerators=accelerators)
            more = [(path, READ) for path in readable]
            plan["files"] = [*system, *self._of_job(spec.id.job_id, tenant), *more]
        return plan

    def environment(self, spec: ProcessSpec, tenant: Tenant) -> dict[str, str]:
        """Variables that follow from where a confined worker may write."""
        if not self._confines(spec, tenant):
            return {}
        own = str(self.temporary_folder(spec, tenant))
        return {"TMPDIR": own, "HOME": own}

    def temporary_folder(self, spec: ProcessSpec, tenant: Tenant) -> Path:
        """The folder for a process' temporary files and sockets, in the run directory."""
        if self._confines(spec, tenant):
            return self._directories.worker_tmp(spec.id.job_id)
        return self._directories.job_run_dir(spec.id.job_id) / "tmp"

    def _confines(self, spec: ProcessSpec, tenant: Tenant) -> bool:
        level = self.level(tenant)
        return spec.id.role is Role.WORKER and (level.user or level.files)

    def directory(self, spec: ProcessSpec, tenant: Tenant) -> Path:
        """The folder where a process starts: the job's directory, or one in it that a confined worker may write."""
        if self._confines(spec, tenant):
            return self._directories.work_dir(spec.id.job_id)
        return self._directories.job_dir(spec.id.job_id)

    def _of_job(self, job_id: str, tenant: Tenant) -> list[tuple[str, str]]:
        where = self._directories
        own = [(str(where.job_dir(job_id)), READ)]
        own += [(str(worker_credentials(where.job_run_dir(job_id))), READ)]
        own += [(str(path), EVERYTHING) for path in (*where.worker_folders(job_id), where.worker_tmp(job_id))]
        own += [(path, READ) for path in self._grantable(tenant.readable)]
        return own + [(path, EVERYTHING) for path in self._grantable(tenant.writable, writing=True)]

    def _grantable(self, paths: Iterable[str], *, writing: bool = False) -> list[str]:
        """Local paths without those that would open what the agent keeps: its directories, and all around them.

        Of the cluster's own directory a folder of a job, such as its checkpoints, can be opened for reading.
        """
        data, run = self._directories.data.resolve(), self._directories.run.resolve()
        found = []
        for given in paths:
            path = Path(given)
            if not path.is_absolute():
                continue  # a URL
            real = path.resolve()
            around = any(real == secret or real in secret.parents for secret in (data, run))
            within = run in real.parents or data in real.parents
            folder_of_job = (
                data in real.parents
                and real.relative_to(data).parts[0] == "jobs"
                and (len(real.relative_to(data).parts) >= _FOLDER_OF_JOB)
            )
            if around or (within and (writing or not folder_of_job)):
                _log.info("not opened to a job: the cluster's own files lie there", path=given)
            else:
                found.append(str(real))
        return found

    @staticmethod
    def _system(*, shared_memory: bool, accelerators: Sequence[str] | None = None) -> list[tuple[str, str]]:
        python = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
        python |= {str(Path(sys.executable).resolve().parent.parent)}
        python |= {path for path in sys.path if path and Path(path).is_absolute()}
        for package in _PACKAGES:
            spec = importlib.util.find_spec(package)
            python |= set((spec.submodule_search_locations or ()) if spec is not None else ())
        environment = base_environment()
        libraries = [
            path
            for name in ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")
            for path in environment.get(name, "").split(":")
            if path
        ]
        if accelerators is None:
            accelerators = [str(path) for path in Path("/dev").glob("nvidia*")]
        devices = [*(f"/dev/{name}" for name in _DEVICES), *accelerators]
        system = [(path, READ) for path in (*_PROGRAMS, *(f"/etc/{name}" for name in _SYSTEM_FILES))]
        system += [(path, READ) for path in sorted(python) + libraries]
        system += [(path, WRITE) for path in devices]
        return [*system, ("/dev/shm", EVERYTHING)] if shared_memory else system

    def _works(self, what: str) -> bool:
        """Tries with a process that starts as a worker does and must reach what a worker must."""
        level = self._tenants
        plan: dict[str, Any] = {"capabilities": 0, "no_new_privileges": True, "calls": level.calls}
        plan["fence"] = level.fence
        if self._tenants.files:
            plan["files"] = self._system(shared_memory=True)
        if self._tenants.user:
            if not self._uids:
                return False
            if not self._directories.shares_sockets(self._uids[0]):
                _log.info("isolation is not possible", what=what, why="CAP_CHOWN or CAP_FSETID is missing")
                return False
            plan["user"] = [self._uids[0], self._uids[0]]
        places = [str(self._directories.jobs), str(self._directories.run)]
        packages = [importlib.util.find_spec(package) for package in _PACKAGES]
        code = [spec.origin for spec in packages if spec is not None and spec.origin]
        program = (
            f"import ctypes, json, os; [os.stat(path) for path in {places!r}]; [open(path) for path in {code!r}]"
        )
        argv = [sys.executable, "-I", "-S", str(CONFINEMENT), json.dumps(plan), self._python, "-I", "-c", program]
        try:
            done = subprocess.run(
                argv, env=base_environment(), cwd="/", capture_output=True, timeout=_PROBE_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            _log.info("isolation is not possible", what=what, why=str(error))
            return False
        if done.returncode != 0:
            reason = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
            _log.info("isolation is not possible", what=what, why=" ".join(reason))
        return done.returncode == 0


def parse_uids(text: str) -> range:
    """Reads ``FIRST-LAST``.

    Raises:
        InvalidInputError: it is no such range, or has ids of the system's own users.
    """
    first, _, last = text.partition("-")
    try:
        found = range(int(first), int(last) + 1)
    except ValueError:
        found = range(0)
    if not found or found[0] < 1000 or found[-1] >= 1 << 31:
        raise InvalidInputError(f"ELASTICDL_UIDS={text!r} is not a range of user ids", fix="write 200000-265535")
    return found
