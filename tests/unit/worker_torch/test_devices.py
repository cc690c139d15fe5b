"""Which device a worker computes on, and how values come to it and back."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn, optim
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.device_turns import DeviceGrant
from elasticdl_worker.local import run_local
from elasticdl_worker.trainers.torch.device import (
    HOST,
    arrays_of,
    fill,
    find_device,
    move_memory,
    move_model,
    place,
    run_backward,
    seed_of,
)
from elasticdl_worker.trainers.torch.nested import map_tensors

pytestmark = pytest.mark.unit
META = torch.device("meta")
"""Like an accelerator, its numbers are not in the host's memory; unlike one, they are nowhere."""


def accelerator() -> torch.device | None:
    return torch.accelerator.current_accelerator(check_available=True)


IS_HERE = pytest.mark.skipif(accelerator() is None, reason="no accelerator that PyTorch can use is at hand")
IS_NOT_HERE = pytest.mark.skipif(accelerator() is not None, reason="PyTorch can use an accelerator here")


def test_without_a_grant_a_worker_computes_on_the_cpu() -> None:
    assert find_device(DeviceGrant()) == HOST


@IS_NOT_HERE
def test_a_granted_device_that_torch_cannot_use_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match=r"was given gpu0, and PyTorch .* can use no accelerator") as caught:
        find_device(DeviceGrant("gpu0"))
    assert "install the build of PyTorch" in caught.value.fix


@IS_NOT_HERE
def test_a_declared_device_has_the_cpu_behind_it() -> None:
    assert find_device(DeviceGrant("gpu0", declared=True)) == HOST


@IS_NOT_HERE
def test_a_local_job_that_asks_for_a_device_never_trains_without_one(make_spec: Any, tmp_path: Path) -> None:
    spec = make_spec(model_def="clicks.deepfm", worker_resource_request="gpu=1")
    with pytest.raises(InvalidInputError, match="can use no accelerator"):
        run_local(spec, tmp_path / "output", lambda event: None)
    assert not (tmp_path / "output").exists()


@IS_HERE
def test_a_local_job_may_ask_for_nccl_where_workers_may(make_spec: Any, tmp_path: Path) -> None:
    asked = {"worker_resource_request": "gpu=1", "collective": "nccl", "deterministic": False}
    spec = make_spec(model_def="clicks.deepfm", distribution_strategy="AllReduceStrategy", **asked)
    has_nccl = torch.cuda.is_available() and torch.distributed.is_nccl_available()
    with contextlib.nullcontext() if has_nccl else pytest.raises(InvalidInputError, match="NCCL"):
        run_local(spec, tmp_path / "output", lambda event: None)


@IS_HERE
def test_a_local_job_trains_on_the_accelerator_as_on_the_cpu(make_spec: Any, tmp_path: Path) -> None:
    found = {}
    for asked in ("", "gpu=1"):
        spec = make_spec(model_def="clicks.deepfm", worker_resource_request=asked, num_epochs=2)
        run_local(spec, tmp_path / f"output{asked}", lambda event: None)
        found[asked] = safetensors.torch.load_file(tmp_path / f"output{asked}" / "model.safetensors")
    for name, value in found[""].items():
        np.testing.assert_allclose(found["gpu=1"][name].numpy(), value.numpy(), atol=1e-3, err_msg=name)


Pair = namedtuple("Pair", "ids values")  # what a feed may give without types


@dataclasses.dataclass(frozen=True)
class Batch:
    image: torch.Tensor
    name: str


def test_minibatches_of_any_form_are_placed() -> None:
    one = torch.ones(2)
    given = {
        "list": [one, (one, 3)],
        "named": Pair(one, {"deep": torch.zeros(1)}),
        "class": Batch(torch.ones(4), "four"),
        "packed": pack_sequence([torch.ones(3), torch.ones(2)]),
        "text": "as it is",
        "none": None,
    }
    found: Any = place(given, META)
    first, (second, number) = found["list"]
    assert first.device == META and second is first and number == 3
    assert type(found["named"]) is Pair and found["named"].ids is first
    assert found["named"].values["deep"].device == META
    assert (found["class"].image.device, found["class"].name) == (META, "four")
    assert isinstance(found["packed"], PackedSequence) and found["packed"].data.device == META
    assert (found["text"], found["none"]) == ("as it is", None)
    assert given["class"].image.device == HOST  # type: ignore[attr-defined]


