"""What a push says to each parameter server, and how much of it is made anew at each step."""

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
from elasticdl_worker.parameters import Gradients
from elasticdl_worker.parameters.placement import ModelPlacement
from elasticdl_worker.parameters.pushes import Following, PushFrames, Stamp
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


def stamp(count: int, sequence: int) -> Stamp:
    return Stamp(sequence, [10 * sequence + i for i in range(count)], [f"g{i}" for i in range(count)], 0.5)


def check_push(
    placement: ModelPlacement, pushed: Gradients, frames: list[bytes], sent: Stamp, wire: str, pull: Any = None
) -> None:
    """Puts what all PS were sent together again."""
    dense = {spec.name: np.full(spec.size, np.nan, np.float32) for spec in SPECS}
    seen: dict[str, list[int]] = {name: [] for name in pushed.rows}
    for index, frame in enumerate(frames):
        header, buffers = decode_frame(frame)
        message = ps_pb2.PushPullRequest()
        if pull is None:
            message.push.ParseFromString(header)
        else:
            message.ParseFromString(header)
        push = message.push
        assert (push.worker, push.sequence, push.version) == ("worker-0.0", sent.sequence, sent.versions[index])
        assert (push.generation, push.learning_rate) == (sent.generations[index], 0.5)
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
        if pull is not None:
            assert message.pull.dense_version == pull.dense_versions[index]
            assert message.pull.generation == pull.generations[index]
            for entry in message.pull.rows:
                mine = np.frombuffer(buffers[message.pull_from + entry.ids], np.int64)
                assert mine.tolist() == pull.splits[entry.table].parts[index].tolist()
            assert [entry.table for entry in message.pull.rows] == list(pull.splits)
    for name, values in dense.items():
        np.testing.assert_array_equal(values, pushed.dense[name].reshape(-1))
    assert {name: sorted(found) for name, found in seen.items()} == {
        name: sorted(ids.tolist()) for name, (ids, _) in pushed.rows.items()
    }


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_number_arrives_once_and_where_it_belongs(count: int, wire: str) -> None:
    placement = ModelPlacement(SPECS, TABLES, count)
    frames = PushFrames(placement, "worker-0.0", wire)
    same = np.unique(RANDOM.integers(0, 500, 90))
    for sequence, (t, u) in enumerate(
        [(same, same), (same[:40], same[5:60]), (same, same), (same[:0], same[:1]), (same[:0], same[:0])], 1
    ):
        pushed, sent = gradients(t, u), stamp(count, sequence)
        check_push(placement, pushed, frames.make(pushed, sent), sent, wire)
        wanted = {"t": u, "u": t} if sequence % 2 else {"u": same, "t": same}
        pull = Following(placement.split(wanted), [sequence] * count, [f"h{sequence}"] * count)
        check_push(placement, pushed, frames.make(pushed, sent, pull), sent, wire, pull)


@pytest.mark.parametrize("count", [1, 2])
def test_tables_with_the_same_ids_send_them_once(count: int) -> None:
    placement = ModelPlacement([], TABLES, count)
    frames = PushFrames(placement, "worker-0.0", "float32")
    ids, others = np.arange(40), np.arange(7, 47)

    def size(pushed: Gradients, wanted: dict[str, Any]) -> list[int]:
        pull = Following(placement.split(wanted), [-1] * count, [""] * count)
        return [len(decode_frame(frame)[1]) for frame in frames.make(pushed, stamp(count, 1), pull)]

    rows = gradients(ids, ids).rows
    assert size(Gradients(rows=rows), {"t": others, "u": others}) == [1 + 2 + 1] * count
    assert size(Gradients(rows=gradients(ids, others).rows), {"t": others, "u": ids}) == [2 + 2 + 2] * count


def test_gradients_in_any_memory_order_and_precision_travel_as_float32() -> None:
    placement = ModelPlacement([DenseSpec("kernel", (4, 2))], TABLES[:1], 2)
    ids = np.arange(10)
    wide = RANDOM.normal(size=(4, 20)).T[::2]
    odd = Gradients({"kernel": RANDOM.normal(size=(2, 4)).T}, {"t": (ids, wide)})
    plain = Gradients(
        {"kernel": np.ascontiguousarray(odd.dense["kernel"], np.float32)},
        {"t": (ids, np.ascontiguousarray(wide, np.float32))},
    )
    frames = PushFrames(placement, "worker-0.0", "float32")
    assert frames.make(odd, stamp(2, 1)) == frames.make(plain, stamp(2, 1))


def test_a_name_or_a_shape_that_is_wrong_is_told_at_every_step() -> None:
    placement = ModelPlacement(SPECS, TABLES, 2)
    frames = PushFrames(placement, "worker-0.0", "float32")
    good = gradients(np.arange(5), np.arange(5))
    frames.make(good, stamp(2, 1))
    for dense, rows, word in (
        ({"nobody": np.ones(3)}, {}, "nobody"),
        ({"bias": np.ones(4)}, {}, "bias"),
        ({}, {"t": (np.arange(5), np.ones((5, 3), np.float32))}, "shape"),
        ({}, {"none": (np.arange(5), np.ones((5, 3), np.float32))}, "none"),
    ):
        with pytest.raises(InvalidInputError, match=word):
            frames.make(Gradients(dict(good.dense) | dense, dict(good.rows) | rows), stamp(2, 2))


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
