"""Measured applications: how long a step takes at each placement, and how much progress it makes.

Reads the traces that came with the Pollux artifact (Qiao et al., OSDI 2021): ``placements.csv`` (step and
synchronisation times by GPUs a node and local batch), ``scalability.csv`` (the same for larger clusters) and
``validation-<batch>.csv`` (progress and gradient statistics after each epoch).
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from elasticdl_core.errors import DataError
from elasticdl_core.scheduling.simulator.triangles import Triangulation

Placement = tuple[int, ...]
"""Workers of a job on each machine that it uses."""

_Times = list[tuple[float, float, float]]  # (local batch, step seconds, synchronisation seconds), ascending
_MAX_NODES = 16

EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
LARGEST_LOCAL_BATCH = {"yolov3": 8}
SINGLE_WORKER = frozenset({"ncf"})
"""Applications that gain nothing from a second worker; no scheduler of the artifact gives them one."""


@dataclass(frozen=True)
class BatchPlan:
    """The division of a global batch.

    Attributes:
        local: samples of a worker in one pass.
        passes: passes whose gradients are added up before a step.
        batch: samples in a step, after rounding.
    """

    local: int
    passes: int
    batch: int


@dataclass
class Application:
    """One measured application.

    Attributes:
        name: the application.
        placements: step times by placement (as in the file, e.g. ``144``).
        grid: mean step times by (machines, workers).
        validation: by batch size, per epoch: progress, gradient square, gradient variance.
        epochs: epochs of a whole training.
        smallest_local: smallest measured local batch.
        largest_local: largest local batch that fits a worker.
    """

    name: str
    placements: Mapping[str, _Times]
    grid: Mapping[tuple[int, int], _Times]
    validation: Mapping[int, list[tuple[float, float, float]]]
    epochs: int
    smallest_local: int
    largest_local: int
    _steps: dict[tuple[Placement, int], tuple[float, float]] = field(default_factory=dict)
    _iterations: dict[int, tuple[float, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Application:
        """Reads an application's folder.

        Raises:
            DataError: a file is missing or has other columns.
        """
        name = folder.name
        placements: dict[str, _Times] = {}
        cells: dict[tuple[int, int, float], list[tuple[float, float]]] = {}
        for row in _rows(folder / "placements.csv", ("placement", "local_bsz", "step_time", "sync_time")):
            local, step, sync = float(row[1]), float(row[2]), float(row[3])
            placements.setdefault(row[0], []).append((local, step, sync))
            cells.setdefault((len(row[0]), sum(map(int, row[0])), local), []).append((step, sync))
        columns = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
        for row in _rows(folder / "scalability.csv", columns):
            cells.setdefault((int(row[0]), int(row[1]), float(row[2])), []).append((float(row[3]), float(row[4])))
        grid: dict[tuple[int, int], _Times] = {}
        for (nodes, workers, local), times in sorted(cells.items()):
            step, sync = (sum(t[i] for t in times) / len(times) for i in (0, 1))
            grid.setdefault((nodes, workers), []).append((local, step, sync))
        validation = {}
        for path in sorted(folder.glob("validation-*.csv")):
            rows = _rows(path, ("progress", "grad_sqr", "grad_var"))
            validation[int(path.stem.split("-")[1])] = [(float(r[0]), float(r[1]), float(r[2])) for r in rows]
        if not validation:
            raise DataError(f"{folder} has no validation-<batch>.csv", fix="give the folder of Pollux traces")
        locals_ = [local for times in placements.values() for local, _, _ in times]
        return cls(
            name=name,
            placements={key: sorted(times) for key, times in placements.items()},
            grid=grid,
            validation=dict(sorted(validation.items())),
            epochs=min(EPOCHS.get(name, 10**9), *(len(v) for v in validation.values())),
            smallest_local=int(min(locals_)),
            largest_local=int(LARGEST_LOCAL_BATCH.get(name, max(locals_))),
        )

    @cached_property
    def initial_batch(self) -> int:
        """The batch size whose steps count as one unit of progress."""
        return min(self.validation)

    @cached_property
    def largest_batch(self) -> int:
        """The largest batch size with a validation curve."""
        return max(self.validation)

    def most_workers(self, batch: int) -> int:
        """Workers among which a batch can be divided."""
        return 1 if self.name in SINGLE_WORKER else max(batch // self.smallest_local, 1)

    def divide(self, batch: int, workers: int) -> BatchPlan:
        """Divides a global batch among workers, adding up gradients where it does not fit."""
        local = math.ceil(batch / workers - 1e-8)
        passes = math.ceil(local / self.largest_local - 1e-8)
        if workers == 1 and batch > self.initial_batch:
            passes = max(2, passes)  # Gradient noise cannot be estimated from one worker's single pass.
        local = math.ceil(local / passes - 1e-8)
        local = min(local, int(self.largest_batch / (workers * passes)))
        return BatchPlan(local, passes, workers * local * passes)

    def step_seconds(self, placement: Placement, plan: BatchPlan) -> float:
        """Seconds of one step."""
        step, sync = self._measured(placement, plan.local)
        return step + (step - sync) * (plan.passes - 1)

    def iterations(self, batch: int) -> tuple[float, ...]:
        """Steps of that batch size in each epoch."""
        if batch not in self._iterations:
            low, high, share = self._bracket(batch)
            steps = []
            before = 0.0
            for epoch in range(self.epochs):
                after = min(curve[epoch][0] for curve in self.validation.values())
                square, variance = (
                    (1 - share) * self.validation[low][epoch][i] + share * self.validation[high][epoch][i]
                    for i in (1, 2)
                )
                scale = batch / self.initial_batch
                gain = (variance + square) / (variance / scale + square)
                steps.append((after - before) / gain)
                before = after
            self._iterations[batch] = tuple(steps)
        return self._iterations[batch]

    def _bracket(self, batch: int) -> tuple[int, int, float]:
        sizes = list(self.validation)
        batch = min(max(batch, sizes[0]), sizes[-1])  # Rounding can leave the measured range by a little.
        index = bisect_left(sizes, batch)
        if sizes[index] == batch:
            return batch, batch, 0.0
        low, high = sizes[index - 1], sizes[index]
        return low, high, (batch - low) / (high - low)

    def _measured(self, placement: Placement, local: int) -> tuple[float, float]:
        placement = min(placement[i:] + placement[:i] for i in range(len(placement)))
        key = (placement, local)
        if key not in self._steps:
            name = "".join(map(str, placement))
            if name in self.placements:
                self._steps[key] = _between(self.placements[name], local)
            else:
                self._steps[key] = self._from_grid(min(len(placement), _MAX_NODES), sum(placement), local)
        return self._steps[key]

    @cached_property
    def _triangles(self) -> Triangulation:
        return Triangulation([(float(n), float(w)) for n, w in self.grid])

    def _from_grid(self, nodes: int, workers: int, local: int) -> tuple[float, float]:
        step = sync = 0.0
        for (n, w), weight in self._triangles.weights((float(nodes), float(workers))):
            at_corner = _between(self.grid[int(n), int(w)], local)
            step += weight * at_corner[0]
            sync += weight * at_corner[1]
        return step, sync


def read_applications(folder: Path) -> dict[str, Application]:
    """Reads all applications below a folder of traces.

    Raises:
        DataError: there is none, or one is broken.
    """
    found = {path.parent.name: Application.read(path.parent) for path in sorted(folder.glob("*/placements.csv"))}
    if not found:
        raise DataError(f"{folder} holds no traces", fix="give a folder with <application>/placements.csv in it")
    return found


def _between(times: Sequence[tuple[float, float, float]], local: float) -> tuple[float, float]:
    """Linear between the measured local batches; the nearest outside of them."""
    index = bisect_left(times, (local,))
    if index < len(times) and times[index][0] == local:
        return times[index][1], times[index][2]
    if index == 0 or index == len(times):
        _, step, sync = times[min(index, len(times) - 1)]
        return step, sync
    (x0, a0, b0), (x1, a1, b1) = times[index - 1], times[index]
    t = (local - x0) / (x1 - x0)
    return a0 + t * (a1 - a0), b0 + t * (b1 - b0)


def _rows(path: Path, columns: Sequence[str]) -> list[list[str]]:
    try:
        with path.open(newline="") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            indices = [header.index(column) for column in columns]
            return [[row[i] for i in indices] for row in reader if row]
    except (OSError, ValueError, IndexError) as error:
        raise DataError(
            f"{path} cannot be read as a trace: {error}", fix=f"it needs the columns {', '.join(columns)}"
        ) from None
