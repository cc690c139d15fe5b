"""A member's part: what it does in a generation, one operation after the other.

``GroupMember.enter`` is a generator: it yields operations and gets their results. A runner carries them out with real
collectives and a real model; a simulation with none. A collective operation (``Gather``, ``Total``, ``Send``,
``Receive``) that fails ends the generator: the runner closes it, and enters the next generation. All other operations
are the member's alone and always end well, so that what a member holds and its ``StepSchedule`` never part.

The first member leads: what comes next is its word, which goes to all with a gathering that is needed anyway.

A step: each member computes the microbatches that are dealt to it; the members gather what became of the records, and
what comes next; they sum. A member that has the sum applies it: the step counts. If some had the sum when the
generation ended and others had not, those who have it hand it on in the next one.

A newcomer to a group that holds the model is *behind* while the state is on its way to it: it is in all gatherings
and sums, computes nothing, and keeps the sums until it can apply them. So the others do not wait. It holds the model
when it has applied them all; if the generation ends before, it is a newcomer in the next one, too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.group.rendezvous import Orders
from elasticdl_core.group.steps import HeldTask, Step, StepSchedule, deal
from elasticdl_core.skips import Skips
from elasticdl_core.task import TaskId

_FORGIVING = 0.95
"""How long a microbatch is thought to take of a member that computed none, as a part of what was thought before."""


@dataclass(frozen=True, slots=True)
class Gather:
    """Exchange JSON data with all members. The result: that of each, by rank."""

    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute one's own microbatches of a step. The result: ``{"fed", "rows", "skips", "seconds", ...}``."""

    step: Step
    microbatches: Sequence[int]


@dataclass(frozen=True, slots=True)
class Follow:
    """Compute nothing in a step, as the state is still on its way; take over what has come of it.

    The result: as of ``Compute``, with ``behind``: whether anything is lacking still.
    """

    step: Step


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Wait for the rest of the state, and take it over with all sums that were kept."""


@dataclass(frozen=True, slots=True)
class Total:
    """Sum the step's contributions over all microbatches; keep the sum until the next one, unless one is alone."""

    step: Step


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply the sum that is kept, unless it is of no rows; who is behind keeps it until the state has come."""

    step: Step
    told: Sequence[Mapping[str, Any]]
    rows: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send to other ranks what they lack, and the metadata; a ``stream`` of the state goes on afterwards."""

    needs: Mapping[int, str]
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Receive:
    """Receive what one lacks from a rank and take it over.

    That is an ``update``, the ``state``, the metadata alone (``book``), or the metadata and a ``stream`` of the
    state, which is not waited for.

    The result: the metadata.
    """

    source: int
    need: str


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """Begin with what the job begins with. The result: the model version, and the tally of that."""


@dataclass(frozen=True, slots=True)
class Consult:
    """Ask what the master wants. The result: a ``GroupCommands``."""


@dataclass(frozen=True, slots=True)
class WriteShare:
    """Write this member's share of a checkpoint."""

    order: Mapping[str, Any]
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rest:
    """Do a task that is no training, if there is one; else wait a little, or until the master wants something."""

    pin: int
    solo: HeldTask | None


Operation: TypeAlias = (
    Gather | Compute | Follow | CatchUp | Total | Apply | Send | Receive | FoundGroup | Consult | WriteShare | Rest
)


@dataclass(frozen=True, slots=True)
class GroupCommands:
    """The commands of the master for the group.

    Attributes:
        entries: training tasks that the group does not know yet, in their order.
        acknowledged: tokens of reports that the master has.
        regroup: whether the members shall end this generation.
        drop: whether the tasks that are not finished are void.
        pin: the number of an evaluation that the parameters shall stay as they are for; 0 for none.
        solo: tasks that are no training.
        save: the order to write a checkpoint, if there is one.
        limit: the model version after which there are no more updates; 0 for none.
        pause_at: the model version after which there is no update until an evaluation has begun; 0 for none.
    """

    entries: Sequence[HeldTask] = ()
    acknowledged: Sequence[str] = ()
    regroup: bool = False
    drop: bool = False
    pin: int = 0
    solo: Sequence[HeldTask] = ()
    save: Mapping[str, Any] | None = None
    limit: int = 0
    pause_at: int = 0


