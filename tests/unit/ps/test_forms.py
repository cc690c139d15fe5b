"""A header whose names were seen before is read as any other, whatever numbers it has and in whatever order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_proto.v1 import ps_pb2
from elasticdl_ps.forms import Forms, PullForm, PushForm
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.store.partition import DenseInit, Partition
from elasticdl_ps.wire import Ids
from elasticdl_runtime.rpc.framing import encode_frame

pytestmark = pytest.mark.unit

NAMES: dict[str, Any] = {
    "dense": [ps_pb2.Dense(name="w", start=0, stop=3, buffer=0)],
    "rows": [ps_pb2.Rows(table="t", ids=1, values=2), ps_pb2.Rows(table="u", ids=1, values=3)],
}
NUMBERS = st.fixed_dictionaries(
    {
        "worker": st.sampled_from(["worker-0.0", "worker-12.3", ""]),
        "sequence": st.integers(0, 1 << 40),
        "version": st.integers(-1, 1 << 40),
        "learning_rate": st.sampled_from([0.0, 0.5]),
        "generation": st.text(max_size=20),
    }
)


def make_partition() -> Partition:
    partition = Partition(load_kernels("numpy"))
    dense = [DenseInit(DenseSpec("w", (3,)), 0, 3, np.zeros(3, np.float32))]
    tables = [TableSpec("t", 2), TableSpec("u", 1, input_dim=10)]
    partition.push_model(dense, tables, OptimizerSpec("sgd"), UpdateMode())
    return partition


PARTITION = make_partition()


def read_push(forms: Forms, data: bytes) -> tuple[ps_pb2.PushGradientsRequest, PushForm | None]:
    message = forms.read_push(encode_frame(data))
    return message.request, message.form


def read_pull(forms: Forms, data: bytes) -> tuple[ps_pb2.PullRequest, PullForm | None]:
    message = forms.read_pull(encode_frame(data))
    return message.request, message.form


def learnt(partition: Partition, **names: Any) -> Forms:
    forms = Forms(partition)
    for message in (ps_pb2.PushGradientsRequest(**(names or NAMES)), ps_pb2.PushGradientsRequest(rows=NAMES["rows"])):
        data = message.SerializeToString()
        request, form = read_push(forms, data)
        assert form is None
        forms.learn_push(request, data)
    return forms


@given(numbers=NUMBERS, joined=st.booleans(), dense=st.booleans())
def test_names_are_recognised_between_any_numbers(numbers: dict[str, Any], joined: bool, dense: bool) -> None:
    forms = learnt(PARTITION)
    names = NAMES if dense else {"rows": NAMES["rows"]}
    first = ps_pb2.PushGradientsRequest(**numbers)
    second = ps_pb2.PushGradientsRequest(**names)
    whole = ps_pb2.PushGradientsRequest(**numbers, **names)
    data = first.SerializeToString() + second.SerializeToString() if joined else whole.SerializeToString()
    request, form = read_push(forms, data)
    assert form is not None
    assert request == first
    assert [place.part.spec.name for place in form.dense] == (["w"] if dense else [])
    assert [(place.table.spec.name, place.ids, place.values) for place in form.rows] == [("t", 1, 2), ("u", 1, 3)]


def test_names_within_something_else_are_not_taken_for_names() -> None:
    partition = make_partition()
    forms = Forms(partition)
    rows = [ps_pb2.Rows(table="t")]
    data = ps_pb2.PullRequest(rows=rows).SerializeToString()
    forms.learn_pull(read_pull(forms, data)[0], data)
    hidden = ps_pb2.PullRequest(generation="x" + data.decode() + "y")
    request, form = read_pull(forms, hidden.SerializeToString())
    assert (request, form) == (hidden, None)
    more = ps_pb2.PullRequest(rows=[*rows, ps_pb2.Rows(table="u", ids=1)])
    request, form = read_pull(forms, more.SerializeToString())
    assert (request, form) == (more, None)


def test_other_tables_make_other_forms() -> None:
    partition = make_partition()
    forms = learnt(partition)
    data = ps_pb2.PushGradientsRequest(**NAMES, sequence=3).SerializeToString()
    assert read_push(forms, data)[1] is not None
    partition.push_tables([TableSpec("v", 1)])
    request, form = read_push(forms, data)
    assert form is None
    assert len(request.rows) == 2
    assert forms.learn_push(request, data).tables is partition.tables
    assert read_push(forms, data)[1] is not None
    forms.forget()
    assert read_push(forms, data)[1] is None


def test_only_float32_and_integers_are_looked_at_as_words() -> None:
    form = Forms(PARTITION).learn_push(ps_pb2.PushGradientsRequest(**NAMES), b"")
    assert form.words
    halves = [ps_pb2.Rows(table="t", ids=0, values=1, dtype="bfloat16")]
    assert not Forms(PARTITION).learn_push(ps_pb2.PushGradientsRequest(rows=halves), b"").words


def test_equal_ids_are_looked_at_once_and_each_table_has_its_own_limit() -> None:
    open_, closed = PARTITION.table("t"), PARTITION.table("u")
    numbers = [[3, 11], [3, 11], [3, 4], [], [7, 7]]
    ids = Ids([memoryview(np.array(some, np.int64).tobytes()) for some in numbers])
    first = ids.read(open_, 0)
    assert ids.read(open_, 1) is first
    with pytest.raises(InvalidInputError, match="the id 11 is outside the table 'u'"):
        ids.read(closed, 1)
    assert ids.read(closed, 2).tolist() == [3, 4]
    assert not ids.has_duplicates(PARTITION)
    assert ids.read(closed, 3).tolist() == []
    assert not ids.has_duplicates(PARTITION)
    assert ids.read(closed, 4).tolist() == [7, 7]
    assert ids.has_duplicates(PARTITION)
    for index in (5, -1):
        with pytest.raises(InvalidInputError, match=f"the ids of 't' refers to buffer {index} of 5"):
            ids.read(open_, index)
