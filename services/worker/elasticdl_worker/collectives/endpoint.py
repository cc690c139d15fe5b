"""The published endpoint of a member, and the adapter that a group chooses by it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job.fields import NCCL

SHARED_MEMORY, SOCKETS = "shared_memory", "sockets"
GLOO_TENSORS = "gloo_tensors"
ON_DEVICE = (GLOO_TENSORS, NCCL)
"""Those whose leaves are tensors on the members' devices; for the first the CPU is the device."""
ADAPTERS = (SHARED_MEMORY, SOCKETS, *ON_DEVICE)


@dataclass(frozen=True, slots=True)
class MemberEndpoint:
    """The addresses of a member, and how it is reached.

    Attributes:
        machine: equal for members that see each other's files in the same places, on one running kernel.
        pid: its process.
        pids: the namespace that the number belongs to.
        unix: path of its unix socket; empty if it has none.
        tcp: ``host:port``; empty if it does not listen there.
        name: that its certificate bears; empty if it speaks without TLS, on loopback or in a private network.
    """

    machine: str
    pid: int
    pids: str
    unix: str
    tcp: str
    name: str

    @classmethod
    def here(cls, unix: str, tcp: str, name: str) -> MemberEndpoint:
        """Of this process."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return cls(f"{boot}/{_namespace('mnt')}", os.getpid(), _namespace("pid"), unix, tcp, name)

    def encode(self) -> bytes:
        """As it is published."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, published: bytes) -> MemberEndpoint:
        """Reads what a member published.

        Raises:
            InvalidInputError: it is no endpoint.
        """
        try:
            data = json.loads(published)
            return cls(
                str(data["machine"]),
                int(data["pid"]),
                str(data["pids"]),
                str(data["unix"]),
                str(data["tcp"]),
                str(data["name"]),
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InvalidInputError(
                "a member's endpoint cannot be read", fix="hand on what its GroupListener.endpoint says, unchanged"
            ) from None

    def shares_machine(self, other: MemberEndpoint) -> bool:
        """Whether the two reach each other by their unix sockets."""
        return bool(self.machine == other.machine and self.unix and other.unix)

    def is_running(self, seen_from: MemberEndpoint) -> bool:
        """Whether its process can be seen to run: not stopped, not ended, and not out of sight."""
        if self.machine != seen_from.machine or self.pids != seen_from.pids:
            return False
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return False
        return state not in "TtZXx"


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """The adapter that carries a group's sums."""

    name: str
    reason: str


def choose_adapter(endpoints: Sequence[MemberEndpoint], wanted: str = "auto") -> AdapterChoice:
    """Chooses; all members come to the same result, since all know the same.

    Those of PyTorch are only taken where they were asked for: they encrypt nothing and ask nobody who he is.

    Args:
        endpoints: of all members.
        wanted: ``auto`` or an adapter's name.

    Raises:
        InvalidInputError: what is wanted does not exist, or cannot join these members.
    """
    together = all(endpoints[0].shares_machine(other) for other in endpoints)
    if wanted == "auto":
        if together:
            return AdapterChoice(SHARED_MEMORY, "all members are on one machine")
        return AdapterChoice(SOCKETS, "members are on several machines")
    if wanted not in ADAPTERS:
        raise InvalidInputError(
            f"there is no adapter {wanted!r} for collectives", fix=f"use auto or one of {', '.join(ADAPTERS)}"
        )
    if wanted == SHARED_MEMORY and not together:
        raise InvalidInputError(
            "members that are not on one machine share no memory", fix="use auto or sockets, or move the members"
        )
    if wanted in ON_DEVICE and not together and any(other.name for other in endpoints):
        raise InvalidInputError(
            f"{wanted} sends everything in the clear", fix="use auto or sockets, or say that the network is private"
        )
    return AdapterChoice(wanted, "it was asked for")


def _namespace(kind: str) -> str:
    try:
        return str(Path(f"/proc/self/ns/{kind}").readlink())
    except OSError:
        return "unknown"
