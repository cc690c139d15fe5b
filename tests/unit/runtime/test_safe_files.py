"""Whatever lies where a file is expected: only plain files are opened, nothing blocks, no link is followed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticdl_runtime.safe_files import open_below, open_regular, read_regular

pytestmark = [pytest.mark.unit, pytest.mark.timeout(20)]


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


TRAPS: dict[str, Callable[[Path, Path], object]] = {
    "a link": lambda path, secret: path.symlink_to(secret),
    "a hard link": lambda path, secret: path.hardlink_to(secret),
    "a dangling link": lambda path, secret: path.symlink_to("nowhere"),
    "a link to itself": lambda path, secret: path.symlink_to(path),
    "a pipe": lambda path, secret: os.mkfifo(path),
    "a socket": lambda path, secret: _socket(path),
    "a link to a device": lambda path, secret: path.symlink_to("/dev/zero"),
}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("canary")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "jobs"
    path.mkdir()
    return path


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_a_trap_is_not_opened_for_reading(folder: Path, secret: Path, trap: Callable[[Path, Path], object]) -> None:
    trap(folder / "file", secret)
    with pytest.raises(FileNotFoundError):
        open_regular(folder, "file")
    with pytest.raises(FileNotFoundError):
        read_regular(folder, "file", 100)


def test_a_folder_that_is_a_link_leads_nowhere(folder: Path, secret: Path) -> None:
    (folder / "inner").symlink_to(secret.parent)
    for path in ("inner/secret", "../secret", "inner/../../secret", "/etc/passwd", "", ".", "a\0b"):
        with pytest.raises(FileNotFoundError):
            open_below(folder, path)


def test_a_plain_file_is_read_up_to_its_limit(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "file").write_bytes(b"12345")
    assert read_regular(folder, "inner/file", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(folder, "inner/file", 4)
