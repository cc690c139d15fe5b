"""The service ``Pserver`` of ElasticDL's published "Concepts" (2020), beside this project's own frames.

It serves jobs with one parameter server, in asynchronous mode: clients of that protocol choose a server for each name
by rules of their own, and know no rounds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import structlog
from google.protobuf.empty_pb2 import Empty
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseSpec, InitializerSpec, TableSpec, UpdateMode
from elasticdl_core.ports.launcher import Role
from elasticdl_proto.v1 import pserver_pb2 as pb
from elasticdl_ps.pulls import NO_DENSE, PullAnswer, PullRequest, read_parameters
from elasticdl_ps.pushes import DenseGradient, PushRequest, RowGradients, require_finite
from elasticdl_ps.store.partition import DenseInit, Partition
from elasticdl_ps.threads import Threads
from elasticdl_ps.training_calls import TrainingCalls
from elasticdl_runtime.convert.parameters import optimizer_from_json
from elasticdl_runtime.initializers import INITIALIZER_NAMES
from elasticdl_runtime.tokens import Claims

SERVICE = pb.DESCRIPTOR.services_by_name["Pserver"]
NAME = "Pserver"
"""The document's file has no package."""
DTYPES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    9: "int64",
    10: "bool",
    17: "uint16",
    19: "float16",
    22: "uint32",
    23: "uint64",
}
"""Numbers of ``tensorflow.DataType``, source: tensorflow/core/framework/types.proto."""
_NUMBERS = {name: number for number, name in DTYPES.items()}
_log = structlog.get_logger(__name__)


class Pserver:
    """Translates calls of the published protocol into pulls and pushes.

    Args:
        partition: the parameters.
        num_ps: how many servers the job has.
        training: takes pushes.
        threads: read, and initialise.
    """

    def __init__(self, partition: Partition, num_ps: int, training: TrainingCalls, threads: Threads) -> None:
        self._partition = partition
        self._num_ps = num_ps
        self._training = training
        self._threads = threads
        self._pushes = itertools.count(1)
        self._declared: dict[str, TableSpec] = {}

    async def pull_dense_parameters(
        self, request: pb.PullDenseParametersRequest, caller: Claims, _: Mapping[str, str]
    ) -> pb.PullDenseParametersResponse:
        """Reads dense parameters that changed after a version."""
        self._require_served(caller)
        pull = PullRequest(dense_version=request.version if request.version > 0 else -1)
        return await self._threads.read(lambda: self._dense_message(read_parameters(self._partition, pull)))

    async def pull_embedding_table(
        self, request: pb.PullEmbeddingTableRequest, caller: Claims, _: Mapping[str, str]
    ) -> pb.IndexedSlices:
        """Reads rows; those that nobody has read or changed begin as the table's initialiser says."""
        self._require_served(caller)
        self._partition.require_initialised()
        ids = np.array(request.indices, np.int64)
        pull = PullRequest(NO_DENSE, tables=[(request.name, 0)], buffers=[memoryview(ids.tobytes())])

        def read() -> pb.IndexedSlices:
            ((_, rows),) = read_parameters(self._partition, pull).rows
            return pb.IndexedSlices(concat_tensors=tensor_of(rows), ids=request.indices)

        return await self._threads.read(read)

    async def push_dense_paramters(self, request: pb.Model, caller: Claims, metadata: Mapping[str, str]) -> Empty:
        """Initialises the partition, unless it is."""
        self._require_served(caller)
        await self._threads.write(lambda: self._initialise(request, metadata.get("optimizer", "")))
        return Empty()

    async def push_embedding_table_infos(
        self, request: pb.EmbeddingTableInfos, caller: Claims, _: Mapping[str, str]
    ) -> Empty:
        """Declares tables."""
        self._require_served(caller)
        tables = [_table_of(info) for info in request.embedding_table_infos]
        await self._threads.write(lambda: self._declare(tables))
        return Empty()

    async def push_gradients(
        self, request: pb.Model, caller: Claims, _: Mapping[str, str]
    ) -> pb.PushGradientsResponse:
        """Applies gradients of dense parameters and of rows; gradients of an id that comes twice are added up."""
        self._require_served(caller)
        caller.require(Role.WORKER)
        push = await self._threads.read(lambda: self._push_of(request, f"{caller.owner}/published"))
        # Numbered as it is taken: one that is read before another one and comes after it would pass for a repeat.
        outcome = await self._training.take(replace(push, sequence=next(self._pushes)), caller)
        return pb.PushGradientsResponse(accepted=outcome.accepted, version=outcome.version)

    def _require_served(self, caller: Claims) -> None:
        caller.require(Role.WORKER, Role.MASTER)
        if self._num_ps != 1:
            raise InvalidInputError(
                f"the published protocol serves jobs with one parameter server, and this one has {self._num_ps}",
                fix="use --num_ps_pods 1, or elasticdl.ParameterServerClient",
            )
        if not self._partition.mode.use_async:
            raise InvalidInputError("the published protocol knows no rounds", fix="train with --use_async true")

    def _dense_message(self, answer: PullAnswer) -> pb.PullDenseParametersResponse:
        message = pb.PullDenseParametersResponse(initialized=answer.initialised)
        for run in answer.dense:
            part = self._partition.dense.part(run.name)
            assert part is not None
            message.dense_parameters[run.name].CopyFrom(
                tensor_of(run.values.view(run.dtype).reshape(part.spec.shape))
            )
        return message

    def _initialise(self, request: pb.Model, optimizer: str) -> None:
        if self._partition.initialised:
            return
        if request.embedding_tables:
            raise InvalidInputError("a model begins without rows", fix="declare tables by push_embedding_table_infos")
        if not optimizer:
            raise InvalidInputError(
                "nobody has said which optimizer this parameter server has",
                fix='send the metadata optimizer: {"name": "sgd", "params": {"learning_rate": 0.1}}',
            )
        dense = []
        for name, tensor in sorted(request.dense_parameters.items()):
            values = array_of_tensor(tensor, f"the dense parameter {name!r}", ("float32",))
            require_finite(values, f"the dense parameter {name!r}")
            dense.append(DenseInit(DenseSpec(name, values.shape), 0, values.size, values.ravel()))
        tables = list(self._declared.values())
        self._partition.push_model(dense, tables, optimizer_from_json(optimizer), UpdateMode(), guest=True)
        _log.info("initialised", dense=len(dense), tables=len(tables), protocol="published")

    def _declare(self, tables: Sequence[TableSpec]) -> None:
        if self._partition.initialised:
            self._partition.add_tables(tables)
            return
        for spec in tables:
            if self._declared.setdefault(spec.name, spec) != spec:
                raise InvalidInputError(
                    f"the table {spec.name!r} was declared otherwise", fix="declare it alike in each client"
                )

    def _push_of(self, request: pb.Model, worker: str) -> PushRequest:
        buffers: list[memoryview] = []

        def keep(array: NDArray[np.generic]) -> int:
            buffers.append(memoryview(array.tobytes()))
            return len(buffers) - 1

        dense, rows = [], []
        for name, tensor in sorted(request.dense_parameters.items()):
            values = array_of_tensor(tensor, f"the gradient of {name!r}", ("float32",))
            self._check_shape(name, values.shape)
            dense.append(DenseGradient(name, 0, values.size, keep(values)))
        for name, slices in sorted(request.embedding_tables.items()):
            what = f"the gradients of the table {name!r}"
            vectors = array_of_tensor(slices.concat_tensors, what, ("float32",))
            if vectors.ndim != 2 or len(vectors) != len(slices.ids):
                raise InvalidInputError(
                    f"{what} have the shape {vectors.shape} for {len(slices.ids)} ids", fix="send [ids, dim]"
                )
            ids, places = np.unique(np.array(slices.ids, np.int64), return_inverse=True)
            added = np.zeros((len(ids), vectors.shape[1]), np.float32)
            np.add.at(added, places, vectors)
            rows.append(RowGradients(name, keep(ids), keep(added)))
        return PushRequest(worker, 0, request.version, dense=dense, rows=rows, buffers=buffers)

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        part = self._partition.dense.part(name)
        if part is None:
            known = sorted(spec.name for spec in self._partition.dense.specs)
            raise InvalidInputError(f"there is no dense parameter {name!r}", fix=f"there are {known}")
        if part.spec.shape != shape:
            raise InvalidInputError(
                f"{name!r} has the shape {part.spec.shape}, its gradient {shape}", fix="send that of the parameter"
            )


