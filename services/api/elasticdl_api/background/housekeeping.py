"""Removes what is past its age, and measures what lies on disk, a bounded amount at a time.

Of all replicas one tidies up, once in a while. What it cannot do now it does the next time.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

import structlog

from elasticdl_api.background.known_files import look
from elasticdl_api.settings import ApiSettings
from elasticdl_api.store.retention import RetentionStore
from elasticdl_api.web import telemetry
from elasticdl_runtime import disk
from elasticdl_runtime.items import Items
from elasticdl_runtime.tree_removal import remove_tree

EVERY_S = 600.0
KEYS_DAYS = 7.0
CODE_DAYS = 1 / 24
"""How long the unpacked code of a job that is over stays: nobody reads it any more."""
STRAY_S = 86_400.0
"""Age at which files are taken for forgotten: of jobs and bundles that no row knows."""
MEASURED_AT_ONCE = 200
_MOST_BATCHES = 40
_MOST_FILES = 200_000
_log = structlog.get_logger(__name__)


class Housekeeping:
    """Tidies up, as the settings say.

    Args:
        settings: ages, and where files are.
        store: the rows.
        clock: monotonic seconds.
    """

    def __init__(
        self, settings: ApiSettings, store: RetentionStore, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._store = store
        self._cleared: dict[str, tuple[datetime, str]] = {}
        self._stuck: dict[str, set[str]] = {}
        self._items = Items("housekeeping", clock, tell=telemetry.tell_of("housekeeping"))
        self._round = self._items.begin()

    async def step(self) -> None:
        """Does a bounded amount of work, if it is this replica's turn.

        Raises:
            UnavailableError: the database is down.
        """
        if not await self._store.take_turn(EVERY_S):
            return
        self._round = self._items.begin()
        for what, work in self._works().items():
            await self._round.handle(what, work)
        await self._round.handle("disk", self._measure)
        self._round.end()

    def _works(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The pieces of work, by name."""
        settings, store = self._settings, self._store
        rows: dict[str, tuple[float, Callable[[], Awaitable[int]]]] = {
            "events": (settings.keep_events_days, lambda: store.remove_events(settings.keep_events_days)),
            "entries of the audit log": (
                settings.keep_audit_days,
                lambda: store.remove_audit(settings.keep_audit_days),
            ),
            "tokens": (settings.keep_tokens_days, lambda: store.remove_tokens(settings.keep_tokens_days)),
            "searches": (settings.keep_jobs_days, lambda: store.remove_searches(settings.keep_jobs_days)),
            "losses": (settings.keep_losses, lambda: store.thin_losses(settings.keep_losses)),
            "sessions": (1, store.remove_sessions),
            "idempotency keys": (KEYS_DAYS, lambda: store.remove_keys(KEYS_DAYS)),
            "bundles": (settings.keep_bundles_days, lambda: store.remove_bundles(settings.keep_bundles_days)),
        }
        works: dict[str, Callable[[], Awaitable[None]]] = {}
        if settings.keep_jobs_days:
            works["jobs"] = functools.partial(self._remove_jobs, settings.keep_jobs_days)
        for what, (keeps, remove) in rows.items():
            if keeps:
                works[what] = functools.partial(self._drain, what, remove)
        works["code"] = functools.partial(self._clear_folders, "code", CODE_DAYS)
        if settings.keep_logs_days:
            works["logs"] = functools.partial(self._clear_folders, "logs", settings.keep_logs_days)
        works["strays"] = self._remove_all_strays
        return works

    async def _remove_all_strays(self) -> None:
        settings, store = self._settings, self._store
        since = (await look(settings.data_dir, store)).since
        await self._remove_strays(settings.bundles_dir, store.list_bundles, _digest_of, since)
        await self._remove_strays(settings.data_dir / "jobs", store.list_jobs, lambda path: path.name, since)

    async def _remove_files(self, path: Path) -> None:
        """Removes a file or folder by itself: one that cannot be removed is put off, and does not keep the others."""

        async def remove() -> None:
            error = await asyncio.to_thread(remove_tree, path)
            if error is not None:
                raise error

        await self._round.handle(str(path), remove)

    async def _remove_jobs(self, days: float) -> None:
        for _ in range(_MOST_BATCHES):
            gone = await self._store.remove_jobs(days)
            for job_id in gone:
                await self._remove_files(self._settings.job_dir(job_id))
            if gone:
                _log.info("jobs removed for their age", jobs=len(gone))
            else:
                return

    async def _drain(self, what: str, remove: Callable[[], Awaitable[int]]) -> None:
        total = 0
        for _ in range(_MOST_BATCHES):
            removed = await remove()
            total += removed
            if not removed:
                break
        if total:
            _log.info("removed for their age", what=what, number=total)

    async def _clear_folders(self, name: str, days: float) -> None:
        """Removes one folder of each job that ended so long ago; a job is looked at once."""
        stuck = self._stuck.setdefault(name, set())
        for job_id in list(stuck):
            await self._clear_folder(name, job_id)
        for _ in range(_MOST_BATCHES):
            ended = await self._store.list_ended(days, self._cleared.get(name))
            for _, job_id in ended:
                await self._clear_folder(name, job_id)
            if not ended:
                return
            self._cleared[name] = ended[-1]

    async def _clear_folder(self, name: str, job_id: str) -> None:
        """Removes it, or remembers that it is still there."""
        path = self._settings.job_dir(job_id) / name
        await self._remove_files(path)
        if self._items.is_known(str(path)):
            self._stuck[name].add(job_id)
        else:
            self._stuck[name].discard(job_id)

    async def _remove_strays(
        self,
        folder: Path,
        known: Callable[[list[str]], Awaitable[frozenset[str]]],
        name_of: Callable[[Path], str],
        since: float,
    ) -> None:
        """Removes files that no row knows: left by an end in the wrong moment, or by what was just removed.

        What was there before the database knew of such files (``since``) stays.
        """
        limit = time.time() - STRAY_S
        old = await asyncio.to_thread(_made_between, folder, since, limit)
        names = {path: name_of(path) for path in old}
        # A name that is no text is no row's.
        present = await known([name for name in names.values() if name.isprintable()]) if names else frozenset()
        for path, name in names.items():
            if name not in present:
                _log.info("a file that belongs to nothing is removed", path=str(path))
                await self._round.handle(str(path), functools.partial(asyncio.to_thread, _remove_stray, path, limit))

    async def _measure(self) -> None:
        measured = {}

        async def measure(job_id: str) -> None:
            used = await asyncio.to_thread(disk.measure, [self._settings.job_dir(job_id)], _MOST_FILES)
            measured[job_id] = used.bytes

        for job_id in await self._store.list_unmeasured(MEASURED_AT_ONCE):
            await self._round.handle(f"disk of {job_id}", functools.partial(measure, job_id))
        await self._store.record_disk(measured)


def _remove_stray(path: Path, limit: float) -> None:
    """Removes a file or folder that nobody has put anew since it was found: what is put in its place is younger."""
    aside = path.with_name(f".stray-{path.name}")
    try:
        if path.lstat().st_mtime >= limit:
            return
        path.rename(aside)
        if aside.lstat().st_mtime >= limit:
            # It was replaced between these two lines. What is addressed by its content may be put back twice.
            aside.rename(path)
            return
    except FileNotFoundError:
        return
    error = remove_tree(aside)
    if error is not None:
        raise error


def _made_between(folder: Path, since: float, limit: float) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(one.path) for one in entries if since <= one.stat(follow_symlinks=False).st_mtime < limit]
    except OSError:
        return []


def _digest_of(path: Path) -> str:
    return f"sha256:{path.name.removesuffix('.zip')}"
