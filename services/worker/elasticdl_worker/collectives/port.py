"""The port of the collectives: what the members of one group can do together, whatever carries it.

A group is one generation of members, ranked 0 to ``size - 1``. It never changes: when a member is lost, every
operation of every survivor fails with a ``CollectiveError`` within milliseconds, and the survivors form the next
generation in the same process. Operations block their caller and release the GIL; ``abort`` and ``close`` may be
called from any thread. All members make the same operations in the same order; ``send`` and ``receive`` concern two
members only, and may run in another thread beside the others.

What joins members is the ``GroupListener``: one for each process, for all generations it will be in. Its ``endpoint``
is published through the master when the member joins, and the master hands all members of a generation the same
``GroupPlan``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import ElasticDLError

Buffer = NDArray[Any] | bytes | bytearray | memoryview
Leaf = NDArray[np.floating[Any]]
"""An array in the host's memory; with an adapter of devices, a tensor on the member's device."""


class CollectiveError(ElasticDLError):
    """The group can do nothing more; form the next generation.

    Args:
        message: what happened.
        suspects: the ranks that seem to be the cause, as far as this member or one that told it knows; none when the
            group was only given up.
        fix: what the reader can do.
    """

    code = "unavailable"

    def __init__(self, message: str, *, suspects: Sequence[int] = (), fix: str = "") -> None:
        super().__init__(message, fix=fix or "the survivors form the next generation by themselves")
        self.suspects = frozenset(suspects)


class MemberLostError(CollectiveError):
    """The suspects' connections ended, they fell silent, or they did not come when the group was formed."""


class CollectiveTimeoutError(CollectiveError):
    """An operation's time passed although all members live: the suspects have not brought their part."""


class GroupAbortedError(CollectiveError):
    """Somebody gave the group up with ``abort``, here or at another member, or left it with ``close``."""


class CorruptStateError(CollectiveError):
    """The received state does not have the checksum that was sent with it; the sender is suspected."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The plan that all members of a generation must agree on before they form it: the master hands it to each.

    Attributes:
        generation: larger than that of any earlier group of the same channel.
        endpoints: of each member by rank, as its ``GroupListener.endpoint`` said.
        secret: at least 16 bytes, the same for all members of a job and known to nobody else; the master draws it.
            Who does not know it cannot enter a group.
        channel: groups of different channels live side by side: ``""`` is the training group; a pair that only moves
            state to a newcomer takes a name of its own.
        adapter: ``auto``, or the name of an adapter: ``shared_memory`` and ``sockets`` for tests and
            measurements; ``nccl``, whose leaves and sums are tensors on the members' devices (``gloo_tensors`` where
            the CPU is the device), and whose sums are fused.
    """

    generation: int
    endpoints: Sequence[bytes]
    secret: bytes
    channel: str = ""
    adapter: str = "auto"


class PendingSum(Protocol):
    """A sum under way."""

    def leaf(self, microbatch: int, bucket: int) -> Leaf:
        """Memory for a leaf that this member brings: write it in place and call ``add`` without values.

        That saves a copy. It may hold anything before it is written.
        """
        ...

    def add(self, microbatch: int, bucket: int, values: Leaf | None = None) -> None:
        """Brings one leaf, at once or as soon as it was computed; buckets are summed while others are still computed.

        Args:
            microbatch: one that this member owns; its leaves of one bucket may come in any order.
            bucket: which buffer.
            values: flat, of the bucket's length; copied, and may be reused at once. A narrower float (bfloat16,
                float16) is widened, which is exact. None if the memory that ``leaf`` gave was written.

        Raises:
            InvalidInputError: not this member's microbatch, brought before, of another length, or of a wider dtype.
            CollectiveError: the group is broken.
        """
        ...

    def finish(self) -> list[Leaf]:
        """Waits for the sums: one array for each bucket, the same bits at all members.

        They are read-only views (tensors on a device are not to be written), valid until this member's next
        ``begin_sum`` of the same group and, if the group is given up, for as long as they are referenced.

        Raises:
            InvalidInputError: a leaf of this member is missing.
            CollectiveError: the group is broken, or the time-out passed. The sum may be whole at other members.
        """
        ...


