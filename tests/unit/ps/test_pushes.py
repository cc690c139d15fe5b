"""What a push says is checked against the partition before anything changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseKind, DenseSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_proto.v1 import ps_pb2
from elasticdl_ps import codec
from elasticdl_ps.ids import IdReader
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.pushes import DenseGradient, PushRequest, RowGradients, read_changes
from elasticdl_ps.store.partition import DenseInit, Partition
from elasticdl_runtime.convert.parameters import to_bfloat16
from elasticdl_runtime.rpc.framing import encode_frame

pytestmark = pytest.mark.unit

KERNELS = load_kernels("numpy")


def make_partition(**mode: Any) -> Partition:
    partition = Partition(KERNELS)
    dense = [
        DenseInit(DenseSpec("w", (3,)), 0, 3, np.zeros(3, np.float32)),
        DenseInit(DenseSpec("n", (), "int64", DenseKind.STATE), 0, 1, np.zeros(1, np.int64)),
        DenseInit(DenseSpec("mean", (2,), "float64", DenseKind.STATE), 0, 2, np.zeros(2)),
    ]
    tables = [TableSpec("t", 2), TableSpec("u", 1, input_dim=10)]
    partition.push_model(dense, tables, OptimizerSpec("sgd"), UpdateMode(**mode))
    return partition


PARTITION = make_partition()
IDS = np.array([3, 5])
W = np.array([1, 2, 3], np.float32)
ROWS = np.array([[1, 2], [3, 4]], np.float32)


def push(dense: Any = (), rows: Any = (), buffers: Any = (), **others: Any) -> PushRequest:
    views = [memoryview(np.ascontiguousarray(buffer).tobytes()) for buffer in buffers]
    return PushRequest("worker-0.0", 1, 0, dense=dense, rows=rows, buffers=views, **others)


@given(
    sequence=st.integers(0, 1 << 40),
    rates=st.sampled_from([(), (0.0,), (0.5, 0.25)]),
    task=st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
    generation=st.text(max_size=20),
)
def test_a_push_is_read_as_it_was_sent(sequence: int, rates: Any, task: Any, generation: str) -> None:
    message = ps_pb2.PushGradientsRequest(
        worker="worker-1.2",
        sequence=sequence,
        version=7,
        learning_rates=rates,
        generation=generation,
        records=5,
        steps=3,
        task=task and ps_pb2.TaskName(round=task[0], index=task[1]),
        dense=[ps_pb2.Dense(name="w", start=1, stop=3, buffer=0), ps_pb2.Dense(name="n", buffer=1, keep=0, pulled=0)],
        rows=[ps_pb2.Rows(table="t", ids=1, values=2, dtype="bfloat16", pulled=0)],
    )
    found = codec.read_push(encode_frame(message.SerializeToString(), [np.ones(2, np.int8)]))
    assert (found.worker, found.sequence, found.version) == ("worker-1.2", sequence, 7)
    assert (found.learning_rates, found.generation, found.task) == (rates, generation, task)
    assert (found.records, found.steps) == (5, 3)
    assert found.dense == [DenseGradient("w", 1, 3, 0), DenseGradient("n", 0, 0, 1, 0, 0)]
    assert found.rows == [RowGradients("t", 1, 2, "bfloat16", 0)]
    assert [bytes(buffer) for buffer in found.buffers] == [b"\1\1"]


@pytest.mark.parametrize("read", [codec.read_push, codec.read_pull, codec.read_push_pull, codec.read_model])
def test_a_header_of_another_kind_is_refused(read: Any) -> None:
    with pytest.raises(InvalidInputError, match="the header is no P"):
        read(encode_frame(b"\xff\xff"))


def test_the_parts_of_a_push_and_a_pull_have_their_own_buffers() -> None:
    message = ps_pb2.PushPullRequest(
        push=ps_pb2.PushGradientsRequest(worker="worker-0.0"),
        pull=ps_pb2.PullRequest(dense_version=4, rows=[ps_pb2.Rows(table="u", ids=0)]),
        pull_from=1,
    )
    first, second = codec.read_push_pull(encode_frame(message.SerializeToString(), [W, IDS]))
    assert (len(first.buffers), len(second.buffers)) == (1, 1)
    assert (second.dense_version, second.apply, second.tables) == (4, None, [("u", 0)])
    assert np.frombuffer(second.buffers[0], np.int64).tolist() == IDS.tolist()
    for middle in (-1, 3):
        message.pull_from = middle
        with pytest.raises(InvalidInputError, match=f"there is no buffer {middle}"):
            codec.read_push_pull(encode_frame(message.SerializeToString(), [W, IDS]))


def test_gradients_state_and_rows_become_changes() -> None:
    sent = push(
        [DenseGradient("w", 0, 3, 0), DenseGradient("n", 0, 1, 1, keep=1), DenseGradient("mean", 0, 2, 2, keep=0.9)],
        [RowGradients("t", 3, 4), RowGradients("u", 3, 5, "bfloat16")],
        [W, np.array([4]), np.array([0.5, 0.25]), IDS, ROWS, to_bfloat16(np.ones((2, 1), np.float32))],
        records=6,
        task=(1, 2),
    )
    changes = read_changes(PARTITION, sent)
    assert changes.dense["w"].tolist() == [1, 2, 3]
    assert {name: (change.keep, change.add.tolist()) for name, change in changes.state.items()} == {
        "n": (1, [4]),
        "mean": (0.9, [0.5, 0.25]),
    }
    assert changes.rows["t"][0] is changes.rows["u"][0], "equal ids are read once"
    assert changes.rows["t"][1].tolist() == ROWS.tolist()
    assert changes.rows["u"][1].tolist() == [[1], [1]]
    assert (changes.records, changes.task, changes.steps) == (6, (1, 2), 1)


NAN = np.array([1, np.nan, 3], np.float32)
T = RowGradients("t", 0, 1)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (push([DenseGradient("w", 0, 2, 0)], buffers=[W[:2]]), r"the gradient of 'w' is for \[0, 2\).* \[0, 3\)"),
        (push([DenseGradient("x", 0, 2, 0)], buffers=[W[:2]]), "of which this PS holds nothing"),
        (push([DenseGradient("w", 0, 3, 0)] * 2, buffers=[W]), "the gradient of 'w' comes twice"),
        (push([DenseGradient("n", 0, 1, 0, keep=1)] * 2, buffers=[[1]]), "the gradient of 'n' comes twice"),
        (push([DenseGradient("w", 0, 3, 1)], buffers=[W]), "the gradient of 'w' refers to buffer 1 of 1"),
        (push([DenseGradient("w", 0, 3, 0)], buffers=[W[:2]]), "the gradient of 'w' needs 12 bytes and has 8"),
        (push([DenseGradient("w", 0, 3, 0)], buffers=[NAN]), "the gradient of 'w' has NaN or infinite"),
        (push([DenseGradient("n", 0, 1, 0)], buffers=[[1]]), "says nothing about what is kept"),
        (push([DenseGradient("n", 0, 1, 0, keep=0.5)], buffers=[[1]]), "says 0.5 about what is kept"),
        (push([DenseGradient("mean", 0, 2, 0, keep=1.5)], buffers=[[1.0, 2]]), "says 1.5 about what is kept"),
        (push([DenseGradient("mean", 0, 2, 0, keep=1)], buffers=[[1.0, np.inf]]), "'mean' has NaN or infinite"),
        (push(rows=[T, T], buffers=[IDS, ROWS]), "gradients of the table 't' come twice"),
        (push(rows=[RowGradients("v", 0, 1)], buffers=[IDS, ROWS]), "there is no embedding table 'v'"),
        (push(rows=[RowGradients("t", 0, 1, "int8")], buffers=[IDS, ROWS]), "rows cannot be sent as 'int8'"),
        (push(rows=[T], buffers=[[3, 3], ROWS]), "the gradients of the table 't' name an id twice"),
        (push(rows=[T], buffers=[IDS, ROWS[:1]]), "the gradients of the table 't' needs 16 bytes and has 8"),
        (push(rows=[T], buffers=[IDS, ROWS * np.float32(np.nan)]), "the gradients of the table 't' has NaN"),
        (push(rows=[RowGradients("u", 0, 1)], buffers=[[3, 10], ROWS[:1]]), "the id 10 is outside the table 'u'"),
    ],
)
def test_what_cannot_be_applied_is_refused_by_name(sent: PushRequest, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        read_changes(PARTITION, sent)


def test_a_round_counts_only_gradients_of_some_records() -> None:
    partition = make_partition(use_async=False)
    with pytest.raises(InvalidInputError, match="a gradient of 0 records cannot count in a round"):
        read_changes(partition, push(records=0))
    assert read_changes(partition, push(records=1)).records == 1


def test_with_compensation_a_push_says_what_was_pulled() -> None:
    partition = make_partition(delay_compensation=0.5)
    dense, rows = DenseGradient("w", 0, 3, 0, pulled=1), RowGradients("t", 2, 3, pulled=4)
    changes = read_changes(partition, push([dense], [rows], [W, W + 1, IDS, ROWS, ROWS * 2]))
    assert changes.pulled_dense["w"].tolist() == [2, 3, 4]
    assert changes.pulled_rows["t"].tolist() == (ROWS * 2).tolist()
    for sent in (push([DenseGradient("w", 0, 3, 0)], buffers=[W]), push(rows=[T], buffers=[IDS, ROWS])):
        with pytest.raises(InvalidInputError, match="come without what they were computed on"):
            read_changes(partition, sent)


def test_equal_ids_are_looked_at_once_and_each_table_has_its_own_limit() -> None:
    open_, closed = PARTITION.table("t"), PARTITION.table("u")
    numbers = [[3, 11], [3, 11], [3, 4], [], [7, 7]]
    ids = IdReader([memoryview(np.array(some, np.int64).tobytes()) for some in numbers])
    first = ids.read(open_, 0)
    assert ids.read(open_, 1) is first
    with pytest.raises(InvalidInputError, match="the id 11 is outside the table 'u'"):
        ids.read(closed, 1)
    assert ids.read(closed, 2).tolist() == [3, 4]
    assert not ids.has_duplicates(KERNELS)
    assert ids.read(closed, 3).tolist() == []
    assert not ids.has_duplicates(KERNELS)
    assert ids.read(closed, 4).tolist() == [7, 7]
    assert ids.has_duplicates(KERNELS)
    for index in (5, -1):
        with pytest.raises(InvalidInputError, match=f"the ids of 't' refers to buffer {index} of 5"):
            ids.read(open_, index)
