"""A world in which a group trains: one master, members that come, go, die and stop, and messages that take time.

The model of a member is the list of the records that were applied to it, in their order. Everything random comes from
one seed.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any

from elasticdl_core.group.member import (
    Apply,
    CatchUp,
    Compute,
    Consult,
    DiffersError,
    Follow,
    FoundGroup,
    Gather,
    GroupCommands,
    GroupMember,
    Operation,
    Receive,
    Rest,
    Send,
    Total,
    WriteShare,
)
from elasticdl_core.group.rendezvous import Meeting, Orders, Rendezvous, RendezvousRecord
from elasticdl_core.group.steps import HeldTask
from elasticdl_core.task import TaskId, TaskType

Records = tuple[tuple[int, int, int], ...]
MEET_S = 0.2
LOOK_S = 0.1
AHEAD = 3


@dataclass
class Stream:
    """The model on its way to a newcomer.

    Attributes:
        params: as they were when it began.
        arrives: when all of it is there.
        sums: what was applied elsewhere since.
    """

    params: list[tuple[int, int, int]]
    arrives: float
    sums: list[list[tuple[int, int, int]]] = field(default_factory=list)


@dataclass
class Process:
    """One member's process."""

    name: str
    member: GroupMember
    slow: float = 1.0
    alive: bool = True
    stopped: bool = False
    leaving: bool = False
    params: list[tuple[int, int, int]] = field(default_factory=list)
    orders: Orders | None = None
    running: Generator[Operation, Any, None] | None = None
    suspects: tuple[str, ...] = ()
    held_back: list[Callable[[], None]] = field(default_factory=list)
    stream: Stream | None = None
    followed: int = 0
    computed: int = 0
    generations: int = 0


@dataclass
class Link:
    """The collectives of one generation."""

    members: tuple[str, ...]
    broken: bool = False
    calls: dict[str, int] = field(default_factory=dict)
    gathers: dict[int, dict[str, Any]] = field(default_factory=dict)
    sent: dict[str, tuple[Send, list[tuple[int, int, int]], tuple[int, int, int] | None]] = field(
        default_factory=dict
    )
    receivers: dict[str, Receive] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)


