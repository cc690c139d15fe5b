from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.data import columns_of, create_data_reader
from elasticdl_core.best_evaluation import BEST, BestEvaluation, mark_of
from elasticdl_core.checkpoint_manifest import BestMark, Manifest
from elasticdl_core.errors import DataError, InvalidInputError, UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_core.mixed_order import MixedReading
from elasticdl_core.ports.launcher import ProcessId, ProcessState, ProcessStatus, Role
from elasticdl_core.shard import Shard
from elasticdl_core.shuffling import SPAN_PARTS, BlockReading, cut
from elasticdl_core.task import Lease, LeaseToken, TaskId, TaskType
from elasticdl_master.artifacts import locate
from elasticdl_master.listing import has_own_reader, list_shards, open_readers
from elasticdl_master.state.checkpoints import PERIODIC, RECOVERY, CheckpointBook
from elasticdl_master.state.events import WorkerHeartbeat
from elasticdl_master.state.failures import FailureBook
from elasticdl_master.state.instructions import LaunchWorker, Save, TerminateWorker
from elasticdl_master.state.ledger import EpochLedger
from elasticdl_master.state.limits import Limits
from elasticdl_master.state.metric_states import merge, metrics_of, states_of
from elasticdl_master.state.plan import JobPlans, TaskPlan
from elasticdl_master.state.record import EvaluationRecord, TakeoverRecord
from elasticdl_master.state.throughput import Throughput
from elasticdl_master.state.workers import Death, WorkerPool, WorkerState
from elasticdl_runtime.checkpoint_directory import CheckpointDirectory, commit_manifest
from elasticdl_runtime.stored_checkpoints import find_checkpoint

pytestmark = pytest.mark.unit


def make_plan(*ends: int, size: int = 10, shuffle: bool = True) -> TaskPlan:
    plan = TaskPlan(TaskType.TRAINING, size, epochs=2, seed=7, shuffle=shuffle)
    plan.extend([Shard(f"s{i}", 0, end) for i, end in enumerate(ends)], last=True)
    return plan


