"""The port of what holds a job's model: parameter servers, a group of workers, or an unchanging checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from elasticdl_core.checkpoint_manifest import Manifest, ManifestFile
from elasticdl_core.task import TaskId
from elasticdl_master.state.tally import Tallied


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The status of a holder, or of one of its parts."""

    initialized: bool
    version: int
    rows: int
    bytes: int
    generation: str
    records: int = 0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SavedParts:
    """The parts of a checkpoint as they were written.

    Attributes:
        version: the model version: that of the first part.
        files: name, size and sha256 of each file.
        model: what the writer of the first part says of the model.
        ended: of a group: what is in the model beside what was done when the checkpoint was ordered.
    """

    version: int
    files: Sequence[ManifestFile]
    model: str
    ended: Sequence[TaskId] = ()


class ModelHolder(Protocol):
    """Holds the model of one job, and does with it what the master orders.

    Every call has a deadline. One that may be made again because the holder is away raises ``UnavailableError``.
    """

    @property
    def addresses(self) -> Sequence[str]:
        """One for each part that has a status; empty if there is nothing to ask."""
        ...

    async def status(self, index: int) -> ServerStatus:
        """Asks one part how it is.

        Raises:
            UnavailableError: it does not answer, or there is none.
        """
        ...

    async def restore(self, manifest: Manifest, *, other_job: bool = False, stop_at: int = 0) -> int:
        """Takes over a checkpoint, of this job or another one; returns its version.

        Args:
            manifest: of the checkpoint.
            other_job: whether it is another job's.
            stop_at: the version after which no update is made; 0 for none.

        Raises:
            UnavailableError: the holder is away, or was lost meanwhile.
            ElasticDLError: the checkpoint cannot be used.
        """
        ...

    async def pin(self, number: int, *, one_version: bool = False) -> int:
        """Keeps the present parameters readable under a number; returns their version.

        Args:
            number: of the pin.
            one_version: all parts must be at one version (synchronous training).
        """
        ...

    async def unpin(self, number: int) -> None:
        """Drops a pin; does nothing if there is none of that number."""
        ...

    async def flush(self) -> None:
        """Closes the present round of synchronous training, if there is one, with the gradients that it has."""
        ...

    async def tallies(self) -> list[Tallied]:
        """The numbers of each training task's records that are in the model, of each part."""
        ...

    def note_save(self) -> None:
        """Notes that a checkpoint was ordered; each note is followed by one ``end_save``, in the same order."""
        ...

    async def save(self, directory: str, *, one_version: bool = False) -> SavedParts:
        """Writes the parts of a checkpoint into a directory: that of the oldest order.

        Args:
            directory: of the checkpoint.
            one_version: all parts must be of one version (synchronous training).

        Raises:
            UnavailableError: the holder is away, or changed meanwhile.
            ConflictError: it cannot be written now.
            ElasticDLError: it could not be written.
        """
        ...

    def end_save(self) -> None:
        """Says that the oldest order is over, whether it was written or not."""
        ...

    async def close(self) -> None:
        """Ends its connections."""
        ...
