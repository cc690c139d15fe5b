"""What is cut up on its way arrives whole, at one less, as many and one more than each bound."""

from __future__ import annotations

from functools import partialmethod
from typing import Any

import numpy as np
import pytest

from elasticdl_core.model import DenseKind, DenseSpec, InitializerSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_worker.parameters import Gradients, StateChange
from elasticdl_worker.parameters.connection import ServerConnection

pytestmark = pytest.mark.integration
CHUNK = 64
SIZES = [n * CHUNK // 4 + more for n in (1, 2, 3) for more in (-1, 0, 1)]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("size", SIZES)
async def test_dense_parameters_around_a_piece_come_and_go(
    start_servers: Any, monkeypatch: pytest.MonkeyPatch, count: int, size: int
) -> None:
    for module in ("elasticdl_ps.pulls", "elasticdl_worker.parameters.connection"):
        monkeypatch.setattr(f"{module}.CHUNK_BYTES", CHUNK)
    monkeypatch.setattr("elasticdl_runtime.partition._SPLIT_ELEMENTS", 2 * CHUNK // 4)
    specs = [DenseSpec("w", (size,)), DenseSpec("s", (size // 2,), "float64", DenseKind.STATE)]
    values = {"w": np.arange(size, dtype=np.float32), "s": np.arange(size // 2, dtype=np.float64) / 3}
    servers = await start_servers(count)
    worker = servers.client(message_bytes=1)  # each gradient is too large for one message
    sgd = OptimizerSpec("sgd", {"learning_rate": 1.0})
    await worker.ensure_model(values, specs, [], sgd, UpdateMode())
    for number in range(2):
        other = servers.client(1 + number)
        await other.ensure_model(values, specs, [], sgd, UpdateMode())
        for pin in (0, 1):
            await servers.master().pin(1)
            pulled = await other.pull({}, pin=pin)
            np.testing.assert_array_equal(pulled.dense["w"], values["w"])
            np.testing.assert_array_equal(pulled.dense["s"], values["s"])
        await servers.master().unpin(1)
        step = np.arange(size, dtype=np.float32)[::-1].copy()
        change = StateChange(1.0, np.ones(size // 2))
        assert (await worker.push(Gradients({"w": step}, state={"s": change}), version=0)).accepted
        values = {"w": values["w"] - step, "s": values["s"] + 1}


@pytest.mark.parametrize("rows", [1, 6, 7, 8, 13, 14, 15])
async def test_rows_around_a_message_come_and_go(start_servers: Any, rows: int) -> None:
    dim, per_message = 3, 7
    servers = await start_servers(1)
    worker = servers.client(message_bytes=per_message * (8 + 4 * dim))
    sgd = OptimizerSpec("sgd", {"learning_rate": 1.0})
    tables = [TableSpec(name, dim, InitializerSpec("zeros")) for name in ("a", "b")]
    await worker.ensure_model({}, [], tables, sgd, UpdateMode())
    ids = np.arange(rows) * 5
    grads = -np.arange(3 * rows, dtype=np.float32).reshape(-1, 3)
    assert (await worker.push(Gradients({}, {"a": (ids, grads), "b": (ids, 2 * grads)}), version=0)).accepted
    pulled = await worker.pull({"a": ids, "b": ids[::-1].copy()})
    np.testing.assert_array_equal(pulled.rows["a"], -grads)
    np.testing.assert_array_equal(pulled.rows["b"], -2 * grads[::-1])


@pytest.mark.parametrize("use_async", [True, False])
@pytest.mark.parametrize("size", [CHUNK // 4 - 1, CHUNK // 4, CHUNK // 4 + 1])
async def test_a_large_gradient_is_not_pushed_along_with_a_pull(
    start_servers: Any, monkeypatch: pytest.MonkeyPatch, size: int, use_async: bool
) -> None:
    """It would not fit into a message, also where nothing but rows is pulled."""
    monkeypatch.setattr("elasticdl_worker.parameters.connection.CHUNK_BYTES", CHUNK)
    methods: list[str] = []
    begin = ServerConnection.begin
    call = ServerConnection.call

    def noting(self: Any, method: str, *given: Any, real: Any, **options: Any) -> Any:
        methods.append(method)
        return real(self, method, *given, **options)

    monkeypatch.setattr(ServerConnection, "begin", partialmethod(noting, real=begin))
    monkeypatch.setattr(ServerConnection, "call", partialmethod(noting, real=call))
    worker = (await start_servers(1)).client()
    values = {"w": np.zeros(size, np.float32)}
    sgd = OptimizerSpec("sgd", {"learning_rate": 1.0})
    mode = UpdateMode(use_async=use_async, grads_to_wait=1)
    await worker.ensure_model(values, [DenseSpec("w", (size,))], [], sgd, mode)
    await worker.pull({})
    gradients = Gradients({"w": np.ones(size, np.float32)})
    result, pulled = await worker.push_pull(gradients, {}, version=0, dense=False)
    assert result.accepted and pulled is not None
    assert ("PushPull" in methods) == (size <= CHUNK // 4)
    assert ((await worker.pull({})).dense["w"] == -1).all()
