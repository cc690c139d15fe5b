"""The plan of a job's work: which records make which task, in which order, in which round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticdl_core.shuffling import SPAN_PARTS, Reading, RecordOrder, cut
from elasticdl_core.task import Shard, TaskId, TaskType


@dataclass
class Plan:
    """All rounds of one type of work; grows while shards are being listed, and is fixed once they are.

    A round's tasks, and the records that they stand for, are a pure function of the shards, the task size, the seed
    and the round's number. Where records are shuffled, the range of a part is one of positions
    (``elasticdl_core.shuffling``).

    Attributes:
        type: training, evaluation or prediction.
        records_per_task: records in a full task.
        rounds: epochs; 1 for anything but training. An evaluation's round is its number, of any size.
        seed: seeds the order within a round.
        shuffle: whether the records come in random order.
        block: records that stay together when they are shuffled; 0 chooses.
        shards: what was listed so far.
        listed: whether that is all.
        damaged: files whose rest cannot be read and is left out, and what is wrong with them.
    """

    type: TaskType
    records_per_task: int
    rounds: int = 1
    seed: int = 0
    shuffle: bool = False
    block: int = 0
    shards: list[Shard] = field(default_factory=list)
    listed: bool = False
    damaged: dict[str, str] = field(default_factory=dict)
    parts: list[Shard] = field(default_factory=list)
    records: int = 0

    def __post_init__(self) -> None:
        self._order = RecordOrder(self.seed, self.block)

    def extend(self, shards: Sequence[Shard], *, last: bool = False) -> range:
        """Takes in more shards; ``last`` ends the list. Returns the indexes of the parts that are ready by that."""
        ready = self.ready
        first = len(self.parts)
        self.shards += shards
        self.parts += cut(shards, self.records_per_task)
        self._order.extend(self.parts[first:])
        self.records += sum(part.records for part in self.parts[first:])
        self.listed = last
        return range(ready, self.ready)

    @property
    def ready(self) -> int:
        """How many parts can be worked on: those of which it is known which records they read."""
        count = len(self.parts)
        return count if self.listed or not self.shuffle else count // SPAN_PARTS * SPAN_PARTS

    def task(self, round_: int, index: int) -> TaskId:
        """The whole task of a part in a round."""
        part = self.parts[index]
        return TaskId(self.type, round_, index, part.start, part.end)

    def reading(self, task: TaskId) -> Reading | None:
        """Where the records of a task, or of a part of one, lie; None where its range says it."""
        if not self.shuffle:
            return None
        return self._order.reading(task.round, task.index, task.start, task.end)

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
            "block": self.block,
            "rounds": self.rounds,
            **({"damaged": dict(self.damaged)} if self.damaged else {}),
        }

    def adopt(self, mapping: Mapping[str, Any]) -> None:
        """Takes over what an earlier master had listed and made durable."""
        self.records_per_task = int(mapping["records_per_task"])
        # A plan of the time before records were shuffled names them by their range; what is done of it, too.
        self.seed, self.shuffle = int(mapping["seed"]), bool(mapping["shuffle"]) and "block" in mapping
        self.block, self.rounds = int(mapping.get("block", 0)), int(mapping["rounds"])
        self._order = RecordOrder(self.seed, self.block)
        self.extend([Shard(str(name), int(start), int(end)) for name, start, end in mapping["shards"]], last=True)
        self.damaged = dict(mapping.get("damaged") or {})
