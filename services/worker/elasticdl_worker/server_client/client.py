"""Parameter servers for programs of one's own: blocking calls, numpy in and numpy out."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elasticdl_core.errors import ConflictError, InvalidInputError
from elasticdl_core.model import DenseKind, DenseSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_runtime.rpc.credentials import RpcCredentials
from elasticdl_runtime.tokens import peek_owner
from elasticdl_worker.parameters import (
    Gradients,
    ParameterClient,
    PulledParameters,
    PushResult,
    ServedModel,
    StateChange,
)
from elasticdl_worker.parameters.client import LearningRate
from elasticdl_worker.server_client.access import ServerAccess, access_of_job
from elasticdl_worker.server_client.arrays import ids_from, merged_rows, spec_of, tensor_for
from elasticdl_worker.server_client.local_servers import LocalServers
from elasticdl_worker.server_client.loop_thread import LoopThread

_PATIENCE_S = 20.0


class ParameterServerClient:
    """Reads and trains what parameter servers hold. Use it in a ``with`` statement, or close it.

    Calls block, and give up with an error that says what to do when a server has not answered for the whole of the
    patience. A client may be used by several threads; its calls are made one after the other. A client
    belongs to the process that made it: after a fork each process makes its own.

    Args:
        addresses: of PS 0, 1, ...: ``unix:/path`` or ``host:port``.
        token: a job token, or what returns the present one.
        patience_s: for how long a server that cannot be reached is tried again.
        credentials: a certificate for whom the token names, where the servers speak TLS; by default that of this
            process.

    Raises:
        UnauthenticatedError: the token is none.
        InvalidInputError: there is no address.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        token: str | Callable[[], str],
        *,
        patience_s: float = _PATIENCE_S,
        credentials: RpcCredentials | None = None,
    ) -> None:
        present: Callable[[], str] = _constantly(token) if isinstance(token, str) else token
        owner, places = peek_owner(present()), list(addresses)
        if not places:
            raise InvalidInputError("there are no parameter servers to talk to", fix="give the address of each")
        self._access = tuple(places), present, credentials
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._servers: LocalServers | None = None
        self._model: ServedModel | None = None
        self._dense: dict[str, NDArray[Any]] = {}
        self._version = 0
        loop = LoopThread()
        try:
            self._client = loop.run(_make_client(places, present, owner, patience_s, credentials))
        except BaseException:
            loop.close()
            raise
        self._loop: LoopThread | None = loop

    @classmethod
    def local(cls, num_ps: int = 1, *, patience_s: float = _PATIENCE_S) -> Self:
        """Starts parameter servers on this machine and connects to them; they end when the client is closed.

        Args:
            num_ps: how many.
            patience_s: as for the client.

        Raises:
            InvalidInputError: the number makes no sense, or the extra ``ps`` is not installed.
            UnavailableError: one of them does not start.
        """
        servers = LocalServers(num_ps)
        try:
            client = cls._of(servers.access, patience_s)
        except BaseException:
            servers.close()
            raise
        client._servers = servers
        return client

    @classmethod
    def of_job(cls, job_id: str, *, data_dir: str | Path | None = None, patience_s: float = _PATIENCE_S) -> Self:
        """Connects to the parameter servers of a job that runs on this machine, as the owner of its cluster.

        Whatever is pushed trains the job's model, beside its workers.

        Args:
            job_id: the job.
            data_dir: the cluster's data directory; ``$ELASTICDL_DATA_DIR`` or ``~/.elasticdl`` by default.
            patience_s: as for the client.

        Raises:
            InvalidInputError: the cluster's secret cannot be read.
            NotFoundError: no parameter server of the job listens on this machine.
        """
        return cls._of(access_of_job(job_id, None if data_dir is None else Path(data_dir)), patience_s)

    @classmethod
    def _of(cls, access: ServerAccess, patience_s: float) -> Self:
        return cls(access.addresses, access.token, patience_s=patience_s, credentials=access.credentials)

    @property
    def access(self) -> ServerAccess:
        """Addresses and a token with which other programs call the servers, such as by the published protocol."""
        addresses, token, credentials = self._access
        return ServerAccess(addresses, token(), credentials)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections, and ends servers that ``local`` started.

        Closing twice does nothing, and so does closing in a process that was forked from the client's.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is None:
                return
            try:
                loop.run(self._client.close())
                loop.close()
            finally:
                if self._servers is not None:
                    self._servers.close()

    def declare(
        self,
        dense: Mapping[str, ArrayLike] | None = None,
        tables: Iterable[TableSpec] = (),
        optimizer: OptimizerSpec | None = None,
        *,
        specs: Iterable[DenseSpec] = (),
        mode: UpdateMode | None = None,
    ) -> bool:
        """Says what the servers shall hold, and gives dense parameters their first values.

        Where they hold a model of the same shapes already, that goes on; pull it.

        Args:
            dense: first values by name; trained as float32 unless ``specs`` says otherwise.
            tables: the embedding tables; their rows begin as their initialisers say.
            optimizer: what pushed gradients do; plain SGD with a rate of 0.01 by default.
            specs: for dense parameters that are state, belong to a group, or do not decay.
            mode: how updates are made; each push at once by default.

        Returns:
            Whether this call made the model.

        Raises:
            InvalidInputError: the servers cannot hold the model, or do not know the optimizer.
            ConflictError: they hold another model.
        """
        given, mode = dict(dense or {}), mode or UpdateMode()
        if mode.delay_compensation:
            raise InvalidInputError(
                "this client does not send along what gradients were computed on, which delay_compensation needs",
                fix="leave delay_compensation at 0",
            )
        described = {spec.name: spec for spec in specs}
        unknown = described.keys() - given.keys()
        if unknown:
            raise InvalidInputError(f"{min(unknown)!r} has no first value", fix="give it in dense")
        wanted = [described.get(name) or spec_of(name, value) for name, value in given.items()]
        values = {spec.name: tensor_for(spec, given[spec.name]) for spec in wanted}
        declared, chosen = list(tables), optimizer or OptimizerSpec("sgd")
        with self._turn():
            made = self._run().run(self._client.ensure_model(values, wanted, declared, chosen, mode))
            present = self._adopt()
            if not made and _shapes(present.dense, present.tables) != _shapes(wanted, declared):
                self._model = None
                raise ConflictError(
                    "the parameter servers hold a model of other shapes",
                    fix="use another name or shape as they have it (see `model`), or other servers",
                )
            return made

    @property
    def model(self) -> ServedModel:
        """The model on the servers: the specifications of dense parameters, tables, optimizer and mode.

        Raises:
            ConflictError: they hold nothing yet.
        """
        with self._turn():
            return self._present()

    def count_rows(self) -> dict[str, int]:
        """The number of each table's rows by now: rows are made when their ids are first asked for."""
        with self._turn():
            self._present()
            return self._run().run(self._client.count_rows())

    def pull(self, rows: Mapping[str, ArrayLike] | None = None, *, dense: bool = True) -> PulledParameters:
        """Reads all dense parameters, and rows of tables.

        Args:
            rows: by table, the ids that are wanted; they may repeat.
            dense: whether to read dense parameters.

        Returns:
            The version, dense parameters by name, and by table ``[len(ids), dim]``. The arrays are read-only.

        Raises:
            UnavailableError: a server could not be reached for the whole of the patience.
            InvalidInputError: a table is unknown, or an id is not an integer of its table.
            ConflictError: there is no model yet.
        """
        with self._turn():
            tables = self._known({}, rows or {})[1]
            different = {
                table: np.unique(ids_from(tables[table], ids), return_inverse=True)
                for table, ids in (rows or {}).items()
            }
            pulled = self._run().run(
                self._client.pull({table: ids for table, (ids, _) in different.items()}, dense=dense)
            )
            self._version = pulled.version
            self._dense.update(pulled.dense)
            found = {table: pulled.rows[table][inverse] for table, (_, inverse) in different.items()}
            values = {name: _read_only(value) for name, value in self._dense.items()} if dense else {}
            return PulledParameters(
                pulled.version, values, {table: _read_only(value) for table, value in found.items()}
            )

    def push(
        self,
        dense: Mapping[str, ArrayLike] | None = None,
        rows: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
        *,
        version: int | None = None,
        learning_rate: LearningRate = None,
        state: Mapping[str, StateChange] | None = None,
        records: int = 1,
    ) -> PushResult:
        """Has the servers apply gradients, once, whatever the network does.

        Args:
            dense: gradients by name, of the parameters' shapes.
            rows: by table, ids and a gradient for each; those of equal ids are added up.
            version: of the pull that they were computed on; the last one's by default.
            learning_rate: None for the optimizer's own; of one with groups, a rate for each group.
            state: changes of parameters that are state.
            records: of how many records the gradients are: their weight in a synchronous round.

        Returns:
            Whether they were accepted, and the version after them.

        Raises:
            UnavailableError: a server could not be reached for the whole of the patience.
            InvalidInputError: a name is unknown, a shape is wrong, or a number is not finite.
            ConflictError: there is no model yet.
        """
        with self._turn():
            specs, tables = self._known({**(dense or {}), **(state or {})}, rows or {})
            gradients = Gradients(
                {name: tensor_for(specs[name], value) for name, value in (dense or {}).items()},
                {table: merged_rows(tables[table], *given) for table, given in (rows or {}).items()},
                {
                    name: StateChange(change.keep, tensor_for(specs[name], change.add))
                    for name, change in (state or {}).items()
                },
                records,
            )
            at = self._version if version is None else version
            return self._run().run(self._client.push(gradients, version=at, learning_rate=learning_rate))

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """One call at a time; a fork may have left the lock taken for ever."""
        if os.getpid() != self._process:
            raise ConflictError(
                "this client was made in another process, before a fork", fix="make a client in each process"
            )
        with self._lock:
            yield

    def _run(self) -> LoopThread:
        if self._loop is None:
            raise ConflictError("this client is closed", fix="make another one")
        return self._loop

    def _present(self) -> ServedModel:
        return self._model if self._model is not None else self._adopt()

    def _known(
        self, dense: Mapping[str, object], rows: Mapping[str, object]
    ) -> tuple[dict[str, DenseSpec], dict[str, TableSpec]]:
        """Parameters and tables by name, among which are those that a call names."""
        present = self._present()
        specs = {spec.name: spec for spec in present.dense}
        tables = {table.name: table for table in present.tables}
        unknown = sorted((dense.keys() - specs.keys()) | (rows.keys() - tables.keys()))
        if unknown:
            raise InvalidInputError(
                f"the model has no {unknown[0]!r}", fix=f"there are {sorted(specs)} and the tables {sorted(tables)}"
            )
        return specs, tables

    def _adopt(self) -> ServedModel:
        model = self._run().run(self._client.adopt_model())
        self._model, self._version, self._dense = model, model.version, {}
        return model


def _constantly(token: str) -> Callable[[], str]:
    return lambda: token


async def _make_client(
    addresses: list[str],
    token: Callable[[], str],
    owner: str,
    patience_s: float,
    credentials: RpcCredentials | None,
) -> ParameterClient:
    # Each client counts its own pushes: those of another one with this token are not taken for them.
    name = f"{owner}/{secrets.token_hex(8)}"
    return ParameterClient(addresses, token, name, patience_s=patience_s, credentials=credentials)


def _read_only(value: NDArray[Any]) -> NDArray[Any]:
    found = value.view()
    found.flags.writeable = False
    return found


def _shapes(dense: Iterable[DenseSpec], tables: Iterable[TableSpec]) -> tuple[dict[str, object], dict[str, int]]:
    return (
        {spec.name: (spec.shape, spec.kind is DenseKind.TRAINABLE) for spec in dense},
        {table.name: table.dim for table in tables},
    )
