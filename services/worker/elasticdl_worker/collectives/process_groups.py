"""Process groups of torch's that nobody else sees, and a store for them over the mesh.

A group is made outside torch's global state, one for each generation, with a store over the mesh: no rank's store is
lost with the rank. What members need besides sums goes over the mesh, which also notices deaths: when it fails, what
hangs in the group is ended from outside.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch._C._distributed_c10d

from elasticdl_worker.collectives.links import Kind
from elasticdl_worker.collectives.mesh import Mesh
from elasticdl_worker.collectives.port import CollectiveError

dist: Any = torch._C._distributed_c10d


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
