"""The options of a user who brings a cluster up."""

from __future__ import annotations

import os
import resource
import socket
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from elasticdl_agent.cluster.postgres import require_user
from elasticdl_agent.processes.devices import AUTO, parse_devices
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.scheduling import policy_by_name
from elasticdl_runtime.cluster.paths import default_data_dir
from elasticdl_runtime.hosts import is_address, is_loopback
from elasticdl_runtime.memory_group import MemoryGroups
from elasticdl_runtime.tls import check_certificate

DEFAULT_PORT = 8850
LEAST_THREADS = 100
"""Threads of the services and of one worker, all of them together."""
_LOOPBACK_S = 5.0
DEFAULT_HOST = "127.0.0.1"


def default_slots() -> int:
    """One worker slot for each core that this process may use, at least two."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(2, cores)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Options of ``elasticdl up``.

    Attributes:
        port: port of the API; 0 picks a free one.
        host: address or name that the API listens on; beyond loopback with TLS only.
        tls_cert: the API's certificate with its chain, as PEM; none for no TLS.
        tls_key: its key, as PEM.
        tls_generate: whether to make a certificate for development.
        data_dir: where everything is kept.
        database_url: a Postgres to use rather than the embedded one; empty for the embedded one.
        redis_url: a Redis to use rather than the embedded one; empty for the embedded one.
        slots: worker slots of this machine.
        policy: the scheduler's policy; empty for its default.
        devices: accelerators of this machine: ``auto``, ``off``, or ``gpu=N`` to declare some.
        owner_pid: a process with whose end the cluster ends; 0 for none.
    """

    port: int = DEFAULT_PORT
    host: str = DEFAULT_HOST
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_generate: bool = False
    data_dir: Path = field(default_factory=default_data_dir)
    database_url: str = ""
    redis_url: str = ""
    slots: int = field(default_factory=default_slots)
    policy: str = ""
    devices: str = AUTO
    owner_pid: int = 0

    def check(self) -> None:
        """Refuses what cannot work.

        Raises:
            InvalidInputError: says which option is wrong and what to give, or what this machine lacks.
        """
        if not 0 <= self.port <= 65535:
            raise InvalidInputError(f"--port {self.port} is not a port", fix="give 1 to 65535, or 0 for any free one")
        self._check_host_and_tls()
        if self.policy:
            policy_by_name(self.policy)
        if not 1 <= self.slots <= 1024:
            raise InvalidInputError(
                f"--slots {self.slots} is out of range",
                fix="give the number of workers that may run at once, 1 to 1024",
            )
        try:
            parse_devices(self.devices)
        except InvalidInputError as error:
            raise InvalidInputError(f"--devices: {error.message}", fix=error.fix) from None
        if self.owner_pid < 0 or (self.owner_pid and not psutil.pid_exists(self.owner_pid)):
            raise InvalidInputError(
                f"--owner-pid {self.owner_pid}: there is no such process",
                fix="give the pid of the process that needs the cluster ($$ in a shell)",
            )
        if self.database_url and not self.database_url.startswith(("postgresql://", "postgres://")):
            raise InvalidInputError(
                "--database-url is not the URL of a Postgres",
                fix="write postgresql://user:password@host:5432/database",
            )
        if self.redis_url and not self.redis_url.startswith(("redis://", "rediss://", "unix://")):
            raise InvalidInputError(
                "--redis-url is not the URL of a Redis",
                fix="write redis://user:password@host:6379/0",
            )
        _check_machine(self.host)
        if not self.database_url:
            require_user()

    def _check_host_and_tls(self) -> None:
        if not is_address(self.host):
            _check_resolves(self.host)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidInputError(
                "--tls-cert and --tls-key go together", fix="give both; or --tls-generate for a certificate of ours"
            )
        if self.tls_cert is not None and self.tls_key is not None:
            if self.tls_generate:
                raise InvalidInputError(
                    "--tls-generate makes a certificate, and --tls-cert names one", fix="give one of the two"
                )
            check_certificate(self.tls_cert, self.tls_key)
        elif not self.tls_generate and not is_loopback(self.host):
            raise InvalidInputError(
                f"refusing to listen on {self.host} without TLS: tokens would travel in the open",
                fix="add --tls-cert FILE --tls-key FILE; or --tls-generate for a certificate of ours, whose "
                "authority you give to the clients",
            )


def _check_machine(host: str) -> None:
    """Refuses a machine whose loopback interface is down, and a limit of threads that no cluster fits in."""
    if is_loopback(host):
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.create_server((host, 0), family=family) as server:
                socket.create_connection(server.getsockname()[:2], _LOOPBACK_S).close()
        except OSError as error:
            raise InvalidInputError(
                f"nothing reaches {host} on this machine: {error.strerror or error}",
                fix="bring its loopback interface up (ip link set lo up), or give another address with --host",
            ) from None
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if os.geteuid() != 0 and 0 <= most < LEAST_THREADS:  # the limit is none of root's; -1 is none at all
        raise InvalidInputError(
            f"this user may have {most} processes and threads, and a cluster has some {LEAST_THREADS}",
            fix="raise the limit: ulimit -u 4096",
        )
    together = MemoryGroups().most_threads()
    if together is not None and together < LEAST_THREADS:
        raise InvalidInputError(
            f"this container or control group may have {together} processes and threads, and a cluster has some "
            f"{LEAST_THREADS}",
            fix="raise the limit: docker run --pids-limit=4096",
        )


def _check_resolves(host: str) -> None:
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InvalidInputError(
            f"--host {host!r} is neither an address nor a name that is known here",
            fix="give an address of this machine, its name, or 0.0.0.0 for all of its addresses",
        ) from None
