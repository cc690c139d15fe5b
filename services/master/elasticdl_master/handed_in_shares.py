"""Shares of a checkpoint that members of a group wrote where they may write, taken to where they may not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from elasticdl_core.errors import ConflictError
from elasticdl_master.copied_files import copy_verified
from elasticdl_master.group_calls import Share
from elasticdl_runtime.tree_removal import remove_tree


class HandedInShares:
    """The folder in which confined members write: their job's checkpoints are closed to them.

    What is taken from it is copied, not moved: a member may keep a file open that it wrote.

    Args:
        base: a folder that members write in.
    """

    def __init__(self, base: Path) -> None:
        self._base = base

    def folder(self, directory: Path) -> Path:
        """The folder of members' shares of the checkpoint that goes to ``directory``; they make it."""
        return self._base / directory.name

    def take(self, shares: Sequence[Share], directory: Path) -> None:
        """Copies shares to their checkpoint.

        Raises:
            ConflictError: a share is not what its member said that it had written.
            OSError: the disk does not allow it.
        """
        for share in shares:
            if share.name != Path(share.name).name or not self._copied(share, directory):
                raise ConflictError(f"the share of member {share.rank} is not what it told", fix="it is written anew")

    def remove(self, directory: Path) -> None:
        """Removes what members wrote for a checkpoint."""
        remove_tree(self.folder(directory))

    def _copied(self, share: Share, directory: Path) -> bool:
        relative = f"{directory.name}/{share.name}"
        return copy_verified(self._base, relative, directory / share.name, share.bytes, share.sha256)
