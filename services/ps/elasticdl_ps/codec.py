"""The codec of the PS protocol: frames and messages to our own types, and back.

With the servicer, which is given messages by the RPC layer, this is the only module that knows ``ps.proto``. It only
translates; what a push or a pull means is said in ``pushes`` and ``pulls``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseKind, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_proto.v1 import ps_pb2
from elasticdl_ps.pulls import PullAnswer, PullRequest
from elasticdl_ps.pushes import (
    DenseGradient,
    PushRequest,
    RowGradients,
    check_learning_rates,
    require_finite,
)
from elasticdl_ps.rounds import Member, PushOutcome, Round
from elasticdl_ps.store.partition import DenseInit
from elasticdl_ps.store.table import EmbeddingTable
from elasticdl_runtime.convert.parameters import (
    array_of,
    dense_from_message,
    mode_from_json,
    optimizer_from_json,
    table_from_message,
)
from elasticdl_runtime.rpc.errors import answer_to
from elasticdl_runtime.rpc.framing import Frame, FrameBytes, decode_frame

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class PushedModel:
    """A model as a worker declares it.

    Attributes:
        dense: slices of dense parameters.
        names: of all dense parameters, also those that other PS have; empty where the caller does not say.
        tables: the embedding tables.
        optimizer: the optimizer.
        mode: how updates are made.
    """

    dense: Sequence[DenseInit]
    names: Sequence[str]
    tables: Sequence[TableSpec]
    optimizer: OptimizerSpec
    mode: UpdateMode


def read_push(frame: FrameBytes) -> PushRequest:
    """Reads the frame of a push.

    Raises:
        InvalidInputError: it is none.
    """
    header, buffers = decode_frame(frame)
    return _push_of(_decoded(ps_pb2.PushGradientsRequest, header), buffers)


def read_pull(frame: FrameBytes) -> PullRequest:
    """Reads the frame of a pull.

    Raises:
        InvalidInputError: it is none.
    """
    header, buffers = decode_frame(frame)
    return _pull_of(_decoded(ps_pb2.PullRequest, header), buffers)


def read_push_pull(frame: FrameBytes) -> tuple[PushRequest, PullRequest]:
    """Reads the frame of a push and a pull.

    Raises:
        InvalidInputError: it is none.
    """
    header, buffers = decode_frame(frame)
    both = _decoded(ps_pb2.PushPullRequest, header)
    middle = both.pull_from
    if not 0 <= middle <= len(buffers):
        raise InvalidInputError(f"there is no buffer {middle}", fix="send what ps.proto describes")
    return _push_of(both.push, buffers[:middle]), _pull_of(both.pull, buffers[middle:])


def read_model(frame: bytes) -> PushedModel:
    """Reads the frame of a pushed model.

    Raises:
        InvalidInputError: it is none, a dtype is unknown, sizes disagree, or values are not finite.
    """
    header, buffers = decode_frame(frame)
    request = _decoded(ps_pb2.PushModelRequest, header)
    return PushedModel(
        [_dense_init(message, buffers) for message in request.dense],
        list(request.parameters),
        [table_from_message(message) for message in request.tables],
        optimizer_from_json(request.optimizer),
        mode_from_json(request.mode),
    )


def model_frame(*, initialised: bool, version: int) -> Frame:
    """The answer to a pushed model."""
    return Frame(ps_pb2.PushModelResponse(initialized=initialised, version=version).SerializeToString())


def push_frame(outcome: PushOutcome) -> Frame:
    """The answer to a push."""
    return Frame(_outcome_message(outcome).SerializeToString())


def pull_frame(answer: PullAnswer) -> Frame:
    """The answer to a pull."""
    return Frame(_pull_message(answer).SerializeToString(), _arrays_of(answer))


def push_pull_frame(outcome: PushOutcome, answer: PullAnswer | Exception | None) -> Frame:
    """The answer to a push and a pull; of the pull why it failed, or nothing where it was not made."""
    response = ps_pb2.PushPullResponse(push=_outcome_message(outcome))
    if isinstance(answer, Exception):
        status, details = answer_to(answer, "Pull")
        response.failed.code, response.failed.details = status.value[0], details
    if not isinstance(answer, PullAnswer):
        return Frame(response.SerializeToString())
    response.pull.CopyFrom(_pull_message(answer))
    return Frame(response.SerializeToString(), _arrays_of(answer))


def round_to_message(round_: Round) -> ps_pb2.RoundMembers:
    """A closed round."""
    members = [ps_pb2.Member(worker=member.worker, sequence=member.sequence) for member in round_.members]
    return ps_pb2.RoundMembers(round=round_.number, members=members, learning_rates=round_.learning_rates)


def round_from_message(message: ps_pb2.RoundMembers) -> Round:
    """A closed round.

    Raises:
        InvalidInputError: it has no members, or one comes twice.
    """
    members = tuple(Member(member.worker, member.sequence) for member in message.members)
    if not members or len(set(members)) != len(members):
        raise InvalidInputError("a round needs members, each once", fix="send the round that the first PS closed")
    rates = tuple(message.learning_rates)
    check_learning_rates(rates)
    return Round(message.round, members, rates)


def table_status(table: EmbeddingTable) -> ps_pb2.TableStatus:
    """The content of a table, and the numbers of rows that came and went."""
    status = ps_pb2.TableStatus(name=table.spec.name, rows=table.rows, bytes=table.nbytes)
    if table.lives is not None:
        status.admitted, status.evicted = table.lives.admitted, table.lives.evicted
        status.refused = table.lives.refused
    return status


def _decoded(kind: type[M], header: bytes) -> M:
    try:
        return kind.FromString(header)
    except DecodeError:
        raise InvalidInputError(
            f"the header is no {kind.DESCRIPTOR.name}", fix="use the protocol of this version"
        ) from None


def _push_of(message: ps_pb2.PushGradientsRequest, buffers: list[memoryview]) -> PushRequest:
    return PushRequest(
        message.worker,
        message.sequence,
        message.version,
        message.generation,
        tuple(message.learning_rates),
        message.records,
        message.steps,
        (message.task.round, message.task.index) if message.HasField("task") else None,
        [_dense_gradient(part) for part in message.dense],
        [_row_gradients(entry) for entry in message.rows],
        buffers,
        message.weight if message.HasField("weight") else None,
    )


def _dense_gradient(message: ps_pb2.Dense) -> DenseGradient:
    return DenseGradient(
        message.name,
        message.start,
        message.stop,
        message.buffer,
        message.keep if message.HasField("keep") else None,
        message.pulled if message.HasField("pulled") else None,
    )


def _row_gradients(message: ps_pb2.Rows) -> RowGradients:
    pulled = message.pulled if message.HasField("pulled") else None
    return RowGradients(message.table, message.ids, message.values, message.dtype, pulled)


def _pull_of(message: ps_pb2.PullRequest, buffers: list[memoryview]) -> PullRequest:
    return PullRequest(
        message.dense_version,
        message.pin,
        message.dtype,
        message.generation,
        message.wait_for,
        round_from_message(message.apply) if message.HasField("apply") else None,
        [(entry.table, entry.ids) for entry in message.rows],
        buffers,
    )


def _outcome_message(outcome: PushOutcome) -> ps_pb2.PushGradientsResponse:
    response = ps_pb2.PushGradientsResponse(
        accepted=outcome.accepted, version=outcome.version, replay=outcome.replay, reason=outcome.reason
    )
    if outcome.closed is not None:
        response.closed.CopyFrom(round_to_message(outcome.closed))
    return response


def _pull_message(answer: PullAnswer) -> ps_pb2.PullResponse:
    response = ps_pb2.PullResponse(
        version=answer.version,
        generation=answer.generation,
        initialized=answer.initialised,
        pending=answer.pending,
        undeclared=answer.undeclared,
        round=None if answer.round is None else round_to_message(answer.round),
    )
    for index, run in enumerate(answer.dense):
        response.dense.add(
            name=run.name, dtype=run.dtype, start=run.start, stop=run.stop, buffer=index, version=run.version
        )
    for index, (table, _) in enumerate(answer.rows, len(answer.dense)):
        response.rows.add(table=table, values=index, dtype=answer.dtype)
    return response


def _arrays_of(answer: PullAnswer) -> list[NDArray[np.generic]]:
    return [run.values for run in answer.dense] + [values for _, values in answer.rows]


def _dense_init(message: ps_pb2.Dense, buffers: list[memoryview]) -> DenseInit:
    """A dense parameter of a pushed model, with values unless it is only declared."""
    spec, values = dense_from_message(message), None
    if message.buffer >= 0:
        what = f"the dense parameter {spec.name!r}"
        _check_dtype(spec.dtype, what)
        values = array_of(buffers, message.buffer, spec.dtype, message.stop - message.start, what)
        if spec.kind is not DenseKind.STATE:  # in state infinite or no numbers may say that nothing is known yet
            require_finite(values, what)
    return DenseInit(spec, message.start, message.stop, values)


def _check_dtype(name: str, what: str) -> None:
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "fiub":
        raise InvalidInputError(
            f"{what} has the dtype {name!r}", fix="send floating-point numbers, integers or booleans"
        )
