"""Shares of confined members: what comes into a checkpoint is what was told, whatever lies in its place."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from elasticdl_core.errors import ConflictError
from elasticdl_master.group_calls import Share
from elasticdl_master.handed_in_shares import HandedInShares

pytestmark = pytest.mark.unit
CONTENT = b"parameters" * 300_000
NAME = "ps-00000-of-00001.ckpt"


def share(name: str = NAME, size: int = len(CONTENT), content: bytes = CONTENT) -> Share:
    return Share(
        order=1,
        rank=0,
        size=1,
        version=7,
        name=name,
        bytes=size,
        sha256=hashlib.sha256(content).hexdigest(),
        model="",
        metadata=None,
    )


@pytest.fixture
def target(tmp_path: Path) -> Path:
    target = tmp_path / "checkpoints" / "version-7"
    target.mkdir(parents=True)
    (tmp_path / "work" / "version-7").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(CONTENT)
    return target


def test_a_share_is_copied_and_what_its_member_writes_later_is_not_in_it(target: Path) -> None:
    shares = HandedInShares(target.parents[1] / "work")
    with (shares.folder(target) / NAME).open("wb") as kept:
        kept.write(CONTENT)
        kept.flush()
        shares.take([share()], target)
        kept.write(b"more")
    assert (target / NAME).read_bytes() == CONTENT
    shares.remove(target)
    assert not shares.folder(target).exists()


@pytest.mark.parametrize("told", [share(size=5), share(content=b"other"), share(name="../../secret")])
def test_what_is_not_what_was_told_is_refused(target: Path, told: Share) -> None:
    shares = HandedInShares(target.parents[1] / "work")
    (shares.folder(target) / NAME).write_bytes(CONTENT)
    with pytest.raises(ConflictError):
        shares.take([told], target)


@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_no_link_is_followed(target: Path, make: object) -> None:
    shares = HandedInShares(target.parents[1] / "work")
    make(target.parents[1] / "secret", shares.folder(target) / NAME)  # type: ignore[operator]
    with pytest.raises(OSError):
        shares.take([share()], target)
    assert not (target / NAME).exists()


def test_a_pipe_is_not_waited_for(target: Path) -> None:
    shares = HandedInShares(target.parents[1] / "work")
    os.mkfifo(shares.folder(target) / NAME)
    with pytest.raises(OSError):
        shares.take([share()], target)
