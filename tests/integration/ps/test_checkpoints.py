"""Checkpoints over real servers: any number of PS writes, any number reads."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import ConflictError, DataError, InvalidInputError, PermissionDeniedError, UnavailableError
from elasticdl_core.model import (
    ConstraintSpec,
    DenseKind,
    DenseSpec,
    InitializerSpec,
    OptimizerSpec,
    RowPolicy,
    TableSpec,
    UpdateMode,
)
from elasticdl_core.ports.launcher import Role
from elasticdl_runtime.checkpoint_files import CheckpointFile, read_checkpoint
from elasticdl_runtime.tokens import FIRST_GUEST
from elasticdl_worker.parameters import Gradients, StateChange

pytestmark = pytest.mark.integration

SPECS = [
    DenseSpec("large", (800, 700)),
    DenseSpec("small", (5,)),
    DenseSpec("scalar", ()),
    DenseSpec("empty", (0, 3)),
    DenseSpec("mean", (4,), "float64", DenseKind.STATE),
    DenseSpec("steps", (), "int32", DenseKind.STATE),
]
TABLES = [TableSpec("t", 4, InitializerSpec("normal", seed=1)), TableSpec("u", 3), TableSpec("unused", 2)]
ADAM = OptimizerSpec("adam", {"learning_rate": 0.01, "amsgrad": True})
IDS = np.unique(np.random.default_rng(0).integers(0, 10**12, 3000))


def values(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {spec.name: random.normal(size=spec.shape).astype(spec.dtype) for spec in SPECS}


def gradients(seed: int) -> Gradients:
    random = np.random.default_rng(seed)
    some = np.sort(random.choice(IDS, 1000, replace=False))
    rows = {name: (some, random.normal(size=(1000, dim)).astype(np.float32)) for name, dim in (("t", 4), ("u", 3))}
    dense = values(seed + 100)
    del dense["steps"]
    return Gradients(dense, rows, {"mean": StateChange(0.9, dense.pop("mean")), "steps": StateChange(1, np.array(2))})


async def train(client: Any, seeds: range) -> None:
    for seed in seeds:
        pulled = await client.pull({}, dense=False)
        assert (await client.push(gradients(seed), version=pulled.version)).accepted


async def ensure(client: Any, optimizer: OptimizerSpec = ADAM, specs: Any = None) -> bool:
    return bool(await client.ensure_model(values(0), specs or SPECS, TABLES, optimizer, UpdateMode()))


async def everything(servers: Any) -> dict[str, Any]:
    client = servers.client(7)
    await ensure(client)
    pulled = await client.pull({"t": IDS, "u": IDS})
    return {**pulled.dense, **pulled.rows}


def assert_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


async def test_two_to_three_to_one_keeps_parameters_and_slots(start_servers: Any, tmp_path: Path) -> None:
    servers = await start_servers(2)
    worker, master = servers.client(), servers.master()
    await ensure(worker)
    await train(worker, range(5))
    files = await master.save(str(tmp_path / "0"))
    assert len(files) == 2
    # Slots decide what further steps do, so equal parameters after them mean equal slots now.
    await train(worker, range(5, 8))
    expected = await everything(servers)
    for number, count in enumerate((3, 1, 2), start=1):
        target = await start_servers(count)
        worker, master = target.client(), target.master()
        assert await master.restore(str(tmp_path / str(number - 1)), files) == 5
        assert not await ensure(worker)
        files = await master.save(str(tmp_path / str(number)))
        assert len(files) == count
        await train(worker, range(5, 8))
        assert_same(await everything(target), expected)


async def test_the_reader_gives_the_whole_model(start_servers: Any, tmp_path: Path) -> None:
    for count in (1, 3):
        servers = await start_servers(count)
        worker, master = servers.client(), servers.master()
        await ensure(worker)
        await train(worker, range(3))
        directory = tmp_path / str(count)
        content = read_checkpoint(directory, await master.save(str(directory)))
        reader = servers.client(7)
        await ensure(reader)
        pulled = await reader.pull({"t": content.tables["t"][0]})
        assert content.version == 3
        assert content.optimizer == ADAM
        assert content.dense.keys() == {spec.name for spec in SPECS}
        for spec in SPECS:
            np.testing.assert_array_equal(content.dense[spec.name], pulled.dense[spec.name])
            assert content.dense[spec.name].dtype == pulled.dense[spec.name].dtype == spec.dtype
            assert content.dense[spec.name].shape == spec.shape
        ids, vectors = content.tables["t"]
        np.testing.assert_array_equal(ids, np.unique(ids))
        assert len(ids) > 1000
        np.testing.assert_array_equal(vectors, pulled.rows["t"])
        assert content.tables["unused"][0].shape == (0,)
        assert content.tables["unused"][1].shape == (0, 2)
        assert content.table_specs["t"] == TABLES[0]


async def test_damaged_files_are_refused_by_name(start_servers: Any, tmp_path: Path) -> None:
    servers = await start_servers(2)
    worker, master = servers.client(), servers.master()
    await ensure(worker)
    await train(worker, range(2))
    before = await everything(servers)
    files = await master.save(str(tmp_path))
    victim = tmp_path / files[1].name
    whole = victim.read_bytes()

    async def expect(word: str, named: list[CheckpointFile] = files) -> None:
        with pytest.raises(InvalidInputError, match=word):
            await master.restore(str(tmp_path), named)
        with pytest.raises(DataError, match=word):
            read_checkpoint(tmp_path, named)

    for at in (3, 30, len(whole) // 2, len(whole) - 5):
        victim.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        await expect(files[1].name)
    victim.write_bytes(whole[:-1])
    await expect(files[1].name)
    shorter = CheckpointFile(files[1].name, len(whole) - 24, files[1].sha256)
    victim.write_bytes(whole[:-24])
    await expect(files[1].name, [files[0], shorter])
    victim.unlink()
    await expect(files[1].name)
    victim.write_bytes(whole)
    await expect(r"\[0\] of 2", files[:1])
    await expect("SHA-256", [files[0], CheckpointFile(files[1].name, files[1].size, "0" * 64)])
    await expect("not the name", [CheckpointFile("../x", 1, "")])
    assert_same(await everything(servers), before)
    assert await master.restore(str(tmp_path), files) == 2


async def test_a_checkpoint_is_a_cut_while_training_goes_on(start_servers: Any, tmp_path: Path) -> None:
    servers = await start_servers(1)
    worker, master = servers.client(), servers.master()
    spec = OptimizerSpec("sgd", {"learning_rate": 1.0})
    tables = [TableSpec("t", 1, InitializerSpec("zeros"))]
    await worker.ensure_model({"w": np.zeros(1)}, [DenseSpec("w", (1,))], tables, spec, UpdateMode())
    ids = np.arange(200_000)
    step = Gradients({"w": -np.ones(1, np.float32)}, {"t": (ids, -np.ones((len(ids), 1), np.float32))})

    async def push() -> None:
        for _ in range(12):
            await worker.push(step, version=0)

    training = asyncio.create_task(push())
    versions = []
    for number in range(3):
        directory = tmp_path / str(number)
        content = read_checkpoint(directory, await master.save(str(directory)))
        versions.append(content.version)
        assert content.dense["w"] == content.version
        assert (content.tables["t"][1] == content.version).all()
    await training
    assert versions == sorted(versions)


async def test_a_restored_model_takes_the_workers_optimizer(start_servers: Any, tmp_path: Path) -> None:
    servers = await start_servers(1)
    await ensure(servers.client())
    files = await servers.master().save(str(tmp_path))
    target = await start_servers(2)
    await target.master().restore(str(tmp_path), files)
    worker = target.client()
    assert not await ensure(worker, OptimizerSpec("sgd", {"learning_rate": 1.0}))
    before = await worker.pull({"t": IDS})
    await worker.push(Gradients({"small": np.ones(5)}, {"t": (IDS, np.ones((len(IDS), 4), np.float32))}), version=0)
    after = await worker.pull({"t": IDS})
    np.testing.assert_array_equal(after.dense["small"], before.dense["small"] - 1)
    np.testing.assert_array_equal(after.rows["t"], before.rows["t"] - 1)


@pytest.mark.parametrize("use_async", [True, False], ids=["asynchronous", "synchronous"])
async def test_servers_that_are_lost_before_the_first_checkpoint_train_as_their_job_says(
    start_servers: Any, tmp_path: Path, use_async: bool
) -> None:
    """They are restored from the checkpoint that the job began with, which is another job's."""
    specs = [DenseSpec("w", (2,)), DenseSpec("frozen", (1,))]
    old = await start_servers(2)
    zeros = {"w": np.zeros(2, np.float32), "frozen": np.zeros(1, np.float32)}
    hundred = OptimizerSpec("sgd", {"learning_rate": 100.0})
    await old.client().ensure_model(zeros, specs, TABLES[:1], hundred, UpdateMode())
    files = await old.master().save(str(tmp_path / "old"))
    servers = await start_servers(2)
    master = servers.master()
    await master.restore(str(tmp_path / "old"), files, other_job=True)
    stranger = servers.client(3, patience_s=0.0)
    with pytest.raises(ConflictError, match="no model"):
        await stranger.adopt_model()
    job = servers.client()
    specs[1] = DenseSpec("frozen", (1,), "float32", DenseKind.STATE)
    one = OptimizerSpec("sgd", {"learning_rate": 1.0})
    mode = UpdateMode(use_async, rows=RowPolicy(admission=2))
    await job.ensure_model(zeros, specs, TABLES[:1], one, mode)
    step = Gradients({"w": np.ones(2, np.float32)}, {"t": (IDS[:1], np.ones((1, 4), np.float32))})
    before = await job.pull({"t": IDS[:1]})
    for saved in (tmp_path / "old", tmp_path / "before anybody trained"):
        for index in range(2):
            await servers.stop(index)
            await servers.start(index)
        await master.restore(str(saved), files, other_job=saved.name == "old")
        # What a file says that was written before the model was declared again is no more this job's.
        files = await master.save(str(tmp_path / "before anybody trained"))
        assert not (await job.push(step, version=before.version)).accepted
        pulled = await job.pull({"t": IDS[:1]})
        np.testing.assert_array_equal(pulled.dense["w"], [0, 0])
        outcome, after = await job.push_pull(step, {"t": IDS[:1]}, version=pulled.version)
        assert outcome.accepted
        assert after is not None
        np.testing.assert_array_equal(after.dense["w"], [-1, -1])
        # Seen once, an id has no row under this job's policy.
        np.testing.assert_array_equal(after.rows["t"], before.rows["t"])


