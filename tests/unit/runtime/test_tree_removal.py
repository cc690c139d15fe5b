"""Folders that a tenant has filled go, whatever is in them, and nothing beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticdl_runtime import tree_removal
from elasticdl_runtime.backup_files import BackupWriter
from elasticdl_runtime.tree_removal import remove_tree

pytestmark = pytest.mark.unit
NOBODY = 65534


def deep(root: Path, depth: int = 2100) -> None:
    """A folder too deep for any path, and for Python's stack."""
    root.mkdir()
    current = os.open(root, os.O_RDONLY)
    for number in range(depth):
        os.mkdir("d", dir_fd=current)
        if number % 500 == 0:
            os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=current))
        inner = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = inner
    os.close(current)


def long_names(root: Path) -> None:
    (root / ("x" * 255) / ("y" * 255) / ("z" * 255)).mkdir(parents=True)
    (root / ("x" * 255) / ("f" * 255)).write_text("")


def many(root: Path) -> None:
    for folder in ("a", "b/c"):
        (root / folder).mkdir(parents=True)
        for number in range(25):
            (root / folder / str(number)).write_text("")


def closed(root: Path) -> None:
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "f").write_text("")
    for path, mode in ((root / "a" / "b", 0), (root / "a", 0o500), (root, 0o500)):
        path.chmod(mode)


def odd(root: Path) -> None:
    (root / "sub").mkdir(parents=True)
    os.mkfifo(root / "pipe")
    (root / "sub" / "link").symlink_to(root.parent / "kept")
    (root / "away").symlink_to(root.parent / "kept", target_is_directory=True)
    Path(os.fsdecode(os.fsencode(root / "sub") + b"/\xff")).mkdir()


def single(root: Path) -> None:
    root.write_text("")


def link(root: Path) -> None:
    root.symlink_to(root.parent / "kept", target_is_directory=True)


@pytest.mark.parametrize("fill", [deep, long_names, many, closed, odd, single, link, lambda _: None])
def test_all_goes_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fill: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(tree_removal, "_AT_ONCE", 10)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("")
    fill(tmp_path / "root")
    assert remove_tree(tmp_path / "root") is None
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == ["kept", "kept/file"]


def test_folders_without_permission_go_for_who_owns_them(tmp_path: Path) -> None:
    """As somebody who is not root, to whom modes mean something."""
    root = tmp_path / "root"
    closed(root)
    if os.geteuid() != 0:
        assert remove_tree(root) is None and not root.exists()
        return
    for path in (tmp_path, root, root / "a", root / "a" / "b", root / "a" / "b" / "f"):
        os.chown(path, NOBODY, NOBODY)
    source = Path(tree_removal.__file__).read_text()
    # The place of the test may be closed to others, but not to who stands in it.
    program = (
        "import os; from pathlib import Path; os.setgroups([]); os.setresgid(*[{0}] * 3); os.setresuid(*[{0}] * 3)"
    )
    call = f"{source}\n{program.format(NOBODY)}\nprint(remove_tree(Path('root')))"
    done = subprocess.run(
        [sys.executable, "-c", call], capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path
    )
    assert (done.stdout, root.exists()) == ("None\n", False)


def test_what_cannot_go_is_told_and_all_else_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    many(root)
    unlink = os.unlink

    def keep_one(name: str, *, dir_fd: int) -> None:
        if name == "7":
            raise PermissionError(1, "not this one")
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", keep_one)
    failed = remove_tree(root)
    assert failed is not None and failed.strerror == "not this one"
    assert [path.name for path in root.rglob("*") if path.is_file()] == ["7", "7"]
    monkeypatch.undo()
    assert remove_tree(root) is None and not root.exists()


def test_a_deep_folder_does_not_end_a_backup(tmp_path: Path) -> None:
    deep(tmp_path / "root", 1200)
    writer = BackupWriter(tmp_path / "backup.tar")
    try:
        writer.add_tree(tmp_path / "root", "jobs/a")
    finally:
        writer.abandon()
        assert remove_tree(tmp_path / "root") is None
