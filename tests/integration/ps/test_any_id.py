"""Any int64 but the lowest is an id: pushed, kept in a worker, evicted, saved and restored like others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import NO_ID, InitializerSpec, OptimizerSpec, RowPolicy, TableSpec, UpdateMode
from elasticdl_runtime.checkpoint_files import read_checkpoint
from elasticdl_worker.parameters import Gradients

pytestmark = pytest.mark.integration

TABLE = TableSpec("t", 2, InitializerSpec("uniform", seed=3))
SGD = OptimizerSpec("sgd", {"learning_rate": 1.0})
IDS = np.array([-1, -2, -3, -1000, NO_ID + 1, 0, 1, 2, (1 << 63) - 1, *range(-300, -100)])


async def push(client: Any, ids: Any) -> None:
    pulled = await client.pull({"t": ids})
    gradients = Gradients(rows={"t": (ids, np.ones((len(ids), 2), np.float32))})
    assert (await client.push(gradients, version=pulled.version)).accepted


async def rows(client: Any, ids: Any) -> Any:
    return (await client.pull({"t": ids})).rows["t"]


@pytest.mark.parametrize("hot", [0, 2])
async def test_any_int64_has_a_row(start_servers: Any, tmp_path: Path, hot: int) -> None:
    servers = await start_servers(2)
    client = servers.client(hot_rows_staleness=hot)
    await client.ensure_model({}, [], [TABLE], SGD, UpdateMode())
    first = await rows(client, IDS)
    assert len(np.unique(first, axis=0)) == len(IDS)
    for _ in range(4):
        await push(client, IDS)
    plain = servers.client(1)
    plain._group.place((), [TABLE])
    np.testing.assert_array_equal(await rows(plain, IDS), first - 1 - 1 - 1 - 1)
    files = await servers.master().save(str(tmp_path))
    saved = dict(zip(*read_checkpoint(tmp_path, files).tables["t"], strict=True))
    np.testing.assert_array_equal([saved[i] for i in IDS], await rows(plain, IDS))
    other = await start_servers(3)
    await other.master().restore(str(tmp_path), files)
    restored = other.client()
    restored._group.place((), [TABLE])
    np.testing.assert_array_equal(await rows(restored, IDS), await rows(plain, IDS))


async def test_rows_of_negative_ids_leave_and_come_back(start_servers: Any) -> None:
    """A free row is not found by an id that could be taken for its mark."""
    servers = await start_servers(1)
    client = servers.client()
    await client.ensure_model({}, [], [TABLE], SGD, UpdateMode(rows=RowPolicy(max_rows=100)))
    first = await rows(client, IDS)
    for at in range(0, len(IDS), 40):
        await push(client, IDS[at : at + 40])
    moved = (await rows(client, IDS) != first).all(1)
    assert 40 <= moved.sum() <= 100
    assert not moved[:9].any(), "those were pushed first"
    await push(client, IDS[:9])
    np.testing.assert_array_equal(await rows(client, IDS[:9]), first[:9] - 1)


async def test_the_lowest_int64_is_refused_by_name(start_servers: Any) -> None:
    client = (await start_servers(1)).client()
    await client.ensure_model({}, [], [TABLE], SGD, UpdateMode())
    with pytest.raises(InvalidInputError, match=f"the id {NO_ID} is outside the table 't'"):
        await rows(client, np.array([3, NO_ID]))
