"""Members of groups as processes of their own, and what the tests have them do."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job.fields import NCCL
from elasticdl_worker.collectives import CollectiveError, GroupPlan
from elasticdl_worker.collectives.endpoint import ON_DEVICE
from elasticdl_worker.collectives.group_listener import open_listener
from elasticdl_worker.collectives.waiting import SilenceLimits

SECRET = b"only for tests, and long enough."
DEADLINE_S = 60.0
START_S = 110.0
"""For a process that imports a framework beside others that do."""
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["torch.distributed", __name__])
"""Members begin with what they import, PyTorch where there is one: each of hundreds would spend a second on that."""


def leaf_of(seed: int, microbatch: int, bucket: int, length: int, dtype: str) -> np.ndarray:
    """What a microbatch contributes: of very different magnitudes, so that the order of additions shows."""
    rng = np.random.default_rng((seed, microbatch, bucket))
    values = rng.standard_normal(length) * 10.0 ** rng.integers(-6, 6, length)
    if seed < 0 or seed % 7 == 3:
        odd = [np.nan, -np.nan, np.inf, -np.inf, 1e-45, -1e-40, 0.0, -0.0, 3e38]
        values = np.where(rng.random(length) < 0.3, rng.choice(odd, length), values)
    with np.errstate(all="ignore"):
        return values.astype(dtype)


class Member:
    """What one process is. Its methods are the commands."""

    def __init__(self, folder: str, host: str, limits: SilenceLimits) -> None:
        self.group_listener = open_listener(Path(folder) if folder else None, host=host, patience=limits)
        self.groups: dict[str, Any] = {}
        self.results: list[np.ndarray] = []
        self.helpers: list[threading.Thread] = []

    def endpoint(self) -> bytes:
        return self.group_listener.endpoint

    def form(self, plan: GroupPlan, rank: int, timeout_s: float = 20.0) -> str:
        group = self.group_listener.form(plan, rank, timeout_s=timeout_s)
        self.groups[plan.channel] = group
        return group.adapter

    def _given(self, values: np.ndarray) -> Any:
        """A leaf as the adapter takes it."""
        return on_device(self.groups[""].adapter, values)

    @staticmethod
    def _taken(total: Any) -> np.ndarray:
        """A sum as an array."""
        return total if isinstance(total, np.ndarray) else total.cpu().numpy().copy()

    def sums(
        self,
        lengths: Sequence[int],
        owners: Sequence[int] | None,
        seed: int,
        dtype: str = "float32",
        repeats: int = 1,
    ) -> list[str]:
        """Hashes of the sums of each repetition; leaves are brought in an order of this member's own."""
        group = self.groups[""]
        found = []
        for repeat in range(repeats):
            pending = group.begin_sum(lengths, owners, dtype=dtype, timeout_s=DEADLINE_S)
            own = [group.rank] if owners is None else [m for m, owner in enumerate(owners) if owner == group.rank]
            todo = [(m, bucket) for m in own for bucket in range(len(lengths))]
            for at in np.random.default_rng((seed, group.rank)).permutation(len(todo)):
                microbatch, bucket = todo[at]
                values = self._given(leaf_of(seed + repeat, microbatch, bucket, lengths[bucket], dtype))
                if at % 2:
                    pending.leaf(microbatch, bucket)[:] = values
                    pending.add(microbatch, bucket)
                else:
                    pending.add(microbatch, bucket, values)
            self.results = [self._taken(one) for one in pending.finish()]
            found.append(digest(self.results))
        return found

    def sum_until_broken(self, length: int) -> tuple[str, list[int]]:
        """Sums again and again; returns how the group broke."""
        group = self.groups[""]
        values = self._given(np.ones(length, np.float32))
        try:
            while True:
                pending = group.begin_sum([length], timeout_s=10 * DEADLINE_S)
                pending.add(group.rank, 0, values)
                result = self._taken(pending.finish()[0])
                assert (result == group.size).all()
        except CollectiveError as error:
            return type(error).__name__, sorted(error.suspects)

    def wait_for_leaf(self, length: int, timeout_s: float) -> tuple[str, list[int]]:
        """Brings its leaf and waits for others that do not."""
        group = self.groups[""]
        try:
            pending = group.begin_sum([length], timeout_s=timeout_s)
            pending.add(group.rank, 0, self._given(np.ones(length, np.float32)))
            pending.finish()
            return "whole", []
        except CollectiveError as error:
            return type(error).__name__, sorted(error.suspects)

    def begin_a_sum(self, length: int, *, bring: bool) -> None:
        """Begins a sum, and brings this member's leaf of ones or not; all know of it afterwards."""
        group = self.groups[""]
        self.pending = group.begin_sum([length], timeout_s=10 * DEADLINE_S)
        if bring:
            self.pending.add(group.rank, 0, self._given(np.ones(length, np.float32)))
        group.gather(b"begun", timeout_s=DEADLINE_S)

    def end_a_sum(self, *, bring: bool) -> tuple[str, list[float]]:
        """Ends it; returns how the group broke, or the different numbers of the sum."""
        group = self.groups[""]
        try:
            if bring:
                length = len(self.pending.leaf(group.rank, 0))
                self.pending.add(group.rank, 0, self._given(np.ones(length, np.float32)))
            return "whole", sorted({float(number) for number in self._taken(self.pending.finish()[0])})
        except CollectiveError as error:
            return type(error).__name__, []

    def abort_beside(self, length: int) -> tuple[str, list[int]]:
        """Waits for others that bring nothing, while another thread of this member aborts."""
        thread = threading.Thread(target=lambda: self.groups[""].abort("the test says so", suspects=[1]))
        thread.start()
        try:
            return self.wait_for_leaf(length, 10 * DEADLINE_S)
        finally:
            thread.join(DEADLINE_S)

    def gather(self, payload: bytes, channel: str = "") -> list[bytes]:
        return self.groups[channel].gather(payload, timeout_s=DEADLINE_S)

    def broadcast(self, payload: bytes | None, source: int) -> bytes:
        return self.groups[""].broadcast(payload, source, timeout_s=DEADLINE_S)

    def stream_beside_sums(self, source: int, target: int, length: int, sums: int) -> tuple[str, list[str]]:
        """One member streams state to another while all sum."""
        group, got = self.groups[""], []
        state = [np.arange(length, dtype=np.float64), b"tail", np.empty(0, np.float32)]

        def stream() -> None:
            if group.rank == source:
                group.send(target, b"three buffers", state)
            elif group.rank == target:
                note, arrays = group.receive(source)
                got.append(note.decode() + digest(arrays))

        thread = threading.Thread(target=stream)
        thread.start()
        hashes = self.sums([1000, 70_000], None, 1, repeats=sums)
        thread.join(DEADLINE_S)
        return (got[0] if got else ""), hashes

    def failure(self) -> tuple[str, list[int]] | None:
        error = self.groups[""].failure
        return None if error is None else (type(error).__name__, sorted(error.suspects))

    def wait_until_it_fails(self) -> tuple[str, list[int]]:
        """Waits, beside a sum under way, until the group has broken; returns how."""
        broken = threading.Event()
        self.groups[""].on_failure(lambda _: broken.set())
        assert broken.wait(DEADLINE_S)
        failure = self.failure()
        assert failure is not None
        return failure

    def refusals(self) -> list[str]:
        """What wrong uses of a sum say; the sum itself is brought to its end."""
        group, ones = self.groups[""], np.ones(10, np.float32)
        pending = group.begin_sum([10])
        found = [
            _refusal(lambda: pending.add(1, 0, self._given(ones))),
            _refusal(lambda: pending.add(0, 0, self._given(ones[1:]))),
            _refusal(lambda: pending.add(0, 0, self._given(ones.astype(np.float64)))),
            _refusal(pending.finish),
            _refusal(lambda: group.begin_sum([10])),
        ]
        pending.add(0, 0, self._given(ones.astype(np.float16)))
        found += [
            _refusal(lambda: pending.add(0, 0, self._given(ones))),
            _refusal(lambda: pending.add(0, 5, self._given(ones))),
            _refusal(lambda: group.begin_sum([10], dtype="int32")),
            _refusal(lambda: group.begin_sum([10], [0, 2])),
        ]
        self.pending = pending
        return found

    def attempt(self, method: str, *arguments: Any, **keywords: Any) -> str:
        """The name of what a method of the group raises."""
        try:
            getattr(self.groups[""], method)(*arguments, **keywords)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def abort_forming(self, plan: GroupPlan, rank: int) -> str:
        """Forms a group that nobody else comes to, while another thread aborts that."""
        thread = threading.Thread(target=self._abort_when_forming)
        thread.start()
        try:
            self.group_listener.form(plan, rank, timeout_s=DEADLINE_S)
        except CollectiveError as error:
            return type(error).__name__
        finally:
            thread.join(DEADLINE_S)
        return ""

    def _abort_when_forming(self) -> None:
        while not self.group_listener._forming:
            threading.Event().wait(0.001)
        self.group_listener.abort("the test says so")

    def keep_a_child(self) -> int:
        """Forks a child that outlives this member, as a user's reader of data may; returns its pid."""
        pid = os.fork()
        if pid == 0:
            signal.pause()
        return pid

    def finish_pending(self) -> float:
        return float(self._taken(self.pending.finish()[0]).sum())

    def kept_results(self) -> str:
        return digest(self.results)

    def leave(self) -> None:
        self.groups[""].close()

    def held(self, most: tuple[int, int] | None = None) -> tuple[int, int]:
        """Descriptors and threads of this process, when what ended has ended.

        Args:
            most: waits until it holds no more than this: views of what ended keep its files mapped until they go.
        """
        for thread in threading.enumerate():
            if thread.name.startswith("collective") and self._is_over(thread):
                thread.join(DEADLINE_S)
        deadline = time.monotonic() + DEADLINE_S / 2
        while True:
            gc.collect()
            found = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
            if most is None or time.monotonic() > deadline or (found[0] <= most[0] and found[1] <= most[1]):
                return found
            threading.Event().wait(0.01)

    def _is_over(self, thread: threading.Thread) -> bool:
        live = [g for g in self.groups.values() if g.failure is None]
        return not any(g._mesh._thread is thread for g in live)

    def close(self) -> None:
        self.group_listener.close()


