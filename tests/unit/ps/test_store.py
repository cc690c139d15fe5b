from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from elasticdl_core.errors import ConflictError, ElasticDLError, InvalidInputError, NotFoundError
from elasticdl_core.model import DenseKind, DenseSpec, InitializerSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.optimizers import Optimizer
from elasticdl_ps.pulls import PullRequest, read_parameters
from elasticdl_ps.store.arena import Arena
from elasticdl_ps.store.id_map import IdMap
from elasticdl_ps.store.merging import Changes, StateUpdate
from elasticdl_ps.store.partition import DenseInit, Partition
from elasticdl_ps.store.table import EmbeddingTable

pytestmark = pytest.mark.unit

KERNELS = load_kernels()
SGD = OptimizerSpec("sgd", {"learning_rate": 1.0})


def make_partition(optimizer: OptimizerSpec = SGD, mode: UpdateMode | None = None) -> Partition:
    partition = Partition(KERNELS)
    dense = [
        DenseInit(DenseSpec("w", (3,)), 0, 3, np.zeros(3, np.float32)),
        DenseInit(DenseSpec("n", (), "int64", DenseKind.STATE), 0, 1, np.array([5])),
    ]
    partition.push_model(dense, [TableSpec("t", 2, InitializerSpec("ones"))], optimizer, mode or UpdateMode())
    return partition


def read(partition: Partition, ids: Any, pin: int = 0) -> list[list[float]]:
    out = np.empty((len(ids), 2), np.float32)
    table = partition.tables["t"]
    if pin:
        table.read_pinned(pin, np.array(ids, np.int64), out)
    else:
        table.read(np.array(ids, np.int64), out)
    result: list[list[float]] = out.tolist()
    return result


def step(partition: Partition, ids: Any, amount: float = 1.0) -> int:
    array = np.array(ids, np.int64)
    change = Changes(
        {"w": np.full(3, amount, np.float32)}, {"t": (array, np.full((len(ids), 2), amount, np.float32))}
    )
    return partition.apply([change])


def test_an_id_map_grows_a_little_at_a_time_and_loses_nothing() -> None:
    ids = np.random.default_rng(0).permutation(300_000).astype(np.int64) * 7919
    id_map = IdMap(KERNELS)
    for at in range(0, len(ids), 1777):
        batch = ids[at : at + 1777]
        np.testing.assert_array_equal(id_map.find_or_insert(batch), np.arange(at, at + len(batch)))
        earlier = ids[: at + len(batch) : 997]
        np.testing.assert_array_equal(id_map.find(earlier), np.arange(0, at + len(batch), 997))
    assert id_map.count == len(ids)
    np.testing.assert_array_equal(id_map.find(ids), np.arange(len(ids)))
    assert (id_map.find(ids + 1) == -1).all()
    assert id_map.nbytes < len(ids) * 16


def test_an_id_map_takes_a_batch_far_beyond_its_size() -> None:
    id_map = IdMap(KERNELS)
    id_map.find_or_insert(np.arange(10))
    np.testing.assert_array_equal(id_map.find_or_insert(np.arange(500_000)), np.arange(500_000))


def test_a_full_table_says_so_and_stays_usable() -> None:
    id_map = IdMap(KERNELS, max_bytes=1 << 16)
    id_map.find_or_insert(np.arange(8000))
    with pytest.raises(ElasticDLError, match="no room") as caught:
        id_map.find_or_insert(np.arange(8000, 9000))
    assert caught.value.fix
    np.testing.assert_array_equal(id_map.find(np.array([7999, 8500])), [7999, -1])


def test_arenas_take_memory_as_rows_are_written() -> None:
    arena = Arena(16, np.float32, max_bytes=1 << 36)
    assert arena.max_rows == 1 << 30
    arena.require((1 << 21) + 1)
    arena.array[1 << 20] = 1
    assert arena.array[1 << 21, 0] == 0


@pytest.mark.parametrize(("dim", "optimizer"), [(8, "sgd"), (16, "sgd"), (8, "adagrad"), (64, "adam")])
def test_bytes_per_row_are_near_the_least_possible(dim: int, optimizer: str) -> None:
    made = Optimizer(OptimizerSpec(optimizer))
    table = EmbeddingTable(TableSpec("t", dim), made, KERNELS)
    out = np.empty((1000, dim), np.float32)
    for at in range(0, 200_000, 1000):
        table.read(np.arange(at, at + 1000), out)
        least = (at + 1000) * (4 * dim * (1 + len(made.slots)) + 8)
        if at > 50_000:
            assert table.nbytes <= 1.25 * least


