"""Turns of a shared device among real processes: one computes, others read meanwhile, and nobody waits for ever."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl_runtime.device_turns import DeviceTurn

pytestmark = pytest.mark.unit

NEIGHBOUR = """
import sys
from pathlib import Path
from elasticdl_runtime.device_turns import DeviceTurn
turn = DeviceTurn(Path(sys.argv[1]), patience_s=60.0)
log = open(sys.argv[2], "a", buffering=1)
for order in sys.stdin:
    if order.strip() == "read":
        log.write(f"{sys.argv[3]} read\\n")
    if order.strip() == "compute":
        with turn.held():
            log.write(f"{sys.argv[3]} begins\\n")
            log.write(f"{sys.argv[3]} ends\\n")
    if order.strip() == "keep":
        with turn.held():
            log.write(f"{sys.argv[3]} begins\\n")
            print("has it", flush=True)
            sys.stdin.readline()
            log.write(f"{sys.argv[3]} ends\\n")
    print(order.strip(), flush=True)
"""


class Neighbour:
    def __init__(self, file: Path, log: Path, name: str) -> None:
        argv = [sys.executable, "-c", NEIGHBOUR, str(file), str(log), name]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def order(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for name in ("gpu0.turn", "gpu0.turn.next"):
        (tmp_path / name).touch(mode=0o444)
    return tmp_path / "gpu0.turn"


@pytest.fixture
def neighbour(file: Path, tmp_path: Path) -> Iterator[Neighbour]:
    one = Neighbour(file, tmp_path / "log", "b")
    yield one
    one.end()


@pytest.fixture
def turn(file: Path) -> Iterator[DeviceTurn]:
    turn = DeviceTurn(file, patience_s=60.0)
    yield turn
    turn.close()


def test_one_reads_while_the_other_computes_and_computes_after_it(
    turn: DeviceTurn, neighbour: Neighbour, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with turn.held():
        neighbour.order("read")
        assert neighbour.answer() == "read"  # within our turn: reading needs none
        neighbour.order("compute")
        _await_waiter(log.with_name("gpu0.turn.next"))
        assert log.read_text() == "b read\n"
    assert neighbour.answer() == "compute"
    assert log.read_text() == "b read\nb begins\nb ends\n"


def test_who_lets_go_and_wants_it_back_comes_after_who_waited(
    turn: DeviceTurn, neighbour: Neighbour, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    for round_number in range(20):
        with turn.held():
            neighbour.order("compute")
            _await_waiter(log.with_name("gpu0.turn.next"))
        with turn.held():
            assert log.read_text().count("b ends") == round_number + 1
        assert neighbour.answer() == "compute"


def test_computing_never_overlaps_whoever_is_faster(file: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    crew = [Neighbour(file, log, name) for name in "abc"]
    try:
        for one in crew:
            for _ in range(50):
                one.order("compute")
        for one in crew:
            assert [one.answer() for _ in range(50)] == ["compute"] * 50
    finally:
        for one in crew:
            one.end()
    lines = log.read_text().splitlines()
    assert len(lines) == 300
    for begins, ends in zip(lines[::2], lines[1::2], strict=True):
        assert begins.endswith("begins") and ends == begins.replace("begins", "ends")


def test_the_death_of_the_holder_frees_the_turn(turn: DeviceTurn, neighbour: Neighbour) -> None:
    neighbour.order("keep")
    assert neighbour.answer() == "has it"
    neighbour.process.send_signal(signal.SIGKILL)
    with turn.held():
        assert (turn.taken, turn.missed) == (1, 0)


def test_a_neighbour_that_keeps_the_turn_costs_time_and_not_the_work(file: Path, neighbour: Neighbour) -> None:
    neighbour.order("keep")
    assert neighbour.answer() == "has it"
    neighbour.process.send_signal(signal.SIGSTOP)
    hasty = DeviceTurn(file, patience_s=0.05)
    with hasty.held():
        assert (hasty.taken, hasty.missed) == (0, 1)
    neighbour.process.send_signal(signal.SIGCONT)
    neighbour.order("done")
    assert neighbour.answer() == "keep"
    with hasty.held():
        assert (hasty.taken, hasty.missed) == (1, 1)
    hasty.close()


def test_a_turn_within_a_turn_is_the_same_one(turn: DeviceTurn, file: Path) -> None:
    with turn.held():
        with turn.held():
            assert turn.taken == 1
        other = os.open(file, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)


def test_threads_of_one_process_hold_it_one_at_a_time(turn: DeviceTurn) -> None:
    inside, most = 0, []

    def compute() -> None:
        nonlocal inside
        for _ in range(50):
            with turn.held():
                inside += 1
                most.append(inside)
                inside -= 1

    threads = [threading.Thread(target=compute) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (max(most), len(most), turn.taken) == (1, 150, 150)


def _await_waiter(file: Path) -> None:
    """Returns when somebody is the next for the turn."""
    fd = os.open(file, os.O_RDONLY)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.sched_yield()
    finally:
        os.close(fd)
