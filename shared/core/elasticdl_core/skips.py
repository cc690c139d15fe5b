"""Records that a job passed over instead of working on them: how many, why, and where the first of them is."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_LONGEST_EXAMPLE = 500


class SkipReason(enum.StrEnum):
    """Why records were passed over."""

    NAN = "nan"
    """Their minibatch had a loss or gradients that are no numbers, with ``on_nan=skip``."""
    CORRUPT = "corrupt"
    """They cannot be read, with the reader parameter ``on_corrupt=skip``."""
    FEED = "feed"
    """The user's ``feed`` took them and gave nothing for them: a filter, a sampler, ``drop_last``."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Records that were passed over for one reason.

    Attributes:
        records: how many.
        example: which the first of them are, and what is wrong with them.
    """

    records: int
    example: str = ""


@dataclass(frozen=True)
class Skips:
    """Counts of passed over records, by reason; reasons without records are left out."""

    reasons: Mapping[SkipReason, Skip] = field(default_factory=dict)

    @classmethod
    def of(cls, reason: SkipReason, records: int, example: str = "") -> Skips:
        """Records passed over for one reason."""
        return cls({reason: Skip(records, example[:_LONGEST_EXAMPLE])}) if records > 0 else cls()

    @property
    def records(self) -> int:
        """The number of records, for any reason."""
        return sum(skip.records for skip in self.reasons.values())

    def count(self, reason: SkipReason) -> int:
        """The number of records, for one reason."""
        skip = self.reasons.get(reason)
        return skip.records if skip is not None else 0

    def __bool__(self) -> bool:
        return bool(self.reasons)

    def __add__(self, other: Skips) -> Skips:
        merged = dict(self.reasons)
        for reason, skip in other.reasons.items():
            before = merged.get(reason, Skip(0))
            merged[reason] = Skip(before.records + skip.records, before.example or skip.example)
        return Skips(merged)

    def rows_of(self, records: int) -> int:
        """The number of so many records that ``feed`` gave something for: neither left out nor unreadable."""
        return records - self.count(SkipReason.CORRUPT) - self.count(SkipReason.FEED)

    def in_records(self, records: int, fed: int | None = None) -> Skips:
        """The same for a task, with minibatches that were left out counted in records of the source.

        They are noted in rows that came out of ``feed``. A row counts as one record; where ``feed`` makes more rows
        than it reads records, as its share of one, rounded up. So no task has more skipped records than records.

        Args:
            records: of the task.
            fed: rows that came out of ``feed``; None if that is one for each of ``rows_of(records)``.
        """
        rows = self.count(SkipReason.NAN)
        if not rows:
            return self
        readable = self.rows_of(records)
        share = rows if fed is None or fed <= readable else -(-rows * readable // fed)
        nan = Skip(min(share, readable), self.reasons[SkipReason.NAN].example)
        return Skips({**self.reasons, SkipReason.NAN: nan})

    def to_json(self) -> list[dict[str, Any]]:
        """As JSON data, in a fixed order."""
        return [
            {"reason": str(reason), "records": skip.records, "example": skip.example}
            for reason, skip in sorted(self.reasons.items())
        ]

    @classmethod
    def from_json(cls, data: Iterable[Mapping[str, Any]]) -> Skips:
        """Reads what ``to_json`` wrote; unknown reasons are refused.

        Raises:
            ValueError: that is not what it is.
        """
        total = cls()
        for entry in data:
            total += cls.of(SkipReason(entry["reason"]), int(entry["records"]), str(entry.get("example", "")))
        return total


def rests_left_out(of: str, damaged: Mapping[str, str]) -> list[dict[str, Any]]:
    """The entry for files whose rest cannot be read: nobody knows how many records that is.

    Args:
        of: ``main`` or ``validation``.
        damaged: the files, and what is wrong with them.
    """
    if not damaged:
        return []
    path, reason = min(damaged.items())
    example = f"the rest of {path}: {reason}"
    return [{"of": of, "reason": str(SkipReason.CORRUPT), "records": None, "example": example}]


def words(skips: Skips) -> str:
    """The counts in words for people."""
    return "; ".join(
        f"{skip.records:,} record{'' if skip.records == 1 else 's'} passed over ({reason}), such as {skip.example}"
        for reason, skip in sorted(skips.reasons.items())
    )


def doublings(before: Skips, after: Skips) -> list[str]:
    """The news when ``before`` became ``after``: each reason the first time, then at each doubling."""
    return [
        words(Skips({reason: skip}))
        for reason, skip in sorted(after.reasons.items())
        if skip.records.bit_length() > before.count(reason).bit_length()
    ]
