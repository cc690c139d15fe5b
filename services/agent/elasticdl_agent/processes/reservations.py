"""Slots that processes which are not ours take: named, above all jobs, remembered across restarts.

A reservation asks for slots and is granted those that no worker holds; the rest is granted as workers leave. No
worker starts on a slot that is asked for, granted or not, so that what is freed goes to who waits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.ports.launcher import SlotReservation
from elasticdl_runtime import durable

DEFAULT_GRACE_S = 30.0
"""Time that workers have to leave slots that are reserved, unless the reservation says otherwise."""
_MAX_GRACE_S = 600.0
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Entry:
    slots: int
    grace_s: float
    changed_at: float
    granted: int = 0
    granted_at: float | None = None
    ends_at: float = float("inf")


class Reservations:
    """The reservations of one machine.

    Args:
        path: a JSON file that keeps them; its folder exists.
        slots: worker slots of the machine.
        headroom: slots that no worker takes, for reservations to come.
    """

    def __init__(self, path: Path, slots: int, headroom: int = 0) -> None:
        if not 0 <= headroom < slots:
            raise InvalidInputError(
                f"a headroom of {headroom} of {slots} slots leaves no slot for jobs",
                fix="set ELASTICDL_HEADROOM to 0, or to less than the slots",
            )
        self._path = path
        self._slots = slots
        self.headroom = headroom
        self._entries: dict[str, _Entry] = _read(path, slots)

    @property
    def wanted(self) -> int:
        """Slots that are asked for."""
        return sum(entry.slots for entry in self._entries.values())

    @property
    def withheld(self) -> int:
        """Slots that no worker may start on."""
        return min(self._slots, max(self.wanted, self.headroom))

    def all(self) -> list[SlotReservation]:
        """The reservations, oldest first."""
        return [
            SlotReservation(name, entry.slots, entry.granted, entry.grace_s, entry.changed_at, entry.granted_at)
            for name, entry in self._entries.items()
        ]

    def set(self, name: str, slots: int, grace_s: float, *, now: float, clock: float) -> None:
        """Makes or changes a reservation; asking again for the same does nothing.

        Args:
            name: who takes the slots.
            slots: how many.
            grace_s: seconds that workers have to leave them.
            now: seconds since the epoch.
            clock: the same moment on the clock that ``overdue`` is asked with.

        Raises:
            InvalidInputError: the name is malformed, or a number is out of range.
            OSError: it cannot be kept, and all is as before.
        """
        self._check(name, slots, grace_s)
        known = self._entries.get(name)
        if known is not None and (known.slots, known.grace_s) == (slots, grace_s):
            return
        entry = replace(known) if known is not None else _Entry(0, grace_s, now)
        if slots > entry.slots:
            entry.ends_at, entry.granted_at = clock + grace_s, None
        entry.slots, entry.grace_s, entry.changed_at = slots, grace_s, now
        entry.granted = min(entry.granted, slots)
        self._keep({**self._entries, name: entry})

    def release(self, name: str) -> bool:
        """Gives the slots back; returns whether there was such a reservation.

        Raises:
            OSError: that cannot be kept, and it is there as before.
        """
        if name not in self._entries:
            return False
        self._keep({other: entry for other, entry in self._entries.items() if other != name})
        return True

    def grant(self, busy: int, *, now: float) -> None:
        """Grants what no worker holds, oldest reservation first; what was granted stays so.

        Args:
            busy: slots that workers hold.
            now: seconds since the epoch.
        """
        free = self._slots - busy - sum(entry.granted for entry in self._entries.values())
        for entry in self._entries.values():
            more = max(0, min(entry.slots - entry.granted, free))
            entry.granted += more
            free -= more
            if entry.granted == entry.slots and entry.granted_at is None:
                entry.granted_at, entry.ends_at = now, float("inf")

    def overdue(self, clock: float) -> int:
        """Slots that workers should have left by now."""
        return sum(entry.slots - entry.granted for entry in self._entries.values() if entry.ends_at <= clock)

    def _check(self, name: str, slots: int, grace_s: float) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidInputError(
                f"{name!r} is not the name of a reservation", fix="use 1-63 lower-case letters, digits, inner dashes"
            )
        others = sum(entry.slots for other, entry in self._entries.items() if other != name)
        if not 0 <= slots <= self._slots - others:
            raise InvalidInputError(
                f"{slots} slots cannot be reserved: this machine has {self._slots}, others have {others}",
                fix=f"reserve 0 to {self._slots - others} slots",
            )
        if not 0.0 <= grace_s <= _MAX_GRACE_S:
            raise InvalidInputError(
                f"a grace of {grace_s} s is out of range", fix=f"give between 0 and {_MAX_GRACE_S:.0f} seconds"
            )

    def _keep(self, entries: dict[str, _Entry]) -> None:
        """Writes reservations down, and only then takes them for made: the next agent knows of no others."""
        data = {
            name: {"slots": entry.slots, "grace_s": entry.grace_s, "changed_at": entry.changed_at}
            for name, entry in entries.items()
        }
        durable.write(self._path, json.dumps(data))
        self._entries = entries


def _read(path: Path, slots: int) -> dict[str, _Entry]:
    """Reads the reservations that an earlier agent kept; those that no longer fit the machine are cut."""
    if not path.is_file():
        return {}
    try:
        data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        entries = {
            str(name): _Entry(int(item["slots"]), float(item["grace_s"]), float(item["changed_at"]))
            for name, item in data.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        _log.error("the reservations of slots cannot be read and are forgotten", path=str(path))
        return {}
    for entry in entries.values():
        entry.slots = min(entry.slots, slots)
        slots -= entry.slots
    return entries
