"""Workers that hold a checkpoint each and change nothing of it."""

from __future__ import annotations

from collections.abc import Sequence

from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.errors import ConflictError, UnavailableError
from elasticdl_master.model_holder import SavedParts, ServerStatus
from elasticdl_master.state.machine import JobMachine
from elasticdl_master.state.tally import Tallied


class ReadOnlyHolder:
    """Holds the model of a job that evaluates or predicts without parameter servers: workers read it themselves.

    Attributes:
        addresses: none, for nobody is to be called.
    """

    def __init__(self, machine: JobMachine) -> None:
        self.addresses: Sequence[str] = ()
        self._machine = machine

    async def status(self, index: int) -> ServerStatus:
        """Says that there is none to tell of.

        Raises:
            UnavailableError: always.
        """
        raise UnavailableError("the job has no parameter servers", fix="nothing is to do")

    async def restore(self, manifest: Manifest, *, other_job: bool = False, stop_at: int = 0) -> int:
        """Returns the version: each worker reads the checkpoint when it begins, which is kept for them."""
        return int(manifest["version"])

    async def pin(self, number: int, *, one_version: bool = False) -> int:
        """Does nothing: the parameters stay as they are; returns their version."""
        return self._machine.version.start

    async def unpin(self, number: int) -> None:
        """Does nothing."""

    async def flush(self) -> None:
        """Does nothing."""

    async def tallies(self) -> list[Tallied]:
        """Nothing: no record goes into the model."""
        return []

    def note_save(self) -> None:
        """Does nothing."""

    def end_save(self) -> None:
        """Does nothing."""

    async def save(self, directory: str, *, one_version: bool = False) -> SavedParts:
        """Refuses to: there is nothing that the checkpoint does not have.

        Raises:
            ConflictError: always.
        """
        raise ConflictError("the job does not train, so there is nothing to save", fix="nothing is to do")

    async def close(self) -> None:
        """Does nothing."""