class TestPlan:
    def test_parts_cover_every_record_once_and_none_is_too_large(self) -> None:
        parts = cut([Shard("a", 3, 25), Shard("b", 0, 0), Shard("c", 0, 10)], 10)
        assert parts == [Shard("a", 3, 13), Shard("a", 13, 23), Shard("a", 23, 25), Shard("c", 0, 10)]

    def test_what_a_task_reads_depends_on_seed_and_ledgeronly(self) -> None:
        plan, same = make_plan(1000), make_plan(1000)
        assert plan.reading(plan.task(0, 3)) == same.reading(same.task(0, 3))
        assert plan.reading(plan.task(0, 3)) != plan.reading(plan.task(1, 3))

    def test_without_shuffling_tasks_read_their_own_range(self) -> None:
        plan = make_plan(95, shuffle=False)
        assert plan.reading(plan.task(0, 3)) is None

    def test_while_listing_goes_on_only_parts_whose_records_are_known_are_ready(self) -> None:
        plan = TaskPlan(TaskType.TRAINING, 1, shuffle=True)
        assert plan.extend([Shard("a", 0, SPAN_PARTS - 1)]) == range(0)
        assert plan.extend([Shard("b", 0, 2)]) == range(SPAN_PARTS)
        assert plan.extend([Shard("c", 0, 5)], last=True) == range(SPAN_PARTS, SPAN_PARTS + 6)
        plain = TaskPlan(TaskType.TRAINING, 1)
        assert plain.extend([Shard("a", 0, 3)]) == range(3)

    @pytest.mark.parametrize("shuffle", [True, False])
    def test_a_task_says_what_its_sources_were_like_also_after_a_takeover(self, shuffle: bool) -> None:
        spec = JobSpec(model_def="m.f", training_data="d", validation_data="v", shuffle=shuffle, minibatch_size=5)
        plans = JobPlans(spec)
        for plan, prefix in ((plans.main, "s"), (plans.validation, "v")):
            assert plan is not None
            plan.extend([Shard(f"{prefix}{i}", 0, 20) for i in range(3)], last=True)
            plan.fingerprints.update({f"{prefix}{i}": f"state {i}" for i in range(2)})
        adopted = JobPlans(spec)
        adopted.adopt(json.loads(json.dumps(plans.to_mapping())))
        for known in (plans, adopted):
            first = known.main.task(0, 0)
            told = known.fingerprints(first, known.reading(first))
            assert told == ({"s0": "state 0", "s1": "state 1"} if shuffle else {"s0": "state 0"})
            assert known.validation is not None
            assert known.fingerprints(known.validation.task(0, 0), None) == {"v0": "state 0"}

    def test_a_plan_adopted_from_the_ledger_is_the_same(self) -> None:
        plan = make_plan(95, 0, 7)
        other = TaskPlan(TaskType.TRAINING, 1)
        other.adopt(json.loads(json.dumps(plan.to_mapping())))
        assert (other.parts, other.records, other.ready) == (plan.parts, 102, 11)
        assert plan.parts[-2:] == [Shard("s0", 90, 100), Shard("s2", 5, 7)], "tasks go over the ends of files"
        assert other.reading(plan.task(1, 4)) == plan.reading(plan.task(1, 4))

    def test_a_plan_made_before_tasks_went_over_the_ends_of_files_keeps_its_tasks(self) -> None:
        mapping = make_plan(95, 0, 7).to_mapping()
        del mapping["joins"]
        other = TaskPlan(TaskType.TRAINING, 1)
        other.adopt(mapping)
        assert other.parts == cut(other.shards, 10) != make_plan(95, 0, 7).parts
        assert "joins" in other.to_mapping() and not other.to_mapping()["joins"]

    @pytest.mark.parametrize("sizes", [[1] * 256, [0, 3, 70, 0, 1, 40, 33, 2], [5], [64, 64]])
    def test_small_files_make_whole_tasks_with_each_record_once(self, sizes: list[int]) -> None:
        shards = [Shard(f"f{number}", number, number + size) for number, size in enumerate(sizes)]
        plan = TaskPlan(TaskType.TRAINING, 32, epochs=2, shuffle=True)
        for number, shard in enumerate(shards):
            assert plan.count_tasks([shard]) >= len(plan.parts)
            plan.extend([shard], last=number == len(shards) - 1)
        full, rest = divmod(sum(sizes), 32)
        assert [part.records for part in plan.parts] == [32] * full + ([rest] if rest else [])
        assert len({(part.name, part.start) for part in plan.parts}) == len(plan.parts)
        wanted = sorted((one.name, at) for one in shards for at in range(one.start, one.end))
        for epoch in range(2):
            found = []
            for index, part in enumerate(plan.parts):
                for start in range(part.start, part.end, 20):
                    task = TaskId(TaskType.TRAINING, epoch, index, start, min(start + 20, part.end))
                    reading = plan.reading(task)
                    assert reading is not None
                    places = reading.records(task.start, task.end)
                    found += [(one.name, at) for one in places for at in range(one.start, one.end)]
            assert sorted(found) == wanted

    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("sizes", [(10, 10, 10), (20, 5, 10), (5, 10), (10, 0, 3, 7), (30,), (7, 3, 10, 10)])
    def test_pieces_of_one_file_are_written_as_one_where_that_gives_the_same_tasks(
        self, sizes: Sequence[int], shuffle: bool
    ) -> None:
        plan = TaskPlan(TaskType.TRAINING, 10, shuffle=shuffle, seed=3)
        pieces = [Shard("a", start, end) for start, end in itertools.pairwise(itertools.accumulate(sizes, initial=0))]
        many = [Shard("a", start, start + 10) for start in range(1000, 20_000, 10)]
        plan.extend([*pieces, Shard("b", 0, 15), *many], last=True)
        written = plan.to_mapping()
        assert len(written["shards"]) <= len(sizes) + 2
        other = TaskPlan(TaskType.TRAINING, 10)
        other.adopt(json.loads(json.dumps(written)))
        assert (other.parts, other.to_mapping()) == (plan.parts, written)
        for epoch in (0, 1):
            for index in range(0, len(plan.parts), 97):
                assert other.reading(plan.task(epoch, index)) == plan.reading(plan.task(epoch, index))

    def test_a_plan_made_before_records_were_shuffled_keeps_its_ranges(self) -> None:
        """What is done of it is named by them."""
        mapping = make_plan(95).to_mapping()
        del mapping["block"]
        other = TaskPlan(TaskType.TRAINING, 1)
        other.adopt(mapping)
        assert other.reading(other.task(0, 3)) is None

    @pytest.mark.parametrize("block", [0, 5])
    def test_a_plan_made_before_single_records_were_mixed_keeps_its_blocks(self, block: int) -> None:
        plan = TaskPlan(TaskType.TRAINING, 10, 3, seed=1, shuffle=True, block=block)
        plan.extend([Shard("a", 0, 95)], last=True)
        assert isinstance(plan.reading(plan.task(0, 3)), MixedReading if block == 0 else BlockReading)
        mapping = plan.to_mapping()
        del mapping["mixed"]
        other = TaskPlan(TaskType.TRAINING, 1)
        other.adopt(mapping)
        assert isinstance(other.reading(other.task(0, 3)), BlockReading)
        again = TaskPlan(TaskType.TRAINING, 1)
        again.adopt(other.to_mapping())
        assert again.reading(again.task(2, 3)) == other.reading(other.task(2, 3))


