"""A model that is trained in synchronous mode, and a gradient of it in which all numbers are the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from elasticdl_core.model import DenseSpec, InitializerSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_worker.parameters import Gradients

SPECS = [DenseSpec("a", (3,)), DenseSpec("b", (2,)), DenseSpec("c", (300_000,))]
TABLES = [TableSpec("t", 2, InitializerSpec("zeros"))]
SGD = OptimizerSpec("sgd", {"learning_rate": 1.0})
IDS = np.arange(40)


async def ensure(client: Any, grads_to_wait: int, tolerance: int = 0) -> None:
    zeros = {spec.name: np.zeros(spec.shape) for spec in SPECS}
    await client.ensure_model(zeros, SPECS, TABLES, SGD, UpdateMode(False, grads_to_wait, tolerance))


def step(amount: float, records: int = 1) -> Gradients:
    dense = {spec.name: np.full(spec.shape, amount, np.float32) for spec in SPECS}
    return Gradients(dense, {"t": (IDS, np.full((len(IDS), 2), amount, np.float32))}, records=records)
