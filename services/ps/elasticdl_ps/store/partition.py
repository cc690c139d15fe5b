"""One partition of a model: everything that one parameter server holds.

Updates are single-writer: ``apply``, pins and snapshots take one lock, so that an update is wholly before or after
them. Pulls do not take it (unless they ask to be consistent); they wait only for the table or the dense store that
they read, a block of rows at a time.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import ConflictError, InvalidInputError, NotFoundError
from elasticdl_core.model import DenseSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_ps.kernels import KernelSet
from elasticdl_ps.optimizers import Optimizer, UpdateNumbers
from elasticdl_ps.store.clipping import clip
from elasticdl_ps.store.compensation import Delay
from elasticdl_ps.store.dense import DenseStore, DenseValue, check_specs
from elasticdl_ps.store.merging import Changes, merge
from elasticdl_ps.store.table import EmbeddingTable, no_pin
from elasticdl_ps.store.tally import Tally

_MAX_DIM = 1 << 16
_SNAPSHOT = -1
"""The number under which a snapshot pins; callers' pins are positive."""


@dataclass(frozen=True, slots=True)
class DenseInit:
    """A slice of a dense parameter with its first values; None where only the declaration is sent."""

    spec: DenseSpec
    start: int
    stop: int
    values: NDArray[Any] | None


