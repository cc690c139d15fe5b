from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseKind, DenseSpec, InitializerSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_worker.parameters import Gradients, Origin, StateChange

pytestmark = pytest.mark.integration

SPECS = [
    DenseSpec("kernel", (700, 400)),
    DenseSpec("bias", (3,)),
    DenseSpec("scalar", ()),
    DenseSpec("moving_mean", (3,), kind=DenseKind.STATE),
    DenseSpec("count", (), dtype="int64", kind=DenseKind.STATE),
]
TABLES = [TableSpec("users", 4, InitializerSpec("normal", seed=5)), TableSpec("items", 8, input_dim=1000)]


def first_values() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    return {spec.name: np.asarray(rng.normal(size=spec.shape) * 10).astype(spec.dtype) for spec in SPECS}


async def ensure(client: Any, mode: UpdateMode | None = None, optimizer: OptimizerSpec | None = None) -> bool:
    spec = optimizer or OptimizerSpec("sgd", {"learning_rate": 0.5})
    return bool(await client.ensure_model(first_values(), SPECS, TABLES, spec, mode or UpdateMode()))


async def test_only_the_first_worker_initialises_and_all_read_what_it_pushed(servers: Any) -> None:
    first, second = servers.client(0), servers.client(1)
    assert await ensure(first)
    assert not await ensure(second)
    pulled = await second.pull({})
    for name, value in first_values().items():
        np.testing.assert_array_equal(pulled.dense[name], value)
        assert pulled.dense[name].shape == value.shape
        assert pulled.dense[name].dtype == value.dtype


async def test_an_update_moves_dense_parameters_rows_and_state(servers: Any) -> None:
    client = servers.client()
    await ensure(client)
    users, items = np.array([9, 2, 10**15]), np.array([999, 0])
    before = await client.pull({"users": users, "items": items})
    gradients = Gradients(
        {
            "kernel": np.ones((700, 400), np.float32),
            "scalar": np.float32(2.0),
        },
        {"users": (users[:2], np.ones((2, 4), np.float32)), "items": (items, np.full((2, 8), 2, np.float32))},
        {
            "moving_mean": StateChange(0.5, np.array([1, 2, 3], np.float32)),
            "count": StateChange(1, np.array(7)),
        },
    )
    result = await client.push(gradients, version=before.version)
    assert (result.accepted, result.version, result.reason) == (True, 1, "")
    after = await client.pull({"users": users, "items": items})
    assert set(after.dense) == {"kernel", "scalar", "moving_mean", "count"}
    np.testing.assert_array_equal(after.dense["kernel"], before.dense["kernel"] - 0.5)
    np.testing.assert_array_equal(after.dense["scalar"], before.dense["scalar"] - 1)
    np.testing.assert_array_equal(
        after.dense["moving_mean"], before.dense["moving_mean"] * np.float32(0.5) + [1, 2, 3]
    )
    assert after.dense["count"] == before.dense["count"] + 7
    np.testing.assert_array_equal(after.rows["users"][:2], before.rows["users"][:2] - np.float32(0.5))
    np.testing.assert_array_equal(after.rows["users"][2], before.rows["users"][2])
    np.testing.assert_array_equal(after.rows["items"], before.rows["items"] - np.float32(1))


async def test_only_changed_dense_parameters_are_pulled_again(servers: Any) -> None:
    client = servers.client()
    await ensure(client)
    assert set((await client.pull({})).dense) == {spec.name for spec in SPECS}
    assert not (await client.pull({})).dense
    await client.push(Gradients({"bias": np.ones(3, np.float32)}), version=0)
    assert set((await client.pull({})).dense) == {"bias"}


async def test_rows_do_not_depend_on_the_number_of_ps(start_servers: Any) -> None:
    ids = np.arange(0, 10**6, 997)
    rows = []
    for count in (1, 2, 3):
        client = (await start_servers(count)).client()
        await ensure(client)
        rows.append((await client.pull({"users": ids})).rows["users"])
    np.testing.assert_array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(rows[0], rows[2])


async def test_bfloat16_on_the_wire_rounds_rows_only(servers: Any) -> None:
    exact, rounded = servers.client(0), servers.client(1, wire_dtype="bfloat16")
    await ensure(exact)
    await ensure(rounded)
    ids = np.arange(50)
    a, b = await exact.pull({"users": ids}), await rounded.pull({"users": ids})
    np.testing.assert_allclose(a.rows["users"], b.rows["users"], rtol=2**-8)
    assert (a.rows["users"] != b.rows["users"]).any()
    np.testing.assert_array_equal(a.dense["kernel"], b.dense["kernel"])
    grads = np.full((50, 4), 1.0, np.float32)
    await rounded.push(Gradients(rows={"users": (ids, grads)}), version=0)
    np.testing.assert_array_equal((await exact.pull({"users": ids})).rows["users"], a.rows["users"] - np.float32(0.5))


