"""Event files of TensorBoard: what TensorFlow reads out of them is what the API told."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.data.errors import DataError
from elasticdl.event_files import EventWriter, tag_of

pytestmark = pytest.mark.unit


def series(name: str, *points: tuple[float, float]) -> dict[str, Any]:
    return {"name": name, "unit": "", "points": [[x, value, value, value] for x, value in points]}


def read(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """By tag: step, value, time; as TensorFlow reads it."""
    from tensorflow.compat.v1.train import summary_iterator

    found: dict[str, list[tuple[int, float, float]]] = {}
    versions = []
    for file in sorted(folder.glob("events.out.tfevents.*")):
        for event in summary_iterator(str(file)):
            if event.file_version:
                versions.append(event.file_version)
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value, event.wall_time))
    assert versions == ["brain.Event:2"]
    return found


def test_what_is_read_back_is_what_the_series_say(tmp_path: Path) -> None:
    by_version = [
        series("loss", (0, 1.5), (10, 0.5), (2**40, math.nan)),
        series("learning_rate", (5, 1e-3)),
        series("evaluation.accuracy", (10, 0.5), (20, 0.75)),
        series("training.auc", (10, 1e300)),
        series("workers.running", (10, 3.0)),
    ]
    by_time = [series("evaluation.accuracy", (1000.0, 0.5), (2000.0, 0.75))]
    with EventWriter(tmp_path) as writer:
        assert writer.add(by_version, by_time) == 7
    found = read(tmp_path)
    assert set(found) == {"loss", "learning_rate", "evaluation/accuracy", "training/auc"}
    assert [(step, value) for step, value, _ in found["loss"][:2]] == [(0, 1.5), (10, 0.5)]
    assert found["loss"][2][0] == 2**40 and math.isnan(found["loss"][2][1])
    assert found["learning_rate"][0][1] == float(np.float32(1e-3))
    assert math.isinf(found["training/auc"][0][1])
    assert found["evaluation/accuracy"] == [(10, 0.5, 1000.0), (20, 0.75, 2000.0)]
    assert found["loss"][1][2] == 1000.0


def test_a_running_jobs_points_are_added_once_and_the_last_when_it_cannot_change_any_more(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as writer:
        first = [series("loss", (1, 3.0), (2, 2.0)), series("evaluation.a", (2, 0.5))]
        assert writer.add(first, finished=False) == 2
        assert writer.add(first, finished=False) == 0
        assert writer.add([series("loss", (1, 3.0), (3, 1.0), (4, 0.5))], finished=False) == 1
        assert writer.add([series("loss", (3, 1.0), (4, 0.25))], finished=True) == 1
        assert [(step, value) for step, value, _ in read(tmp_path)["loss"]] == [(1, 3.0), (3, 1.0), (4, 0.25)]


def test_a_new_writer_begins_anew_and_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    other = tmp_path / "events.out.tfevents.1.somebody"
    other.write_bytes(b"")
    for value in (1.0, 2.0):
        with EventWriter(tmp_path) as writer:
            writer.add([series("loss", (1, value))])
    assert [value for _, value, _ in read(tmp_path)["loss"]] == [2.0]
    assert other.exists()
    with pytest.raises(DataError, match="another folder"):
        EventWriter(other)


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("loss", "loss"),
        ("evaluation.a.b", "evaluation/a.b"),
        ("training.auc", "training/auc"),
        ("worker.0.samples_per_second", None),
        ("evaluation", None),
    ],
)
def test_tags(name: str, tag: str | None) -> None:
    assert tag_of(name) == tag
