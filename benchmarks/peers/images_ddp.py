"""DistributedDataParallel of PyTorch over gloo with a small convolutional network, the data in memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from benchmarks.peers.torch_ddp import side_by_side  # first: it says which network gloo takes

# isort: split
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.training.images import pixels_and_labels
from benchmarks.training.processes import Train
from benchmarks.training.zoo import images_torch

_HELD: dict[str, Any] = {}


def start(arguments: dict[str, Any]) -> Train:
    """Builds the model, joins the group and gets the data into memory.

    Args:
        arguments: ``batch`` (of this process), ``rank``, ``world``, ``store``, ``threads``.
    """
    torch.set_num_threads(arguments["threads"])
    place = {"rank": arguments["rank"], "world_size": arguments["world"]}
    return side_by_side(make_step(int(arguments["batch"]), init_method=f"file://{arguments['store']}", **place))


def make_step(batch: int, **place: Any) -> Callable[[int], int]:
    """Joins the group; gives the function that makes a step by its number and returns its images.

    Args:
        batch: images of a step in this process.
        **place: where the group is; by default the environment says it.
    """
    dist.init_process_group("gloo", **place)
    torch.manual_seed(0)
    model = DistributedDataParallel(images_torch.forward())
    _HELD.update(model=model, values=copy.deepcopy(model.state_dict()))
    begin_anew()
    pixels, labels = (torch.from_numpy(values) for values in pixels_and_labels())
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1 + dist.get_rank()))
    images = pixels[order, None]
    labels = labels[order]
    count = len(labels) // batch

    def step(number: int) -> int:
        at = number % count * batch
        optimizer = _HELD["optimizer"]
        optimizer.zero_grad(set_to_none=True)
        images_torch.loss(labels[at : at + batch], model(images[at : at + batch])).backward()
        optimizer.step()
        return batch

    return step


def begin_anew() -> None:
    """The model and the optimizer are as they were at first."""
    model = _HELD["model"]
    model.load_state_dict(_HELD["values"])
    _HELD["optimizer"] = images_torch.optimizer()(model.parameters())
