"""Workers that a master starts, replaces and ends, and the failures that it counts."""

from __future__ import annotations

import itertools

import pytest

from elasticdl_core.ports.launcher import ProcessId, ProcessState, ProcessStatus, Role
from elasticdl_core.task import Lease, LeaseToken, TaskId, TaskType
from elasticdl_master.state.events import WorkerHeartbeat
from elasticdl_master.state.failures import FailureCounts
from elasticdl_master.state.instructions import LaunchWorker, TerminateWorker
from elasticdl_master.state.limits import Limits
from elasticdl_master.state.throughput import Throughput
from elasticdl_master.state.workers import Death, WorkerPool, WorkerState

pytestmark = pytest.mark.unit


def status(
    index: int, incarnation: int, state: ProcessState, code: int | None = None, reason: str = ""
) -> ProcessStatus:
    return ProcessStatus(ProcessId("j", Role.WORKER, index, incarnation), state, code, reason)


def running_pool(count: int = 2, memory: int = 0) -> WorkerPool:
    pool = WorkerPool(Limits(), memory)
    pool.reconcile(count, 0.0)
    for index in range(count):
        pool.process(status(index, 0, ProcessState.RUNNING), 0.0)
        pool.register(index, 0, 1.0)
    return pool


class TestWorkers:
    def test_scaling_down_drains_the_highest_and_stops_those_that_never_began(self) -> None:
        pool = running_pool(2)
        (launch,) = pool.reconcile(3, 2.0)
        assert launch == LaunchWorker(2, 0, 0)
        assert pool.reconcile(1, 3.0) == [TerminateWorker(2, 0, 5.0)]
        assert [w.state for w in pool.living] == [WorkerState.RUNNING, WorkerState.DRAINING, WorkerState.LEAVING]
        assert pool.reconcile(1, 4.0) == []
        overdue = pool.overdue(3.0 + 26.0, watch=True)
        assert [(worker.index, reason) for worker, reason in overdue] == [(1, "")]

    def test_a_new_worker_never_takes_a_used_name(self) -> None:
        pool = running_pool(1)
        pool.process(status(0, 0, ProcessState.EXITED, -9), 2.0)
        assert pool.reconcile(1, 2.0) == [LaunchWorker(0, 1, 0)]

    @pytest.mark.parametrize(
        ("code", "reason", "death"),
        [
            (-9, "", Death.KILLED),
            (-9, "oom_killed", Death.OUT_OF_MEMORY),
            (-15, "terminated", Death.PREEMPTED),
            (143, "", Death.PREEMPTED),
            (None, "launcher_lost", Death.LOST),
            (None, "too_much_disk", Death.KILLED),
            (70, "", Death.KILLED),
            (0, "", Death.CRASHED),
            (1, "", Death.CRASHED),
            (-11, "", Death.CRASHED),
        ],
    )
    def test_why_a_worker_died(self, code: int | None, reason: str, death: Death) -> None:
        pool = running_pool(1)
        found = pool.process(status(0, 0, ProcessState.EXITED, code, reason), 2.0)
        assert found is not None
        assert found[1] is death

    def test_leaving_when_told_is_expected(self) -> None:
        pool = running_pool(2)
        pool.reconcile(1, 2.0)
        found = pool.process(status(1, 0, ProcessState.EXITED, 0), 3.0)
        assert found is not None
        assert found[1] is Death.EXPECTED

    def test_an_exit_that_was_heard_twice_is_one_death(self) -> None:
        pool = running_pool(1)
        assert pool.process(status(0, 0, ProcessState.EXITED, -9), 2.0) is not None
        assert pool.process(status(0, 0, ProcessState.EXITED, -9), 3.0) is None
        assert pool.register(0, 0, 4.0) is None

    def test_memory_grows_up_to_a_bound(self) -> None:
        pool = running_pool(1, memory=1000)
        given, reasons = [], []
        for _ in range(6):
            (worker,) = pool.living
            worker.memory_mib = pool.memory_mib
            given.append(pool.memory_mib)
            reasons.append(pool.charge(worker, Death.OUT_OF_MEMORY, 0.0))
        assert given[:5] == [1000, 1500, 2250, 3375, 4000]
        assert reasons == ["", "", "", "", *["workers run out of memory, even with 4000 MiB"] * 2]

    def test_workers_that_run_out_of_the_same_memory_at_once_make_it_grow_once(self) -> None:
        pool = running_pool(2, memory=1000)
        for worker in pool.living:
            assert pool.charge(worker, Death.OUT_OF_MEMORY, 0.0) == ""
        assert pool.memory_mib == 1500

    def test_crashes_in_a_row_condemn_the_job_and_a_finished_task_forgives_them(self) -> None:
        pool = running_pool(1)
        (worker,) = pool.living
        assert pool.charge(worker, Death.CRASHED, 0.0) == ""
        assert pool.charge(worker, Death.CRASHED, 0.0) == ""
        pool.settled("worker-0.0", "t", 1.0)
        assert [bool(pool.charge(worker, Death.CRASHED, 0.0)) for _ in range(3)] == [False, False, True]

    def test_machines_that_go_away_condemn_nobody_and_are_waited_for(self) -> None:
        pool = running_pool(1)
        (worker,) = pool.living
        pool.process(status(0, 0, ProcessState.EXITED, None, "launcher_lost"), 10.0)
        assert {pool.charge(worker, Death.LOST, 10.0) for _ in range(2 * pool.limits.kills)} == {""}
        assert pool.reconcile(1, 39.9) == []
        assert pool.reconcile(1, 40.0) == [LaunchWorker(0, 1, 0)]

    def test_relaunches_wait_longer_each_time(self) -> None:
        pool = running_pool(1)
        (worker,) = pool.living
        pool.process(status(0, 0, ProcessState.EXITED, -11), 10.0)
        pool.charge(worker, Death.CRASHED, 10.0)
        assert pool.reconcile(1, 10.1) == []
        assert pool.reconcile(1, 11.0) == [LaunchWorker(0, 1, 0)]

    def test_a_worker_without_progress_is_found(self) -> None:
        pool = running_pool(1)
        token = LeaseToken(1, 1, "0" * 16)
        pool.leased(Lease(TaskId(TaskType.TRAINING, 0, 0, 0, 10), "worker-0.0", token), 0.0)

        def beat(now: float, position: int, p95: float = 1.0) -> None:
            pool.heartbeat(
                WorkerHeartbeat(0, 0, {str(token): position}, steps=5, phase="training", step_p95_s=p95), now
            )

        for second in range(100):
            beat(float(second), second)
        assert pool.overdue(100.0, watch=True) == []
        for second in range(100, 200):
            beat(float(second), 100)
        assert "no progress" in pool.overdue(200.0, watch=True)[0][1]
        assert pool.overdue(200.0, watch=False) == []
        beat(200.0, 100, p95=15.0)
        assert pool.overdue(200.0, watch=True) == [], "ten of its slowest usual steps"
        assert "no heartbeat" in pool.overdue(300.0, watch=True)[0][1]

    def test_a_worker_that_waits_is_not_stuck(self) -> None:
        pool = running_pool(1)
        for second in range(0, 1000, 2):
            pool.heartbeat(WorkerHeartbeat(0, 0, phase="waiting"), float(second))
        assert pool.overdue(1000.0, watch=True) == []

    def test_speed_is_measured_by_number_of_workers(self) -> None:
        pool, throughput = running_pool(2), Throughput()
        for second, index in itertools.product(range(30), range(2)):
            beat = WorkerHeartbeat(index, 0, records=100 * second, steps=second + 1, phase="training")
            worker = pool.heartbeat(beat, float(second))
            assert worker is not None
            throughput.heartbeat(worker)
            throughput.tick(pool, float(second))
        assert throughput.by_workers[2] == pytest.approx(200.0, rel=0.1)
        throughput.target_changed(2, 3, 30.0)
        pool.reconcile(3, 30.0)
        worker = pool.heartbeat(WorkerHeartbeat(2, 0, records=1, steps=1, phase="training"), 36.0)
        throughput.tick(pool, 36.0)
        assert throughput.rescale_cost_s == pytest.approx(6.0)
        assert throughput.worker_seconds == pytest.approx(29 * 2 + 7 * 3)

    def test_a_job_too_short_to_be_measured_has_the_speed_of_its_workers(self) -> None:
        """It was 0 in the end, while its workers had reported thousands."""
        pool, throughput = running_pool(2), Throughput()
        assert throughput.samples_per_second == 0
        for index, speed in ((0, 1146.0), (1, 4158.0), (0, 0.0)):
            beat = WorkerHeartbeat(index, 0, records=900, steps=9, phase="training", samples_per_second=speed)
            worker = pool.heartbeat(beat, 1.0)
            assert worker is not None
            throughput.heartbeat(worker)
            throughput.tick(pool, 1.0)
        assert throughput.samples_per_second == 5304.0

    def test_speed_is_measured_though_an_evaluation_follows_each_short_epoch(self) -> None:
        pool, throughput = running_pool(3), Throughput()
        records = 0
        for second, index in itertools.product(range(40), range(3)):
            trains = (second + index) % 3 != 0
            records += 100 if trains else 0
            phase = "training" if trains else "evaluating"
            worker = pool.heartbeat(
                WorkerHeartbeat(index, 0, records=records // 3, steps=second + 1, phase=phase), float(second)
            )
            assert worker is not None
            throughput.heartbeat(worker)
            throughput.tick(pool, float(second))
        assert throughput.by_workers == {3: pytest.approx(200.0, rel=0.1)}
        assert throughput.speed.samples_per_second == pytest.approx(200.0, rel=0.1)

    def test_the_next_master_goes_on_from_what_was_measured(self) -> None:
        first = Throughput({"throughput": {"2": 200.0, "x": 3, "4": -1, "8": None}, "rescale_cost_s": "?"})
        assert first.to_mapping() == {"throughput": {"2": 200.0}, "rescale_cost_s": 0.0, "worker_seconds": 0.0}
        pool = running_pool(2)
        first.tick(pool, 1000.0)
        first.tick(pool, 1010.0)
        second = Throughput(first.to_mapping())
        second.tick(pool, 5.0)
        second.tick(pool, 6.0)
        assert second.worker_seconds == pytest.approx(22.0)
        assert second.by_workers == {2: 200.0}


class TestFailures:
    def test_three_failures_on_two_workers_condemn_a_task_whichever_part_it_was(self) -> None:
        book = FailureCounts(Limits())
        task = TaskId(TaskType.TRAINING, 1, 4, 40, 50)
        assert not book.count_user_failure(task, 0, alone=False)
        assert not book.count_user_failure(task.rest_from(45), 0, alone=False)
        assert not book.count_user_failure(task, 0, alone=False), (
            "one worker alone proves nothing while there are others"
        )
        assert book.count_user_failure(task, 1, alone=False)

    def test_the_only_worker_suffices(self) -> None:
        book = FailureCounts(Limits())
        task = TaskId(TaskType.TRAINING, 1, 4, 40, 50)
        assert [book.count_user_failure(task, 0, alone=True) for _ in range(3)] == [False, False, True]

    def test_failures_of_different_tasks_do_not_add_up(self) -> None:
        book = FailureCounts(Limits())
        tasks = [TaskId(TaskType.TRAINING, 1, index, 0, 10) for index in range(5)]
        assert not any(book.count_user_failure(task, index, alone=True) for index, task in enumerate(tasks))
