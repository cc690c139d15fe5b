"""The ledger of a job's records: what of its plan is to do, in work, done and passed over. It adds up, always.

It is made of what the master reported last: done-marks are never taken back, while the parameter servers go back to a
checkpoint when one of them is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import TypedDict

from elasticdl_api.schemas.histories import LedgerTasks
from elasticdl_core.epoch_records import EpochRecords, LedgerSums, epoch_records

MOST_EPOCHS = 1000
"""Epochs that are shown one by one: the last that have begun, and those after them."""


class JobLedger(TypedDict):
    """The ledger of a job."""

    unit: str
    epochs: list[EpochRecords]
    total: LedgerSums
    tasks: LedgerTasks
    audit: dict[str, Any] | None


def ledger_of(status: Mapping[str, Any], *, active: bool, most_epochs: int = MOST_EPOCHS) -> JobLedger:
    """The ledger out of what a master reported.

    Args:
        status: the status that it reported last; empty for a job that had none yet.
        active: whether the job is at work; if not nobody holds a task, whatever a master said that is gone.
        most_epochs: how many epochs are shown one by one; nine of ten of them have begun.
    """
    told = status.get("ledger")
    told = told if isinstance(told, Mapping) else {}
    epochs = _count(told.get("epochs"))
    planned = _count(told.get("planned")) if epochs else 0
    number = min(_count(told.get("epoch")), max(epochs - 1, 0))
    done, leased = min(_count(told.get("done")), planned), _count(told.get("leased"))
    skipped = told.get("skipped")
    skips = {int(key): _count(value) for key, value in skipped.items()} if isinstance(skipped, Mapping) else {}
    leased = min(leased, planned - done) if active else 0

    def of_epoch(index: int) -> EpochRecords:
        finished = planned if index < number else done if index == number else 0
        held = leased if index == number else 0
        return epoch_records(index, planned, done=finished, leased=held, skipped=skips.get(index, 0))

    first = max(0, min(number - most_epochs * 9 // 10, epochs - most_epochs))
    all_done = number * planned + done
    all_skipped = sum(min(count, planned) for index, count in skips.items() if index < number)
    all_skipped += min(skips.get(number, 0), done)
    total = planned * epochs
    audit = status.get("audit")
    return {
        "unit": "records",
        "epochs": [of_epoch(index) for index in range(first, min(epochs, first + most_epochs))] if planned else [],
        "total": {
            "planned": total,
            "committed": all_done - all_skipped,
            "leased": leased,
            "todo": total - all_done - leased,
            "skipped": all_skipped,
        },
        "tasks": _tasks(told, number, epochs, active=active),
        "audit": dict(audit) if isinstance(audit, Mapping) else None,
    }


def _tasks(told: Mapping[str, Any], number: int, epochs: int, *, active: bool) -> LedgerTasks:
    tasks = _count(told.get("tasks"))
    done = number * tasks + min(_count(told.get("tasks_done")), tasks) if epochs else 0
    leased = min(_count(told.get("tasks_leased")), tasks * epochs - done) if active else 0
    return {"planned": tasks * epochs, "committed": done, "leased": leased, "todo": tasks * epochs - done - leased}


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
