"""Buckets that are brought in the backward pass: the same bits, sooner; and what has to be computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.collectives import CollectiveError
from elasticdl_worker.group.replica import SendsGradientsEarly, SentTooEarlyError
from elasticdl_worker.reporting.failures import NotFiniteError
from tests.fakes.group_steps import MICROBATCH
from tests.unit.worker_torch.test_replica import read, replica_of

pytestmark = pytest.mark.unit


class Leaves:
    """Keeps what is brought, in its order, and what was trained meanwhile."""

    def __init__(self, replica: Any, breaks: bool = False) -> None:
        self.replica = replica
        self.memory = [np.full(length, np.nan, np.float32) for length in replica.lengths]
        self.order: list[int] = []
        self.gradients: list[int] = []
        self.breaks = breaks

    def leaf(self, number: int) -> Any:
        return self.memory[number]

    def add(self, number: int) -> None:
        if self.breaks:
            raise CollectiveError("a member is gone")
        assert number not in self.order
        self.order.append(number)
        self.gradients.append(sum(one.grad is not None for one in self.replica._model.trainable.values()))


@pytest.fixture
def job(values: Path, make_spec: Any) -> Any:
    def make(model: str, **fields: Any) -> Any:
        return make_spec(training_data=str(values), model_def=model, minibatch_size=MICROBATCH, **fields)

    return make


def odd(kind: str) -> dict[str, Any]:
    return {"model": "odd.model", "model_params": {"kind": kind}}


JOBS: dict[str, dict[str, Any]] = {
    "buffers and dropout": {"model": "grouped.net", "model_params": {"dropout": 0.5, "wild": True}},
    "sparse gradients": {"model": "grouped.rows", "optimizer_params": {"name": "SGD"}},
    "unused parameters": {"model": "grouped.sometimes"},
    "several buckets": {"model": "grouped.large"},
    "layouts and hooks": odd("Plain"),
    "checkpoints": odd("Checkpointed"),
    "autocast": {"model": "grouped.net", "autocast": "bfloat16"},
}


def whole(part: Any, leaves: Leaves) -> list[Any]:
    return [*leaves.memory[: part.brought], *part.arrays]


@pytest.mark.parametrize("name", JOBS)
def test_the_bits_are_those_of_buckets_brought_afterwards(name: str, job: Any) -> None:
    spec = job(**JOBS[name])
    replica = replica_of(spec)
    assert isinstance(replica, SendsGradientsEarly)
    for microbatch in range(4):
        data = read(replica, spec, microbatch * MICROBATCH)
        wanted = replica.compute(3, microbatch, data, 0)
        arrays = [array.copy() for array in wanted.arrays]
        leaves = Leaves(replica)
        found = replica.compute_into(3, microbatch, data, 0, leaves)
        assert sorted(leaves.order) == list(range(len(replica.lengths) - 1))
        assert (found.brought, found.rows, found.loss) == (len(leaves.order), wanted.rows, wanted.loss)
        for one, other in zip(whole(found, leaves), arrays, strict=True):
            np.testing.assert_array_equal(one, other)


def test_early_buckets_are_brought_while_others_have_no_gradient_yet(job: Any) -> None:
    spec = job("grouped.large")
    replica = replica_of(spec)
    leaves = Leaves(replica)
    replica.compute_into(0, 0, read(replica, spec), 0, leaves)
    assert leaves.order == [0, 1, 2]
    assert leaves.gradients[0] < leaves.gradients[-1] == len(replica._model.trainable)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
def test_a_gradient_that_is_added_to_later_is_not_brought_too_early_twice(job: Any) -> None:
    spec = job(**odd("Twice"))
    replica, other = replica_of(spec), replica_of(spec)
    data = read(replica, spec)
    with pytest.raises(SentTooEarlyError):
        replica.compute_into(0, 0, data, 0, Leaves(replica))
    wanted = [array.copy() for array in other.compute(0, 0, data, 0).arrays]
    for one in (replica, other):  # one knows it from its own failure, the other from a pass that brought nothing
        leaves = Leaves(one)
        found = one.compute_into(0, 0, data, 0, leaves)
        for array, expected in zip(whole(found, leaves), wanted, strict=True):
            np.testing.assert_array_equal(array, expected)


def test_a_group_that_breaks_in_the_backward_pass_is_no_fault_of_the_users(job: Any) -> None:
    spec = job("grouped.large")
    replica = replica_of(spec)
    before = replica.digest()
    with pytest.raises(CollectiveError, match="a member is gone"):
        replica.compute_into(0, 0, read(replica, spec), 0, Leaves(replica, breaks=True))
    assert replica.digest() == before
    again = Leaves(replica)
    assert replica.compute_into(0, 0, read(replica, spec), 0, again).rows == MICROBATCH


def test_a_gradient_that_is_not_finite_is_named_or_left_out_whole(job: Any) -> None:
    spec = job(**odd("Roots"))
    replica = replica_of(spec)
    with pytest.raises(NotFiniteError, match=r"the gradient of out\.weight is not finite"):
        replica.compute_into(0, 0, read(replica, spec), 0, Leaves(replica))
    spec = job(**odd("Roots"), on_nan="skip")
    replica, leaves = replica_of(spec), Leaves(replica)
    part = replica.compute_into(0, 0, read(replica, spec), 0, leaves)
    assert (part.rows, part.brought, leaves.order) == (0, 0, [])


def test_a_wrong_loss_is_the_users_and_leaves_the_model_as_it_was(job: Any) -> None:
    spec = job("grouped.large")
    replica = replica_of(spec)
    data = read(replica, spec)
    batch = data.content
    wrong = type(data)(
        data.fed, data.skips, type(batch)(batch.features, "none", batch.records, batch.shard, batch.first)
    )
    before = replica.digest()
    with pytest.raises(UserCodeError, match="a training step raised"):
        replica.compute_into(0, 0, wrong, 0, Leaves(replica))
    assert replica.digest() == before