@dataclass(frozen=True)
class TaskEnd:
    """The end of a task, for the master.

    Attributes:
        token: of its lease.
        task: its id.
        position: the records before it are done.
        account: ``{"fed", "rows", "skips"}``.
        version: the model version with it.
    """

    token: str
    task: TaskId
    position: int
    account: Mapping[str, Any]
    version: int

    def to_json(self) -> list[Any]:
        """As JSON data."""
        return [self.token, str(self.task), self.position, dict(self.account), self.version]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> TaskEnd:
        """Reads what ``to_json`` wrote."""
        return cls(str(data[0]), TaskId.parse(data[1]), int(data[2]), data[3], int(data[4]))


@dataclass
class ReplicaMetadata:
    """The metadata of the model: the schedule, and what became of the records.

    Attributes:
        schedule: steps and tasks.
        version: updates in the model.
        tally: rows in the model, by (epoch, index) of the task.
        account: of the first task of the schedule.
        ended: tasks of which the master has not acknowledged the end, by token.
    """

    schedule: StepSchedule
    version: int = 0
    tally: Counter[tuple[int, int]] = field(default_factory=Counter)
    account: dict[str, Any] = field(default_factory=lambda: {"fed": 0, "rows": 0, "skips": []})
    ended: dict[str, TaskEnd] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "course": self.schedule.to_json(),
            "version": self.version,
            "tally": [[*task, rows] for task, rows in sorted(self.tally.items())],
            "account": self.account,
            "ended": [end.to_json() for end in self.ended.values()],
        }

    @classmethod
    def parse(cls, text: str) -> ReplicaMetadata:
        """Reads ``to_json`` of a member as text, for somebody who makes no steps.

        Raises:
            InvalidInputError: it is no such text.
        """
        read = cls(StepSchedule(1, 1))
        try:
            read.adopt(json.loads(text))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(
                f"the metadata of a checkpoint cannot be read: {error!r}", fix="use this version's worker"
            ) from None
        return read

    def adopt(self, data: Mapping[str, Any]) -> None:
        """Takes over what another member's ``to_json`` wrote."""
        self.schedule.adopt(data["course"])
        self.version = int(data["version"])
        self.tally = Counter({(int(epoch), int(index)): int(rows) for epoch, index, rows in data["tally"]})
        self.account = dict(data["account"])
        self.ended = {end.token: end for end in (TaskEnd.from_json(one) for one in data["ended"])}

    def front(self) -> TaskId | None:
        """The part of the first task that is in the model; None if no task was begun."""
        if not self.schedule.entries:
            return None
        task = self.schedule.entries[0].task
        return task.front_until(self.schedule.position) if self.schedule.position > task.start else None

    def count(self, step: Step, told: Sequence[Mapping[str, Any]], rows: int) -> None:
        """A step counts."""
        fed = sum(int(one["fed"]) for one in told)
        skips = sum((Skips.from_json(one["skips"]) for one in told), Skips.from_json(self.account["skips"]))
        self.account = {
            "fed": self.account["fed"] + fed,
            "rows": self.account["rows"] + rows,
            "skips": skips.to_json(),
        }
        if rows:
            self.version += 1
            self.tally[(step.entry.task.epoch, step.entry.task.index)] += rows
        done = self.schedule.count(step)
        if done is not None:
            self._end(done, done.task.end)

    def give_up(self) -> None:
        """There are no more updates: the tasks that are not finished go back, the first with its front done."""
        for number, entry in enumerate(list(self.schedule.entries)):
            self._end(entry, self.schedule.position if number == 0 else entry.task.start)
        self.schedule.drop()

    def _end(self, entry: HeldTask, position: int) -> None:
        self.ended[entry.token] = TaskEnd(entry.token, entry.task, position, self.account, self.version)
        self.account = {"fed": 0, "rows": 0, "skips": []}


class DiffersError(Exception):
    """This member's parameters are not those of the others."""


