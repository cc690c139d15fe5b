"""Since when the database has known what is in the data directory: files of before are nobody's to remove.

A database that is empty, another one's, or restored from a backup has no rows of files that are very much needed. So
directory and database count together how often they have met. One that has counted less than the directory has not
been there all the time, and knows what was made from now on.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import structlog

from elasticdl_api.store.retention import RetentionStore
from elasticdl_runtime import durable
from elasticdl_runtime.cluster.paths import KNOWN_FILES
from elasticdl_runtime.lifecycle import in_thread

SPARED_S = 3600.0
"""How long processes of jobs that a database does not know go on when it is new here."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KnownIds:
    """The content of the directory's file.

    Attributes:
        name: of the directory, drawn once.
        looks: how often a database was asked for it.
        since: when the database began to know what is made there, in seconds since the epoch.
        replaced: when it took the place of one that knew more, or of itself at a later time; 0 for never.
    """

    name: str
    looks: int
    since: float
    replaced: float = 0.0

    @classmethod
    def read(cls, file: Path) -> KnownIds | None:
        """The content of a file; None where there is none, or it says something else."""
        try:
            found = json.loads(file.read_bytes())
            return cls(
                str(found["name"]), int(found["looks"]), float(found["since"]), float(found.get("replaced", 0))
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


async def look(directory: Path, store: RetentionStore) -> KnownIds:
    """The state of a database's knowledge of a data directory; this is one of the looks that are counted.

    Raises:
        UnavailableError: the database is down.
        OSError: the directory cannot be written.
    """
    file = directory / KNOWN_FILES
    before = await in_thread(lambda: KnownIds.read(file))
    name = before.name if before is not None else secrets.token_hex(8)
    known = KnownIds(name, await store.count_look(name), time.time())
    if before is not None and known.looks > before.looks:
        known = replace(known, since=before.since, replaced=before.replaced)
    elif before is not None:
        known = replace(known, replaced=known.since)
        _log.warning(
            "the database does not know what was in the data directory before: files of no job stay, and its "
            f"processes for {SPARED_S / 60:.0f} minutes",
            directory=str(directory),
            fix="if it is the wrong database, name the right one; else remove by hand what is not needed",
        )
    content = json.dumps(asdict(known))
    await in_thread(lambda: durable.write(file, content))
    return known


async def is_new(directory: Path, store: RetentionStore) -> bool:
    """Whether the database has just taken another one's place, or nobody can tell: somebody may not have noticed yet.

    Raises:
        UnavailableError: the database is down.
    """
    try:
        return time.time() - (await look(directory, store)).replaced < SPARED_S
    except OSError as error:
        _log.warning("it cannot be kept what the database knows", directory=str(directory), error=str(error))
        return True
