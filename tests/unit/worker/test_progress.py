"""What a worker says of itself: that it holds a task is never taken for waiting."""

from __future__ import annotations

import math

import pytest

from elasticdl_core.skips import SkipReason, Skips
from elasticdl_worker.reporting.local_progress import LocalProgress
from elasticdl_worker.reporting.loss_window import TrainingSummary
from elasticdl_worker.reporting.progress import StepParts, WorkerProgress

pytestmark = pytest.mark.unit


def test_a_worker_that_holds_a_task_does_not_say_that_it_waits() -> None:
    progress = WorkerProgress()
    assert progress.take_snapshot().phase == "starting"
    progress.set_idle()
    assert progress.take_snapshot().phase == "waiting"
    progress.add_task("a", 5)
    progress.set_idle()  # it asks for another task while it has this one
    assert progress.take_snapshot().phase == "reading"
    progress.set_phase("training")
    progress.add_task("b", 9)
    assert progress.take_snapshot().phase == "training"
    progress.remove_task("a")
    progress.remove_task("b")
    progress.set_idle()
    assert progress.take_snapshot().phase == "waiting"


def test_a_task_that_is_gone_does_not_come_back_by_its_progress() -> None:
    progress = WorkerProgress()
    progress.add_task("a", 5)
    progress.advance("a", 7)
    assert progress.take_snapshot().positions == {"a": 7}
    progress.remove_task("a")
    progress.advance("a", 8)
    assert progress.take_snapshot().positions == {}


def test_a_reported_loss_is_the_mean_since_the_report_before() -> None:
    """It was one minibatch in a hundred, and a short job showed its first one for ever."""
    progress = WorkerProgress()
    progress.set_loss_interval(4)
    progress.set_phase("training")
    for version in range(7):
        progress.record_loss(version, float(version), 0.5)
    first = progress.take_snapshot()
    assert first.losses == ((0, 0.0), (4, 2.5))
    assert first.summary == TrainingSummary(3.0, 6.0, 0.5)
    assert progress.take_snapshot().losses == ()
    progress.set_phase("exporting")
    assert progress.take_snapshot().losses == ((6, 5.5),)
    progress.set_phase("training")
    progress.record_loss(7, 9.0, 0.25)
    assert progress.take_snapshot(last=True).losses == ((7, 9.0),)
    assert progress.take_snapshot().summary == TrainingSummary(3.75, 9.0, 0.25)


def test_losses_of_a_heartbeat_that_was_not_heard_go_with_the_next() -> None:
    progress = WorkerProgress()
    progress.record_loss(1, 1.0)
    lost = progress.take_snapshot()
    progress.record_loss(2, 2.0)
    progress.restore_losses(lost)
    assert progress.take_snapshot().losses == ((1, 1.0), (2, 2.0))


def test_a_loss_that_is_no_number_is_shown_but_does_not_spoil_the_mean() -> None:
    progress = WorkerProgress()
    progress.record_loss(1, math.nan)
    assert math.isnan(progress.take_snapshot().summary.mean)  # type: ignore[union-attr]
    progress.record_loss(2, 2.0)
    progress.record_loss(3, math.nan)
    shown = progress.take_snapshot().summary
    assert shown is not None
    assert shown.mean == 2.0
    assert math.isnan(shown.last)


def test_metrics_are_due_with_each_reported_loss_and_at_first_and_stay_until_there_are_others() -> None:
    progress = WorkerProgress()
    progress.set_loss_interval(3)
    due = []
    for version in range(7):
        progress.record_loss(version, 1.0)
        due.append(progress.metrics_due)
        if progress.metrics_due and version != 3:  # that minibatch could not be measured: the next one is
            progress.record_metrics({"accuracy": 0.5})
    assert due == [True, True, False, True, True, False, True]
    for _ in range(2):
        shown = progress.take_snapshot().summary
        assert shown is not None and shown.metrics == {"accuracy": 0.5}
    progress.record_metrics({"accuracy": math.nan})
    shown = progress.take_snapshot().summary
    assert shown is not None and shown.metrics == {}, "a number that cannot be said yet is left out"


def test_the_parts_of_a_step_add_up_to_the_time_that_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("elasticdl_worker.reporting.progress.time.monotonic", lambda: now[0])
    progress = WorkerProgress()
    assert progress.take_snapshot().step is None

    def step(minibatches: int = 1) -> None:
        now[0] += 1.0
        parts = StepParts(pull=0.2, compute=0.7, push=0.1)
        progress.record_step(8 * minibatches, 1.0, 1, minibatches, parts)

    progress.add_task("a", 0)
    step()
    assert progress.take_snapshot().step == StepParts(pull=0.2, compute=0.7, push=0.1)
    now[0] += 0.5  # the next records are not read yet
    step()
    progress.remove_task("a")
    progress.set_idle()
    now[0] += 3.0  # nothing to do
    progress.set_idle()
    progress.add_task("b", 0)
    now[0] += 0.5
    step(minibatches=2)
    parts = progress.take_snapshot().step
    assert parts is not None
    assert 4 * parts.data == pytest.approx(1.0)
    assert 4 * parts.wait == pytest.approx(3.0)
    assert 4 * (parts.pull + parts.compute + parts.push) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("rows", "left_out", "records"), [(10, 0, 10), (7, 3, 7), (10, 4, 6), (25, 0, 10), (25, 2, 8)]
)
def test_a_local_run_counts_a_record_once_however_often_it_comes(rows: int, left_out: int, records: int) -> None:
    progress = LocalProgress(lambda event: None, 20)
    for shard in (1, 2):
        progress.begin(10)
        progress.advance(rows, 0, shard, 0.5)
        progress.end(Skips.of(SkipReason.FEED, left_out, "of some") if left_out else Skips())
        assert progress.records == shard * records
