"""Any bytes to any RPC of a parameter server: a documented status, a refusal changes nothing, and it lives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_core.ports.launcher import Role
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.rpc.framing import encode_frame, frame_mark
from tests.fakes import bad_inputs
from tests.fakes.odd_messages import DOCUMENTED, FEW, MANY, STATUS, Door, OddClient, messages, numbered
from tests.fakes.plain_calls import Plain, greeting

pytestmark = pytest.mark.contract
SERVICE = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]
HEADERS = {
    "PushModel": "PushModelRequest",
    "PullDenseParameters": "PullRequest",
    "Pull": "PullRequest",
    "PushGradients": "PushGradientsRequest",
    "PushGradientsInPieces": "PushGradientsRequest",
    "PushPull": "PushPullRequest",
    "Steps": "PushPullRequest",
}
"""The message in the header of the frames of an RPC."""
WORDS = ("w", "n", "t", "closed", "worker-0.0", "sgd", "adam", "float32", "bfloat16", "/proc/nowhere", "/dev/null/x")
METHODS = sorted(SERVICE.methods_by_name)
PUSH = ps_pb2.PushGradientsRequest(
    worker="worker-0.0",
    sequence=1,
    dense=[ps_pb2.Dense(name="w", start=0, stop=3, buffer=0)],
    rows=[ps_pb2.Rows(table="t", ids=1, values=2)],
)
PULL = ps_pb2.PullRequest(rows=[ps_pb2.Rows(table="t", ids=0)], dense_version=-1)


def good(method: str, folder: Path) -> list[Any]:
    """Messages that the server would take."""
    member = ps_pb2.Member(worker="worker-0.0", sequence=1)
    saved = ps_pb2.SavedFile(name="ps-0-of-1.edl", size=10, sha256="0" * 64)
    found: dict[str, list[Any]] = {
        "PushGradients": [PUSH],
        "PushGradientsInPieces": [PUSH],
        "PushPull": [ps_pb2.PushPullRequest(push=PUSH, pull=PULL)],
        "Steps": [ps_pb2.PushPullRequest(push=PUSH, pull=PULL)],
        "ApplyRound": [ps_pb2.ApplyRoundRequest(round=ps_pb2.RoundMembers(round=0, members=[member]))],
        "Save": [ps_pb2.SaveRequest(directory=str(folder))],
        "Restore": [ps_pb2.RestoreRequest(directory=str(folder), files=[saved])],
        "HoldRounds": [ps_pb2.HoldRoundsRequest(seconds=0.01)],
        "Pin": [ps_pb2.PinRequest(pin=1)],
    }
    pulls = ("Pull", "PullDenseParameters")
    return [PULL] if method in pulls else found.get(method, [])


def kept(door: Any) -> tuple[Any, ...]:
    """All that a refused call must leave as it is."""
    partition = door.partition
    dense = partition.dense.read(-1)[1].values
    tables = [(name, table.spec, table.rows) for name, table in sorted(partition.tables.items())]
    tally = partition.tally.numbers().tobytes()
    return partition.version, partition.generation, np.asarray(dense).tobytes(), tables, tally, partition.mode


@pytest.fixture
async def odd(door: Any) -> AsyncIterator[OddClient]:
    client = OddClient(door.address, SERVICE, "")
    yield client
    await client.close()


async def check(door: Any, odd: OddClient, method: str, pieces: list[bytes], role: Role) -> None:
    """Sends messages of one call."""
    before = kept(door)
    odd.token = door.tokens[role]
    statuses = await odd.send(method, pieces)
    assert statuses <= DOCUMENTED, (method, statuses, pieces)
    if not any(status.name == "OK" for status in statuses):
        assert kept(door) == before, (method, statuses, pieces)
    status = await door.call("Status", ps_pb2.StatusRequest())
    assert (status.initialized, status.num_ps) == (True, 1)
    answer = await door.call("Pull", encode_frame(PULL.SerializeToString(), [np.zeros(1, np.int64)]))
    assert answer


def calls(method: str, folder: Path) -> st.SearchStrategy[tuple[list[bytes], Role]]:
    """The messages of a call, and who makes it."""
    header = HEADERS.get(method)
    one = messages(
        Door(
            SERVICE.methods_by_name[method],
            None if header is None else ps_pb2.DESCRIPTOR.message_types_by_name[header],
            good(method, folder),
            (
                "w",
                "n",
                "t",
                "closed",
                "worker-0.0",
                "sgd",
                "adam",
                "float32",
                "bfloat16",
                str(folder),
                "/proc/nowhere",
            ),
        )
    )
    most = 3 if SERVICE.methods_by_name[method].client_streaming else 1
    pieces = st.lists(one, min_size=1, max_size=most)
    if method == "Steps":
        steps = st.lists(st.integers(0, 5), min_size=most, max_size=most)
        pieces = st.builds(numbered, pieces, steps)
    return st.tuples(pieces, st.sampled_from([Role.WORKER, Role.MASTER]))


@FEW
@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
async def test_any_message_has_a_documented_answer(
    door: Any, odd: OddClient, method: str, tmp_path: Path, data: st.DataObject
) -> None:
    await check(door, odd, method, *data.draw(calls(method, tmp_path)))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@MANY
@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
async def test_thousands_of_messages_have_a_documented_answer(
    door: Any, odd: OddClient, method: str, tmp_path: Path, data: st.DataObject
) -> None:
    await check(door, odd, method, *data.draw(calls(method, tmp_path)))


async def check_beside(door: Any, messages: list[bytes], role: Role) -> None:
    """Sends messages over the socket of calls."""
    before, statuses = kept(door), set()
    plain = Plain(door.address)
    await plain.send(greeting(token=door.tokens[role]))
    assert frame_mark(await plain.receive()) == (0, 0)
    for message in messages:
        await plain.send(message)
        statuses.add(STATUS[frame_mark(await plain.receive())[0]])
    plain.close()
    assert statuses <= DOCUMENTED, (statuses, messages)
    if not any(status.name == "OK" for status in statuses):
        assert kept(door) == before, (statuses, messages)
    assert (await door.call("Status", ps_pb2.StatusRequest())).initialized
    bad_inputs.count("messages beside gRPC", server_errors=not statuses <= DOCUMENTED)


@FEW
@given(data=st.data())
async def test_any_message_beside_grpc_has_a_documented_answer(
    door: Any, tmp_path: Path, data: st.DataObject
) -> None:
    await check_beside(door, *data.draw(calls("Steps", tmp_path)))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@MANY
@given(data=st.data())
async def test_thousands_of_messages_beside_grpc_have_a_documented_answer(
    door: Any, tmp_path: Path, data: st.DataObject
) -> None:
    await check_beside(door, *data.draw(calls("Steps", tmp_path)))


@pytest.mark.parametrize("whole", [True, False])
@FEW
@given(noise=st.binary(max_size=200))
async def test_any_bytes_in_place_of_a_greeting_leave_the_server_as_it_was(
    door: Any, whole: bool, noise: bytes
) -> None:
    before = kept(door)
    plain = Plain(door.address)
    if whole:
        await plain.send(noise)
        assert STATUS[frame_mark(await plain.receive())[0]] is grpc.StatusCode.INVALID_ARGUMENT
    else:
        await plain.loop.sock_sendall(plain.connection, noise)
    plain.close()
    assert (await door.call("Status", ps_pb2.StatusRequest())).initialized
    assert kept(door) == before
    bad_inputs.count("greetings beside gRPC", server_errors=False)


@pytest.mark.parametrize(
    ("directory", "name"), [("/\0a", "ps-0-of-1.edl"), ("/a\0", "ps-0-of-1.edl"), ("/a", "ps-0\0-of-1.edl")]
)
async def test_a_path_that_no_file_can_have_is_refused(door: Any, odd: OddClient, directory: str, name: str) -> None:
    saved = ps_pb2.SavedFile(name=name, size=10, sha256="0" * 64)
    wanted = {
        "Save": ps_pb2.SaveRequest(directory=directory),
        "Restore": ps_pb2.RestoreRequest(directory=directory, files=[saved]),
    }
    odd.token = door.tokens[Role.MASTER]
    for method, message in wanted.items():
        if method == "Restore" or "\0" in directory:
            statuses = await odd.send(method, [message.SerializeToString()])
            assert {status.name for status in statuses} <= {"INVALID_ARGUMENT", "NOT_FOUND"}, (method, statuses)
