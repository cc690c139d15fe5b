"""Where things of jobs are on this machine: sockets in the run directory, files in the data directory."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.ports.launcher import ProcessId

_JOB_ID = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MAX_INDEX = 9_999
_MAX_INCARNATION = 999_999
_MAX_SOCKET_PATH = 103
"""Bytes of a unix socket's path that both Linux (107) and macOS (103) allow."""


@dataclass(frozen=True, slots=True)
class AgentDirectories:
    """The two directories of an agent.

    Attributes:
        data: data directory of the cluster; outlives everything.
        run: run directory, a short path that only this user can enter; holds sockets.
    """

    data: Path
    run: Path

    def job_dir(self, job_id: str) -> Path:
        """The job's files: code, checkpoints, artifacts, logs, traces."""
        return self.data / "jobs" / job_id

    def log_dir(self, job_id: str) -> Path:
        """The folder of the job's logs."""
        return self.job_dir(job_id) / "logs"

    def log_file(self, process: ProcessId) -> Path:
        """Where the output of a process goes."""
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

    def prepare(self, process: ProcessId) -> None:
        """Makes the folders that a process needs and removes what an earlier incarnation left at its address."""
        for folder in (
            self.job_run_dir(process.job_id),
            self.job_run_dir(process.job_id) / "tmp",
            self.job_dir(process.job_id),
            self.log_dir(process.job_id),
        ):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.socket(process).unlink(missing_ok=True)

    def remove_run_dir(self, job_id: str) -> None:
        """Removes the job's sockets and temporary files."""
        shutil.rmtree(self.job_run_dir(job_id), ignore_errors=True)
