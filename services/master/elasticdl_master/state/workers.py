"""The workers of a job: how many there are, how they are, why they died, and who comes or goes next."""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from elasticdl_core.ports.launcher import ProcessState, ProcessStatus, Role
from elasticdl_core.process_life import EndCause, cause_of_exit
from elasticdl_core.task import Lease, LeaseToken, TaskId, TaskType
from elasticdl_master.state.events import WorkerHeartbeat
from elasticdl_master.state.instructions import Instruction, LaunchWorker, TerminateWorker
from elasticdl_master.state.limits import Limits
from elasticdl_master.state.lives import ProcessLives

_LONG_PHASES = frozenset({"starting", "compiling"})
_BEATS = 3
"""So many heartbeats missing in a row make a worker the first to be drained."""


GROUP = "group"
"""Owner of the leases of a group: they are all members' together, and end with none of them."""


class WorkerState(enum.StrEnum):
    """States of a worker."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    LEAVING = "leaving"
    GONE = "gone"


MEMORY_LOSSES_S = 600.0
"""For so long a worker that ran out of memory is told of in the job's status."""


class Death(enum.StrEnum):
    """Why a worker ended."""

    EXPECTED = "expected"
    PREEMPTED = "preempted"
    KILLED = "killed"
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"
    LOST = "lost"
    """With its machine or its launcher."""


@dataclass
class Worker:
    """One incarnation of one worker."""

    index: int
    incarnation: int
    state: WorkerState = WorkerState.PENDING
    memory_mib: int = 0
    since: float = 0.0
    phase: str = "starting"
    records: int = 0
    steps: int = 0
    samples_per_second: float = 0.0
    model_version: int = 0
    step_p95_s: float = 0.0
    loss: float | None = None
    last_heartbeat: float = 0.0
    last_progress: float = 0.0
    reports: int = 0
    registered: bool = False
    finished: bool = False
    dismissed: bool = False
    holds_model: bool = True
    awaited: bool = False
    stuck: bool = False
    leave_at: float = float("inf")
    taken: tuple[TaskId, int] | None = None
    training_metrics: dict[str, float] = field(default_factory=dict)
    training_metrics_version: int = 0
    step: dict[str, float] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    leases: dict[str, TaskId] = field(default_factory=dict)

    @functools.cached_property
    def owner(self) -> str:
        """Name in leases and traces."""
        return f"{Role.WORKER}-{self.index}.{self.incarnation}"

    @property
    def in_hand(self) -> tuple[TaskId, int] | None:
        """The task that it works on, or had when it was last heard of, and the record up to which it got."""
        if self.taken is not None:
            return self.taken
        return next(((task, self.positions.get(token, task.start)) for token, task in self.leases.items()), None)

    @property
    def staying(self) -> bool:
        """Whether it counts towards the target."""
        return self.state in (WorkerState.PENDING, WorkerState.STARTING, WorkerState.RUNNING)