class TestEpochLedger:
    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10), st.integers(0, 10)), max_size=30))
    def test_what_is_done_and_what_remains_make_the_plan(self, marks: list[tuple[int, int, int]]) -> None:
        plan = make_plan(35)
        ledger = EpochLedger(plan, 1)
        done: set[tuple[int, int]] = set()
        for index, one, two in marks:
            whole = plan.task(1, index)
            start, end = sorted((min(whole.start + one, whole.end), min(whole.start + two, whole.end)))
            if start == end:
                continue
            new = ledger.mark(TaskId(TaskType.TRAINING, 1, index, start, end))
            records = {(index, at) for at in range(start, end)}
            assert new == len(records - done)
            done |= records
        remaining = [(t.index, at) for t in ledger.remaining(range(4)) for at in range(t.start, t.end)]
        everything = {(i, at) for i, part in enumerate(plan.parts) for at in range(part.start, part.end)}
        assert len(remaining) == len(set(remaining))
        assert set(remaining) == everything - done
        assert ledger.records == len(done)
        assert ledger.complete == (done == everything)
        again = EpochLedger.from_mapping(plan, json.loads(json.dumps(ledger.to_mapping())))
        assert again.to_mapping() == ledger.to_mapping()
        assert {(t.index, at) for t in again.done() for at in range(t.start, t.end)} == done

    def test_marking_twice_counts_once(self) -> None:
        ledger = EpochLedger(make_plan(20), 0)
        task = ledger.plan.task(0, 1)
        assert (ledger.mark(task), ledger.mark(task), ledger.records) == (10, 0, 10)

    def test_what_is_done_is_named_as_it_was_marked(self) -> None:
        ledger = EpochLedger(make_plan(20), 0)
        whole = ledger.plan.task(0, 0)
        ledger.mark(whole.front_until(4))
        ledger.mark(whole.rest_from(4))
        ledger.mark(ledger.plan.task(0, 1))
        assert set(ledger.done()) == {whole.front_until(4), whole.rest_from(4), ledger.plan.task(0, 1)}


def manifest(version: int, kind: str = PERIODIC) -> dict[str, Any]:
    return {"version": version, "directory": f"/c/{version}-{kind}", "kind": kind}


