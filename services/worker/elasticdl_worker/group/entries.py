"""The tasks of a group as members pass them on to one another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from elasticdl.data import fingerprints
from elasticdl_core.group.member import ReplicaMetadata
from elasticdl_core.group.steps import HeldTask
from elasticdl_core.mixed_order import MixedReading
from elasticdl_core.shard import Shard
from elasticdl_core.shuffling import BlockReading, Reading
from elasticdl_core.task import Task, lease_order
from elasticdl_worker.master.client import LeasedTask


def entry_of(lease: LeasedTask) -> HeldTask:
    """A task as it goes from member to member."""
    task = lease.task
    reading = task.reading
    data = {
        "shard": [task.shard.name, task.shard.start, task.shard.end],
        "version": task.model_version,
        "payload": task.payload,
        "reading": None if reading is None else _written(reading),
        "fingerprints": dict(task.fingerprints),
    }
    return HeldTask(lease.token, task.id, json.dumps(data))


def lease_of(entry: HeldTask) -> LeasedTask:
    """The task of an entry, with all that it takes to work on it."""
    data = json.loads(entry.data)
    reading = None if data["reading"] is None else _read(*data["reading"])
    known = data["fingerprints"]
    fingerprints.expect(known)
    task = Task(entry.task, Shard(*data["shard"]), data["version"], data["payload"], reading, known)
    return LeasedTask(task, entry.token)


def _written(reading: Reading) -> list[Any]:
    places = [[one.name, one.start, one.end] for one in reading.from_sources]
    if isinstance(reading, BlockReading):
        return [reading.first, reading.key, places]
    return [reading.first, reading.pool, places, reading.block, reading.bases, reading.numbers, reading.readers]


def _read(
    first: int,
    key: str,
    ranges: list[Any],
    block: int = 0,
    bases: Sequence[int] = (),
    numbers: Sequence[int] = (),
    readers: int = 1,
) -> Reading:
    places = tuple(Shard(*one) for one in ranges)
    if not block:
        return BlockReading(first, key, places)
    return MixedReading(first, key, block, places, tuple(bases), tuple(numbers), readers)


def take_news(tasks: Sequence[LeasedTask], metadata: ReplicaMetadata, *, drop: bool) -> tuple[list[HeldTask], bool]:
    """Takes the news of the master's answer for a group that is new to it.

    Args:
        tasks: training tasks of the answer.
        metadata: what the group knows.
        drop: whether the tasks that the group knew when it asked are void.

    Returns:
        The tasks that it does not know yet, and whether it has some that are void. An answer is looked at before
        each step until the next one comes: the tasks that came with it are not among those that it calls void.
    """
    entries = metadata.schedule.entries
    known = {entry.token for entry in entries} | set(metadata.ended)
    last = lease_order(metadata.schedule.last)
    given = {one.token for one in tasks}
    fresh = [entry_of(one) for one in tasks if one.token not in known and lease_order(one.token) > last]
    return fresh, drop and any(entry.token not in given for entry in entries)
