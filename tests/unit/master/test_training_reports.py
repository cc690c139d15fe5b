"""Metrics of training minibatches are those of the worker that measured last, and change hands with the measuring."""

from __future__ import annotations

import pytest

from elasticdl_master.state import events as ev
from elasticdl_master.state.status import status_of
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
