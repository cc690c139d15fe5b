"""One suite over all that holds a job's model: parameter servers, a group of workers, an unchanging checkpoint."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.errors import ConflictError, UnavailableError
from elasticdl_core.group.member import ReplicaMetadata
from elasticdl_core.group.steps import StepSchedule
from elasticdl_core.job import JobSpec
from elasticdl_core.model import DenseSpec, OptimizerSpec, UpdateMode
from elasticdl_core.ports.launcher import Role
from elasticdl_master.group_calls import GroupReport, MemberCall, Share
from elasticdl_master.group_control import GroupControl
from elasticdl_master.model_holder import ModelHolder, SavedParts
from elasticdl_master.parameter_servers import ServerControl
from elasticdl_master.read_only_holder import ReadOnlyHolder
from elasticdl_master.state.machine import JobMachine
from elasticdl_master.state.setup import Setup
from elasticdl_master.state.tally import Tallied
from elasticdl_proto.v1 import ps_pb2
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.servicer import ParameterServer
from elasticdl_ps.store.partition import DenseInit, Partition
from elasticdl_runtime.lifecycle import end_all
from elasticdl_runtime.rpc.service import listen, make_server
from elasticdl_runtime.tokens import Claims, issue, verify
from tests.fakes.sim_processes import JOB, finish
from tests.unit.master.test_group_tasks import OWNER, OneMember

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]
SECRET = "s" * 64
SYNCHRONOUS = UpdateMode(use_async=False)


class Member(OneMember):
    """The only member of a group, which does what its master orders."""

    async def serve(self) -> None:
        """Answers until cancelled; all goes on in one loop."""
        while True:
            service, shares = self.group_service, list[Share]()
            if service.save is not None:
                metadata = ReplicaMetadata(StepSchedule(1, 1))
                path = Path(service.save["directory"]) / "share"
                path.write_bytes(b"model")
                shares.append(Share(service.save["order"], 0, 1, self.version, path.name, 5, "", "{}", metadata))
            tally = Tallied({}) if service.tally_wanted else None
            report = GroupReport(self.version, 0, 1, "", 0, pinned=service.pin, tally=tally)
            call = MemberCall(
                OWNER, b"here", 0, self.generation, holds=True, leaving=False, report=report, shares=shares
            )
            finish(service.meet(call))
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def _servers(folder: Path) -> AsyncIterator[ModelHolder]:
    """Two parameter servers with half of a parameter each."""
    addresses = [f"unix:{folder}/ps-{index}.sock" for index in range(2)]

    def authenticate(token: str) -> Claims:
        return verify(SECRET, token, job_id=JOB)

    async with contextlib.AsyncExitStack() as stack:
        for index, address in enumerate(addresses):
            partition = Partition(load_kernels())
            half = DenseInit(DenseSpec("w", (4,)), 2 * index, 2 * index + 2, np.zeros(2, np.float32))
            partition.push_model([half], [], OptimizerSpec("sgd"), SYNCHRONOUS)
            servicer = ParameterServer(partition, index, 2)
            server = make_server(ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"], servicer, authenticate)
            listen(server, address)
            await server.start()
            stack.callback(servicer.close)
            stack.push_async_callback(server.stop, None)
            stack.callback(servicer.stop)
        token = issue(SECRET, JOB, Role.MASTER, 0, 0)
        yield ServerControl(addresses, lambda: token)


@contextlib.asynccontextmanager
async def _group(folder: Path) -> AsyncIterator[ModelHolder]:
    member = Member()
    answering = asyncio.create_task(member.serve())
    try:
        yield GroupControl(member.machine, member.group_service, member.dispatcher.tell, JOB)
    finally:
        await end_all(answering)


@contextlib.asynccontextmanager
async def _unchanging(folder: Path) -> AsyncIterator[ModelHolder]:
    values = {"type": "evaluation", "model_zoo": "/zoo", "model_def": "m.forward", "validation_data": "/data"}
    spec = JobSpec.from_mapping({**values, "checkpoint_dir_for_init": "/checkpoints"})
    yield ReadOnlyHolder(JobMachine(Setup(spec, 1)))


HOLDERS = {"servers": _servers, "group": _group, "unchanging": _unchanging}


@pytest.fixture(params=HOLDERS)
async def holder(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ModelHolder]:
    async with HOLDERS[request.param](tmp_path) as made:
        yield made
        await made.close()


async def test_each_part_tells_its_status_and_a_holder_without_parts_has_none(holder: ModelHolder) -> None:
    for index in range(len(holder.addresses)):
        status = await holder.status(index)
        assert (status.initialized, status.version) == (True, 0)
        assert status.generation
    if not holder.addresses:
        with pytest.raises(UnavailableError):
            await holder.status(0)


async def test_a_pin_has_the_present_version_and_is_dropped_as_often_as_one_likes(holder: ModelHolder) -> None:
    for one_version in (False, True):
        assert await holder.pin(3, one_version=one_version) == 0
        await holder.unpin(3)
        await holder.unpin(3)
    await holder.unpin(7)
    assert await holder.pin(4) == 0


async def test_without_an_open_round_a_flush_changes_nothing(holder: ModelHolder) -> None:
    await holder.flush()
    assert await holder.pin(1) == 0


async def test_nothing_is_told_of_tasks_that_nobody_trained(holder: ModelHolder) -> None:
    for tallied in await holder.tallies():
        assert tallied == Tallied({})


async def test_orders_of_checkpoints_are_written_one_after_the_other_or_refused(
    holder: ModelHolder, tmp_path: Path
) -> None:
    written = list[SavedParts]()
    for _ in range(2):
        holder.note_save()
    for number in range(2):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        with contextlib.suppress(ConflictError):  # of who changes nothing
            written.append(await holder.save(str(folder), one_version=True))
        holder.end_save()
        files = [file["name"] for parts in written[number:] for file in parts.files]
        assert sorted(one.name for one in folder.iterdir()) == sorted(files)
    assert [(parts.version, bool(parts.files)) for parts in written] == [(0, True)] * len(written)
    assert len(written) == (2 if holder.addresses else 0)


@pytest.mark.parametrize("holder", ["servers", "unchanging"], indirect=True)  # groups: test_group_saves
async def test_a_checkpoint_is_taken_over_at_its_version(holder: ModelHolder, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    files: Any = []
    with contextlib.suppress(ConflictError):
        holder.note_save()
        files = (await holder.save(str(folder))).files
    holder.end_save()
    manifest: Manifest = {"version": 0, "directory": str(folder), "files": files}  # type: ignore[typeddict-item]
    assert await holder.restore(manifest) == 0
