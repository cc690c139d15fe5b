"""Samples a second come from what the lines of a trace say, whenever they are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.training.cluster import TraceMeter


def _write(folder: Path, owner: str, lines: Sequence[tuple[float, int]]) -> None:
    with (folder / f"{owner}.jsonl").open("a", encoding="utf-8") as file:
        for at, records in lines:
            file.write(json.dumps({"at": at, "start": 0, "end": records}) + "\n")


def test_the_speed_is_that_between_the_first_and_the_last_line(tmp_path: Path) -> None:
    meter = TraceMeter(tmp_path)
    _write(tmp_path, "worker-0.1", [(100.0 + second, 64) for second in range(11)])
    _write(tmp_path, "worker-1.1", [(200.0 + second / 2, 64) for second in range(11)])
    meter.watch(0.0)
    assert meter.owners() == 2
    assert meter.rate() == pytest.approx(64 + 128)


def test_what_was_written_before_is_forgotten_and_half_a_line_waits(tmp_path: Path) -> None:
    meter = TraceMeter(tmp_path)
    _write(tmp_path, "worker-0.1", [(100.0, 64), (101.0, 64)])
    meter.watch(0.0)
    meter.forget()
    _write(tmp_path, "worker-0.1", [(110.0 + second, 32) for second in range(5)])
    with (tmp_path / "worker-0.1.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"at": 115.0, "start"')
    meter.watch(0.0)
    assert (meter.fewest(), meter.rate()) == (5, pytest.approx(32))


def test_lines_of_one_moment_count_as_one(tmp_path: Path) -> None:
    meter = TraceMeter(tmp_path)
    _write(tmp_path, "worker-0.1", [(100.005 + number / 1000, 64) for number in range(10)])
    meter.watch(0.0)
    assert meter.fewest() == 1
    with pytest.raises(RuntimeError, match=r"worker-0\.1 finished 1 tasks"):
        meter.rate()
