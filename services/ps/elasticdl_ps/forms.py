"""The forms of pushes and pulls: what the names in them stand for, looked up once and not at every step.

A worker names the same parameters, tables and buffers at every step; only numbers such as the version change. Encoded
messages may be joined, and so also cut between any two fields: where a header has the encoded names of an earlier one
in it and what is before and behind them can be decoded, it names the same, whatever the numbers are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseKind, DenseSpec
from elasticdl_proto.v1 import ps_pb2
from elasticdl_ps.store.dense import DensePart, DenseValue
from elasticdl_ps.store.partition import Partition
from elasticdl_ps.store.table import EmbeddingTable
from elasticdl_runtime.convert.parameters import check_wire_dtype, dense_to_message
from elasticdl_runtime.rpc.framing import decode_frame

_REMEMBERED = 16
"""Forms of either kind; a job has one or two."""
_ROW_BYTES = 256
"""What finding a row costs, in bytes that could be copied meanwhile."""


@dataclass(frozen=True, slots=True)
class DensePlace:
    """Where a push has the gradient of a dense parameter, or what is added to state.

    Attributes:
        part: the slice that it is for.
        buffer: which buffer.
        dtype: of its numbers.
        what: for errors.
        keep: how much of the old value state keeps; None for a gradient.
        pulled: which buffer has what the gradient was computed on; None if none has.
    """

    part: DensePart
    buffer: int
    dtype: str
    what: str
    keep: float | None = None
    pulled: int | None = None


@dataclass(frozen=True, slots=True)
class RowsPlace:
    """Where a push has the gradients of a table.

    Attributes:
        table: the table.
        ids: which buffer has the ids.
        values: which buffer has the gradients.
        dtype: of the gradients on the wire.
        what: for errors.
        pulled: which buffer has the rows that they were computed on; None if none has.
    """

    table: EmbeddingTable
    ids: int
    values: int
    dtype: str
    what: str
    pulled: int | None = None


@dataclass(frozen=True, slots=True)
class PushForm:
    """What a push names.

    Attributes:
        tables: the partition's tables at that time; a partition that has others has other parts, too.
        dense: the dense parameters.
        rows: the tables.
        words: whether all numbers are float32 or integers, so that one look at the whole frame can tell that no
            gradient is infinite or NaN.
    """

    tables: Mapping[str, EmbeddingTable]
    dense: tuple[DensePlace, ...]
    rows: tuple[RowsPlace, ...]
    words: bool


@dataclass(frozen=True, slots=True)
class PullForm:
    """What a pull names.

    Attributes:
        tables: the partition's tables at that time.
        rows: the tables that it asks for, and the buffers of their ids.
    """

    tables: Mapping[str, EmbeddingTable]
    rows: tuple[tuple[EmbeddingTable, int], ...]
    _answers: dict[tuple[str, int], tuple[tuple[DensePart, ...], ps_pb2.PullResponse]] = field(default_factory=dict)

    def answer(self, dtype: str, parts: tuple[DensePart, ...]) -> ps_pb2.PullResponse:
        """What ``describe`` says, remembered from pull to pull. Copy it.

        Args:
            dtype: of rows on the wire.
            parts: the dense parameters that are sent.
        """
        known = self._answers.get((dtype, len(parts)))
        if known is None or known[0] != parts:
            known = self._answers[dtype, len(parts)] = parts, self.describe(dtype, parts)
        return known[1]

    def describe(self, dtype: str, parts: Sequence[DensePart | DenseValue]) -> ps_pb2.PullResponse:
        """The names and places in the answer: first dense parameters, then rows."""
        dense = [
            dense_to_message(part.spec, part.start, part.stop, index, part.version)
            for index, part in enumerate(parts)
        ]
        rows = [
            ps_pb2.Rows(table=table.spec.name, values=len(parts) + index, dtype=dtype)
            for index, (table, _) in enumerate(self.rows)
        ]
        return ps_pb2.PullResponse(dense=dense, rows=rows)


@dataclass(frozen=True, slots=True)
class PushMessage:
    """A push that has come.

    Attributes:
        request: decoded, without names if the form is known.
        form: what it names, if that was sent before.
        header: the encoded request.
        frame: the whole message.
        buffers: the buffers of the push.
    """

    request: ps_pb2.PushGradientsRequest
    form: PushForm | None
    header: bytes
    frame: bytes
    buffers: list[memoryview]

    def cost(self) -> float:
        """About how many bytes are touched, a row that has to be found counting as some; infinite if not known."""
        if self.form is None:
            return math.inf
        ids = sum(len(self.buffers[place.ids]) for place in self.form.rows if 0 <= place.ids < len(self.buffers)) // 8
        return len(self.frame) + ids * _ROW_BYTES


@dataclass(frozen=True, slots=True)
class PullMessage:
    """A pull that has come.

    Attributes:
        request: decoded, without names if the form is known.
        form: what it names, if that was asked for before.
        header: the encoded request.
        buffers: the buffers of the pull.
    """

    request: ps_pb2.PullRequest
    form: PullForm | None
    header: bytes
    buffers: list[memoryview]

    def cost(self, partition: Partition) -> float:
        """As of a push; all dense parameters count."""
        if self.form is None:
            return math.inf
        cost = partition.dense.value_bytes
        for table, index in self.form.rows:
            if 0 <= index < len(self.buffers):
                cost += len(self.buffers[index]) // 8 * (table.dim * 4 + _ROW_BYTES)
        return cost


Form = TypeVar("Form", bound=PushForm | PullForm)


class Forms:
    """The forms that were seen last. May be used from any thread.

    Args:
        partition: has what is named.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._pushes: _Known[PushForm] = _Known()
        self._pulls: _Known[PullForm] = _Known()

    def forget(self) -> None:
        """Lets go of tables and parameters that the partition may not have any more."""
        self._pushes, self._pulls = _Known(), _Known()

    def read_push(self, frame: bytes) -> PushMessage:
        """Decodes the frame of a push.

        Raises:
            InvalidInputError: it is none.
        """
        header, buffers = decode_frame(frame)
        try:
            return self._push(header, frame, buffers)
        except DecodeError:
            raise undecodable(ps_pb2.PushGradientsRequest) from None

    def read_pull(self, frame: bytes) -> PullMessage:
        """Decodes the frame of a pull.

        Raises:
            InvalidInputError: it is none.
        """
        header, buffers = decode_frame(frame)
        try:
            return self._pull(header, buffers)
        except DecodeError:
            raise undecodable(ps_pb2.PullRequest) from None

    def read_push_pull(self, frame: bytes) -> tuple[PushMessage, PullMessage]:
        """Decodes the frame of a push and a pull.

        Raises:
            InvalidInputError: it is none.
        """
        header, buffers = decode_frame(frame)
        try:
            parts = ps_pb2.PushPullParts.FromString(header)
            middle = parts.pull_from
            if not 0 <= middle <= len(buffers):
                raise InvalidInputError(f"there is no buffer {middle}", fix="send what ps.proto describes")
            return self._push(parts.push, frame, buffers[:middle]), self._pull(parts.pull, buffers[middle:])
        except DecodeError:
            raise undecodable(ps_pb2.PushPullRequest) from None

    def learn_push(self, request: ps_pb2.PushGradientsRequest, data: bytes) -> PushForm:
        """Looks up what a push names.

        Raises:
            InvalidInputError: a name is unknown or comes twice, or a slice is not the one that is here.
        """
        form = _push_form(self._partition, request)
        names = ps_pb2.PushGradientsRequest(dense=request.dense, rows=request.rows)
        self._pushes.keep(data, names.SerializeToString(), form, self._partition)
        return form

    def learn_pull(self, request: ps_pb2.PullRequest, data: bytes) -> PullForm:
        """Looks up what a pull names.

        Raises:
            InvalidInputError: a table is unknown.
        """
        tables = self._partition.tables
        form = PullForm(tables, tuple((self._partition.table(entry.table), entry.ids) for entry in request.rows))
        self._pulls.keep(data, ps_pb2.PullRequest(rows=request.rows).SerializeToString(), form, self._partition)
        return form

    def _push(self, header: bytes, frame: bytes, buffers: list[memoryview]) -> PushMessage:
        request = ps_pb2.PushGradientsRequest()
        form = self._pushes.read(header, request, self._partition)
        return PushMessage(request, form, header, frame, buffers)

    def _pull(self, header: bytes, buffers: list[memoryview]) -> PullMessage:
        request = ps_pb2.PullRequest()
        form = self._pulls.read(header, request, self._partition)
        return PullMessage(request, form, header, buffers)


