"""TLS credentials that the agent issues: to itself, to holders of the node token, to jobs' processes.

Everything is signed by the authority that follows from the cluster's secret, lives for hours, and is replaced while
its process runs.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

from elasticdl_agent.directories import JobUser
from elasticdl_core.ports.launcher import ProcessId, Role
from elasticdl_runtime import durable
from elasticdl_runtime.authority import CertificateAuthority
from elasticdl_runtime.items import Items
from elasticdl_runtime.launcher.addresses import AGENT_NAME, NODE_NAME, node_credentials
from elasticdl_runtime.tokens import certificate_name

DEFAULT_HOURS = 24.0


class ProcessCertificates:
    """Issues credentials to the processes of jobs, the agent and the holders of the node token.

    Args:
        cluster_secret: the authority follows from it.
        hours: how long a certificate is valid; it is due again when a third of that has passed.

    Attributes:
        renew_after_s: seconds after which one is due again.
    """

    def __init__(self, cluster_secret: str, hours: float = DEFAULT_HOURS) -> None:
        self._authority = CertificateAuthority.of_secret(cluster_secret)
        self._lifetime = timedelta(hours=hours)
        self.renew_after_s = self._lifetime.total_seconds() / 3

    def of_process(self, process: ProcessId) -> bytes:
        """Key, certificate and authority of a process of a job, as PEM."""
        return self.issue(certificate_name(process.job_id, process.role, process.index))

    def issue(self, name: str) -> bytes:
        """Issues credentials for a name."""
        issued = self._authority.issue([name], self._lifetime)
        return issued.key + issued.pem + self._authority.pem


class CredentialFiles:
    """The files that it has written, and when they are due again.

    Args:
        run: the agent's run directory.
        cluster_secret: the authority follows from it.
        hours: how long a certificate is valid; it is replaced when a third of that has passed.
    """

    def __init__(self, run: Path, cluster_secret: str, hours: float = DEFAULT_HOURS) -> None:
        self._run = run
        self._certificates = ProcessCertificates(cluster_secret, hours)
        self.pause_s = min(60.0, self._certificates.renew_after_s / 4)
        self._written: dict[Path, tuple[str, JobUser | None, float]] = {}
        self._items = Items("credentials of processes")

    @property
    def agent(self) -> Path:
        """The agent's own."""
        return self._run / "agent.pem"

    def of_process(self, process: ProcessId) -> Path:
        """The credentials of a process of a job, in a folder of its role, which its user may read."""
        return worker_credentials(self._run / process.job_id, process.role) / f"{process.index}.pem"

    def issue_own(self) -> None:
        """Issues those of the agent and of the node."""
        self._issue(self.agent, AGENT_NAME, None)
        self._issue(node_credentials(self._run), NODE_NAME, None)

    def issue(self, process: ProcessId, user: JobUser | None) -> Path:
        """Issues those of a process; its job's run directory is there.

        Args:
            process: the process.
            user: who it is, if it is somebody else.
        """
        path = self.of_process(process)
        own = user if process.role is Role.WORKER else None
        for folder, mode in ((path.parent.parent, 0o710), (path.parent, 0o750)):
            folder.mkdir(mode=0o700, exist_ok=True)
            if user is not None and (own is not None or folder != path.parent):
                os.chown(folder, -1, user.gid)
                folder.chmod(mode)
        self._issue(path, certificate_name(process.job_id, process.role, process.index), own)
        return path

    def forget(self, process: ProcessId) -> None:
        """Issues nothing more to a process that has ended."""
        self._written.pop(self.of_process(process), None)

    def renew(self) -> int:
        """Issues anew what is due, each alone; returns how many."""
        due = time.monotonic() - self._certificates.renew_after_s
        found = [(path, name, user) for path, (name, user, at) in self._written.items() if at <= due]
        renewed = 0
        for path, name, user in found:
            if not path.parent.is_dir():
                del self._written[path]
            elif not self._items.is_put_off(path):
                try:
                    self._issue(path, name, user)
                except Exception as error:
                    self._items.put_off(path, error)
                else:
                    self._items.went_well(path)
                    renewed += 1
        self._items.keep(self._written)
        return renewed

    def _issue(self, path: Path, name: str, user: JobUser | None) -> None:
        with durable.writing(path, 0o600) as file:
            if user is not None:
                os.fchown(file.fileno(), -1, user.gid)
                os.fchmod(file.fileno(), 0o640)
            file.write(self._certificates.issue(name))
        self._written[path] = (name, user, time.monotonic())


def worker_credentials(job_run_dir: Path, role: Role = Role.WORKER) -> Path:
    """The folder of the credentials of a job's workers, or of its processes of another role."""
    return job_run_dir / "tls" / str(role)
