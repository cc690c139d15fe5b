"""Reading logs: incarnations in order, rotation while they are read, no more than was asked for."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from elasticdl_agent.processes.logs import MAX_FILES, read_logs
from elasticdl_agent.processes.shim import RotatingLog
from elasticdl_core.errors import NotFoundError
from elasticdl_core.ports.launcher import Role

pytestmark = pytest.mark.unit


async def read(folder: Path, tail: int | None = None, since: float | None = None) -> bytes:
    pieces = read_logs(folder, Role.WORKER, 1, tail=tail, follow=False, may_grow=lambda: False, since=since)
    return b"".join([piece async for piece in pieces])


async def test_incarnations_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for incarnation in (10, 2, 1):
        (tmp_path / f"worker-1.{incarnation}.log").write_text(f"{incarnation};")
    (tmp_path / "worker-1.2.log.1").write_text("before 2;")
    for other in ("worker-11.1.log", "ps-1.1.log", "worker-1.1.log.bak", "worker-1.x.log"):
        (tmp_path / other).write_text("not mine")
    assert await read(tmp_path) == b"1;before 2;2;10;"
    assert await read(tmp_path, tail=5) == b"2;10;"
    assert await read(tmp_path, tail=0) == b""


async def _until_quiet(pieces: AsyncGenerator[bytes]) -> bytes:
    """What a followed log has until all of it was read and nothing prints any more."""
    found = b""
    async with contextlib.aclosing(pieces):
        while piece := await anext(pieces):
            found += piece
    return found


async def test_nothing_is_lost_or_doubled_when_a_file_is_rotated_under_the_reader(tmp_path: Path) -> None:
    log = RotatingLog(str(tmp_path / "worker-1.1.log"), limit=10)
    log.write(b"first--")
    steps = iter([b"second-", b"third--", None])

    def grow() -> bool:
        data = next(steps)
        if data is not None:
            log.write(data)
        return data is not None

    pieces = read_logs(tmp_path, Role.WORKER, 1, tail=None, follow=True, may_grow=grow)
    assert await _until_quiet(pieces) == b"first--second-third--"
    assert (tmp_path / "worker-1.1.log.1").read_bytes() == b"second-"
    assert (tmp_path / "worker-1.1.log").read_bytes() == b"third--"


@pytest.mark.parametrize(("many", "gone"), [(0, 0), (3, 0), (6, 0), (7, 3), (9, 3), (10, 6), (31, 27)])
async def test_a_log_whose_first_lines_were_dropped_says_so(tmp_path: Path, many: int, gone: int) -> None:
    """48.6 MB of output began at line 157,001 without a word."""
    log = RotatingLog(str(tmp_path / "worker-1.1.log"), limit=9)
    lines = [b"%2d\n" % number for number in range(many)]
    for line in lines:
        log.write(line)
    kept = b"".join(lines[gone:])
    if not many:
        (tmp_path / "worker-1.1.log").touch()
    head, said, rest = (await read(tmp_path)).partition(b" MiB of a process\n")
    if not gone:
        assert (head, said) == (kept, b"")
        return
    assert f"{gone:,} lines before ({3 * gone:,} bytes) were dropped".encode() in head
    assert rest == kept
    assert await read(tmp_path, tail=6) == kept[-6:], "who asks for the end only misses nothing"
    (tmp_path / "worker-1.1.log.dropped").write_text("nonsense")
    assert await read(tmp_path) == kept


async def test_an_unknown_process_is_not_found(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NotFoundError):
            await read(folder)


def test_a_log_that_cannot_be_written_any_more_loses_output_only(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = RotatingLog(str(folder / "worker-1.1.log"), limit=4)
    log.write(b"abc")
    for file in list(folder.iterdir()):
        file.unlink()
    folder.rmdir()
    log.write(b"defgh")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("trap", ["pipe", "link", "hard link", "device", "folder"])
async def test_what_a_job_puts_among_its_logs_is_neither_read_nor_waited_for(tmp_path: Path, trap: str) -> None:
    (tmp_path / "token").write_text("canary")
    folder = tmp_path / "jobs" / "mine" / "logs"
    folder.mkdir(parents=True)
    (folder / "worker-1.1.log").write_text("what it printed")
    path = folder / "worker-1.2.log"
    if trap == "pipe":
        os.mkfifo(path)
    elif trap == "link":
        path.symlink_to(tmp_path / "token")
    elif trap == "hard link":
        path.hardlink_to(tmp_path / "token")
    elif trap == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    assert await read(folder) == b"what it printed"
    assert await read(folder, tail=4) == b"nted"


async def test_a_folder_of_logs_that_is_a_link_is_none(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "worker-1.1.log").write_text("canary")
    (tmp_path / "jobs" / "mine").mkdir(parents=True)
    (tmp_path / "jobs" / "mine" / "logs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotFoundError):
        await read(tmp_path / "jobs" / "mine" / "logs")


async def test_a_thousand_files_named_like_logs_open_only_the_newest(tmp_path: Path) -> None:
    for incarnation in range(1_000):
        (tmp_path / f"worker-1.{incarnation}.log").write_text("x")
    assert await read(tmp_path) == b"x" * MAX_FILES


@pytest.mark.timeout(20)
@pytest.mark.parametrize("trap", ["pipe", "link"])
def test_a_log_is_written_to_no_pipe_and_through_no_link(tmp_path: Path, trap: str) -> None:
    (tmp_path / "theirs").write_text("canary")
    path = tmp_path / "worker-1.1.log"
    os.mkfifo(path) if trap == "pipe" else path.symlink_to(tmp_path / "theirs")
    log = RotatingLog(str(path), limit=4)
    log.write(b"abc")
    log.write(b"def")
    assert (path.read_bytes(), (tmp_path / "worker-1.1.log.1").read_bytes()) == (b"def", b"abc")
    assert (tmp_path / "theirs").read_text() == "canary"


class Clock:
    """A time that is told."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    """A log of two lines at 0 s, half a line at 10 s, its rest with another at 20 s, and three until 30.9 s."""
    clock = Clock()
    log = RotatingLog(str(tmp_path / "worker-1.1.log"), limit=1000, clock=clock)
    start = clock.now
    for at, data in ((0, b"a\nb\n"), (10, b"c-"), (20, b"c\nd\n"), (30, b"e\n"), (30.4, b"f\n"), (30.9, b"g\n")):
        clock.now = start + at
        log.write(data)
    log.close()
    clock.now = start
    return clock


@pytest.mark.parametrize(
    ("since", "shown"),
    [
        (-5, b"a\nb\nc-c\nd\ne\nf\ng\n"),
        (0, b"a\nb\nc-c\nd\ne\nf\ng\n"),
        (5, b"c-c\nd\ne\nf\ng\n"),
        (15, b"c-c\nd\ne\nf\ng\n"),  # the line goes on at 20 s
        (25, b"e\nf\ng\n"),
        (30.5, b"e\nf\ng\n"),  # a second more, and never less
        (32, b""),
    ],
)
async def test_what_was_printed_since_a_time_begins_with_a_line(
    tmp_path: Path, clock: Clock, since: float, shown: bytes
) -> None:
    assert await read(tmp_path, since=clock.now + since) == shown
    assert await read(tmp_path, tail=4, since=clock.now + since) == shown[-4:]


async def test_times_go_on_over_rotation_and_new_incarnations(tmp_path: Path) -> None:
    clock, start = Clock(), Clock().now
    for incarnation in (1, 2):
        log = RotatingLog(str(tmp_path / f"worker-1.{incarnation}.log"), limit=6, clock=clock)
        for _ in range(3):
            log.write(b"%d\n" % (clock.now - start))
            clock.now += 10
        log.close()
    assert await read(tmp_path) == b"0\n10\n20\n30\n40\n50\n"
    assert await read(tmp_path, since=start + 15) == b"20\n30\n40\n50\n"
    assert await read(tmp_path, since=start + 45) == b"50\n"
    again = RotatingLog(str(tmp_path / "worker-1.2.log"), limit=100, clock=clock)
    again.write(b"60\n")
    assert await read(tmp_path, since=start + 55) == b"60\n"


async def test_a_log_whose_times_are_lost_is_left_out_only_if_it_ended_before(tmp_path: Path, clock: Clock) -> None:
    for spoil in (b"", b"1\n0 0\n", b"x\n" * 9, b"-1 -1\n", b"\xff" * 100):
        (tmp_path / "worker-1.1.log.times").write_bytes(spoil)
        os.utime(tmp_path / "worker-1.1.log", (clock.now + 30, clock.now + 30))
        assert await read(tmp_path, since=clock.now + 25) == await read(tmp_path)
        assert await read(tmp_path, since=clock.now + 35) == b""


async def test_times_are_read_from_no_pipe_and_through_no_link(tmp_path: Path, clock: Clock) -> None:
    times = tmp_path / "worker-1.1.log.times"
    times.unlink()
    os.mkfifo(times)
    os.utime(tmp_path / "worker-1.1.log", (clock.now + 30, clock.now + 30))
    assert await read(tmp_path, since=clock.now + 25) == await read(tmp_path)
    log = RotatingLog(str(tmp_path / "worker-1.1.log"), limit=1000, clock=clock)
    log.write(b"h\n")
    assert times.is_file()


async def test_a_clock_that_is_set_back_shows_more_and_never_less(tmp_path: Path) -> None:
    clock, start = Clock(), Clock().now
    log = RotatingLog(str(tmp_path / "worker-1.1.log"), limit=1000, clock=clock)
    for at in (100, 0, 10):
        clock.now = start + at
        log.write(b"%d\n" % at)
    assert (await read(tmp_path, since=start + 5)).endswith(b"10\n")


@pytest.mark.parametrize("ending", [b"", b"no end"])
@pytest.mark.parametrize(
    "sizes", [(0,), (3, 0), (1, 70_000, 2), (300_000, 5, 300_000, 1), (262_143, 262_144, 262_145)]
)
async def test_the_last_lines_are_whole_and_those_of_the_end(
    tmp_path: Path, sizes: tuple[int, ...], ending: bytes
) -> None:
    text = b"".join(b"x" * size + b"\n" for size in sizes) + ending
    cuts = [0, len(text) // 3, len(text) // 2, len(text)]
    for number, (start, end) in enumerate(itertools.pairwise(cuts)):
        (tmp_path / f"worker-1.{number}.log").write_bytes(text[start:end])
    whole = text.splitlines(keepends=True)
    for lines in range(len(whole) + 2):
        wanted = b"".join(whole[-lines:]) if lines else b""
        pieces = read_logs(tmp_path, Role.WORKER, 1, tail=None, follow=False, may_grow=lambda: False, lines=lines)
        assert b"".join([piece async for piece in pieces]) == wanted, lines


async def test_what_is_printed_while_the_last_lines_are_looked_for_moves_nothing(tmp_path: Path) -> None:
    """Followed logs began in the middle of a line: their beginning was looked for in one call and read in another."""
    path = tmp_path / "worker-1.0.log"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(100)))
    steps = iter([b"more\n", b"and more\n", None])

    def grow() -> bool:
        data = next(steps)
        if data is not None:
            with path.open("ab") as file:
                file.write(data)
        return data is not None

    pieces = read_logs(tmp_path, Role.WORKER, 1, tail=None, follow=True, may_grow=grow, lines=2)
    assert await _until_quiet(pieces) == b"line 98\nline 99\nmore\nand more\n"
