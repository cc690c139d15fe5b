"""Synchronous mode: checkpoints and pins are of one version, whatever the workers do meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import ConflictError, DataError, InvalidInputError
from elasticdl_core.ports.launcher import Role
from elasticdl_master.parameter_servers import ServerControl
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.checkpoint_files import CheckpointFile, PartReader, read_checkpoint
from elasticdl_runtime.tokens import issue
from tests.integration.ps.conftest import JOB, SECRET
from tests.integration.ps.synchronous_model import IDS, ensure, step

pytestmark = pytest.mark.integration


def control_of(servers: Any) -> ServerControl:
    token = issue(SECRET, JOB, Role.MASTER, 0, 0)
    return ServerControl(servers.addresses, lambda: token)


async def keep_training(client: Any) -> None:
    while True:
        version = (await client.pull({"t": IDS})).version
        await client.push(step(1), version=version)


def files_of(parts: Any) -> list[CheckpointFile]:
    return [CheckpointFile(file["name"], file["size"], file["sha256"]) for file in parts.files]


async def test_all_parts_of_a_checkpoint_and_of_a_pin_are_of_one_version(start_servers: Any, tmp_path: Path) -> None:
    servers = await start_servers(3)
    control, workers = control_of(servers), [servers.client(index) for index in range(3)]
    reader = servers.client(9)
    for client in (*workers, reader):
        await ensure(client, 2)
    training = [asyncio.create_task(keep_training(client)) for client in workers]
    try:
        for number in range(1, 13):
            directory = tmp_path / str(number)
            parts = await control.save(str(directory), one_version=True)
            for file in files_of(parts):
                with PartReader(directory, file) as part:
                    assert part.header.version == parts.version
            content = read_checkpoint(directory, files_of(parts))
            for value in (*content.dense.values(), content.tables["t"][1]):
                np.testing.assert_array_equal(value, -parts.version)
            version = await control.pin(number, one_version=True)
            pinned = await reader.pull({"t": IDS}, pin=number)
            for value in (*pinned.dense.values(), *pinned.rows.values()):
                np.testing.assert_array_equal(value, -version)
            await control.unpin(number)
        before = (await reader.pull({})).version
        assert before > 12
    finally:
        for task in training:
            task.cancel()
        await asyncio.gather(*training, return_exceptions=True)
        await control.close()


async def half_a_round(servers: Any) -> list[Any]:
    """Two workers that have trained one round together; the first has contributed to the next one as well."""
    clients = [servers.client(index) for index in range(2)]
    for client in clients:
        await ensure(client, 2)
        await client.pull({"t": IDS})
    for client in clients:
        await client.push(step(1), version=0)
    for client in clients:
        await client.pull({"t": IDS})
    assert (await clients[0].push(step(1), version=1)).version == 1
    return clients


async def test_a_checkpoint_waits_for_the_gradients_that_the_round_misses(
    start_servers: Any, tmp_path: Path, patience: None, somebody_waits: asyncio.Event
) -> None:
    servers = await start_servers(2)
    control, (_, second) = control_of(servers), await half_a_round(servers)
    saving = asyncio.create_task(control.save(str(tmp_path), one_version=True))
    await somebody_waits.wait()
    assert not saving.done()
    # It fills the round, and the next gradient waits until the copy is made.
    assert (await second.push(step(4), version=1)).version == 2
    assert (await second.push(step(1), version=2)).accepted
    parts = await saving
    assert parts.version == 2
    content = read_checkpoint(tmp_path, files_of(parts))
    for value in (*content.dense.values(), content.tables["t"][1]):
        np.testing.assert_array_equal(value, -1 - 2.5)
    await control.close()


async def test_a_checkpoint_ends_a_round_that_nobody_fills(start_servers: Any, tmp_path: Path) -> None:
    servers = await start_servers(2)
    control, _ = control_of(servers), await half_a_round(servers)
    # Nothing is heard of the second worker any more; it is expected for some tenths of a second.
    parts = await control.save(str(tmp_path), one_version=True)
    assert parts.version == 2
    for value in read_checkpoint(tmp_path, files_of(parts)).dense.values():
        np.testing.assert_array_equal(value, -2)
    await control.close()


async def lagging(servers: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A worker has closed three rounds and died before it told the other PS."""
    client = servers.client()
    await ensure(client, 1, tolerance=3)
    await client.pull({})

    async def nothing(*_: Any) -> None:
        return

    with monkeypatch.context() as patched:
        patched.setattr("elasticdl_worker.parameters.rounds._apply_round", nothing)
        for _ in range(3):
            assert (await client.push(step(1), version=0)).accepted
    return client