class GroupMember:
    """The state of a member, and its operations with the others.

    Args:
        owner: its name.
        microbatches: into which a full step is cut.
        records: in a full step.

    Attributes:
        metadata: what goes with the model.
        holds: whether it holds the model.
        behind: ranks to which the state is on its way.
        keeps: whether it keeps the sum of its last step, to hand it on.
        finished: the last generation that it is done with.
        suspects: ranks that differ from the others, after a generation that ended for that.
    """

    def __init__(self, owner: str, microbatches: int, records: int) -> None:
        self.owner = owner
        self.metadata = ReplicaMetadata(StepSchedule(microbatches, records))
        self.holds = False
        self.behind: set[int] = set()
        self.keeps = False
        self.finished = 0
        self.suspects: tuple[int, ...] = ()
        self._mates: tuple[str, ...] = (owner,)
        self._seconds: list[float] = []

    def enter(self, orders: Orders) -> Generator[Operation, Any, None]:
        """Takes part in a generation until it ends as planned.

        Raises:
            DiffersError: this member's parameters differ; what it holds is void.
        """
        rank, size = orders.members.index(self.owner), len(orders.members)
        self._check_base(orders)
        self.suspects = ()
        self._seconds = [0.0] * size
        self._mates = orders.members
        self.behind = set()
        yield from self._agree(rank, size)
        told = yield Gather({"lead": (yield from self._lead(rank))})
        while True:
            decision = told[0]["lead"]
            self._follow(decision)
            if decision["save"] is not None:
                yield from self._catch_up(rank)
                yield WriteShare(decision["save"], self.metadata.to_json())
            if decision["regroup"]:
                yield from self._catch_up(
                    rank
                )  # those who come and go are not to keep it from ever holding the model
                return
            schedule, limit = self.metadata.schedule, decision["limit"]
            if limit and self.metadata.version >= limit:
                self.metadata.give_up()
            paused = 0 < decision["pause_at"] <= self.metadata.version
            if schedule.entries and not paused and not decision["pin"] and not decision["solo"]:
                told = yield from self._step(schedule.step_dealt(decision["dealt"]), rank)
            else:
                solo = decision["solo"].get(str(rank))
                yield from self._catch_up(rank)
                self.behind = set()  # all that were have caught up here
                yield Rest(decision["pin"], HeldTask.from_json(solo) if solo is not None else None)
                told = yield Gather({"lead": (yield from self._lead(rank))})

    def skip(self, orders: Orders) -> None:
        """A generation that this member is in was over before it could take part: so no step was made in it."""
        self._check_base(orders)
        self.finished = orders.generation

    def holds_for(self, orders: Orders) -> bool:
        """Whether what it holds counts in a generation: only if it held it when the last one ended."""
        return self.holds and orders.base != 0 and self.finished == orders.base

    def first_step(self, orders: Orders) -> Step | None:
        """The step that a generation begins with, if this member holds the model and all is as it knows: a guess."""
        schedule = self.metadata.schedule
        if not self.holds or not schedule.entries:
            return None
        new = [rank for rank, owner in enumerate(orders.members) if owner not in self._mates]
        return schedule.step_dealt(deal(schedule.microbatches, [0.0] * len(orders.members), new))

    def _check_base(self, orders: Orders) -> None:
        self.holds = self.holds_for(orders)

    # -- the beginning of a generation -----------------------------------------------------------------------------

    def _agree(self, rank: int, size: int) -> Generator[Operation, Any, None]:
        """Brings all members to the same state: that of the lowest rank that is furthest."""
        schedule = self.metadata.schedule
        mine = {"holds": self.holds, "steps": schedule.steps, "known": schedule.known, "left": len(schedule.entries)}
        standings = yield Gather({**mine, "keeps": self.keeps})
        steps = [one["steps"] if one["holds"] else -2 for one in standings]
        top = max(steps)
        if top < 0:
            if rank == 0:
                version, tally = yield FoundGroup()
                self.metadata = ReplicaMetadata(
                    StepSchedule(schedule.microbatches, schedule.records), version, Counter(tally)
                )
                self.holds, self.keeps = True, False
            source, needs = 0, dict.fromkeys(range(1, size), "state")
        else:
            furthest = [other for other in range(size) if steps[other] == top]
            source = next((other for other in furthest if standings[other]["keeps"]), furthest[0])
            keeps, needs = standings[source]["keeps"], {}
            for other, one in enumerate(standings):
                if steps[other] == top:
                    if any(one[key] != standings[source][key] for key in mine):
                        needs[other] = "book"
                else:
                    needs[other] = "update" if keeps and steps[other] == top - 1 else "stream"
        self.behind = {other for other, need in needs.items() if need == "stream"}
        if rank == source and needs:
            yield Send(needs, self.metadata.to_json())
        elif rank in needs:
            metadata = yield Receive(source, needs[rank])
            self.metadata.adopt(metadata)
            self.holds = rank not in self.behind
            self.keeps = self.keeps if needs[rank] == "book" else needs[rank] == "update"

    # -- steps -----------------------------------------------------------------------------------------------------

    def _step(self, step: Step, rank: int) -> Generator[Operation, Any, Sequence[Mapping[str, Any]]]:
        mine = yield Follow(step) if rank in self.behind else Compute(step, step.of(rank))
        told = yield Gather({**mine, "lead": (yield from self._lead(rank))})
        self.behind = {other for other, one in enumerate(told) if one.get("behind")}
        self.holds = rank not in self.behind
        self._compare(told, rank)
        # Who was dealt nothing for being slow is tried again, more seldom the slower it was.
        now = [float(one["seconds"]) for one in told]
        self._seconds = [one or _FORGIVING * before for one, before in zip(now, self._seconds, strict=True)]
        rows = sum(int(one["rows"]) for one in told)
        yield Total(step)
        yield Apply(step, told, rows)
        self.keeps = len(told) > 1
        self.metadata.count(step, told, rows)
        return told  # type: ignore[no-any-return]

    def _catch_up(self, rank: int) -> Generator[Operation, Any, None]:
        """Waits until this member holds the model."""
        if rank in self.behind:
            yield CatchUp()
            self.behind.discard(rank)
            self.holds = True

    def _compare(self, told: Sequence[Mapping[str, Any]], rank: int) -> None:
        """Compares the digests of all parameters; who differs from most, or from the oldest, is out."""
        found = {other: str(one["digest"]) for other, one in enumerate(told) if other not in self.behind}
        digests = list(found.values())
        if len(set(digests)) == 1:
            return
        most = max(digests, key=lambda one: (digests.count(one), -digests.index(one)))
        self.suspects = tuple(other for other, digest in found.items() if digest != most)
        if rank in self.suspects:
            self.holds = False
        raise DiffersError(
            f"members {self.suspects} differ from the others after step {self.metadata.schedule.steps}"
        )

    # -- what comes next -------------------------------------------------------------------------------------------

    def _lead(self, rank: int) -> Generator[Operation, Any, dict[str, Any] | None]:
        """The decision on what comes next, if this is the member that makes it."""
        if rank != 0:
            return None
        commands: GroupCommands = yield Consult()
        members = range(len(self._seconds))
        solo = {str(rank): entry.to_json() for rank, entry in zip(reversed(members), commands.solo, strict=False)}
        return {
            "entries": [entry.to_json() for entry in commands.entries],
            "acknowledged": list(commands.acknowledged),
            "regroup": commands.regroup,
            "drop": commands.drop,
            "pin": commands.pin,
            "solo": solo,
            "save": commands.save,
            "limit": commands.limit,
            "pause_at": commands.pause_at,
            "dealt": list(deal(self.metadata.schedule.microbatches, self._seconds, self.behind)),
        }

    def _follow(self, decision: Mapping[str, Any]) -> None:
        metadata = self.metadata
        if decision["drop"]:
            metadata.schedule.drop()
        metadata.schedule.add([HeldTask.from_json(entry) for entry in decision["entries"]])
        for token in decision["acknowledged"]:
            metadata.ended.pop(token, None)
