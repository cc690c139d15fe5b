"""What a running job looks like: the panel, the lines, Ctrl-C."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from elasticdl.cli import following
from elasticdl.cli.following import LineView, PanelView, follow_to_end, watch
from elasticdl.cli.live import plain_line, render, sparkline
from elasticdl.client.views import Event, Job, Update
from tests.fakes.api import make_job, make_status

pytestmark = pytest.mark.unit

AT = datetime(2026, 1, 2, 3, 5, 15, tzinfo=UTC)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def job(**changes: object) -> Job:
    return Job.from_json(make_job("digits-x7k2p9", **changes))


def event(number: int, message: str) -> Event:
    return Event(number, "state", message, at=AT)


def drawn(shown: Job, *events: Event, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(render(shown, events, AT))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_running_job_shows_everything_that_matters() -> None:
    workers = [{"index": i, "state": "RUNNING", "phase": phase} for i, phase in enumerate(("training", "starting"))]
    status = make_status(300, 600, workers=workers, degraded="PS 0 restarts from a checkpoint")
    shown = job(state="RUNNING", started_at="2026-01-02T03:04:05Z", target_workers=3, status=status)
    assert drawn(shown, event(1, "3 workers fit"), event(2, "worker 1 joined")) == [
        "digits-x7k2p9  RUNNING  0:01:10",
        "━" * 24 + "╸" + " " * 25 + "300/600 records 50%  epoch 1/2",
        "1,234 samples/s   loss 0.25 (last 0.5)   lr 0.01   version 7   eta 0:00:12",
        "training  accuracy 0.875",
        "evaluated accuracy 0.9",
        "workers   2/3   0:training 1:starting",
        "ps        1   0:running",
        "degraded  PS 0 restarts from a checkpoint",
        "03:05:15 3 workers fit",
        "03:05:15 worker 1 joined",
    ]


def test_what_is_in_the_way_is_in_the_line_of_a_job_until_it_is_over() -> None:
    for state, shown in (("STARTING", True), ("CANCELLED", False)):
        line = plain_line(job(state=state, status={"degraded": "master-0.1 waits: no image"}))
        assert ("degraded: master-0.1 waits: no image" in line) is shown


def test_the_end_has_its_band_and_the_speed_its_curve() -> None:
    status = make_status(300, 600, eta_seconds=600, eta_low_seconds=500, eta_high_seconds=720)
    shown = job(state="RUNNING", target_workers=1, status=status)
    assert "eta 0:10:00 (0:08:20 to 0:12:00)" in plain_line(shown)
    console = Console(width=80, file=io.StringIO(), color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(render(shown, (), AT, [0.0, 500.0, 1000.0, 2000.0]))
    assert "samples/s ▁▃▅█  up to 2,000" in [line.rstrip() for line in capture.get().splitlines()]
    exact = job(state="RUNNING", status=make_status(1, 2, eta_seconds=5, eta_low_seconds=5, eta_high_seconds=5))
    assert "eta 0:00:05  " in plain_line(exact)


def test_a_curve_of_many_values_shows_means_and_never_more_places_than_it_has() -> None:
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([1.0] * 1000) == "█" * 40
    assert sparkline([0.0] * 50 + [10.0] * 50, width=4) == "▁▁██"


def test_a_job_in_the_queue_says_why_it_waits() -> None:
    lines = drawn(job())
    assert lines[0] == "digits-x7k2p9  QUEUED  waiting for a slot"
    assert lines[1].endswith("not started")
    assert len(lines) == 3


def test_a_long_event_is_cut_to_the_terminal_and_words_are_no_markup() -> None:
    lines = drawn(job(reason="[bold]x[/bold]"), event(1, "[red]" + "w" * 200), width=40)
    assert "[bold]x[/bold]" in lines[0]
    assert len(lines[-1]) == 40 and "[red]www" in lines[-1] and lines[-1].endswith("…")


def test_a_line_says_the_same() -> None:
    shown = job(state="RUNNING", target_workers=1, status=make_status(6, 12, loss=None, eta_seconds=None))
    assert plain_line(shown) == (
        "digits-x7k2p9  RUNNING  6/12 records 50%  epoch 1/2  1,234 samples/s  version 7  workers 1/1  ps 1  "
        "training: accuracy 0.875  evaluation: accuracy 0.9"
    )
    assert plain_line(job()) == "digits-x7k2p9  QUEUED  (waiting for a slot)"
    out_of_memory = job(state="STARTING", status=make_status(0, 12, degraded="2 workers ran out of memory"))
    assert plain_line(out_of_memory).startswith("digits-x7k2p9  STARTING  0/12 records")
    assert plain_line(out_of_memory).endswith("  degraded: 2 workers ran out of memory")
    ended = job(
        state="FAILED", reason="the worker failed", status=make_status(0, 12, degraded="2 workers ran out of memory")
    )
    assert "  FAILED  (the worker failed)  " in plain_line(ended)


def test_a_job_that_has_ended_shows_no_speed_and_no_processes() -> None:
    shown = job(state="SUCCEEDED", reason="done", status=make_status(12, 12))
    assert plain_line(shown) == (
        "digits-x7k2p9  SUCCEEDED  (done)  12/12 records 100%  epoch 1/2  loss 0.25 (last 0.5)  version 7  "
        "training: accuracy 0.875  evaluation: accuracy 0.9"
    )
    assert [line.split()[0] for line in drawn(shown)] == ["digits-x7k2p9", "━" * 50, "loss", "training", "evaluated"]


def test_lines_come_with_changes_of_state_and_then_now_and_then() -> None:
    now = 0.0
    stream = io.StringIO()
    view = LineView(stream, clock=lambda: now)
    for second in range(12):
        now = float(second)
        view.show(Update(job=job(state="RUNNING" if second else "QUEUED", status=make_status(second, 12))))
    view.show(Update(event=event(1, "worker 1 joined")))
    ended = job(state="SUCCEEDED", status=make_status(12, 12))
    view.show(Update(job=ended))
    view.show(Update(job=ended, ended=True))
    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["QUEUED", "RUNNING", "RUNNING", "RUNNING", "worker", "SUCCEEDED"]
    assert [line.split()[2] for line in lines[1:4]] == ["1/12", "6/12", "11/12"]


def test_the_panel_is_drawn_anew_and_keeps_the_last_events() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    updates = [Update(job=job(state="RUNNING"))]
    updates += [Update(event=event(number, f"event number {number}.")) for number in range(10)]
    updates += [Update(job=job(state="SUCCEEDED", status=make_status(4, 4)), ended=True)]
    final = watch(updates, PanelView(console, clock=lambda: AT))
    assert final.state == "SUCCEEDED"
    last = console.file.getvalue().rpartition("digits-x7k2p9")[2]  # type: ignore[attr-defined]
    assert "event number 4." in last and "event number 9." in last
    assert "event number 3." not in last


def test_ctrl_c_detaches_and_tells_how_to_come_back_and_how_to_cancel(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        def updates(self, job_id: str):
            yield Update(job=job(state="RUNNING"))
            raise KeyboardInterrupt

    assert follow_to_end(Interrupted(), "digits-x7k2p9") == 130  # type: ignore[arg-type]
    captured = capfd.readouterr()
    assert "job digits-x7k2p9 goes on" in captured.err
    assert "elasticdl jobs get digits-x7k2p9 --watch" in captured.err
    assert "elasticdl jobs cancel digits-x7k2p9" in captured.err
    assert following.EXIT_INTERRUPTED == 130
