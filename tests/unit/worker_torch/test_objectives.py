"""The objective of an update that is computed in parts is that of its minibatch, for every loss, or it is refused."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_worker.group.replica import copied
from elasticdl_worker.local import run_local
from elasticdl_worker.reporting.failures import NotFiniteError
from elasticdl_worker.trainers.loss_denominators import CLOSE_OF_HALF
from elasticdl_worker.trainers.torch.implementation import TorchFramework
from elasticdl_worker.trainers.torch.step.batch_axes import are_certain, as_they_were, axes_by, records_first
from elasticdl_worker.trainers.torch.step.denominators import TorchDenominators
from tests.fakes.group_steps import MICROBATCH, RECORDS
from tests.unit.worker_torch.test_replica import make_step, preparation_of, read, replica_of

pytestmark = pytest.mark.unit
RATIOS = ("mean", "each", "weighed", "ignoring", "masked", "added", "in_place")


@pytest.fixture
def job(values: Path, make_spec: Any) -> Any:
    def make(loss: str, parts: int = 2, model: str = "net", **fields: Any) -> JobSpec:
        own = {"distribution_strategy": "AllReduceStrategy", "microbatches": parts, "max_workers": parts}
        given = {"training_data": str(values), "model_def": f"objectives.{model}", "loss": loss}
        spec: JobSpec = make_spec(**given, minibatch_size=parts * MICROBATCH)
        return dataclasses.replace(spec, **own, **fields)

    return make


def as_a_whole(spec: JobSpec, updates: int) -> dict[str, np.ndarray[Any, Any]]:
    """The parameters that plain PyTorch has after updates by whole minibatches."""
    preparation = preparation_of(spec)
    module, source = preparation.module, preparation.source
    torch.manual_seed(spec.seed & 0x7FFFFFFF)
    local: Any = TorchFramework().prepare_local(preparation)
    net = local.model.net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    first: Any = source.first(RECORDS)  # type: ignore[attr-defined]
    for update in range(updates):
        at = slice(
            update * spec.minibatch_size % RECORDS, update * spec.minibatch_size % RECORDS + spec.minibatch_size
        )
        optimizer.zero_grad()
        assert module.loss is not None
        module.loss(first.labels[at].clone(), net(first.features[at])).mean().backward()
        optimizer.step()
    return {name: value.detach().numpy() for name, value in net.named_parameters()}


@pytest.mark.rotates(turns=5)
@pytest.mark.parametrize(("parts", "members", "fused"), [(2, 1, 1), (4, 2, 1), (4, 2, 2)])
@pytest.mark.parametrize("loss", RATIOS)
def test_the_parts_of_an_update_train_what_plain_pytorch_trains_on_all_of_it(
    loss: str, parts: int, members: int, fused: int, job: Any
) -> None:
    spec = job(loss, parts, deterministic=fused == 1)
    replicas = [replica_of(spec) for _ in range(members)]
    for step in range(2):
        make_step(replicas, spec, step, microbatches=parts, fused=fused)
    for name, wanted in as_a_whole(spec, 2).items():
        np.testing.assert_allclose(replicas[0].state().values[name], wanted, atol=2e-6, err_msg=name)
    assert len({replica.digest() for replica in replicas}) == 1


OWN = [("own", "judging", how) for how in ("mean", "weighed", "ignoring", "added", "narrow")]
BY_TIME = [("moments", "by_time", ""), ("each_moment", "by_time", "")]


@pytest.mark.rotates(turns=3)
@pytest.mark.parametrize(
    ("loss", "model", "how"), [*OWN, *BY_TIME, ("size", "heads", ""), ("own_and_ours", "judging", "mean")]
)
def test_a_loss_of_the_models_own_and_outputs_by_time_train_in_parts_as_a_whole(
    loss: str, model: str, how: str, job: Any
) -> None:
    """All of these were refused."""
    spec = job(loss, 4, model, model_params={"how": how} if how else {})
    replicas = [replica_of(spec) for _ in range(2)]
    for step in range(2):
        make_step(replicas, spec, step, microbatches=4)
    for name, wanted in as_a_whole(spec, 2).items():
        np.testing.assert_allclose(replicas[0].state().values[name], wanted, atol=2e-6, err_msg=name)
    assert len({replica.digest() for replica in replicas}) == 1


@pytest.mark.parametrize(("how", "denominator"), [("mean", float(MICROBATCH)), ("added", 0.0)])
def test_records_of_a_loss_of_the_models_own_are_counted_exactly(how: str, denominator: float, job: Any) -> None:
    """A sum adds up as it is, whose denominator is told as 0."""
    spec = job("own", model="judging", model_params={"how": how})
    replica = replica_of(spec)
    assert replica.compute(0, 0, read(replica, spec), 0).denominator == denominator


def test_a_root_of_the_models_own_is_refused(job: Any) -> None:
    with pytest.raises(UserCodeError, match="neither a sum nor a mean"):
        replica_of(job("own", model="judging", model_params={"how": "root"}))


def test_heads_of_one_denominator_are_one_objective(job: Any) -> None:
    spec = job("alike_heads", model="heads")
    replica = replica_of(spec)
    given = replica.compute(0, 0, read(replica, spec), 0)
    counted = sum(int(label != 0) for label in read(replica, spec).content.labels)
    first = replica._source.first(RECORDS).labels[:16]
    assert given.denominator == pytest.approx(16 * counted / int((first != 0).sum()), rel=1e-5)


def test_a_mean_over_records_counts_them_exactly(job: Any) -> None:
    """Else the last bits of all jobs would change."""
    spec = job("mean")
    replica = replica_of(spec)
    assert replica.compute(0, 0, read(replica, spec), 0).denominator == MICROBATCH


@pytest.mark.parametrize(
    ("loss", "model"),
    [
        ("contrastive", "net"),
        ("pairs", "net"),
        ("root", "net"),
        ("standardised", "net"),
        ("largest", "net"),
        ("added_and_regularised", "net"),
        ("drawing", "net"),
        ("two_heads", "heads"),
    ],
)
def test_a_loss_that_parts_cannot_make_is_refused_before_the_first_update(loss: str, model: str, job: Any) -> None:
    spec = job(loss, model=model)
    with pytest.raises(UserCodeError, match="--microbatches") as refused:
        replica_of(spec)
    assert "--microbatches 1" in refused.value.fix
    if loss == "contrastive":
        replica_of(dataclasses.replace(spec, microbatches=1))


def test_a_part_that_is_masked_as_a_whole_leaves_the_update_to_the_others(job: Any) -> None:
    """Its own loss is NaN, which failed the job."""
    spec = job("ignoring")
    replica = replica_of(spec)
    read_one = read(replica, spec)
    masked = dataclasses.replace(read_one.content, labels=torch.zeros(MICROBATCH, dtype=torch.int64))
    other = replica.compute(0, 0, read_one, 0)
    arrays = [array.copy() for array in other.arrays]
    none = replica.compute(0, 1, dataclasses.replace(read_one, content=masked), 0)
    assert (none.rows, none.loss, none.denominator) == (MICROBATCH, 0.0, 0.0)
    assert other.fraction + none.fraction == other.fraction
    kept = copied(replica.state())
    replica.apply(arrays, other.rows, 0)
    alone = copied(replica.state())
    replica.load(kept)
    replica.apply([one + two for one, two in zip(arrays, none.arrays, strict=True)], other.rows + none.rows, 0)
    for name, value in replica.state().values.items():
        np.testing.assert_array_equal(value, alone.values[name], err_msg=name)
    with pytest.raises(NotFiniteError, match="nan in each part"):
        replica.apply(replica.compute(2, 0, dataclasses.replace(read_one, content=masked), 0).arrays, MICROBATCH, 0)
    skipping = replica_of(dataclasses.replace(spec, on_nan="skip"))
    left_out = skipping.compute(0, 1, dataclasses.replace(read_one, content=masked), 0)
    assert (left_out.rows, left_out.skips.records) == (0, MICROBATCH)


def test_the_axis_of_the_records_is_the_one_that_follows_their_number() -> None:
    """Else outputs by time were cut by time; here as many moments as records, and texts of other lengths."""

    def some(records: int, length: int) -> dict[str, torch.Tensor]:
        shapes = {
            "time": (32, records, 3),
            "first": (records, 32),
            "rows": (4 * records, 3),
            "length": (length, records),
        }
        return {name: torch.zeros(shape) for name, shape in shapes.items()}

    axes = axes_by(some(32, 9), 32, some(31, 7), 31)
    assert axes == [1, 0, 0, 1]
    given = some(32, 9)
    moved = records_first(given, axes)
    assert [len(one) for one in moved.values()] == [32, 32, 4 * 32, 32]
    back = as_they_were(moved, axes)
    assert [one.shape for one in back.values()] == [one.shape for one in given.values()]
    assert are_certain(torch.zeros(32, 3), 32) and not are_certain(given, 32)


class Clamped(torch.autograd.Function):
    """What it is given, with a gradient that is clipped."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        return given.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.clamp(-1e-3, 1e-3)


