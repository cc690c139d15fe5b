"""A whole job in one thread: simulated workers, PS, launcher, api and store around a real dispatcher and machine.

Time is a number. Everything random comes from one seed, so that a failing seed fails again. A simulated PS keeps
which records were applied to it, so that the oracle can ask whether the model that came out saw every record.
"""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from elasticdl_core.errors import UnavailableError
from elasticdl_core.job import JobSpec, JobState
from elasticdl_core.ports.launcher import ProcessId, ProcessState, ProcessStatus, Role
from elasticdl_core.task import Shard, TaskId, TaskType
from elasticdl_master.dispatcher import LeasedTask, TaskDispatcher
from elasticdl_master.queue.memory import MemoryQueue, MemoryStore
from elasticdl_master.queue.port import Outcome
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.lifecycle import Directive
from elasticdl_master.state.limits import Limits
from elasticdl_master.state.machine import JobMachine
from elasticdl_master.state.setup import Setup
from elasticdl_master.state.tally import Tallied

T = TypeVar("T")
JOB, OTHER_JOB = "sim-1", "sim-0"
Record = tuple[int, int, int]
"""(epoch, task index, record)."""


def finish(call: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits."""
    try:
        call.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("the simulation waited for something")


@dataclass
class SimServer:
    """A PS: what was applied to it."""

    id: ProcessId
    ready_at: float
    frozen_until: float = 0.0
    initialized: bool = False
    version: int = 0
    applied: Counter[Record] = field(default_factory=Counter)
    pins: dict[int, int] = field(default_factory=dict)
    rules_of: str = ""
    """Whose optimizer and mode it has: those of the job whose worker pushed the model, or whose checkpoint it was."""

    def tally(self) -> Counter[tuple[int, int]]:
        """Records by round and index of the task."""
        counts: Counter[tuple[int, int]] = Counter()
        for (round_, index, _), times in self.applied.items():
            counts[round_, index] += times
        return counts


@dataclass
class SimWorker:
    """A worker: what it has in hand."""

    id: ProcessId
    ready_at: float
    registered: bool = False
    work: list[LeasedTask] = field(default_factory=list)
    position: int = 0
    records: int = 0
    steps: int = 0
    next_beat: float = 0.0
    frozen_until: float = 0.0
    generation: int = -1
    pushed: bool = False
    draining: bool = False
    last: tuple[LeasedTask, bytes] | None = None
    unsent: LeasedTask | None = None

    @property
    def owner(self) -> str:
        return self.id.owner


class World:
    """One job and everything around it.

    Args:
        seed: of everything random.
        spec: the job.
        shards: its data.
        validation: its validation data.
    """

    def __init__(
        self,
        seed: int,
        spec: JobSpec,
        shards: list[Shard],
        validation: list[Shard] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.spec = spec
        self.shards, self.validation = shards, validation or []
        self.limits = limits or Limits()
        self.now = 1000.0
        self.store = MemoryStore(lambda: self.now)
        self.statuses: dict[ProcessId, ProcessStatus] = {}
        self.workers: dict[ProcessId, SimWorker] = {}
        self.servers: dict[int, SimServer] = {}
        self.checkpoints: dict[str, list[SimServer]] = {}
        # what the api keeps
        self.epoch = 0
        self.state = JobState.STARTING
        self.desired = "run"
        self.target = spec.min_workers
        self.validation_listed_at = 0.0
        self.description: Mapping[str, Any] = {}
        self.plan: Mapping[str, Any] | None = None
        self.done: dict[str, None] = {}
        self.manifests: list[dict[str, Any]] = []
        self.initial: dict[str, Any] | None = None
        self.evaluations: list[do.PostEvaluation] = []
        self.artifacts: list[do.PostArtifact] = []
        self.events: list[do.PostEvent] = []
        self.transitions: list[JobState] = []
        self.reason = ""
        self.detail: Mapping[str, Any] = {}
        # the oracle's
        self.leased: list[tuple[TaskId, str]] = []
        self.faults = 0
        self.refused_replays = 0
        self.machine: JobMachine | None = None
        self.dispatcher: TaskDispatcher | None = None
        self.deferred: list[tuple[float, do.Instruction, int]] = []
        self.master_back_at = 0.0
        self.next_tick = self.next_poll = self.next_reap = 0.0
        self.trouble_since: float | None = None
        self.save_fails = 0.0
        self.server_start_s = 0.0
        self.start_version = 0
        self.user_code = lambda task, position: ""
        self.kinds: dict[str, str] = {}

    # -- the master ------------------------------------------------------------------------------------------------

    def start_master(self) -> None:
        self.epoch += 1
        queue = MemoryQueue(self.store, self.epoch)
        contents = finish(queue.load())
        setup = Setup(
            spec=self.spec,
            epoch=self.epoch,
            state=self.state,
            desired=self.desired,
            target_workers=self.target,
            plan=self.plan,
            done=[TaskId.parse(text) for text in self.done],
            manifests=[copy.deepcopy(m) for m in self.manifests],
            evaluations=max((e.number for e in self.evaluations), default=0),
            evaluated_epochs=frozenset(e.training_epoch for e in self.evaluations),
            initial=copy.deepcopy(self.initial),
            contents=contents,
            processes=list(self.statuses.values()),
            output="/artifacts",
        )
        self.machine = JobMachine(setup, self.limits)
        self.dispatcher = TaskDispatcher(self.machine, queue, self.carry_out, lambda: self.now)
        self.deferred = []
        self.tell(ev.Started())
        self.next_reap = self.now + self.limits.lease_s

    def kill_master(self, away_s: float) -> None:
        self.machine = self.dispatcher = None
        self.deferred = []
        self.master_back_at = self.now + away_s

    def tell(self, event: ev.Event) -> None:
        if self.dispatcher is not None:
            finish(self.dispatcher.tell(event))

    def carry_out(self, instruction: do.Instruction) -> None:
        match instruction:
            case do.LaunchWorker(index, incarnation):
                self.launch(ProcessId(JOB, Role.WORKER, index, incarnation))
            case do.LaunchServer(index, incarnation):
                self.launch(ProcessId(JOB, Role.PS, index, incarnation))
            case do.TerminateWorker(index, incarnation, grace):
                self.terminate(ProcessId(JOB, Role.WORKER, index, incarnation), grace)
            case do.TerminateServer(index, incarnation, grace):
                self.terminate(ProcessId(JOB, Role.PS, index, incarnation), grace)
            case do.MarkDone(tasks):
                self.done.update((str(task), None) for task in tasks)
            case do.PutPlan(plan):
                plan = json.loads(json.dumps(plan))
                assert self.plan in (None, plan), "the plan changed"
                self.plan = plan
            case do.PostEvent():
                self.events.append(instruction)
            case do.PostEvaluation():
                self.evaluations.append(instruction)
            case do.PostArtifact():
                self.artifacts.append(instruction)
            case do.PostLosses():
                pass
            case do.SetState(to, reason, detail):
                self.reason = reason
                assert not self.state.terminal, f"{self.state} -> {to}"
                self.state, self.detail = to, detail
                self.transitions.append(to)
            case do.Prune(manifest, replaced):
                if not replaced:
                    self.manifests = [m for m in self.manifests if m["version"] != manifest["version"]]
                self.checkpoints.pop(manifest["directory"], None)
            case do.Depart():
                self.machine = self.dispatcher = None
                self.master_back_at = self.now + 5.0
                # Whoever ends the master ends the rest after it.
                for process in list(self.statuses):
                    self.exit(process, -9, "launcher_lost")
            case do.Finish():
                self.store.wipe()
                self.machine = self.dispatcher = None
                self.master_back_at = float("inf")
            case _:
                generation = self.dispatcher.machine.servers.generation
                self.deferred.append((self.now + self.rng.choice([0.0, 0.1, 0.7]), instruction, generation))

    def run_deferred(self) -> None:
        while self.deferred and self.deferred[0][0] <= self.now and self.machine is not None:
            _, instruction, generation = self.deferred.pop(0)
            if generation != self.machine.servers.generation and not isinstance(instruction, do.ListShards):
                if isinstance(instruction, do.Save):
                    self.tell(ev.SaveFailed(instruction.kind, "a PS was lost"))
                continue
            alive = [s for s in self.servers.values() if self.answers(s)]
            whole = len(alive) == self.spec.num_ps
            match instruction:
                case do.ListShards():
                    self.list_shards()
                case do.RestoreServers(manifest):
                    if not whole:
                        self.deferred.append((self.now + 0.5, instruction, generation))
                    elif manifest["directory"] not in self.checkpoints:
                        self.tell(ev.RestoreFailed(manifest["directory"], "missing file"))
                    else:
                        for server, saved in zip(
                            self.in_order(), self.checkpoints[manifest["directory"]], strict=True
                        ):
                            server.applied, server.version = Counter(saved.applied), saved.version
                            server.initialized, server.pins, server.rules_of = True, {}, saved.rules_of
                        self.tell(ev.ServersRestored(manifest["directory"], manifest["version"]))
                case do.Save(kind, done, training_epoch, records_done):
                    if not whole or self.rng.random() < self.save_fails:
                        self.tell(ev.SaveFailed(kind, "a PS does not answer"))
                        continue
                    version = self.servers[0].version
                    directory = f"/checkpoints/{version}-{len(self.checkpoints)}"
                    self.checkpoints[directory] = copy.deepcopy(self.in_order())
                    manifest = json.loads(
                        json.dumps({"done": done, "epoch": training_epoch, "records": records_done})
                    )
                    manifest.update(version=version, directory=directory, kind=kind)
                    manifest["start_version"] = self.machine.version.start
                    self.manifests = [m for m in self.manifests if m["version"] != version] + [manifest]
                    self.tell(ev.Saved(kind, copy.deepcopy(manifest)))
                case do.Pin(number):
                    if not whole or not all(s.initialized for s in alive):
                        self.deferred.append((self.now + 0.5, instruction, generation))
                        return
                    for server in alive:
                        server.pins[number] = server.version
                    self.tell(ev.Pinned(number, self.servers[0].version))
                case do.Unpin(number):
                    for server in alive:
                        server.pins.pop(number, None)
                case do.ReadTallies():
                    if not whole:
                        self.deferred.append((self.now + 0.5, instruction, generation))
                    else:
                        self.tell(ev.TalliesRead([Tallied(server.tally()) for server in self.in_order()]))
                case do.FlushRound():
                    pass
                case _:
                    raise AssertionError(f"nobody carries out {instruction}")

    def list_shards(self) -> None:
        for type_, shards in ((self.machine.plans.main_type, self.shards), (TaskType.EVALUATION, self.validation)):
            if type_ is TaskType.EVALUATION and self.now < self.validation_listed_at:
                self.deferred.append((self.validation_listed_at, do.ListShards(), 0))
            elif shards:
                for i, shard in enumerate(shards):
                    self.tell(ev.ShardsListed(type_, [shard], last=i + 1 == len(shards)))

    def start_from(self, version: int) -> None:
        """Gives the job a checkpoint of another one to start from."""
        self.start_version = version
        self.initial = {"directory": "/other", "version": version}
        processes = [ProcessId(JOB, Role.PS, index, 0) for index in range(self.spec.num_ps)]
        self.checkpoints["/other"] = [
            SimServer(process, 0.0, version=version, rules_of=OTHER_JOB) for process in processes
        ]

    def answers(self, server: SimServer) -> bool:
        return self.now >= max(server.ready_at, server.frozen_until)

    def seen(self, index: int, server: SimServer) -> ev.ServerSeen:
        records = server.applied.total()
        return ev.ServerSeen(
            index, server.id.incarnation, server.initialized, server.version, rows=1, bytes=2, records=records
        )

    def in_order(self) -> list[SimServer]:
        return [self.servers[index] for index in sorted(self.servers)]

    # -- the launcher ----------------------------------------------------------------------------------------------

    def launch(self, process: ProcessId) -> None:
        if process in self.statuses:
            return
        for other in list(self.statuses):
            if (other.role, other.index) == (process.role, process.index):
                assert other.incarnation < process.incarnation, "an incarnation came back"
                self.exit(other, -15, "terminated")
        self.statuses[process] = ProcessStatus(process, ProcessState.RUNNING)
        ready = self.now + self.rng.uniform(0.0, 3.0)
        if process.role is Role.PS:
            ready += self.server_start_s
            self.servers[process.index] = SimServer(process, ready)
        else:
            self.workers[process] = SimWorker(process, ready)
        self.tell_later(self.statuses[process])

    def terminate(self, process: ProcessId, grace: float) -> None:
        worker = self.workers.get(process)
        if worker is not None and grace and self.rng.random() < 0.5:
            worker.draining = True
            return
        self.exit(process, -15, "terminated")

    def exit(self, process: ProcessId, code: int, reason: str = "") -> None:
        status = self.statuses.get(process)
        if status is None or status.state is ProcessState.EXITED:
            return
        self.statuses[process] = ProcessStatus(process, ProcessState.EXITED, code, reason)
        self.workers.pop(process, None)
        server = self.servers.get(process.index) if process.role is Role.PS else None
        if server is not None and server.id == process:
            del self.servers[process.index]
        self.tell_later(self.statuses[process])

    def tell_later(self, status: ProcessStatus) -> None:
        self.news.append(status)

    @property
    def news(self) -> list[ProcessStatus]:
        return self.__dict__.setdefault("_news", [])

    # -- workers ---------------------------------------------------------------------------------------------------

    def step_worker(self, worker: SimWorker) -> None:
        if self.now < max(worker.ready_at, worker.frozen_until) or self.dispatcher is None:
            return
        if not worker.registered:
            if self.machine.recovery.restoring:
                return
            self.tell(ev.WorkerRegistered(worker.id.index, worker.id.incarnation))
            worker.registered = True
            if self.description:
                self.tell(ev.ModelDescribed(worker.owner, self.description))
        if self.now >= worker.next_beat:
            worker.next_beat = self.now + self.limits.heartbeat_s
            if self.beat(worker) is not None:
                return
        if worker.unsent is not None:
            self.deliver(worker)
        elif worker.work:
            self.process(worker)
        else:
            handed, directive = finish(self.dispatcher.lease(worker.owner, self.rng.choice([1, 1, 2])))
            if directive in (Directive.DRAIN, Directive.FINISHED):
                self.exit(worker.id, 0)
                return
            for one in handed:
                self.leased.append((one.task.id, worker.owner))
                self.check_lease(one.task.id)
            worker.work = list(handed)
            worker.position = handed[0].task.id.start if handed else 0
            if worker.last is not None and self.rng.random() < 0.1:
                self.replay(worker)

    def beat(self, worker: SimWorker) -> Directive | None:
        positions = {str(one.lease.token): one.task.id.start for one in worker.work}
        if worker.work:
            positions[str(worker.work[0].lease.token)] = worker.position
        beat = ev.WorkerHeartbeat(
            worker.id.index,
            worker.id.incarnation,
            positions,
            worker.records,
            worker.steps,
            100.0,
            self.servers[0].version if 0 in self.servers else 0,
            ((worker.steps, 0.5),),
            "training" if worker.work and worker.position > worker.work[0].task.id.start else "waiting",
            0.1,
        )
        directive, lost = finish(self.dispatcher.heartbeat(beat, worker.owner))
        if worker.generation != self.machine.servers.generation:
            worker.generation = self.machine.servers.generation
        first = worker.work[0] if worker.work else None
        worker.work = [one for one in worker.work if str(one.lease.token) not in lost]
        if worker.work and worker.work[0] is not first:
            worker.position = worker.work[0].task.id.start
        if worker.unsent is not None and worker.unsent not in worker.work:
            worker.unsent = None
        if directive in (Directive.DRAIN, Directive.FINISHED):
            self.leave(worker)
            self.exit(worker.id, 0)
            return directive
        return None

    def leave(self, worker: SimWorker) -> None:
        """Returns what it has, as far as the master can hear it."""
        if self.dispatcher is None:
            return
        for i, one in enumerate(worker.work):
            position = worker.position if i == 0 else one.task.id.start
            try:
                finish(self.dispatcher.give_back(one.task.id, one.lease.token, worker.owner, position))
            except UnavailableError:
                return
        worker.work = []

    def process(self, worker: SimWorker) -> None:
        one = worker.work[0]
        task = one.task
        alive = [s for s in self.servers.values() if self.answers(s)]
        if len(alive) < self.spec.num_ps:
            return
        if task.id.type is TaskType.TRAINING:
            for server in alive:
                server.initialized = True
                if not worker.pushed:
                    server.rules_of = JOB
                assert server.rules_of != OTHER_JOB, f"{server.id} trains by the rules of another job"
            worker.pushed = True
            if self.at_limit:
                self.give_back_at_limit(worker)
                return
            wrong = self.user_code(task.id, worker.position)
            if wrong:
                self.go_wrong(worker, one, wrong)
                return
            end = min(worker.position + self.spec.minibatch_size, task.id.end)
            for server in alive:
                server.applied.update((task.id.round, task.id.index, at) for at in range(worker.position, end))
                server.version += 1
            worker.records += end - worker.position
            worker.steps += 1
            worker.position = end
        elif task.id.type is TaskType.EVALUATION:
            pins = [server.pins.get(json.loads(task.payload)["pin"]) for server in alive]
            if None in pins:
                return
            worker.position = task.id.end
        else:
            worker.position = task.id.end
        if worker.position >= task.id.end:
            worker.unsent = one
            self.deliver(worker)

    @property
    def at_limit(self) -> bool:
        """Whether the first PS takes no more updates."""
        limit = self.spec.max_steps
        return bool(limit) and 0 in self.servers and self.servers[0].version >= self.start_version + limit

    def give_back_at_limit(self, worker: SimWorker) -> None:
        one, version = worker.work[0], self.servers[0].version
        call = self.dispatcher.give_back(
            one.task.id, one.lease.token, worker.owner, worker.position, model_version=version
        )
        try:
            finish(call)
        except UnavailableError:
            return
        worker.work = worker.work[1:]
        worker.position = worker.work[0].task.id.start if worker.work else 0

    def go_wrong(self, worker: SimWorker, one: LeasedTask, wrong: str) -> None:
        if wrong == "crash":
            self.exit(worker.id, -11)
            return
        if wrong == "oom":
            self.exit(worker.id, -9, "oom_killed")
            return
        if wrong == "hang":
            return
        if wrong == "silence":
            worker.frozen_until = float("inf")
            return
        call = self.dispatcher.fail(
            worker.owner, wrong, "boom", "mend it", "Traceback", one.task.id, str(one.lease.token)
        )
        try:
            finish(call)
        except UnavailableError:
            return
        worker.work = worker.work[1:]
        worker.position = worker.work[0].task.id.start if worker.work else 0

    def result_of(self, one: LeasedTask) -> bytes:
        task = one.task
        if task.id.type is TaskType.EVALUATION:
            return json.dumps({"n": {"sum": [task.id.records], "kind": "mean"}}).encode()
        if task.id.type is TaskType.EVALUATION_SUMMARY:
            return json.dumps({"n": float(json.loads(task.payload)["states"]["n"]["sum"][0])}).encode()
        if task.id.type is TaskType.EXPORT:
            return json.dumps({"files": [{"name": "model.keras", "size": 1, "sha256": "x"}]}).encode()
        return b""

    def deliver(self, worker: SimWorker) -> None:
        assert worker.unsent is not None
        one = worker.unsent
        result = self.result_of(one)
        try:
            answer = finish(
                self.dispatcher.report(
                    one.task.id,
                    one.lease.token,
                    worker.owner,
                    result=result,
                    model_version=self.servers[0].version if 0 in self.servers else 0,
                    limit=self.rng.choice([0, 1]),
                )
            )
        except UnavailableError:
            return
        worker.unsent = None
        if answer.outcome is not Outcome.LOST:
            worker.last = (one, result)
        for more in answer.leased:
            self.leased.append((more.task.id, worker.owner))
            self.check_lease(more.task.id)
        worker.work = [*(other for other in worker.work if other is not one), *answer.leased]
        worker.position = worker.work[0].task.id.start if worker.work else 0

    def replay(self, worker: SimWorker) -> None:
        assert worker.last is not None
        one, result = worker.last
        before = (copy.deepcopy(self.store.done), tuple(self.store.todo))
        try:
            call = self.dispatcher.report(one.task.id, one.lease.token, worker.owner, result=result)
            outcome = finish(call).outcome
        except UnavailableError:
            return
        assert outcome is not Outcome.ACCEPTED or one.task.id in before[1], "a replay was taken for new"
        if outcome is Outcome.LOST:
            self.refused_replays += 1
        assert (self.store.done, tuple(self.store.todo)) == before

    # -- time ------------------------------------------------------------------------------------------------------

    def step(self, seconds: float = 0.25) -> None:
        self.now += seconds
        if self.dispatcher is None and self.now >= self.master_back_at:
            if self.state in (JobState.SUSPENDED, JobState.QUEUED) or self.state.terminal:
                return
            self.start_master()
        if self.dispatcher is None:
            self.news.clear()  # the next master lists all
            for worker in list(self.workers.values()):
                if worker.work and worker.unsent is None and self.rng.random() < 0.5:
                    self.work_alone(worker)
            return
        news, self.news[:] = list(self.news), []
        for status in news:
            self.tell(ev.ProcessChanged(status))
        self.run_deferred()
        if self.dispatcher is not None and self.now >= self.next_poll:
            self.next_poll = self.now + 1.0
            for index, server in list(self.servers.items()):
                incarnation = server.id.incarnation
                if self.answers(server):
                    seen = ev.ServerSeen(
                        index,
                        incarnation,
                        server.initialized,
                        server.version,
                        rows=1,
                        bytes=2,
                        records=server.applied.total(),
                    )
                    self.tell(seen)
                else:
                    self.tell(ev.ServerSilent(index, incarnation))
        if self.dispatcher is not None and self.now >= self.next_tick:
            self.next_tick = self.now + 0.5
            self.tell(ev.Directed(self.desired, self.target))
            self.tell(ev.Tick())
        if self.dispatcher is not None and self.dispatcher.broken:
            if self.trouble_since is None:
                self.trouble_since = self.now
            elif self.now - self.trouble_since > 1.0:
                finish(self.dispatcher.repair())
                self.trouble_since = None
        if self.dispatcher is not None and self.now >= self.next_reap:
            self.next_reap = self.now + 1.0
            finish(self.dispatcher.reap())
        workers = list(self.workers.values())
        self.rng.shuffle(workers)
        for worker in workers:
            if worker.draining:
                self.leave(worker)
                self.exit(worker.id, 0)
            elif self.dispatcher is not None and self.rng.random() < 0.8:
                self.step_worker(worker)
        self.audit()

    def work_alone(self, worker: SimWorker) -> None:
        """Training goes on while there is no master."""
        one = worker.work[0]
        alive = [s for s in self.servers.values() if self.answers(s)]
        if one.task.id.type is not TaskType.TRAINING or len(alive) < self.spec.num_ps or self.at_limit:
            return
        end = min(worker.position + self.spec.minibatch_size, one.task.id.end)
        for server in alive:
            server.applied.update((one.task.id.round, one.task.id.index, at) for at in range(worker.position, end))
            server.version += 1
        worker.records += end - worker.position
        worker.position = end
        if end >= one.task.id.end:
            worker.unsent = one

    # -- the oracle ------------------------------------------------------------------------------------------------

    def check_lease(self, task: TaskId) -> None:
        """D6: no task of an epoch before the one before it is complete."""
        if task.type is not TaskType.TRAINING:
            return
        if self.machine.gate.early_stopping is not None:
            assert not self.machine.evaluations.running, f"{task} is leased while an evaluation may end training"
        for server in self.servers.values():
            for index, part in enumerate(self.machine.plans.main.parts):
                for at in range(part.start, part.end):
                    if task.round > 0:
                        assert server.applied[task.round - 1, index, at], f"{task} before {task.round - 1} is done"

    def audit(self) -> None:
        """D1: what is to do, in hand, done and quarantined is exactly the plan of the round."""
        if self.dispatcher is None or self.dispatcher.broken or not self.store.ready:
            return
        machine, epochs, main = self.machine, self.machine.epochs, self.machine.plans.main
        if not machine.plans.listed or epochs.stopped or not machine.servers.ready or machine.lifecycle.ending:
            return
        store = self.store
        places = [*store.todo, *store.doing, *store.done, *store.quarantined]
        mine = [t for t in places if t.type is TaskType.TRAINING and t.round == epochs.number]
        records = Counter((t.index, at) for t in mine for at in range(t.start, t.end))
        assert all(count == 1 for count in records.values()), "a record is in two places"
        plan = {(i, at) for i, part in enumerate(main.parts) for at in range(part.start, part.end)}
        kept_back = {(t.index, at) for t in epochs.remaining() if epochs.held for at in range(t.start, t.end)}
        assert set(records) | kept_back == plan, f"{len(plan - set(records))} records are nowhere"
        mirrored = machine.contents()
        assert set(mirrored.todo) == set(store.todo), set(mirrored.todo) ^ set(store.todo)

    def applied(self) -> list[Counter[Record]]:
        """What the last checkpoint contains, by PS."""
        newest = self.manifests[-1]
        return [server.applied for server in self.checkpoints[newest["directory"]]]

    def expected(self) -> set[Record]:
        """Every record of every epoch."""
        assert self.plan is not None
        size = self.spec.records_per_task
        parts = [
            (start, min(start + size, shard.end))
            for shard in self.shards
            for start in range(shard.start, shard.end, size)
        ]
        return {
            (epoch, index, at)
            for epoch in range(self.spec.num_epochs)
            for index, (start, end) in enumerate(parts)
            for at in range(start, end)
        }
