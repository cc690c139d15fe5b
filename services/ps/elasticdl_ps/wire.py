"""Frames of the PS protocol to and from the store's types: everything that comes in is checked here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseKind
from elasticdl_proto.v1 import ps_pb2
from elasticdl_ps.rounds import Answer, Member, Round
from elasticdl_ps.store.dense import DensePart
from elasticdl_ps.store.partition import Changes, DenseInit, Partition
from elasticdl_ps.store.table import EmbeddingTable
from elasticdl_runtime.convert.parameters import (
    array_of,
    check_wire_dtype,
    dense_from_message,
    dense_to_message,
    from_bfloat16,
    ids_of,
    to_bfloat16,
)
from elasticdl_runtime.rpc.framing import allocate_frame, decode_frame

NO_DENSE = -2
"""``PullRequest.dense_version`` of a caller who wants rows only."""


def read_frame(frame: bytes, message: Any) -> list[memoryview]:
    """Decodes a frame's header into ``message``; returns its buffers.

    Raises:
        InvalidInputError: the frame or its header is damaged.
    """
    header, buffers = decode_frame(frame)
    try:
        message.ParseFromString(header)
    except DecodeError:
        raise InvalidInputError(
            f"the header is no {message.DESCRIPTOR.name}", fix="use the protocol of this version"
        ) from None
    return buffers


def header_frame(message: Message) -> bytes:
    """A frame without buffers."""
    return allocate_frame(message.SerializeToString(), [])[0]


def read_dense_inits(messages: Sequence[ps_pb2.Dense], buffers: Sequence[memoryview]) -> list[DenseInit]:
    """The dense parameters of a pushed model, with values unless they are only declared.

    Raises:
        InvalidInputError: a dtype is unknown, or sizes disagree, or values are not finite.
    """
    inits = []
    for message in messages:
        spec = dense_from_message(message)
        values = None
        if message.buffer >= 0:
            what = f"the dense parameter {spec.name!r}"
            values = array_of(buffers, message.buffer, _dtype(spec.dtype, what), message.stop - message.start, what)
            _require_finite(values, what)
        inits.append(DenseInit(spec, message.start, message.stop, values))
    return inits


def read_changes(
    partition: Partition, request: ps_pb2.PushGradientsRequest, buffers: Sequence[memoryview]
) -> Changes:
    """The gradients of a push, checked against what the partition holds.

    Raises:
        InvalidInputError: a name is unknown or comes twice, an id does, a size disagrees, or a number is not finite.
    """
    dense: dict[str, NDArray[Any]] = {}
    for message in request.dense:
        what = f"the gradient of {message.name!r}"
        part = partition.dense.part(message.name)
        if part is None or (part.start, part.stop) != (message.start, message.stop):
            held = "nothing" if part is None else f"[{part.start}, {part.stop})"
            raise InvalidInputError(
                f"{what} is for [{message.start}, {message.stop}), of which this PS holds {held}",
                fix="place parameters as place_dense does",
            )
        if message.name in dense:
            raise InvalidInputError(f"{what} comes twice", fix="send it once")
        dtype = part.spec.dtype if part.spec.kind is DenseKind.STATE else "float32"
        dense[message.name] = array_of(buffers, message.buffer, dtype, part.size, what)
        _require_finite(dense[message.name], what)
    rows: dict[str, tuple[NDArray[np.int64], NDArray[np.float32]]] = {}
    for entry in request.rows:
        if entry.table in rows:
            raise InvalidInputError(f"gradients of the table {entry.table!r} come twice", fix="send them merged")
        rows[entry.table] = _read_row_gradients(partition, entry, buffers)
    return Changes(dense, rows)


def read_ids(table: EmbeddingTable, buffers: Sequence[memoryview], index: int) -> NDArray[np.int64]:
    """Ids of a table, int64 ``[n]``.

    Raises:
        InvalidInputError: an id is negative, or outside a closed id space.
    """
    name = table.spec.name
    ids = ids_of(buffers, index, f"the ids of {name!r}")
    if len(ids):
        low, high = int(ids.min()), int(ids.max())
        limit = table.spec.input_dim
        if low < 0 or (limit is not None and high >= limit):
            bad = low if low < 0 else high
            space = ">= 0" if limit is None else f"from 0 to {limit - 1}"
            raise InvalidInputError(
                f"the id {bad} is outside the table {name!r}, which takes ids {space}",
                fix="map ids into the table's range in feed(), or give the layer a larger input_dim",
            )
    return ids


def pull_frame(
    partition: Partition,
    request: ps_pb2.PullRequest,
    buffers: Sequence[memoryview],
    last_round: Round | None,
    push: ps_pb2.PushGradientsResponse | None = None,
) -> bytes:
    """Reads what a request asks for, straight into the frame that answers it, and a push before it if there was one.

    Raises:
        InvalidInputError: a table or an id is unknown.
        NotFoundError: there is no such pin.
    """
    dtype = check_wire_dtype(request.dtype)
    pin = request.pin
    answer = ps_pb2.PullResponse() if push is None else ps_pb2.PushPullResponse(push=push)
    response = answer if isinstance(answer, ps_pb2.PullResponse) else answer.pull
    response.generation, response.initialized = partition.generation, partition.initialised
    response.version = partition.pinned_version(pin) if pin else partition.version
    if last_round is not None:
        response.round.CopyFrom(round_to_message(last_round))
    if not partition.initialised:
        return header_frame(answer)
    wanted = [(partition.table(entry.table), entry.ids) for entry in request.rows]
    tables = [(table, read_ids(table, buffers, index)) for table, index in wanted]
    lengths: list[int] = []
    parts: list[DensePart] = []
    pinned: list[NDArray[Any]] = []
    if pin and request.dense_version != NO_DENSE:
        for value in partition.dense.read_pinned(pin):
            response.dense.append(dense_to_message(value.spec, value.start, value.stop, len(lengths), value.version))
            lengths.append(value.values.nbytes)
            pinned.append(value.values)
    elif request.dense_version != NO_DENSE:
        known = request.generation in ("", partition.generation)
        parts = partition.dense.changed(request.dense_version if known else -1)
        for part in parts:
            response.dense.append(dense_to_message(part.spec, part.start, part.stop, len(lengths), part.version))
            lengths.append(part.values.nbytes)
    for table, ids in tables:
        response.rows.append(ps_pb2.Rows(table=table.spec.name, values=len(lengths), dtype=dtype))
        lengths.append(len(ids) * table.dim * (2 if dtype == "bfloat16" else 4))
    frame, places = allocate_frame(answer.SerializeToString(), lengths)
    places_left = iter(places)
    for values in pinned:
        next(places_left)[:] = values.view(np.uint8)
    for part in parts:
        partition.dense.copy(part.values, next(places_left))
    for table, ids in tables:
        _fill_rows(table, ids, pin, dtype, next(places_left))
    return frame


def table_status(table: EmbeddingTable) -> ps_pb2.TableStatus:
    """What a table holds, and how many rows came and went."""
    status = ps_pb2.TableStatus(name=table.spec.name, rows=table.rows, bytes=table.nbytes)
    if table.lives is not None:
        status.admitted, status.evicted = table.lives.admitted, table.lives.evicted
        status.refused = table.lives.refused
    return status


def answer_message(answer: Answer) -> ps_pb2.PushGradientsResponse:
    """What became of a push."""
    return ps_pb2.PushGradientsResponse(
        accepted=answer.accepted, version=answer.version, replay=answer.replay, reason=answer.reason
    )


def commit_message(answer: Answer) -> ps_pb2.CommitGradientsResponse:
    """What became of a commit or a flush."""
    response = ps_pb2.CommitGradientsResponse(accepted=answer.accepted, version=answer.version)
    if answer.closed is not None:
        response.closed.CopyFrom(round_to_message(answer.closed))
    return response


def round_to_message(round_: Round) -> ps_pb2.RoundMembers:
    """A closed round."""
    members = [ps_pb2.Member(worker=member.worker, sequence=member.sequence) for member in round_.members]
    return ps_pb2.RoundMembers(round=round_.number, members=members, learning_rate=round_.learning_rate)


def round_from_message(message: ps_pb2.RoundMembers) -> Round:
    """A closed round.

    Raises:
        InvalidInputError: it has no members, or one comes twice.
    """
    members = tuple(Member(member.worker, member.sequence) for member in message.members)
    if not members or len(set(members)) != len(members):
        raise InvalidInputError("a round needs members, each once", fix="send the round that the first PS closed")
    check_learning_rate(message.learning_rate)
    return Round(message.round, members, message.learning_rate)


def check_learning_rate(value: float) -> None:
    """Refuses learning rates that cannot be meant.

    Raises:
        InvalidInputError: the rate is negative, infinite or not a number.
    """
    if not (0.0 <= value < float("inf")):
        raise InvalidInputError(f"the learning rate {value} cannot be meant", fix="send a number >= 0")


def _fill_rows(table: EmbeddingTable, ids: NDArray[np.int64], pin: int, dtype: str, place: NDArray[np.uint8]) -> None:
    shape = (len(ids), table.dim)
    out = np.empty(shape, np.float32) if dtype == "bfloat16" else place.view(np.float32).reshape(shape)
    if pin:
        table.read_pinned(pin, ids, out)
    else:
        table.read(ids, out)
    if dtype == "bfloat16":
        to_bfloat16(out, place.view(np.uint16).reshape(shape))


def _read_row_gradients(
    partition: Partition, entry: ps_pb2.Rows, buffers: Sequence[memoryview]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    table = partition.table(entry.table)
    what = f"the gradients of the table {entry.table!r}"
    ids = read_ids(table, buffers, entry.ids)
    if partition.kernels.has_duplicates(ids):
        raise InvalidInputError(f"{what} name an id twice", fix="add up the gradients of equal ids first")
    size = len(ids) * table.dim
    if check_wire_dtype(entry.dtype) == "bfloat16":
        grads = from_bfloat16(array_of(buffers, entry.values, "uint16", size, what))
    else:
        grads = array_of(buffers, entry.values, "float32", size, what)
    if not partition.kernels.all_finite(grads.view(np.uint32)):
        raise _not_finite(what)
    return ids, grads.reshape(len(ids), table.dim)


def _dtype(name: str, what: str) -> str:
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "fiu":
        raise InvalidInputError(f"{what} has the dtype {name!r}", fix="send floating-point numbers or integers")
    return name


def _require_finite(values: NDArray[Any], what: str) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise _not_finite(what)


def _not_finite(what: str) -> InvalidInputError:
    return InvalidInputError(
        f"{what} has NaN or infinite numbers", fix="lower the learning rate, clip gradients, or check the input data"
    )
