"""What a worker says of itself: that it holds a task is never taken for waiting."""

from __future__ import annotations

import pytest

from elasticdl_worker.progress import Progress

pytestmark = pytest.mark.unit


def test_a_worker_that_holds_a_task_does_not_say_that_it_waits() -> None:
    progress = Progress()
    assert progress.snapshot().phase == "starting"
    progress.idle()
    assert progress.snapshot().phase == "waiting"
    progress.hold("a", 5)
    progress.idle()  # it asks for another task while it has this one
    assert progress.snapshot().phase == "reading"
    progress.phase("training")
    progress.hold("b", 9)
    assert progress.snapshot().phase == "training"
    progress.drop("a")
    progress.drop("b")
    progress.idle()
    assert progress.snapshot().phase == "waiting"


def test_a_task_that_is_gone_does_not_come_back_by_its_progress() -> None:
    progress = Progress()
    progress.hold("a", 5)
    progress.advance("a", 7)
    assert progress.snapshot().positions == {"a": 7}
    progress.drop("a")
    progress.advance("a", 8)
    assert progress.snapshot().positions == {}
