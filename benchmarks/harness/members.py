"""Members of groups as processes of their own, which do what a benchmark tells them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl_runtime.memory import keep_large_blocks
from elasticdl_worker.collectives import Collective, CollectiveError, GroupPlan, open_listener

_SECRET = b"of a benchmark, and known to all"
_DEADLINE_S = 120.0


class BenchMember:
    """The commands of one process."""

    def __init__(self, folder: str) -> None:
        keep_large_blocks()
        # Without a folder it is reached by TCP alone, as members of other machines are.
        self.group_listener = open_listener(Path(folder)) if folder else open_listener(None, host="127.0.0.1")
        self.groups: dict[str, Collective] = {}

    def endpoint(self) -> bytes:
        return self.group_listener.endpoint

    def form(self, plan: GroupPlan, rank: int) -> None:
        self.groups[plan.channel] = self.group_listener.form(plan, rank, timeout_s=60.0)

    def join_plain(self, store: str, rank: int, size: int) -> None:
        """Joins the process group of ``torch.distributed``, as its users do."""
        import torch
        import torch.distributed

        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)

    def time_plain(self, length: int, repeats: int) -> float:
        """Seconds of one allreduce of torch's; the one before makes memory and connections ready."""
        import torch
        import torch.distributed

        tensor = torch.ones(length)
        torch.distributed.all_reduce(tensor)
        torch.distributed.barrier()
        started = time.perf_counter()
        for _ in range(repeats):
            torch.distributed.all_reduce(tensor)
        return (time.perf_counter() - started) / repeats

    def time_sum(self, channel: str, length: int, repeats: int, way: str) -> float:
        """Seconds of one sum: of a leaf in place, of one that is copied, or of two leaves in the fixed tree.

        As on the other side, what is summed was just written, and by the connections that carry it now.
        """
        group = self.groups[channel]
        copied = np.empty(length, np.float32) if way == "copied" else None
        owners = [m // 2 for m in range(2 * group.size)] if way == "tree" else None
        own = [2 * group.rank, 2 * group.rank + 1] if way == "tree" else [group.rank]

        def sum_once(fill: bool = False) -> None:
            pending = group.begin_sum([length], owners)
            for microbatch in own:
                leaf = copied if copied is not None else pending.leaf(microbatch, 0)
                if fill:
                    leaf.fill(1.0)
                pending.add(microbatch, 0, copied)
            pending.finish()

        sum_once(fill=True)
        group.gather(b"")
        started = time.perf_counter()
        for _ in range(repeats):
            sum_once()
        return (time.perf_counter() - started) / repeats

    def sum_until_broken(self, length: int) -> tuple[float, list[int]]:
        """Sums again and again; when the group broke, and who is suspected."""
        group = self.groups[""]
        try:
            while True:
                self._sum(group, length)
        except CollectiveError as error:
            return time.monotonic(), sorted(error.suspects)

    def go_on(self, plan: GroupPlan, rank: int, length: int) -> float:
        """Forms the next generation and sums once; when that was whole."""
        self.form(plan, rank)
        self._sum(self.groups[""], length)
        return time.monotonic()

    def _sum(self, group: Collective, length: int) -> None:
        pending = group.begin_sum([length])
        pending.leaf(group.rank, 0)
        pending.add(group.rank, 0)
        pending.finish()

    def close(self) -> None:
        self.group_listener.close()


class BenchProcess:
    """A member, as the benchmark sees it."""

    def __init__(self, folder: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, folder), daemon=True)
        self.process.start()
        other.close()

    def begin(self, method: str, *arguments: Any) -> None:
        self._pipe.send((method, arguments))

    def answer(self) -> Any:
        if not self._pipe.poll(_DEADLINE_S):
            raise TimeoutError("a member does not answer")
        worked, value = self._pipe.recv()
        if not worked:
            raise RuntimeError(value)
        return value

    def call(self, method: str, *arguments: Any) -> Any:
        self.begin(method, *arguments)
        return self.answer()

    def send_signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.join(_DEADLINE_S)
        self._pipe.close()


class BenchGroup:
    """The members of a benchmark, with the generations that they form.

    Args:
        folder: where their sockets lie; empty for members that are reached by TCP alone.
        size: how many there are.
    """

    def __init__(self, folder: str, size: int) -> None:
        self._folder = folder
        self._generation = 0
        self.members: list[BenchProcess] = []
        self.fill(size)

    def fill(self, size: int) -> None:
        """Replaces those that ended."""
        ended = [member for member in self.members if not member.process.is_alive()]
        for member in ended:
            member.end()
        self.members = [member for member in self.members if member not in ended]
        self.members += [BenchProcess(self._folder) for _ in range(size - len(self.members))]

    def plan(self, members: Sequence[BenchProcess], adapter: str, channel: str = "") -> GroupPlan:
        self._generation += 1
        endpoints = [member.call("endpoint") for member in members]
        return GroupPlan(self._generation, endpoints, _SECRET, channel, adapter)

    def form(self, adapter: str, channel: str = "") -> None:
        plan = self.plan(self.members, adapter, channel)
        for rank, member in enumerate(self.members):
            member.begin("form", plan, rank)
        for member in self.members:
            member.answer()

    def each(self, method: str, *arguments: Any) -> list[Any]:
        for member in self.members:
            member.begin(method, *arguments)
        return [member.answer() for member in self.members]

    def end(self) -> None:
        for member in self.members:
            member.end()


@contextlib.contextmanager
def bench_group(size: int, *, by_tcp: bool = False) -> Iterator[BenchGroup]:
    """Starts the members of a group, which are reached by TCP alone if asked for."""
    with tempfile.TemporaryDirectory(prefix="edl-bench-", dir="/tmp") as folder:
        group = BenchGroup("" if by_tcp else folder, size)
        try:
            yield group
        finally:
            group.end()


def _serve(pipe: Any, folder: str) -> None:
    member = BenchMember(folder)
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, getattr(member, method)(*arguments)))
        except Exception as error:
            pipe.send((False, f"{type(error).__name__}: {error}"))
