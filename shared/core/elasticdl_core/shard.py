"""Ranges of records, as data readers give them."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl_core.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Shard:
    """A range of records of one data source.

    Attributes:
        name: the file, table or other unit that the data reader knows.
        start: index of the first record.
        end: one past the index of the last record.
    """

    name: str
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise InvalidInputError(
                f"shard {self.name!r} has the range [{self.start}, {self.end})",
                fix="a data reader's create_shards() gives 0 <= start <= end",
            )

    @property
    def records(self) -> int:
        """Number of records in the range."""
        return self.end - self.start
