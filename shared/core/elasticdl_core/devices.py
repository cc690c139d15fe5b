"""Accelerators that workers share: what a job may ask for, and which device gives it.

A share is counted in hundredths of ONE device, so that sums are exact; more than one are asked for as whole numbers.
The scheduler plans with the pool that the agent gives devices out of, so what is planned can be placed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from elasticdl_core.errors import InvalidInputError

WHOLE = 100
"""Hundredths that make a device."""
MOST_DEVICES = 64
"""What one worker may ask for, and what one machine may declare."""
Place: TypeAlias = "tuple[int, ...]"
"""The devices of one worker, by their numbers on the machine."""
REQUEST_FORM = "gpu=0.5 (hundredths of one device) or gpu=1, gpu=2, ... (whole devices)"
HIDING = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""Variables by which frameworks and their libraries find devices: the agent's to set."""
_AMOUNT = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,6})?")
_ELSEWHERE = {
    "cpu": "leave it out: a worker takes one slot of the cluster",
    "memory": "leave it out, and give worker_memory_mib (MiB), which is kept as a limit",
    "disk": "leave it out: what a job may have on disk is the cluster's to say",
    "ephemeral-storage": "leave it out: what a job may have on disk is the cluster's to say",
}


def parse_request(text: str) -> int:
    """Hundredths of a device that one worker asks for; 0 for none.

    Args:
        text: as a user writes it, such as ``gpu=0.5``; empty for none.

    Raises:
        InvalidInputError: it asks for something else, or for an amount that cannot be given.
    """
    if not text.strip():
        return 0
    share = 0
    for part in text.split(","):
        name, equals, amount = (piece.strip() for piece in part.partition("="))
        if name in _ELSEWHERE:
            raise InvalidInputError(f"{name} is not applied", fix=_ELSEWHERE[name])
        if name != "gpu" or not equals or share:
            raise InvalidInputError(f"{part.strip()[:40]!r} cannot be asked for", fix=f"give {REQUEST_FORM}")
        share = _parse_amount(amount)
    return share


def _parse_amount(amount: str) -> int:
    if not _AMOUNT.fullmatch(amount):
        raise InvalidInputError(f"gpu={amount[:40]} is no amount of devices", fix=f"give {REQUEST_FORM}")
    whole, _, fraction = amount.partition(".")
    fraction = fraction.rstrip("0")
    if len(fraction) > 2:
        raise InvalidInputError(f"gpu={amount} is finer than hundredths", fix=f"give {REQUEST_FORM}")
    share = int(whole) * WHOLE + int(fraction.ljust(2, "0") or 0)
    if share == 0:
        raise InvalidInputError("gpu=0 asks for no device", fix="leave it out")
    if share > WHOLE and share % WHOLE:
        raise InvalidInputError(
            f"gpu={amount} is neither a share of one device nor a number of whole ones", fix=f"give {REQUEST_FORM}"
        )
    if share > MOST_DEVICES * WHOLE:
        raise InvalidInputError(f"gpu={amount} is too much for one worker", fix=f"give gpu={MOST_DEVICES} or less")
    return share


def share_words(share: int) -> str:
    """An amount for people: ``0.5 of a GPU``, ``1 GPU``, ``2 GPUs``."""
    if share < WHOLE:
        return f"{share / WHOLE:g} of a GPU"
    return "1 GPU" if share == WHOLE else f"{share / WHOLE:g} GPUs"


class DevicePool:
    """The rest of each device of one machine.

    A share goes where least is left that still holds it, so that whole devices stay whole.

    Attributes:
        free: hundredths that are left, by the device's number.
    """

    __slots__ = ("free",)

    def __init__(self, free: Iterable[int]) -> None:
        self.free = list(free)

    def copy(self) -> DevicePool:
        """A pool of its own with the same amounts."""
        return DevicePool(self.free)

    def room(self, share: int) -> int:
        """The number of workers of that share that fit."""
        if share >= WHOLE:
            return sum(free >= WHOLE for free in self.free) // (share // WHOLE)
        return sum(max(free, 0) // share for free in self.free)

    def holds(self, share: int, place: Place) -> bool:
        """Whether that much is left at that place."""
        amount = min(share, WHOLE)
        return all(number < len(self.free) and self.free[number] >= amount for number in place)

    def find(self, share: int, avoid: Sequence[int] = ()) -> Place | None:
        """Finds the best place for one worker of that share; None if there is none.

        Args:
            share: hundredths.
            avoid: by device, what is spoken for in a weaker sense: taken only where nothing else is left.
        """
        amount, number = min(share, WHOLE), max(share // WHOLE, 1)
        spoken = list(avoid) or [0] * len(self.free)
        order = sorted(
            (i for i, free in enumerate(self.free) if free >= amount),
            key=lambda i: (self.free[i] - spoken[i] < amount, self.free[i] - spoken[i], i),
        )
        return tuple(sorted(order[:number])) if len(order) >= number else None

    def take(self, share: int, place: Place) -> None:
        """Takes a share at a place."""
        for number in place:
            if number < len(self.free):
                self.free[number] -= min(share, WHOLE)

    def give_back(self, share: int, place: Place) -> None:
        """Gives a share back."""
        for number in place:
            if number < len(self.free):
                self.free[number] += min(share, WHOLE)
