"""A whole job in one thread: simulated workers, PS, launcher, api and store around a real dispatcher and machine.

Time is a number. Everything random comes from one seed, so that a failing seed fails again. A simulated PS keeps
which records were applied to it, so that the oracle can ask whether the model that came out saw every record.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from elasticdl_core.errors import UnavailableError
from elasticdl_core.job import JobSpec, JobState
from elasticdl_core.ports.launcher import ProcessId, ProcessState, ProcessStatus, Role
from elasticdl_core.process_life import EndCause, LifeStage, ProcessLife
from elasticdl_core.series import SeriesRow
from elasticdl_core.shard import Shard
from elasticdl_core.task import TaskId, TaskType
from elasticdl_master.dispatcher import TaskDispatcher
from elasticdl_master.pending_posts import PendingPosts, Post
from elasticdl_master.queue.port import TaskQueue
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.limits import Limits
from elasticdl_master.state.lives import Key
from elasticdl_master.state.machine import JobMachine
from elasticdl_master.state.setup import Setup
from elasticdl_master.state.tally import Tallied
from tests.fakes.memory_queue import MemoryQueue, MemoryStore
from tests.fakes.sim_oracle import Oracle
from tests.fakes.sim_processes import JOB, OTHER_JOB, SimServer, SimWorker, finish
from tests.fakes.sim_workers import WorkerBehaviour

T = TypeVar("T")
_FOR_THE_API = (do.MarkDone, do.ForgetTasks, do.PutPlan, do.PostLiving, do.SetState, do.Prune, do.Finish)


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
        self.score: Callable[[int], float] | None = None
        self.events: list[do.PostEvent] = []
        self.lives: dict[Key, ProcessLife] = {}
        self.losses: dict[int, float] = {}
        self.series: dict[tuple[int, int], SeriesRow] = {}
        self.transitions: list[JobState] = []
        self.reason = ""
        self.detail: Mapping[str, Any] = {}
        # the oracle's
        self.leased: list[tuple[TaskId, str]] = []
        self.faults = 0
        self.refused_replays = 0
        self.api_back_at = 0.0
        self.outbox: list[tuple[do.Instruction, int]] = []
        self.acknowledged: list[int] = []
        self.forgotten: list[TaskId] = []
        self.machine: JobMachine | None = None
        self.dispatcher: TaskDispatcher | None = None
        self.deferred: list[tuple[float, do.Instruction, int]] = []
        self.flush_s, self.flushed_at = 0.0, dict[int, float]()
        self.master_back_at = 0.0
        self.next_tick = self.next_poll = self.next_reap = self.next_flush = 0.0
        self.flushed = self.store.saved()
        self.tail_lost = False
        self.plants = False
        self.trouble_since: float | None = None
        self.save_fails = 0.0
        self.server_start_s = 0.0
        self.start_version = 0
        self.user_code = lambda task, position: ""
        self.behaviour = WorkerBehaviour(self)
        self.oracle = Oracle(self)

    # -- the master ------------------------------------------------------------------------------------------------

    def start_master(self) -> None:
        self.epoch += 1
        self.tail_lost = False  # this one knows nothing else
        queue = self.make_queue()
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
        pending_posts = PendingPosts(finish(queue.kept()), lambda: self.now)
        self.machine = JobMachine(setup.with_published(pending_posts.evaluations()), self.limits)
        self.dispatcher = TaskDispatcher(
            self.machine, queue, self.carry_out, lambda: self.now, pending_posts=pending_posts, post=self.post
        )
        self.lose_memory()
        for post in pending_posts.left():
            self.post(post)
        self.tell(ev.Started())
        self.next_reap = self.now + self.limits.lease_s

    def make_queue(self) -> TaskQueue:
        """The next master's view of the store."""
        return MemoryQueue(self.store, self.epoch)

    def call(self, worker: SimWorker, call: Coroutine[Any, Any, T]) -> T:
        """A worker's call of the master."""
        return finish(call)

    def kill_master(self, away_s: float) -> None:
        self.machine = self.dispatcher = None
        self.lose_memory()
        self.master_back_at = self.now + away_s

    def lose_memory(self) -> None:
        """What a master had in mind goes with it."""
        self.deferred, self.outbox, self.acknowledged, self.forgotten = [], [], [], []

    def lose_tail(self) -> None:
        """The store comes back without what it had not written to its disk."""
        self.tail_lost = self.flushed["sequence"] < self.store.sequence
        self.store.lose_tail(self.flushed)

    @property
    def moment(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)

    def tell_life(self, told: do.PostLife) -> None:
        """Adds a stage of a process' life to what is known, as the api does."""
        key = (told.role, told.index, told.incarnation)
        life = self.lives.get(key, ProcessLife(self.moment))
        self.lives[key] = life.at_stage(told.stage, self.moment, told.cause, told.exit_code, told.message)

    def tell(self, event: ev.Event) -> None:
        if self.dispatcher is not None:
            finish(self.dispatcher.tell(event))

    # -- the api ---------------------------------------------------------------------------------------------------

    def post(self, post: Post) -> None:
        """The master tells the api something that it keeps until it has."""
        self.outbox.append((post.what, post.number))
        self.run_outbox()

    def run_outbox(self) -> None:
        """The api takes what there is, if it is there."""
        while self.outbox and self.now >= self.api_back_at:
            instruction, number = self.outbox.pop(0)
            self.take_in(instruction)
            self.acknowledged += [number] if number else []

    def hear_acknowledgements(self) -> None:
        """The master hears what the api has taken."""
        if self.dispatcher is not None and (self.acknowledged or self.forgotten):
            told, self.acknowledged, forgotten, self.forgotten = self.acknowledged, [], self.forgotten, []
            finish(self.dispatcher.posted(told))
            finish(self.dispatcher.forget(forgotten))

    def take_in(self, instruction: do.Instruction) -> None:
        """The api takes something."""
        match instruction:
            case do.MarkDone(tasks):
                self.done.update((str(task), None) for task in tasks)
            case do.ForgetTasks(tasks):
                self.forgotten += tasks
            case do.PutPlan(plan):
                plan = json.loads(json.dumps(plan))
                assert self.plan in (None, plan), "the plan changed"
                self.plan = plan
            case do.PostEvent():
                self.events.append(instruction)
            case do.PostLife():
                self.tell_life(instruction)
            case do.PostLiving(processes):
                for key in self.lives.keys() - set(processes):
                    self.lives[key] = self.lives[key].at_stage(LifeStage.ENDED, self.moment, EndCause.LOST)
            case do.PostEvaluation(number):
                self.evaluations = [*(one for one in self.evaluations if one.number != number), instruction]
            case do.PostArtifact(name):
                self.artifacts = [*(one for one in self.artifacts if one.name != name), instruction]
            case do.PostLosses(losses):
                self.losses.update(losses)
            case do.PostSeries(rows):
                self.series.update({(row.tier, row.start): row for row in rows})
            case do.SetState(to, reason, detail):
                self.reason = reason
                assert not self.state.terminal, f"{self.state} -> {to}"
                self.state, self.detail = to, detail
                self.transitions.append(to)
            case do.Prune(manifest):
                self.manifests = [m for m in self.manifests if m["directory"] != manifest["directory"]]
                self.checkpoints.pop(manifest["directory"], None)
            case do.Finish():
                self.store.wipe()
                self.machine = self.dispatcher = None
                self.master_back_at = float("inf")
            case _:
                raise AssertionError(f"the api knows nothing of {instruction}")

    # -- what the master wants -------------------------------------------------------------------------------------

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
            case do.Depart():
                for number in self.acknowledged:  # these are its last words
                    self.store.posts.pop(number, None)
                self.machine = self.dispatcher = None
                self.lose_memory()
                self.master_back_at = self.now + 5.0
                # Whoever ends the master ends the rest after it.
                for process in list(self.statuses):
                    self.exit(process, -9, "launcher_lost")
            case _ if isinstance(instruction, _FOR_THE_API):
                self.outbox.append((instruction, 0))
                self.run_outbox()
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
                case do.Save(kind, done, training_epoch, records_done) as save:
                    away = self.now < self.api_back_at
                    if not whole or away or self.rng.random() < self.save_fails:
                        self.tell(ev.SaveFailed(kind, "a PS does not answer"))
                        continue
                    version = self.servers[0].version
                    directory = f"/checkpoints/{version}-{len(self.checkpoints)}"
                    self.checkpoints[directory] = copy.deepcopy(self.in_order())
                    manifest = json.loads(
                        json.dumps({"done": done, "epoch": training_epoch, "records": records_done})
                    )
                    kept_as, best = self.machine.checkpoints.book.marked_as(save, version)
                    manifest.update(version=version, directory=directory, kind=kept_as, best=best)
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
                case do.FlushRound(epoch):
                    due = self.flushed_at.setdefault(epoch, self.now + self.flush_s)
                    if self.now < due or not whole:
                        self.deferred.append((max(due, self.now + 0.5), instruction, generation))
                    else:
                        self.tell(ev.RoundFlushed(epoch))
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

    def exit(self, process: ProcessId, code: int | None, reason: str = "") -> None:
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

    # -- time ------------------------------------------------------------------------------------------------------

    def step(self, seconds: float = 0.25) -> None:
        self.now += seconds
        if self.now >= self.next_flush:
            self.next_flush, self.flushed = self.now + 1.0, self.store.saved()
        self.run_outbox()
        self.hear_acknowledgements()
        if self.dispatcher is None and self.now >= max(self.master_back_at, self.api_back_at):
            if self.state in (JobState.SUSPENDED, JobState.QUEUED) or self.state.terminal:
                return
            self.start_master()
        if self.dispatcher is None:
            self.news.clear()  # the next master lists all
            for worker in list(self.workers.values()):
                if worker.work and worker.unsent is None and self.rng.random() < 0.5:
                    self.behaviour.work_alone(worker)
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
            if self.now >= self.api_back_at:
                self.tell(ev.Directed(self.desired, self.target))
            self.tell(ev.Tick())
        if self.dispatcher is not None and self.dispatcher.broken:
            self.tail_lost = False  # it was found out
            if self.trouble_since is None:
                self.trouble_since = self.now
            elif self.now - self.trouble_since > 1.0:
                finish(self.dispatcher.repair())
                self.trouble_since = None
        if self.dispatcher is not None and self.now >= self.next_reap:
            self.next_reap = self.now + 1.0
            finish(self.dispatcher.reap())
            finish(self.dispatcher.watch())
        workers = list(self.workers.values())
        self.rng.shuffle(workers)
        for worker in workers:
            if worker.draining:
                self.behaviour.leave(worker)
                self.exit(worker.id, 0)
            elif self.dispatcher is not None and self.rng.random() < 0.8:
                with contextlib.suppress(UnavailableError):  # it calls again
                    self.behaviour.step(worker)
        self.hear_acknowledgements()
        self.oracle.audit()


def run(world: World, until: Callable[[World], bool], seconds: float = 4000.0) -> None:
    """Lets time pass until something is so; fails if it does not come to be in so many simulated seconds."""
    end = world.now + seconds
    while not until(world):
        assert world.now < end, f"stuck in {world.state}: {world.events[-5:]}"
        world.step()


def ended(world: World) -> bool:
    """Whether the job has ended."""
    return world.state.terminal
