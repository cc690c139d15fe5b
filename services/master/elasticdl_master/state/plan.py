"""The plans of a job's work: which records make which task, in which order, in which epoch."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticdl_core.job import JobSpec, JobType
from elasticdl_core.job.updates import updates_per_epoch
from elasticdl_core.shard import Shard
from elasticdl_core.shuffling import SPAN_PARTS, Reading, RecordOrder, cut, described, join
from elasticdl_core.task import TaskId, TaskType

_MAIN_TYPES = {
    JobType.TRAINING: TaskType.TRAINING,
    JobType.EVALUATION: TaskType.EVALUATION,
    JobType.PREDICTION: TaskType.PREDICTION,
}


@dataclass
class TaskPlan:
    """All epochs of one type of work; grows while shards are being listed, and is fixed once they are.

    An epoch's tasks, and the records that they stand for, are a pure function of the shards, the task size, the seed
    and the epoch's number. Where records are shuffled, the range of a part is one of positions
    (``elasticdl_core.shuffling``).

    Attributes:
        type: training, evaluation or prediction.
        records_per_task: records in a full task.
        epochs: how often the records are passed over; 1 for anything but training. Each evaluation passes over the
            plan of the validation data once, under its number.
        seed: seeds the order within an epoch.
        shuffle: whether the records come in random order.
        block: records that stay together when they are shuffled; 0 for none.
        mixed: whether single records are mixed; else blocks of them, of a length that is chosen if none is given.
        grain: where the source is read in large groups: records of a group, and groups whose records are mixed.
        shards: what was listed so far.
        listed: whether that is all.
        damaged: files whose rest cannot be read and is left out, and what is wrong with them.
        fingerprints: what each source was like when it was listed, where the reader knows it.
        parts: ranges of the tasks.
        records: of all of them.
        joins: whether tasks go over the ends of shards, so that all but the last have as many records.
    """

    type: TaskType
    records_per_task: int
    epochs: int = 1
    seed: int = 0
    shuffle: bool = False
    block: int = 0
    grain: tuple[int, int] | None = None
    shards: list[Shard] = field(default_factory=list)
    listed: bool = False
    damaged: dict[str, str] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)
    parts: list[Shard] = field(default_factory=list)
    records: int = 0
    joins: bool = field(init=False)
    mixed: bool = field(init=False)

    def __post_init__(self) -> None:
        self.joins, self.mixed = self.shuffle, self.block == 0
        self._rest: Shard | None = None
        self._order = RecordOrder(self.seed, self.block, grain=self.grain)

    def set_grain(self, grain: tuple[int, int] | None) -> None:
        """Says how large the groups of the source are, before its first shard."""
        if grain is not None and not self.shards:
            self.grain = grain
            self._order = RecordOrder(self.seed, self.block, grain=grain)

    def count_tasks(self, shards: Sequence[Shard]) -> int:
        """The number of tasks that a pass would have with these shards as well."""
        if self.joins:
            left = 0 if self._rest is None else self._rest.records
            return len(self.parts) - (-(left + sum(shard.records for shard in shards)) // self.records_per_task)
        return len(self.parts) + sum(-(-shard.records // self.records_per_task) for shard in shards)

    def extend(self, shards: Sequence[Shard], *, last: bool = False) -> range:
        """Takes in more shards; ``last`` ends the list. Returns the indexes of the parts that are ready by that."""
        ready = self.ready
        first = len(self.parts)
        self.shards += shards
        if self.joins:
            parts, self._rest = join(shards, self.records_per_task, self._rest)
            self.parts += parts
            if last and self._rest is not None:
                self.parts.append(self._rest)
            self._order.extend(self.parts[first:], shards)
        else:
            self.parts += cut(shards, self.records_per_task)
            self._order.extend(self.parts[first:])
        self.records += sum(part.records for part in self.parts[first:])
        self.listed = last
        return range(ready, self.ready)

    @property
    def ready(self) -> int:
        """The number of parts that can be worked on: those of which it is known which records they read."""
        count = len(self.parts)
        return count if self.listed or not self.shuffle else count // SPAN_PARTS * SPAN_PARTS

    def task(self, number: int, index: int) -> TaskId:
        """The whole task of a part in an epoch, or in an evaluation, of a number."""
        part = self.parts[index]
        return TaskId(self.type, number, index, part.start, part.end)

    def reading(self, task: TaskId, workers: int = 1) -> Reading | None:
        """The reading of a task's records, or of a part of one; None where its range says it.

        Args:
            task: the task.
            workers: how many share the work now, for whoever may read more than the task's own records.
        """
        if not self.shuffle:
            return None
        return self._order.reading(task.epoch, task.index, task.start, task.end, workers)

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
            "shards": [[shard.name, shard.start, shard.end] for shard in joined(self.shards, self.records_per_task)],
            "records_per_task": self.records_per_task,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "block": self.block,
            "joins": self.joins,
            **({"grain": list(self.grain)} if self.grain else {}),
            "mixed": self.mixed,
            "rounds": self.epochs,
            **({"damaged": dict(self.damaged)} if self.damaged else {}),
            **({"fingerprints": dict(self.fingerprints)} if self.fingerprints else {}),
        }

    def adopt(self, mapping: Mapping[str, Any]) -> None:
        """Takes over what an earlier master had listed and made durable."""
        self.records_per_task = int(mapping["records_per_task"])
        # A plan of the time before records were shuffled names them by their range; what is done of it, too.
        self.seed, self.shuffle = int(mapping["seed"]), bool(mapping["shuffle"]) and "block" in mapping
        self.block, self.epochs = int(mapping.get("block", 0)), int(mapping["rounds"])
        # One of the time before tasks went over the ends of shards has the tasks that it had.
        self.joins = self.shuffle and bool(mapping.get("joins", False))
        # One of the time before single records were mixed keeps its blocks.
        self.mixed = bool(mapping.get("mixed", False))
        records, groups = mapping.get("grain") or (0, 0)
        self.grain = (int(records), int(groups)) if records else None
        self._order = RecordOrder(self.seed, self.block, mixed=self.mixed, grain=self.grain)
        self.extend([Shard(str(name), int(start), int(end)) for name, start, end in mapping["shards"]], last=True)
        self.damaged = dict(mapping.get("damaged") or {})
        self.fingerprints = dict(mapping.get("fingerprints") or {})


def joined(shards: Sequence[Shard], records_per_task: int) -> Iterator[Shard]:
    """Fewer shards that give the same tasks: readers may list a file in a million pieces, each of one task.

    Args:
        shards: as they were listed.
        records_per_task: records in a full task.
    """
    held: Shard | None = None
    for shard in shards:
        if not shard.records:
            continue
        if (
            held is not None
            and (held.name, held.end) == (shard.name, shard.start)
            and held.records % records_per_task == 0
        ):
            held = Shard(held.name, held.start, shard.end)
            continue
        if held is not None:
            yield held
        held = shard
    if held is not None:
        yield held


class JobPlans:
    """The plans of one job: of its main work, and of its validation data.

    Attributes:
        main: what the job is for.
        main_type: training, evaluation or prediction.
        validation: what evaluations go over; None without validation data, the main plan for an evaluation job.
        columns: the names of the columns of the main data, in the order of a record; None where it has none.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self.main_type = _MAIN_TYPES[spec.type]
        training = spec.type is JobType.TRAINING
        self.main = TaskPlan(
            self.main_type,
            spec.records_per_task,
            epochs=spec.num_epochs if training else 1,
            seed=spec.seed,
            shuffle=spec.shuffle and training,
            block=spec.shuffle_block,
        )
        self.columns: list[str] | None = None
        self.validation: TaskPlan | None = None
        if training and spec.validation_data:
            self.validation = TaskPlan(TaskType.EVALUATION, spec.records_per_task)
        elif spec.type is JobType.EVALUATION:
            self.validation = self.main

    @functools.cached_property
    def _updates(self) -> int:
        return updates_per_epoch(self._spec, self.main.parts)

    @property
    def updates_per_epoch(self) -> int | None:
        """Updates of the model that an epoch makes; None while that is not known, and where nothing is trained."""
        return self._updates if self.main.listed and self.main_type is TaskType.TRAINING else None

    @property
    def listed(self) -> bool:
        """Whether all shards are known."""
        return self.main.listed and (self.validation is None or self.validation.listed)

    @property
    def with_epochs(self) -> bool:
        """Whether the main work is done in epochs; an evaluation job has one evaluation instead."""
        return self.main_type is not TaskType.EVALUATION

    def of(self, type_: TaskType) -> TaskPlan | None:
        """The plan of a type of work, if the job has it."""
        if type_ is self.main_type:
            return self.main
        return self.validation if type_ is TaskType.EVALUATION else None

    def to_list(self) -> list[TaskType]:
        """The types of work whose data must be listed."""
        own = self.validation is not None and self.validation is not self.main
        return [self.main_type, TaskType.EVALUATION] if own else [self.main_type]

    def data_of(self, purpose: TaskType) -> str:
        """The data of a type of work, as the user gave it."""
        return {
            TaskType.TRAINING: self._spec.training_data,
            TaskType.EVALUATION: self._spec.validation_data,
            TaskType.PREDICTION: self._spec.prediction_data,
        }[purpose]

    def shard_of(self, task: TaskId) -> Shard:
        """The range that a task stands for; an empty one for tasks without."""
        plan = self.of(task.type)
        return plan.shard_of(task) if plan is not None and plan.holds(task) else Shard("", 0, 0)

    def reading(self, task: TaskId, workers: int = 1) -> Reading | None:
        """The reading of a task's records, if they are shuffled; ``workers`` share the work now."""
        plan = self.of(task.type)
        return plan.reading(task, workers) if plan is not None and plan.holds(task) else None

    def fingerprints(self, task: TaskId, reading: Reading | None) -> dict[str, str]:
        """The fingerprints of the sources of a task's records when they were listed, where they are known."""
        plan = self.of(task.type)
        if plan is None or not plan.fingerprints or not plan.holds(task):
            return {}
        names = [plan.parts[task.index].name] if reading is None else [one.name for one in reading.from_sources]
        return {name: plan.fingerprints[name] for name in names if name in plan.fingerprints}

    def describe(self, task: TaskId) -> str:
        """Describes the place of a task's records, in words."""
        reading = self.reading(task)
        return described([self.shard_of(task)] if reading is None else reading.ranges)

    def describe_place(self, task: TaskId, position: int) -> str:
        """A place in a task, for people."""
        if not task.records:
            return f"task {task}"
        reading, name = self.reading(task), self.shard_of(task).name
        if reading is not None:
            place = min(position, task.end - 1)
            return f"{described(reading.records(place, place + 1))}, in task {task}"
        return f"record {position} of task {task} (records {task.start} to {task.end} of {name})"

    def to_mapping(self) -> dict[str, Any]:
        """Both plans as JSON data, for the durable ledger."""
        mapping = self.main.to_mapping()
        if self.columns:
            mapping["columns"] = list(self.columns)
        if self.validation is not None and self.validation is not self.main:
            mapping["validation"] = self.validation.to_mapping()["shards"]
            if self.validation.damaged:
                mapping["validation_damaged"] = dict(self.validation.damaged)
            mapping["validation_fingerprints"] = dict(self.validation.fingerprints)
        return mapping

    def adopt(self, mapping: Mapping[str, Any]) -> None:
        """Takes over what an earlier master had listed and made durable."""
        self.main.adopt(mapping)
        self.columns = mapping.get("columns")
        listed = mapping.get("validation")
        if self.validation is None or self.validation is self.main or listed is None:
            return
        own = {key: mapping.get(f"validation_{key}") for key in ("damaged", "fingerprints")}
        self.validation.adopt({**mapping, "shards": listed, "rounds": 1, "shuffle": False, **own})
