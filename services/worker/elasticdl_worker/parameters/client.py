"""The client of all parameter servers of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_runtime.convert.parameters import check_wire_dtype
from elasticdl_runtime.rpc.credentials import RpcCredentials
from elasticdl_worker.parameters.asynchronous import AsynchronousMode, HotRowsMode
from elasticdl_worker.parameters.declaring import declare_model, describe_model
from elasticdl_worker.parameters.group import Ids, ServerGroup
from elasticdl_worker.parameters.hot_rows import HotRows
from elasticdl_worker.parameters.synchronous import SynchronousMode
from elasticdl_worker.parameters.types import Gradients, PulledParameters, PullOutcome, PushResult, Rates, ServedModel
from elasticdl_worker.parameters.waiting import together

MESSAGE_BYTES = 256 << 20
"""Pulls and pushes of more rows are cut: gRPC takes messages of 1 GiB at most, and each is in memory twice."""
HOT_ROWS = 1 << 16
LearningRate = float | Sequence[float] | None
"""What a push says: a rate for each of the optimizer's groups, or the rate of the only one; None for its own."""


class ParameterClient:
    """Talks to all PS of a job: one RPC per PS and call, all PS in parallel.

    Pulls may run side by side; pushes are sent one after the other. What a pull and a push are depends on the mode
    of training: ``AsynchronousMode``, ``HotRowsMode`` or ``SynchronousMode``.

    Args:
        addresses: of PS 0, 1, ...
        token: returns the present job token.
        worker: the worker's incarnation as its token says it, e.g. ``worker-3.1``; where it has several clients,
            with a name for each behind a slash, as each counts its own pushes.
        wire_dtype: ``float32`` or ``bfloat16`` for rows and their gradients on the wire.
        patience_s: for how long an unreachable PS is tried again.
        hot_rows_staleness: for how many own updates rows that are seen often are kept here; 0 keeps none.
        hot_rows: how many are kept of each table.
        message_bytes: what is larger travels in several messages, or pieces of one; at most 1 GiB.
        credentials: what to show under TLS; those of this process by default.

    Raises:
        InvalidInputError: the wire dtype is unknown.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        token: Callable[[], str],
        worker: str,
        wire_dtype: str = "float32",
        *,
        patience_s: float = 120.0,
        hot_rows_staleness: int = 0,
        hot_rows: int = HOT_ROWS,
        message_bytes: int = MESSAGE_BYTES,
        credentials: RpcCredentials | None = None,
    ) -> None:
        dtype = check_wire_dtype(wire_dtype)
        self._group = ServerGroup(addresses, token, worker, dtype, patience_s, message_bytes, credentials)
        self._hot = HotRows(hot_rows_staleness, hot_rows) if hot_rows_staleness else None
        self._mode = self._mode_of(UpdateMode())

    async def ensure_model(
        self,
        dense: Mapping[str, NDArray[Any]],
        specs: Sequence[DenseSpec],
        tables: Sequence[TableSpec],
        optimizer: OptimizerSpec,
        mode: UpdateMode,
    ) -> bool:
        """Declares the model, and initialises it unless that was done before.

        The first PS decides between workers that come at once: who initialises it initialises the others.

        Args:
            dense: first values of the dense parameters by name.
            specs: the dense parameters; in the same order and shape in all workers.
            tables: the embedding tables.
            optimizer: the optimizer and its hyper-parameters.
            mode: how updates are made.

        Returns:
            Whether this call initialised the model. If not, pull it.

        Raises:
            InvalidInputError: the PS cannot hold the model, or know the optimizer, or rows would be kept in
                synchronous mode.
            ConflictError: the PS hold a checkpoint of another model.
        """
        self._mode = self._mode_of(mode)
        self._group.place(specs, tables)
        self._group.note_rules(optimizer, mode)
        return await declare_model(self._group, dense)

    async def adopt_model(self) -> ServedModel:
        """Takes the model that the PS hold, instead of declaring one; all of it is pulled next.

        Raises:
            UnavailableError: a PS could not be reached for the whole of the patience.
            ConflictError: there is no model yet.
        """
        model = await describe_model(self._group)
        self._mode = self._mode_of(model.mode)
        self._group.place(model.dense, model.tables)
        self._group.note_rules(model.optimizer, model.mode)
        self._group.forget()
        return model

    async def count_rows(self) -> dict[str, int]:
        """The number of each table's rows."""
        counts = await together([server.count_rows() for server in self._group.servers])
        return {table: sum(count.get(table, 0) for count in counts) for table in counts[0]}

    async def pull(self, ids: Ids, *, dense: bool = True, pin: int = 0) -> PulledParameters:
        """Reads rows, and the dense parameters that changed since the last pull.

        Args:
            ids: by table, int64 ``[n]``, unique.
            dense: whether to read dense parameters as well.
            pin: read as of a pin; all dense parameters then.

        Raises:
            UnavailableError: a PS could not be reached, or has no model, for the whole of the patience.
            InvalidInputError: a table or an id is unknown to the PS.
            NotFoundError: there is no such pin.
        """
        if pin:
            return await self._group.pull_all(ids, dense=dense, pin=pin)
        return await self._mode.pull(ids, dense=dense)

    async def push(self, gradients: Gradients, *, version: int, learning_rate: LearningRate = None) -> PushResult:
        """Applies gradients exactly once, whatever the network does.

        Asynchronous: each PS applies its part at once; the push is accepted if any PS took it (a PS that was
        replaced since the pull refuses its part). Synchronous: all PS keep the gradients, and the first PS counts
        them for the present round, or refuses them as stale. The next pull then waits for the end of the round,
        while enough other workers are on the way with gradients for it.

        Args:
            gradients: of one minibatch, rows merged; they must not change before the push has returned.
            version: of the pull that they were computed from.
            learning_rate: None for the optimizer's own; of an optimizer with several groups one for each group.

        Raises:
            UnavailableError: a PS could not be reached for the whole of the patience.
            InvalidInputError: a PS cannot apply the gradients (unknown names, wrong shapes, NaN).
        """
        return await self._mode.push(gradients, version, _rates_of(learning_rate))

    async def push_pull(
        self,
        gradients: Gradients,
        ids: Ids,
        *,
        version: int,
        learning_rate: LearningRate = None,
        dense: bool = True,
    ) -> tuple[PushResult, PullOutcome]:
        """A push, and then a pull for another minibatch, in one message a PS.

        It means what ``push`` followed by ``pull`` means, at half the messages: each PS applies its part of the
        gradients and then reads, so that the pull has them. In synchronous mode only the first PS gets both in one
        message, and nothing is pulled if the push is refused. It is two calls for what is too large for a message.
        Raises what the push raises. Where the pull fails its error is returned in its place: what became of the push
        is known all the same.

        Args:
            gradients: as for ``push``.
            ids: as for ``pull``.
            version: of the pull that the gradients were computed from.
            learning_rate: None for the optimizer's own; of an optimizer with several groups one for each group.
            dense: whether to pull dense parameters as well.
        """
        return await self._mode.push_pull(gradients, ids, version, _rates_of(learning_rate), dense=dense)

    async def update_servers(self, addresses: Sequence[str], generation: str = "") -> None:
        """Takes the addresses of PS that were replaced; the next pull reads everything anew.

        Args:
            addresses: of PS 0, 1, ...; another number of them places parameters anew.
            generation: what the master calls this set of PS; for logs only, each PS tells its own.
        """
        self._mode.forget()
        await self._group.move(addresses)

    async def close(self) -> None:
        """Closes the channels."""
        await self._group.close()

    def _mode_of(self, mode: UpdateMode) -> AsynchronousMode | SynchronousMode:
        if self._hot is None:
            return AsynchronousMode(self._group, mode) if mode.use_async else SynchronousMode(self._group, mode)
        if not mode.use_async:
            raise InvalidInputError(
                "synchronous training reads every row at its newest version",
                fix="set --hot_rows_staleness 0, or --use_async true",
            )
        return HotRowsMode(self._group, mode, self._hot)


def _rates_of(rate: LearningRate) -> Rates:
    if rate is None:
        return ()
    return (rate,) if isinstance(rate, int | float) else tuple(rate)
