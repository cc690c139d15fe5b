"""What an agent that starts again takes from its journal, and whom it ends by it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elasticdl_agent.processes.journal import RETENTION_S, Journal, Record, recover, shim_record
from elasticdl_core.ports.launcher import ProcessId, ProcessState, ProcessStatus, Role

pytestmark = pytest.mark.unit


def status(index: int, state: ProcessState = ProcessState.EXITED) -> ProcessStatus:
    return ProcessStatus(
        ProcessId("job-1", Role.WORKER, index, 0), state, 0 if state is ProcessState.EXITED else None
    )


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own session, which waits."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    yield process
    assert process.stdin is not None
    process.stdin.close()
    process.wait(30)


def written(path: Path, *records: Record) -> Path:
    journal = Journal(path)
    for record in records:
        journal.append(record)
    journal.close()
    return path


def test_what_an_earlier_agent_left_running_is_ended(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    record = shim_record(status(0, ProcessState.RUNNING), other.pid)
    (found,) = recover(written(tmp_path / "j", record))
    assert (found.status.state, found.status.reason) == (ProcessState.EXITED, "launcher_lost")
    assert other.wait(30) == -9


def test_a_process_that_has_the_number_of_an_old_one_is_let_be(
    tmp_path: Path, other: subprocess.Popen[bytes]
) -> None:
    """Numbers of processes come again, after a restart of the machine within seconds."""
    record = shim_record(status(0, ProcessState.RUNNING), other.pid)
    recover(written(tmp_path / "j", replace(record, shim_started=record.shim_started - 60)))
    assert other.stdin is not None
    other.stdin.close()
    assert other.wait(30) == 1, "it ended by itself, without a line to read"


def test_the_last_word_on_each_process_counts_and_old_ends_are_forgotten(tmp_path: Path) -> None:
    now = time.time()
    path = written(
        tmp_path / "j",
        Record(status(0, ProcessState.PENDING), now - 9),
        Record(status(1), now - RETENTION_S - 1),
        Record(status(2), now - RETENTION_S + 60),
        Record(status(0), now - 5),
    )
    with path.open("a") as file:
        file.write('{"job": "cut off by a power fail')
    kept = recover(path, now=now)
    assert [(one.status, one.at) for one in kept] == [(status(0), now - 5), (status(2), now - RETENTION_S + 60)]
    assert recover(path, now=now) == kept, "the file says in short what it said"
