"""The agent's memory of processes, on disk: after a restart it knows what it launched, and what became of it."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import structlog

from elasticdl_core.ports.launcher import ProcessId, ProcessState, ProcessStatus, Role
from elasticdl_runtime import durable

RETENTION_S = 7 * 24 * 3600.0
"""How long a process that has ended is remembered, counted from its end, when the agent restarts."""
_SAME_START_S = 0.05
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the journal.

    Attributes:
        status: what is known of the process.
        at: seconds since the epoch when it became known.
        shim_pid: id of the shim, of its session and group; 0 when there is none.
        shim_started: when the shim started, in seconds since the epoch: with the pid it names a process for ever.
    """

    status: ProcessStatus
    at: float
    shim_pid: int = 0
    shim_started: float = 0.0


class Journal:
    """Appends records to a file of JSON lines; one writer.

    Args:
        path: the file; its folder exists.

    Attributes:
        lines: those that were added since the file was written in short.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a", encoding="utf-8")
        self.lines = 0

    def append(self, record: Record) -> None:
        """Adds a record. It survives the agent's death at once, and the machine's within the kernel's write-back."""
        self._file.write(json.dumps(_to_json(record), separators=(",", ":")) + "\n")
        self._file.flush()
        self.lines += 1

    def compact(self, records: list[Record]) -> None:
        """Writes the file in short: these records, and nothing else."""
        _rewrite(self._path, records)
        self._file.close()
        self._file = self._path.open("a", encoding="utf-8")
        self.lines = 0

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def recover(path: Path, *, now: float | None = None) -> list[Record]:
    """Reads a journal that an earlier agent left and rewrites it in short.

    What was pending or running then is ``exited`` with the reason ``launcher_lost`` now; should its tree live still
    (its shim was killed), it is killed. Lines that cannot be read, such as one cut off by a power failure, are
    passed over.

    Returns:
        The last record of each process, in the order of launch.
    """
    now = time.time() if now is None else now
    records: dict[ProcessId, Record] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            record = _from_json(json.loads(line))
        except (ValueError, KeyError, TypeError):
            _log.warning("unreadable line in the journal of processes", path=str(path))
            continue
        records[record.status.id] = record
    kept = []
    for process, record in records.items():
        if record.status.state is not ProcessState.EXITED:
            _kill_leftover(record)
            lost = ProcessStatus(process, ProcessState.EXITED, -signal.SIGKILL, "launcher_lost")
            record = Record(lost, now)
        if record.at > now - RETENTION_S:
            kept.append(record)
    _rewrite(path, kept)
    return kept


def shim_record(status: ProcessStatus, shim_pid: int) -> Record:
    """A record of a process whose shim runs now."""
    try:
        started = psutil.Process(shim_pid).create_time()
    except psutil.NoSuchProcess:
        started = 0.0
    return Record(status, time.time(), shim_pid, started)


def _kill_leftover(record: Record) -> None:
    if not record.shim_pid:
        return
    try:
        shim = psutil.Process(record.shim_pid)
        if abs(shim.create_time() - record.shim_started) > _SAME_START_S:
            return
        _log.warning("killing what an earlier agent left", process=str(record.status.id), pid=record.shim_pid)
        os.killpg(record.shim_pid, signal.SIGKILL)
    except (psutil.Error, OSError):
        return


def _rewrite(path: Path, records: list[Record]) -> None:
    durable.write(path, "".join(json.dumps(_to_json(one), separators=(",", ":")) + "\n" for one in records))


def _to_json(record: Record) -> dict[str, Any]:
    status = record.status
    return {
        "job": status.id.job_id,
        "role": str(status.id.role),
        "index": status.id.index,
        "incarnation": status.id.incarnation,
        "state": str(status.state),
        "exit_code": status.exit_code,
        "reason": status.reason,
        "pid": status.pid,
        "at": record.at,
        "shim": [record.shim_pid, record.shim_started],
    }


def _from_json(data: dict[str, Any]) -> Record:
    process = ProcessId(str(data["job"]), Role(data["role"]), int(data["index"]), int(data["incarnation"]))
    code = data["exit_code"]
    status = ProcessStatus(
        process,
        ProcessState(data["state"]),
        None if code is None else int(code),
        str(data["reason"]),
        int(data["pid"]),
    )
    shim_pid, shim_started = data["shim"]
    return Record(status, float(data["at"]), int(shim_pid), float(shim_started))