class Collective(Protocol):
    """One group of one generation."""

    @property
    def generation(self) -> int:
        """Of the plan."""
        ...

    @property
    def rank(self) -> int:
        """This member's."""
        ...

    @property
    def size(self) -> int:
        """The number of members."""
        ...

    @property
    def adapter(self) -> str:
        """The adapter that carries the sums, e.g. ``shared_memory``."""
        ...

    @property
    def failure(self) -> CollectiveError | None:
        """Why the group can do nothing more; None while it can."""
        ...

    def on_failure(self, tell: Callable[[CollectiveError], None]) -> None:
        """Has a function called once, from another thread, when the group breaks; at once if it is broken."""
        ...

    def begin_sum(
        self,
        lengths: Sequence[int],
        owners: Sequence[int] | None = None,
        *,
        dtype: str = "float32",
        timeout_s: float = 600.0,
    ) -> PendingSum:
        """Begins to sum buckets over microbatches. One sum is under way at a time.

        The leaves of a bucket are added in a fixed binary tree over the microbatches (``tree`` says which), so the
        sum has the same bits whoever owns what.

        Args:
            lengths: elements of each bucket, the same at all members; a bucket may be empty.
            owners: by microbatch, the rank that brings its leaf, the same at all members. None for a fused sum: each
                member brings one leaf, whose microbatch is its rank, and the order of additions is the adapter's; all
                members still get the same bits.
            dtype: ``float32`` or ``float64``: of leaves and sums.
            timeout_s: how long ``finish`` waits for members that live but bring nothing. A member that dies, stops or
                is cut off is noticed much earlier, whatever this is.

        Raises:
            InvalidInputError: an owner is no member, or a sum is under way.
            CollectiveError: the group is broken.
        """
        ...

    def gather(self, payload: bytes, *, timeout_s: float = 60.0) -> list[bytes]:
        """Exchanges small messages: all members get what each gave, by rank. Also a barrier.

        Raises:
            CollectiveError: the group is broken, or the time-out passed.
        """
        ...

    def broadcast(self, payload: bytes | None, source: int, *, timeout_s: float = 60.0) -> bytes:
        """Hands all members what one gives.

        Args:
            payload: at the source, what is handed on; ignored elsewhere.
            source: its rank.
            timeout_s: how long members that live may take.

        Raises:
            CollectiveError: the group is broken, or the time-out passed.
        """
        ...

    def send(self, target: int, note: bytes, buffers: Sequence[Buffer], *, timeout_s: float = 600.0) -> None:
        """Streams state of any size to a member that calls ``receive``, in pieces that let sums pass between them.

        Args:
            target: its rank.
            note: says what the buffers are (names, dtypes, shapes): opaque here.
            buffers: contiguous; they must not change until this returns, which is when the target has checked all.
            timeout_s: how long a target that lives may take.

        Raises:
            CollectiveError: the group is broken, or the time-out passed.
        """
        ...

    def receive(self, source: int, *, timeout_s: float = 600.0) -> tuple[bytes, list[NDArray[np.uint8]]]:
        """Receives what ``send`` streams: the note, and the buffers' bytes, each with its checksum compared.

        Raises:
            CorruptStateError: a checksum differs.
            CollectiveError: the group is broken, or the time-out passed.
        """
        ...

    def abort(self, reason: str, *, suspects: Sequence[int] = ()) -> None:
        """Gives the group up at all members: whoever is blocked in an operation is freed within milliseconds.

        Does nothing if the group is broken already. May be called from any thread. It is told before the connections
        end, so that the others get GroupAbortedError, also when this member dies right after it. Of several causes
        each member keeps the first that it learns of; who was not told in time (it is stopped, or takes nothing of
        what is written to it) finds the connection's end: MemberLostError.
        """
        ...

    def close(self) -> None:
        """Leaves the group and frees all it holds; the others' operations that still need this member fail.

        May be called again, and from any thread.
        """
        ...


class GroupListener(Protocol):
    """A listener that other members find this process by, and that forms groups with them."""

    @property
    def endpoint(self) -> bytes:
        """Says where and how this member is reached: opaque, below 1 KiB, the same for the life of the process."""
        ...

    def form(self, plan: GroupPlan, rank: int, *, timeout_s: float = 5.0) -> Collective:
        """Forms a group with the other members, who do the same at about the same time.

        An older group of the same channel that is still there is closed first.

        Args:
            plan: the same for all members.
            rank: which of the plan's endpoints is this member.
            timeout_s: for how long the others are waited for.

        Raises:
            InvalidInputError: the plan cannot be: see the message.
            MemberLostError: some did not come; they are the suspects.
            GroupAbortedError: ``abort`` was called meanwhile, or a newer generation is being formed.
        """
        ...

    def abort(self, reason: str, *, channel: str = "") -> None:
        """Ends a ``form`` that is under way, and aborts the channel's group if there is one. From any thread."""
        ...

    def close(self) -> None:
        """Closes all groups and frees all."""
        ...
