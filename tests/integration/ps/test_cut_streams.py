"""Streams of parameter servers that are cut before, at and after their first byte leave nothing behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from elasticdl_core.model import UpdateMode
from elasticdl_core.ports.launcher import Role
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.rpc.framing import encode_frame, mark_frame
from elasticdl_runtime.tokens import issue
from elasticdl_worker.parameters import codec
from tests.fakes.cut_streams import CutStreams, leaves_nothing, streaming
from tests.integration.ps.conftest import JOB, SECRET
from tests.integration.ps.synchronous_model import IDS, SGD, SPECS, TABLES, ensure

pytestmark = pytest.mark.integration


def pieces(frame: bytes) -> list[bytes]:
    return [frame[at : at + 100_000] for at in range(0, len(frame), 100_000)]


def calls() -> dict[str, tuple[list[bytes], bool]]:
    push = ps_pb2.PushGradientsRequest(worker="worker-0.0", sequence=1, records=1)
    push.dense.add(name="c", stop=300_000, buffer=0)
    pull = encode_frame(ps_pb2.PullRequest(dense_version=-1).SerializeToString(), [])
    model = codec.model_frame([], [spec.name for spec in SPECS], TABLES, SGD, UpdateMode(False, 1))
    return {
        "PushGradientsInPieces": (
            pieces(encode_frame(push.SerializeToString(), [np.ones(300_000, np.float32)])),
            False,
        ),
        "PushModel": ([*pieces(model.encode()), *pieces(IDS.tobytes())], False),
        "PullDenseParameters": ([pull], True),
        "Steps": ([mark_frame(pull, ps_pb2.STEP_PULL, 7)], True),
    }


@pytest.mark.parametrize("times", [3, pytest.param(200, marks=pytest.mark.slow)])
async def test_streams_of_a_server_leave_nothing(start_servers: Any, times: int) -> None:
    made = calls()
    assert set(made) == streaming("ParameterServer")
    servers = await start_servers(1)
    client = servers.client()
    await ensure(client, 1)
    package = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"].full_name
    token = issue(SECRET, JOB, Role.WORKER, 0, 0)
    async with CutStreams(servers.addresses[0], package, token, made) as streams:
        await leaves_nothing(streams, sorted(made), times, memory=times == 200)
    assert (await client.pull({"t": IDS})).rows["t"].shape == (len(IDS), 2)
