"""Clicks with ten id fields, real (frappe) or drawn, as arrays for the peers and as records for our jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.clicks import ClickTruth
from elasticdl.data.recordio import Writer

FIELDS = 10
LEARNING_RATE = 0.1
"""Of SGD: stable with the staleness of four workers, where one process alone would bear ten times as much."""
FRAPPE_IDS = 5383
ZOO = Path(__file__).resolve().parent / "zoo"
_TRAIN, _HELD_OUT = "frappe.validation.libfm", "frappe.test.libfm"


@dataclass(frozen=True)
class Clicks:
    """Clicks to train on and to evaluate with.

    Attributes:
        name: for reports.
        vocabulary: number of ids.
        ids: int64 ``[n, 10]``.
        labels: int64 ``[n]``, 0 or 1.
        held_out_ids: int64 ``[m, 10]``.
        held_out_labels: int64 ``[m]``.
    """

    name: str
    vocabulary: int
    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    held_out_ids: NDArray[np.int64]
    held_out_labels: NDArray[np.int64]

    def save(self, path: Path) -> Path:
        """Writes all to a file for other processes; returns its path."""
        np.savez(
            path,
            name=self.name,
            vocabulary=self.vocabulary,
            ids=self.ids,
            labels=self.labels,
            held_out_ids=self.held_out_ids,
            held_out_labels=self.held_out_labels,
        )
        return path

    @classmethod
    def load(cls, path: str | Path) -> Clicks:
        """Reads what ``save`` wrote."""
        with np.load(path, allow_pickle=False) as held:
            return cls(
                str(held["name"]),
                int(held["vocabulary"]),
                held["ids"],
                held["labels"],
                held["held_out_ids"],
                held["held_out_labels"],
            )

    def write_records(self, folder: Path, *, least: int = 0) -> None:
        """Writes ``train/`` and ``validation/`` as RecordIO, one int64 array of ten ids and the label a record.

        Args:
            folder: where.
            least: ``train/`` repeats the records until there are so many, so that an epoch is not over at once.
        """
        copies = max(1, -(-least // len(self.ids)))
        _write(folder / "train", self.ids, self.labels, copies)
        _write(folder / "validation", self.held_out_ids, self.held_out_labels, 1)

    def minibatches(self, batch: int, seed: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """All full minibatches of the training data in random order: ids ``[batch, 10]``, labels ``[batch, 1]``."""
        order = np.random.default_rng(seed).permutation(len(self.ids))
        return [
            (self.ids[rows], self.labels[rows][:, None])
            for rows in (order[at : at + batch] for at in range(0, len(order) - batch + 1, batch))
        ]


def frappe(folder: Path) -> Clicks:
    """The app usage data frappe (Baltrunas et al. 2015) in libfm's format: a label and ten ``id:1`` a line.

    Raises:
        SystemExit: the files are not there.
    """
    for name in (_TRAIN, _HELD_OUT):
        if not (folder / name).is_file():
            raise SystemExit(f"there is no {folder / name}; give --data the folder of {_TRAIN} and {_HELD_OUT}")
    ids, labels = _libfm(folder / _TRAIN)
    held_out_ids, held_out_labels = _libfm(folder / _HELD_OUT)
    vocabulary = 1 + int(max(ids.max(), held_out_ids.max()))
    return Clicks("frappe", vocabulary, ids, labels, held_out_ids, held_out_labels)


def generated(records: int = 230_000, vocabulary: int = FRAPPE_IDS, held_out: int = 30_000, seed: int = 0) -> Clicks:
    """Clicks drawn from a known factorisation machine with zipf frequencies, in frappe's shape by default."""
    truth = ClickTruth(FIELDS, vocabulary, 1.1, seed)
    drawn = []
    for stream, count in enumerate((records - held_out, held_out)):
        parts = list(truth.draw(count, stream, 65_536))
        drawn += [np.concatenate([part.ids for part in parts]), np.concatenate([part.labels for part in parts])]
    return Clicks(f"generated ({vocabulary:,} ids)", vocabulary, *drawn)


def _libfm(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows = np.array([line.replace(":1", "").split() for line in path.read_text().splitlines()], np.int64)
    return np.ascontiguousarray(rows[:, 1:]), (rows[:, 0] > 0).astype(np.int64)


def _write(folder: Path, ids: NDArray[np.int64], labels: NDArray[np.int64], copies: int) -> None:
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    with Writer(folder / "part-00000.recordio", compressor="none", records_per_chunk=4096) as writer:
        for copy in range(copies):
            order = random.permutation(len(ids)) if copy else np.arange(len(ids))
            for record in np.column_stack([ids, labels])[order]:
                writer.write(record.tobytes())
