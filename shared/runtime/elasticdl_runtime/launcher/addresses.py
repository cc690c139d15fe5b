"""Addresses of the agent and of jobs' processes, which follow from role and index.

These are unix sockets, or, if TLS is asked for, ports on loopback. There each process has an address of its own out
of 127.0.0.0/8 (Linux answers to all of it), drawn from who it is: with the port one of 10^11 places, so that nobody
has to be asked where a process listens, as with sockets. Who sits in the place of another has no certificate for it.

On Kubernetes each process that others connect to has a Service, whose name follows from who it is; the agent is one
whose host ends in ``.svc``.
"""

from __future__ import annotations

import enum
import hashlib
import re
from pathlib import Path

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.ports.launcher import Role
from elasticdl_runtime.rpc.credentials import TlsAddress
from elasticdl_runtime.tokens import certificate_name

AGENT_NAME, NODE_NAME = "agent.elasticdl", "node.elasticdl"
"""For whom the certificates are of the agent, and of those who hold the node token."""
PROCESS_PORT = 7000
"""Where all processes of jobs listen on Kubernetes, where each has an address of its own."""
_SERVICE_HOST = re.compile(r"[^.:]+(?P<rest>\.[^.:]+\.svc(\.[^:]+)?):[0-9]+")
_LABEL = 63
_FIRST_PORT, _PORTS = 20_000, 10_000
"""Below those that systems give to clients."""


class RpcTransport(enum.StrEnum):
    """The transport of the agent and of jobs' processes."""

    UNIX = "unix"
    TLS = "tls"


def agent_address(run_dir: Path, transport: RpcTransport = RpcTransport.UNIX) -> str:
    """The agent's gRPC address."""
    if transport is RpcTransport.UNIX:
        return f"unix:{run_dir}/agent.sock"
    return str(TlsAddress(AGENT_NAME, _place(str(run_dir))))


def node_credentials(run_dir: Path) -> Path:
    """The credentials of those who hold the node token, which the agent writes."""
    return run_dir / "node.pem"


def process_address(agent: str, job_id: str, role: Role, index: int) -> str:
    """The gRPC address of a process of a job.

    Args:
        agent: address of the agent that launched it.
        job_id: its job.
        role: its role.
        index: which of that role.

    Raises:
        InvalidInputError: that is no address of an agent.
    """
    if agent.startswith("unix:/"):
        return f"{agent.rpartition('/')[0]}/{job_id}/{role}-{index}.sock"
    found = TlsAddress.parse(agent)
    if found is None:
        raise InvalidInputError(
            f"{agent!r} is not the address of an agent",
            fix="use unix:<run directory>/agent.sock, or tls://<name>@<host>:<port>",
        )
    name = certificate_name(job_id, role, index)
    if cluster := _SERVICE_HOST.fullmatch(found.place):
        return str(TlsAddress(name, f"{service_name(job_id, role, index)}{cluster['rest']}:{PROCESS_PORT}"))
    return str(TlsAddress(name, _place(f"{agent} {name}")))


def service_name(job_id: str, role: Role, index: int) -> str:
    """The name of the Service of a process: it begins with a letter and is no longer than a label of DNS."""
    name = f"{role}-{index}-{job_id}"
    if len(name) <= _LABEL:
        return name
    return f"{name[: _LABEL - 9].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _place(who: str) -> str:
    number = int.from_bytes(hashlib.sha256(who.encode()).digest()[:8])
    parts = []
    for base, values in ((1, 254), (0, 256), (1, 254), (_FIRST_PORT, _PORTS)):
        number, drawn = divmod(number, values)
        parts.append(base + drawn)
    return f"127.{parts[0]}.{parts[1]}.{parts[2]}:{parts[3]}"
