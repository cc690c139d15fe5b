"""The frame of the benchmarks: targets, reports, turns."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness import Report, Sample, interleaved, measure, parse, plots, zipf_ids
from benchmarks.harness.report import drop_points_on_lines

pytestmark = pytest.mark.unit


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report("speed", "Speed", "Ours against theirs.", "./dev bench speed", tmp_path / "results")


@pytest.mark.parametrize(
    ("value", "goal", "at_least", "line"),
    [
        (0.951, 0.95, True, "TARGET t 0.951 >=0.95 met"),
        (0.949, 0.95, True, "TARGET t 0.949 >=0.95 missed"),
        (0.95, 0.95, True, "TARGET t 0.95 >=0.95 met"),
        (1.3, 1.3, False, "TARGET t 1.3 <=1.3 met"),
        (1.31, 1.3, False, "TARGET t 1.31 <=1.3 missed"),
        (1234.0, 1000.0, True, "TARGET t 1234 >=1000 met"),
    ],
)
def test_a_target_is_printed_and_kept_in_the_report(
    report: Report,
    capsys: pytest.CaptureFixture[str],
    value: float,
    goal: float,
    at_least: bool,
    line: str,
) -> None:
    met = report.target("t", value, goal, at_least=at_least)
    assert met is line.endswith(" met")
    assert capsys.readouterr().out.splitlines() == [line]
    assert f"```\n{line}\n```" in report.write().read_text()


def test_a_report_has_its_parts_in_order(report: Report, tmp_path: Path) -> None:
    report.text("## First")
    report.table(["side", "ms"], [["ours", 1.23456], ["theirs", 12345.6]])
    report.plot("times", plots.bars(["a", "b"], {"ours": [1.0, None], "theirs": [2.0, 3.0]}, "ms", goal=1.5), "Times")
    report.target("t", 1.0, 2.0)
    path = report.write()
    assert path == tmp_path / "results" / "speed.md"
    text = path.read_text()
    order = ["# Speed", "Ours against theirs.", "`./dev bench speed`", "## Targets", "TARGET t 1 >=2 missed"]
    order += ["## First", "| ours   | 1.23   |", "| theirs | 12,346 |", "![Times](speed-times.svg)", "## The machine"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    plot = (path.parent / "speed-times.svg").read_text()
    assert "<svg" in plot
    assert not any(line.endswith(" ") for line in plot.splitlines())


def test_a_report_without_targets_has_no_heading_for_them(report: Report) -> None:
    assert "## Targets" not in report.write().read_text()


def test_progress_goes_to_the_errors(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    report.say("half way")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("half way\n")


def test_lines_are_drawn_for_each_series(report: Report) -> None:
    figure = plots.lines([1.0, 10.0], {"ours": [1.0, 2.0], "theirs": [3.0, 4.0]}, "rows", "ms", log_x=True, log=True)
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.get_lines()] == ["ours", "theirs"]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_sides_take_turns_and_are_called_once_before() -> None:
    called: list[str] = []
    ticks = itertools.count()
    sides = {"a": lambda: called.append("a"), "b": lambda: called.append("b")}
    samples = interleaved(sides, repeats=3, least_s=0.5, clock=lambda: float(next(ticks)))
    assert called == ["a", "b"] * 4
    assert {name: sample.values for name, sample in samples.items()} == {"a": (1.0,) * 3, "b": (1.0,) * 3}


def test_short_calls_are_repeated_until_they_can_be_measured() -> None:
    now = 0.0
    calls = 0

    def work() -> None:
        nonlocal now, calls
        now += 0.001
        calls += 1

    assert measure(work, least_s=0.05, clock=lambda: now) == pytest.approx(0.001)
    assert calls >= 50


def test_quotients_are_taken_of_measurements_side_by_side() -> None:
    # The machine was ten times slower for a while; each pair still says two.
    slow, fast = Sample((2.0, 20.0, 20.0, 2.0)), Sample((1.0, 10.0, 10.0, 1.0))
    assert slow.over(fast) == 2.0
    assert slow.ratios(fast).spread == 0.0
    assert fast.over(slow) == 0.5
    with pytest.raises(ValueError, match="shorter"):
        slow.over(Sample((1.0,)))


def test_a_sample_tells_its_median_and_spread() -> None:
    assert Sample((3.0, 1.0, 2.0)).median == 2.0
    assert Sample((1.0, 2.0, 3.0)).spread == 0.5
    assert Sample((2.0,) * 9).spread == 0.0


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.2])
def test_zipf_ids_stay_in_their_space_and_are_skewed(exponent: float) -> None:
    ids = zipf_ids(1000, 50_000, 1, exponent=exponent)
    assert ids.dtype == np.int64
    assert ids.min() >= 0
    assert ids.max() < 1000
    counts = np.sort(np.bincount(ids, minlength=1000))[::-1]
    # The commonest id is about 2 ** exponent times as common as the second and far above the mean.
    assert counts[0] > 3 * counts.mean()
    assert counts[0] > 1.3 * counts[2]
    np.testing.assert_array_equal(ids, zipf_ids(1000, 50_000, 1, exponent=exponent))


def test_options_are_parsed_and_unknown_ones_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--quick", "--large-rows", "7"])
    options = parse("What it does.", large_rows=3, repeats=5)
    assert (options.quick, options.large_rows, options.repeats) == (True, 7, 5)
    monkeypatch.setattr(sys, "argv", ["bench", "--repeat", "7"])
    with pytest.raises(SystemExit):
        parse("What it does.", repeats=5)
    assert "--repeat" in capsys.readouterr().err


def test_points_on_straight_lines_are_dropped_from_plots() -> None:
    drawn = "<path\nM 0 0\nL 1 0\nL 1 0\nL 2 0\nL 3 0\nL 3 1\nL 3 0.5\nL 4 0.5\nM 5 0.5\nL 6 0.5\nz\n/>"
    kept = "<path\nM 0 0\nL 3 0\nL 3 1\nL 3 0.5\nL 4 0.5\nM 5 0.5\nL 6 0.5\nz\n/>"
    assert drop_points_on_lines(drawn.splitlines()) == kept.splitlines()
