"""Series: nothing is lost when recorders come and go, nothing is told twice, and the size stays bounded."""

from __future__ import annotations

import math
import random

import pytest

from elasticdl_core.series import (
    MOST_NAMES,
    TIERS,
    SeriesRecorder,
    SeriesRow,
    beginning,
    points_of,
    resolution_of,
    segments,
)

pytestmark = pytest.mark.unit
BEGIN = 1_700_000_000 // 7200 * 7200


class Table:
    """Keeps rows as the database does: by tier, span and writer, each tier for its time."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int, int], SeriesRow] = {}

    def write(self, writer: int, rows: list[SeriesRow]) -> None:
        for row in rows:
            self.rows[row.tier, row.start, writer] = row

    def trim(self) -> None:
        newest = max((row.start for row in self.rows.values()), default=0)
        self.rows = {key: row for key, row in self.rows.items() if row.start >= newest - TIERS[row.tier].keeps_s}

    def bounds(self) -> dict[int, tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}
        for tier, start, _ in self.rows:
            first, last = found.get(tier, (start, start))
            found[tier] = (min(first, start), max(last, start))
        return found

    def read(self, since: float, until: float, points: int) -> list[SeriesRow]:
        wanted = segments(self.bounds(), since, until, points)
        return [
            row
            for row in self.rows.values()
            if any(one.tier == row.tier and one.since <= row.start < one.until for one in wanted)
        ]


def record(table: Table, seconds: int, *, lives_s: float = math.inf, seed: int = 0, start: int = BEGIN) -> None:
    """One sample a second of the second's number, by recorders of which each lives for a while."""
    rng = random.Random(seed)
    writer, recorder, dies = 1, SeriesRecorder(), start + lives_s
    for now in range(start, start + seconds):
        if now >= dies:
            writer, recorder, dies = writer + 1, SeriesRecorder(), now + lives_s * rng.uniform(0.5, 1.5)
        recorder.record(now, {"second": float(now - start), "one": 1.0})
        table.write(writer, recorder.take())
    table.write(writer, recorder.take(everything=True))
    table.trim()


def test_a_short_series_is_shown_as_it_was_sampled() -> None:
    table = Table()
    record(table, 60)
    rows = table.read(BEGIN, BEGIN + 60, 300)
    assert {row.tier for row in rows} == {0}
    found = points_of(rows, resolution_of(BEGIN, BEGIN + 60, 300))
    assert found["second"][:2] == [[BEGIN + 2.5, 2.0, 0.0, 4.0], [BEGIN + 7.5, 7.0, 5.0, 9.0]]
    assert found["one"][0] == [BEGIN + 2.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("lives_s", [math.inf, 700.0, 47.0])
@pytest.mark.parametrize("points", [10, 60, 300, 2000])
def test_every_second_is_told_once_whoever_recorded_it(lives_s: float, points: int) -> None:
    table = Table()
    seconds = 4000
    record(table, seconds, lives_s=lives_s)
    rows = table.read(BEGIN, BEGIN + seconds, points)
    told = sum(row.samples for row in rows)
    # A recorder that dies loses what it had not written: spans of five seconds, and of up to a minute where the fine
    # rows are gone.
    lost = 0 if lives_s == math.inf else 65 * (seconds / lives_s * 2)
    assert seconds - lost <= told <= seconds
    found = points_of(rows, resolution_of(BEGIN, BEGIN + seconds, points))
    assert len(found["second"]) <= points + 2
    for x, mean, least, largest in found["second"]:
        assert least <= mean <= largest
        assert abs(x - BEGIN - mean) <= 600


@pytest.mark.parametrize("offset", [1, 59, 603, 3725, 7199])
@pytest.mark.parametrize("seconds", [20, 70, 900, 4000])
@pytest.mark.parametrize("points", [10, 300])
def test_a_series_that_begins_anywhere_begins_with_its_first_sample(offset: int, seconds: int, points: int) -> None:
    table, start = Table(), BEGIN + offset
    record(table, seconds, start=start)
    begin = beginning(table.bounds())
    assert start - 60 < begin <= start, "not where a coarse span begins that holds the first samples"
    rows = table.read(begin, start + seconds, points)
    assert sum(row.samples for row in rows) == seconds
    found = points_of(rows, resolution_of(begin, start + seconds, points))["second"]
    assert [x for x, *_ in found] == sorted(x for x, *_ in found)
    assert found[0][2] == 0.0


def test_rows_stay_few_however_long_a_job_runs() -> None:
    table = Table()
    recorder = SeriesRecorder()
    for now in range(BEGIN, BEGIN + 40 * 86_400, 300):
        recorder.record(now, {"x": 1.0})
        table.write(1, recorder.take())
    table.trim()
    assert len(table.rows) <= 60 + 1440 + 2016 + 12 * 40 + 10
    assert len(table.read(BEGIN, BEGIN + 40 * 86_400, 300)) <= 2600
    found = points_of(table.read(BEGIN, BEGIN + 40 * 86_400, 300), resolution_of(BEGIN, BEGIN + 40 * 86_400, 300))
    assert 200 <= len(found["x"]) <= 302


def test_what_could_not_be_written_is_written_later_and_the_newest_word_counts() -> None:
    recorder = SeriesRecorder()
    for second in range(61):
        recorder.record(BEGIN + second, {"x": float(second)})
    failed = recorder.take()
    for second in range(61, 121):
        recorder.record(BEGIN + second, {"x": float(second)})
    recorder.give_back(failed)
    rows = {(row.tier, row.start): row for row in recorder.take()}
    assert len([key for key in rows if key[0] == 0]) == 24
    assert rows[2, BEGIN].samples > 61, "the later row of the open span"


def test_a_recorder_that_cannot_write_for_long_forgets_the_oldest_of_the_finest() -> None:
    recorder = SeriesRecorder(most_rows=50)
    for second in range(3600):
        recorder.record(BEGIN + second, {"x": 1.0})
        recorder.give_back(recorder.take())
    rows = recorder.take()
    assert len(rows) == 50
    assert {row.tier for row in rows} >= {1, 2}


def test_what_is_no_number_is_left_out_and_names_are_bounded() -> None:
    recorder = SeriesRecorder()
    recorder.record(BEGIN, {"nan": math.nan, "none": None, "x": 1.0, **{f"n{i}": 0.0 for i in range(100)}})
    (row, *_) = recorder.take(everything=True)
    assert "nan" not in row.numbers
    assert "x" in row.numbers
    assert len(row.numbers) == MOST_NAMES


def test_series_can_lie_along_another_one() -> None:
    rows = [SeriesRow(0, BEGIN + 5 * n, 1, {"model_version": [10.0 * n], "speed": [float(n)]}) for n in range(3)]
    found = points_of(rows, 5, along="model_version")
    assert found == {"speed": [[0.0, 0.0, 0.0, 0.0], [10.0, 1.0, 1.0, 1.0], [20.0, 2.0, 2.0, 2.0]]}