def test_a_pin_shows_the_past_while_updates_go_on() -> None:
    partition = make_partition()
    read(partition, [1, 2])
    step(partition, [1])
    assert partition.pin(7) == 1
    for _ in range(3):
        step(partition, [1, 3])
    assert read(partition, [1, 2, 3], pin=7) == [[0, 0], [1, 1], [1, 1]]
    assert read(partition, [1, 2, 3]) == [[-3, -3], [1, 1], [-2, -2]]
    assert [v.values.tolist() for v in partition.pinned(7).dense] == [[5], [-1, -1, -1]]
    assert partition.pinned(7).version == 1
    assert partition.pin(7) == 1
    rows = partition.rows
    read(partition, [100, 200], pin=7)
    assert partition.rows == rows
    partition.unpin(7)
    with pytest.raises(NotFoundError, match="pin 7"):
        partition.pinned(7)


def test_a_pin_outlasts_an_optimizer_that_takes_the_place_of_the_present_one() -> None:
    """Its rows read as those of another table, which has none of that pin: as their first values."""
    partition, restored = make_partition(), Partition(KERNELS)
    step(partition, [1], amount=-4.0)
    restored.become(partition)
    assert restored.pin(7) == 1
    dense = [
        DenseInit(DenseSpec("w", (3,)), 0, 3, None),
        DenseInit(DenseSpec("n", (), "int64", DenseKind.STATE), 0, 1, None),
    ]
    tables = [TableSpec("t", 2, InitializerSpec("ones"))]
    adam = OptimizerSpec("adam", {"learning_rate": 1.0})
    assert not restored.push_model(dense, tables, adam, UpdateMode())
    without, pinned = restored.nbytes, restored.pinned(7)
    step(restored, [1])
    pull = PullRequest(pin=7, tables=[("t", 0)], buffers=[memoryview(np.array([1]).tobytes())])
    answer = read_parameters(restored, pull)
    assert [(run.name, run.values.tolist()) for run in answer.dense] == [("n", [5]), ("w", [4, 4, 4])]
    assert [(name, rows.tolist()) for name, rows in answer.rows] == [("t", [[5, 5]])]
    with pytest.raises(NotFoundError, match="no embedding table 'other'"):
        pinned.table("other")
    restored.unpin(7)
    assert restored.nbytes < without
    np.testing.assert_allclose(read(restored, [1]), [[4, 4]], atol=1e-4)


def test_a_pin_that_goes_while_it_is_read_is_an_error() -> None:
    partition = make_partition()
    step(partition, [1], amount=-4.0)
    partition.pin(7)
    table = partition.pinned(7).table("t")
    partition.unpin(7)
    with pytest.raises(NotFoundError, match="pin 7"):
        table.read_pinned(7, np.array([1]), np.empty((1, 2), np.float32))


def test_two_pins_are_two_pasts() -> None:
    partition = make_partition()
    partition.pin(1)
    step(partition, [4])
    partition.pin(2)
    step(partition, [4])
    assert [read(partition, [4], pin=1), read(partition, [4], pin=2), read(partition, [4])] == [
        [[1, 1]],
        [[0, 0]],
        [[-1, -1]],
    ]


def test_a_mean_of_members_is_one_update() -> None:
    partition = make_partition()
    members = [
        Changes(
            {"w": np.full(3, 2, np.float32)},
            {"t": (np.array([1, 2]), np.ones((2, 2), np.float32))},
            {"n": StateUpdate(1, np.array([4]))},
        ),
        Changes(
            {"w": np.full(3, 4, np.float32)},
            {"t": (np.array([2]), np.ones((1, 2), np.float32))},
            {"n": StateUpdate(1, np.array([2]))},
        ),
    ]
    assert partition.apply(members) == 1
    assert read(partition, [1, 2]) == [[0.5, 0.5], [0, 0]]
    values = {v.spec.name: v.values.tolist() for v in partition.dense.read(-1)}
    assert values == {"w": [-3, -3, -3], "n": [11]}
    np.testing.assert_array_equal(members[0].dense["w"], np.full(3, 2, np.float32))


def test_a_large_batch_is_applied_whole() -> None:
    partition = make_partition()
    ids = np.arange(100_000)
    partition.apply([Changes(rows={"t": (ids, np.ones((100_000, 2), np.float32))})])
    assert read(partition, [0, 32_767, 32_768, 99_999]) == [[0, 0]] * 4


