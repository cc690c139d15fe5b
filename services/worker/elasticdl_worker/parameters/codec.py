"""The worker's codec of the PS protocol: our own types to frames and messages, and back.

The only module here that knows ``ps.proto``. The rest deals in the types below and in ``types``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from elasticdl_core.errors import ElasticDLError
from elasticdl_core.model import DenseSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.convert.parameters import (
    array_of,
    dense_from_json,
    dense_to_message,
    from_bfloat16,
    mode_from_json,
    mode_to_json,
    optimizer_from_json,
    optimizer_to_json,
    table_from_json,
    table_to_message,
)
from elasticdl_runtime.rpc.errors import from_number
from elasticdl_runtime.rpc.framing import Frame, FrameBytes, decode_frame
from elasticdl_worker.parameters.types import ServedModel

SERVICE = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]
STEPS: dict[str, int] = {
    "Pull": ps_pb2.STEP_PULL,
    "PushGradients": ps_pb2.STEP_PUSH,
    "PushPull": ps_pb2.STEP_PUSH_PULL,
}
"""The calls that may go over one stream, and what says there which one it is."""
ALL_DENSE, NO_DENSE = -1, -2
"""Dense parameters that are asked for, where it is not those that are newer than a version."""


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """A round that the first PS has closed, to be told to the others.

    Attributes:
        number: the version that it started from.
        members: worker and sequence number of each gradient in it.
        learning_rates: of each of the optimizer's groups; none for its own.
    """

    number: int
    members: tuple[tuple[str, int], ...]
    learning_rates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ModelSlice:
    """A slice of a dense parameter of a model, declared to one PS.

    Attributes:
        spec: the parameter.
        start: the slice's first element.
        stop: the element after its last one.
        values: its first values; None to declare it only.
    """

    spec: DenseSpec
    start: int
    stop: int
    values: NDArray[np.generic] | None = None


@dataclass(frozen=True, slots=True)
class DensePush:
    """A slice of a dense parameter's gradient, or of a change of state.

    Attributes:
        name: of the parameter.
        start: the slice's first element.
        stop: the element after its last one.
        values: which buffer has the numbers.
        keep: how much of the old value of state is kept; None for a gradient.
        pulled: which buffer has what the gradient was computed on; None if none has.
    """

    name: str
    start: int
    stop: int
    values: int
    keep: float | None = None
    pulled: int | None = None


@dataclass(frozen=True, slots=True)
class RowsPush:
    """The gradients of a table's rows.

    Attributes:
        table: the table.
        ids: which buffer has the ids.
        values: which buffer has the gradients.
        pulled: which buffer has the rows that they were computed on; None if none has.
    """

    table: str
    ids: int
    values: int
    pulled: int | None = None


@dataclass(frozen=True, slots=True)
class OutgoingPush:
    """A push to one PS.

    Attributes:
        worker: the worker's incarnation.
        sequence: the push's number.
        version: of the parameters that the gradients were computed on.
        generation: of the PS that was pulled from.
        learning_rates: of each of the optimizer's groups; none for its own.
        records: how many records the gradients are of.
        steps: of how many minibatches they are.
        task: epoch and index of the training task whose records they are; None if of none.
        dense: gradients of dense parameters and changes of state.
        rows: gradients of rows.
        dtype: of the gradients of rows.
        buffers: what the others refer to.
        weight: of the gradients in a round; infinite where they add up; None for the records.
    """

    worker: str
    sequence: int
    version: int
    generation: str
    learning_rates: tuple[float, ...]
    records: int
    steps: int
    task: tuple[int, int] | None
    dense: Sequence[DensePush]
    rows: Sequence[RowsPush]
    dtype: str
    buffers: Sequence[NDArray[np.generic]] = field(repr=False)
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class OutgoingPull:
    """A pull from one PS.

    Attributes:
        dense_version: dense parameters changed since then are wanted, or ``ALL_DENSE``, or ``NO_DENSE``.
        pin: number of a pin; 0 for the present.
        dtype: of rows.
        generation: of the PS that ``dense_version`` is from.
        wait_for: a version to wait for (synchronous mode, first PS); 0 for none.
        apply: a closed round to apply before (synchronous mode, other PS).
        tables: names of tables, and which buffer has the ids wanted of each.
        buffers: the ids.
    """

    dense_version: int
    pin: int = 0
    dtype: str = "float32"
    generation: str = ""
    wait_for: int = 0
    apply: ClosedRound | None = None
    tables: Sequence[tuple[str, int]] = ()
    buffers: Sequence[NDArray[np.int64]] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class PushReply:
    """The answer of one PS to a push.

    Attributes:
        accepted: whether it counts there.
        version: the PS's version.
        reason: why it does not count.
        closed: the round that it closed (synchronous mode, first PS).
    """

    accepted: bool
    version: int
    reason: str = ""
    closed: ClosedRound | None = None


@dataclass(frozen=True, slots=True)
class PullReply:
    """The answer of one PS to a pull, in one frame.

    Attributes:
        version: the PS's version.
        generation: its generation.
        initialised: whether it has a model.
        pending: whether nothing was read yet, because it is worth waiting for the end of a round.
        undeclared: whether nothing was read, because the model there is another job's until it is declared again.
        round: the round that the first PS closed last (synchronous mode).
        dense: runs of dense parameters: name, first element, values.
        rows: by table, the numbers of all rows one after the other.
    """

    version: int
    generation: str
    initialised: bool
    pending: bool
    undeclared: bool
    round: ClosedRound | None
    dense: Sequence[tuple[str, int, NDArray[np.generic]]]
    rows: dict[str, NDArray[np.float32]]


def model_frame(
    slices: Sequence[ModelSlice],
    names: Sequence[str],
    tables: Sequence[TableSpec],
    optimizer: OptimizerSpec,
    mode: UpdateMode,
) -> Frame:
    """A model, declared to one PS: its slices, and the names of all dense parameters."""
    request = ps_pb2.PushModelRequest(
        parameters=names,
        tables=[table_to_message(table) for table in tables],
        optimizer=optimizer_to_json(optimizer),
        mode=mode_to_json(mode),
    )
    buffers: list[NDArray[np.generic]] = []
    for part in slices:
        index = -1 if part.values is None else len(buffers)
        request.dense.append(dense_to_message(part.spec, part.start, part.stop, index))
        if part.values is not None:
            buffers.append(part.values)
    return Frame(request.SerializeToString(), buffers)


def read_model_reply(frame: FrameBytes) -> bool:
    """Whether a pushed model initialised the PS."""
    header, _ = decode_frame(frame)
    return ps_pb2.PushModelResponse.FromString(header).initialized


def push_frame(push: OutgoingPush) -> Frame:
    """A push."""
    return Frame(_push_message(push).SerializeToString(), push.buffers)


def pull_frame(pull: OutgoingPull) -> Frame:
    """A pull."""
    return Frame(_pull_message(pull).SerializeToString(), pull.buffers)


def push_pull_frame(push: OutgoingPush, pull: OutgoingPull) -> Frame:
    """A push and the pull after it, in one message."""
    message = ps_pb2.PushPullRequest(push=_push_message(push), pull=_pull_message(pull), pull_from=len(push.buffers))
    return Frame(message.SerializeToString(), [*push.buffers, *pull.buffers])


def read_push_reply(frame: FrameBytes) -> PushReply:
    """Reads the answer of one PS to a push."""
    header, _ = decode_frame(frame)
    return _push_reply(ps_pb2.PushGradientsResponse.FromString(header))


def read_pull_reply(frame: FrameBytes) -> PullReply:
    """Reads the answer of one PS to a pull.

    Raises:
        InvalidInputError: sizes disagree.
    """
    header, buffers = decode_frame(frame)
    return _pull_reply(ps_pb2.PullResponse.FromString(header), buffers)


def read_push_pull_reply(frame: FrameBytes) -> tuple[PushReply, PullReply | ElasticDLError]:
    """Reads the answer of one PS to a push and a pull; of the pull why it failed, if it did.

    Raises:
        InvalidInputError: sizes disagree.
    """
    header, buffers = decode_frame(frame)
    both = ps_pb2.PushPullResponse.FromString(header)
    if both.HasField("failed"):
        return _push_reply(both.push), from_number(both.failed.code, both.failed.details, "Pull")
    return _push_reply(both.push), _pull_reply(both.pull, buffers)


def status_request(*, model: bool = False) -> Message:
    """Asks a PS what it is and holds, and for the model too if it is wanted."""
    return ps_pb2.StatusRequest(model=model)


def read_initialised(response: ps_pb2.StatusResponse) -> bool:
    """Whether the PS has a model."""
    return response.initialized


def read_model_part(response: ps_pb2.StatusResponse) -> ServedModel | None:
    """Reads the part of a model that a PS holds, if there is one."""
    if not response.model:
        return None
    data = json.loads(response.model)
    return ServedModel(
        response.version,
        tuple(dense_from_json(spec) for spec in data["dense"]),
        tuple(table_from_json(spec) for spec in data["tables"]),
        optimizer_from_json(json.dumps(data["optimizer"])),
        mode_from_json(json.dumps(data["mode"])),
    )


def read_row_counts(response: ps_pb2.StatusResponse) -> dict[str, int]:
    """Reads the number of each table's rows that a PS holds."""
    return {table.name: table.rows for table in response.tables}