class WorkerPool:
    """All workers of a job.

    Args:
        limits: times and budgets.
        memory_mib: memory limit of a worker; 0 for none.
        memory_losses: when workers ran out of memory, of the last ``MEMORY_LOSSES_S``.
        first_incarnation: incarnation of an index that was never seen; grows with the master's epoch when what
            earlier masters launched is not known.
        lives: hears what becomes of each.
    """

    def __init__(
        self, limits: Limits, memory_mib: int, first_incarnation: int = 0, lives: ProcessLives | None = None
    ) -> None:
        self.limits = limits
        self._lives = lives or ProcessLives()
        self.memory_mib = memory_mib
        self.first_incarnation = first_incarnation
        self.workers: dict[int, Worker] = {}
        self._by_owner: dict[str, Worker] = {}
        self._group: Worker | None = None
        self._group_leases: Sequence[Lease] = ()
        self._group_state = (0, "")
        self._parsed: dict[str, Lease] = {}
        self.next_incarnation: dict[int, int] = {}
        self.crashes = 0
        self.memory_losses: list[float] = []
        self.kills = 0
        self._losses = 0
        self._asked_memory_mib = memory_mib
        self._not_before = 0.0

    def add_group(self) -> None:
        """Makes a holder of leases that is no worker: the group of all."""
        self._group = Worker(-1, 0, WorkerState.RUNNING)
        self._group.__dict__["owner"] = GROUP
        self._by_owner[GROUP] = self._group

    @property
    def group_leases(self) -> Sequence[Lease]:
        """The leases of the group, in the order in which they were taken."""
        held = self._group.leases if self._group is not None else {}
        # Asked for with each word of a member, and there may be thousands. Tokens are new each: what has as many and
        # the same last one is the same.
        state = (len(held), next(reversed(held), ""))
        if state != self._group_state:
            known = self._parsed
            self._parsed = {
                token: known.get(token) or Lease(task, GROUP, LeaseToken.parse(token)) for token, task in held.items()
            }
            self._group_leases = sorted(
                self._parsed.values(), key=lambda lease: (lease.token.epoch, lease.token.counter)
            )
            self._group_state = state
        return self._group_leases

    @property
    def _holders(self) -> list[Worker]:
        return self.living if self._group is None else [*self.living, self._group]

    @property
    def living(self) -> list[Worker]:
        """Workers that are not gone, by index."""
        return [worker for _, worker in sorted(self.workers.items()) if worker.state is not WorkerState.GONE]

    @property
    def running(self) -> list[Worker]:
        """Workers that have registered and are to stay."""
        return [worker for worker in self.living if worker.state is WorkerState.RUNNING]

    def by_owner(self, owner: str) -> Worker | None:
        """The worker of that name, if it is the present one of its index."""
        return self._by_owner.get(owner)

    def knows(self, index: int, incarnation: int) -> bool:
        """Whether that is the present worker of an index, and alive as far as is known."""
        worker = self.workers.get(index)
        return worker is not None and worker.incarnation == incarnation and worker.state is not WorkerState.GONE

    def holds(self, owner: str, token: str) -> bool:
        """Whether a worker, or the group that it is in, has a lease."""
        return self._holder(owner, token) is not None

    def _holder(self, owner: str, token: str) -> Worker | None:
        return next((one for one in (self.by_owner(owner), self._group) if one and token in one.leases), None)

    def leases(self) -> list[tuple[Worker, str, TaskId]]:
        """Everything that living workers, and their group, hold: worker, token, task."""
        return [(worker, token, task) for worker in self._holders for token, task in worker.leases.items()]

    def count_leases(self) -> int:
        """Number of tasks that living workers, and their group, hold."""
        return sum(len(worker.leases) for worker in self._holders)

    def is_living(self, owner: str) -> bool:
        """Whether an owner of leases is a worker that lives, or the group of those."""
        return any(worker.owner == owner for worker in self._holders)

    def training_in_hand(self) -> list[TaskId]:
        """The training tasks that living workers hold."""
        return [task for _, _, task in self.leases() if task.type is TaskType.TRAINING]

    def take_training_back(self) -> None:
        """Takes all training tasks from their workers."""
        for worker, token, task in self.leases():
            if task.type is TaskType.TRAINING:
                worker.leases.pop(token)

    def take_all_back(self, *, but: TaskType) -> None:
        """Takes all tasks but those of a type from their workers."""
        for worker in self._holders:
            worker.leases = {token: task for token, task in worker.leases.items() if task.type is but}

    def _put(self, worker: Worker) -> None:
        before = self.workers.get(worker.index)
        if before is not None:
            del self._by_owner[before.owner]
        self.workers[worker.index] = self._by_owner[worker.owner] = worker

    # -- what is heard ---------------------------------------------------------------------------------------------

    def register(self, index: int, incarnation: int, now: float) -> Worker | None:
        """Registers a worker. Returns it, or None if a newer incarnation has taken its place or it was seen dead."""
        worker = self.workers.get(index)
        if worker is not None:
            dead = worker.incarnation == incarnation and worker.state is WorkerState.GONE
            if dead or worker.incarnation > incarnation:
                return None
        if worker is None or worker.incarnation < incarnation:
            worker = Worker(index, incarnation, since=now, memory_mib=self.memory_mib)
            self._put(worker)
            self._remember(index, incarnation)
        if worker.state in (WorkerState.PENDING, WorkerState.STARTING):
            worker.state = WorkerState.RUNNING
            worker.last_progress = now
        if not worker.registered:
            worker.registered = True
            self._lives.ready(Role.WORKER, index, incarnation)
        worker.last_heartbeat = now
        return worker

    def heartbeat(self, beat: WorkerHeartbeat, now: float) -> Worker | None:
        """Takes in a heartbeat; returns the worker, or None as ``register`` does."""
        worker = self.register(beat.index, beat.incarnation, now)
        if worker is None:
            return None
        worker.phase, worker.step_p95_s = beat.phase, beat.step_p95_s
        # Only records count: of the tasks in hand, or trained in whatever order. A new task or phase is no progress.
        further = any(at > worker.positions.get(token, at) for token, at in beat.positions.items())
        if further or (beat.records, beat.steps) != (worker.records, worker.steps) or not worker.leases:
            worker.last_progress, worker.taken = now, None
        worker.records, worker.steps = beat.records, beat.steps
        worker.samples_per_second = beat.samples_per_second
        worker.loss = beat.loss
        worker.training_metrics = dict(beat.training_metrics)
        worker.training_metrics_version = beat.training_metrics_version
        worker.step = dict(beat.step)
        worker.model_version = max(worker.model_version, beat.model_version)
        worker.positions = dict(beat.positions)
        return worker

    def leased(self, lease: Lease, now: float) -> None:
        """Notes who holds what. A worker that had nothing has its time for the first record from now on."""
        worker = self.by_owner(lease.owner)
        if worker is not None:
            worker.leases[str(lease.token)] = lease.task
            if len(worker.leases) == 1:
                worker.last_progress = now

    def held_before(self, lease: Lease) -> None:
        """Notes a lease that an earlier master gave."""
        worker = self.by_owner(lease.owner)
        if worker is not None and worker.staying:
            worker.leases[str(lease.token)] = lease.task

    def settled(self, owner: str, token: str, now: float) -> None:
        """A lease ended well: that is progress, and budgets of the whole job start anew."""
        worker = self._holder(owner, token) or self.by_owner(owner)
        if worker is not None:
            worker.leases.pop(token, None)
            worker.reports += 1
            worker.last_progress = now
        self.crashes = self.kills = self._losses = 0

    def released(self, owner: str, token: str) -> None:
        """A worker gave a lease back."""
        holder = self._holder(owner, token)
        if holder is not None:
            holder.leases.pop(token)

    def dropped(self, owner: str, token: str, *, training: bool) -> None:
        """A lease ended badly."""
        worker = self._holder(owner, token)
        if worker is None:
            return
        if training:
            worker.taken = worker.in_hand
        worker.leases.pop(token)

    def process(self, status: ProcessStatus, now: float) -> tuple[Worker, Death] | None:
        """Takes in how a process stands. Returns the worker and why it died, when it just did."""
        index, incarnation = status.id.index, status.id.incarnation
        self._remember(index, incarnation)
        worker = self.workers.get(index)
        if worker is None or worker.incarnation < incarnation:
            if status.state is ProcessState.EXITED and worker is not None and worker.state is not WorkerState.GONE:
                return None
            worker = Worker(index, incarnation, since=now, memory_mib=self.memory_mib)
            self._put(worker)
            if status.state is ProcessState.EXITED:
                worker.state = WorkerState.GONE
                return None
        if worker.incarnation > incarnation or worker.state is WorkerState.GONE:
            return None
        if status.state is ProcessState.RUNNING and worker.state is WorkerState.PENDING:
            worker.state, worker.since, worker.last_progress = WorkerState.STARTING, now, now
        if status.state is not ProcessState.EXITED:
            return None
        death = _death(worker, status)
        why, expected = _cause(worker, death, status), death is Death.EXPECTED
        words = "it made no progress" if worker.stuck else ""
        self._lives.ended(Role.WORKER, index, incarnation, why, status, announce=expected, message=words)
        worker.state = WorkerState.GONE
        return worker, death

    def _remember(self, index: int, incarnation: int) -> None:
        self.next_incarnation[index] = max(self.next_incarnation.get(index, 0), incarnation + 1)

    # -- budgets ---------------------------------------------------------------------------------------------------

    def may_grow(self, worker: Worker) -> bool:
        """Whether the next worker gets more memory than one that ran out of it had."""
        most = int(self._asked_memory_mib * self.limits.memory_limit)
        return bool(self.memory_mib) and (worker.memory_mib < self.memory_mib or self.memory_mib < most)

    def charge(self, worker: Worker, death: Death, now: float) -> str:
        """Counts a death; one with the machine says nothing against the job. Returns why it must fail, or nothing."""
        if death in (Death.EXPECTED, Death.PREEMPTED):
            return ""
        if death is Death.LOST:
            self._losses += 1
        elif death is Death.CRASHED:
            self.crashes += 1
        else:
            self.kills += 1
        before = self.crashes + self.kills + self._losses
        self._not_before = now + min(30.0, 0.25 * 2.0 ** min(before, 10))
        if death is Death.OUT_OF_MEMORY:
            self.memory_losses.append(now)
        if death is Death.OUT_OF_MEMORY and self.memory_mib:
            if not self.may_grow(worker):
                return f"workers run out of memory, even with {self.memory_mib} MiB"
            if worker.memory_mib >= self.memory_mib:
                # One step at a time, also when several run out of what they had at once.
                most = int(self._asked_memory_mib * self.limits.memory_limit)
                self.memory_mib = min(most, int(self.memory_mib * self.limits.memory_growth))
        if self.crashes >= self.limits.crashes * max(1, len(self.living)):
            return f"workers crashed {self.crashes} times without finishing a task"
        if self.kills >= self.limits.kills:
            return f"workers were killed {self.kills} times without finishing a task"
        return ""

    # -- how many --------------------------------------------------------------------------------------------------

    def reconcile(self, target: int, now: float) -> list[Instruction]:
        """Makes the number of staying workers equal the target: launches, or drains the least useful ones.

        Those that have not begun go first, then those that are silent or, of a group, do not hold the model.
        """
        self.memory_losses = [at for at in self.memory_losses if at > now - MEMORY_LOSSES_S]
        staying = [worker for worker in self.living if worker.staying]
        if len(staying) > target:
            staying.sort(key=lambda worker: self._worth(worker, now))
            return [one for worker in staying[: len(staying) - target] for one in self.drain(worker, now)]
        if now < self._not_before:
            return []
        return [self._launch(now) for _ in range(target - len(staying))]

    def _worth(self, worker: Worker, now: float) -> tuple[bool, bool, int]:
        running = worker.state is WorkerState.RUNNING
        speaks = now - worker.last_heartbeat <= _BEATS * self.limits.heartbeat_s
        return running, running and speaks and worker.holds_model, -worker.index

    def _launch(self, now: float) -> Instruction:
        taken = {worker.index for worker in self.living}
        index = next(number for number in range(len(taken) + 1) if number not in taken)
        incarnation = self.next_incarnation.get(index, self.first_incarnation)
        self._put(Worker(index, incarnation, since=now, memory_mib=self.memory_mib))
        self._remember(index, incarnation)
        self._lives.launched(Role.WORKER, index, incarnation)
        return LaunchWorker(index, incarnation, self.memory_mib)

    def drain(self, worker: Worker, now: float) -> list[Instruction]:
        """Tells a worker to return what it has and leave; one that has not registered is stopped at once."""
        if worker.state is WorkerState.RUNNING:
            worker.state, worker.leave_at = WorkerState.DRAINING, now + self.limits.drain_s
            self._lives.drained(Role.WORKER, worker.index, worker.incarnation)
            return []
        return self.stop(worker, self.limits.leave_s) if worker.staying else []

    def stop(self, worker: Worker, grace_s: float) -> list[Instruction]:
        """Stops a worker."""
        worker.state, worker.leave_at = WorkerState.LEAVING, float("inf")
        self._lives.drained(Role.WORKER, worker.index, worker.incarnation)
        return [TerminateWorker(worker.index, worker.incarnation, grace_s)]

    def overdue(self, now: float, *, watch: bool, hears: bool = True) -> list[tuple[Worker, str]]:
        """Workers that must go: drained too long, silent, or without progress; and why ('' if drained).

        Args:
            now: the time.
            watch: whether missing progress means anything (not while the PS are away).
            hears: whether missing heartbeats do: they come whether there is anything to do or not.
        """
        found = []
        for worker in self.living:
            if worker.state is WorkerState.DRAINING and now >= worker.leave_at and not worker.awaited:
                found.append((worker, ""))
            elif worker.state is WorkerState.STARTING and watch and now - worker.since > self.limits.start_s:
                found.append((worker, f"did not register within {self.limits.start_s:.0f} s of its start"))
            elif worker.state is WorkerState.RUNNING:
                silent = now - worker.last_heartbeat
                if hears and silent > self.limits.silent_s:
                    found.append((worker, f"sent no heartbeat for {silent:.0f} s"))
                elif watch and (reason := self._stuck(worker, now)):
                    found.append((worker, reason))
        return found

    def _stuck(self, worker: Worker, now: float) -> str:
        allowed = max(self.limits.stuck_s, self.limits.stuck_steps * worker.step_p95_s)
        if any(task.type is TaskType.EXPORT for task in worker.leases.values()):
            allowed = max(allowed, self.limits.export_s)
        elif worker.phase in _LONG_PHASES or not any(task.records for task in worker.leases.values()):
            allowed = max(allowed, self.limits.start_s)
        if worker.leases and now - worker.last_progress > allowed:
            return f"made no progress for {now - worker.last_progress:.0f} s while {worker.phase or 'working'}"
        return ""

    def stop_staying(self) -> list[Instruction]:
        """Stops every worker that was to stay."""
        return [one for worker in self.living if worker.staying for one in self.stop(worker, self.limits.leave_s)]

    def spare(self, now: float) -> None:
        """Starts all clocks of progress anew, after the PS were away."""
        for worker in self.living:
            worker.last_progress = now
            worker.last_heartbeat = now
            if worker.state is WorkerState.STARTING:
                worker.since = now


def _death(worker: Worker, status: ProcessStatus) -> Death:
    if worker.stuck:
        return Death.KILLED
    # The whole job pauses where nobody drains a worker by itself.
    dismissed = worker.dismissed and status.exit_code == 0
    if worker.finished or dismissed or worker.state in (WorkerState.DRAINING, WorkerState.LEAVING):
        return Death.EXPECTED
    cause = cause_of_exit(status)
    return Death.LOST if cause is EndCause.STOPPED else Death(cause)


def _cause(worker: Worker, death: Death, status: ProcessStatus) -> EndCause:
    """Why a worker ended, for its life's record; told before its state changes."""
    if worker.stuck:
        return EndCause.KILLED
    if death is not Death.EXPECTED:
        return cause_of_exit(status)
    if worker.finished:
        return EndCause.FINISHED
    return EndCause.DRAINED if worker.registered else EndCause.STOPPED
