"""Paths of jobs' things on this machine: sockets in the run directory, files in the data directory."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.ports.launcher import ProcessId
from elasticdl_runtime.tree_removal import remove_tree

_JOB_ID = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MAX_INDEX = 10_000
_MAX_INCARNATION = 999_999
_SHARED = 0o2710
"""Others of its group may pass, and what is made in it is of its group."""
_MAX_SOCKET_PATH = 103
"""Bytes of a unix socket's path that both Linux (107) and macOS (103) allow."""


@dataclass(frozen=True, slots=True)
class JobUser:
    """The user of a namespace's workers."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class AgentDirectories:
    """The two directories of an agent.

    Attributes:
        data: data directory of the cluster; outlives everything.
        run: run directory, a short path that only this user can enter; holds sockets.
    """

    data: Path
    run: Path

    @property
    def jobs(self) -> Path:
        """The folder of all jobs' files."""
        return self.data / "jobs"

    def worker_folders(self, job_id: str) -> tuple[Path, ...]:
        """The folders that workers write, in the job's directory."""
        job = self.job_dir(job_id)
        return job / "artifacts", job / "traces", self.work_dir(job_id)

    def work_dir(self, job_id: str) -> Path:
        """The folder in which a confined worker starts."""
        return self.job_dir(job_id) / "work"

    def worker_tmp(self, job_id: str) -> Path:
        """Temporary files of confined workers."""
        return self.job_run_dir(job_id) / "worker"

    def job_dir(self, job_id: str) -> Path:
        """The job's files: code, checkpoints, artifacts, logs, traces."""
        return self.jobs / job_id

    def log_dir(self, job_id: str) -> Path:
        """The folder of the job's logs."""
        return self.job_dir(job_id) / "logs"

    def log_file(self, process: ProcessId) -> Path:
        """The file for the output of a process."""
        return self.log_dir(process.job_id) / f"{process.owner}.log"

    def job_run_dir(self, job_id: str) -> Path:
        """The folder of the job's sockets and temporary files."""
        return self.run / job_id

    def socket(self, process: ProcessId) -> Path:
        """The unix socket that a process serves on."""
        return self.job_run_dir(process.job_id) / f"{process.role}-{process.index}.sock"

    def check(self, process: ProcessId) -> None:
        """Refuses ids that would lead out of the directories, or to a socket that cannot be bound.

        Raises:
            InvalidInputError: says which part is wrong.
        """
        if not _JOB_ID.fullmatch(process.job_id):
            raise InvalidInputError(
                f"{process.job_id!r} is not a job id", fix="use 1-63 lower-case letters, digits and inner dashes"
            )
        if not 0 <= process.index <= _MAX_INDEX or not 0 <= process.incarnation <= _MAX_INCARNATION:
            raise InvalidInputError(
                f"{process} is out of range", fix=f"index is at most {_MAX_INDEX}, incarnation {_MAX_INCARNATION}"
            )
        if len(bytes(self.socket(process))) > _MAX_SOCKET_PATH:
            raise InvalidInputError(
                f"the socket path {self.socket(process)} is longer than {_MAX_SOCKET_PATH} bytes",
                fix="give the cluster a shorter run directory (ELASTICDL_RUN_DIR), or the job a shorter name",
            )

    def prepare(self, process: ProcessId, user: JobUser | None = None, *, confined: bool = False) -> None:
        """Makes the folders that a process needs and removes what an earlier incarnation left at its address.

        Args:
            process: the process.
            user: who the job's workers are, if they are somebody else: they may enter the job's folders and use its
                sockets, and write in folders of their own, which the agent's group may empty.
            confined: whether the workers write in folders of their own only.
        """
        for folder in (
            self.job_run_dir(process.job_id),
            self.job_run_dir(process.job_id) / "tmp",
            self.job_dir(process.job_id),
            self.log_dir(process.job_id),
        ):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = (*self.worker_folders(process.job_id), self.worker_tmp(process.job_id)) if confined else ()
        for folder in own:
            folder.mkdir(mode=0o700, exist_ok=True)
        if user is not None:
            # Those around belong to the agent and no worker can put a link there; mkdir takes no link for a folder.
            for folder, mode in ((self.job_dir(process.job_id), 0o750), (self.job_run_dir(process.job_id), _SHARED)):
                os.chown(folder, -1, user.gid)
                folder.chmod(mode)
            for folder in own:
                os.chown(folder, user.uid, os.getegid(), follow_symlinks=False)
                folder.chmod(0o2770)
        self.socket(process).unlink(missing_ok=True)

    def shares_sockets(self, gid: int) -> bool:
        """Whether sockets in a folder of ours can be of a group that we are not in; it takes CAP_FSETID, too."""
        trial = Path(tempfile.mkdtemp(prefix="group-", dir=self.run))
        try:
            os.chown(trial, -1, gid)
            trial.chmod(_SHARED)
            return trial.stat().st_mode & 0o7777 == _SHARED
        except PermissionError:
            return False
        finally:
            trial.rmdir()

    def let_others_pass(self) -> Callable[[], None]:
        """Lets users of jobs get to their folders, whose names they must know; what lies beside stays closed.

        Returns:
            What undoes it.
        """
        changed: list[tuple[Path, int]] = []
        ours = [self.data, self.jobs, self.run]
        if self.run.parent.name == f"elasticdl-{os.getuid()}":
            ours.append(self.run.parent)
        for folder in ours:
            found = folder.stat()
            if found.st_uid == os.geteuid():
                changed.append((folder, found.st_mode & 0o7777))
                folder.chmod(found.st_mode & 0o7777 | 0o011)
        for beside in self.data.iterdir():
            found = beside.lstat()
            if beside != self.jobs and found.st_uid == os.geteuid() and not beside.is_symlink():
                beside.chmod(found.st_mode & 0o7700)

        def undo() -> None:
            for folder, mode in changed:
                folder.chmod(mode)

        return undo

    def remove_run_dir(self, job_id: str) -> OSError | None:
        """Removes the job's sockets and temporary files, which may take long; returns what kept some from going."""
        return remove_tree(self.job_run_dir(job_id))
