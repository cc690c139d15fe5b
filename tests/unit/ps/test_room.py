"""The room of tables, pins and snapshots: taken as it is needed, never overrun, and its lack is told and passes."""

from __future__ import annotations

import errno
import mmap
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from elasticdl_core.errors import ElasticDLError
from elasticdl_core.model import DenseSpec, InitializerSpec, OptimizerSpec, RowPolicy, TableSpec, UpdateMode
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.optimizers import Optimizer
from elasticdl_ps.store import arena as arenas
from elasticdl_ps.store import table as tables
from elasticdl_ps.store.arena import Arena
from elasticdl_ps.store.merging import Changes
from elasticdl_ps.store.partition import DenseInit, Partition
from elasticdl_ps.store.table import EmbeddingTable

pytestmark = pytest.mark.unit
KERNELS = load_kernels()
ADAM = OptimizerSpec("adam", {"learning_rate": 0.1})
SGD = OptimizerSpec("sgd", {"learning_rate": 1.0})
NO_POLICY = RowPolicy()


def have_memory(monkeypatch: pytest.MonkeyPatch, total: int) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=total))


def make_partition(
    number: int, optimizer: OptimizerSpec = SGD, dim: int = 2, rows: RowPolicy = NO_POLICY
) -> Partition:
    partition = Partition(KERNELS)
    specs = [TableSpec(f"t{i}", dim, InitializerSpec("ones")) for i in range(number)]
    partition.push_model([], specs, optimizer, UpdateMode(rows=rows))
    return partition


def step(partition: Partition, ids: Any, dim: int = 2) -> None:
    grads = np.ones((len(ids), dim), np.float32)
    partition.apply([Changes(rows={name: (np.asarray(ids, np.int64), grads) for name in partition.tables})])


def read(table: EmbeddingTable, ids: Any) -> Any:
    out = np.empty((len(ids), table.dim), np.float32)
    table.read(np.asarray(ids, np.int64), out)
    return out