def on_device(adapter: str, values: np.ndarray) -> Any:
    """A leaf as an adapter takes it: an array, or a tensor on the member's device."""
    if adapter not in ON_DEVICE:
        return values
    import torch

    tensor = torch.from_numpy(np.array(values))
    return tensor.cuda() if adapter == NCCL else tensor


def _refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except InvalidInputError as error:
        return error.message
    return "nothing was refused"


def digest(arrays: Sequence[np.ndarray]) -> str:
    return hashlib.sha256(
        b"|".join(bytes(np.ascontiguousarray(array).data.cast("B")) for array in arrays)
    ).hexdigest()


def _serve(pipe: Any, folder: str, host: str, limits: SilenceLimits, device: int) -> None:
    if device >= 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(device)
    member = Member(folder, host, limits)
    while True:
        try:
            method, arguments, keywords = pipe.recv()
        except EOFError:
            break
        try:
            pipe.send((True, getattr(member, method)(*arguments, **keywords)))
        except Exception as error:
            pipe.send((False, f"{type(error).__name__}: {error}"))
    member.close()


class MemberProcess:
    """One member, as the test sees it."""

    def __init__(self, folder: str, host: str, limits: SilenceLimits, device: int = -1) -> None:
        self.device = device
        self._pipe, other = _FORKS.Pipe()
        self.process = _FORKS.Process(target=_serve, args=(other, folder, host, limits, device), daemon=True)
        self.process.start()
        other.close()
        self._endpoint = b""

    @property
    def endpoint(self) -> bytes:
        if not self._endpoint:
            self.begin("endpoint")
            self._endpoint = self.answer(START_S)
        return self._endpoint

    def begin(self, method: str, *arguments: Any, **keywords: Any) -> None:
        self._pipe.send((method, arguments, keywords))

    def answer(self, deadline_s: float = DEADLINE_S) -> Any:
        assert self._pipe.poll(deadline_s), "the member does not answer"
        worked, value = self._pipe.recv()
        assert worked, value
        return value

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        self.begin(method, *arguments, **keywords)
        return self.answer()

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def stop(self) -> None:
        """Stops it; it does nothing any more when this returns."""
        self.signal(signal.SIGSTOP)
        stopped = psutil.Process(self.process.pid)
        while stopped.status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.join(DEADLINE_S)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(DEADLINE_S)
        self.process.close()