class _Known(Generic[Form]):
    """Forms by the bytes of their names. The tuple is replaced and never changed: threads read it as it was."""

    def __init__(self) -> None:
        self._forms: tuple[tuple[bytes, Form], ...] = ()

    def read(self, data: bytes, message: Any, partition: Partition) -> Form | None:
        """Decodes into ``message``; the form, if it is known, is left out there."""
        for names, form in self._forms:
            at = data.find(names) if form.tables is partition.tables else -1
            if at < 0:
                continue
            try:
                message.ParseFromString(data[:at])
                message.MergeFromString(data[at + len(names) :])
            except DecodeError:
                continue  # what looks like names is the inside of something else
            if not message.rows and not getattr(message, "dense", ()):
                return form
        message.ParseFromString(data)
        return None

    def keep(self, data: bytes, names: bytes, form: Form, partition: Partition) -> None:
        """Remembers a form, if its names are in one place of the message."""
        if names and names in data:
            tables = partition.tables
            others = [pair for pair in self._forms if pair[0] != names and pair[1].tables is tables]
            self._forms = ((names, form), *others[: _REMEMBERED - 1])


def undecodable(kind: type[Message]) -> InvalidInputError:
    """What to raise where a header is not of a kind."""
    return InvalidInputError(f"the header is no {kind.DESCRIPTOR.name}", fix="use the protocol of this version")


