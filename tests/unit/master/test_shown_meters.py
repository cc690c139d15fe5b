"""What a master shows of its job is in the table of meters, and what its status says."""

from __future__ import annotations

import pytest

from elasticdl_core.meters import KEYS
from elasticdl_master.state.meters import meters_of
from elasticdl_master.state.status import status_of
from tests.fakes.job_world import World, ended, run
from tests.fakes.sim_faults import make_world

pytestmark = pytest.mark.unit


def test_every_number_is_in_the_table_and_follows_the_job_to_its_end() -> None:
    world = make_world(1, num_epochs=2)
    world.start_master()
    seen: list[dict[tuple[str, str], float | None]] = []

    def until(world: World) -> bool:
        if world.machine is not None:
            seen.append(meters_of(status_of(world.machine), world.machine.supervisor.target))
        return ended(world)

    run(world, until)

    assert set().union(*seen) <= KEYS
    done = [numbers["elasticdl_job_records_done", ""] for numbers in seen]
    assert done[-1] == seen[-1]["elasticdl_job_records_planned", ""] > 0
    assert max(numbers["elasticdl_job_workers", "running"] or 0 for numbers in seen) > 0
    assert {numbers["elasticdl_job_degraded", ""] for numbers in seen} <= {True, False}
