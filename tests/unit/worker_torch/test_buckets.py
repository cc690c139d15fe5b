"""Gradients and values as flat arrays that members add up: what goes in comes out, times its weight."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from elasticdl_worker.trainers.state_merging import Merge
from elasticdl_worker.trainers.torch.model.state import TorchModelState
from elasticdl_worker.trainers.torch.replica.buckets import TorchBuckets
from elasticdl_worker.trainers.torch.replica.selected import choose, length_of, packed, unpacked
from elasticdl_worker.trainers.torch.replica.state_changes import TorchStateChanges

pytestmark = pytest.mark.unit


def parameters() -> dict[str, nn.Parameter]:
    return {
        name: nn.Parameter(torch.zeros(shape)) for name, shape in (("a", (2, 3)), ("b", (5,)), ("c", ()), ("d", 4))
    }


@pytest.mark.parametrize("bucket", [1, 6, 100])
def test_gradients_add_up_by_their_weights_and_what_has_none_is_left_without(bucket: int) -> None:
    made = parameters()
    buckets = TorchBuckets(made, bucket)
    sums, marks = [torch.zeros(length) for length in buckets.lengths], torch.zeros(buckets.marks)
    for weight, used in ((3.0, "ab"), (2.0, "ac")):
        for name, one in made.items():
            one.grad = torch.full_like(one, ord(name)) if name in used else None
        flat, had = buckets.pack(weight)
        sums = [total + part for total, part in zip(sums, flat, strict=True)]
        marks += had
    buckets.set_gradients(sums, marks)
    weights = {"a": 5.0, "b": 3.0, "c": 2.0}
    for name, one in made.items():
        if name == "d":
            assert one.grad is None, "weight decay and momentum would move it"
        else:
            assert torch.equal(one.grad, torch.full_like(one, ord(name) * weights[name]))


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([[-1.5, 0.0, -0.0], [float("inf"), -float("inf"), 3e-39]]),
        torch.tensor([-1.5, 1e300, -1e-300], dtype=torch.float64),
        torch.tensor([-1, 2**62 + 1, -(2**63), 2**63 - 1]),
        torch.tensor([-1, 2**31 - 1], dtype=torch.int32),
        torch.tensor([-2.5, 6e4], dtype=torch.float16),
        torch.tensor([True, False]),
        torch.tensor([0, 255], dtype=torch.uint8),
    ],
    ids=lambda values: str(values.dtype),
)
def test_values_that_are_taken_as_they_are_come_out_to_the_last_bit(values: torch.Tensor) -> None:
    flat = packed(values)
    assert (flat.dtype, len(flat)) == (torch.float32, length_of(values))
    found = unpacked(flat + torch.zeros_like(flat), values)
    assert torch.equal(found, values) and found.dtype == values.dtype and found.shape == values.shape


def test_of_several_values_the_rule_says_which() -> None:
    old, given = torch.tensor([3]), [torch.tensor([5]), torch.tensor([-9]), torch.tensor([4])]
    found = {rule: choose(rule, old, given).item() for rule in (Merge.MAX, Merge.MIN, Merge.LAST)}
    assert found == {Merge.MAX: 5, Merge.MIN: -9, Merge.LAST: 4}


def test_running_statistics_move_by_the_mean_of_microbatches_that_all_begin_alike() -> None:
    model = nn.Module()
    model.register_buffer("mean", torch.tensor([10.0, -1.0]))
    changes = TorchStateChanges(TorchModelState(model, dict(model.named_buffers())), ["mean"], microbatches=2)
    total = torch.zeros(changes.length)
    for rows, change in ((3, 1.0), (1, 5.0)):
        changes.begin()
        model.mean += change
        total += changes.take(rows)
        changes.undo()
        assert model.mean.tolist() == [10.0, -1.0]
    changes.apply(total, 4)
    assert model.mean.tolist() == [12.0, 1.0]
