"""What simulated workers do: register, lease, train, report, replay, leave, and go wrong where they are told to."""

from __future__ import annotations

import copy
import json
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from elasticdl_core.errors import UnavailableError
from elasticdl_core.task import TaskId, TaskType
from elasticdl_master.pending_requests import DispatchedTask
from elasticdl_master.queue.port import Outcome
from elasticdl_master.state import events as ev
from elasticdl_master.state.lifecycle import Directive
from tests.fakes.sim_processes import JOB, OTHER_JOB, SimServer, SimWorker

if TYPE_CHECKING:
    from tests.fakes.job_world import World


class WorkerBehaviour:
    """How all workers of a world behave.

    Args:
        world: where they live.
    """

    def __init__(self, world: World) -> None:
        self.world = world

    def step(self, worker: SimWorker) -> None:
        if self.world.now < max(worker.ready_at, worker.frozen_until) or self.world.dispatcher is None:
            return
        if not worker.registered:
            if self.world.machine.recovery.restoring:
                return
            dispatcher = self.world.dispatcher
            registered = ev.WorkerRegistered(worker.id.index, worker.id.incarnation)
            self.world.call(worker, dispatcher.tell(registered))
            if self.world.description:
                described = ev.ModelDescribed(worker.owner, self.world.description)
                self.world.call(worker, dispatcher.tell(described))
            worker.registered = True
        if self.world.now >= worker.next_beat:
            worker.next_beat = self.world.now + self.world.limits.heartbeat_s
            if self.beat(worker) is not None:
                return
        if worker.unsent is not None:
            self.deliver(worker)
        elif worker.work:
            self.process(worker)
        else:
            call = self.world.dispatcher.lease(worker.owner, self.world.rng.choice([1, 1, 2]))
            handed, directive = self.world.call(worker, call)
            if directive in (Directive.DRAIN, Directive.FINISHED):
                self.world.exit(worker.id, 0)
                return
            for one in handed:
                self.world.leased.append((one.task.id, worker.owner))
                self.world.oracle.check_lease(one.task.id)
            worker.work = list(handed)
            worker.position = handed[0].task.id.start if handed else 0
            if worker.last is not None and self.world.rng.random() < 0.1:
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
            self.world.servers[0].version if 0 in self.world.servers else 0,
            ((worker.steps, 0.5),),
            "training" if worker.work and worker.position > worker.work[0].task.id.start else "waiting",
            0.1,
        )
        directive, lost = self.world.call(worker, self.world.dispatcher.heartbeat(beat, worker.owner))
        if worker.generation != self.world.machine.servers.generation:
            worker.generation = self.world.machine.servers.generation
        first = worker.work[0] if worker.work else None
        worker.work = [one for one in worker.work if str(one.lease.token) not in lost]
        if worker.work and worker.work[0] is not first:
            worker.position = worker.work[0].task.id.start
        if worker.unsent is not None and worker.unsent not in worker.work:
            worker.unsent = None
        if directive in (Directive.DRAIN, Directive.FINISHED):
            self.leave(worker)
            self.world.exit(worker.id, 0)
            return directive
        return None

    def leave(self, worker: SimWorker) -> None:
        """Returns what it has, as far as the master can hear it."""
        if self.world.dispatcher is None:
            return
        for i, one in enumerate(worker.work):
            position = worker.position if i == 0 else one.task.id.start
            try:
                call = self.world.dispatcher.give_back(one.task.id, one.lease.token, worker.owner, position)
                self.world.call(worker, call)
            except UnavailableError:
                return
        worker.work = []

    def process(self, worker: SimWorker) -> None:
        one = worker.work[0]
        task = one.task
        alive = [s for s in self.world.servers.values() if self.world.answers(s)]
        if len(alive) < self.world.spec.num_ps:
            return
        if task.id.type is TaskType.TRAINING:
            self.push(worker, alive)
            if self.at_limit:
                self.give_back_at_limit(worker)
                return
            wrong = self.world.user_code(task.id, worker.position)
            if wrong:
                self.go_wrong(worker, one, wrong)
                return
            end = min(worker.position + self.world.spec.minibatch_size, task.id.end)
            self.update(worker, alive, task.id, end)
            worker.steps += 1
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

    def push(self, worker: SimWorker, servers: list[SimServer]) -> None:
        """Pushes the model to the servers, which take no update without one, if the worker has not yet done so."""
        for server in servers:
            server.initialized = True
            if not worker.pushed:
                server.rules_of = JOB
            assert server.rules_of != OTHER_JOB, f"{server.id} trains by the rules of another job"
        worker.pushed = True

    def update(self, worker: SimWorker, servers: list[SimServer], task: TaskId, end: int) -> None:
        """Applies the gradients of the worker's next records, up to ``end``."""
        for server in servers:
            server.applied.update((task.epoch, task.index, at) for at in range(worker.position, end))
            server.version += 1
        worker.records += end - worker.position
        worker.position = end

    @property
    def at_limit(self) -> bool:
        """Whether the first PS takes no more updates."""
        limit = self.world.spec.max_steps
        return (
            bool(limit)
            and 0 in self.world.servers
            and self.world.servers[0].version >= self.world.start_version + limit
        )

    def give_back_at_limit(self, worker: SimWorker) -> None:
        one, version = worker.work[0], self.world.servers[0].version
        call = self.world.dispatcher.give_back(
            one.task.id, one.lease.token, worker.owner, worker.position, model_version=version
        )
        self.drop_first(worker, call)

    def go_wrong(self, worker: SimWorker, one: DispatchedTask, wrong: str) -> None:
        if wrong == "crash":
            self.world.exit(worker.id, -11)
            return
        if wrong == "oom":
            self.world.exit(worker.id, -9, "oom_killed")
            return
        if wrong == "hang":
            return
        if wrong == "silence":
            worker.frozen_until = float("inf")
            return
        call = self.world.dispatcher.fail(
            worker.owner, wrong, "boom", "mend it", "Traceback", one.task.id, str(one.lease.token)
        )
        self.drop_first(worker, call)

    def drop_first(self, worker: SimWorker, call: Coroutine[Any, Any, object]) -> None:
        """Tells the master, and goes on with the next task; tries again later if it cannot be told."""
        try:
            self.world.call(worker, call)
        except UnavailableError:
            return
        worker.work = worker.work[1:]
        worker.position = worker.work[0].task.id.start if worker.work else 0

    def result_of(self, one: DispatchedTask) -> bytes:
        task = one.task
        if task.id.type is TaskType.EVALUATION:
            return json.dumps({"n": {"sum": [task.id.records], "kind": "mean"}}).encode()
        if task.id.type is TaskType.EVALUATION_SUMMARY:
            payload = json.loads(task.payload)
            metrics = {"n": float(payload["states"]["n"]["sum"][0])}
            if self.world.score is not None:
                metrics["score"] = self.world.score(int(payload["model_version"]))
            return json.dumps(metrics).encode()
        if task.id.type is TaskType.EXPORT:
            return json.dumps({"files": [{"name": "model.keras", "size": 1, "sha256": "x"}]}).encode()
        return b""

    def deliver(self, worker: SimWorker) -> None:
        assert worker.unsent is not None
        one = worker.unsent
        result = self.result_of(one)
        try:
            answer = self.world.call(
                worker,
                self.world.dispatcher.report(
                    one.task.id,
                    one.lease.token,
                    worker.owner,
                    result=result,
                    model_version=self.world.servers[0].version if 0 in self.world.servers else 0,
                    limit=self.world.rng.choice([0, 1]),
                ),
            )
        except UnavailableError:
            return
        worker.unsent = None
        if answer.outcome is not Outcome.LOST:
            worker.last = (one, result)
        for more in answer.leased:
            self.world.leased.append((more.task.id, worker.owner))
            self.world.oracle.check_lease(more.task.id)
        worker.work = [*(other for other in worker.work if other is not one), *answer.leased]
        worker.position = worker.work[0].task.id.start if worker.work else 0

    def replay(self, worker: SimWorker) -> None:
        assert worker.last is not None
        one, result = worker.last
        before = (copy.deepcopy(self.world.store.done), tuple(self.world.store.todo))
        try:
            call = self.world.dispatcher.report(one.task.id, one.lease.token, worker.owner, result=result)
            outcome = self.world.call(worker, call).outcome
        except UnavailableError:
            return
        assert outcome is not Outcome.ACCEPTED or one.task.id in before[1], "a replay was taken for new"
        if outcome is Outcome.LOST:
            self.world.refused_replays += 1
        assert (self.world.store.done, tuple(self.world.store.todo)) == before

    def work_alone(self, worker: SimWorker) -> None:
        """Training goes on while there is no master."""
        one = worker.work[0]
        alive = [s for s in self.world.servers.values() if self.world.answers(s)]
        if one.task.id.type is not TaskType.TRAINING or len(alive) < self.world.spec.num_ps or self.at_limit:
            return
        end = min(worker.position + self.world.spec.minibatch_size, one.task.id.end)
        self.push(worker, alive)
        self.update(worker, alive, one.task.id, end)
        if end >= one.task.id.end:
            worker.unsent = one