def read_pinned(table: EmbeddingTable, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    out = np.empty((len(ids), table.dim), np.float32)
    table.read_pinned(1, ids, out)
    return out


def pinned(table: EmbeddingTable, pin: int = -1) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for ids, records in table.pinned_blocks(pin):
        assert not found.keys() & ids.tolist()
        found |= dict(zip(ids.tolist(), records.tolist(), strict=True))
    return found


@pytest.mark.parametrize("looked_at", [False, True])
def test_arenas_grow_at_their_bound_and_keep_what_they_hold(monkeypatch: pytest.MonkeyPatch, looked_at: bool) -> None:
    monkeypatch.setattr(arenas, "_FIRST_BYTES", mmap.PAGESIZE)
    monkeypatch.setattr(arenas, "_GROWN_BYTES", 2 * mmap.PAGESIZE)
    arena, views, written = Arena(4, np.float32, 1 << 30), [], 0
    for _ in range(4):
        bound = arena.room
        for rows in (bound - 1, bound, bound + 1):
            before = arena.room
            arena.require(rows)
            assert (arena.room > before) == (rows > before)
            arena.array[written:rows] = np.arange(written, rows)[:, None]
            written = rows
        if looked_at:
            views.append(arena.array[:1])  # as the frame of an error might
        np.testing.assert_array_equal(arena.array[:written, 3], np.arange(written))
        assert not arena.array[written:].any()
    for view in views:
        assert view[0, 0] == 0


@pytest.mark.parametrize("width", [1, 3, 1 << 20])
def test_an_arena_ends_at_the_memory_of_the_machine(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    have_memory(monkeypatch, 12 * width * 1000)
    arena = Arena(width, np.float32)
    bound = 3000
    for rows in (bound - 1, bound):
        arena.require(rows)
        assert rows <= arena.room <= bound
    with pytest.raises(ElasticDLError, match=r"no room beyond 3,000 rows"):
        arena.require(bound + 1)
    assert arena.array.shape == (arena.room, width)


def test_many_tables_train_and_are_saved_on_a_machine_of_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    have_memory(monkeypatch, 4 << 40)
    before = psutil.Process().memory_info().vms
    partition = make_partition(100, ADAM)
    step(partition, [1, 2])
    partition.pin(1)
    snapshot = partition.snapshot()
    step(partition, [2, 3])
    assert sorted(pinned(snapshot.tables[99])) == [1, 2]
    assert psutil.Process().memory_info().vms - before < 1 << 34
    partition.release(snapshot)


@pytest.mark.parametrize("calls", [0, 1, 4])
def test_a_snapshot_or_pin_that_fails_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    partition = make_partition(3)
    step(partition, [1, 2])
    left, real = [calls], mmap.mmap

    def scarce(*args: Any, **options: Any) -> mmap.mmap:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return real(*args, **options)

    size = partition.nbytes
    with monkeypatch.context() as patch:
        patch.setattr(mmap, "mmap", scarce)
        for _ in range(2):
            left[0] = calls
            with pytest.raises(ElasticDLError, match="address space"):
                partition.snapshot()
            left[0] = calls
            with pytest.raises(ElasticDLError, match="address space"):
                partition.pin(5)
    assert partition.nbytes == size
    partition.pin(5)
    first = partition.snapshot()
    step(partition, [1, 7])
    for table in first.tables:
        assert pinned(table) == {1: [0, 0], 2: [0, 0]}
    partition.release(first)
    second = partition.snapshot()
    assert second.version == first.version + 1
    partition.release(first)  # again, or late: not another's
    assert sorted(pinned(second.tables[0])) == [1, 2, 7]


def test_a_snapshot_of_what_was_before_a_restore_does_not_end_the_next() -> None:
    partition, other = make_partition(1), make_partition(1)
    old = partition.snapshot()
    partition.become(other)
    new = partition.snapshot()
    partition.release(old)
    assert pinned(new.tables[0]) == {}
    with pytest.raises(ElasticDLError, match="already"):
        partition.snapshot()


@pytest.mark.parametrize("policy", [NO_POLICY, RowPolicy(max_rows=100_000)])
def test_what_a_cut_keeps_grows_with_what_changes(monkeypatch: pytest.MonkeyPatch, policy: RowPolicy) -> None:
    monkeypatch.setattr(arenas, "_FIRST_BYTES", mmap.PAGESIZE)
    monkeypatch.setattr(arenas, "_GROWN_BYTES", mmap.PAGESIZE)
    partition = make_partition(1, rows=policy)
    ids = np.arange(5000) * 7919
    step(partition, ids)
    snapshot = partition.snapshot()
    for at in range(0, 5000, 700):
        step(partition, np.append(ids[at : at + 700], np.arange(at, at + 50) - (1 << 40)))
    assert pinned(snapshot.tables[0]) == {i: [0, 0] for i in ids.tolist()}
    assert (read(partition.tables["t0"], ids) == -1).all()


def test_a_full_table_knows_its_ids_and_overruns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 1000
    have_memory(monkeypatch, rows * 4 * 64)
    table = EmbeddingTable(TableSpec("t", 64, InitializerSpec("ones")), Optimizer(SGD), KERNELS)
    for more in (rows - 1, rows):
        assert (read(table, np.arange(more)) == 1).all()
    for beyond in ([rows], np.arange(rows + 1)):
        with pytest.raises(ElasticDLError, match=r"no room beyond 1,000 rows"):
            read(table, beyond)
    assert table.rows == rows
    table.update(np.arange(rows), np.ones((rows, 64), np.float32), Optimizer(SGD).numbers(1))
    assert not read(table, np.arange(rows)).any()
    table.pin(1)
    table.update(np.arange(rows), np.ones((rows, 64), np.float32), Optimizer(SGD).numbers(2))
    assert pinned(table, 1) == {i: [0.0] * 64 for i in range(rows)}


@pytest.mark.parametrize(("dim", "block"), [(1, 1 << 15), (1024, 341), (4096, 85), (1 << 16, 5)])
def test_blocks_are_of_a_bounded_number_of_bytes(dim: int, block: int) -> None:
    partition = make_partition(1, ADAM, dim)
    table = partition.tables["t0"]
    assert table._block == block
    for rows in (block - 1, block, block + 1):
        read(table, np.arange(rows))
        snapshot = partition.snapshot()
        step(partition, np.arange(0, rows, 2), dim)
        sizes = [records.nbytes for _, records in table.pinned_blocks(snapshot.pin)]
        assert sum(sizes) == rows * 12 * dim
        assert max(sizes) <= tables._BLOCK_BYTES
        partition.release(snapshot)


@pytest.mark.parametrize("version", [(1 << 32) - 3, (1 << 32) - 1, 1 << 32, 1 << 40])
def test_rows_come_and_go_at_any_version(version: int) -> None:
    partition = make_partition(1)
    partition.version = version
    partition.tables["t0"].set_policy(RowPolicy(eviction_updates=4, max_rows=6), version)
    for turn in range(12):
        step(partition, [0, 100 + turn])
    # Id 0 is seen by each update, and the others by one each.
    rows = {i for i in range(200) if partition.tables["t0"]._map.find(np.array([i]))[0] >= 0}
    assert 0 in rows and len(rows) <= 6 and rows - {0} <= {107, 108, 109, 110, 111}


def test_an_update_that_has_no_room_is_refused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    have_memory(monkeypatch, 100 * 8)
    partition = Partition(KERNELS)
    dense = DenseInit(DenseSpec("w", (2,)), 0, 2, np.zeros(2, np.float32))
    partition.push_model([dense], [TableSpec("t", 2, InitializerSpec("zeros"))], SGD, UpdateMode())

    def push(ids: Any) -> None:
        change = {"t": (np.asarray(ids, np.int64), np.ones((len(ids), 2), np.float32))}
        partition.apply([Changes({"w": np.ones(2, np.float32)}, change, task=(0, 1), records=3)])

    push(np.arange(99))
    with pytest.raises(ElasticDLError, match="no room beyond 100 rows"):
        push([5, 99, 100])
    assert (partition.version, partition.rows, partition.tally.records) == (1, 99, 3)
    assert partition.dense.read(-1)[0].values.tolist() == [-1, -1]
    push([5, 99])
    assert read(partition.tables["t"], [5, 6, 99]).tolist() == [[-2, -2], [-1, -1], [-1, -1]]


POLICIES = (NO_POLICY, RowPolicy(admission=2), RowPolicy(max_rows=2400), RowPolicy(eviction_updates=2))


@pytest.mark.parametrize("policy", POLICIES, ids=["all", "admission", "most", "eviction"])
def test_an_update_is_whole_or_refused_whichever_growth_fails(
    monkeypatch: pytest.MonkeyPatch, policy: RowPolicy
) -> None:
    """Of rows, map, book, pin and cut; what a pin and a cut keep is right before and after."""
    monkeypatch.setattr(arenas, "_FIRST_BYTES", mmap.PAGESIZE)
    monkeypatch.setattr(arenas, "_GROWN_BYTES", mmap.PAGESIZE)
    grow, left = Arena._grow, [0]

    def scarce(self: Arena, least: int, wanted: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise ElasticDLError("no memory", fix="")
        grow(self, least, wanted)

    old, refused, failing = np.arange(2000) * 7919, 0, 0
    while True:
        partition = make_partition(1, rows=policy)
        for _ in range(2):
            step(partition, old)
        partition.pin(1)
        cut = partition.snapshot()
        kept = read_pinned(partition.tables["t0"], old)
        fresh = np.append(old[:1800], np.arange(1, 3000))
        before = (partition.version, partition.rows, partition.tables["t0"].steps)
        with monkeypatch.context() as patch:
            patch.setattr(Arena, "_grow", scarce)
            left[0] = failing
            for _ in range(2):
                try:
                    step(partition, fresh)
                except ElasticDLError:
                    assert (partition.version, partition.rows, partition.tables["t0"].steps) == before
                    assert (read_pinned(partition.tables["t0"], old) == kept).all()
                before = (partition.version, partition.rows, partition.tables["t0"].steps)
        if left[0] >= 0:
            break
        refused += 1
        failing += 1
        step(partition, fresh)
        assert (read_pinned(partition.tables["t0"], old) == kept).all()
        assert pinned(cut.tables[0]) == dict(zip(old.tolist(), kept.tolist(), strict=True))
    assert refused >= 3


def test_where_address_space_is_short_an_arena_takes_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 40 * mmap.PAGESIZE

    class Scarce(mmap.mmap):
        def __new__(cls, fileno: int, length: int, **options: Any) -> Scarce:
            cls.check(length)
            return super().__new__(cls, fileno, length, **options)

        def resize(self, length: int) -> None:
            self.check(length)
            super().resize(length)

        @staticmethod
        def check(length: int) -> None:
            if length > most:
                raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", Scarce)
    row = 16 * 4
    bound = most // row
    arena = Arena(16, np.float32, 1 << 40)
    written = 0
    for rows in (1, bound // 4, bound - 1, bound):
        arena.require(rows)
        arena.array[written:rows] = np.arange(written, rows)[:, None]
        written = rows
    for _ in range(2):
        with pytest.raises(ElasticDLError, match="address space"):
            arena.require(bound + 1)
    np.testing.assert_array_equal(arena.array[:bound, 7], np.arange(bound))
