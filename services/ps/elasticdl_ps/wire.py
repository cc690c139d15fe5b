"""Frames of the PS protocol to and from the store's types: everything that comes in is checked here."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import NO_ID, DenseSpec
from elasticdl_proto.v1 import ps_pb2
from elasticdl_ps.forms import DensePlace, PullForm, PushForm, RowsPlace, undecodable
from elasticdl_ps.rounds import Member, PushOutcome, Round
from elasticdl_ps.store.dense import DensePart
from elasticdl_ps.store.merging import Changes, StateUpdate
from elasticdl_ps.store.partition import DenseInit, Partition
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
from elasticdl_runtime.rpc.framing import allocate_frame, decode_frame, encode_frame
from elasticdl_runtime.rpc.service import CHUNK_BYTES

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
        raise undecodable(type(message)) from None
    return buffers


def header_frame(message: Message) -> bytes:
    """A frame without buffers."""
    return encode_frame(message.SerializeToString())


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
    partition: Partition, form: PushForm, frame: bytes, buffers: Sequence[memoryview], records: int = 1
) -> Changes:
    """What a push changes, checked.

    Args:
        partition: what they are for.
        form: what the push names.
        frame: the whole message.
        buffers: the buffers of the push.
        records: how many records it is of.

    Raises:
        InvalidInputError: an id comes twice or cannot be, a size disagrees, or a number is not finite.
    """
    # One look at all of the frame, zeros between buffers and ids included, may tell that every number is finite. If
    # it does not, because ids happen to look like infinity for example, each buffer is looked at by itself.
    finite = form.words and bool(form.dense or form.rows) and partition.kernels.all_finite(_body(frame))
    dense: dict[str, NDArray[Any]] = {}
    state: dict[str, StateUpdate] = {}
    for place in form.dense:
        values = array_of(buffers, place.buffer, place.dtype, place.part.size, place.what)
        if not finite:
            _require_finite(values, place.what)
        if place.keep is None:
            dense[place.part.spec.name] = values
        else:
            state[place.part.spec.name] = StateUpdate(place.keep, values)
    rows: dict[str, tuple[NDArray[np.int64], NDArray[np.float32]]] = {}
    ids = Ids(buffers)
    for entry in form.rows:
        wanted = ids.read(entry.table, entry.ids)
        if ids.has_duplicates(partition):
            raise InvalidInputError(f"{entry.what} name an id twice", fix="add up the gradients of equal ids first")
        values = _read_rows(partition, entry, entry.values, len(wanted), buffers, finite)
        rows[entry.table.spec.name] = wanted, values
    if not partition.mode.delay_compensation:
        return Changes(dense, rows, state, records)
    return Changes(dense, rows, state, records, *_read_origin(partition, form, buffers, rows, finite))


class Ids:
    """Reads the ids of tables. Models often ask several tables for the same ids, so those are looked at once.

    Args:
        buffers: of the frame.
    """

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self._buffers = buffers
        self._last: NDArray[np.int64] = np.empty(0, np.int64)
        self._index = -1
        self._range = (0, 0)
        self._duplicates: bool | None = False

    def read(self, table: EmbeddingTable, index: int) -> NDArray[np.int64]:
        """Ids of a table, int64 ``[n]``.

        Raises:
            InvalidInputError: an id is outside a closed id space, or is ``NO_ID``.
        """
        if index != self._index or index < 0:
            ids = ids_of(self._buffers, index, f"the ids of {table.spec.name!r}")
            if ids.tobytes() != self._last.tobytes():
                self._last, self._duplicates = ids, None
                self._range = (int(np.minimum.reduce(ids)), int(np.maximum.reduce(ids))) if len(ids) else (0, 0)
            self._index = index
        low, high = self._range
        limit = table.spec.input_dim
        if low == NO_ID or (limit is not None and (low < 0 or high >= limit)):
            raise _outside(table, low if low < 0 else high)
        return self._last

    def has_duplicates(self, partition: Partition) -> bool:
        """Whether an id comes twice among those read last."""
        if self._duplicates is None:
            self._duplicates = bool(partition.kernels.has_duplicates(self._last))
        return self._duplicates


def begin_answer(partition: Partition, request: ps_pb2.PullRequest, response: ps_pb2.PullResponse) -> None:
    """Puts into the answer to a pull what it has even while there is no model.

    The version comes before everything else that is read: all that is of this version or a later one.

    Raises:
        InvalidInputError: rows cannot be sent as the request says.
        NotFoundError: there is no such pin.
    """
    check_wire_dtype(request.dtype)
    pin = request.pin
    response.generation, response.initialized = partition.generation, partition.initialised
    response.version = partition.pinned_version(pin) if pin else partition.version


def pull_frame(
    partition: Partition,
    request: ps_pb2.PullRequest,
    form: PullForm,
    buffers: Sequence[memoryview],
    answer: ps_pb2.PullResponse | ps_pb2.PushPullResponse,
) -> bytes:
    """Reads what a request asks for, straight into the frame that answers it.

    Args:
        partition: what is read.
        request: what of it.
        form: the tables that the request names.
        buffers: the buffers of the pull.
        answer: what ``begin_answer`` has begun, or the answer to a push and a pull that has it.

    Raises:
        InvalidInputError: an id is unknown.
    """
    response = answer.pull if isinstance(answer, ps_pb2.PushPullResponse) else answer
    dtype = check_wire_dtype(request.dtype)
    ids = Ids(buffers)
    tables = [(table, ids.read(table, index)) for table, index in form.rows]
    values: list[NDArray[np.uint8]]
    if request.pin and request.dense_version != NO_DENSE:
        pinned = partition.dense.read_pinned(request.pin)
        response.MergeFrom(form.describe(dtype, pinned))
        values = [value.values.view(np.uint8) for value in pinned]
    else:
        parts = _changed(partition, request)
        response.MergeFrom(form.answer(dtype, parts))
        for message, part in zip(response.dense, parts, strict=True):
            message.version = part.version
        values = [part.as_bytes for part in parts]
    lengths = [value.nbytes for value in values]
    lengths += [len(wanted) * table.dim * (2 if dtype == "bfloat16" else 4) for table, wanted in tables]
    frame, places = allocate_frame(answer.SerializeToString(), lengths)
    partition.dense.copy(values, places[: len(values)])
    for (table, wanted), place in zip(tables, places[len(values) :], strict=True):
        _fill_rows(table, wanted, request.pin, dtype, place)
    return frame


def dense_frames(partition: Partition, request: ps_pb2.PullRequest) -> list[Callable[[], bytes]]:
    """Makers of the frames of a dense pull, each of at most ``CHUNK_BYTES`` of values.

    Raises:
        NotFoundError: there is no such pin.
    """
    version = partition.pinned_version(request.pin) if request.pin else partition.version
    base = ps_pb2.PullResponse(version=version, generation=partition.generation, initialized=partition.initialised)
    values: list[tuple[DenseSpec, int, int, Any]] = []
    if request.pin:
        values = [(v.spec, v.start, v.version, v.values) for v in partition.dense.read_pinned(request.pin)]
    elif partition.initialised:
        parts = _changed(partition, request)
        values = [(part.spec, part.start, part.version, part.values) for part in parts]
    makers: list[Callable[[], bytes]] = []
    for spec, start, changed, array in values:
        step = max(1, CHUNK_BYTES // array.itemsize)
        for at in range(0, max(1, len(array)), step):
            piece = array[at : at + step]
            header = ps_pb2.PullResponse()
            header.CopyFrom(base)
            header.dense.append(dense_to_message(spec, start + at, start + at + len(piece), 0, changed))
            makers.append(partial(_dense_frame, partition, header, piece))
    return makers or [lambda: header_frame(base)]


def table_status(table: EmbeddingTable) -> ps_pb2.TableStatus:
    """What a table holds, and how many rows came and went."""
    status = ps_pb2.TableStatus(name=table.spec.name, rows=table.rows, bytes=table.nbytes)
    if table.lives is not None:
        status.admitted, status.evicted = table.lives.admitted, table.lives.evicted
        status.refused = table.lives.refused
    return status


def answer_message(answer: PushOutcome) -> ps_pb2.PushGradientsResponse:
    """What became of a push."""
    response = ps_pb2.PushGradientsResponse(
        accepted=answer.accepted, version=answer.version, replay=answer.replay, reason=answer.reason
    )
    if answer.closed is not None:
        response.closed.CopyFrom(round_to_message(answer.closed))
    return response


def round_to_message(round_: Round) -> ps_pb2.RoundMembers:
    """A closed round."""
    members = [ps_pb2.Member(worker=member.worker, sequence=member.sequence) for member in round_.members]
    # None is an absent field, and 0.0 is a present one.
    return ps_pb2.RoundMembers(round=round_.number, members=members, learning_rate=round_.learning_rate)


def round_from_message(message: ps_pb2.RoundMembers) -> Round:
    """A closed round.

    Raises:
        InvalidInputError: it has no members, or one comes twice.
    """
    members = tuple(Member(member.worker, member.sequence) for member in message.members)
    if not members or len(set(members)) != len(members):
        raise InvalidInputError("a round needs members, each once", fix="send the round that the first PS closed")
    return Round(message.round, members, read_learning_rate(message))


def read_learning_rate(message: ps_pb2.PushGradientsRequest | ps_pb2.RoundMembers) -> float | None:
    """The learning rate that a message asks for; None, which is not 0, for the optimizer's own.

    Raises:
        InvalidInputError: the rate is negative, infinite or not a number.
    """
    if not message.HasField("learning_rate"):
        return None
    value = message.learning_rate
    if not (0.0 <= value < float("inf")):
        raise InvalidInputError(f"the learning rate {value} cannot be meant", fix="send a number >= 0")
    return value


def _dense_frame(partition: Partition, header: ps_pb2.PullResponse, piece: NDArray[Any]) -> bytes:
    frame, (place,) = allocate_frame(header.SerializeToString(), [piece.nbytes])
    partition.dense.copy([piece.view(np.uint8)], [place])
    return frame


def _fill_rows(table: EmbeddingTable, ids: NDArray[np.int64], pin: int, dtype: str, place: NDArray[np.uint8]) -> None:
    shape = (len(ids), table.dim)
    out = np.empty(shape, np.float32) if dtype == "bfloat16" else place.view(np.float32).reshape(shape)
    if pin:
        table.read_pinned(pin, ids, out)
    else:
        table.read(ids, out)
    if dtype == "bfloat16":
        to_bfloat16(out, place.view(np.uint16).reshape(shape))


def _read_rows(
    partition: Partition, place: RowsPlace, index: int, count: int, buffers: Sequence[memoryview], finite: bool
) -> NDArray[np.float32]:
    """The gradients of rows, or what they were computed on, from a buffer."""
    dim = place.table.dim
    if place.dtype == "bfloat16":
        found = from_bfloat16(array_of(buffers, index, "uint16", count * dim, place.what))
    else:
        found = array_of(buffers, index, "float32", count * dim, place.what)
    if not finite and not partition.kernels.all_finite(found.view(np.uint32)):
        raise _not_finite(place.what)
    return found.reshape(count, dim)


def _read_origin(
    partition: Partition,
    form: PushForm,
    buffers: Sequence[memoryview],
    rows: Mapping[str, tuple[NDArray[np.int64], NDArray[np.float32]]],
    finite: bool,
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[np.float32]]]:
    """The parameters that the gradients of a push were computed on.

    Raises:
        InvalidInputError: the push does not say, a size disagrees, or a number is not finite.
    """
    dense: dict[str, NDArray[Any]] = {}
    for place in form.dense:
        if place.keep is None:
            values = array_of(buffers, _said(place), "float32", place.part.size, place.what)
            if not finite:
                _require_finite(values, place.what)
            dense[place.part.spec.name] = values
    tables = {}
    for entry in form.rows:
        name = entry.table.spec.name
        tables[name] = _read_rows(partition, entry, _said(entry), len(rows[name][0]), buffers, finite)
    return dense, tables


def _said(place: DensePlace | RowsPlace) -> int:
    if place.pulled is None:
        raise InvalidInputError(
            f"{place.what} come without what they were computed on",
            fix="with delay_compensation, send the pulled parameters along",
        )
    return place.pulled


def _changed(partition: Partition, request: ps_pb2.PullRequest) -> tuple[DensePart, ...]:
    """The dense parameters that a pull of the present is to get."""
    if request.dense_version == NO_DENSE:
        return ()
    known = request.generation in ("", partition.generation)
    return partition.dense.changed(request.dense_version if known else -1)


def _body(frame: bytes) -> NDArray[np.uint32]:
    """All buffers of a frame, which was taken apart already, with the zeros between them."""
    header, count = struct.unpack_from("<II", frame, 4)
    start = 16 + 8 * count + header
    return np.frombuffer(frame, np.uint32, offset=start + -start % 64)


def _outside(table: EmbeddingTable, bad: int) -> InvalidInputError:
    limit = table.spec.input_dim
    space = f"other than {NO_ID}" if limit is None else f"from 0 to {limit - 1}"
    return InvalidInputError(
        f"the id {bad} is outside the table {table.spec.name!r}, which takes ids {space}",
        fix="map ids into the table's range in feed(), or give the layer a larger input_dim",
    )


def _dtype(name: str, what: str) -> str:
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "fiub":
        raise InvalidInputError(
            f"{what} has the dtype {name!r}", fix="send floating-point numbers, integers or booleans"
        )
    return name


def _require_finite(values: NDArray[Any], what: str) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise _not_finite(what)


def _not_finite(what: str) -> InvalidInputError:
    return InvalidInputError(
        f"{what} has NaN or infinite numbers", fix="lower the learning rate, clip gradients, or check the input data"
    )
