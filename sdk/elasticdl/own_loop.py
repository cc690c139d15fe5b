"""The contract between a script with a training loop of its own and its launcher; knows no framework.

The launcher sets a ``LoopFeed`` before it runs the script; ``elasticdl.torch`` asks it for records and tells it what
was made of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError, UserCodeError

Buffer = NDArray[np.float32]
"""A one-dimensional array of float32, in one piece."""
START_IT = "start the script with `elasticdl run SCRIPT`"


@dataclass(frozen=True)
class FedMicrobatch:
    """The records of one microbatch: a batch of the loop.

    Attributes:
        records: the records, or the indexes of a dataset of the script's own.
        epoch: which pass over the data they are of, from 0.
        full: whether it is a whole one; the last ones of an epoch may have fewer records.
        version: updates that were made before theirs.
        microbatch: which part of the update.
    """

    records: Sequence[Any]
    epoch: int
    full: bool
    version: int
    microbatch: int


class TrainedState(Protocol):
    """The state that a script trains, as arrays: parameters, what belongs to them, and the optimizer."""

    @property
    def lengths(self) -> Sequence[int]:
        """Length of each array of a contribution."""

    def contribute(self, arrays: Sequence[Buffer], rows: int) -> None:
        """Adds the present gradients to a contribution, times the rows that they are the mean of."""

    def has_gradients(self) -> bool:
        """Whether gradients that a step could be made of were computed since the last contribution or update."""

    def has_refused(self) -> bool:
        """Whether new gradients were computed that no step could be made of, as they are not finite."""

    def apply(self, sums: Sequence[Buffer], rows: int) -> None:
        """Makes one update of the sums of all contributions.

        Args:
            sums: of each array; they must not be written.
            rows: of all of them.
        """

    def values(self) -> Mapping[str, NDArray[Any]]:
        """All that training goes on from, always under the same names and in the same shapes."""

    def load(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Takes over what ``values`` gave elsewhere."""

    def parameters(self) -> Sequence[NDArray[Any]]:
        """The arrays that are the same in all members after each update."""

    def begin(self, seed: int) -> None:
        """Seeds what is random in the next minibatch."""


class LeaveScript(BaseException):
    """This process is to leave: the script ends where it is. No error, so that ``except Exception`` lets it pass."""


class LoopFeed(Protocol):
    """Hands records to a script's loop, and hears what was applied. All calls come from the script's thread.

    Attributes:
        uncommitted: records that the loop took and has not committed yet.
        accumulates: whether the script said how many records an update has, so that its batches may be parts of one.
        loaded: records in a batch of the ``DataLoader`` that reads them; None where none does, or it does not say.
    """

    uncommitted: int
    accumulates: bool
    loaded: int | None

    @property
    def batch_size(self) -> int:
        """Records in a full batch of the loop: those of an update by ``microbatches``."""

    @property
    def records_per_update(self) -> int:
        """Records in a full update, whatever the number of workers: the job's ``minibatch_size``."""

    @property
    def microbatches(self) -> int:
        """Batches that make one update, whatever the number of workers."""

    @property
    def records_per_task(self) -> int:
        """Records in a full task, which is what the master gives out at a time."""

    @property
    def epochs(self) -> int:
        """Passes over the records."""

    @property
    def shuffles(self) -> bool:
        """Whether the records come in random order."""

    @property
    def epoch(self) -> int:
        """The number of the pass that the present minibatch is of, from 0."""

    @property
    def updates(self) -> int:
        """Updates that were made, by all workers together."""

    @property
    def finished(self) -> bool:
        """Whether all records of all epochs are done."""

    def use(self, trained: TrainedState) -> None:
        """Declares the trained state; before the first record is taken.

        Raises:
            UserCodeError: there is something already, or it is too late.
        """

    def use_records(self, size: int | None) -> None:
        """The number of records of a dataset of the script's own; None where they are those of the job's data.

        Raises:
            UserCodeError: that does not go with the job, or with what another dataset of the script said.
        """

    def more(self) -> bool:
        """Waits until there are records for the loop; returns False when all of them are done.

        Raises:
            LeaveScript: this process is to leave.
        """

    def begin_pass(self) -> None:
        """The loop begins anew to take records: those that it took and did not commit come again."""

    def take(self) -> Any:
        """The next record, or ``END`` where the present pass ends.

        Raises:
            LeaveScript: this process is to leave.
            UserCodeError: the loop wants more records than there are in a minibatch before it commits.
        """

    def again(self) -> Any:
        """A record of the present minibatch once more, to fill up a batch with; it does not count."""

    def commit(self, loss: float | None = None) -> None:
        """The records that were taken since the last commit are applied, or their gradients are there to be.

        Raises:
            LeaveScript: this process is to leave.
            UserCodeError: no record was taken, or the batch has another number of records than the job's.
        """

    def log(self, values: Mapping[str, float]) -> None:
        """Reports measurements of the batch that was taken and is not committed; ``loss`` is its mean loss.

        Raises:
            UserCodeError: there is no such batch, or a value is no number.
        """

    def skip(self) -> None:
        """The records that were taken since the last commit make no gradient: they are counted as passed over.

        A loop that takes the next batch instead has done the same.

        Raises:
            LeaveScript: this process is to leave.
            UserCodeError: no record was taken.
        """

    def wait_for_output(self) -> Path:
        """Waits until all records are done, and gives the directory for what the script makes.

        One process gets it. The others leave.

        Raises:
            LeaveScript: this process is to leave.
            UserCodeError: the loop is in the midst of its records.
        """


def other_batch_size(taken: int, feed: LoopFeed) -> UserCodeError:
    """Says that a script has another batch size than its job.

    Args:
        taken: records in a batch of the script.
        feed: of the job.
    """
    parts, records = feed.microbatches, feed.records_per_update
    said = f"an update of {records} records (--minibatch_size {records})"
    said += f" in {parts} parts (--microbatches {parts})" if parts > 1 else ""
    wanted = f"--minibatch_size {taken * parts}" + (f" --microbatches {parts}" if parts > 1 else "")
    return UserCodeError(
        f"the script has batches of {taken} records, and the job of {feed.batch_size}: {said}",
        fix=f"let the script make batches of ElasticDataset.batch_size records, or give `elasticdl run` {wanted} "
        f"(updates of {taken * parts} records); a loop that adds up the gradients of several batches makes a step of "
        "each, and the job says how many make an update: --microbatches",
    )


END = object()
"""What ``take`` gives where a pass ends."""
_present: list[LoopFeed] = []


def set_feed(feed: LoopFeed) -> None:
    """Sets the feed of the script that is about to be run."""
    _present[:] = [feed]


def current_feed(what: str) -> LoopFeed:
    """The feed of this process.

    Args:
        what: what needs it, for the message.

    Raises:
        InvalidInputError: no launcher set one.
    """
    if not _present:
        raise InvalidInputError(f"{what} needs a launcher", fix=START_IT)
    return _present[0]