async def test_many_workers_at_once_lose_no_update(servers: Any) -> None:
    clients = [servers.client(index) for index in range(4)]
    await ensure(clients[0])
    for client in clients[1:]:
        await ensure(client)
    ids = np.arange(20)
    before = await clients[0].pull({"users": ids})

    async def work(client: Any) -> None:
        for _ in range(10):
            pulled = await client.pull({"users": ids})
            grads = Gradients({"bias": np.ones(3, np.float32)}, {"users": (ids, np.ones((20, 4), np.float32))})
            assert (await client.push(grads, version=pulled.version)).accepted

    await asyncio.gather(*(work(client) for client in clients))
    after = await clients[0].pull({"users": ids})
    assert after.version == 40
    np.testing.assert_allclose(after.rows["users"], before.rows["users"] - 20, rtol=1e-5)
    np.testing.assert_allclose(after.dense["bias"], before.dense["bias"] - 20, rtol=1e-5)


async def test_no_ids_and_no_dense_is_an_empty_answer(servers: Any) -> None:
    client = servers.client()
    await ensure(client)
    pulled = await client.pull({"users": np.zeros(0, np.int64)}, dense=False)
    assert pulled.rows["users"].shape == (0, 4)
    assert not pulled.dense


async def test_stale_gradients_take_smaller_steps_when_asked(servers: Any) -> None:
    client = servers.client()
    await ensure(client, UpdateMode(lr_staleness_modulation=True))
    start = await client.pull({})
    step = Gradients({"bias": np.ones(3, np.float32)})
    for _ in range(4):
        await client.push(step, version=start.version)
    moved = start.dense["bias"] - (await client.pull({})).dense["bias"]
    # Staleness 0, 1, 2, 3 with a rate of 0.5.
    np.testing.assert_allclose(moved, 0.5 * (1 + 1 + 1 / 2 + 1 / 3), rtol=1e-5)


@pytest.mark.parametrize("wire_dtype", ["float32", "bfloat16"])
async def test_late_gradients_are_corrected_where_delays_are_compensated(servers: Any, wire_dtype: str) -> None:
    """What has moved since the pull bends the gradient, at most by its own size; what has not leaves it alone."""
    early, late = servers.client(0, wire_dtype=wire_dtype), servers.client(1, wire_dtype=wire_dtype)
    for client in (early, late):
        await ensure(client, UpdateMode(delay_compensation=2.0))
    ids = np.array([4, 7, 10**12])
    start = await late.pull({"users": ids})
    bias = np.array([0.25, -8.0, 0.0], np.float32)
    kernel = np.zeros((700, 400), np.float32)

    def origin(pulled: Any) -> Origin:
        return Origin({"bias": start.dense["bias"], "kernel": start.dense["kernel"]}, dict(pulled.rows))

    moved = Gradients(
        {"bias": bias, "kernel": kernel}, {"users": (ids, np.full((3, 4), 0.5, np.float32))}, origin=origin(start)
    )
    assert (await early.push(moved, version=(await early.pull({})).version)).accepted
    gradient = np.array([1.0, 2.0, -3.0], np.float32)
    rows = np.arange(8, dtype=np.float32).reshape(2, 4) - 4
    part = start.rows["users"][1:]
    second = Gradients(
        {"bias": gradient, "kernel": kernel},
        {"users": (ids[1:], rows)},
        origin=Origin({"bias": start.dense["bias"], "kernel": start.dense["kernel"]}, {"users": part}),
    )
    before = await early.pull({"users": ids})
    assert (await late.push(second, version=start.version)).accepted
    after = await early.pull({"users": ids})
    drift = before.dense["bias"] - start.dense["bias"]
    np.testing.assert_allclose(drift, -0.5 * bias, rtol=1e-6)
    # Of the three the first is corrected by half of itself, the second by no more than itself, the third not at all.
    expected = gradient + np.abs(gradient) * np.clip(2.0 * drift, -1, 1)
    np.testing.assert_allclose(expected, [0.75, 4.0, -3.0], rtol=1e-6)
    np.testing.assert_allclose(after.dense["bias"], before.dense["bias"] - 0.5 * expected, rtol=1e-5)
    bent = rows + np.abs(rows) * np.clip(2.0 * (before.rows["users"][1:] - part), -1, 1)
    tolerance = 1e-5 if wire_dtype == "float32" else 0.1
    np.testing.assert_allclose(after.rows["users"][1:], before.rows["users"][1:] - 0.5 * bent, atol=tolerance)
    np.testing.assert_array_equal(after.rows["users"][0], before.rows["users"][0])
    np.testing.assert_array_equal(after.dense["kernel"], before.dense["kernel"])


async def test_a_gradient_that_does_not_say_what_it_was_computed_on_is_refused(servers: Any) -> None:
    client = servers.client()
    await ensure(client, UpdateMode(delay_compensation=2.0))
    pulled = await client.pull({})
    with pytest.raises(InvalidInputError, match="without what they were computed on"):
        await client.push(Gradients({"bias": np.ones(3, np.float32)}), version=pulled.version)