class Partition:
    """The parameters of one PS.

    Attributes:
        generation: random; drawn when the partition is made or restored.
        version: number of updates applied, counted on from a restored checkpoint's.
        iterations: how many of them the optimizer has made whose slots are here.
        initialised: whether there is a model.
        restored: whether the model came from a checkpoint and no worker has confirmed it yet.
        declared: whether optimizer, mode and specifications are the present job's: not after another job's checkpoint
            was restored, until a worker declares its model. Nothing of the present may be read or changed before.
        mode: how updates are made.
        num_ps: how many share each table, and so its ``max_rows``.
        tally: how many records of each task are in the parameters.
    """

    def __init__(self, kernels: KernelSet, num_ps: int = 1) -> None:
        self.kernels = kernels
        self.num_ps = num_ps
        self.generation = secrets.token_hex(8)
        self.version = self.iterations = 0
        self.initialised = False
        self.restored = False
        self.declared = True
        self.mode = UpdateMode()
        self.optimizer = Optimizer(OptimizerSpec("sgd"))
        self.dense = DenseStore(self.optimizer, kernels)
        self.tables: dict[str, EmbeddingTable] = {}
        self.tally = Tally()
        self._lock = threading.RLock()
        self._pins: dict[int, PinnedContent] = {}
        self._snapshot: PartitionSnapshot | None = None

    @property
    def nbytes(self) -> int:
        """Memory of all parameters, slots, ids and pins."""
        pins = list(self._pins.values())
        # A pin may be of tables that others have taken the place of.
        tables = {id(one): one for one in [*(t for pin in pins for t in pin.tables.values()), *self.tables.values()]}
        pinned = sum(value.values.nbytes for pin in pins for value in pin.dense)
        return self.dense.nbytes + pinned + sum(table.nbytes for table in tables.values())

    @property
    def rows(self) -> int:
        """Number of embedding rows."""
        return sum(table.rows for table in list(self.tables.values()))

    def push_model(
        self,
        dense: Sequence[DenseInit],
        tables: Sequence[TableSpec],
        optimizer: OptimizerSpec,
        mode: UpdateMode,
        *,
        guest: bool = False,
    ) -> bool:
        """Initialises the partition, unless it is; after a restore takes optimizer and mode from the first caller.

        Args:
            dense: what is held here of dense parameters.
            tables: the embedding tables.
            optimizer: the optimizer.
            mode: how updates are made.
            guest: whether the caller is no worker of the job: what a job has restored is not told by guests.

        Returns:
            Whether this call initialised it.

        Raises:
            InvalidInputError: the model cannot be held.
            ConflictError: a restored checkpoint is of another model.
        """
        made = Optimizer(optimizer)
        check_specs((part.spec, part.start, part.stop) for part in dense)
        _check_tables(tables)
        made.check_groups([part.spec for part in dense], tables)
        if mode.clipping.needs_whole and self.num_ps > 1:
            raise InvalidInputError(
                f"gradients cannot be clipped by their norm over {self.num_ps} parameter servers, each of which has "
                "a part of them",
                fix="use one parameter server, or clip by value",
            )
        with self._lock:
            if self.initialised and (guest or not self.restored):
                return False
            if self.restored:
                self._adopt(dense, tables, made, mode)
                return False
            missing = [part.spec.name for part in dense if part.values is None]
            if missing:
                raise ConflictError(
                    f"the parameter server is not initialised and {missing[0]!r} comes without values",
                    fix="push the values",
                )
            self.optimizer, self.mode = made, mode
            self.dense = DenseStore(made, self.kernels)
            for part in dense:
                assert part.values is not None
                self.dense.add(part.spec, part.start, part.stop, part.values, self.version)
            self.tables = {spec.name: EmbeddingTable(spec, made, self.kernels) for spec in tables}
            self._set_policies(self.tables)
            self.initialised = True
            return True

    def add_tables(self, tables: Sequence[TableSpec]) -> None:
        """Adds tables to a model; those that are there are left as they are.

        Raises:
            InvalidInputError: one cannot be held.
            ConflictError: one is there with another dimension or initialiser.
        """
        _check_tables(tables)
        with self._lock:
            new = {spec.name: spec for spec in tables if spec.name not in self.tables}
            for spec in tables:
                if spec.name not in new and self.tables[spec.name].spec != spec:
                    raise other_model(f"table {spec.name!r}", spec, self.tables[spec.name].spec)
            made = {name: EmbeddingTable(spec, self.optimizer, self.kernels) for name, spec in new.items()}
            self._set_policies(made)
            self.tables = {**self.tables, **made}

    def require_initialised(self) -> None:
        """Refuses while there is no model.

        Raises:
            ConflictError: there is none.
        """
        if not self.initialised:
            raise ConflictError("the parameter server has no model yet", fix="push the model first")

    def table(self, name: str) -> EmbeddingTable:
        """A table.

        Raises:
            InvalidInputError: there is none of that name.
        """
        table = self.tables.get(name)
        if table is None:
            raise InvalidInputError(
                f"there is no embedding table {name!r}", fix=f"declare it first; there are {sorted(self.tables)}"
            )
        return table

    def apply(self, members: Sequence[Changes], learning_rates: Sequence[float] = ()) -> int:
        """Makes one update of the mean of the members' gradients, and of what they make of state.

        Args:
            members: checked changes; more than one in synchronous mode.
            learning_rates: of each of the optimizer's groups; none for its own.

        Returns:
            The version after the update.
        """
        with self._lock:
            step = self.version + 1
            scale = 1.0 / len(members)
            changes = clip(merge(members, self.kernels), self.mode.clipping, scale)
            # Only asynchronous pushes, which come alone, are of several minibatches.
            for name, (ids, _) in changes.rows.items():
                self.tables[name].require(ids)
            self.iterations += 1
            numbers = UpdateNumbers(self.optimizer, self.iterations, learning_rates, scale, members[0].steps)
            self.dense.apply(changes.dense, numbers, step, self._delays(changes))
            self.dense.change_state(changes.state, step)
            for name, (ids, grads) in changes.rows.items():
                table, before = self.tables[name], changes.pulled_rows.get(name)
                delay = None if before is None else self._delay(before, table.spec)
                table.steps += 1
                table.update(ids, grads, numbers.of(table.spec, table.steps), step, delay)
            for member in members:
                self.tally.add(member.task, member.records)
            self.version = step
            return step

    def lock(self) -> threading.RLock:
        """The lock of updates: whoever holds it sees the parameters of one version."""
        return self._lock

    def pin(self, number: int, version: int | None = None) -> int:
        """Keeps the present parameters readable; the same pin again changes nothing. Returns their version.

        Args:
            number: of the pin.
            version: what theirs must be; None for any.

        Raises:
            InvalidInputError: the number is not positive.
            ConflictError: there is no model, or it is at another version.
        """
        if number <= 0:
            raise InvalidInputError(f"a pin cannot have the number {number}", fix="use a positive number")
        with self._lock:
            self.require_initialised()
            if number not in self._pins:
                self._require_version(version)
                pin = PinnedContent(number, self.version, self.dense.read(-1), dict(self.tables))
                try:
                    for table in pin.tables.values():
                        table.pin(number)
                except BaseException:
                    pin.end()
                    raise
                self._pins[number] = pin
            return self._pins[number].version

    def pinned(self, number: int) -> PinnedContent:
        """The pinned partition.

        Raises:
            NotFoundError: there is no such pin.
        """
        pin = self._pins.get(number)
        if pin is None:
            raise no_pin(number)
        return pin

    def unpin(self, number: int) -> None:
        """Forgets a pin; an unknown one is ignored."""
        with self._lock:
            pin = self._pins.pop(number, None)
            if pin is not None:
                pin.end()

    def snapshot(self, version: int | None = None) -> PartitionSnapshot:
        """Cuts the partition for a checkpoint; updates go on while it is read. Release it in the end.

        Args:
            version: what the partition's must be; None for any.

        Raises:
            ConflictError: there is no model, it is at another version, or another snapshot is being read.
        """
        with self._lock:
            self.require_initialised()
            self._require_version(version)
            if self._snapshot is not None:
                raise ConflictError("a checkpoint is being written already", fix="wait until it is done")
            taken = PartitionSnapshot(
                version=self.version,
                iterations=self.iterations,
                optimizer=self.optimizer,
                mode=self.mode,
                declared=self.declared,
                tally=self.tally.copy(),
                dense=self.dense.read(-1, with_slots=True),
                tables=list(self.tables.values()),
                table_steps=[table.steps for table in self.tables.values()],
                pin=_SNAPSHOT,
            )
            try:
                for table in taken.tables:
                    table.pin(taken.pin, with_slots=True)
            except BaseException:
                taken.unpin()
                raise
            self._snapshot = taken
            return taken

    def release(self, snapshot: PartitionSnapshot) -> None:
        """Ends a snapshot; one of what the partition held before it became another ends nothing."""
        with self._lock:
            if self._snapshot is snapshot:
                self._snapshot = None
                snapshot.unpin()

    def become(self, other: Partition) -> None:
        """Takes the content of a partition that was restored beside this one, under a new generation."""
        with self._lock:
            self.optimizer, self.mode, self.version = other.optimizer, other.mode, other.version
            self.dense, self.tables = other.dense, other.tables
            self.iterations = other.iterations
            self.tally, self.declared = other.tally, other.declared
            self._pins, self._snapshot = {}, None
            self._set_policies(self.tables)
            self.initialised = self.restored = True
            self.generation = secrets.token_hex(8)

    def _delays(self, changes: Changes) -> dict[str, Delay]:
        specs = {spec.name: spec for spec in self.dense.specs} if changes.pulled_dense else {}
        return {name: self._delay(pulled, specs[name]) for name, pulled in changes.pulled_dense.items()}

    def _delay(self, pulled: NDArray[Any], spec: DenseSpec | TableSpec) -> Delay:
        # Uphill, the loss is bent the other way: the gradient falls as the parameters go on.
        return Delay(pulled, self.mode.delay_compensation * self.optimizer.direction(spec.group))

    def _require_version(self, version: int | None) -> None:
        if version is not None and version != self.version:
            raise ConflictError(
                f"the parameter server is at version {self.version}, not {version}",
                fix="hold the rounds and bring all parameter servers to one version first",
            )

    def _adopt(
        self, dense: Sequence[DenseInit], tables: Sequence[TableSpec], optimizer: Optimizer, mode: UpdateMode
    ) -> None:
        wanted = {part.spec.name: (part.spec.shape, part.start, part.stop) for part in dense}
        types = {part.spec.name: part.spec.dtype for part in dense}
        present = {spec.name: spec.shape for spec in self.dense.specs}
        for name, (shape, start, stop) in wanted.items():
            part = self.dense.part(name)
            if part is None or (part.spec.shape, part.start, part.stop) != (shape, start, stop):
                raise other_model(f"dense parameter {name!r}", shape, present.get(name))
            if not np.can_cast(part.spec.dtype, types[name], "same_kind"):
                raise other_model(f"dense parameter {name!r}", types[name], part.spec.dtype)
        for name in present.keys() - wanted.keys():
            raise other_model(f"dense parameter {name!r}", None, present[name])
        for spec in tables:
            there = self.tables[spec.name].dim if spec.name in self.tables else None
            if there != spec.dim:
                raise other_model(f"embedding table {spec.name!r}", spec.dim, there)
        declared = {spec.name: spec for spec in tables}
        for name, table in self.tables.items():
            if name not in declared:
                raise other_model(f"embedding table {name!r}", None, table.dim)
            limit, outside = declared[name].input_dim, table.id_outside(declared[name].input_dim)
            if outside is not None:
                takes = f"takes ids from 0 to {(limit or 0) - 1}"
                raise other_model(f"embedding table {name!r}", takes, f"with the id {outside}")
        self.dense.declare_anew(part.spec for part in dense)
        for name, table in self.tables.items():
            table.declare_anew(declared[name], optimizer)
        changed = mode.rows != self.mode.rows
        self.mode = mode
        if optimizer.spec != self.optimizer.spec:
            self._replace_optimizer(optimizer)
        elif changed:
            self._set_policies(self.tables)
        self.dense.reform()
        self.restored, self.declared = False, True

    def _set_policies(self, tables: Mapping[str, EmbeddingTable]) -> None:
        rows = self.mode.rows
        share = replace(rows, max_rows=-(-rows.max_rows // self.num_ps))
        for table in tables.values():
            table.set_policy(share, self.version)

    def _replace_optimizer(self, optimizer: Optimizer) -> None:
        same = list(optimizer.slots) == list(self.optimizer.slots)
        tables = {}
        for name, table in self.tables.items():
            tables[name] = table.with_optimizer(optimizer, keep_slots=same)
        self.dense.replace_optimizer(optimizer, self.kernels)
        self._set_policies(tables)
        self.tables, self.optimizer = tables, optimizer
        if not same:
            self.iterations = 0


@dataclass(frozen=True, slots=True)
class PinnedContent:
    """A partition as it was when it was pinned, whatever it has become since.

    Attributes:
        number: of the pin.
        version: updates applied.
        dense: copies.
        tables: by name; they were there then, and read their rows as of the pin. Others may be in their place now.
    """

    number: int
    version: int
    dense: Sequence[DenseValue]
    tables: Mapping[str, EmbeddingTable]

    def table(self, name: str) -> EmbeddingTable:
        """A table.

        Raises:
            NotFoundError: there was none of that name.
        """
        table = self.tables.get(name)
        if table is None:
            raise NotFoundError(
                f"at the pin {self.number} there was no embedding table {name!r}",
                fix=f"ask for one of {sorted(self.tables)}",
            )
        return table

    def end(self) -> None:
        """Lets the tables forget it."""
        for table in self.tables.values():
            table.unpin(self.number)


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """A partition at a cut.

    Attributes:
        version: updates applied.
        iterations: how many of them the optimizer has made.
        optimizer: gives specification and slot names.
        mode: how updates are made.
        declared: whether these two are the job's that saves it.
        tally: how many records of each task it contains.
        dense: copies with slots.
        tables: read them with ``pinned_rows`` and ``pinned_blocks``.
        table_steps: how many updates each had.
        pin: the number to read them under.
    """

    version: int
    iterations: int
    optimizer: Optimizer
    mode: UpdateMode
    declared: bool
    tally: Tally
    dense: Sequence[DenseValue]
    tables: Sequence[EmbeddingTable]
    table_steps: Sequence[int]
    pin: int

    def unpin(self) -> None:
        """Lets the tables forget it."""
        for table in self.tables:
            table.unpin(self.pin)


def _check_tables(tables: Sequence[TableSpec]) -> None:
    seen: set[str] = set()
    for spec in tables:
        if spec.name in seen:
            raise InvalidInputError(f"the table {spec.name!r} comes twice", fix="declare each table once")
        if not 0 < spec.dim <= _MAX_DIM:
            raise InvalidInputError(
                f"the table {spec.name!r} has the dimension {spec.dim}", fix=f"use 1 to {_MAX_DIM:,}"
            )
        seen.add(spec.name)


def other_model(what: str, wanted: object, present: object) -> ConflictError:
    """Says how a checkpoint's model differs; None for what one of the two does not have."""
    if present is None:
        differs = f"it has no {what}, which the model has"
    elif wanted is None:
        differs = f"it has {what}, which the model does not have"
    else:
        differs = f"{what} is {present} there and {wanted} in the model"
    return ConflictError(
        f"the restored checkpoint is of another model: {differs}",
        fix="restore a checkpoint of this model, or start without one",
    )