def closed_rounds_request(since: int) -> Message:
    """Asks the first PS for the rounds that it has closed since a version."""
    return ps_pb2.ClosedRoundsRequest(since=since)


def read_closed_rounds(response: ps_pb2.ClosedRoundsResponse) -> list[ClosedRound]:
    """The rounds that the first PS names."""
    return [_round_of(message) for message in response.rounds]


def apply_round_request(closed: ClosedRound) -> Message:
    """Has a PS apply a closed round."""
    return ps_pb2.ApplyRoundRequest(round=_round_message(closed))


def _push_message(push: OutgoingPush) -> ps_pb2.PushGradientsRequest:
    message = ps_pb2.PushGradientsRequest(
        worker=push.worker,
        sequence=push.sequence,
        version=push.version,
        generation=push.generation,
        learning_rates=push.learning_rates,
        records=push.records,
        steps=push.steps,
        weight=push.weight,
        task=None if push.task is None else ps_pb2.TaskName(round=push.task[0], index=push.task[1]),
    )
    for part in push.dense:
        message.dense.add(
            name=part.name, start=part.start, stop=part.stop, buffer=part.values, keep=part.keep, pulled=part.pulled
        )
    for rows in push.rows:
        message.rows.add(table=rows.table, ids=rows.ids, values=rows.values, dtype=push.dtype, pulled=rows.pulled)
    return message


