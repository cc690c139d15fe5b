"""Event files of TensorBoard, out of the series of a job. They need neither TensorFlow nor TensorBoard to be written.

A file is one of TFRecords, each an ``Event`` of TensorFlow's: when, at which step (here the version of the model),
and a scalar by its tag. TensorBoard shows each folder with such a file as a run; here that is a job.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from elasticdl.data.errors import DataError
from elasticdl.data.example import length_delimited, varint
from elasticdl.data.tfrecord import TFRecordWriter

SUFFIX = ".elasticdl"
"""Of the names of files that are written here; others in a folder are somebody else's."""
_WANTED = ("loss", "learning_rate", "samples_per_second")
_GROUPS = ("training.", "evaluation.")
_VERSION = b"brain.Event:2"
_MOST_STEP = 1 << 62
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")
Series = Iterable[Mapping[str, Any]]
"""As ``Client.series`` gives them: ``name`` and ``points``, which begin with where they lie and the mean."""


def tag_of(name: str) -> str | None:
    """The tag of a series, which TensorBoard groups by what is before the slash; None for one that is not shown."""
    if name in _WANTED:
        return name
    return name.replace(".", "/", 1) if name.startswith(_GROUPS) else None


class EventWriter:
    """Writes the points of a job's series into a new event file, each once.

    Args:
        folder: the run's; it is made, and event files that were written into it before are removed.

    Raises:
        DataError: the file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._last: dict[str, int] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
                old.unlink()
            self.path = folder / f"events.out.tfevents.{time.time_ns() // 1000:020d}{SUFFIX}"
            self._file = self.path.open("xb")
        except OSError as error:
            raise DataError(
                f"cannot write event files into {folder}: {error.strerror}", fix="name another folder with --logdir"
            ) from error
        self._records = TFRecordWriter(self._file)
        self._records.write(_event(time.time(), None, length_delimited(3, _VERSION)))

    def add(self, by_version: Series, by_time: Series = (), *, finished: bool = True) -> int:
        """Adds the points that were not written yet; returns how many.

        Args:
            by_version: the series along the versions of the model.
            by_time: the same along time: they tell when each version was reached.
            finished: whether nothing comes any more. If not, the last point of each series waits: it may change.
        """
        by_version = list(by_version)
        moments = _moments(by_version, by_time)
        added = 0
        for one in by_version:
            tag = tag_of(one["name"])
            if tag is None:
                continue
            points = one["points"] if finished or tag.startswith("evaluation/") else one["points"][:-1]
            for version, mean, *_ in points:
                step = round(version)  # where a point stands for several versions: their mean
                if mean is None or step <= self._last.get(tag, -1):
                    continue
                self._records.write(_event(moments(version), step, _scalar(tag, mean)))
                self._last[tag] = step
                added += 1
        self._file.flush()
        return added

    def close(self) -> None:
        """Closes the file; closing twice is allowed."""
        self._records.close()
        self._file.close()

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Moments:
    """When a version of the model was reached, by what was seen at the same moments."""

    def __init__(self, pairs: Sequence[tuple[float, float]]) -> None:
        self._versions = np.array([version for version, _ in pairs])
        self._times = np.array([moment for _, moment in pairs])

    def __call__(self, version: float) -> float:
        if not self._times.size:
            return 0.0
        return float(np.interp(version, self._versions, self._times))


def _moments(by_version: Series, by_time: Series) -> _Moments:
    """Evaluations are the same points along both; of sampled series both are means of the same samples."""
    times = {one["name"]: one["points"] for one in by_time}
    pairs: list[tuple[float, float]] = []
    for one in by_version:
        name = one["name"]
        if name.startswith("evaluation.") or name == "samples_per_second":
            points = times.get(name, ())
            pairs += [(point[0], moment[0]) for point, moment in zip(one["points"], points, strict=False)]
    versions = np.array(sorted(pairs))
    if not len(pairs):
        return _Moments([])
    # A later version was reached later, whatever the means say.
    return _Moments(list(zip(versions[:, 0], np.maximum.accumulate(versions[:, 1]), strict=True)))


def _event(moment: float, step: int | None, content: bytes) -> bytes:
    number = b"" if step is None else varint(2 << 3) + varint(min(max(step, 0), _MOST_STEP))
    return varint(1 << 3 | 1) + _DOUBLE.pack(moment) + number + content


def _scalar(tag: str, value: float) -> bytes:
    with np.errstate(over="ignore"):
        number = _FLOAT.pack(float(np.float32(value)))
    scalar = length_delimited(1, tag.encode()) + varint(2 << 3 | 5) + number
    return length_delimited(5, length_delimited(1, scalar))
