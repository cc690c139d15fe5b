"""The tasks of a group as members pass them on to one another."""

from __future__ import annotations

import json

from elasticdl_core.group.steps import Entry
from elasticdl_core.shard import Shard
from elasticdl_core.shuffling import Reading
from elasticdl_core.task import Task
from elasticdl_worker.master.client import LeasedTask


def entry_of(lease: LeasedTask) -> Entry:
    """A task as it goes from member to member."""
    task = lease.task
    reading = task.reading
    data = {
        "shard": [task.shard.name, task.shard.start, task.shard.end],
        "version": task.model_version,
        "payload": task.payload,
        "reading": None
        if reading is None
        else [reading.first, reading.key, [[one.name, one.start, one.end] for one in reading.ranges]],
    }
    return Entry(lease.token, task.id, json.dumps(data))


def lease_of(entry: Entry) -> LeasedTask:
    """The task of an entry, with all that it takes to work on it."""
    data = json.loads(entry.data)
    reading = None
    if data["reading"] is not None:
        first, key, ranges = data["reading"]
        reading = Reading(first, key, tuple(Shard(*one) for one in ranges))
    task = Task(entry.task, Shard(*data["shard"]), data["version"], data["payload"], reading)
    return LeasedTask(task, entry.token)
