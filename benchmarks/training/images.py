"""Grey images with a label, drawn at random, as arrays for the peers and as records for our jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.training.cluster import MANY_EPOCHS
from elasticdl.data.recordio import Writer

SIDE, CLASSES = 28, 10
COUNT = 20_000
_COPIES = 5


def drawn(count: int = COUNT, seed: int = 0) -> NDArray[np.uint8]:
    """Uint8 ``[count, 785]``: the pixels and the label of each image."""
    values = np.random.default_rng(seed).integers(0, 256, (count, SIDE * SIDE + 1), dtype=np.uint8)
    values[:, -1] %= CLASSES
    return values


def pixels_and_labels() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """All images as float32 ``[count, 28, 28]`` from 0 to 1, and their labels."""
    values = drawn()
    return values[:, :-1].reshape(-1, SIDE, SIDE).astype(np.float32) / np.float32(255), values[:, -1].astype(np.int64)


def write_records(folder: Path, parts: int = 1) -> Path:
    """Writes the images as RecordIO, several times over so that an epoch is not over at once; returns the folder.

    Args:
        folder: made.
        parts: names of the one file that is written, each of which is read for itself.
    """
    folder.mkdir(parents=True)
    values = drawn()
    first = folder / "part-00000.recordio"
    with Writer(first, compressor="none", records_per_chunk=4096) as writer:
        for _ in range(_COPIES):
            for record in values:
                writer.write(record.tobytes())
    for number in range(1, parts):
        (folder / f"part-{number:05}.recordio").hardlink_to(first)
    return folder


def group_fields(data: Path, model: str, *, batch: int, minibatches: int, deterministic: bool) -> dict[str, Any]:
    """The specification of a job by AllReduce.

    Args:
        data: from ``write_records``.
        model: ``images`` or ``images_torch``.
        batch: records in an update.
        minibatches: parts that an update is cut into.
        deterministic: of the job.
    """
    return {
        "name": "images",
        "model_def": f"{model}.forward",
        "training_data": str(data),
        "minibatch_size": batch,
        "num_minibatches_per_task": 16,
        "num_epochs": MANY_EPOCHS,
        "distribution_strategy": "AllReduceStrategy",
        "microbatches": minibatches,
        "deterministic": deterministic,
        "export_formats": "",
    }
