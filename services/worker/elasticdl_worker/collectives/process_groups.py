"""Process groups of torch's that nobody else sees: what sums by them have in common.

A group is made outside torch's global state, one for each generation, with a store over the mesh: no rank's store is
lost with the rank. What members need besides sums goes over the mesh, which also notices deaths: when it fails, what
hangs in the group is ended from outside.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch._C._distributed_c10d

from elasticdl_worker.collectives.links import Kind
from elasticdl_worker.collectives.mesh import Mesh
from elasticdl_worker.collectives.port import CollectiveError, CollectiveTimeoutError, GroupAbortedError
from elasticdl_worker.collectives.sums import CarriedSum, OwnLeaves, SumShape

dist: Any = torch._C._distributed_c10d
_LOOK_S, _KNOWN_S = 0.01, 2.0
"""So soon after the group the mesh knows what happened."""


class ProcessGroup(Protocol):
    """A group of torch's, and how it ends."""

    @property
    def group(self) -> Any:
        """Torch's own object; None once it was closed."""
        ...

    def cut(self) -> None:
        """Ends what hangs in it, at once or soon; does not wait. On any thread, and more than once."""
        ...

    def close(self, kept: object) -> None:
        """Drops it.

        Args:
            kept: the memory of its sums, which nothing else may take before all of them have ended.
        """
        ...


class MeshStore(dist.Store):  # type: ignore[misc]
    """A store of which each member of a mesh has a copy; what one sets, all get.

    Args:
        mesh: of the group.
        timeout_s: how long a key is waited for.
    """

    def __init__(self, mesh: Mesh, timeout_s: float) -> None:
        super().__init__()
        self._mesh = mesh
        self._timeout_s = timeout_s
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._count = 0
        mesh.post(partial(mesh.handle, Kind.STORE, self._take))
        mesh.listen(self._wake)

    def set(self, key: str, value: Any) -> None:
        """Gives a key a value at all members."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        with self._changed:
            self._values[key] = data
            self._count += 1
            number = self._count
            self._changed.notify_all()
        name = key.encode()
        message = len(name).to_bytes(4, "little") + name + data
        for rank in range(self._mesh.size):
            if rank != self._mesh.rank:
                self._mesh.post(partial(self._mesh.send, rank, (Kind.STORE, number, 0, 0), message))

    def get(self, key: str) -> bytes:
        """The value of a key, once it has one."""
        self.wait([key])
        return self._values[key]

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        """Sets several."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Gets several."""
        return [self.get(key) for key in keys]

    def has_extended_api(self) -> bool:
        """Whether ``multi_get`` and its kin are there: ``append`` is not."""
        return False

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys have values."""
        with self._changed:
            return all(key in self._values for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until all keys have values.

        Raises:
            CollectiveError: the group is broken.
            TimeoutError: they come too late.
        """
        seconds = self._timeout_s if timeout is None else min(self._timeout_s, timeout.total_seconds())
        with self._changed:
            there = self._changed.wait_for(
                lambda: self._mesh.failure is not None or all(key in self._values for key in keys), seconds
            )
        self._mesh.check()
        if not there:
            raise TimeoutError(f"no member has set {', '.join(keys)}")

    def _take(self, rank: int, tag: object, payload: memoryview) -> None:
        message = bytes(payload)
        end = 4 + int.from_bytes(message[:4], "little")
        with self._changed:
            self._values[message[4:end].decode()] = message[end:]
            self._changed.notify_all()

    def _wake(self, error: CollectiveError) -> None:
        with self._changed:
            self._changed.notify_all()


