"""Paths that the jobs of a namespace may touch: roots from the settings, the namespace, and its own jobs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from elasticdl_api.settings import ApiSettings
from elasticdl_api.store.places import PlaceStore
from elasticdl_core.errors import InvalidInputError, PermissionDeniedError, Problem, SpecError, UnavailableError
from elasticdl_core.job import JobSpec
from elasticdl_core.path_policy import (
    DATA_FIELDS,
    READ_FIELDS,
    WRITTEN_FIELDS,
    PathPolicy,
    check_places,
    path_text,
    split_places,
    stores_written,
    without_wildcards,
)
from elasticdl_runtime.lifecycle import in_thread
from elasticdl_runtime.object_store import try_out
from elasticdl_runtime.path_checks import require_place

OPEN_FOLDERS = ("artifacts", "checkpoints")
"""What of a job's folder other jobs of its namespace may read."""
_FIELDS = (*READ_FIELDS, *WRITTEN_FIELDS, *DATA_FIELDS)


class PathPolicies:
    """Says what a job may touch.

    Args:
        settings: the cluster's own folder, and the data roots that all namespaces may read.
        places: what administrators said of namespaces, and whose jobs are whose.
    """

    def __init__(self, settings: ApiSettings, places: PlaceStore) -> None:
        self._settings = settings
        self._places = places
        # A store that does not answer holds up these threads alone.
        self._threads = ThreadPoolExecutor(4, "stores")

    async def of_namespace(self, namespace: str, spec: JobSpec) -> PathPolicy:
        """The paths that a job of a namespace with that specification may touch."""
        home = await asyncio.to_thread(self._settings.data_dir.resolve)
        homes = await asyncio.to_thread(_homes_named, spec, {home, self._settings.data_dir.absolute()})
        own = await self._places.filter_own(_jobs_named(spec, homes), namespace)
        jobs = tuple(
            str(one / "jobs" / job / folder) for one in homes for job in sorted(own) for folder in OPEN_FOLDERS
        )
        write = await self._places.read_data_roots(namespace)
        return await asyncio.to_thread(_resolved, self._settings, home, (*self._settings.shared_roots, *jobs), write)

    async def of_job(self, job_id: str) -> PathPolicy | None:
        """The paths that a submitted job may touch; None for everything."""
        found = await self._places.read_job(job_id)
        if found is None or not found[2]:
            return None
        namespace, spec, _ = found
        reach = await self.of_namespace(namespace, spec)
        home = await asyncio.to_thread(self._settings.data_dir.resolve)
        return PathPolicy(reach.read, (*reach.write, str(home / "jobs" / job_id)), reach.closed)

    async def of_workers(self, job_id: str) -> tuple[bool, PathPolicy]:
        """Whether a job may touch certain places only, and what its workers need of the machine.

        A job that may touch everything needs what it names, and the cluster's data roots: a launcher that opens to
        workers what they need and no more does so for such jobs, too.
        """
        reach = await self.of_job(job_id)
        if reach is not None:
            return True, reach
        found = await self._places.read_job(job_id)
        if found is None:
            return False, PathPolicy()
        spec = found[1]
        home = await asyncio.to_thread(self._settings.data_dir.resolve)
        read = [*self._settings.shared_roots, *_folders(spec, (*READ_FIELDS, *DATA_FIELDS))]
        write = _folders(spec, WRITTEN_FIELDS)
        return False, await asyncio.to_thread(_resolved, self._settings, home, read, write)

    async def check(
        self, spec: JobSpec, namespace: str, *, restricted: bool, own: Path | None = None
    ) -> PathPolicy | None:
        """Refuses a specification that names what its job may not touch, now that links lead where they lead.

        Args:
            spec: the job.
            namespace: the one that it will belong to.
            restricted: whether it may touch that namespace's places only.
            own: a folder that was filled for this job alone, which it may read.

        Returns:
            What the job may touch; None for everything.

        Raises:
            SpecError: with every problem found.
        """
        reach = await self.of_namespace(namespace, spec) if restricted else None
        if reach is not None and own is not None:
            reach = PathPolicy((*reach.read, str(own)), reach.write, reach.closed)
        check_places(spec, reach)
        if reach is not None:
            await asyncio.to_thread(_check_links, spec, reach)
        return reach

    async def require_stores(self, spec: JobSpec) -> None:
        """Refuses a job that writes to a store where nothing can be put now.

        Raises:
            InvalidInputError: the store, its bucket or its package is not there, or credentials do not allow it.
        """
        if urls := stores_written(spec):
            try:
                await in_thread(lambda: try_out(urls), threads=self._threads)
            except (UnavailableError, PermissionDeniedError) as error:
                raise InvalidInputError(error.message, fix=error.fix) from None


def _resolved(settings: ApiSettings, home: Path, read: Iterable[str], write: Iterable[str]) -> PathPolicy:
    """Roots as they are named, and where they really are: both ways of naming a file are taken."""

    def both(roots: Iterable[str]) -> tuple[str, ...]:
        real = [os.path.realpath(root) if root.startswith("/") else root for root in roots]
        return tuple(dict.fromkeys([*roots, *real]))

    return PathPolicy(both(list(read)), both(list(write)), tuple({str(home), str(settings.data_dir.absolute())}))


def _folders(spec: JobSpec, fields: Iterable[str]) -> list[str]:
    """The folders that some fields name: paths, URLs, and the folders that globs match in."""
    places = [path_text(place) for name in fields for place in split_places(getattr(spec, name))]
    return [without_wildcards(place) for place in places]


def _homes_named(spec: JobSpec, homes: set[Path]) -> list[Path]:
    """The data directory by all paths to it, also those that a specification takes: a link may lead there."""
    found, (home, *_) = set(homes), homes
    for place in _places(spec):
        if place.startswith("/"):
            above = Path(posixpath.normpath(place)).parents
            with contextlib.suppress(OSError):  # what cannot be reached is refused by its name
                found |= {one for one in above if one.exists() and one.samefile(home)}
    return sorted(found)


def _places(spec: JobSpec) -> list[str]:
    return [path_text(place) for name in _FIELDS for place in split_places(getattr(spec, name))]


def _jobs_named(spec: JobSpec, homes: Iterable[Path]) -> frozenset[str]:
    """Ids of the jobs whose folders a specification names."""
    pattern = "|".join(re.escape(str(home)) for home in homes)
    inside = re.compile(rf"(?:{pattern})/jobs/([a-z0-9][-a-z0-9]{{0,62}})(?:/.*)?", re.DOTALL)
    found = (
        inside.fullmatch(posixpath.normpath(place) if place.startswith("/") else place) for place in _places(spec)
    )
    return frozenset(match[1] for match in found if match)


def _check_links(spec: JobSpec, reach: PathPolicy) -> None:
    problems = []
    for name in (*READ_FIELDS, *WRITTEN_FIELDS):
        place = getattr(spec, name)
        if not place:
            continue
        try:
            require_place(place, reach, writing=name in WRITTEN_FIELDS)
        except PermissionDeniedError as error:
            problems.append(Problem(name, error.message, error.fix))
    if problems:
        raise SpecError(problems)
