"""Losses and metrics that are shown: of the worker that measured last, and of an earlier master until one has."""

from __future__ import annotations

import math
from typing import Any

import pytest

from elasticdl_core.ports.launcher import ProcessId, ProcessState, ProcessStatus, Role
from elasticdl_core.shard import Shard
from elasticdl_core.task import TaskType
from elasticdl_master.state import events as ev
from elasticdl_master.state.machine import JobMachine
from elasticdl_master.state.setup import Setup
from elasticdl_master.state.status import status_of
from tests.fakes.sim_faults import make_spec
from tests.fakes.sim_processes import JOB
from tests.unit.master.test_silent_members import Members

pytestmark = pytest.mark.unit


def test_metrics_do_not_freeze_at_what_a_former_first_member_tells_again() -> None:
    group = Members()

    def say(index: int, value: float, version: int) -> tuple[float, int]:
        told = {"accuracy": value} if version else {}
        beat = ev.WorkerHeartbeat(index, 0, training_metrics=told, training_metrics_version=version)
        group.tell(beat)
        status = status_of(group.machine)
        return status["training_metrics"].get("accuracy", 0.0), status["training_metrics_version"]

    assert say(0, 0.0, 0) == (0.0, 0)
    assert say(0, 0.5, 10) == (0.5, 10)
    assert say(1, 0.6, 20) == (0.6, 20)
    assert say(0, 0.5, 10) == (0.6, 20), "it measures no more, and tells the same again"
    assert say(2, 0.0, 0) == (0.6, 20)
    assert say(2, 0.7, 30) == (0.7, 30)
    assert say(1, 0.6, 20) == (0.7, 30)


SHOWN = (
    "loss",
    "last_loss",
    "learning_rate",
    "training_metrics",
    "training_metrics_version",
    "metrics",
    "metrics_version",
)


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (
            {"loss": 0.5, "last_loss": 0.4, "learning_rate": 0.1, "training_metrics": {"auc": 0.6}}
            | {"training_metrics_version": 7, "metrics": {"auc": 0.7, "none": None}, "metrics_version": 6},
            (0.5, 0.4, 0.1, {"auc": 0.6}, 7, {"auc": 0.7}, 6),
        ),
        (
            {"loss": "x", "last_loss": math.nan, "learning_rate": True, "training_metrics": [1]}
            | {"training_metrics_version": None, "metrics": {"auc": "NaN"}, "metrics_version": -1},
            (None, None, None, {}, 0, {}, 0),
        ),
    ],
)
def test_a_new_master_shows_what_the_last_one_told_until_it_hears_more(told: dict[str, Any], shown: Any) -> None:
    machine = JobMachine(Setup(make_spec(num_ps=1), measured=told))
    status = status_of(machine)
    assert tuple(status[name] for name in SHOWN) == shown
    machine.handle(ev.Started(), 0.0)
    machine.handle(ev.ShardsListed(TaskType.TRAINING, [Shard("a", 0, 9)], last=True), 0.0)
    machine.handle(ev.ProcessChanged(ProcessStatus(ProcessId(JOB, Role.WORKER, 0, 0), ProcessState.RUNNING)), 0.0)
    machine.handle(ev.WorkerRegistered(0, 0), 0.0)
    machine.handle(ev.WorkerHeartbeat(0, 0, loss=0.25, last_loss=0.125), 1.0)
    assert (status_of(machine)["loss"], status_of(machine)["last_loss"]) == (0.25, 0.125)
