"""The plan of a job's work: which records make which task, in which order, in which round."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticdl_core.task import Shard, TaskId, TaskType


def cut(shards: Iterable[Shard], records_per_task: int) -> list[Shard]:
    """Cuts shards into parts of at most ``records_per_task`` records; empty shards give none."""
    return [
        Shard(shard.name, start, min(start + records_per_task, shard.end))
        for shard in shards
        for start in range(shard.start, shard.end, records_per_task)
    ]


@dataclass
class Plan:
    """All rounds of one type of work; grows while shards are being listed, and is fixed once they are.

    A round's tasks are a pure function of the shards, the task size, the seed and the round's number.

    Attributes:
        type: training, evaluation or prediction.
        records_per_task: records in a full task.
        rounds: epochs; 1 for anything but training. An evaluation's round is its number, of any size.
        seed: seeds the order within a round.
        shuffle: whether there is a random order at all.
        shards: what was listed so far.
        listed: whether that is all.
    """

    type: TaskType
    records_per_task: int
    rounds: int = 1
    seed: int = 0
    shuffle: bool = False
    shards: list[Shard] = field(default_factory=list)
    listed: bool = False
    parts: list[Shard] = field(default_factory=list)
    records: int = 0

    def extend(self, shards: Sequence[Shard]) -> range:
        """Takes in more shards; returns the indexes of the parts that they make."""
        first = len(self.parts)
        self.shards += shards
        self.parts += cut(shards, self.records_per_task)
        self.records += sum(part.records for part in self.parts[first:])
        return range(first, len(self.parts))

    def task(self, round_: int, index: int) -> TaskId:
        """The whole task of a part in a round."""
        part = self.parts[index]
        return TaskId(self.type, round_, index, part.start, part.end)

    def order(self, round_: int, indexes: range | None = None) -> list[int]:
        """Indexes in the order of a round: all of them, or those of one piece of the listing."""
        chosen = list(range(len(self.parts)) if indexes is None else indexes)
        if self.shuffle:
            piece = "" if indexes is None else f":{indexes.start}"
            random.Random(f"{self.seed}:{round_}{piece}").shuffle(chosen)
        return chosen

    def shard_of(self, task: TaskId) -> Shard:
        """The records that a task, or a part of one, stands for."""
        return Shard(self.parts[task.index].name, task.start, task.end)

    def holds(self, task: TaskId) -> bool:
        """Whether the task, or a part of one, is of this plan."""
        if not 0 <= task.index < len(self.parts):
            return False
        part = self.parts[task.index]
        return part.start <= task.start <= task.end <= part.end

    def to_mapping(self) -> dict[str, Any]:
        """The plan as JSON data, for the durable ledger."""
        return {
            "shards": [[shard.name, shard.start, shard.end] for shard in self.shards],
            "records_per_task": self.records_per_task,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "rounds": self.rounds,
        }

    def adopt(self, mapping: Mapping[str, Any]) -> None:
        """Takes over what an earlier master had listed and made durable."""
        self.records_per_task = int(mapping["records_per_task"])
        self.seed, self.shuffle = int(mapping["seed"]), bool(mapping["shuffle"])
        self.rounds = int(mapping["rounds"])
        self.extend([Shard(str(name), int(start), int(end)) for name, start, end in mapping["shards"]])
        self.listed = True
