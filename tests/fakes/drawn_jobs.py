"""Jobs that are drawn at random: two in a row, the second of which trains what the first keeps frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.job import JobSpec
from elasticdl_worker.local import run_local
from tests import rotation

DRAWS, GATE = 200, 6
UPDATE, UPDATES, IDS = 8, 10, 6
"""Records of an update, updates of a job, and ids in the data."""
WAYS: dict[str, dict[str, Any]] = {
    "local": {"minibatch_size": UPDATE},
    "rounds": {"minibatch_size": UPDATE // 2, "use_async": False, "grads_to_wait": 2, "num_minibatches_per_task": 3},
    "group": {"minibatch_size": UPDATE, "distribution_strategy": "AllReduceStrategy", "microbatches": 2},
}
RATES = (0.003, 0.01, 0.05)
Kinds = Mapping[str, tuple[str, Mapping[str, tuple[Any, ...]]]]


@dataclass(frozen=True)
class DrawnJob:
    """One of them.

    Attributes:
        way: how it is trained.
        kind: of the optimizer.
        options: of the optimizer.
        records: ``[2, updates * records, columns]`` of both jobs: label, two numbers, an id, and whether a record
            uses the heads that are used sometimes, late and early.
    """

    way: str
    kind: str
    options: dict[str, Any]
    records: np.ndarray[Any, Any]

    @classmethod
    def of(cls, kinds: Kinds, number: int, rate: str) -> DrawnJob:
        """Draws the job of a number.

        Args:
            kinds: optimizers with choices of their options.
            number: of the draw.
            rate: name of the option that is the learning rate.
        """
        random = np.random.default_rng([number, len(kinds)])
        name = sorted(kinds)[number % len(kinds)]
        kind, choices = kinds[name]
        options = {key: values[random.integers(len(values))] for key, values in choices.items()}
        count = UPDATES * UPDATE
        jobs = []
        for job in range(2):
            update = job * UPDATES + np.arange(count) // UPDATE
            some = random.random(count) < 0.6
            rare = (random.random(2 * UPDATES) < random.uniform(0.1, 0.6))[update] & some
            late, early = (update >= random.integers(3, 18)) & some, (update < random.integers(3, 18)) & some
            numbers, ids = random.normal(size=(count, 3)).round(4), random.integers(0, IDS, (count, 1))
            jobs.append(np.concatenate([numbers, ids, np.stack([rare, late, early], 1)], 1))
        way = sorted(WAYS)[number // len(kinds) % len(WAYS)]
        return cls(way, kind, {rate: RATES[random.integers(len(RATES))]} | options, np.stack(jobs))

    def train(self, folder: Path, source: str, **fields: Any) -> Path:
        """Trains both jobs; the folder of the last export.

        Args:
            folder: for all files.
            source: of the module, whose model takes ``frozen``.
            fields: of the jobs.
        """
        (folder / "zoo").mkdir()
        (folder / "zoo" / "drawn.py").write_text(source)
        for job, rows in enumerate(self.records):
            np.savetxt(folder / f"{job}.csv", rows, "%.6g", ",")
            begin = {"checkpoint_dir_for_init": str(folder / "checkpoints")} if job else {}
            spec = {
                "model_zoo": str(folder / "zoo"),
                "model_def": "drawn.forward",
                "model_params": {"frozen": not job},
                "training_data": str(folder / f"{job}.csv"),
                "data_reader_params": {"with_header": False},
                "shuffle": False,
                "seed": 3,
                "checkpoint_dir": str(folder / ("later" if job else "checkpoints")),
            }
            run_local(
                JobSpec.from_mapping({**spec, **begin, **WAYS[self.way], **fields}), folder / f"out{job}", _pass
            )
        return folder / "out1"


def _pass(event: Mapping[str, object]) -> None:
    """Nobody listens."""


def numbers() -> list[Any]:
    """All draws; those that have no turn at this commit are slow."""
    mine = {*rotation.share("drawn jobs", range(DRAWS), GATE)}
    return [pytest.param(one, marks=() if one in mine else pytest.mark.slow) for one in range(DRAWS)]