class GroupWorld:
    """The world.

    Args:
        seed: of all that is random.
        tasks: sizes of the tasks.
        microbatches: in a step.
        size: records in a step.
        stream_s: how long the model is on its way to a newcomer at most, while the others go on.
    """

    def __init__(
        self, seed: int, tasks: list[int], microbatches: int = 4, size: int = 8, *, stream_s: float = 0.1
    ) -> None:
        self.stream_s = stream_s
        self.random = random.Random(seed)
        self.now = 0.0
        self.microbatches, self.size = microbatches, size
        self.tasks = [TaskId(TaskType.TRAINING, 0, index, 0, records) for index, records in enumerate(tasks)]
        self.todo = list(self.tasks)
        self.held: list[HeldTask] = []
        self.done: list[TaskId] = []
        self.processes: dict[str, Process] = {}
        self.links: dict[int, Link] = {}
        self.master: Rendezvous | None = None
        self.record = RendezvousRecord()
        self.checkpoint: Records = ()
        self.shares: dict[int, dict[str, tuple[int, Records]]] = {}
        self.save_number = 0
        self.saving = False
        self.pin = self.pause_at = 0
        self.epoch = 0
        self.rollbacks = 0
        self.founded = False
        self.trail: list[str] = []
        self._tokens = itertools.count(1)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._names = itertools.count()

    # -- time ------------------------------------------------------------------------------------------------------

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Has something happen later."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), action))

    def run(self, until: Callable[[], bool], seconds: float) -> bool:
        """Lets time pass until something is so; returns whether it came to be."""
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            if until():
                return True
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = end
        return until()

    def _delay(self) -> float:
        return self.random.choice((0.0005, 0.001, 0.002, 0.01, 0.05)) * (0.5 + self.random.random())

    # -- the master ------------------------------------------------------------------------------------------------

    def start_master(self) -> None:
        """A master begins, or takes over."""
        self.epoch += 1
        master = Rendezvous(self.epoch * 1_000_000)
        if self.epoch > 1:
            master.restore(self.record, self.now)
        self.master = master
        if not self.founded:
            self.founded = True
            master.found(self.now)
        self._after_master()
        self.after(LOOK_S, lambda: self._look(master))

    def kill_master(self) -> None:
        """The master dies."""
        self.master = None

    def _look(self, master: Rendezvous) -> None:
        if self.master is not master:
            return
        master.look(self.now)
        self._after_master()
        self.after(LOOK_S, lambda: self._look(master))

    def _after_master(self) -> None:
        master = self.master
        assert master is not None
        if master.lost_model:
            self._roll_back()
            master.found(self.now)
        self.record = RendezvousRecord.from_json(master.record().to_json())

    def _roll_back(self) -> None:
        """Everything goes back to the last checkpoint: what is not in it is to do again."""
        self.rollbacks += 1
        self.trail.append(
            f"{self.now:.2f} rolled back to {len(self.checkpoint)}, held {[str(e.task) for e in self.held]}"
        )
        self.held, self.saving = [], False
        within = set(self.checkpoint)
        todo: list[TaskId] = []
        for task in self.tasks:
            rest = [one for one in range(task.end) if (task.index, one, one + 1) not in within]
            if rest:
                todo.append(replace(task, start=rest[0]))
        self.todo = todo
        self.done = [task for task in self.tasks if task.index not in {one.index for one in todo}]

    def _lease(self) -> None:
        while self.todo and len(self.held) < AHEAD:
            self.held.append(HeldTask(f"{self.epoch}.{next(self._tokens)}.x", self.todo.pop(0)))

    def toggle_evaluation(self) -> None:
        """The master wants the parameters to stay as they are for a while, or no longer."""
        self.pin = 1 - self.pin

    def order_save(self) -> None:
        """The master wants a checkpoint."""
        self.save_number += 1
        self.saving = True

    # -- processes -------------------------------------------------------------------------------------------------

    def start_process(self) -> Process:
        """A worker starts."""
        name = f"worker-{next(self._names)}"
        member = GroupMember(name, self.microbatches, self.size)
        process = self.processes[name] = Process(name, member, slow=self.random.choice((1.0, 1.0, 3.0)))
        self.after(self.random.random(), lambda: self._meet(process))
        return process

    @property
    def living(self) -> list[Process]:
        """Processes that are alive."""
        return [one for one in self.processes.values() if one.alive]

    def kill(self, process: Process) -> None:
        """SIGKILL."""
        process.alive = False
        process.running = None
        self._break(process, self._delay())
        master = self.master
        if self.random.random() < 0.7 and master is not None:  # else the master finds out by the silence
            self.after(self._delay(), lambda: self._exited(master, process))

    def _exited(self, master: Rendezvous, process: Process) -> None:
        if self.master is master:
            master.lost(process.name, f"{process.name} was killed", self.now)
            self._after_master()

    def stop(self, process: Process) -> None:
        """SIGSTOP: nothing happens in it, and nobody is told."""
        process.stopped = True

    def go_on(self, process: Process) -> None:
        """SIGCONT."""
        process.stopped = False
        held, process.held_back = process.held_back, []
        for action in held:
            self.after(0.0, action)

    def _in(self, process: Process, action: Callable[[], None]) -> None:
        """Something happens in a process, unless it is dead; when it is stopped, later."""
        if process.stopped:
            process.held_back.append(lambda: self._in(process, action))
        elif process.alive:
            action()

    def _break(self, process: Process, seconds: float) -> None:
        """A member leaves the collectives of its generation: the others notice."""
        orders = process.orders
        if orders is None:
            return
        link = self.links[orders.generation]
        link.broken = True
        for name in link.members:
            other = self.processes[name]
            if other is not process:
                self.after(
                    seconds + self._delay(),
                    lambda other=other: self._in(other, lambda: self._failed(other, orders, process)),
                )  # type: ignore[misc]

    def _failed(self, process: Process, orders: Orders, culprit: Process | None) -> None:
        if _same(process, orders):
            process.suspects = (culprit.name,) if culprit is not None else ()
            self._get_out(process)
            self._meet(process, again=False)

    def _get_out(self, process: Process) -> None:
        if process.running is not None:
            process.running.close()
            process.running = None
        process.stream = None
        if process.orders is not None:
            process.member.finished = max(process.member.finished, process.orders.generation)
            process.orders = None

    # -- a member and its master -----------------------------------------------------------------------------------

    def _meet(self, process: Process, *, again: bool = True) -> None:
        if again and process.alive:
            self.after(
                MEET_S * (0.8 + 0.4 * self.random.random()), lambda: self._in(process, lambda: self._meet(process))
            )
        if self.master is None or not process.alive:
            return
        member = process.member
        meeting = Meeting(process.name, member.finished, member.holds, process.leaving, process.suspects)
        master = self.master
        self.after(self._delay(), lambda: self._arrives(master, process, meeting))

    def _arrives(self, master: Rendezvous, process: Process, meeting: Meeting) -> None:
        if self.master is not master:
            return
        master.meet(meeting, self.now)
        self._after_master()
        orders, dismissed = master.orders(), master.dismisses(process.name)
        if self.random.random() < 0.05:
            return  # the answer is lost
        self.after(self._delay(), lambda: self._in(process, lambda: self._obey(process, orders, dismissed)))

    def _obey(self, process: Process, orders: Orders, dismissed: bool) -> None:
        mine = process.orders
        if mine is not None and (
            orders.generation > mine.generation or (orders.generation == mine.generation and orders.is_over)
        ):
            self._break(process, 0.0)
            self._get_out(process)
            self._meet(process, again=False)
            return
        if process.leaving and process.orders is None and dismissed:
            process.alive = False
            return
        mine_now = orders.generation > process.member.finished and process.name in orders.members
        if mine is None and mine_now and orders.is_over:
            process.member.skip(orders)
            self._meet(process, again=False)
        elif mine is None and mine_now:
            process.orders, process.suspects = orders, ()
            process.generations += 1
            self.links.setdefault(orders.generation, Link(orders.members))
            process.running = process.member.enter(orders)
            self._advance(process, None)

    # -- operations ------------------------------------------------------------------------------------------------

    def _advance(self, process: Process, result: Any) -> None:
        """A member goes on with the result of its operation."""
        orders, running = process.orders, process.running
        if running is None or orders is None:
            return
        try:
            operation = running.send(result)
        except StopIteration:
            self._get_out(process)
            self._meet(process, again=False)
            return
        except DiffersError:
            process.suspects = tuple(orders.members[rank] for rank in process.member.suspects)
            self._break(process, 0.0)
            self._get_out(process)
            self._meet(process, again=False)
            return
        self._begin(process, orders, operation)

    def _reply(self, process: Process, orders: Orders, result: Any, seconds: float) -> None:
        def arrive() -> None:
            if _same(process, orders):
                self._advance(process, result)

        self.after(seconds, lambda: self._in(process, arrive))

    def _reply_from_all(self, process: Process, orders: Orders, result: Any) -> None:
        """The result of a collective: it may arrive, or the generation may break before."""
        self._reply(process, orders, result, self._delay())

    def _begin(self, process: Process, orders: Orders, operation: Operation) -> None:
        link, name = self.links[orders.generation], process.name
        match operation:
            case Gather() | Total():
                number = link.calls[name] = link.calls.get(name, 0) + 1
                given = link.gathers.setdefault(number, {})
                given[name] = operation.data if isinstance(operation, Gather) else None
                if len(given) == len(link.members):
                    data = [given[one] for one in link.members]
                    for one in link.members:
                        self._reply_from_all(self.processes[one], orders, data)
            case Send(needs):
                last = process.params[-1] if process.params else None
                link.sent[name] = (operation, list(process.params), last)
                link.pending |= {orders.members[rank] for rank in needs}
                self._deliver(orders, process)
            case Receive(source, _):
                link.receivers[name] = operation
                self._deliver(orders, self.processes[orders.members[source]])
            case Compute(_, microbatches):
                info = {
                    "fed": 0,
                    "rows": 0,
                    "skips": [],
                    "seconds": 0.01 * process.slow if microbatches else 0.0,
                    "digest": str(hash(tuple(process.params))),
                }
                process.computed += len(microbatches)
                for microbatch in microbatches:
                    start, end = operation.step.bounds(microbatch)
                    info["fed"] += end - start  # type: ignore[operator]
                    info["rows"] += end - start  # type: ignore[operator]
                self._reply(process, orders, info, 0.01 * process.slow * len(microbatches))
            case Follow():
                process.followed += 1
                self._take_some(process)
                behind = process.stream is not None
                info = {"fed": 0, "rows": 0, "skips": [], "seconds": 0.0, "behind": behind}
                digest = "" if behind else str(hash(tuple(process.params)))
                self._reply(process, orders, {**info, "digest": digest}, 0.001)
            case CatchUp():
                assert process.stream is not None
                self._reply(process, orders, None, max(0.0, process.stream.arrives - self.now))
                process.params = process.stream.params + [one for sums in process.stream.sums for one in sums]
                process.stream = None
            case Apply(step, _, rows):
                assert rows == step.end - step.start
                index = step.entry.task.index
                records = [(index, at, at + 1) for at in range(step.start, step.end)]
                if process.stream is not None:
                    process.stream.sums.append(records)
                else:
                    process.params += records
                self._advance(process, None)
            case FoundGroup():
                process.params = list(self.checkpoint)
                self.trail.append(f"{self.now:.2f} {process.name} founds {orders.generation}, todo {len(self.todo)}")
                version = len(self.checkpoint)
                self._reply(process, orders, (version, {}), self._delay())
            case Consult():
                self._advance(process, self._commands(process))
            case WriteShare(order, _):
                self._share(process, orders, int(order["number"]))
                self._advance(process, None)
            case Rest():
                self._reply(process, orders, None, 0.05)

    def _take_some(self, process: Process) -> None:
        """Takes over the model, when it is there, and of the sums since as many as there is time for."""
        stream = process.stream
        if stream is None or self.now < stream.arrives:
            return
        for _ in range(min(2, len(stream.sums))):
            stream.params += stream.sums.pop(0)
        if not stream.sums:
            process.params, process.stream = stream.params, None

    def _deliver(self, orders: Orders, source: Process) -> None:
        link = self.links[orders.generation]
        sent = link.sent.get(source.name)
        if sent is None:
            return
        operation, params, _ = sent
        for rank, need in operation.needs.items():
            name = orders.members[rank]
            receive = link.receivers.pop(name, None)
            if receive is None:
                continue
            assert receive.need == need
            self.after(
                self._delay(),
                lambda name=name, need=need: self._in(
                    self.processes[name], lambda: self._take(orders, name, need, params, operation.metadata)
                ),
            )  # type: ignore[misc]
            link.pending.discard(name)
        if not link.pending:
            self._reply_from_all(source, orders, None)

    def _take(self, orders: Orders, name: str, need: str, params: list[tuple[int, int, int]], metadata: Any) -> None:
        process = self.processes[name]
        if not _same(process, orders):
            return
        if need == "update":
            assert process.params == params[: len(process.params)]
            process.params = list(params)
        elif need == "state":
            process.params = list(params)
        elif need == "stream":
            process.params = []
            process.stream = Stream(list(params), self.now + self.stream_s * self.random.random())
        else:
            assert process.params == params
        self._advance(process, metadata)

    def _share(self, process: Process, orders: Orders, number: int) -> None:
        if self.master is None or orders.generation != self.master.generation:
            return
        shares = self.shares.setdefault(number, {})
        shares[process.name] = (process.member.metadata.schedule.steps, tuple(process.params))
        if set(shares) >= set(orders.members) and len({shares[one] for one in orders.members}) == 1:
            self.checkpoint = shares[orders.members[0]][1]
            self.trail.append(f"{self.now:.2f} saved {len(self.checkpoint)} in {orders.generation}")
            self.saving = False

    # -- what the leader learns ------------------------------------------------------------------------------------

    def _commands(self, process: Process) -> GroupCommands:
        member, mine = process.member, process.orders
        if self.master is None or mine is None or mine.generation != self.master.generation:
            return GroupCommands()  # who is not in the present generation is not heard
        if not self.master.established:
            return GroupCommands()  # the master does not know yet that there is a model to count anything in
        acknowledged = []
        for token, end in list(member.metadata.ended.items()):
            acknowledged.append(token)
            held = next((entry for entry in self.held if entry.token == token), None)
            if held is not None:  # else it was reported before
                assert end.position == held.task.end
                self.held.remove(held)
                self.done.append(held.task)
        self._lease()
        known = [entry.token for entry in member.metadata.schedule.entries]
        last = member.metadata.schedule.last
        fresh = [entry for entry in self.held if entry.token not in known and _order(entry.token) > _order(last)]
        save = {"number": self.save_number} if self.saving and self.save_number not in self.shares else None
        regroup = self.master.orders().regroup
        return GroupCommands(fresh, acknowledged, regroup=regroup, pin=self.pin, save=save, pause_at=self.pause_at)

    # -- the end ---------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether every task is reported."""
        return not self.todo and not self.held

    def check(self) -> None:
        """Whoever is in the group has each record exactly once, in the same order."""
        assert self.master is not None
        holders = [self.processes[name] for name in self.master.members if self.processes[name].alive]
        wanted = sorted((task.index, at, at + 1) for task in self.tasks for at in range(task.end))
        full = [one for one in holders if len(one.params) == len(wanted)]
        assert full, "nobody has the whole model"
        for one in full:
            assert sorted(one.params) == wanted, "a record is missing or there twice"
            assert one.params == full[0].params, "members applied other steps, or in another order"


def _order(token: str) -> tuple[int, int]:
    if not token:
        return (0, 0)
    epoch, counter, _ = token.split(".")
    return int(epoch), int(counter)


def _same(process: Process, orders: Orders) -> bool:
    """Whether a process is still in the generation of some orders."""
    mine = process.orders
    return mine is not None and process.running is not None and mine.generation == orders.generation
