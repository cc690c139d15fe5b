"""Since when the database has known what is in the data directory: files of before are nobody's to remove.

A database that is empty, another one's, or restored from a backup has no rows of files that are very much needed. So
directory and database count together how often they have met. One that has counted less than the directory has not
been there all the time, and knows what was made from now on.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from elasticdl_api.store.retention import RetentionStore
from elasticdl_runtime import durable
from elasticdl_runtime.cluster.paths import KNOWN_FILES
from elasticdl_runtime.lifecycle import in_thread

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Known:
    """The content of the directory's file.

    Attributes:
        name: of the directory, drawn once.
        looks: how often a database was asked for it.
        since: when the database began to know what is made there, in seconds since the epoch.
    """

    name: str
    looks: int
    since: float

    @classmethod
    def read(cls, file: Path) -> Known | None:
        """The content of a file; None where there is none, or it says something else."""
        try:
            found = json.loads(file.read_bytes())
            return cls(str(found["name"]), int(found["looks"]), float(found["since"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


async def known_since(directory: Path, store: RetentionStore) -> float:
    """Since when the database has known the files of a data directory; this is one of the looks that are counted.

    Raises:
        UnavailableError: the database is down.
        OSError: the directory cannot be written.
    """
    file = directory / KNOWN_FILES
    before = await in_thread(lambda: Known.read(file))
    name = before.name if before is not None else secrets.token_hex(8)
    looks, since = await store.count_look(name), time.time()
    if before is not None and looks > before.looks:
        since = before.since
    elif before is not None:
        _log.warning(
            "the database does not know what was in the data directory before: files of no job stay",
            directory=str(directory),
            fix="remove by hand what is not needed",
        )
    content = json.dumps(asdict(Known(name, looks, since)))
    await in_thread(lambda: durable.write(file, content))
    return since