def _pull_message(pull: OutgoingPull) -> ps_pb2.PullRequest:
    message = ps_pb2.PullRequest(
        dense_version=pull.dense_version,
        pin=pull.pin,
        dtype=pull.dtype,
        generation=pull.generation,
        wait_for=pull.wait_for,
        apply=None if pull.apply is None else _round_message(pull.apply),
    )
    for table, index in pull.tables:
        message.rows.add(table=table, ids=index)
    return message


def _push_reply(message: ps_pb2.PushGradientsResponse) -> PushReply:
    closed = _round_of(message.closed) if message.HasField("closed") else None
    return PushReply(message.accepted, message.version, message.reason, closed)


def _pull_reply(message: ps_pb2.PullResponse, buffers: Sequence[memoryview]) -> PullReply:
    dense = [
        (part.name, part.start, array_of(buffers, part.buffer, part.dtype, part.stop - part.start, part.name))
        for part in message.dense
    ]
    rows = {}
    for entry in message.rows:
        if entry.dtype == "bfloat16":
            rows[entry.table] = from_bfloat16(np.frombuffer(buffers[entry.values], np.uint16))
        else:
            rows[entry.table] = np.frombuffer(buffers[entry.values], np.float32)
    closed = _round_of(message.round) if message.HasField("round") else None
    return PullReply(
        message.version,
        message.generation,
        message.initialized,
        message.pending,
        message.undeclared,
        closed,
        dense,
        rows,
    )


def _round_message(closed: ClosedRound) -> ps_pb2.RoundMembers:
    members = [ps_pb2.Member(worker=worker, sequence=sequence) for worker, sequence in closed.members]
    return ps_pb2.RoundMembers(round=closed.number, members=members, learning_rates=closed.learning_rates)


def _round_of(message: ps_pb2.RoundMembers) -> ClosedRound:
    members = tuple((member.worker, member.sequence) for member in message.members)
    return ClosedRound(message.round, members, tuple(message.learning_rates))
