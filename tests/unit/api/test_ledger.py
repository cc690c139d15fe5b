"""The ledger adds up to the plan, whatever a master reported, and equals what the job's machine knows."""

from __future__ import annotations

import random
from typing import Any

import pytest

from elasticdl_api.histories.ledger import MOST_EPOCHS, JobLedger, ledger_of
from elasticdl_core.job import JobState
from elasticdl_master.state.status import status_of
from tests.fakes.job_world import World, ended, run
from tests.fakes.sim_faults import Faults, make_world

pytestmark = pytest.mark.unit


def require_sums(ledger: JobLedger) -> None:
    total, tasks = ledger["total"], ledger["tasks"]
    parts = ("committed", "leased", "todo", "skipped")
    for one in (*ledger["epochs"], total):
        assert sum(one[part] for part in parts) == one["planned"], one  # type: ignore[literal-required]
        assert min(one[part] for part in parts) >= 0, one  # type: ignore[literal-required]
    assert tasks["committed"] + tasks["leased"] + tasks["todo"] == tasks["planned"]
    assert min(tasks.values()) >= 0
    if len(ledger["epochs"]) < MOST_EPOCHS:
        for name in ("planned", *parts):
            assert sum(one[name] for one in ledger["epochs"]) == total[name]  # type: ignore[literal-required]


@pytest.mark.parametrize("seed", range(6))
def test_it_adds_up_at_every_moment_of_jobs_that_things_happen_to(seed: int) -> None:
    world = make_world(seed, num_epochs=3)
    world.start_master()
    faults = Faults(world)

    def until(world: World) -> bool:
        faults.maybe()
        if world.machine is not None:
            ledger = ledger_of(status_of(world.machine), active=True)
            require_sums(ledger)
            epochs = world.machine.recovery.last_known  # of a new master before it has restored: what was known
            assert ledger["total"]["committed"] + ledger["total"]["skipped"] == min(
                epochs.records_done, epochs.records_total
            )
        return ended(world)

    run(world, until, seconds=40_000.0)


def test_a_job_that_succeeded_has_committed_all() -> None:
    world = make_world(1, num_epochs=2)
    world.start_master()
    last: list[JobLedger] = []

    def until(world: World) -> bool:
        if world.machine is not None:
            last[:] = [ledger_of(status_of(world.machine), active=True)]
        return ended(world)

    run(world, until)
    assert world.state is JobState.SUCCEEDED
    (ledger,) = last
    assert ledger["total"] == {"planned": 80, "committed": 80, "leased": 0, "todo": 0, "skipped": 0}
    assert ledger["audit"] is not None
    assert ledger["audit"]["committed"] == 80


def test_nobody_holds_a_task_of_a_job_that_is_not_at_work() -> None:
    told = {"epoch": 1, "epochs": 3, "planned": 100, "done": 40, "leased": 30, "skipped": {"0": 7, "1": 5}}
    told |= {"tasks": 10, "tasks_done": 4, "tasks_leased": 3}
    at_work = ledger_of({"ledger": told}, active=True)
    assert at_work["epochs"][1] == {
        "epoch": 2,
        "planned": 100,
        "committed": 35,
        "leased": 30,
        "todo": 30,
        "skipped": 5,
    }
    paused = ledger_of({"ledger": told}, active=False)
    assert paused["total"] == {"planned": 300, "committed": 128, "leased": 0, "todo": 160, "skipped": 12}
    assert paused["tasks"] == {"planned": 30, "committed": 14, "leased": 0, "todo": 16}


@pytest.mark.parametrize("seed", range(50))
def test_it_adds_up_whatever_was_reported(seed: int) -> None:
    rng = random.Random(seed)
    odd: list[Any] = [None, -1, "x", 1.5, True, [], {}]

    def value(most: int) -> Any:
        return rng.choice(odd) if rng.random() < 0.1 else rng.randrange(most)

    told = {name: value(3000) for name in ("epoch", "epochs", "planned", "done", "leased", "tasks", "tasks_done")}
    told["skipped"] = {str(n): value(500) for n in range(5)} if rng.random() < 0.8 else None
    for active in (False, True):
        require_sums(ledger_of({"ledger": told}, active=active))
    require_sums(ledger_of({}, active=True))