class Crew:
    """Members that form groups of one adapter; those that were killed are replaced.

    Attributes:
        fuses: whether it makes fused sums only.
    """

    def __init__(self, adapter: str, folder: Path, host: str = "", limits: SilenceLimits | None = None) -> None:
        self.fuses = adapter in ON_DEVICE
        self.adapter, self._folder, self._host = adapter, str(folder) if not host else "", host
        self._limits = limits or SilenceLimits()
        self.members: list[MemberProcess] = []
        self.generation = 0

    def start(self, count: int) -> None:
        """Makes sure that there are so many members."""
        alive = [member for member in self.members if member.process.is_alive()]
        for member in self.members:
            if member not in alive:
                member.end()
        self.members = alive
        while len(self.members) < count:
            taken = {member.device for member in self.members}
            device = next(one for one in range(count) if one not in taken) if self.adapter == NCCL else -1
            self.members.append(MemberProcess(self._folder, self._host, self._limits, device))

    def plan(self, members: Sequence[MemberProcess], *, channel: str = "", **changes: Any) -> GroupPlan:
        self.generation += 1
        values = {"secret": SECRET, "channel": channel, "adapter": self.adapter, **changes}
        return GroupPlan(self.generation, [member.endpoint for member in members], **values)

    def form(self, count: int) -> list[MemberProcess]:
        """Forms a group of so many members; returns them by rank."""
        self.start(count)
        members = self.members[:count]
        self.form_of(members)
        return members

    def form_of(self, members: Sequence[MemberProcess]) -> None:
        plan = self.plan(members)
        for rank, member in enumerate(members):
            member.begin("form", plan, rank)
        try:
            assert [member.answer() for member in members] == [self.adapter] * len(members)
        except AssertionError:
            for member in self.members:  # the next test has others
                member.kill()
            raise

    def end(self) -> None:
        for member in self.members:
            member.end()


def each(members: Sequence[MemberProcess], method: str, *arguments: Any, **keywords: Any) -> list[Any]:
    """Has all do the same at once."""
    for member in members:
        member.begin(method, *arguments, **keywords)
    return [member.answer() for member in members]


@contextlib.contextmanager
def crew_of(adapter: str, folder: Path, **settings: Any) -> Iterator[Crew]:
    crew = Crew(adapter, folder, **settings)
    try:
        yield crew
    finally:
        crew.end()
