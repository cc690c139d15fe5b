"""Reading logs: incarnations in order, rotation while they are read, no more than was asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticdl_agent.processes.logs import MAX_FILES, read_logs
from elasticdl_agent.processes.shim import RotatingLog
from elasticdl_core.errors import NotFoundError
from elasticdl_core.ports.launcher import Role

pytestmark = pytest.mark.unit


async def read(folder: Path, tail: int | None = None) -> bytes:
    pieces = read_logs(folder, Role.WORKER, 1, tail=tail, follow=False, may_grow=lambda: False)
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


async def test_nothing_is_lost_or_doubled_when_a_file_is_rotated_under_the_reader(tmp_path: Path) -> None:
    log = RotatingLog(str(tmp_path / "worker-1.1.log"), limit=10)
    log.write(b"first--")
    steps = iter([b"second-", b"third--", None])

    def grow() -> bool:
        data = next(steps)
        if data is not None:
            log.write(data)
        return data is not None

    pieces = []
    async for piece in read_logs(tmp_path, Role.WORKER, 1, tail=None, follow=True, may_grow=grow):
        pieces.append(piece)
    assert b"".join(pieces) == b"first--second-third--"
    assert (tmp_path / "worker-1.1.log.1").read_bytes() == b"second-"
    assert (tmp_path / "worker-1.1.log").read_bytes() == b"third--"


async def test_an_unknown_process_is_not_found(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NotFoundError):
            await read(folder)


def test_a_log_that_cannot_be_written_any_more_loses_output_only(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = RotatingLog(str(folder / "worker-1.1.log"), limit=4)
    log.write(b"abc")
    (folder / "worker-1.1.log").unlink()
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
