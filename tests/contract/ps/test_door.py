"""Whatever is sent, the PS answers with a status that says whose fault it is, changes nothing, and lives."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticdl_core.errors import (
    ConflictError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from elasticdl_core.ports.launcher import Role
from elasticdl_proto.v1 import ps_pb2
from elasticdl_ps.servicer import ParameterServer
from elasticdl_runtime.rpc.framing import encode_frame
from elasticdl_runtime.tokens import Claims, issue

pytestmark = pytest.mark.contract

JOB, SECRET = "iris-abc123", "k" * 64
SERVICE = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]
METHODS = [method.name for method in SERVICE.methods]
MASTER_ONLY = {"Save", "Restore", "Pin", "Unpin", "FlushRound", "HoldRounds", "ReleaseRounds", "Cut"}
FRAMES = {method.name for method in SERVICE.methods if method.input_type.name == "Chunk"}


def request_of(method: str) -> Any:
    if method in FRAMES:
        return encode_frame(b"")
    return getattr(ps_pb2, SERVICE.methods_by_name[method].input_type.name)()


def push(**fields: Any) -> ps_pb2.PushGradientsRequest:
    return ps_pb2.PushGradientsRequest(**{"worker": "worker-0.0", "sequence": 1, **fields})


def dense(**fields: Any) -> ps_pb2.Dense:
    return ps_pb2.Dense(**{"name": "w", "start": 0, "stop": 3, "buffer": 0, **fields})


def rows(**fields: Any) -> ps_pb2.Rows:
    return ps_pb2.Rows(**{"table": "t", "ids": 0, "values": 1, **fields})


def floats(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


def ids(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize("method", METHODS)
async def test_no_rpc_is_open(door: Any, method: str) -> None:
    for token in ("", "x", "a.b", issue("other secret", JOB, Role.MASTER, 0, 0)):
        with pytest.raises(UnauthenticatedError):
            await door.call(method, request_of(method), token=token)
    expired = issue(SECRET, JOB, Role.MASTER, 0, 0, lifetime_s=-1)
    with pytest.raises(UnauthenticatedError):
        await door.call(method, request_of(method), token=expired)
    with pytest.raises(PermissionDeniedError):
        await door.call(method, request_of(method), token=issue(SECRET, "other-job", Role.MASTER, 0, 0))
    with pytest.raises(PermissionDeniedError):
        await door.call(method, request_of(method), role=Role.PS)


@pytest.mark.parametrize("method", sorted(MASTER_ONLY))
async def test_some_rpcs_are_the_masters(door: Any, method: str) -> None:
    with pytest.raises(PermissionDeniedError):
        await door.call(method, request_of(method), role=Role.WORKER)


def test_the_servicer_has_exactly_the_rpcs_of_the_protocol() -> None:
    public = {name for name, _ in inspect.getmembers(ParameterServer, callable) if name[0].isupper()}
    assert public == set(METHODS)


BAD_PUSHES: list[tuple[str, Any, list[Any]]] = [
    ("unknown parameter", push(dense=[dense(name="x")]), [floats(1, 2, 3)]),
    ("wrong slice", push(dense=[dense(stop=2)]), [floats(1, 2)]),
    ("too few numbers", push(dense=[dense()]), [floats(1, 2)]),
    ("too many numbers", push(dense=[dense()]), [floats(1, 2, 3, 4)]),
    ("no such buffer", push(dense=[dense(buffer=1)]), [floats(1, 2, 3)]),
    ("negative buffer", push(dense=[dense(buffer=-5)]), [floats(1, 2, 3)]),
    ("the same parameter twice", push(dense=[dense(), dense()]), [floats(1, 2, 3)]),
    ("NaN", push(dense=[dense()]), [floats(1, np.nan, 3)]),
    ("infinity", push(dense=[dense()]), [floats(1, 2, np.inf)]),
    ("state as float32", push(dense=[dense(name="n", stop=1)]), [floats(1)]),
    ("unknown table", push(rows=[rows(table="x")]), [ids(1), floats(1, 2)]),
    ("duplicate id", push(rows=[rows()]), [ids(1, 1), floats(1, 2, 3, 4)]),
    ("no id", push(rows=[rows()]), [ids(-(1 << 63)), floats(1, 2)]),
    ("negative id of a closed table", push(rows=[rows(table="closed")]), [ids(-1), floats(1, 2)]),
    ("id beyond a closed table", push(rows=[rows(table="closed")]), [ids(10), floats(1, 2)]),
    ("too few rows", push(rows=[rows()]), [ids(1, 2), floats(1, 2)]),
    ("wrong dimension", push(rows=[rows()]), [ids(1), floats(1, 2, 3)]),
    ("half an id", push(rows=[rows()]), [np.zeros(7, np.uint8), floats(1, 2)]),
    ("row with NaN", push(rows=[rows()]), [ids(1), floats(1, np.nan)]),
    ("bfloat16 NaN", push(rows=[rows(dtype="bfloat16")]), [ids(1), np.array([0x7FC0, 0], np.uint16)]),
    ("wrong wire dtype", push(rows=[rows(dtype="int8")]), [ids(1), floats(1, 2)]),
    ("the same table twice", push(rows=[rows(), rows()]), [ids(1), floats(1, 2)]),
    ("good part, bad part", push(dense=[dense()], rows=[rows()]), [floats(1, 2, 3), floats(1, 2)]),
    ("negative learning rate", push(learning_rates=[-1.0]), []),
    ("NaN learning rate", push(learning_rates=[float("nan")]), []),
    ("rates of more groups than there are", push(learning_rates=[0.1, 0.1]), []),
]


@pytest.mark.parametrize(("message", "buffers"), [case[1:] for case in BAD_PUSHES], ids=[c[0] for c in BAD_PUSHES])
async def test_bad_gradients_are_refused_whole(door: Any, message: Any, buffers: list[Any]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        await door.frame("PushGradients", message, buffers)
    assert caught.value.message
    assert caught.value.fix
    assert door.partition.version == 0
    assert not door.partition.dense.read(-1)[1].values.any()
    good = await door.frame("PushGradients", push(dense=[dense()]), [floats(1, 2, 3)])
    assert (good.accepted, good.version) == (True, 1)


@pytest.mark.parametrize(
    ("request_", "buffers"),
    [
        (ps_pb2.PullRequest(rows=[rows(table="x")]), [ids(1)]),
        (ps_pb2.PullRequest(rows=[rows()]), []),
        (ps_pb2.PullRequest(rows=[rows()]), [ids(-(1 << 63))]),
        (ps_pb2.PullRequest(rows=[rows(table="closed")]), [ids(3, 10)]),
        (ps_pb2.PullRequest(dtype="float8"), []),
    ],
)
async def test_bad_pulls_are_refused(door: Any, request_: Any, buffers: list[Any]) -> None:
    with pytest.raises(InvalidInputError):
        await door.frame("Pull", request_, buffers)
    assert door.partition.rows == 0


async def test_an_unknown_pin_is_not_found(door: Any) -> None:
    for method in ("Pull", "PullDenseParameters"):
        with pytest.raises(NotFoundError, match="pin 3"):
            await door.call(method, encode_frame(ps_pb2.PullRequest(pin=3).SerializeToString()))
    with pytest.raises(InvalidInputError):
        await door.call("Pin", ps_pb2.PinRequest(pin=0), role=Role.MASTER)


async def test_a_checkpoint_that_cannot_be_written_is_no_failure_of_the_server(door: Any) -> None:
    with pytest.raises(ConflictError, match="cannot write the checkpoint in /dev/null/x"):
        await door.call("Save", ps_pb2.SaveRequest(directory="/dev/null/x"), role=Role.MASTER)


async def test_nobody_pushes_in_anothers_name(door: Any) -> None:
    with pytest.raises(PermissionDeniedError):
        await door.frame("PushGradients", push(worker="worker-1.0"))
    both = ps_pb2.PushPullRequest(push=push(worker="worker-1.0"))
    with pytest.raises(PermissionDeniedError):
        await door.frame("PushPull", both)


async def test_a_push_counts_once_however_often_it_comes(door: Any) -> None:
    message = push(dense=[dense()])
    first = await door.frame("PushGradients", message, [floats(1, 2, 3)])
    again = await door.frame("PushGradients", message, [floats(1, 2, 3)])
    assert (first.accepted, first.replay, first.version) == (True, False, 1)
    assert (again.accepted, again.replay, again.version) == (True, True, 1)


async def test_numbers_are_checked_in_each_push_of_a_form(door: Any) -> None:
    like_infinity = ids(0x7F800000, 0x7F800001_7FC00000)
    for sequence in (1, 2):
        message = push(sequence=sequence, dense=[dense(buffer=2)], rows=[rows()])
        good = [like_infinity, floats(1, 2, 3, 4), floats(1, 2, 3)]
        assert (await door.frame("PushGradients", message, good)).version == sequence
    later = push(sequence=3, dense=[dense(buffer=2)], rows=[rows()])
    for bad, what in (
        ([like_infinity, floats(1, 2, 3, np.nan), floats(1, 2, 3)], "the gradients of the table 't' has NaN"),
        ([ids(1, 2), floats(1, 2, 3, 4), floats(1, np.inf, 3)], "the gradient of 'w' has NaN"),
        ([ids(2, 2), floats(1, 2, 3, 4), floats(1, 2, 3)], "name an id twice"),
        ([ids(1, -(1 << 63)), floats(1, 2, 3, 4), floats(1, 2, 3)], "the id -9223372036854775808 is outside"),
        ([ids(1, 2), floats(1, 2, 3), floats(1, 2, 3)], "the gradients of the table 't' needs 16 bytes"),
    ):
        with pytest.raises(InvalidInputError, match=what):
            await door.frame("PushGradients", later, bad)
    assert door.partition.version == 2


async def test_short_work_comes_after_the_long_work_before_it(door: Any) -> None:
    servicer, lock = door.servicer, door.partition.lock()
    caller = Claims(JOB, Role.WORKER, 0, 0, float("inf"))
    frame = encode_frame(push(dense=[dense()]).SerializeToString(), [floats(1, 2, 3)])
    await servicer.PushGradients(frame, caller)
    with lock:
        pinned = asyncio.ensure_future(servicer.Pin(ps_pb2.PinRequest(pin=1), Claims(JOB, Role.MASTER, 0, 0, 1e18)))
        frame = encode_frame(push(sequence=2, dense=[dense()]).SerializeToString(), [floats(1, 2, 3)])
        pushed = asyncio.ensure_future(servicer.PushGradients(frame, caller))
        status = await door.call("Status", ps_pb2.StatusRequest())
        assert (status.version, pushed.done()) == (1, False)
    assert (await pinned).version == 1
    await pushed
    assert door.partition.version == 2


async def test_another_generation_is_refused(door: Any) -> None:
    answer = await door.frame("PushGradients", push(dense=[dense()], generation="old"), [floats(1, 2, 3)])
    assert (answer.accepted, answer.reason, answer.version) == (False, "generation", 0)
    status = await door.call("Status", ps_pb2.StatusRequest())
    good = push(sequence=2, dense=[dense()], generation=status.generation)
    assert (await door.frame("PushGradients", good, [floats(1, 2, 3)])).accepted


async def test_a_replaced_worker_is_fenced_off(door: Any) -> None:
    newer = issue(SECRET, JOB, Role.WORKER, 0, 1)
    assert (await door.frame("PushGradients", push(worker="worker-0.1"), token=newer)).accepted
    with pytest.raises(FencedError):
        await door.frame("PushGradients", push())


async def test_rounds_with_odd_members_are_refused(door: Any) -> None:
    member = ps_pb2.Member(worker="worker-0.0", sequence=1)
    for members in ([], [member, member]):
        request = ps_pb2.ApplyRoundRequest(round=ps_pb2.RoundMembers(round=0, members=members))
        with pytest.raises(InvalidInputError):
            await door.call("ApplyRound", request)
    request = ps_pb2.ApplyRoundRequest(round=ps_pb2.RoundMembers(round=0, members=[member]))
    with pytest.raises(ConflictError):
        await door.call("ApplyRound", request)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(method=st.sampled_from(sorted(FRAMES)), noise=st.binary(max_size=300), framed=st.booleans())
async def test_noise_is_the_callers_fault(door: Any, method: str, noise: bytes, framed: bool) -> None:
    version = door.partition.version
    try:
        await door.call(method, encode_frame(noise) if framed else noise)
    except (InvalidInputError, PermissionDeniedError, ConflictError, NotFoundError):
        pass
    status = await door.call("Status", ps_pb2.StatusRequest())
    assert (status.initialized, status.version) == (True, version)


async def test_large_dense_parameters_come_in_pieces(door: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticdl_ps.pulls.CHUNK_BYTES", 8)
    frames = await door.call(
        "PullDenseParameters", encode_frame(ps_pb2.PullRequest(dense_version=-1).SerializeToString())
    )
    assert len(frames) == 3
