"""The tally: records that are in the parameters, by task; saved, restored and rolled back with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.model import UpdateMode
from elasticdl_core.ports.launcher import Role
from elasticdl_proto.v1 import ps_pb2
from elasticdl_ps.store.tally import Tally
from elasticdl_worker.parameters import Gradients
from tests.integration.ps.test_training import ensure

pytestmark = pytest.mark.integration


def gradient(records: int, task: tuple[int, int] | None) -> Gradients:
    return Gradients({"bias": np.ones(3, np.float32)}, records=records, task=task)


async def tallies(servers: Any) -> list[dict[tuple[int, int], int] | None]:
    found = []
    for client in servers.raw(Role.MASTER):
        answer = await client.call("Tally", ps_pb2.TallyRequest(), deadline_s=20.0)
        rows = np.array(answer.counts, np.int64).reshape(-1, 3).tolist()
        found.append({(a, b): c for a, b, c in rows} if answer.complete else None)
        status = await client.call("Status", ps_pb2.StatusRequest(), deadline_s=20.0)
        assert status.records == sum(c for *_, c in rows)
    return found


async def test_each_gradient_that_is_applied_is_counted_once_on_every_ps(servers: Any) -> None:
    client = servers.client()
    await ensure(client)
    await client.pull({})
    for records, task in ((8, (0, 3)), (5, (0, 3)), (8, (1, 0)), (7, None)):
        assert (await client.push(gradient(records, task), version=0)).accepted
    assert await tallies(servers) == [{(0, 3): 13, (1, 0): 8}] * len(servers.addresses)


async def test_a_round_counts_its_members_and_not_what_it_refuses(servers: Any) -> None:
    first, second = servers.client(0), servers.client(1)
    await ensure(first, UpdateMode(use_async=False, grads_to_wait=2))
    await ensure(second, UpdateMode(use_async=False, grads_to_wait=2))
    pulled = await first.pull({})
    await second.pull({})
    assert (await first.push(gradient(8, (0, 0)), version=pulled.version)).accepted
    assert await tallies(servers) == [{}] * len(servers.addresses)
    assert (await second.push(gradient(3, (0, 1)), version=pulled.version)).accepted
    assert (await tallies(servers))[0] == {(0, 0): 8, (0, 1): 3}
    assert not (await first.push(gradient(8, (0, 2)), version=pulled.version)).accepted
    assert await tallies(servers) == [{(0, 0): 8, (0, 1): 3}] * len(servers.addresses)


async def test_a_restore_takes_the_tally_back_and_another_job_begins_anew(servers: Any, tmp_path: Path) -> None:
    client = servers.client()
    await ensure(client)
    await client.pull({})
    await client.push(gradient(8, (0, 3)), version=0)
    master = servers.master()
    files = await master.save(str(tmp_path))
    await client.push(gradient(8, (0, 4)), version=1)
    request = ps_pb2.RestoreRequest(
        directory=str(tmp_path),
        files=[ps_pb2.SavedFile(name=file.name, size=file.size, sha256=file.sha256) for file in files],
    )
    for raw in servers.raw(Role.MASTER):
        await raw.call("Restore", request, deadline_s=20.0)
    assert await tallies(servers) == [{(0, 3): 8}] * len(servers.addresses)
    request.other_job = True
    for raw in servers.raw(Role.MASTER):
        await raw.call("Restore", request, deadline_s=20.0)
    assert await tallies(servers) == [{}] * len(servers.addresses)


def test_the_text_of_a_tally_is_read_back_and_none_is_incomplete() -> None:
    tally = Tally()
    for index in range(1000):
        tally.add((2, index), 64)
    text = tally.to_text()
    assert len(text) < 10_000
    assert np.array_equal(Tally.from_text(text).numbers(), tally.numbers())
    assert Tally.from_text(text).records == 64_000
    assert not Tally.from_text("").complete
    assert Tally.from_text("").to_text() == ""
    assert Tally.from_text(Tally().to_text()).complete