def _push_form(partition: Partition, request: ps_pb2.PushGradientsRequest) -> PushForm:
    tables = partition.tables
    dense: dict[str, DensePlace] = {}
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
        is_state = part.spec.kind is DenseKind.STATE
        dtype = part.spec.dtype if is_state else "float32"
        keep = _keep(message, part.spec) if is_state else None
        dense[message.name] = DensePlace(
            part, message.buffer, dtype, what, keep, message.pulled if message.HasField("pulled") else None
        )
    rows: dict[str, RowsPlace] = {}
    for entry in request.rows:
        if entry.table in rows:
            raise InvalidInputError(f"gradients of the table {entry.table!r} come twice", fix="send them merged")
        what = f"the gradients of the table {entry.table!r}"
        wire_dtype = check_wire_dtype(entry.dtype)
        pulled = entry.pulled if entry.HasField("pulled") else None
        table = partition.table(entry.table)
        rows[entry.table] = RowsPlace(table, entry.ids, entry.values, wire_dtype, what, pulled)
    words = all(place.dtype == "float32" or np.dtype(place.dtype).kind != "f" for place in dense.values())
    words &= all(place.dtype == "float32" for place in rows.values())
    return PushForm(tables, tuple(dense.values()), tuple(rows.values()), words)


def _keep(message: ps_pb2.Dense, spec: DenseSpec) -> float:
    """How much of the old value a change of state keeps.

    Raises:
        InvalidInputError: it does not say, or the state's dtype cannot be changed so.
    """
    kind = np.dtype(spec.dtype).kind
    allowed = message.HasField("keep") and 0 <= message.keep <= 1
    if kind != "f":
        allowed = allowed and (message.keep == 0 or (message.keep == 1 and kind != "b"))
    if not allowed:
        said = message.keep if message.HasField("keep") else "nothing"
        raise InvalidInputError(
            f"a change of {spec.name!r} ({spec.dtype}) says {said} about what is kept of the old value",
            fix="send keep: 0 to 1 for floating-point numbers, 0 or 1 for integers, 0 for booleans",
        )
    return message.keep
