"""An epoch's records that are done, in work, to do and passed over: a row of the ledger and of the audit."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import TypedDict


class EpochRecords(TypedDict):
    """Records of an epoch, from 1; the last four add up to the first."""

    epoch: int
    planned: int
    committed: int
    leased: int
    todo: int
    skipped: int


class LedgerSums(TypedDict):
    """The same of all epochs."""

    planned: int
    committed: int
    leased: int
    todo: int
    skipped: int


def epoch_records(number: int, planned: int, *, done: int, leased: int, skipped: int) -> EpochRecords:
    """The row of an epoch; it adds up, whatever was told.

    Args:
        number: of the epoch, from 0.
        planned: its records.
        done: those with a done-mark, at most the planned ones.
        leased: those that workers have in hand; no more than are left.
        skipped: those of the done ones that were passed over.
    """
    leased, skipped = max(min(leased, planned - done), 0), min(skipped, done)
    return {
        "epoch": number + 1,
        "planned": planned,
        "committed": done - skipped,
        "leased": leased,
        "todo": planned - done - leased,
        "skipped": skipped,
    }


def sums_of(rows: Sequence[EpochRecords]) -> LedgerSums:
    """The sums of the rows."""
    return {
        "planned": sum(row["planned"] for row in rows),
        "committed": sum(row["committed"] for row in rows),
        "leased": sum(row["leased"] for row in rows),
        "todo": sum(row["todo"] for row in rows),
        "skipped": sum(row["skipped"] for row in rows),
    }
