"""What the experiments read off a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.colocation import DATA, SLOTS, read_demand
from experiments.elastic_accuracy import Run, spread_of
from experiments.harness.recording import Level, count, mean_over, read_journal, read_steps, workers_of
from experiments.harness.service import Demand, Service

pytestmark = pytest.mark.unit


def line(index: int, state: str, at: float, *, role: str = "worker", job: str = "a", incarnation: int = 0) -> str:
    ended = state == "exited"
    entry = {"job": job, "role": role, "index": index, "incarnation": incarnation, "state": state, "at": at}
    return json.dumps({**entry, "exit_code": 0 if ended else None, "reason": "terminated" if ended else ""})


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "processes.jsonl"
    lines = [
        line(0, "pending", 9.0, role="ps"),
        line(0, "pending", 10.0),
        line(1, "pending", 10.0),
        line(0, "running", 11.0),
        line(1, "running", 13.0),
        line(1, "exited", 15.0),
        line(1, "pending", 16.0, incarnation=1),
        line(1, "running", 17.0, incarnation=1),
        line(2, "pending", 17.0),
        line(2, "exited", 18.0),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_workers_are_counted_while_they_run(journal: Path) -> None:
    workers = workers_of(read_journal(journal), "a")
    assert [worker.launched_at for worker in workers] == [10.0, 10.0, 16.0, 17.0]
    level = count(workers, origin=10.0)
    assert (list(level.times), [int(value) for value in level.values]) == ([1.0, 3.0, 5.0, 7.0], [1, 2, 1, 2])
    assert list(level.at(np.array([0.0, 1.0, 4.0, 6.0, 9.0]))) == [0, 1, 2, 1, 2]


def test_a_mean_weighs_by_time() -> None:
    level = Level([1.0, 3.0], [2.0, 6.0])
    assert mean_over(level, 0.0, 4.0) == pytest.approx((0 * 1 + 2 * 2 + 6 * 1) / 4)
    assert mean_over(level, 3.5, 4.0) == 6.0


def test_steps_of_all_workers_are_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.0.0.7.csv").write_text("1.0,4\n3.0,4\n")
    (tmp_path / "a.1.0.8.csv").write_text("2.0,2\n")
    (tmp_path / "b.0.0.9.csv").write_text("0.5,100\n")
    steps = read_steps(tmp_path, "a")
    assert steps.first == 1.0 and list(steps.records) == [4, 2, 4]
    assert steps.between(1.5, 3.0) == 6


def test_the_demand_leaves_slots_for_every_job_at_all_times() -> None:
    demand = read_demand(DATA)
    assert demand.length_s == pytest.approx(24 * 3600, abs=10)
    assert min(demand.slots) >= 1 and max(demand.slots) <= SLOTS - 2
    evening = demand.part(14 * 3600, 21.5 * 3600)
    assert evening.length_s == pytest.approx(7.5 * 3600, abs=10)
    assert evening.slot_seconds < demand.slot_seconds


class Granting:
    """A client whose reservations are granted one slot at each look."""

    def __init__(self) -> None:
        self.wanted = self.granted = 0
        self.released = False

    def reserve(self, name: str, slots: int, *, grace_s: float) -> dict[str, int]:
        self.wanted, self.granted = slots, min(self.granted, slots)
        return {"granted": self.granted}

    def reservations(self) -> dict[str, list[dict[str, object]]]:
        self.granted = min(self.wanted, self.granted + 1)
        return {"reservations": [{"name": "shop", "granted": self.granted}]}

    def release(self, name: str) -> None:
        self.released = True


def test_a_service_waits_until_all_is_granted_and_notes_each_change() -> None:
    client = Granting()
    service = Service(client, "shop", 1.0)  # type: ignore[arg-type]
    begin = service.live(Demand([0.0, 1.0, 2.0], [2, 1, 1]), 0.5, lambda _: None)
    assert len(service.waits) == 1 and client.released
    assert [int(value) for value in service.wanted(begin).values] == [2, 1]
    assert [int(value) for value in service.granted(begin).values] == [0, 1, 2, 1]


def test_the_spread_is_that_of_the_seeds_not_of_the_sizes() -> None:
    finals = {"fixed 4": [0.70, 0.73], "fixed 8": [0.80, 0.82], "elastic 4-8": [0.1, 0.9]}
    runs = [
        Run("xdeepfm", way, seed, [(1, 0.5), (2, auc)], 1.0, (4, 8), 0, 0)
        for way, aucs in finals.items()
        for seed, auc in enumerate(aucs)
    ]
    assert spread_of(runs, "xdeepfm") == pytest.approx(0.03)
