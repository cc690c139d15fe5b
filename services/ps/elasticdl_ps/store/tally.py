"""Counts of each task's records in the parameters: counted with each update, saved and restored with them.

It is what the audit at a job's end goes by. It knows no lease and no queue, only gradients that were applied; what a
restored checkpoint does not contain is not in its tally either.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Origin = tuple[int, int]
"""The round and the index of a task."""
_ROW = 3


class Tally:
    """Records by task.

    Attributes:
        complete: whether every gradient in the parameters was counted: not after a restore without a tally.
        records: in all.
    """

    def __init__(self, counts: Iterable[tuple[int, int, int]] = (), *, complete: bool = True) -> None:
        self.complete = complete
        self._counts: dict[Origin, int] = {(round_, index): records for round_, index, records in counts}
        self.records = sum(self._counts.values())

    def add(self, origin: Origin | None, records: int) -> None:
        """A gradient of so many records was applied; None for one that belongs to no task."""
        if origin is not None:
            self._counts[origin] = self._counts.get(origin, 0) + records
            self.records += records

    def copy(self) -> Tally:
        """The tally as it is now."""
        tally = Tally(complete=self.complete)
        tally._counts, tally.records = dict(self._counts), self.records
        return tally

    def numbers(self) -> NDArray[np.int64]:
        """``[tasks, 3]``: round, index, records, in order."""
        rows = [(*origin, records) for origin, records in sorted(self._counts.items())]
        return np.array(rows, np.int64).reshape(-1, _ROW)

    def to_text(self) -> str:
        """For the header of a file; empty if it is not complete."""
        if not self.complete:
            return ""
        packed = zlib.compress(self.numbers().T.astype("<i8").tobytes())
        return "1:" + base64.b64encode(packed).decode()

    @classmethod
    def from_text(cls, text: str) -> Tally:
        """Reads what ``to_text`` wrote."""
        if not text:
            return cls(complete=False)
        numbers = np.frombuffer(zlib.decompress(base64.b64decode(text[2:])), "<i8").reshape(_ROW, -1)
        return cls((int(a), int(b), int(c)) for a, b, c in numbers.T)