class TestCheckpoints:
    def test_one_for_each_multiple_even_if_a_save_is_of_an_earlier_version(self) -> None:
        book = CheckpointBook(100, 0, 0.0)
        assert book.due(99, 0.0) == ""
        assert book.due(101, 0.0) == PERIODIC
        book.begin(PERIODIC, 101, 0.0)
        assert book.due(300, 0.0) == ""
        book.committed(manifest(98), 1.0)
        assert book.due(103, 2.0) == ""
        assert book.due(200, 3.0) == PERIODIC

    def test_a_save_that_failed_is_due_again(self) -> None:
        book = CheckpointBook(100, 0, 0.0)
        book.begin(PERIODIC, 101, 0.0)
        book.failed(1.0)
        assert book.due(102, 2.0) == PERIODIC

    def test_recovery_checkpoints_come_by_the_clock_and_only_the_newest_is_kept(self) -> None:
        book = CheckpointBook(0, 3, 30.0)
        assert book.due(5, 0.0) == RECOVERY
        book.begin(RECOVERY, 5, 0.0)
        book.committed(manifest(5, RECOVERY), 1.0)
        assert book.due(9, 20.0) == ""
        assert book.due(5, 60.0) == ""
        assert book.due(9, 60.0) == RECOVERY
        book.begin(RECOVERY, 9, 60.0)
        assert book.committed(manifest(9, RECOVERY), 70.0) == [manifest(5, RECOVERY)]
        assert book.due(20, 110.0) == "", "a save of 10 s is repeated after 200 s at the earliest"
        assert book.committed(manifest(30, "final"), 111.0) == [manifest(9, RECOVERY)]

    def test_recovery_checkpoints_come_between_those_that_the_user_asked_for(self) -> None:
        book = CheckpointBook(1000, 2, 30.0)
        assert book.due(3, 0.0) == RECOVERY
        book.begin(RECOVERY, 3, 0.0)
        book.committed(manifest(3, RECOVERY), 1.0)
        assert book.due(990, 20.0) == ""
        assert book.due(990, 40.0) == RECOVERY
        book.begin(RECOVERY, 990, 40.0)
        # It was written a little later than it was asked for, past what the user asked for: that is due all the same.
        assert book.committed(manifest(1003, RECOVERY), 41.0) == [manifest(3, RECOVERY)]
        assert book.due(1004, 42.0) == PERIODIC
        book.begin(PERIODIC, 1004, 42.0)
        assert book.committed(manifest(1004), 43.0) == [manifest(1003, RECOVERY)]
        assert book.due(1005, 44.0) == ""

    @pytest.mark.parametrize(("keep", "left"), [(0, 5), (1, 1), (3, 3)])
    def test_the_last_ones_are_kept_and_zero_keeps_all(self, keep: int, left: int) -> None:
        book = CheckpointBook(1, keep, 0.0)
        for version in range(5):
            book.committed(manifest(version), 0.0)
        assert [m["version"] for m in book.manifests] == list(range(5))[-left:]

    def test_the_best_one_stays_and_goes_when_another_is_better(self) -> None:
        book = CheckpointBook(1, 1, 0.0)
        rule = BestEvaluation("auc", "max")

        def save(kind: str, version: int, mark: BestMark | None = None) -> list[Manifest]:
            as_kind, best = book.marked_as(Save(kind, {}, 0, 0, mark), version)
            made: Any = {**manifest(version, as_kind), "best": best}
            return book.committed(made, 0.0)

        save(BEST, 3, rule.mark(0.5, 3, 1))
        assert (save(PERIODIC, 4), save(PERIODIC, 5)) == ([], [{**manifest(4), "best": None}])
        # One of the same version takes its place and its mark, and its own kind.
        save(BEST, 5, rule.mark(0.75, 5, 2))
        assert [(m["version"], m["kind"]) for m in book.manifests] == [(5, PERIODIC)]
        save("final", 6)
        assert [(m["version"], mark_of(m) is not None) for m in book.manifests] == [(5, True), (6, False)]
        # What has moved on since it was evaluated is not the best; it is good for a recovery.
        assert book.marked_as(Save(BEST, {}, 0, 0, rule.mark(0.9, 7, 3)), 8) == (RECOVERY, None)
        best = book.best
        assert best is not None and best["version"] == 5
        book.refuse(best["directory"])
        assert book.best is None

    def test_a_refused_checkpoint_is_passed_over(self) -> None:
        book = CheckpointBook(1, 0, 0.0, [manifest(1), manifest(2)], manifest(0))
        book.refuse("/c/2-periodic")
        assert book.to_restore == manifest(1)
        book.refuse("/c/1-periodic")
        assert book.to_restore == manifest(0)
        book.refuse("/c/0-periodic")
        assert book.to_restore is None

    def test_a_directory_of_checkpoints_is_its_newest(self, tmp_path: Path) -> None:
        directory = CheckpointDirectory(tmp_path, "job-1")
        for version in (7, 12):
            path = directory.prepare(version)
            commit_manifest(
                {"version": version, "directory": str(path), "files": [], "job_id": "job-1", "created_at": version}
            )
        directory.prepare(99)
        assert find_checkpoint(str(tmp_path))["version"] == 12
        found = find_checkpoint(str(next(tmp_path.glob("*0007*"))))
        assert found["version"] == 7
        directory.prune(found)
        assert not list(tmp_path.glob("*0007*"))

    def test_another_jobs_checkpoint_is_never_removed(self, tmp_path: Path) -> None:
        path = CheckpointDirectory(tmp_path, "job-1").prepare(1)
        entry = {"version": 1, "directory": str(path), "files": [], "job_id": "job-1"}
        commit_manifest(entry)
        CheckpointDirectory(tmp_path, "job-2").prune(entry)
        CheckpointDirectory(tmp_path / "elsewhere", "job-1").prune(entry)
        assert find_checkpoint(str(tmp_path))["version"] == 1

    def test_what_was_never_committed_is_swept_away(self, tmp_path: Path) -> None:
        directory = CheckpointDirectory(tmp_path, "job-1")
        kept, left = directory.prepare(1), directory.prepare(2)
        (left / "ps-0.bin").write_bytes(b"x")
        directory.sweep({str(kept)})
        assert list(tmp_path.iterdir()) == [kept]

    @pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": 1, "files": [{"name": "x"}]}'])
    def test_a_damaged_manifest_is_named(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(DataError, match=r"manifest\.json is damaged"):
            find_checkpoint(str(tmp_path))


class TestEvaluations:
    def test_states_add_up_whatever_their_shape(self) -> None:
        one = {"sum": [1, [2.5, 3]], "kind": "auc"}
        assert merge("m", one, {"sum": [4, [5, 6]], "kind": "auc"}) == {"sum": [5, [7.5, 9]], "kind": "auc"}

    @pytest.mark.parametrize("other", [{"sum": [1], "kind": "auc"}, {"sum": [1, 2], "kind": "mean"}, {"sum": "x"}])
    def test_states_that_do_not_fit_are_refused_by_name(self, other: dict[str, Any]) -> None:
        with pytest.raises(UserCodeError, match="'m'"):
            merge("m", {"sum": [1, 2], "kind": "auc"}, other)

    def test_results_are_read_with_or_without_their_name(self) -> None:
        assert states_of(b'{"states": {"a": {"sum": [1]}}}') == states_of(b'{"a": {"sum": [1]}}')
        assert metrics_of(b'{"metrics": {"a": 1}}') == metrics_of(b'{"a": 1}') == {"a": 1.0}
        with pytest.raises(UserCodeError):
            metrics_of(b"[]")
        with pytest.raises(UserCodeError):
            states_of(b'{"a": 3}')


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
            (None, "launcher_lost", Death.KILLED),
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
        book = FailureBook(Limits())
        task = TaskId(TaskType.TRAINING, 1, 4, 40, 50)
        assert not book.user_failed(task, 0, alone=False)
        assert not book.user_failed(task.rest_from(45), 0, alone=False)
        assert not book.user_failed(task, 0, alone=False), "one worker alone proves nothing while there are others"
        assert book.user_failed(task, 1, alone=False)

    def test_the_only_worker_suffices(self) -> None:
        book = FailureBook(Limits())
        task = TaskId(TaskType.TRAINING, 1, 4, 40, 50)
        assert [book.user_failed(task, 0, alone=True) for _ in range(3)] == [False, False, True]

    def test_failures_of_different_tasks_do_not_add_up(self) -> None:
        book = FailureBook(Limits())
        tasks = [TaskId(TaskType.TRAINING, 1, index, 0, 10) for index in range(5)]
        assert not any(book.user_failed(task, index, alone=True) for index, task in enumerate(tasks))


class TestTakeoverRecord:
    def test_it_is_read_as_it_was_written(self) -> None:
        record = TakeoverRecord(
            servers={0: 3, 1: 0},
            generation=4,
            epoch=2,
            awaited_pin=7,
            stopped="max_steps",
            single_tasks=(TaskId(TaskType.EXPORT, 0, 0, 0, 0),),
            evaluations=(EvaluationRecord(7, 2, True, "pinning", -1),),
            evaluated_epochs=(1,),
            description={"callbacks": {"max_steps": 3}},
            best=0.5,
            waited=1,
        )
        assert TakeoverRecord.from_text(record.to_text()) == record

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[1]",
            "{}",
            '{"format": 1, "servers": 3}',
            TakeoverRecord().to_text().replace('"format": 1', '"format": 0'),
        ],
    )
    def test_what_is_no_record_of_this_format_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidInputError, match="cannot be read"):
            TakeoverRecord.from_text(text)