async def test_ps_that_are_rounds_behind_are_brought_along(
    start_servers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = await start_servers(2)
    control, client = control_of(servers), await lagging(servers, monkeypatch)
    assert await control.pin(1, one_version=True) == 3
    pinned = await client.pull({"t": IDS}, pin=1)
    for value in (*pinned.dense.values(), *pinned.rows.values()):
        np.testing.assert_array_equal(value, -3)
    assert (await control.save(str(tmp_path), one_version=True)).version == 3
    await control.close()


async def test_a_push_waits_while_rounds_are_held_and_goes_on_by_itself(start_servers: Any) -> None:
    servers = await start_servers(2)
    master, client = servers.raw(Role.MASTER), servers.client()
    await ensure(client, 1)
    await client.pull({})
    held = await master[0].call("HoldRounds", ps_pb2.HoldRoundsRequest(seconds=30), deadline_s=20)
    assert held.version == 0
    pushing = asyncio.create_task(client.push_pull(step(1), {"t": IDS}, version=0))
    # Pulls go on, and so the first PS has surely had its turn.
    reader = servers.client(1)
    await ensure(reader, 1)
    for _ in range(5):
        assert (await reader.pull({"t": IDS})).version == 0
    assert not pushing.done()
    for client_ in master:
        await client_.call("Cut", ps_pb2.CutRequest(version=0), deadline_s=20)
    await master[0].call("ReleaseRounds", ps_pb2.ReleaseRoundsRequest(), deadline_s=20)
    result, pulled = await pushing
    assert result.accepted
    assert (pulled.rows["t"] == -1).all()
    # The master that held them is gone: it ends by itself.
    await master[0].call("HoldRounds", ps_pb2.HoldRoundsRequest(seconds=0.2), deadline_s=20)
    assert (await client.push(step(1), version=1)).accepted


async def test_a_copy_is_refused_at_another_version(start_servers: Any, tmp_path: Path) -> None:
    servers = await start_servers(1)
    (master,), client = servers.raw(Role.MASTER), servers.client()
    await ensure(client, 1)
    for method, request in (
        ("Cut", ps_pb2.CutRequest(version=1)),
        ("Pin", ps_pb2.PinRequest(pin=1, version=1)),
        ("Save", ps_pb2.SaveRequest(directory=str(tmp_path), cut=True)),
    ):
        with pytest.raises(ConflictError, match=r"version 0, not 1|no cut"):
            await master.call(method, request, deadline_s=20)
    # A copy that was never written makes room for the next one.
    for _ in range(2):
        await master.call("Cut", ps_pb2.CutRequest(version=0), deadline_s=20)
    await client.pull({})
    assert (await client.push(step(1), version=0)).accepted
    saved = await master.call("Save", ps_pb2.SaveRequest(directory=str(tmp_path), cut=True), deadline_s=30)
    assert saved.version == 0


async def test_a_cut_that_no_save_comes_for_is_let_go(start_servers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every update added to its copy, until the next one, which a master that is gone never orders."""
    monkeypatch.setattr("elasticdl_ps.servicer._CUT_LIFE_S", 0.0)
    servers = await start_servers(1)
    await ensure(servers.client(), 1)
    partition = servers._running[0][1]._partition
    await servers.raw(Role.MASTER)[0].call("Cut", ps_pb2.CutRequest(version=0), deadline_s=20)
    for _ in range(3000):
        if partition._snapshot is None:
            break
        await asyncio.sleep(0.01)
    partition.release(partition.snapshot())


async def test_rounds_cannot_be_held_where_there_are_none(start_servers: Any) -> None:
    servers = await start_servers(2)
    master = servers.raw(Role.MASTER)
    await ensure(servers.client(), 1)
    for index, seconds in ((0, 0.0), (0, 1e9), (1, 1.0)):
        with pytest.raises(InvalidInputError):
            await master[index].call("HoldRounds", ps_pb2.HoldRoundsRequest(seconds=seconds), deadline_s=20)


async def test_a_torn_checkpoint_is_refused(
    start_servers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = await start_servers(2)
    control, client = control_of(servers), await lagging(servers, monkeypatch)
    parts = await control.save(str(tmp_path))
    assert client
    with pytest.raises(DataError, match=r"versions \[3, 0\]"):
        read_checkpoint(tmp_path, files_of(parts))
    with pytest.raises(InvalidInputError, match=r"versions \[3, 0\]"):
        await control.restore({"directory": str(tmp_path), "files": parts.files})
    await control.close()
