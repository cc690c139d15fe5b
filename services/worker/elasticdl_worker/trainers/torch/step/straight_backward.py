"""Sees whether a model's gradients grow as its loss does: only such gradients of parts are those of the whole."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch import nn

from elasticdl_worker.trainers.loss_denominators import GRADIENT_FACTORS, bent_gradients, is_bent
from elasticdl_worker.trainers.torch.model.trials import trial_of


def require_straight_backward(net: nn.Module, loss_of: Callable[[nn.Module], torch.Tensor]) -> None:
    """Refuses what clips or normalises gradients within the backward pass, by a copy of the model.

    A copy that cannot be had, or whose backward pass cannot be repeated, says nothing.

    Args:
        net: the model.
        loss_of: computes the loss of the first records with a copy of it in training mode.

    Raises:
        UserCodeError: a gradient is no multiple of what it was, where the loss is one.
    """
    trial = trial_of(net)
    if trial is None:
        return
    named = dict(trial.named_parameters())
    for name, parameter in net.named_parameters():
        _bring_hooks(parameter, named[name])
    found: list[dict[str, torch.Tensor]] = []
    with contextlib.suppress(Exception):  # what a user's objects raise is raised again by the first step
        loss = loss_of(trial.train())
        for factor in GRADIENT_FACTORS:
            with torch.autograd.set_multithreading_enabled(False):
                torch.autograd.backward(loss, torch.full_like(loss, factor), retain_graph=True)
            found.append({name: one.grad.to_dense() for name, one in named.items() if one.grad is not None})
            for one in named.values():
                one.grad = None
    if len(found) < len(GRADIENT_FACTORS):
        return
    for name, plain in found[0].items():
        for factor, other in zip(GRADIENT_FACTORS[1:], found[1:], strict=True):
            wanted = plain * factor
            apart = float(torch.linalg.vector_norm(other[name] - wanted)) if name in other else float("inf")
            if is_bent(apart, float(torch.linalg.vector_norm(wanted))):
                raise bent_gradients(name)


def _bring_hooks(parameter: torch.Tensor, copied: torch.Tensor) -> None:
    """Registers with a copied parameter the hooks of gradients, which PyTorch leaves behind."""
    if not copied.requires_grad:
        return
    for hook in (parameter._backward_hooks or {}).values():
        copied.register_hook(hook)  # type: ignore[no-untyped-call]
    for hook in (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values():
        copied.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