async def test_a_guest_says_nothing_of_what_a_job_has_restored(start_servers: Any, tmp_path: Path) -> None:
    """A program beside the workers gave the job its own optimizer, as the first one to declare a model again."""
    servers = await start_servers(1)
    worker, master = servers.client(), servers.master()
    guest = servers.client(FIRST_GUEST, patience_s=0.0)
    await ensure(worker)
    files = await master.save(str(tmp_path))
    for other_job in (False, True):
        await master.restore(str(tmp_path), files, other_job=other_job)
        assert not await ensure(guest, OptimizerSpec("sgd", {"learning_rate": 100.0}))
        if other_job:
            with pytest.raises(UnavailableError, match="has no model"):
                await guest.pull({})
            await worker.pull({})
        assert (await guest.adopt_model()).optimizer == ADAM


async def test_a_job_may_constrain_norms_that_the_one_before_did_not(start_servers: Any, tmp_path: Path) -> None:
    """What has a norm is not cut over servers, and what else lies where follows from that."""
    shape = (1024, 512)
    random = np.random.default_rng(0)
    first = {"large": random.normal(size=shape), "a": random.normal(size=3), "b": random.normal(size=5)}
    plain = [DenseSpec(name, value.shape) for name, value in first.items()]
    norm = ConstraintSpec("max_norm", (0,), {"max_value": 2.0, "epsilon": 1e-7})
    normed = [replace(plain[0], constraint=norm), *plain[1:]]
    step = Gradients({name: random.normal(size=value.shape).astype(np.float32) for name, value in first.items()})
    tables, found = TABLES[:1], []
    for count, names in ((1, ("plain", "normed")), (2, ("plain", "normed")), (2, ("normed", "plain"))):
        servers = await start_servers(count)
        values = {name: value.astype(np.float32) for name, value in first.items()}
        for place, name in enumerate(names):
            job, specs = servers.client(place), plain if name == "plain" else normed
            await job.ensure_model(values, specs, tables, ADAM, UpdateMode())
            pulled = await job.pull({"t": IDS})
            assert (await job.push(step, version=pulled.version)).accepted
            folder = tmp_path / f"{count}{names[0]}{place}"
            files = await servers.master().save(str(folder))
            await servers.master().restore(str(folder), files, other_job=True)
        lacking = servers.client(5)
        with pytest.raises(ConflictError, match="it has dense parameter 'b', which the model does not have"):
            await lacking.ensure_model(values, specs[:2], tables, ADAM, UpdateMode())
        found.append({**read_checkpoint(folder, files, with_slots=True).dense, "rows": pulled.rows["t"]})
        assert (np.linalg.norm(found[-1]["large"], axis=0).max() <= 2.01) == (names[-1] == "normed")
    assert_same(found[0], found[1])


async def test_a_checkpoint_of_another_model_is_refused_by_the_first_difference(
    start_servers: Any, tmp_path: Path
) -> None:
    servers = await start_servers(1)
    await ensure(servers.client())
    files = await servers.master().save(str(tmp_path))
    await servers.master().restore(str(tmp_path), files)
    changed = [DenseSpec("small", (6,)), *(spec for spec in SPECS if spec.name != "small")]
    worker = servers.client(1)
    with pytest.raises(ConflictError, match="small"):
        await worker.ensure_model({**values(0), "small": np.zeros(6)}, changed, TABLES, ADAM, UpdateMode())


async def test_only_the_master_may_save_and_restore(start_servers: Any, tmp_path: Path) -> None:
    servers = await start_servers(1)
    worker = servers.client()
    await ensure(worker)
    other = servers.master(role=Role.WORKER)
    for call in (other.save(str(tmp_path)), other.restore(str(tmp_path), []), other.pin(1), other.unpin(1)):
        with pytest.raises(PermissionDeniedError):
            await call
    assert not list(tmp_path.iterdir())
    with pytest.raises(InvalidInputError, match="absolute"):
        await servers.master().save("relative")
