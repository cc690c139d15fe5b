"""Rows taken by their positions, and distinct ids: the same numbers as PyTorch's own, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from elasticdl.torch.lookup import FoundRows, take_rows
from elasticdl_worker.trainers.torch.step import lookups

pytestmark = pytest.mark.unit


def bits(tensor: torch.Tensor | None) -> bytes:
    assert tensor is not None
    return tensor.detach().contiguous().numpy().tobytes()


def make(rows: int, dim: int, shape: tuple[int, ...], seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, positions of which many are equal, and a gradient that is not contiguous."""
    draw = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, dim, generator=draw)
    positions = (torch.rand(shape, generator=draw).pow(3) * rows).long()
    gradient = torch.randn(dim, *shape, generator=draw).movedim(0, -1) * 1e3
    return values, positions, gradient


@pytest.mark.parametrize("padding", [None, 0, 4])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("rows", "dim", "shape"),
    [(5, 1, (1,)), (5, 3, (0, 4)), (7, 1, (512, 10)), (300, 64, (512, 10)), (5000, 17, (64, 3, 40)), (9, 2, ())],
)
def test_rows_and_gradients_are_those_of_an_embedding(
    rows: int, dim: int, shape: tuple[int, ...], threads: int, padding: int | None
) -> None:
    values, positions, gradient = make(rows, dim, shape, seed=rows + dim)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ours, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
        taken = take_rows(FoundRows(ours, positions, padding))
        expected = nn.functional.embedding(positions, theirs, padding)
        assert bits(taken) == bits(expected)
        taken.backward(gradient)  # type: ignore[no-untyped-call]
        expected.backward(gradient)  # type: ignore[no-untyped-call]
        assert bits(ours.grad) == bits(theirs.grad)
    finally:
        torch.set_num_threads(before)


def test_gradients_of_gradients_are_those_of_an_embedding() -> None:
    values, positions, _ = make(20, 4, (32, 5), seed=1)
    found = []
    for own in (True, False):
        rows = values.clone().requires_grad_()
        looked_up = take_rows(FoundRows(rows, positions, 3)) if own else nn.functional.embedding(positions, rows, 3)
        (first,) = torch.autograd.grad(looked_up.tanh().sum(), rows, create_graph=True)
        first.square().sum().backward()  # type: ignore[no-untyped-call]
        found.append(rows.grad)
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_part_that_is_computed_again_gives_the_same_gradient(reentrant: bool) -> None:
    values, positions, gradient = make(20, 4, (32, 5), seed=2)
    rows, plain = values.clone().requires_grad_(), values.clone().requires_grad_()
    again = checkpoint(lambda one: take_rows(FoundRows(one, positions, None)).tanh(), rows, use_reentrant=reentrant)
    again.backward(gradient)
    nn.functional.embedding(positions, plain).tanh().backward(gradient)  # type: ignore[no-untyped-call]
    assert bits(rows.grad) == bits(plain.grad)


def test_sparse_gradients_stay_sparse() -> None:
    rows = torch.zeros(4, 2).requires_grad_()
    take_rows(FoundRows(rows, torch.tensor([1, 1]), None, sparse=True)).sum().backward()
    assert rows.grad is not None and rows.grad.is_sparse


@pytest.mark.parametrize("limit", [None, 60, 10_000_000])
@pytest.mark.parametrize("padding", [None, 0, 59, 31])
def test_distinct_ids_are_the_same_whichever_way_they_are_found(limit: int | None, padding: int | None) -> None:
    draw = np.random.default_rng(3)
    asked = [torch.from_numpy(draw.integers(0, 60, shape)) for shape in [(30, 2), (7,), (0, 3)]]
    distinct, positions, place = lookups._distinct(asked, padding, limit)
    together = torch.cat([ids.reshape(-1) for ids in asked])
    assert distinct.tolist() == sorted(set(together.tolist()) - {padding})
    assert place == (None if padding is None else len(distinct))
    shown = [*distinct.tolist(), padding]
    for ids, found in zip(asked, positions, strict=True):
        assert found.shape == ids.shape and found.dtype == torch.int64
        assert [shown[at] for at in found.reshape(-1).tolist()] == ids.reshape(-1).tolist()


@pytest.mark.parametrize("wrong", [-1, 60, -(2**63), 2**63 - 1])
def test_ids_out_of_range_are_left_to_the_check(wrong: int) -> None:
    distinct, _, _ = lookups._distinct([torch.tensor([5, wrong, 5])], None, 60)
    assert sorted(distinct.tolist()) == sorted([5, wrong])
    assert distinct.tolist() == sorted(distinct.tolist()), "the check looks at the first and the last"
