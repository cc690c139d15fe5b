"""A member's shares of checkpoints: copied between two steps, written while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from elasticdl_worker.group.state_files import CheckpointPart
from elasticdl_worker.master.group_client import WrittenShare


class ShareWriter:
    """Writes shares of checkpoints, each in a thread of its own.

    Args:
        tell: told of each share that is written or could not be; called from such a thread.
    """

    def __init__(self, tell: Callable[[WrittenShare], None]) -> None:
        self._tell = tell
        self._threads: list[threading.Thread] = []

    def begin(self, order: int, part: CheckpointPart, directory: str, metadata: str) -> None:
        """Has a share written.

        Args:
            order: number of the master's order.
            part: a copy of this member's part of the state.
            directory: of the checkpoint.
            metadata: the group's at this version, in JSON.
        """
        header = part.header
        share = WrittenShare(order, header.index, header.num_ps, header.version)

        def write() -> None:
            self._tell(_written(share, part, directory, metadata))

        thread = threading.Thread(target=write, name="checkpoint", daemon=True)
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]
        thread.start()

    def wait(self, timeout_s: float) -> None:
        """Waits for the shares that are being written, for each so long at most."""
        for thread in self._threads:
            thread.join(timeout_s)


def _written(share: WrittenShare, part: CheckpointPart, directory: str, metadata: str) -> WrittenShare:
    try:
        file = part.write(directory)
    except OSError as error:
        return replace(share, trouble=error.strerror or str(error))
    except Exception as error:
        # The master waits for a word of each member, and asks again.
        return replace(share, trouble=f"{type(error).__name__}: {error}")
    return replace(
        share, name=file.name, size_bytes=file.size, sha256=file.sha256, model=part.describe(), metadata=metadata
    )
