"""Numbers of this process, which the agent reads on request."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from elasticdl_core.meters import MeterKey, require_meter

_gauges: dict[MeterKey, Callable[[], float | None]] = {}
_tables: dict[str, Callable[[], Mapping[MeterKey, float | None]]] = {}


def show(name: str, read: Callable[[], float | None], label: str = "") -> None:
    """Shows a number that is read whenever somebody asks; on the event loop, so it must be quick.

    Args:
        name: of a meter of the table.
        read: reads it; None while there is no such number.
        label: value of the meter's label.

    Raises:
        LookupError: there is no such meter.
    """
    require_meter(name, label)
    _gauges[name, label] = read


def show_all(owner: str, read: Callable[[], Mapping[MeterKey, float | None]]) -> None:
    """Shows numbers that are read together.

    Args:
        owner: who shows them; the same one again replaces what it showed before.
        read: reads them; what is None is not there now.
    """
    _tables[owner] = read


def show_disk(folder: Path) -> None:
    """Shows how much room there is where that folder lies."""
    show("elasticdl_data_disk_free_bytes", lambda: shutil.disk_usage(folder).free)
    show("elasticdl_data_disk_size_bytes", lambda: shutil.disk_usage(folder).total)


def read() -> list[tuple[str, str, float]]:
    """All values: names, label values, numbers."""
    values: list[tuple[str, str, float]] = []
    for key, reading in list(_gauges.items()):
        _add(values, partial(_read_one, key, reading))
    for table in list(_tables.values()):
        _add(values, table)
    return values + _of_process()


def _read_one(key: MeterKey, reading: Callable[[], float | None]) -> dict[MeterKey, float | None]:
    return {key: reading()}


def _add(values: list[tuple[str, str, float]], reading: Callable[[], Mapping[MeterKey, float | None]]) -> None:
    try:
        for (name, label), number in reading().items():
            if number is not None:
                require_meter(name, label)
                values.append((name, label, float(number)))
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, OSError):
        return  # it is not there at this moment


def _of_process() -> list[tuple[str, str, float]]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    values = [
        ("elasticdl_process_cpu_seconds_total", "", used.ru_utime + used.ru_stime),
        ("elasticdl_process_threads", "", float(threading.active_count())),
    ]
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
        values.append(("elasticdl_process_resident_memory_bytes", "", float(pages * os.sysconf("SC_PAGE_SIZE"))))
        values.append(("elasticdl_process_open_fds", "", float(len(os.listdir("/proc/self/fd")))))  # noqa: PTH208
    return values
