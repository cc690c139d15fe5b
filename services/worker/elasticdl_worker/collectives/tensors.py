"""Sums of leaves that are tensors on the members' own devices: by NCCL on CUDA devices, by gloo on the CPU.

What carries them is torch's; all else is the same for both, so that tests without a device run what runs with one but
for ``nccl``. Sums are fused: the order of additions is the carrier's. A sum that is under way is looked at from time
to time rather than waited for, so that a member goes on when its group has ended, whatever becomes of the operation;
nothing that is computed later waits for one that hangs.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job.fields import NCCL
from elasticdl_worker.collectives.gloo import join_gloo
from elasticdl_worker.collectives.mesh import Mesh
from elasticdl_worker.collectives.nccl import find_cuda_device, join_nccl, name_of
from elasticdl_worker.collectives.port import (
    CollectiveError,
    CollectiveTimeoutError,
    GroupAbortedError,
    Leaf,
)
from elasticdl_worker.collectives.process_groups import MeshStore, ProcessGroup, dist
from elasticdl_worker.collectives.sums import CarriedSum, OwnLeaves, SumShape, check_leaf

_SOONEST_S, _LATEST_S = 0.00005, 0.001
_LOOK_S, _KNOWN_S = 0.01, 2.0
"""So soon after the group the mesh knows what happened."""


def form_tensors(mesh: Mesh, adapter: str, host: str, timeout_s: float) -> TensorSums:
    """Makes the group, and connects all.

    Args:
        mesh: of the members.
        adapter: its name.
        host: the address of this member that the others reach.
        timeout_s: how long the others are waited for.

    Raises:
        InvalidInputError: there is no device, or two members have the same.
        CollectiveError: that failed.
    """
    device = find_cuda_device() if adapter == NCCL else torch.device("cpu")
    if mesh.size == 1:
        return TensorSums(mesh, None, device)
    store = MeshStore(mesh, timeout_s)
    group: ProcessGroup
    if adapter == NCCL:
        _refuse_shared(mesh, store, name_of(device))
        group = join_nccl(mesh, store, device)
    else:
        group = join_gloo(mesh, store, host, timeout_s)
    try:
        _connect(mesh, group, device, timeout_s)
    except BaseException:
        group.cut()
        group.close(None)
        raise
    return TensorSums(mesh, group, device)


def _refuse_shared(mesh: Mesh, store: MeshStore, name: str) -> None:
    store.set(f"device/{mesh.rank}", name)
    names = [store.get(f"device/{rank}").decode() for rank in range(mesh.size)]
    for rank, one in enumerate(names):
        if (other := names.index(one)) != rank:
            raise InvalidInputError(
                f"ranks {other} and {rank} compute on the same device, {one}: NCCL does not join them",
                fix="give each worker a whole device (--worker_resource_request gpu=1), or use --collective auto",
            )


def _connect(mesh: Mesh, group: ProcessGroup, device: torch.device, timeout_s: float) -> None:
    """Makes a first sum, in a thread of its own: its connections may hang while a lost member is waited for."""
    done, trouble = threading.Event(), list[BaseException]()
    one = torch.ones(1, device=device)

    def sum_ones() -> None:
        try:
            work = group.group.allreduce([one])
            _await(work, mesh, time.monotonic() + timeout_s)
        except BaseException as error:
            trouble.append(error)
        done.set()

    mesh.listen(lambda _: done.set())
    threading.Thread(target=sum_ones, name=f"collective {mesh.generation} connects", daemon=True).start()
    in_time = done.wait(timeout_s)
    mesh.check()
    if trouble or not in_time:
        reason = trouble[0] if trouble else "not all came in time"
        raise CollectiveError(f"the members' devices could not be connected: {reason}") from None
    if float(one) != mesh.size:
        raise CollectiveError(f"a first sum of {mesh.size} ones was {float(one)}")


def _await(work: Any, mesh: Mesh, until: float) -> None:
    """Waits for a work as long as the group lives.

    Raises:
        CollectiveError: the group has ended.
        TimeoutError: it took too long.
    """
    pause = _SOONEST_S
    while not work.is_completed():
        mesh.check()
        if time.monotonic() >= until:
            raise TimeoutError("timed out")
        time.sleep(pause)
        pause = min(2 * pause, _LATEST_S)
    mesh.check()  # what was aborted is complete, too
    work.wait()


class TensorSums:
    """The sums of one group, of leaves on a device.

    Args:
        mesh: of the group.
        group: torch's; None for a member that is alone.
        device: where leaves are.
    """

    def __init__(self, mesh: Mesh, group: ProcessGroup | None, device: torch.device) -> None:
        self._mesh, self._group, self._device = mesh, group, device
        self._lock = threading.Lock()
        self._shape: SumShape | None = None
        self._memory: list[torch.Tensor] | None = None
        self._last: _TensorSum | None = None
        mesh.listen(lambda error: None if group is None else group.cut())
        mesh.at_end(self._close)

    def begin(self, operation: int, shape: SumShape, timeout_s: float) -> CarriedSum:
        """Begins a sum; the memory is that of the sum before, if it had the same shape."""
        if not shape.fused:
            raise InvalidInputError(
                "sums on devices are fused", fix="give no owners, or use an adapter of the host's memory"
            )
        memory = self._memory
        if memory is None or shape != self._shape:
            dtype = getattr(torch, shape.dtype)
            memory = [torch.zeros(length, dtype=dtype, device=self._device) for length in shape.lengths]
            self._memory, self._shape = memory, shape
        with self._lock:
            group = None if self._group is None else self._group.group
            self._last = _TensorSum(self._mesh, group, memory, operation, shape, timeout_s)
            return self._last

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


class _TensorSum(CarriedSum):
    """A sum whose operations are issued in the order of the buckets, which is the same at all members."""

    def __init__(
        self,
        mesh: Mesh,
        group: Any,
        memory: list[Any],
        operation: int,
        shape: SumShape,
        timeout_s: float,
    ) -> None:
        leaves = OwnLeaves(shape, mesh.rank, [[home] for home in memory], {}, _write)
        super().__init__(mesh, leaves, len(shape.lengths))
        self._group, self._memory, self._shape = group, memory, shape
        self._operation, self._timeout_s = operation, timeout_s
        self._whole: set[int] = set()
        self._issued = 0
        self._works: list[Any] = []

    def _bring(self, bucket: int) -> None:
        self._whole.add(bucket)
        while self._issued in self._whole:
            alone = self._mesh.size == 1 or not self._shape.lengths[self._issued]
            self._works.append(None if alone else self._issue(self._memory[self._issued]))
            self._issued += 1
        if self._group is None:  # the group ended meanwhile
            self._works = []

    def _issue(self, tensor: torch.Tensor) -> Any:
        """Begins to sum a tensor in place; returns torch's work."""
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=self._timeout_s)
        with self._explained():
            group = self._group
            if group is None:
                self._mesh.check()
            return group.allreduce([tensor], options)

    def _collect(self) -> list[Leaf]:
        self._mesh.brought = self._operation
        works, until = self._works, time.monotonic() + self._timeout_s
        self._mesh.check()  # only now: a group that ends lets go of the works last
        with self._explained():
            for work in works:
                if work is not None:
                    _await(work, self._mesh, until)
        return list(self._memory)

    def _protect(self, results: list[Leaf]) -> None:
        """No tensor is read-only: who writes to one spoils its own copy of the sum alone."""

    def let_go(self) -> None:
        """Drops the group, which keeps its threads and sockets as long as anybody has it; on any thread."""
        self._group = None
        self._works = []

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


def _write(memory: Any, values: Any) -> None:
    fits = values.dtype.is_floating_point and values.element_size() <= memory.element_size()
    names = (str(values.dtype).removeprefix("torch."), str(memory.dtype).removeprefix("torch."))
    check_leaf(tuple(values.shape), tuple(memory.shape), None if fits else names)
    memory.copy_(values)
