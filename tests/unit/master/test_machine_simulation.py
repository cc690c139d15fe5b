"""Seeded simulations of whole jobs with random faults: whatever happens, no record is lost."""

from __future__ import annotations

import math
import re

import pytest

from elasticdl_core.best_evaluation import marked_best
from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import Role
from elasticdl_core.process_life import EndCause
from elasticdl_core.shard import Shard
from elasticdl_core.task import TaskId, TaskType
from elasticdl_master.state import events as ev
from elasticdl_master.state.limits import Limits
from elasticdl_master.state.status import status_of
from tests.fakes.job_world import World, ended, run
from tests.fakes.sim_faults import SEEDS, Faults, check_that_nothing_is_lost, kinds, living, make_world

pytestmark = pytest.mark.unit


def test_without_faults_each_record_is_applied_exactly_once() -> None:
    for seed in range(20):
        world = make_world(seed, validation_data="/v")
        world.start_master()
        run(world, ended)
        assert world.state is JobState.SUCCEEDED, world.detail
        assert world.transitions == [JobState.RUNNING, JobState.SUCCEEDED]
        for applied in world.oracle.applied():
            assert set(applied) == world.oracle.expected()
            assert set(applied.values()) == {1}
        assert [e.metrics for e in world.evaluations] == [{"n": 9.0}, {"n": 9.0}]
        assert [e.training_epoch for e in world.evaluations] == [1, 2]
        assert [a.name for a in world.artifacts] == ["model.keras"]
        assert [m["kind"] for m in world.manifests] == ["final"]
        assert not living(world, Role.PS)
        assert not living(world, Role.WORKER)


@pytest.mark.rotates(turns=3)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(6))
def test_no_record_is_lost_whatever_happens(part: int) -> None:
    for seed in range(part, SEEDS, 6):
        options: dict[str, object] = {"checkpoint_steps": [0, 5][seed % 2], "keep_checkpoint_max": seed % 3}
        if seed % 4 == 1:
            options["validation_data"] = "/v"
        if seed % 8 == 1:
            options["evaluation_steps"] = 4
        world = make_world(seed, **options)
        faults = Faults(world)
        world.save_fails = 0.1
        world.start_master()

        def until(world: World, faults: Faults = faults) -> bool:
            faults.maybe()
            return ended(world)

        try:
            run(world, until)
            assert world.state is JobState.SUCCEEDED, (world.state, world.detail)
            for applied in world.oracle.applied():
                assert not world.oracle.expected() - set(applied), "records are missing in the model"
            assert not living(world, Role.PS)
            assert not living(world, Role.WORKER)
            assert world.manifests[-1]["kind"] == "final"
            keep = world.spec.keep_checkpoint_max
            assert not keep or len(world.manifests) <= keep
            if world.validation:
                assert all(e.metrics == {"n": 9.0} for e in world.evaluations)
                assert {e.training_epoch for e in world.evaluations} >= {1, 2}
                assert len({e.number for e in world.evaluations}) == len(world.evaluations)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def scored(version: int) -> float:
    """Up and down, NaN at times, often the same."""
    return math.nan if version % 7 == 3 else float(version * 37 % 11)


def check_best(world: World) -> None:
    """The checkpoint of the best evaluation exists, is of the version that was evaluated, and was exported."""
    best = marked_best(world.manifests)  # type: ignore[arg-type]
    values = [e.metrics["score"] for e in world.evaluations if not math.isnan(e.metrics["score"])]
    if best is None:
        assert not values
        return
    mark = best["best"]
    assert mark is not None
    assert mark["value"] == scored(mark["version"]) == max(values)
    assert best["version"] == mark["version"]
    assert {server.version for server in world.checkpoints[best["directory"]]} == {mark["version"]}
    assert {a.name for a in world.artifacts} == {"model.keras", "best/model.keras"}


