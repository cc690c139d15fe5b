"""Learning rate schedulers of PyTorch, asked by model version instead of counting their own steps."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import optim
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from elasticdl_core.contract import Subject, refusal
from elasticdl_core.errors import UserCodeError

_MOMENTA = ("momentum", "betas")


class SchedulerRates:
    """The learning rates that a scheduler of PyTorch gives after so many steps.

    Schedulers count: each rate follows from the one before. So the rates of all versions up to the present one are
    made once, and kept.

    Args:
        optimizer: the user's, whose groups tell the first rates.
        make: makes the scheduler.
        guard: what the user's code runs in.

    Raises:
        UserCodeError: it is no scheduler, or one that nobody could ask by version.
    """

    def __init__(
        self,
        optimizer: optim.Optimizer,
        make: Callable[[optim.Optimizer], LRScheduler],
        guard: Callable[[str], Any],
    ) -> None:
        self._guard = guard
        self._lock = threading.Lock()
        # A stand-in of SGD, so that the user's own optimizer keeps its rates; other options are those of its groups.
        self._stand_in = optim.SGD(
            [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": float(g["lr"])} for g in optimizer.param_groups]
        )
        for mine, theirs in zip(self._stand_in.param_groups, optimizer.param_groups, strict=True):
            mine.update({key: value for key, value in theirs.items() if key not in ("params", "lr", "param_names")})
        self._stand_in.defaults.update(optimizer.defaults)
        self._first_others = self._others()
        scheduler = make(self._stand_in)
        if isinstance(scheduler, ReduceLROnPlateau):
            raise refusal(Subject.TORCH_SCHEDULER, "ReduceLROnPlateau", "the scheduler ReduceLROnPlateau")
        if not isinstance(scheduler, LRScheduler):
            raise UserCodeError(
                f"what makes the learning rate scheduler returned a {type(scheduler).__name__}",
                fix="return one of torch.optim.lr_scheduler, e.g. StepLR(optimizer, 100)",
            )
        self._scheduler = scheduler
        self._name = type(scheduler).__name__
        if scheduler.optimizer is not self._stand_in:
            raise UserCodeError(
                f"what makes the {self._name} makes it of another optimizer than it is given",
                fix="make it of the argument, e.g. lambda optimizer: StepLR(optimizer, 100)",
            )
        if _cycles_momentum(scheduler):
            raise refusal(Subject.TORCH_SCHEDULER, "cycle_momentum", f"the scheduler {self._name}")
        self._check_others()
        self._rates = [self._now()]

    def __call__(self, version: int, epoch: int) -> tuple[float, ...]:
        """The rate of each group after ``version`` steps."""
        with self._lock:
            if version >= len(self._rates):
                with self._guard("the learning rate scheduler"), warnings.catch_warnings():
                    # That steps of the scheduler come before those of the optimizer is what asking ahead means.
                    warnings.simplefilter("ignore")
                    while version >= len(self._rates):
                        self._scheduler.step()
                        self._check_others()
                        self._rates.append(self._now())
            return self._rates[version]

    def _check_others(self) -> None:
        """Refuses a scheduler that changed an option which is not the learning rate."""
        for before, now in zip(self._first_others, self._others(), strict=True):
            for option, value in before.items():
                if now.get(option) != value:
                    if option in _MOMENTA:
                        raise refusal(Subject.TORCH_SCHEDULER, "cycle_momentum", f"the scheduler {self._name}")
                    shown = f"the scheduler {self._name}, which changes {option},"
                    raise refusal(Subject.TORCH_SCHEDULER, "other_option", shown)

    def _now(self) -> tuple[float, ...]:
        return tuple(float(group["lr"]) for group in self._stand_in.param_groups)

    def _others(self) -> list[dict[str, object]]:
        """The options of each group but its rate and what it has; those that a scheduler adds are its own."""
        own = ("params", "lr", "initial_lr", "param_names")
        return [{key: value for key, value in one.items() if key not in own} for one in self._stand_in.param_groups]


def _cycles_momentum(scheduler: object) -> bool:
    """Whether a scheduler, or one that it is made of, will change the momentum, though not in its first step."""
    inner = getattr(scheduler, "_schedulers", ())
    return bool(getattr(scheduler, "cycle_momentum", False)) or any(_cycles_momentum(one) for one in inner)
