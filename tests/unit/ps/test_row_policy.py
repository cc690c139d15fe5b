"""Which ids have rows: admission after n sightings, eviction by age and number, pins and snapshots meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import InitializerSpec, OptimizerSpec, RowPolicy, TableSpec, UpdateMode
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.store.id_map import IdMap
from elasticdl_ps.store.merging import Changes
from elasticdl_ps.store.partition import Partition
from elasticdl_ps.store.row_lifecycle import RowLifecycle
from elasticdl_runtime.convert.parameters import mode_from_json, mode_to_json

pytestmark = pytest.mark.unit

COMPILED, REFERENCE = load_kernels("numba"), load_kernels("numpy")
BOTH = pytest.mark.parametrize("kernels", [COMPILED, REFERENCE], ids=["numba", "numpy"])
FIRST = 1.0
ALL = list(range(-15, 16))
IDS = st.lists(st.sampled_from(ALL), unique=True, max_size=12)


def make(policy: RowPolicy, kernels: Any = COMPILED, *, optimizer: str = "sgd", num_ps: int = 1) -> Partition:
    partition = Partition(kernels, num_ps)
    tables = [TableSpec("t", 2, InitializerSpec("ones"))]
    partition.push_model([], tables, OptimizerSpec(optimizer, {"learning_rate": 1.0}), UpdateMode(rows=policy))
    return partition


def step(partition: Partition, ids: Any, amount: float = 1.0) -> None:
    array = np.array(ids, np.int64)
    partition.apply([Changes(rows={"t": (array, np.full((len(ids), 2), amount, np.float32))})])


def read(partition: Partition, ids: Any, pin: int = 0) -> list[float]:
    out = np.empty((len(ids), 2), np.float32)
    table = partition.tables["t"]
    array = np.array(ids, np.int64)
    table.read_pinned(pin, array, out) if pin else table.read(array, out)
    assert (out[:, 0] == out[:, 1]).all()
    values: list[float] = out[:, 0].tolist()
    return values


def snapshot_of(partition: Partition) -> dict[int, float]:
    snapshot = partition.snapshot()
    found: dict[int, float] = {}
    for ids, records in snapshot.tables[0].pinned_blocks(snapshot.pin):
        assert not found.keys() & set(ids.tolist())
        found |= dict(zip(ids.tolist(), records[:, 0].tolist(), strict=True))
    assert len(found) == snapshot.tables[0].pinned_rows(snapshot.pin)
    partition.release(snapshot)
    return found


def lives(partition: Partition) -> RowLifecycle:
    book = partition.tables["t"].lives
    assert book is not None
    return book


@BOTH
def test_a_row_comes_into_being_at_its_nth_sighting(kernels: Any) -> None:
    partition = make(RowPolicy(admission=3), kernels)
    for _ in range(2):
        step(partition, [4, 5])
        assert read(partition, [4, 5, 6]) == [FIRST] * 3
        assert partition.rows == 0
    step(partition, [4])
    assert read(partition, [4, 5]) == [FIRST - 1, FIRST]
    assert (partition.rows, lives(partition).admitted, lives(partition).refused) == (1, 1, 4)
    step(partition, [4])
    assert read(partition, [4]) == [FIRST - 2]


@BOTH
def test_reads_make_no_rows_under_a_policy(kernels: Any) -> None:
    partition = make(RowPolicy(max_rows=100), kernels)
    assert read(partition, ALL) == [FIRST] * 31
    assert partition.rows == 0
    step(partition, [7])
    assert read(partition, ALL) == [FIRST - (i == 7) for i in ALL]
    assert partition.rows == 1


@BOTH
def test_rows_leave_by_age_and_begin_anew(kernels: Any) -> None:
    partition = make(RowPolicy(eviction_updates=4), kernels)
    step(partition, [1, 2])
    for _ in range(3):
        step(partition, [2])
    assert partition.rows == 2
    step(partition, [2])
    assert partition.rows == 1
    assert read(partition, [1, 2]) == [FIRST, FIRST - 5]
    step(partition, [1])
    assert read(partition, [1]) == [FIRST - 1]
    assert lives(partition).evicted == 1


@BOTH
def test_the_rows_seen_longest_ago_leave_beyond_the_limit(kernels: Any) -> None:
    partition = make(RowPolicy(max_rows=10), kernels, num_ps=2)
    for i in range(5):
        step(partition, [i])
    step(partition, [0])
    step(partition, [8, 9])
    assert read(partition, [0, 1, 2, 3, 4, 8, 9]) == [-1, 1, 1, 0, 0, 0, 0]
    assert partition.rows == 5
    step(partition, list(range(20, 40)))
    assert partition.rows == 5
    table = partition.tables["t"]
    for start in range(0, 2000, 20):
        step(partition, list(range(start, start + 20)))
    assert table._map.count <= 30, "freed rows are used again"


def test_freed_rows_start_with_fresh_values_and_slots() -> None:
    partition = make(RowPolicy(max_rows=1), optimizer="adagrad")
    step(partition, [1])
    first = read(partition, [1])
    step(partition, [2])
    assert read(partition, [1]) == [FIRST]
    assert read(partition, [2]) == first
    step(partition, [1])
    assert read(partition, [1]) == first


def test_a_pin_still_shows_rows_that_have_left() -> None:
    partition = make(RowPolicy(max_rows=3))
    step(partition, [1, 2, 3])
    partition.pin(5)
    step(partition, [4, 5, 6])
    step(partition, [1], 7)
    assert read(partition, [1, 2, 3, 4, 5, 6], pin=5) == [0, 0, 0, 1, 1, 1]
    partition.unpin(5)
    assert read(partition, [1, 2, 3]) == [-6, 1, 1]


def test_a_snapshot_holds_the_rows_that_lived_whenever_they_leave() -> None:
    """Blocks are 32,768 rows: some leave before, some after they are written."""
    size = 100_000
    partition = make(RowPolicy(max_rows=size))
    step(partition, np.arange(size))
    snapshot = partition.snapshot()
    found: dict[int, float] = {}
    for turn, (ids, records) in enumerate(snapshot.tables[0].pinned_blocks(snapshot.pin)):
        assert not found.keys() & set(ids.tolist())
        found |= dict(zip(ids.tolist(), records[:, 0].tolist(), strict=True))
        step(partition, np.arange(size * (turn + 1), size * (turn + 1) + 30_000), 5)
        step(partition, np.arange(90_000, 90_050), 5)
    assert found == dict.fromkeys(range(size), 0.0)
    partition.release(snapshot)
    assert partition.rows <= size
    assert len(snapshot_of(partition)) == partition.rows


def test_both_kernels_keep_the_same_rows() -> None:
    partitions = [make(RowPolicy(2, 20, 300), kernels) for kernels in (COMPILED, REFERENCE)]
    random = np.random.default_rng(0)
    for _ in range(120):
        ids = np.unique(random.zipf(1.2, 200) % 5000)
        for partition in partitions:
            step(partition, ids)
    first, second = (snapshot_of(partition) for partition in partitions)
    assert first == second
    assert [lives(p).evicted for p in partitions] == [lives(partitions[0]).evicted] * 2
    assert lives(partitions[0]).evicted > 100


@settings(max_examples=40, deadline=None)
@given(batches=st.lists(st.lists(st.integers(0, 2**62), unique=True, max_size=40), max_size=6))
def test_sketches_are_equal_and_never_too_low(batches: list[list[int]]) -> None:
    sketches = [np.zeros((4, 64), np.uint8) for _ in range(2)]
    true: dict[int, int] = {}
    for batch in batches:
        ids = np.array(batch, np.int64)
        outs = [np.empty(len(ids), np.uint8) for _ in range(2)]
        for kernels, sketch, out in zip((COMPILED, REFERENCE), sketches, outs, strict=True):
            kernels.count_sightings(sketch, ids, out)
        np.testing.assert_array_equal(outs[0], outs[1])
        np.testing.assert_array_equal(sketches[0], sketches[1])
        for i, count in zip(batch, outs[0].tolist(), strict=True):
            true[i] = true.get(i, 0) + 1
            assert count >= true[i]


@BOTH
def test_counts_stop_at_255_and_fade(kernels: Any) -> None:
    sketch, ids, out = np.zeros((4, 64), np.uint8), np.array([3]), np.empty(1, np.uint8)
    for _ in range(300):
        kernels.count_sightings(sketch, ids, out)
    assert out[0] == 255
    book = RowLifecycle(RowPolicy(admission=3), kernels, IdMap(kernels), 0, counters=64)
    assert not book.admits(ids)[0]
    for at in range(100, 132):
        book.admits(np.array([at]))
    # One sighting is forgotten by now, so that the next is the first again.
    assert not book.admits(ids)[0]
    assert not book.admits(ids)[0]
    assert book.admits(ids)[0]


@BOTH
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_maps_reuse_the_rows_of_removed_ids(kernels: Any, data: st.DataObject) -> None:
    id_map, model = IdMap(kernels), dict[int, int]()
    for _ in range(data.draw(st.integers(1, 6))):
        fresh = [
            i for i in data.draw(st.lists(st.integers(-1500, 1500), unique=True, max_size=900)) if i not in model
        ]
        rows = id_map.insert(np.array(fresh, np.int64))
        model |= dict(zip(fresh, rows.tolist(), strict=True))
        gone = data.draw(st.lists(st.sampled_from(sorted(model)), unique=True)) if model else []
        id_map.remove(np.array([model.pop(i) for i in gone], np.int64))
        found = id_map.find(np.arange(-1500, 1501))
        assert {i: row for i, row in enumerate(found.tolist(), -1500) if row >= 0} == model
        assert id_map.live == len(model)
        assert len(set(model.values())) == len(model)


@BOTH
def test_a_map_under_steady_change_stays_small(kernels: Any) -> None:
    id_map = IdMap(kernels)
    rows = id_map.insert(np.arange(500))
    for turn in range(1, 200):
        id_map.remove(rows)
        rows = id_map.insert(np.arange(turn * 500, turn * 500 + 500))
    assert id_map.count == 500
    assert id_map.nbytes <= 1 << 15
    np.testing.assert_array_equal(id_map.find(np.arange(199 * 500, 199 * 500 + 500)), rows)
    assert (id_map.find(np.arange(1000)) == -1).all()


def test_another_policy_begins_with_the_rows_that_there_are() -> None:
    partition = make(RowPolicy(max_rows=4))
    step(partition, [1, 2, 3, 4])
    step(partition, [5])
    table = partition.tables["t"]
    table.set_policy(RowPolicy(eviction_updates=2), partition.version)
    step(partition, [5])
    assert partition.rows == 4
    step(partition, [5])
    assert snapshot_of(partition) == {5: -2.0}
    table.set_policy(RowPolicy(), partition.version)
    assert read(partition, [1, 5]) == [1, -2]
    assert snapshot_of(partition) == {1: 1.0, 5: -2.0}


@pytest.mark.parametrize("age", [1, 3, 7, 8, 15, 63, 64, 400])
def test_eviction_costs_what_updates_touch_however_large_the_table_was_once(
    age: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, updates, looked_at = 10_000, age + 200, [0]

    class Seen(np.ndarray[Any, Any]):
        """Times of sightings that count how many of them are compared."""

        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
            looked_at[0] += max(np.size(one) for one in inputs)
            plain = [one.view(np.ndarray) if isinstance(one, Seen) else one for one in inputs]
            return getattr(ufunc, method)(*plain, **options)

    partition = make(RowPolicy(eviction_updates=age), REFERENCE)
    step(partition, list(range(rows)))
    book, read_seen = lives(partition), RowLifecycle._seen.fget
    assert read_seen is not None
    monkeypatch.setattr(RowLifecycle, "_seen", property(lambda self: read_seen(self).view(Seen)))
    for _ in range(updates):
        step(partition, [1])
    assert (partition.rows, book.evicted) == (1, rows - 1)
    assert looked_at[0] <= 4 * rows + updates * rows / 8, "each update looks at an eighth of the table at most"


def test_readers_while_rows_come_and_go() -> None:
    partition = make(RowPolicy(max_rows=5000))
    stop, wrong = threading.Event(), list[Any]()

    def reader() -> None:
        random = np.random.default_rng()
        while not stop.is_set():
            out = np.empty((500, 2), np.float32)
            partition.tables["t"].read(random.integers(0, 20_000, 500), out)
            if (out[:, 0] != out[:, 1]).any() or (out > 1).any():
                wrong.append(out)

    threads = [threading.Thread(target=reader) for _ in range(2)]
    for thread in threads:
        thread.start()
    random = np.random.default_rng(1)
    for _ in range(150):
        step(partition, np.unique(random.integers(0, 20_000, 2000)))
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert partition.rows <= 5000


def test_policies_travel_as_json_and_are_checked() -> None:
    mode = UpdateMode(rows=RowPolicy(3, 4, 5))
    assert mode_from_json(mode_to_json(mode)) == mode
    without = '{"use_async": true, "grads_to_wait": 1, "sync_version_tolerance": 0, "lr_staleness_modulation": false}'
    assert mode_from_json(without) == UpdateMode()
    for bad in (RowPolicy(admission=0), RowPolicy(admission=256), RowPolicy(max_rows=-1)):
        with pytest.raises(InvalidInputError, match="admission"):
            mode_from_json(mode_to_json(UpdateMode(rows=bad)))


class PolicyMachine(RuleBasedStateMachine):
    """A table that admits late and evicts by age against dicts, with pins and snapshots against copies of them."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, float] = {}
        self.seen: dict[int, int] = {}
        self.sightings: dict[int, int] = {}
        self.pins: dict[int, dict[int, float]] = {}
        self.numbers = 0
        self.swept = 0

    @initialize(admission=st.integers(1, 3), age=st.sampled_from([0, 3, 7, 20]))
    def start(self, admission: int, age: int) -> None:
        self.policy = RowPolicy(admission, age, 1000)
        self.partition = make(self.policy)

    @rule(ids=IDS, amount=st.integers(-3, 3))
    def update(self, ids: list[int], amount: int) -> None:
        step(self.partition, ids, amount)
        version = self.partition.version
        for i in ids:
            if i not in self.rows:
                self.sightings[i] = self.sightings.get(i, 0) + 1
                if self.sightings[i] < self.policy.admission:
                    continue
            self.rows[i] = self.rows.get(i, FIRST) - amount
            self.seen[i] = version
        age = self.policy.eviction_updates
        if age and version > age and version - self.swept >= age // 8:
            self.swept = version
            for i in [i for i in self.rows if self.seen[i] <= version - age]:
                del self.rows[i]

    @rule()
    def pin(self) -> None:
        self.numbers += 1
        self.partition.pin(self.numbers)
        self.pins[self.numbers] = dict(self.rows)

    @precondition(lambda self: self.pins)
    @rule()
    def unpin(self) -> None:
        number = min(self.pins)
        self.partition.unpin(number)
        del self.pins[number]

    @rule()
    def snapshot(self) -> None:
        assert snapshot_of(self.partition) == self.rows

    @invariant()
    def rows_are_the_models(self) -> None:
        assert read(self.partition, ALL) == [self.rows.get(i, FIRST) for i in ALL]
        assert self.partition.rows == len(self.rows)

    @invariant()
    def pins_show_their_past(self) -> None:
        for number, past in self.pins.items():
            assert read(self.partition, ALL, pin=number) == [past.get(i, FIRST) for i in ALL]


TestPolicyMachine = PolicyMachine.TestCase
TestPolicyMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize(("max_rows", "num_ps", "share"), [(1, 2, 1), (5, 2, 3), (10, 3, 4), (4, 4, 1), (9, 3, 3)])
def test_the_share_of_a_limit_is_rounded_up(max_rows: int, num_ps: int, share: int) -> None:
    """Rounded down, the servers would hold fewer rows than were allowed, or, with a share of 0, any number."""
    partition = make(RowPolicy(max_rows=max_rows), num_ps=num_ps)
    step(partition, [*range(share)])
    assert partition.rows == share
    for _ in range(3):
        step(partition, ALL)
        assert 0 < partition.rows <= share
    assert lives(partition).policy.max_rows == share