@pytest.mark.rotates(turns=3)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(3))
def test_the_model_of_the_best_evaluation_is_kept_whatever_happens(part: int) -> None:
    for seed in range(part, SEEDS // 3, 3):
        world = make_world(
            seed,
            validation_data="/v",
            keep_best="score:max",
            num_epochs=3,
            keep_checkpoint_max=seed % 3,
            checkpoint_steps=[0, 5][seed % 2],
            evaluation_steps=[0, 4][seed // 2 % 2],
        )
        world.score = scored
        world.save_fails = 0.1 * (seed % 3)
        faults = Faults(world)
        world.start_master()

        def until(world: World, faults: Faults = faults) -> bool:
            if part:
                faults.maybe()
            return ended(world)

        try:
            run(world, until)
            assert world.state is JobState.SUCCEEDED, (world.state, world.detail)
            keep = world.spec.keep_checkpoint_max
            assert not keep or len(world.manifests) <= keep + 1
            check_best(world)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_a_ps_that_hangs_is_killed_and_restored_as_if_it_had_died() -> None:
    for seed in range(10):
        world = make_world(seed, num_epochs=6)
        world.start_master()
        run(world, lambda world: world.machine.epochs.records_done > 20)
        world.servers[seed % 2].frozen_until = float("inf")
        run(world, ended)
        assert world.state is JobState.SUCCEEDED, world.detail
        for applied in world.oracle.applied():
            assert not world.oracle.expected() - set(applied), "records are missing in the model"
        stuck, lost = (next(e for e in world.events if e.kind == kind) for kind in ("ps_stuck", "ps_lost"))
        assert f"ps-{seed % 2}.0 did not answer for" in stuck.message
        assert "did not answer for" in lost.message
        assert "worker_stuck" not in kinds(world)


def test_a_ps_that_answers_again_in_time_is_left_alone() -> None:
    world = make_world(1, num_epochs=6)
    world.start_master()
    run(world, lambda world: world.machine.epochs.records_done > 20)
    world.servers[0].frozen_until = world.now + 0.8 * world.limits.server_silent_s
    run(world, lambda world: world.machine.servers.silent)
    assert status_of(world.machine)["degraded"] == "a parameter server does not answer"
    run(world, ended)
    assert world.state is JobState.SUCCEEDED
    assert not {"ps_stuck", "ps_lost", "worker_stuck"} & set(kinds(world))


def test_a_ps_may_be_slow_to_start_but_not_for_ever() -> None:
    world = make_world(1)
    world.server_start_s = 400.0
    world.start_master()
    run(world, ended)
    assert world.state is JobState.SUCCEEDED
    assert not {"ps_stuck", "ps_lost", "worker_stuck", "worker_lost"} & set(kinds(world))
    never = make_world(1)
    never.server_start_s = float("inf")
    never.start_master()
    run(never, ended, seconds=20_000.0)
    assert never.state is JobState.FAILED
    assert "after its start" in never.detail["message"]


def test_a_new_master_finds_a_ps_that_hangs() -> None:
    world = make_world(1, num_epochs=6)
    world.start_master()
    run(world, lambda world: world.machine.epochs.records_done > 20)
    world.servers[0].frozen_until = float("inf")
    world.kill_master(2.0)
    run(world, ended)
    assert world.state is JobState.SUCCEEDED
    assert "ps_stuck" in kinds(world)
    for applied in world.oracle.applied():
        assert not world.oracle.expected() - set(applied), "records are missing in the model"


def test_types_of_tasks_are_all_used() -> None:
    world = make_world(3, validation_data="/v")
    world.start_master()
    run(world, ended)
    assert {task.type for task, _ in world.leased} == {
        TaskType.TRAINING,
        TaskType.EVALUATION,
        TaskType.EVALUATION_SUMMARY,
        TaskType.EXPORT,
    }


@pytest.mark.timeout(600)
def test_suspended_and_evicted_jobs_lose_nothing() -> None:
    for seed in range(SEEDS // 6):
        world = make_world(seed, checkpoint_steps=[0, 5][seed % 2], validation_data=["", "/v"][seed // 2 % 2])
        check_that_nothing_is_lost(world, seed)


def test_a_suspension_without_faults_repeats_nothing() -> None:
    for seed in range(10):
        world = make_world(seed)
        world.start_master()
        run(world, lambda world: world.machine.epochs.records_done > 20)
        world.desired = "suspend"
        run(world, lambda world: world.state is JobState.SUSPENDED)
        assert not living(world, Role.PS)
        assert not living(world, Role.WORKER)
        run(world, lambda world: world.machine is None)
        world.desired, world.state, world.master_back_at = "run", JobState.STARTING, world.now + 5.0
        run(world, ended)
        assert world.state is JobState.SUCCEEDED
        for applied in world.oracle.applied():
            assert set(applied) == world.oracle.expected()
            assert set(applied.values()) == {1}


@pytest.mark.parametrize("store_kept", [True, False])
def test_a_cluster_that_goes_down_saves_first_and_nothing_is_done_twice(store_kept: bool) -> None:
    for seed in range(10):
        world = make_world(seed, num_epochs=3, validation_data=["", "/v"][seed % 2])
        world.start_master()
        for records in (20, 50, 80):
            run(world, lambda world, records=records: world.machine.epochs.records_done > records)
            trained = world.machine.epochs.records_done
            world.tell(ev.GoingDown())
            run(world, lambda world: world.machine is None, seconds=20.0)
            assert not living(world, Role.PS)
            assert not living(world, Role.WORKER)
            assert EndCause.CRASHED not in {life.cause for life in world.lives.values()}
            saved = max(world.manifests, key=lambda m: m["version"])
            assert saved["kind"] == "suspend"
            assert sum(world.checkpoints[saved["directory"]][0].applied.values()) >= trained
            if not store_kept:
                world.store.wipe()
            run(world, lambda world: world.machine is not None)
        run(world, ended)
        assert world.state is JobState.SUCCEEDED
        assert world.transitions == [JobState.RUNNING, JobState.SUCCEEDED]
        for applied in world.oracle.applied():
            assert set(applied) == world.oracle.expected()
            assert set(applied.values()) == {1}
        assert kinds(world).count("going_down") == 3
        assert kinds(world).count("restored") == 3
        assert "rolled_back" not in kinds(world)


def test_the_loss_of_ps_is_forgiven_by_progress_but_not_by_the_same_work_again() -> None:
    progressing = make_world(4, num_epochs=12)
    progressing.start_master()
    for records in range(30, 270, 20):
        run(progressing, lambda world, records=records: world.machine.epochs.records_done > records)
        progressing.exit(progressing.servers[0].id, -9)
        run(progressing, lambda world: not world.machine.servers.ready or ended(world))
        run(progressing, lambda world: world.machine is None or world.machine.servers.ready)
    run(progressing, ended)
    assert progressing.state is JobState.SUCCEEDED
    assert kinds(progressing).count("ps_lost") > Limits().server_crashes

    repeating = make_world(4, num_epochs=12)
    repeating.save_fails = 1.0
    repeating.start_master()

    def until(world: World) -> bool:
        # As soon as it is a little under way, and always at the same place.
        if world.machine is not None and world.machine.servers.ready and world.machine.epochs.records_done > 20:
            world.exit(world.servers[0].id, -9)
        return ended(world)

    run(repeating, until)
    assert repeating.state is JobState.FAILED
    assert "without any progress" in repeating.detail["message"]


def test_ps_that_machines_take_along_are_no_fault_of_the_job() -> None:
    """However often they go at the same place, before or after they ran."""
    world = make_world(4, num_epochs=12)
    world.save_fails = 1.0
    world.start_master()
    gone = 0

    def until(world: World) -> bool:
        nonlocal gone
        at_work = world.machine is not None and world.machine.epochs.records_done > 20 and 0 in world.servers
        if at_work and (world.machine.servers.ready or gone % 2):
            world.exit(world.servers[0].id, *((None, "launcher_lost"), (-15, "terminated"))[gone % 2])
            gone += 1
        return ended(world) or gone == 3 * Limits().server_crashes

    run(world, until)
    world.save_fails = 0.0
    run(world, ended)
    assert world.state is JobState.SUCCEEDED, world.detail
    assert kinds(world).count("ps_lost") >= 3 * Limits().server_crashes
    assert world.machine is None or world.machine.servers.crashes == 0


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_memory_grows_to_its_bound_whatever_the_number_of_workers(workers: int) -> None:
    world = make_world(2, worker_memory_mib=1000, min_workers=workers, max_workers=4)
    given: set[int] = set()

    def user_code(task: TaskId, position: int) -> str:
        memory = world.machine.workers.memory_mib
        given.add(memory)
        return "oom" if task.index == 4 and memory < 3500 else ""

    world.user_code = user_code
    world.start_master()
    run(world, ended)
    assert world.state is JobState.SUCCEEDED, world.detail
    assert {1000, 1500, 2250, 3375, 4000} <= given
    hungry = make_world(2, worker_memory_mib=1000, min_workers=workers, max_workers=4)
    hungry.user_code = lambda task, position: "oom" if task.index == 4 else ""
    hungry.start_master()
    run(hungry, ended)
    assert hungry.state is JobState.FAILED
    assert "even with 4000 MiB" in hungry.detail["message"]
    assert "worker_memory_mib" in hungry.detail["fix"]


def test_cancelling_leaves_nothing_and_leases_nothing_more() -> None:
    for seed in range(20):
        world = make_world(seed)
        faults = Faults(world)
        world.start_master()

        def until(world: World, faults: Faults = faults) -> bool:
            faults.maybe()
            return world.now > 1000.0 + world.rng.uniform(3.0, 60.0)

        run(world, lambda world, until=until: until(world) or ended(world))
        if ended(world):
            continue
        run(world, lambda world: world.machine is not None)
        world.desired, world.api_back_at = "cancel", world.now
        world.step()
        world.step()
        leased = len(world.leased)
        run(world, ended, seconds=30.0)
        assert world.state is JobState.CANCELLED
        assert len(world.leased) == leased
        assert not living(world, Role.PS)
        assert not living(world, Role.WORKER)


@pytest.mark.parametrize("workers", [1, 3])
def test_user_code_that_fails_on_a_task_fails_the_job_with_its_traceback(workers: int) -> None:
    for seed in range(10):
        world = make_world(seed, min_workers=workers, max_workers=4)
        world.user_code = lambda task, position: "user_code" if task.index == 4 and task.epoch == 1 else ""
        world.start_master()
        run(world, ended)
        assert world.state is JobState.FAILED
        assert world.detail["traceback"] == "Traceback"
        assert world.detail["fix"] == "mend it"
        assert "t:1:4:" in world.detail["where"]
        failures = [event for event in world.events if event.kind == "task_failed"]
        assert len(failures) >= 2


def test_a_task_that_ends_its_workers_fails_the_job() -> None:
    for seed in range(10):
        world = make_world(seed)
        world.user_code = lambda task, position: "crash" if task.index == 4 else ""
        world.start_master()
        run(world, ended)
        assert world.state is JobState.FAILED
        assert "SIGSEGV" in world.detail["message"]


@pytest.mark.parametrize("how", ["hang", "silence"])
@pytest.mark.parametrize("first_record", [True, False])
def test_a_task_that_holds_workers_up_is_found_and_named(how: str, first_record: bool) -> None:
    for seed in range(5):
        world = make_world(seed)
        at = [15, 17][not first_record]
        world.user_code = lambda task, position, at=at: how if task.index == 2 and position >= at else ""
        world.shards = [Shard("a", 3, 60)]
        world.start_master()
        began = world.now
        run(world, ended)
        assert world.state is JobState.FAILED
        # A worker that leaves may have returned the front of the task that it had done.
        # Records are mixed: the one at that position lies anywhere.
        expected = rf"3 workers made no progress at records (\d+) to (\d+) of a, in task t:0:2:(15|{at}):21"
        found = re.fullmatch(expected, world.detail["message"])
        assert found is not None
        assert int(found[2]) == int(found[1]) + 1
        stuck = [event for event in world.events if event.kind == "worker_stuck"]
        assert all(event.detail["task"].startswith("t:0:2:") for event in stuck[-3:])
        assert world.now - began < 400.0
        assert not living(world, Role.WORKER)


def test_a_task_that_held_up_a_worker_is_told_in_the_status_until_it_is_done() -> None:
    world = make_world(3)
    told = []
    world.user_code = lambda task, position: "hang" if task.index == 4 and len(told) < 1 else ""
    world.start_master()

    def until(world: World) -> bool:
        trouble = status_of(world.machine)["degraded"] if world.machine is not None else None
        if trouble and "made no progress" in trouble and trouble not in told:
            told.append(trouble)
        return ended(world)

    run(world, until)
    assert world.state is JobState.SUCCEEDED
    assert told
    assert "1 worker made no progress at record" in told[0]
    assert len(told) == 1


def test_slow_minibatches_are_no_hang() -> None:
    world = make_world(1)
    world.start_master()
    run(world, lambda world: bool(world.workers) and any(w.work for w in world.workers.values()))
    pool, since = world.machine.workers, world.now
    worker = next(w for w in pool.living if w.leases)

    def why(phase: str, step_p95_s: float, seconds: float) -> str:
        beat = ev.WorkerHeartbeat(worker.index, worker.incarnation, phase=phase, step_p95_s=step_p95_s)
        world.machine.handle(beat, since)
        worker.last_heartbeat = since + seconds
        return next((reason for one, reason in pool.overdue(since + seconds, watch=True) if one is worker), "")

    assert why("compiling", 0.0, 300.0) == ""
    assert why("training", 30.0, 290.0) == ""
    assert why("training", 30.0, 310.0) == "made no progress for 310 s while training"
    assert why("waiting", 0.1, 61.0) == "made no progress for 61 s while waiting"


def test_corrupt_data_fails_the_job_at_once() -> None:
    world = make_world(1)
    world.user_code = lambda task, position: "data" if task.index == 4 else ""
    world.start_master()
    run(world, ended)
    assert world.state is JobState.FAILED
    assert world.detail["kind"] == "data"
    assert not [event for event in world.events if event.kind == "task_failed"]


def test_preemptions_cost_nothing_however_many() -> None:
    world = make_world(5)
    world.start_master()
    killed = 0

    def until(world: World) -> bool:
        nonlocal killed
        if world.workers and world.rng.random() < 0.3:
            killed += 1
            world.exit(world.rng.choice(list(world.workers)), -15, "terminated")
        return ended(world)

    run(world, until)
    assert killed > 20
    assert world.state is JobState.SUCCEEDED
    assert not [event for event in world.events if event.kind == "job_failed"]