def test_a_loss_that_clips_its_own_gradient_is_refused_in_words_of_that() -> None:
    """It was called neither a sum nor a mean, which by its values it is."""

    def loss(labels: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(Clamped.apply(given), labels)  # type: ignore[no-untyped-call]

    draw = torch.Generator().manual_seed(1)
    with pytest.raises(UserCodeError, match="the gradient of the model's outputs does not grow as the loss does"):
        TorchDenominators(loss, torch.randn(32, generator=draw), 9.0 + torch.randn(32, generator=draw), 32)


def test_a_loss_that_breaks_its_form_later_is_refused_then() -> None:
    """Two heads count the same records at first."""
    weights = torch.tensor([1.0, 1.0, 5.0])

    def loss(labels: torch.Tensor, given: dict[str, torch.Tensor]) -> torch.Tensor:
        second = functional.cross_entropy(given["second"], labels, weight=weights)
        return functional.cross_entropy(given["first"], labels) + second

    draw = torch.Generator().manual_seed(1)
    given = {name: torch.randn(32, 3, generator=draw) for name in ("first", "second")}
    labels = torch.arange(32) % 2
    denominators = TorchDenominators(loss, labels, given, 32)
    for found, refused in ((labels, False), (labels + 1, True)):
        denominators.keep(found, given)
        with pytest.raises(UserCodeError, match="neither a sum nor") if refused else contextlib.nullcontext():
            assert denominators.of(32, float(loss(found, given))) == 32


@pytest.mark.parametrize(("function", "allowed"), [("mean", True), ("added", True), ("weighed", False)])
def test_parts_of_other_shapes_than_the_first_records_must_be_means(function: str, allowed: bool) -> None:
    """As of texts that are padded to the longest of a minibatch."""
    loss = {
        "mean": lambda labels, given: functional.cross_entropy(given.transpose(1, 2), labels),
        "added": lambda labels, given: functional.cross_entropy(given.transpose(1, 2), labels, reduction="sum"),
        "weighed": lambda labels, given: functional.cross_entropy(given.transpose(1, 2), labels, ignore_index=0),
    }[function]
    draw = torch.Generator().manual_seed(1)

    def some(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(0, 3, [rows, length], generator=draw)
        return labels, torch.randn(rows, length, 3, generator=draw)

    denominators = TorchDenominators(loss, *some(8, 5), rows=8)
    for rows, words in ((6, "other parts do not have"), (1, "a part of one record has another shape")):
        labels, given = some(rows, 7)
        denominators.keep(labels, given)
        with contextlib.nullcontext() if allowed else pytest.raises(UserCodeError, match=words):
            assert denominators.of(rows, float(loss(labels, given))) == (1.0 if function == "added" else rows)


def test_outputs_may_have_many_rows_for_each_record() -> None:
    """As of language models that give the words of all texts in one row."""

    def some(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = torch.Generator().manual_seed(rows)
        return torch.randint(0, 3, [rows, length], generator=draw), torch.randn(rows * length, 3, generator=draw)

    def loss(labels: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(given, labels.reshape(-1))

    denominators = TorchDenominators(loss, *some(8, 5), rows=8)
    for rows, length in ((6, 5), (1, 5), (4, 7), (1, 7)):
        labels, given = some(rows, length)
        denominators.keep(labels, given)
        assert denominators.of(rows, float(loss(labels, given))) == rows


def test_rounding_in_16_bits_is_no_other_objective() -> None:
    draw = torch.Generator().manual_seed(1)

    def some(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(0, 3, [rows], generator=draw), torch.randn(rows, 3, generator=draw).bfloat16()

    def loss(labels: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(given, labels)

    denominators = TorchDenominators(loss, *some(32), rows=32, close=CLOSE_OF_HALF)
    for rows in (32, 5):
        labels, given = some(rows)
        denominators.keep(labels, given)
        assert denominators.of(rows, float(loss(labels, given))) == rows


def test_outputs_keep_the_class_that_a_model_gives_them() -> None:
    class Named(OrderedDict):  # type: ignore[type-arg]
        """As models of transformers return it."""

        @property
        def logits(self) -> torch.Tensor:
            return self["logits"]

    @dataclasses.dataclass
    class Made:
        logits: torch.Tensor

    given, labels = torch.randn(8, 3), torch.arange(8) % 3
    for outputs in (Named(logits=given), Made(given)):
        denominators = TorchDenominators(
            lambda labels, found: functional.cross_entropy(
                found.logits, labels, weight=torch.tensor([1.0, 2.0, 3.0])
            ),
            labels,
            outputs,
            8,
        )
        denominators.keep(labels, outputs)
        assert denominators.of(8, float("nan")) == 8.0


def test_a_local_run_weighs_parts_with_the_bits_of_members(job: Any, tmp_path: Path) -> None:
    spec = job("weighed", num_minibatches_per_task=2)
    members = [replica_of(spec) for _ in range(2)]
    for number in range(RECORDS // spec.minibatch_size):
        make_step(members, spec, number, microbatches=2)
    events: list[Any] = []
    run_local(dataclasses.replace(spec, export_formats="safetensors"), tmp_path / "out", events.append)
    exported = load_file(tmp_path / "out" / "model.safetensors")
    for name, value in members[0].state().values.items():
        np.testing.assert_array_equal(exported[name].numpy(), value, err_msg=name)


@pytest.mark.parametrize("model", ["clamped", "clamped_afterwards", "clamped_between"])
def test_gradients_that_are_changed_by_their_size_in_the_backward_pass_are_refused_in_parts(
    model: str, job: Any
) -> None:
    with pytest.raises(UserCodeError, match="does not grow as the loss does") as refused:
        replica_of(job("mean", model=model))
    assert "GradientClipping" in str(refused.value.fix)
    replica_of(job("mean", 1, model=model))


def test_a_hook_that_masks_gradients_trains_in_parts_what_plain_pytorch_trains(job: Any) -> None:
    spec = job("mean", model="some_frozen")
    replica = replica_of(spec)
    make_step([replica], spec, 0, microbatches=2)
    for name, wanted in as_a_whole(spec, 1).items():
        np.testing.assert_allclose(replica.state().values[name], wanted, atol=2e-6, err_msg=name)
