"""Reading logs: incarnations in order, rotation while they are read, no more than was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl_agent.processes.logs import read_logs
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