def tensor_of(array: NDArray[np.generic]) -> pb.Tensor:
    """An array as a message that ``tensorflow.make_ndarray`` reads."""
    shape = pb.Tensor.Shape(dim=[pb.Tensor.Shape.Dim(size=size) for size in array.shape])
    return pb.Tensor(dtype=_NUMBERS[array.dtype.name], tensor_shape=shape, tensor_content=array.tobytes())


def array_of_tensor(tensor: pb.Tensor, what: str, dtypes: Sequence[str]) -> NDArray[np.generic]:
    """The array of a message that ``tensorflow.make_tensor_proto`` wrote.

    Args:
        tensor: the message; values in ``tensor_content``, or float32 in ``float_val``, the last of which stands for
            all that follow it.
        what: names it in errors.
        dtypes: that can be taken.

    Raises:
        InvalidInputError: the dtype is another one, or the shape does not fit the values.
    """
    dtype = DTYPES.get(tensor.dtype, f"number {tensor.dtype}")
    if dtype not in dtypes:
        raise InvalidInputError(f"{what} has the dtype {dtype}", fix=f"send {' or '.join(dtypes)}")
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    size = math.prod(shape)
    if tensor.tensor_shape.unknown_rank or any(extent < 0 for extent in shape):
        raise InvalidInputError(f"{what} has no definite shape", fix="send a shape of numbers from 0 on")
    values: NDArray[np.generic] = np.array(tensor.float_val, np.float32)
    if tensor.tensor_content:
        if len(tensor.tensor_content) != size * np.dtype(dtype).itemsize:
            raise InvalidInputError(
                f"{what} has {len(tensor.tensor_content)} bytes for the shape {shape}",
                fix="send as many as the shape has",
            )
        values = np.frombuffer(tensor.tensor_content, dtype)
    elif 0 < len(values) < size:
        values = np.concatenate([values, np.full(size - len(values), values[-1], np.float32)])
    if len(values) != size:
        raise InvalidInputError(f"{what} has {len(values)} values for the shape {shape}", fix="send as many")
    return values.reshape(shape)


def _table_of(info: pb.EmbeddingTableInfo) -> TableSpec:
    kind = info.initializer.lower() or "uniform"
    if kind not in INITIALIZER_NAMES:
        raise InvalidInputError(
            f"the table {info.name!r} has the initialiser {info.initializer!r}",
            fix=f"use one of {list(INITIALIZER_NAMES)}",
        )
    return TableSpec(info.name, info.dim, InitializerSpec(kind))
