"""What a push says to each parameter server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseSpec, TableSpec
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.convert.parameters import from_bfloat16, to_bfloat16
from elasticdl_runtime.partition import ps_of_ids
from elasticdl_runtime.rpc.framing import decode_frame
from elasticdl_worker.parameters import Gradients, Origin
from elasticdl_worker.parameters.codec import OutgoingPush, push_frame, push_pull_frame
from elasticdl_worker.parameters.group import ServerGroup
from elasticdl_worker.parameters.placement import ModelPlacement
from elasticdl_worker.parameters.pulls import PullMoment
from elasticdl_worker.parameters.pushes import PushBuilder, PushStamp
from elasticdl_worker.parameters.splits import Splits

pytestmark = pytest.mark.unit
RANDOM = np.random.default_rng(0)
SPECS = [DenseSpec("large", (600, 500)), DenseSpec("bias", (3,)), DenseSpec("kernel", (4, 2))]
TABLES = [TableSpec("t", 4), TableSpec("u", 1)]


def gradients(t: Any, u: Any) -> Gradients:
    dense = {spec.name: RANDOM.normal(size=spec.shape).astype(np.float32) for spec in SPECS}
    rows = {
        name: (ids, RANDOM.normal(size=(len(ids), dim)).astype(np.float32))
        for name, ids, dim in (("t", t, 4), ("u", u, 1))
    }
    return Gradients(dense, rows)


def stamp(count: int, sequence: int) -> PushStamp:
    return PushStamp(
        sequence, [10 * sequence + i for i in range(count)], [f"g{i}" for i in range(count)], (0.5, 0.25)
    )


def check_pushes(
    placement: ModelPlacement, pushed: Gradients, pushes: list[OutgoingPush], sent: PushStamp, wire: str
) -> None:
    """Puts what all PS were sent together again."""
    dense = {spec.name: np.full(spec.size, np.nan, np.float32) for spec in SPECS}
    seen: dict[str, list[int]] = {name: [] for name in pushed.rows}
    for index, one in enumerate(pushes):
        header, buffers = decode_frame(push_frame(one).encode())
        push = ps_pb2.PushGradientsRequest.FromString(header)
        assert (push.worker, push.sequence, push.version) == ("worker-0.0", sent.sequence, sent.versions[index])
        assert (push.generation, push.learning_rates) == (sent.generations[index], [0.5, 0.25])
        for part in push.dense:
            dense[part.name][part.start : part.stop] = np.frombuffer(buffers[part.buffer], np.float32)
        for entry in push.rows:
            ids, values = pushed.rows[entry.table]
            mine = np.frombuffer(buffers[entry.ids], np.int64)
            assert (ps_of_ids(mine, placement.num_ps) == index).all()
            seen[entry.table] += mine.tolist()
            at = [ids.tolist().index(wanted) for wanted in mine.tolist()]
            expected = values[at]
            if wire == "bfloat16":
                got = from_bfloat16(np.frombuffer(buffers[entry.values], np.uint16))
                expected = from_bfloat16(to_bfloat16(expected))
            else:
                got = np.frombuffer(buffers[entry.values], np.float32)
            np.testing.assert_array_equal(got.reshape(expected.shape), expected)
    for name, values in dense.items():
        np.testing.assert_array_equal(values, pushed.dense[name].reshape(-1))
    assert {name: sorted(found) for name, found in seen.items()} == {
        name: sorted(ids.tolist()) for name, (ids, _) in pushed.rows.items()
    }


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_number_arrives_once_and_where_it_belongs(count: int, wire: str) -> None:
    placement = ModelPlacement(SPECS, TABLES, count)
    builder = PushBuilder(placement, "worker-0.0", wire)
    same = np.unique(RANDOM.integers(0, 500, 90))
    for sequence, (t, u) in enumerate(
        [(same, same), (same[:40], same[5:60]), (same, same), (same[:0], same[:1]), (same[:0], same[:0])], 1
    ):
        pushed, sent = gradients(t, u), stamp(count, sequence)
        check_pushes(placement, pushed, builder.build(pushed, sent), sent, wire)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_pull_goes_along_with_its_own_buffers(count: int) -> None:
    group = ServerGroup(
        [f"unix:/nowhere-{i}" for i in range(count)], lambda: "", "worker-0.0", "float32", 1.0, 1 << 20
    )
    group.place([], TABLES)
    ids, others = np.arange(40), np.arange(7, 47)
    for pushed, wanted, buffers in (
        (gradients(ids, ids).rows, {"t": others, "u": others}, 1 + 2 + 1),
        (gradients(ids, others).rows, {"t": others, "u": ids}, 2 + 2 + 2),
    ):
        pushes, cut = group.build_pushes(Gradients(rows=pushed), 3, None), group.cut(wanted)
        for index, push in enumerate(pushes):
            pull = group.pull_along(cut, index, PullMoment(wait_for=5), dense=False)
            header, sent = decode_frame(push_pull_frame(push, pull).encode())
            message = ps_pb2.PushPullRequest.FromString(header)
            assert len(sent) == buffers, "tables with the same ids send them once"
            assert (message.pull.dense_version, message.pull.wait_for) == (-2, 5)
            for entry in message.pull.rows:
                mine = np.frombuffer(sent[message.pull_from + entry.ids], np.int64)
                assert mine.tolist() == cut.parts[index][entry.table].tolist()
            assert [entry.table for entry in message.pull.rows] == list(wanted)
    await group.close()


def test_gradients_in_any_memory_order_and_precision_travel_as_float32() -> None:
    builder = PushBuilder(ModelPlacement([DenseSpec("kernel", (4, 2))], TABLES[:1], 2), "worker-0.0", "float32")
    ids = np.arange(10)
    wide = RANDOM.normal(size=(4, 20)).T[::2]
    odd = Gradients({"kernel": RANDOM.normal(size=(2, 4)).T}, {"t": (ids, wide)})
    plain = Gradients(
        {"kernel": np.ascontiguousarray(odd.dense["kernel"], np.float32)},
        {"t": (ids, np.ascontiguousarray(wide, np.float32))},
    )
    for one, other in zip(builder.build(odd, stamp(2, 1)), builder.build(plain, stamp(2, 1)), strict=True):
        assert push_frame(one).encode() == push_frame(other).encode()


def test_what_gradients_were_computed_on_goes_along() -> None:
    builder = PushBuilder(ModelPlacement(SPECS[1:], TABLES, 2), "worker-0.0", "float32")
    ids = np.arange(10)
    pushed = gradients(ids, ids)
    dense = {name: value for name, value in pushed.dense.items() if name != "large"}
    origin = Origin(
        {name: value + 1 for name, value in dense.items()}, {t: v + 1 for t, (_, v) in pushed.rows.items()}
    )
    sent = Gradients(dense, pushed.rows, {}, origin=origin)
    parts = 0
    for push in builder.build(sent, stamp(2, 1)):
        for entry in (*push.dense, *push.rows):
            assert entry.pulled is not None
            np.testing.assert_array_equal(push.buffers[entry.pulled], push.buffers[entry.values] + 1)
            parts += 1
    assert parts >= 4


def test_a_name_or_a_shape_that_is_wrong_is_told() -> None:
    builder = PushBuilder(ModelPlacement(SPECS, TABLES, 2), "worker-0.0", "float32")
    good = gradients(np.arange(5), np.arange(5))
    for dense, rows, word in (
        ({"nobody": np.ones(3)}, {}, "nobody"),
        ({"bias": np.ones(4)}, {}, "bias"),
        ({}, {"t": (np.arange(5), np.ones((5, 3), np.float32))}, "shape"),
        ({}, {"none": (np.arange(5), np.ones((5, 3), np.float32))}, "none"),
    ):
        with pytest.raises(InvalidInputError, match=word):
            builder.build(Gradients(dict(good.dense) | dense, dict(good.rows) | rows), stamp(2, 2))


def test_ids_are_cut_once_even_if_their_array_is_filled_anew() -> None:
    splits = Splits(2)
    ids = np.arange(100)
    first = splits.cut(ids)
    assert splits.cut(ids.copy()) is first
    ids += 1000
    second = splits.cut(ids)
    assert second is not first
    assert first.ids.tolist() == list(range(100))
    assert sorted(np.concatenate(second.parts).tolist()) == list(range(1000, 1100))
    assert splits.cut(np.arange(100, dtype=np.int32)) is first
    both = splits.cut_all({"t": ids, "u": ids, "v": np.arange(100)})
    assert both["t"] is both["u"] is second
    assert both["v"] is first
