"""Members that are stopped: scaling down keeps those that hold the model, and who does not speak is replaced."""

from __future__ import annotations

import pytest

from elasticdl_core.group.rendezvous import Meeting
from elasticdl_core.ports.launcher import ProcessId, ProcessState, ProcessStatus, Role
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.status import status_of
from elasticdl_master.state.workers import WorkerState
from tests.fakes.sim_processes import JOB
from tests.unit.master.test_group_tasks import OneMember

pytestmark = pytest.mark.unit


class Members(OneMember):
    """A group of three whose members say how they are five times a second, unless they are stopped."""

    def __init__(self) -> None:
        self.terminated: list[int] = []
        self.lost = False
        self.loading: set[int] = set()
        super().__init__()
        self.stopped: set[int] = set()
        self.finished_by: dict[int, int] = {}
        self.in_generation: dict[int, int] = {0: self.generation}
        self.tell(ev.Directed("run", 3))
        for index in (1, 2):
            self.join(index)
        self.pass_time(1.0)
        assert self.members == ["worker-0.0", "worker-1.0", "worker-2.0"]

    @property
    def members(self) -> list[str]:
        return list(self.machine.group.orders.members)

    @property
    def standing(self) -> dict[int, WorkerState]:
        return {worker.index: worker.state for worker in self.machine.workers.living}

    def join(self, index: int) -> None:
        self.tell(ev.ProcessChanged(ProcessStatus(ProcessId(JOB, Role.WORKER, index, 0), ProcessState.RUNNING)))
        self.tell(ev.WorkerRegistered(index, 0))

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.2)):
            self.now += 0.2
            for worker in self.machine.workers.living:
                if worker.registered and worker.index not in self.stopped:
                    self.say(worker.index)
            self.tell(ev.GroupLooked())
            self.tell(ev.Tick())
            if self.lost:  # as the runner says it: the group is in the place of a server
                self.lost = False
                server = ProcessId(JOB, Role.PS, 0, self.machine.servers.servers[0].incarnation)
                self.tell(ev.ProcessChanged(ProcessStatus(server, ProcessState.EXITED, -9)))

    def say(self, index: int) -> None:
        """Does as members do: out of a generation that is over or to change, and into the next one."""
        group, owner = self.machine.group, f"worker-{index}.0"
        orders = group.orders
        if self.in_generation.get(index) == orders.generation:
            if orders.is_over or orders.regroup:
                self.finished_by[index] = orders.generation
        elif owner in orders.members and not orders.is_over:
            self.in_generation[index] = orders.generation
        leaving = self.machine.workers.workers[index].state is WorkerState.DRAINING
        finished = self.finished_by.get(index, 0)
        meeting = Meeting(owner, finished, holds=index in self.in_generation, leaving=leaving)
        self.tell(ev.WorkerHeartbeat(index, 0, phase="training"))
        if index in self.loading:
            return
        self.tell(ev.MemberMet(meeting))
        if leaving and group.dismisses(owner):
            self.exit(index, 0)

    def exit(self, index: int, code: int) -> None:
        process = ProcessId(JOB, Role.WORKER, index, 0)
        self.tell(ev.ProcessChanged(ProcessStatus(process, ProcessState.EXITED, code)))

    def _carry_out(self, instruction: do.Instruction) -> None:
        super()._carry_out(instruction)
        match instruction:
            case do.TerminateWorker(index):
                self.terminated.append(index)
            case do.LoseGroup():
                self.lost = True


def test_scaling_down_drains_who_is_stopped_and_keeps_who_holds_the_model() -> None:
    job = Members()
    job.stopped.add(0)
    job.pass_time(2.0)
    assert job.members == ["worker-1.0", "worker-2.0"]
    job.tell(ev.Directed("run", 1))
    job.pass_time(2.0)
    assert job.standing == {0: WorkerState.DRAINING, 1: WorkerState.RUNNING}
    assert job.machine.group.established


def test_those_who_hold_the_model_wait_for_another_one_when_who_was_to_stay_is_stopped() -> None:
    job = Members()
    job.tell(ev.Directed("run", 1))
    job.stopped.add(0)
    job.pass_time(4.6)
    assert job.standing == {
        0: WorkerState.LEAVING,
        1: WorkerState.DRAINING,
        2: WorkerState.DRAINING,
        3: WorkerState.PENDING,
    }
    assert job.terminated == [0]
    assert "worker-0.0 does not speak" in dict(job.told)["worker_stuck"]
    job.pass_time(2 * job.machine.limits.drain_s)  # however long the new one takes to start
    assert job.machine.group.established and job.terminated == [0]
    job.join(3)
    job.loading.add(3)
    job.pass_time(2 * job.machine.limits.drain_s)  # ... and to load its model before it first speaks
    assert job.terminated == [0] and job.standing[3] is WorkerState.RUNNING
    job.loading.clear()
    job.pass_time(3.0)
    assert job.members == ["worker-3.0"] and job.standing[3] is WorkerState.RUNNING
    assert not {1, 2} & job.standing.keys()
    assert job.machine.group.established


def test_members_that_are_all_stopped_are_replaced_although_nobody_holds_the_model() -> None:
    job = Members()
    job.stopped |= {0, 1, 2}
    job.pass_time(20.0)
    assert not job.machine.group.established and not job.machine.servers.ready
    assert status_of(job.machine)["degraded"] == "the group gets its model back"
    assert job.terminated == []
    job.pass_time(job.machine.limits.silent_s)
    assert sorted(job.terminated) == [0, 1, 2]


def test_those_who_hold_the_model_do_not_wait_for_ever_for_one_that_never_comes() -> None:
    job = Members()
    job.tell(ev.Directed("run", 1))
    job.stopped.add(0)
    job.pass_time(5.0)
    assert job.standing[3] is WorkerState.PENDING
    job.now += job.machine.limits.start_s + job.machine.limits.drain_s
    job.pass_time(1.0)
    assert {1, 2} <= set(job.terminated)