def _spec_of(reader_params: dict[str, Any]) -> JobSpec:
    return JobSpec.from_mapping(
        {"model_def": "m.f", "model_zoo": "/zoo", "training_data": "/d", "data_reader_params": reader_params}
    )


class TestListing:
    @pytest.mark.parametrize(
        ("text", "own"),
        [
            ("def custom_data_reader(o): ...", True),
            ("from readers import make as custom_data_reader", True),
            ("custom_data_reader = 1", True),
            ("custom_data_reader: object = 1", True),
            ("from readers import *", True),
            ("from math import *", False),
            ("if True:\n    def custom_data_reader(o): ...", True),
            ("try:\n    from fast import custom_data_reader\nexcept ImportError:\n    pass", True),
            ("globals().update(make())", True),
            ("def f():\n    custom_data_reader = 1", False),
            ("# custom_data_reader", False),
            ("syntax error here", False),
        ],
    )
    def test_a_module_with_its_own_reader_is_known_without_running_it(
        self, tmp_path: Path, text: str, own: bool
    ) -> None:
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "m.py").write_text(text)
        (tmp_path / "readers.py").write_text("from sub.more import *")
        (tmp_path / "sub" / "more.py").write_text("from readers import *\ndef custom_data_reader(o): ...")
        spec = JobSpec.from_mapping({"model_def": "sub.m.f", "model_zoo": str(tmp_path), "training_data": "/d"})
        assert has_own_reader(spec, tmp_path) is own

    async def test_shards_come_in_pieces_and_the_last_one_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "d.csv").write_text("a\n" + "1\n" * 5001)
        reader = create_data_reader(str(tmp_path / "d.csv"), 4)
        pieces = [(piece.shards, piece.last) async for piece in list_shards(reader)]
        assert [last for _, last in pieces] == [False] * (len(pieces) - 1) + [True]
        assert len(pieces) > 1
        assert sum(shard.records for shards, _ in pieces for shard in shards) == 5001

    def test_the_columns_are_in_the_durable_plan(self) -> None:
        plans, again = JobPlans(_spec_of({})), JobPlans(_spec_of({}))
        plans.columns = ["a", "b"]
        again.adopt(json.loads(json.dumps(plans.to_mapping())))
        assert again.columns == ["a", "b"]

    async def test_missing_data_is_named(self) -> None:
        with pytest.raises(DataError, match="/nowhere"):
            await open_readers(_spec_of({}), {TaskType.TRAINING: "/nowhere/x.csv"})

    async def test_all_data_of_a_job_has_the_columns_of_the_main_data(self, tmp_path: Path) -> None:
        """A validation file with a column too many failed after the first epoch, as a fault of the model."""
        (tmp_path / "t.csv").write_text("a,b,y\n1,2,3\n")
        (tmp_path / "v.csv").write_text("y,b,a\n3,2,1\n")
        origins = {TaskType.TRAINING: str(tmp_path / "t.csv"), TaskType.EVALUATION: str(tmp_path / "v.csv")}
        readers = await open_readers(_spec_of({}), origins)
        assert [columns_of(reader) for reader in readers.values()] == [["a", "b", "y"]] * 2
        (tmp_path / "v.csv").write_text("a,b,y,z\n1,2,3,4\n")
        with pytest.raises(DataError, match=r"v\.csv: has the column 'z' too many"):
            await open_readers(_spec_of({}), origins)
        # What was trained on a checkpoint's columns is told by its manifest.
        with pytest.raises(DataError, match=r"t\.csv: lacks the column 'x'"):
            await open_readers(_spec_of({"trained_columns": ["x", "b", "y"]}), origins)


@pytest.mark.parametrize(
    ("name", "path", "output", "wanted"),
    [
        ("", "/job/artifacts/model/a.keras", "", ("model/a.keras", "model/a.keras")),
        ("a.keras", "/job/artifacts/model/a.keras", "", ("a.keras", "model/a.keras")),
        ("", "/out/v/a.keras", "/out", ("v/a.keras", "/out/v/a.keras")),
        ("", "model/a.keras", "/out", ("model/a.keras", "model/a.keras")),
    ],
)
def test_artifacts_are_named_by_where_they_are(name: str, path: str, output: str, wanted: tuple[str, str]) -> None:
    assert locate(name, path, Path("/job/artifacts"), output) == wanted