def test_what_is_on_the_host_is_placed_there_without_a_copy() -> None:
    one = torch.ones(2)
    assert place([one], HOST)[0] is one


def test_ids_that_are_a_feature_stay_one_tensor() -> None:
    ids, placed = torch.arange(3), dict[int, torch.Tensor]()
    features: Any = place({"ids": ids}, META, placed)
    assert place(ids, META, placed) is features["ids"]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.elsewhere = nn.Embedding(5, 2, device="meta")
        self.register_buffer("counts", torch.zeros(3))
        self.register_buffer("own", torch.zeros(3), persistent=False)


def test_parameters_and_buffers_move_and_stay_what_they_are() -> None:
    net = Tied()
    before = [id(one) for one in (*net.parameters(), *net.buffers())]
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    move_model(net, META)
    assert [id(one) for one in (*net.parameters(), *net.buffers())] == before
    assert {one.device for one in (*net.parameters(), *net.buffers())} == {META}
    assert net.second.weight is net.first.weight and net.first.weight.requires_grad
    assert optimizer.param_groups[0]["params"][0] is net.first.weight


def test_what_an_optimizer_remembers_moves_with_the_parameters() -> None:
    net = nn.Linear(2, 2)
    optimizer = optim.Adagrad(net.parameters())
    move_model(net, META)
    move_memory(optimizer)
    assert {state["sum"].device for state in optimizer.state.values()} == {META}
    assert {state["step"].device for state in optimizer.state.values()} == {HOST}


def test_arrays_come_back_as_they_were() -> None:
    tensors = [torch.arange(6.0).view(2, 3), torch.tensor(4), torch.zeros(0), torch.tensor([True, False])]
    # As from another device, and as they are.
    for device in (META, HOST):
        arrays = arrays_of(tensors, device)
        for tensor, array in zip(tensors, arrays, strict=True):
            assert array.shape == tuple(tensor.shape) and array.dtype == tensor.numpy().dtype
            np.testing.assert_array_equal(array, tensor.numpy())
    targets = [torch.ones(2, 3), torch.tensor(1), torch.zeros(0), torch.tensor([False, False])]
    fill(targets, arrays)
    for tensor, target in zip(tensors, targets, strict=True):
        assert torch.equal(tensor, target)


def test_gradients_are_computed_in_the_thread_that_asks() -> None:
    weight = torch.ones(2, requires_grad=True)
    run_backward((weight * 3).sum())
    assert weight.grad is not None and weight.grad.tolist() == [3.0, 3.0]


@IS_HERE
def test_a_model_trains_on_the_accelerator_as_on_the_cpu() -> None:
    device = find_device(DeviceGrant("gpu0"))
    features, labels = torch.randn(16, 4), torch.randn(16, 1)
    found = {}
    for where in (HOST, device):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        seen: list[float] = []
        net[0].weight.register_hook(lambda gradient, seen=seen: seen.append(float(gradient.abs().max())))
        move_model(net, where)
        optimizer = optim.Adam(net.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            run_backward(nn.functional.mse_loss(net(place(features, where)), place(labels, where)))
            optimizer.step()
        found[where] = arrays_of([*net.parameters()], where)
        assert len(seen) == 3
    for ours, theirs in zip(found[device], found[HOST], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@IS_HERE
def test_the_generator_of_the_accelerator_is_seeded() -> None:
    device = find_device(DeviceGrant("gpu0"))
    drawn = []
    for _ in range(2):
        seed_of(device)(7)
        drawn.append(torch.randn(4, device=device).cpu())
    assert torch.equal(*drawn)


class Attributes(dict[str, Any]):
    """A library's kind of ``dict``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def test_kinds_of_dicts_stay_what_they_are() -> None:
    """The loss of a part asked a plain ``dict`` for ``predictions.logits``."""
    given = Attributes(logits=torch.ones(2), inner=Attributes(more=torch.zeros(3)))
    for made in (place(given, META), map_tensors(torch.Tensor.detach, given)):
        assert made is not given and type(made.inner) is Attributes
        assert (made.logits.shape, made.inner.more.shape) == ((2,), (3,))
    assert given.logits.device == HOST
