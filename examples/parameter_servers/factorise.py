"""Factorises a table of ratings on parameter servers of one's own: no cluster, no framework, numpy alone.

Run it with ``python examples/parameter_servers/factorise.py``; it prints the error before and after.
"""

from __future__ import annotations

import numpy as np

from elasticdl import ParameterServerClient
from elasticdl_core.model import InitializerSpec, OptimizerSpec, TableSpec

USERS, ITEMS, RANK, STEPS, BATCH = 60, 40, 4, 300, 128


def main() -> None:
    random = np.random.default_rng(0)
    ratings = random.normal(size=(USERS, RANK)) @ random.normal(size=(RANK, ITEMS))
    start = InitializerSpec("normal", {"mean": 0.0, "stddev": 0.3})
    tables = [TableSpec("users", RANK, start), TableSpec("items", RANK, start)]
    with ParameterServerClient.local(num_ps=2) as servers:
        servers.declare({"bias": 0.0}, tables, OptimizerSpec("torch.adam", {"learning_rate": 0.05}))
        for step in range(STEPS):
            users, items = random.integers(0, USERS, BATCH), random.integers(0, ITEMS, BATCH)
            pulled = servers.pull({"users": users, "items": items})
            u, v = pulled.rows["users"], pulled.rows["items"]
            error = (u * v).sum(axis=1) + pulled.dense["bias"] - ratings[users, items]
            if step in (0, STEPS - 1):
                print(f"step {step}: mean squared error {np.mean(error**2):.4f}")
            slope = (2 / BATCH * error)[:, None]
            servers.push({"bias": slope.sum()}, {"users": (users, slope * v), "items": (items, slope * u)})


if __name__ == "__main__":
    main()