class GroupSums:
    """The sums of one group; its heirs say where leaves are and how they are added.

    Args:
        mesh: of the group.
        group: torch's; None for a member that is alone.
    """

    def __init__(self, mesh: Mesh, group: ProcessGroup | None) -> None:
        self._mesh = mesh
        self._group = group
        self._lock = threading.Lock()
        self._shape: SumShape | None = None
        self._memory: Any = None
        self._last: GroupSum | None = None
        mesh.listen(lambda error: None if group is None else group.cut())
        mesh.at_end(self._close)

    def begin(self, operation: int, shape: SumShape, timeout_s: float) -> CarriedSum:
        """Begins a sum."""
        memory = self._memory
        if memory is None or shape != self._shape:
            memory = self._memory = self._make_memory(shape)
            self._shape = shape
        with self._lock:
            group = None if self._group is None else self._group.group
            self._last = self._make_sum(group, memory, operation, shape, timeout_s)
            return self._last

    @abstractmethod
    def _make_memory(self, shape: SumShape) -> Any:
        """The memory for sums of a shape, kept for the next one of that shape."""

    @abstractmethod
    def _make_sum(self, group: Any, memory: Any, operation: int, shape: SumShape, timeout_s: float) -> GroupSum:
        """A sum that begins."""

    def _close(self) -> None:
        with self._lock:
            group, self._group = self._group, None
            last, self._last = self._last, None
            memory, self._memory = self._memory, None
        # Outside the lock: what goes with the last reference waits for the group's threads.
        if group is not None:
            group.close(memory)
        if last is not None:
            last.let_go()


class GroupSum(CarriedSum):
    """A sum whose operations are issued in the order of the buckets, which is the same at all members.

    Args:
        mesh: of the group.
        group: torch's; None for a member that is alone.
        leaves: this member's.
        operation: the number of the sum.
        shape: what is summed.
        timeout_s: how long others that live are waited for.
    """

    def __init__(
        self, mesh: Mesh, group: Any, leaves: OwnLeaves, operation: int, shape: SumShape, timeout_s: float
    ) -> None:
        super().__init__(mesh, leaves, len(shape.lengths))
        self._group, self._shape = group, shape
        self._operation = operation
        self._timeout_s = timeout_s
        self._whole: set[int] = set()
        self._issued = 0
        self._works: list[Any] = []

    def _bring(self, bucket: int) -> None:
        self._whole.add(bucket)
        while self._issued in self._whole:
            empty = not self._shape.lengths[self._issued]
            self._works.append(None if empty else self._explained_issue(self._issued))
            self._issued += 1
        if self._group is None:  # the group ended meanwhile
            self._works = []

    def _explained_issue(self, bucket: int) -> Any:
        with self._explained():
            return self._issue(bucket)

    @abstractmethod
    def _issue(self, bucket: int) -> Any:
        """Begins to sum a bucket that has numbers; returns torch's work."""

    def _allreduce(self, tensor: torch.Tensor) -> Any:
        """Sums a tensor in place."""
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=self._timeout_s)
        return self._live().allreduce([tensor], options)

    def let_go(self) -> None:
        """Drops the group, which keeps its threads and sockets as long as anybody has it; on any thread."""
        self._group = None
        self._works = []

    def _live(self) -> Any:
        """The group, as long as it lives; raises what ended it."""
        group = self._group
        if group is None:
            self._mesh.check()
        return group

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Says what went wrong in the group as the mesh sees it, which may take a moment longer to notice."""
        try:
            yield
        except (RuntimeError, ValueError, TimeoutError) as error:
            slow = isinstance(error, TimeoutError) or "imed out" in str(error)
            if not slow:
                self._await_reason()
            self._mesh.check()
            if self._mesh.departed and not slow:
                self._mesh.fail(GroupAbortedError(f"rank {self._mesh.departed[0]} has left the group"))
            # The group does not say who kept it waiting; the beats do.
            owing = self._mesh.behind(self._operation)
            kind = CollectiveTimeoutError if slow else CollectiveError
            self._mesh.fail(kind(f"a sum failed: {error}", suspects=owing))
            self._mesh.check()

    def _await_reason(self) -> None:
        broken = threading.Event()
        self._mesh.listen(lambda _: broken.set())
        end = time.monotonic() + _KNOWN_S
        while not broken.wait(_LOOK_S) and not self._mesh.departed and time.monotonic() < end:
            pass
