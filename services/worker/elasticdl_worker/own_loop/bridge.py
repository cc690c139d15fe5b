"""The meeting of the script's thread and the thread that drives it: one of them works, the other waits.

The script's thread holds the turn while the user's code runs, and gives it away where it waits: for a record, for an
update, for the end. So what the driver does to the model (updates, loading, copying) never happens in the midst of
the user's code.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.own_loop import END, Buffer, FedMicrobatch, LeaveScript, TrainedState, other_batch_size
from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec

_MOST_SURPLUS = 1 << 16
"""How many records a loop may take beyond those of a batch before it commits any."""
_MOST_LEFT = 3
"""How often in a row a loop may leave records that it took, or take none."""


COMMIT_EACH = (
    "let it commit each batch before it takes the next one, and say ElasticDataset.skip() of one that makes no step"
)


def _here() -> tuple[int, int]:
    """This process and thread; a forked process has the same thread again."""
    return os.getpid(), threading.get_ident()


class NothingTrained:
    """A script's training that tells nothing of itself: no gradients, no state."""

    lengths: Sequence[int] = ()

    def contribute(self, arrays: Sequence[Buffer], rows: int) -> None:
        """Adds nothing."""

    def has_gradients(self) -> bool:
        """Always true, since it cannot be known: the script may have trained on what it took."""
        return True

    def has_refused(self) -> bool:
        """Never: there are no gradients."""
        return False

    def apply(self, sums: Sequence[Buffer], rows: int) -> None:
        """Changes nothing."""

    def values(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load(self, values: Any) -> None:
        """Takes over nothing."""

    def parameters(self) -> Sequence[Any]:
        """None."""
        return ()

    def begin(self, seed: int) -> None:
        """Seeds nothing."""


class LoopBridge:
    """The script's side of it is a ``LoopFeed``; the other methods are the driver's.

    Args:
        spec: the job.
        start: called in the script's thread when it wants its first record.
    """

    def __init__(self, spec: JobSpec, start: Callable[[], None]) -> None:
        self.uncommitted = 0
        self.accumulates = False
        self.loaded: int | None = None
        self.trained: TrainedState = NothingTrained()
        self.size: int | None = None
        self._spec = spec
        self._start: Callable[[], None] | None = start
        self._turn = threading.Condition()
        self._script: tuple[int, int] | None = None
        self._from_elsewhere = False
        self._bound = False
        self._piece: FedMicrobatch | None = None
        self._position = 0
        self._repeats = 0
        self._left = 0
        self._surplus = 0
        self._compared = False
        self._committed = 0
        self._idle = 0
        self._epoch = 0
        self._passing = False
        self._contribution: list[Buffer] = []
        self._losses = 0.0
        self._logged: dict[str, float] = {}
        self._measured: dict[str, tuple[float, int]] = {}
        self._rows = 0
        self._done = False
        self._released = False
        self._updates = 0
        self._over = False
        self._leaving = False
        self._output: Path | None = None
        self._ended = False
        self._error: BaseException | None = None

    # -- what the script may know ----------------------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        """Records in a full batch of the loop."""
        return self._spec.microbatch_size

    @property
    def records_per_update(self) -> int:
        """Records in a full update."""
        return self._spec.minibatch_size

    @property
    def microbatches(self) -> int:
        """Batches that make one update."""
        return self._spec.microbatches_per_step

    @property
    def records_per_task(self) -> int:
        """Records in a full task."""
        return self._spec.records_per_task

    @property
    def epochs(self) -> int:
        """Passes over the records."""
        return self._spec.num_epochs

    @property
    def shuffles(self) -> bool:
        """Whether the records come in random order."""
        return self._spec.shuffle

    @property
    def epoch(self) -> int:
        """The number of the pass that the present minibatch is of."""
        return self._epoch

    @property
    def updates(self) -> int:
        """Updates that were made."""
        return self._updates

    @property
    def finished(self) -> bool:
        """Whether all records are done."""
        return self._over

    # -- the script's thread ---------------------------------------------------------------------------------------

    def run(self, script: Callable[[], None]) -> None:
        """Runs the script with the turn held, and tells the driver how it ended.

        Raises:
            BaseException: what the script raised.
        """
        with self._turn:
            self._script = _here()
            try:
                script()
            except BaseException as error:
                self._error = error
                raise
            finally:
                self._ended = True
                self._turn.notify_all()

    def use(self, trained: TrainedState) -> None:
        """Declares the trained state."""
        if not isinstance(self.trained, NothingTrained):
            raise UserCodeError("a second optimizer was wrapped", fix="give one optimizer parameter groups")
        if self._start is None:
            raise UserCodeError("the optimizer was wrapped after records were taken", fix="wrap it before the loop")
        self.trained = trained

    def use_records(self, size: int | None) -> None:
        """The number of the script's own records."""
        if size is None and not self._spec.training_data:
            raise UserCodeError(
                "the job names no data, and the dataset has none of its own",
                fix="give --training_data, or ElasticDataset(dataset) something with a length",
            )
        if size is not None and self._spec.training_data:
            raise UserCodeError(
                "the job names data, and the dataset has records of its own",
                fix="leave --training_data out, or give ElasticDataset() no dataset",
            )
        if self._bound and size != self.size:
            raise UserCodeError("two datasets of different size take records", fix="take them from one dataset")
        if size == 0:
            raise UserCodeError("the dataset is empty", fix="look at where its records come from")
        self._bound, self.size = True, size

    def more(self) -> bool:
        """Waits until there are records, or all are done."""
        self._refuse_other_threads()
        self._begin()
        self._wait_for(lambda: self._piece is not None or self._over)
        self._idle += 1
        if self._piece is not None and self._idle > _MOST_LEFT:
            raise UserCodeError(
                "the loop returns again and again, and takes no record",
                fix="let the function that elasticdl.torch.run calls begin a new pass over the ElasticDataset",
            )
        return self._piece is not None

    def begin_pass(self) -> None:
        """The loop begins anew to take records."""
        self._refuse_other_threads()
        self._begin()
        self._left = self._left + 1 if self.uncommitted else 0
        if self._left > _MOST_LEFT:
            raise UserCodeError(
                "the loop takes records again and again, and commits none",
                fix="call optimizer.step() of a distributed_optimizer, or commit() of the dataset, after each batch, "
                "and leave DataLoader's drop_last out",
            )
        self._position -= self.uncommitted
        self.uncommitted = self._surplus = 0
        self._logged = {}
        self._passing = False

    def take(self) -> Any:
        """The next record, or ``END``."""
        self._refuse_other_threads()
        self._idle = 0
        if self._has_gone_on():
            self.skip()
        piece = self._piece
        if piece is None or self._position >= len(piece.records):
            if self.uncommitted:
                return self._surplus_record()
            self._wait_for(lambda: self._piece is not None or self._over)
            piece = self._piece
            if piece is None:
                return END
        if self._passing and piece.epoch != self._epoch:
            return END
        self._passing, self._epoch = True, piece.epoch
        if not self._position:  # not before: a new iterator of a loader draws a number, too
            self.trained.begin(_seed(self._spec.seed, piece.version, piece.microbatch))
        record = piece.records[self._position]
        self._position += 1
        self.uncommitted += 1
        return record

    def again(self) -> Any:
        """A record of the present minibatch once more."""
        assert self._piece is not None
        self._repeats += 1
        return self._piece.records[(self._repeats - 1) % self._position]

    def commit(self, loss: float | None = None) -> None:
        """The records that were taken are applied."""
        self._refuse_other_threads()
        if self._piece is None or not self.uncommitted:
            raise UserCodeError(
                "a batch was committed, and no record was taken since the last one",
                fix="commit once after each batch that came from the ElasticDataset",
            )
        self._compare(self.uncommitted + self._surplus)
        rows = self.uncommitted
        if self.accumulates and self.loaded and rows > self.loaded:
            raise UserCodeError(
                f"the loop takes more than the {self.loaded} records of a batch before it commits them",
                fix=COMMIT_EACH,
            )
        self._committed = max(self._committed, rows)
        if not self._contribution:
            self._contribution = [np.zeros(length, np.float32) for length in self.trained.lengths]
        self.trained.contribute(self._contribution, rows)
        self._rows += rows
        logged, self._logged = self._logged, {}
        told = logged.pop("loss", math.nan) if loss is None else float(loss)
        if logged and math.isnan(told):
            raise UserCodeError(
                f"{', '.join(logged)} was logged without the loss, beside which it is shown",
                fix="give it, too: elasticdl.torch.log(loss=loss, ...)",
            )
        self._losses += rows * told
        for name, value in logged.items():
            total, count = self._measured.get(name, (0.0, 0))
            self._measured[name] = total + rows * value, count + rows
        self._end_batch()

    def skip(self) -> None:
        """The records that were taken make no gradient."""
        self._refuse_other_threads()
        if self._piece is None or not self.uncommitted:
            raise UserCodeError(
                "a batch was skipped, and no record was taken since the last one",
                fix="skip a batch once, after it came from the ElasticDataset",
            )
        self._compare(self.uncommitted + self._surplus)
        self._logged = {}
        self._end_batch()

    def _end_batch(self) -> None:
        assert self._piece is not None
        self.uncommitted = self._left = 0
        if self._position < len(self._piece.records):
            return
        self._piece, self._position, self._done, self._released = None, 0, True, False
        self._turn.notify_all()
        # What follows in the script may look at the parameters: they are those of the update, if there is one now.
        self._wait_for(lambda: self._released or self._over)

    def log(self, values: Mapping[str, float]) -> None:
        """Reports measurements of the batch that was taken."""
        self._refuse_other_threads()
        if not self.uncommitted:
            raise UserCodeError(
                "values were logged, and no batch is there that they are of",
                fix="call elasticdl.torch.log after the batch was taken and before the optimizer's step",
            )
        for name, value in values.items():
            try:
                self._logged[name] = float(value)
            except (TypeError, ValueError, RuntimeError) as error:
                raise UserCodeError(f"the logged {name} is no number: {error}", fix="give one number each") from None

    def wait_for_output(self) -> Path:
        """Waits until all records are done."""
        if self._start is not None:
            raise UserCodeError("no record was taken yet", fix="ask for the output directory after the loop")
        self._wait_for(lambda: self._output is not None or self._piece is not None)
        if self._output is None:
            raise UserCodeError(
                "records are left to be trained on",
                fix="ask for the output directory after the loop, and call the loop with elasticdl.torch.run(train)",
            )
        return self._output

    def _begin(self) -> None:
        if self._start is not None:
            start, self._start = self._start, None
            self._compared = isinstance(self.trained, NothingTrained)
            start()

    def _refuse_other_threads(self) -> None:
        """The turn is the script's thread's, which is refused as well: the other one may have swallowed it."""
        self._from_elsewhere = self._from_elsewhere or self._script not in (None, _here())
        if self._from_elsewhere:
            raise UserCodeError(
                "records were taken or committed in another thread or process than the script's",
                fix="read the ElasticDataset in the process and thread that the script runs in",
            )

    def _has_gone_on(self) -> bool:
        """Whether the loop goes on to the next batch, as after one that is not worth a step.

        A loop that takes a batch ahead of the one that it trains on does the same with its first one. So the job's
        first batch says nothing, unless its gradients are there and no step can be made of them; whoever has that one
        refuses such a loop, so that in later ones, of any worker, it is known that the loop is none.
        """
        piece = self._piece
        size = self._committed or self.loaded or (0 if self.accumulates else self.batch_size)
        if piece is None or not size or self.uncommitted < size or self.trained.has_gradients():
            return False
        later = (piece.version or piece.microbatch) and not self._spec.checkpoint_dir_for_init
        return bool(self._committed or later or self.trained.has_refused())

    def _surplus_record(self) -> Any:
        """The error of a loop that wants more records than the minibatch has before it commits any.

        Until batches were compared these are the same records again, so that it can be said how many it takes.
        """
        piece = self._piece
        if piece is None or not piece.full:
            return END
        ahead = self.loaded and self.loaded <= self.batch_size and not self.trained.has_gradients()
        if self._compared or ahead or self._surplus >= max(_MOST_SURPLUS, self.batch_size):
            raise UserCodeError(
                f"the loop takes more than the {self.batch_size} records of a batch before it commits them",
                fix=COMMIT_EACH,
            )
        self._surplus += 1
        return piece.records[(self._surplus - 1) % len(piece.records)]

    def _compare(self, taken: int) -> None:
        """Compares the first whole batch of a loop that shares its updates with the job's.

        Raises:
            UserCodeError: they differ.
        """
        piece = self._piece
        if self._compared or piece is None or (self._position >= len(piece.records) and not piece.full):
            return
        if self.batch_size % taken if self.accumulates else taken != self.batch_size:
            raise other_batch_size(taken, self)
        self._compared = True

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not self._leaving and not condition():
            self._turn.wait()
        if self._leaving:
            raise LeaveScript

    # -- the driver's thread ---------------------------------------------------------------------------------------

    def compute(self, piece: FedMicrobatch) -> tuple[list[Buffer], float, dict[str, float], int]:
        """Has the loop work on a minibatch.

        Returns:
            Its contribution, mean loss (NaN if it told none) and logged values, and how many records these are of:
            the loop may have skipped some.

        Raises:
            UserCodeError: the script ended instead.
        """
        with self._turn:
            self._check()
            self._piece, self._position, self._repeats, self._done = piece, 0, 0, False
            self._updates = piece.version  # also of a member that comes later, before its first update
            self._contribution, self._losses, self._rows = [], 0.0, 0
            self._measured = {}
            self._released = True
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._done or self._ended)
            if not self._done:
                self._check()
            means = {name: total / count for name, (total, count) in self._measured.items()}
            return self._contribution, self._losses / max(1, self._rows), means, self._rows

    def work(self, action: Callable[[], Any]) -> Any:
        """Does something to the model, while the script waits."""
        with self._turn:
            return action()

    def release(self, updates: int) -> None:
        """The update is made: the script goes on."""
        with self._turn:
            self._updates, self._released = updates, True
            self._turn.notify_all()

    def finish(self, output: Path) -> None:
        """All records are done: has the script come to its end, which writes what it makes.

        Raises:
            BaseException: what the script raised.
        """
        with self._turn:
            self._over, self._output = True, output
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._ended)
            if self._error is not None:
                raise self._error

    def leave(self) -> None:
        """Has the script leave where it waits."""
        with self._turn:
            self._leaving = True
            self._turn.notify_all()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._ended:
            raise UserCodeError(
                "the script has ended, and records are left to be trained on",
                fix="let elasticdl.torch.run(train) call the loop as often as it takes",
            )


def _seed(seed: int, version: int, microbatch: int) -> int:
    text = f"{seed}:{version}:{microbatch}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "little")