def test_readers_and_a_writer_at_once() -> None:
    """Each row's columns move together, so a torn or misplaced read would show."""
    partition = make_partition()
    stop = threading.Event()
    torn: list[Any] = []

    def reader() -> None:
        random = np.random.default_rng()
        while not stop.is_set():
            out = np.empty((500, 2), np.float32)
            partition.tables["t"].read(random.integers(0, 200_000, 500), out)
            if (out[:, 0] != out[:, 1]).any() or (out > 1).any():
                torn.append(out)

    threads = [threading.Thread(target=reader) for _ in range(2)]
    for thread in threads:
        thread.start()
    random = np.random.default_rng(1)
    for _ in range(100):
        step(partition, np.unique(random.integers(0, 200_000, 2000)))
    stop.set()
    for thread in threads:
        thread.join()
    assert not torn


@pytest.mark.parametrize(
    ("spec", "start", "stop", "word"),
    [
        (DenseSpec("w", (3,)), 0, 4, "3 elements"),
        (DenseSpec("w", (3,)), 2, 1, "3 elements"),
        (DenseSpec("w", (-3,)), 0, 0, "shape"),
        (DenseSpec("w", (3,), "float64"), 0, 3, "float64"),
        (DenseSpec("w", (3,), "object", DenseKind.STATE), 0, 3, "object"),
        (DenseSpec("w", (3,), "nonsense", DenseKind.STATE), 0, 3, "nonsense"),
    ],
)
def test_dense_parameters_that_cannot_be_held_are_refused(spec: DenseSpec, start: int, stop: int, word: str) -> None:
    with pytest.raises(InvalidInputError, match=word):
        Partition(KERNELS).push_model([DenseInit(spec, start, stop, np.zeros(3))], [], SGD, UpdateMode())


def test_tables_have_up_to_65536_columns_and_one_name_each() -> None:
    partition = Partition(KERNELS)
    with pytest.raises(InvalidInputError, match="dimension 65537"):
        partition.push_model([], [TableSpec("t", (1 << 16) + 1)], SGD, UpdateMode())
    tables = [TableSpec(f"t{index}", 1) for index in range(3)]
    assert partition.push_model([], [TableSpec("t", 1 << 16), *tables], SGD, UpdateMode())
    out = np.empty((3, 1 << 16), np.float32)
    partition.tables["t"].read(np.arange(3), out)
    assert partition.rows == 3


def test_refused_models_leave_the_partition_empty() -> None:
    partition = Partition(KERNELS)
    twice = [TableSpec("t", 2), TableSpec("t", 2)]
    for tables, optimizer in [(twice, SGD), ([TableSpec("t", 0)], SGD), ([], OptimizerSpec("magic"))]:
        with pytest.raises(InvalidInputError):
            partition.push_model([], tables, optimizer, UpdateMode())
    with pytest.raises(ConflictError, match="no model"):
        partition.require_initialised()
    assert not partition.initialised
    with pytest.raises(ConflictError, match="without values"):
        partition.push_model([DenseInit(DenseSpec("w", (1,)), 0, 1, None)], [], SGD, UpdateMode())


class TableMachine(RuleBasedStateMachine):
    """A table against a dict, with pins against copies of the dict."""

    def __init__(self) -> None:
        super().__init__()
        self.partition = make_partition()
        self.model: dict[int, float] = {}
        self.pins: dict[int, dict[int, float]] = {}
        self.numbers = 0

    ids = st.lists(st.integers(0, 30), unique=True, max_size=12)

    @rule(ids=ids, amount=st.integers(-3, 3))
    def update(self, ids: list[int], amount: int) -> None:
        step(self.partition, ids, amount)
        for i in ids:
            self.model[i] = self.model.get(i, 1.0) - amount

    @rule(ids=ids)
    def look(self, ids: list[int]) -> None:
        assert read(self.partition, ids) == [[self.model.setdefault(i, 1.0)] * 2 for i in ids]

    @rule()
    def pin(self) -> None:
        self.numbers += 1
        self.partition.pin(self.numbers)
        self.pins[self.numbers] = dict(self.model)

    @precondition(lambda self: self.pins)
    @rule()
    def unpin(self) -> None:
        number = min(self.pins)
        self.partition.unpin(number)
        del self.pins[number]

    @invariant()
    def pins_show_their_past(self) -> None:
        everything = list(range(31))
        for number, past in self.pins.items():
            assert read(self.partition, everything, pin=number) == [[past.get(i, 1.0)] * 2 for i in everything]

    @invariant()
    def rows_are_counted(self) -> None:
        assert self.partition.rows == len(self.model)


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
