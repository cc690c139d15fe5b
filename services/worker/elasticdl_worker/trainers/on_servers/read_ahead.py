"""Reads ahead: the next minibatch is read, parsed and its parameters pulled while the present one is computed.

One thread leases tasks and reads them; the trainer takes what it yields. How far the pulls run ahead is bounded, and
with it how old the parameters of a minibatch can be.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import structlog

from elasticdl_core.task import TaskType
from elasticdl_runtime.telemetry import work
from elasticdl_runtime.telemetry.spans import traced
from elasticdl_worker.bursts import in_bursts
from elasticdl_worker.master.client import LeasedTask
from elasticdl_worker.parameters import PulledParameters
from elasticdl_worker.trainers.engine import NoMoreTasks, OtherTask, ReadTask, TaskItem, UnreadableTask
from elasticdl_worker.trainers.framework import Lookups, MinibatchSource
from elasticdl_worker.trainers.minibatch import Minibatch

_POLL_S = 0.1
_PATIENCE_S = 60.0
"""For how long a reader may be in the user's code, or in a call, when it is to stop."""
_log = structlog.get_logger(__name__)


class Pull(Protocol):
    """Parameters on their way."""

    def result(self) -> PulledParameters | None:
        """Waits for them; None if they went along with a push after the job's last update."""


@dataclass
class TrainingStep:
    """One or more training minibatches of a task, with one pull and one push for all of them.

    Attributes:
        lease: the task that they belong to.
        batches: the records of each minibatch.
        lookups: the rows that they need; None if the trainer is to find out.
        pulled: their parameters on their way, as a future; None if the trainer is to pull.
    """

    lease: LeasedTask
    batches: tuple[Minibatch, ...]
    lookups: Lookups | None = None
    pulled: Pull | None = None

    @property
    def records(self) -> int:
        """Number of records of all minibatches."""
        return sum(batch.records for batch in self.batches)


Item = TrainingStep | TaskItem | NoMoreTasks


class ReadAhead:
    """The thread that reads ahead.

    Args:
        next_task: leases a task, or returns None when there are no more.
        is_lost: whether a lease is no longer ours.
        source: gives the training source when the first training task comes.
        prefetch: fills ``lookups`` and ``pulled`` of a step; None leaves both to the trainer. It is called with
            the step and a function that waits until the pull may start and returns False if the reading was stopped.
        depth: pulls that may run ahead of the trainer.
        group: minibatches that are trained with one pull and one push; the last group of a task may have fewer.
    """

    def __init__(
        self,
        next_task: Callable[[], LeasedTask | None],
        is_lost: Callable[[LeasedTask], bool],
        source: Callable[[], MinibatchSource],
        prefetch: Callable[[TrainingStep, Callable[[], bool]], bool] | None,
        depth: int,
        group: int = 1,
    ) -> None:
        self._group = group
        self._next_task = next_task
        self._is_lost = is_lost
        self._source = source
        self._prefetch = prefetch
        self._permits = threading.Semaphore(max(depth, 1))
        self._queue: queue.Queue[Item] = queue.Queue(maxsize=max(depth, 1) + 1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def take_ready(self) -> Item | None:
        """The next item if there is one already."""
        try:
            return self._taken(self._queue.get_nowait())
        except queue.Empty:
            return None

    def take(self) -> Item:
        """The next item; waits for it."""
        return self._taken(self._queue.get())

    def stop(self) -> list[LeasedTask]:
        """Ends the reading; returns the leases that were read ahead, in order, without those of minibatches taken.

        A reader that does not come back for long is left behind: what it leases goes back when the worker leaves.
        """
        self._stop.set()
        held: dict[str, LeasedTask] = {}
        give_up = time.monotonic() + _PATIENCE_S
        while self._thread.is_alive() or not self._queue.empty():
            if time.monotonic() > give_up:
                _log.warning(
                    "the reader does not stop", waited_s=_PATIENCE_S, fix="see what feed or the data wait for"
                )
                break
            try:
                item = self._queue.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if not isinstance(item, NoMoreTasks):
                held.setdefault(item.lease.token, item.lease)
        return list(held.values())

    def _taken(self, item: Item) -> Item:
        if isinstance(item, TrainingStep) and item.pulled is not None:
            self._permits.release()
        return item

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while not self._stop.is_set():
                work.end()
                with traced("wait for a lease", "wait"):
                    lease = self._next_task()
                if lease is None:
                    break
                work.begin(str(lease.task.id), lease.token)
                if lease.task.id.type is TaskType.TRAINING:
                    self._read(lease)
                else:
                    self._queue.put(OtherTask(lease))
        except BaseException as raised:
            error = raised
        self._queue.put(NoMoreTasks(error))

    def _read(self, lease: LeasedTask) -> None:
        try:
            source = self._source()
            minibatches = in_bursts(source.minibatches(lease.task.shard, lease.task.reading))
            while batches := self._next_batches(minibatches):
                if self._stop.is_set() or self._is_lost(lease):
                    break
                step = TrainingStep(lease, batches)
                if self._prefetch is not None and not self._prefetch(step, self._permit):
                    break
                self._queue.put(step)
            intake = source.intake
        except BaseException as error:
            self._queue.put(UnreadableTask(lease, error))
            return
        self._queue.put(ReadTask(lease, intake))

    def _next_batches(self, minibatches: Iterator[Minibatch]) -> tuple[Minibatch, ...]:
        with traced("read", "data"):
            return tuple(itertools.islice(minibatches, self._group))

    def _permit(self) -> bool:
        while not self._permits.acquire(timeout=_POLL_S):
            if self._stop.is_set():
                return False
        return True
