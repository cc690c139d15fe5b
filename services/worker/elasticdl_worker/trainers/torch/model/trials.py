"""Runs of a model that leave no trace: on a copy of it, with buffers and generators of random numbers put back."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedBuffer, is_lazy

from elasticdl_worker.trainers.torch.device import HOST
from elasticdl_worker.user_code.modules import imported_from

OwnGenerator: TypeAlias = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
_KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class KeptBuffers:
    """The buffers that a model has, put back after it ran in inference mode, whatever it did to them.

    Args:
        net: the model.
    """

    def __init__(self, net: nn.Module) -> None:
        self._homes = [(module._buffers, name) for module in net.modules() for name in module._buffers]

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """A context after which the buffers are the objects that they were, with the numbers that they had."""
        before = [
            (held, name, tensor, tensor.detach().clone())
            for held, name in self._homes
            if (tensor := held.get(name)) is not None and not is_lazy(tensor)
        ]
        try:
            yield
        finally:
            with torch.no_grad():
                for held, name, tensor, value in before:
                    if held.get(name) is not tensor:
                        held[name] = tensor
                    _put_back(tensor, value)


def _put_back(tensor: torch.Tensor, value: torch.Tensor) -> None:
    if tensor.is_meta or (tensor.device == HOST and tensor.shape == value.shape and torch.equal(tensor, value)):
        return
    if tensor.shape == value.shape:
        tensor.detach().copy_(value)
    else:
        tensor.data = value


def trial_of(net: nn.Module, shared: Iterable[torch.Tensor] = ()) -> nn.Module | None:
    """A copy of a model to be run once; None where it cannot be copied.

    Args:
        net: the model.
        shared: tensors that the copy has in common with it.
    """
    memo: dict[int, Any] = {id(one): one for one in shared}
    for module in net.modules():
        for value in vars(module).values():
            if isinstance(value, _KINDS):
                memo[id(value)] = value  # ``generators_kept`` puts them back
            elif isinstance(value, torch.Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()  # PyTorch copies no others
        for buffer in module._buffers.values():
            if isinstance(buffer, UninitializedBuffer):  # which PyTorch copies of parameters alone
                make: Any = UninitializedBuffer
                memo[id(buffer)] = make(device=buffer.device, dtype=buffer.dtype)
    try:
        return copy.deepcopy(net, memo)
    except Exception:  # what a user's objects raise
        return None


@contextlib.contextmanager
def generators_kept(net: nn.Module, roots: Sequence[Path], device: torch.device = HOST) -> Iterator[None]:
    """A context after which all generators of random numbers go on as if nobody had drawn from them.

    Args:
        net: the model, whose generators are among them.
        roots: directories of the user's files, whose generators are as well.
        device: whose generator is, too.
    """
    own = [(one, _state_of(one)) for one in find_generators(net, roots)]
    numpy_state, python_state, torch_state = np.random.get_state(), random.getstate(), torch.get_rng_state()
    of_device = None if device == HOST else torch.get_device_module(device).get_rng_state(device)
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        torch.set_rng_state(torch_state)
        if of_device is not None:
            torch.get_device_module(device).set_rng_state(of_device, device)
        for generator, state in own:
            _set_state(generator, state)


def find_generators(net: nn.Module, roots: Sequence[Path]) -> list[OwnGenerator]:
    """The generators that a model and the user's files hold, in an order that is the same in each process.

    Args:
        net: the model.
        roots: directories of the user's files.
    """
    holders = [*(vars(layer) for layer in net.modules()), *(names for _, names in imported_from(roots))]
    found = {id(value): value for holder in holders for value in list(holder.values()) if isinstance(value, _KINDS)}
    return list(found.values())


def _state_of(generator: OwnGenerator) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _set_state(generator: OwnGenerator, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


class LazyLayers:
    """The lazy layers of a model, made in it by what they were given when a copy of it ran.

    Args:
        net: the model.
        trial: the copy, before it runs.
    """

    def __init__(self, net: nn.Module, trial: nn.Module) -> None:
        self._net = net
        self._given: dict[str, tuple[Any, ...]] = {}
        for name, layer in trial.named_modules():
            if isinstance(layer, LazyModuleMixin):
                lazy: Any = layer
                if not lazy.has_uninitialized_params():
                    continue

                def note(_: Any, *given: Any, name: str = name) -> None:
                    self._given.setdefault(name, given)

                lazy.register_forward_pre_hook(note, prepend=True, with_kwargs=True)

    def make(self) -> None:
        """Makes those that ran, in the order in which they did."""
        for name, given in self._given.items():
            layer: Any = self._net.get_submodule(name)
            layer._infer_parameters(layer, *given)


def tensor_names(net: nn.Module) -> set[str]:
    """Names of all parameters and buffers."""
    kinds = (net.named_parameters(remove_duplicate=False), net.named_buffers(remove_duplicate=False))
    return {name for named in kinds for name, _ in named}
