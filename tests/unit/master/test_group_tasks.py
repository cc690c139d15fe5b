"""The tasks that a group holds ahead: into the next epochs, in their order, and each counted once by any master."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticdl_core.job import JobSpec, JobState
from elasticdl_core.model import OptimizerSpec
from elasticdl_core.model_description import optimizer_entry
from elasticdl_core.ports.launcher import ProcessId, ProcessState, ProcessStatus, Role
from elasticdl_core.shard import Shard
from elasticdl_core.task import Lease, TaskId, TaskType
from elasticdl_master.dispatcher import TaskDispatcher
from elasticdl_master.group_calls import EndedTask, GroupReport, MemberAnswer, MemberCall
from elasticdl_master.group_service import GroupService
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.accounts import RecordAccount
from elasticdl_master.state.limits import Limits
from elasticdl_master.state.machine import JobMachine
from elasticdl_master.state.setup import Setup
from tests.fakes.broken_calls import FarQueue, break_off
from tests.fakes.memory_queue import MemoryQueue, MemoryStore
from tests.fakes.sim_processes import JOB, finish

pytestmark = pytest.mark.unit
OWNER = "worker-0.0"
TASK = 8
MEMBER = ProcessStatus(ProcessId(JOB, Role.WORKER, 0, 0), ProcessState.RUNNING)


def make_spec(**changes: Any) -> JobSpec:
    values = {
        "model_zoo": "/zoo",
        "model_def": "m.custom_model",
        "training_data": "/data",
        "minibatch_size": 2,
        "microbatches": 2,
        "num_minibatches_per_task": 4,
        "num_epochs": 50,
        "distribution_strategy": "AllReduceStrategy",
    }
    return JobSpec.from_mapping(values | changes)


class OneMember:
    """A job whose group has one member, with one master after the other.

    Args:
        tasks: of an epoch.
        breaks: which of the member's calls is broken off, and after how many steps; the member calls again.
        changes: to the specification.
    """

    def __init__(self, tasks: int = 2, breaks: tuple[int, int] | None = None, **changes: Any) -> None:
        self.spec = make_spec(**changes)
        self.records = tasks * TASK
        self.now = 100.0
        self.store = MemoryStore(lambda: self.now)
        self.epoch = 0
        self.plan: Any = None
        self.states: list[JobState] = []
        self.told: list[tuple[str, str]] = []
        self.rate = 1000.0
        self.version = self.finished = self.generation = 0
        self.held: list[Lease] = []
        self.ended: list[EndedTask] = []
        self.calls = 0
        self.breaks = breaks
        self.start_master()

    def start_master(self) -> None:
        self.epoch += 1
        queue: Any = FarQueue(MemoryQueue(self.store, self.epoch))
        contents = finish(queue.load())
        setup = Setup(
            self.spec,
            self.epoch,
            plan=self.plan,
            contents=contents,
            processes=[MEMBER] if self.epoch > 1 else [],
            output="/artifacts",
        )
        self.machine = JobMachine(setup)
        self.dispatcher = TaskDispatcher(self.machine, queue, self._carry_out, lambda: self.now)
        self.group_service = GroupService(self.dispatcher)
        self.tell(ev.Started())
        if self.plan is None:
            self.tell(ev.ShardsListed(TaskType.TRAINING, [Shard("a", 0, self.records)], last=True))
        self.tell(ev.WorkerRegistered(0, 0))
        if self.epoch == 1:
            self.found()

    def found(self) -> None:
        """The group is formed of its only member, and holds the model."""
        incarnation = self.machine.servers.servers[0].incarnation
        process = ProcessId(JOB, Role.PS, 0, incarnation)
        self.tell(ev.ProcessChanged(ProcessStatus(process, ProcessState.RUNNING)))
        self.tell(ev.ServerSeen(0, incarnation, False, 0))
        self.tell(ev.GroupAllowed())
        self.generation = self.meet().generation
        self.meet(holds=True)
        self.tell(ev.ServerSeen(0, incarnation, True, 0))

    def tell(self, event: ev.Event) -> None:
        finish(self.dispatcher.tell(event))

    def meet(self, *, holds: bool = True, report: GroupReport | None = None) -> MemberAnswer:
        generation = self.generation if holds else 0
        holds = holds and bool(generation)
        call = MemberCall(OWNER, b"here", self.finished, generation, holds, leaving=False, report=report)
        self.calls += 1
        if self.breaks is not None and self.breaks[0] == self.calls:
            broken = break_off(self.group_service.meet(call), self.breaks[1])
            self.breaks = None if broken else (0, 0)
        return finish(self.group_service.meet(call))

    def speak(self) -> None:
        """Tells all that ended, and takes what there is to do."""
        last = str(self.held[-1].token) if self.held else ""
        left = len(self.held)
        report = GroupReport(
            self.version, self.version, 1, last, left, list(self.ended), records_per_second=self.rate
        )
        answer = self.meet(report=report)
        self.ended = [one for one in self.ended if str(one.token) not in answer.acknowledged]
        self.held += [one.lease for one in answer.tasks]

    def look(self) -> None:
        """The master looks after the group, until it has nothing more to give."""
        before = -1
        while before != len(self.machine.workers.group_leases):
            before = len(self.machine.workers.group_leases)
            finish(self.group_service.look())
            self.speak()

    def train(self, tasks: int) -> None:
        """Does the next tasks without a word to the master."""
        for _ in range(tasks):
            lease = self.held.pop(0)
            self.version += -(-lease.task.records // 4)
            account = RecordAccount()
            self.ended.append(EndedTask(lease.task, lease.token, lease.task.end, account, self.version))

    def _carry_out(self, instruction: do.Instruction) -> None:
        match instruction:
            case do.PostEvent(kind, message):
                self.told.append((kind, message))
            case do.PutPlan(plan):
                self.plan = json.loads(json.dumps(plan))
            case do.SetState(to):
                self.states.append(to)


def order(tasks: list[TaskId]) -> list[int]:
    return [task.epoch for task in tasks]


def test_a_group_holds_tasks_of_the_next_epochs_in_their_order() -> None:
    job = OneMember(tasks=2)
    job.speak()
    job.look()
    held = [lease.task for lease in job.held]
    assert len(held) == 100, "90 s of 1,000 records are more than all epochs"
    assert order(held) == sorted(order(held))
    assert len(set(held)) == 100
    assert job.machine.epochs.number == 0


def test_no_more_epochs_are_held_than_the_time_ahead_needs() -> None:
    job = OneMember(tasks=2, num_epochs=1_000_000)
    job.rate = 0.0
    job.look()
    assert len(job.held) == 4, "whose speed is not known yet gets a few"
    job.rate = 1.0
    job.speak()
    job.look()
    assert len(job.held) == 90 // TASK
    job.rate = 1000.0
    job.speak()
    job.look()
    assert len(job.held) == 4096


def test_with_validation_data_the_group_waits_at_the_end_of_each_epoch() -> None:
    job = OneMember(tasks=2, validation_data="/validation")
    job.tell(ev.ShardsListed(TaskType.EVALUATION, [Shard("v", 0, 4)], last=True))
    job.speak()
    job.look()
    assert order([lease.task for lease in job.held]) == [0, 0]


def test_what_was_trained_without_a_master_counts_once_in_its_epochs_for_the_next_one() -> None:
    job = OneMember(tasks=3, num_epochs=5)
    job.speak()
    job.look()
    assert len(job.held) == 15
    job.train(2)
    job.speak()
    job.train(8)  # the master is killed before it hears of them
    job.start_master()
    job.tell(ev.ServerSeen(0, job.machine.servers.servers[0].incarnation, True, job.version))
    assert (job.machine.epochs.number, job.machine.epochs.records_done) == (0, 2 * TASK)
    job.speak()
    assert job.ended == []
    assert (job.machine.epochs.number, job.machine.epochs.records_done) == (3, 10 * TASK)
    job.look()
    assert len(job.held) == 5, "it keeps what it held, and nothing is leased twice"
    job.train(5)
    job.speak()
    assert job.machine.epochs.trained
    assert job.machine.epochs.records_done == 15 * TASK == job.machine.epochs.records_total


def test_a_group_that_is_lost_goes_back_to_the_tasks_of_the_epoch_that_it_is_in() -> None:
    job = OneMember(tasks=3, num_epochs=5)
    job.speak()
    job.look()
    job.train(4)
    job.speak()
    assert job.machine.epochs.number == 1
    process = ProcessId(JOB, Role.PS, 0, job.machine.servers.servers[0].incarnation)
    job.tell(ev.GroupVoided())
    job.tell(ev.ProcessChanged(ProcessStatus(process, ProcessState.EXITED)))
    assert ("model_lost", "no worker holds the model any more") in job.told
    assert not [message for _, message in job.told if "PS" in message or "ps-" in message]
    job.held, job.finished, job.version = [], job.generation, 0
    job.now += 10.0
    job.tell(ev.Tick())
    job.found()
    assert list(job.store.todo) == [
        TaskId(TaskType.TRAINING, 0, index, 8 * index, 8 * index + 8) for index in range(3)
    ]
    job.speak()
    job.look()
    assert order([lease.task for lease in job.held]) == sorted([*range(5)] * 3)


def test_members_that_no_minibatch_is_left_for_are_told_of_once() -> None:
    job = OneMember(microbatches=1)
    for index in (1, 2):
        job.tell(ev.WorkerRegistered(index, 0))
        finish(job.group_service.meet(MemberCall(f"worker-{index}.0", b"here", 0, 0, False, leaving=False)))
    job.finished = job.generation
    finish(job.group_service.meet(MemberCall(OWNER, b"here", job.finished, 0, True, leaving=False)))
    assert len(job.machine.group.orders.members) == 3
    finish(job.group_service.look())
    spare = [message for kind, message in job.told if kind == "group" and "stand by" in message]
    assert spare == ["2 of 3 members only stand by, as an update is cut into 1 part (microbatches)"]


def test_a_group_that_is_lost_over_and_over_fails_the_job_with_words_of_workers() -> None:
    job = OneMember(tasks=3, num_epochs=5)
    for _ in range(Limits().server_crashes + 1):
        process = ProcessId(JOB, Role.PS, 0, job.machine.servers.servers[0].incarnation)
        job.tell(ev.GroupVoided())
        job.tell(ev.ProcessChanged(ProcessStatus(process, ProcessState.EXITED)))
        job.finished = job.generation
        job.now += 20.0
        job.tell(ev.Tick())
        if not job.machine.lifecycle.ending:
            job.found()
    decision = job.machine.lifecycle.decision
    assert decision is not None
    assert "the group lost its model 6 times" in decision.detail["message"]
    assert "workers" in decision.detail["fix"]


def test_training_that_ends_in_the_middle_of_a_later_epoch_has_all_its_records() -> None:
    """The master hears from a member how many updates there were before it hears of the tasks."""
    job = OneMember(tasks=3, num_epochs=5, max_steps=15)
    job.speak()
    job.look()
    job.train(7)
    half = job.held.pop(0)
    job.version += 1
    job.ended.append(EndedTask(half.task, half.token, half.task.start + 4, RecordAccount(), job.version))
    job.ended += [EndedTask(one.task, one.token, one.task.start, RecordAccount(), 15) for one in job.held]
    job.held = []
    beat = ev.WorkerHeartbeat(0, 0, phase="training", records=60, steps=15, model_version=15)
    job.tell(beat)
    job.speak()
    assert job.machine.epochs.stopped
    assert job.machine.epochs.records_done == 7 * TASK + 4


def test_a_meeting_may_be_broken_off_at_any_step() -> None:
    for number in range(1, 7):
        steps, was_broken = 0, True
        while was_broken:
            job = OneMember(tasks=3, breaks=(number, steps), num_epochs=2)
            job.speak()
            job.look()
            job.train(2)
            half = job.held.pop(0)
            job.version += 1
            job.ended.append(EndedTask(half.task, half.token, half.task.start + 4, RecordAccount(), job.version))
            job.speak()
            assert job.machine.epochs.records_done == 2 * TASK + 4
            job.held.clear()
            job.start_master()
            job.tell(ev.ServerSeen(0, job.machine.servers.servers[0].incarnation, True, job.version))
            job.look()
            assert sum(lease.task.records for lease in job.held) == 6 * TASK - 2 * TASK - 4
            was_broken = job.breaks is None
            steps += 1
        assert steps > 1


def test_a_group_stands_still_at_each_version_that_is_to_be_evaluated() -> None:
    """A quick group was many updates further before the master had heard that an evaluation was due."""
    job = OneMember(tasks=4, validation_data="/validation", evaluation_steps=3, num_epochs=2)
    job.tell(ev.ShardsListed(TaskType.EVALUATION, [Shard("v", 0, 4)], last=True))
    job.look()
    assert job.meet().pause_at == 3
    job.version = 3
    job.speak()
    (run,) = job.machine.evaluations.running.values()
    assert job.meet().pause_at == 3, "the pin comes later"
    job.start_master()
    job.tell(ev.ServerSeen(0, job.machine.servers.servers[0].incarnation, True, job.version))
    assert list(job.machine.evaluations.running) == [run.number]
    assert job.meet().pause_at == 3, "a new master pins anew"
    job.machine.evaluations.running.clear()
    assert job.meet().pause_at == 6


def test_a_group_does_not_stand_still_where_nothing_is_evaluated() -> None:
    job = OneMember(tasks=4, evaluation_steps=0)
    assert job.meet().pause_at == 0


def test_a_group_says_when_it_begins_that_all_rows_of_tables_move() -> None:
    job = OneMember()
    description: Any = {
        "tables": [],
        "closed": ["users"],
        "optimizer": {"name": "adam", "params": {}},
        "callbacks": {"max_steps": 0, "early_stopping": None, "saved_model": False},
    }
    for _ in range(2):
        job.tell(ev.ModelDescribed(OWNER, description))
    (words,) = (message for kind, message in job.told if kind == "rows")
    assert words.startswith("rows of users: adam moves all of them in each update")


def test_a_momentum_that_only_one_group_of_parameters_has_moves_rows_too() -> None:
    job = OneMember()
    optimizer = OptimizerSpec("torch.sgd", {"learning_rate": 0.1}, ({"momentum": 0.9},))
    description: Any = {
        "tables": [],
        "closed": ["users"],
        "optimizer": optimizer_entry(optimizer),
        "callbacks": {"max_steps": 0, "early_stopping": None, "saved_model": False},
    }
    job.tell(ev.ModelDescribed(OWNER, description))
    (words,) = (message for kind, message in job.told if kind == "rows")
    assert words.startswith("rows of users: torch.sgd moves all of them in each update")
