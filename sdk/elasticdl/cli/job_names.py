"""Jobs as people name them: an id, the beginning of one, a name, or ``last``; and completion of them in shells."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from elasticdl.cli.output import age, write_line
from elasticdl_core.errors import ConflictError, NotFoundError
from elasticdl_core.job.names import LAST

if TYPE_CHECKING:
    from elasticdl.client import Client, Job

LOOKED_THROUGH = 500
"""How many jobs, the newest first, are looked through for the beginning of an id."""
SHOWN = 10
COMPLETE_WITHIN_S = 1.5
"""Seconds that the API has to answer a shell that waits."""
_FIX = "`elasticdl jobs list` shows the jobs; give an id, the beginning of one, a name, or `last` for the newest"


def find_job(client: Client, given: str, *, only: bool = False, trained: bool = False) -> Job:
    """The job that somebody means: by its id, by its name, by the beginning of its id, or the newest for ``last``.

    Of several of one name it is the newest, which is said on the standard error.

    Args:
        client: asks the API.
        given: what somebody wrote.
        only: refuse a name that several have, for what cannot be undone.
        trained: of ``last``, and of several of one name, one that trains is meant: jobs that use its model are newer.

    Raises:
        NotFoundError: there is none.
        ConflictError: several begin so, or have that name; lists them.
    """
    if given == LAST:
        jobs = itertools.islice(client.iterate(page_size=LOOKED_THROUGH if trained else 1), LOOKED_THROUGH)
        newest = next((job for job in jobs if not trained or _trains(job)), None)
        if newest is None:
            what = "job that trains" if trained else "job"
            raise NotFoundError(f"there is no {what} yet", fix="submit one with `elasticdl train`")
        return client.get(newest.id)
    try:
        return client.get(given)
    except NotFoundError as error:
        unknown = error
    if not given.isascii() or not given.replace("-", "").isalnum():
        raise unknown
    named = list(itertools.islice(client.iterate(page_size=SHOWN + 1, name=given[:40]), SHOWN + 1))
    found = named or [
        job for job in itertools.islice(client.iterate(page_size=100), LOOKED_THROUGH) if job.id.startswith(given)
    ]
    if not found:
        raise NotFoundError(unknown.message, fix=_FIX)
    if trained:
        found = [job for job in found if _trains(job)] or found
    if len(found) > 1 and named and not only:
        count = f"{SHOWN} jobs and more" if len(found) > SHOWN else f"{len(found)} jobs"
        write_line(f"{given!r} is the name of {count}: the newest is meant, {found[0].id}", to=sys.stderr)
    elif len(found) > 1:
        raise ConflictError(
            f"several jobs are meant by {given!r}: {_candidates(found)}",
            fix="give the id of one, or `last` for the newest job",
        )
    return client.get(found[0].id)


def _trains(job: Job) -> bool:
    return bool(job.spec.get("type", "training") == "training")


def find_ids(client: Client, given: Sequence[str], *, only: bool = False) -> list[str]:
    """The ids of the jobs that somebody means, all found before anything is done to the first."""
    return list(dict.fromkeys(find_job(client, one, only=only).id for one in given))


def _candidates(jobs: Sequence[Job]) -> str:
    listed = [f"{job.id} ({job.state}, {age(job.created_at)} old)" for job in jobs[:SHOWN]]
    return ", ".join(listed) + (", and more" if len(jobs) > SHOWN else "")


def complete_job(incomplete: str) -> list[tuple[str, str]]:
    """Completes a job for a shell: ids and names that begin so; nothing at all if the API is slow or away."""
    # Before the time begins: it is the API's, and a busy machine may take all of it to read the client's code.
    from elasticdl.client import Client, RetryPolicy

    found: list[tuple[str, str]] = []

    def ask() -> None:
        with contextlib.suppress(Exception):
            with Client(retry=RetryPolicy(attempts=1)) as client:
                jobs = client.list(limit=100).jobs
            names = {job.name: "the only job of that name" for job in jobs if _once(job.name, jobs)}
            offered = [*((job.id, f"{job.state}, {age(job.created_at)} old") for job in jobs), *names.items()]
            found.extend((name, what) for name, what in offered if name.startswith(incomplete))

    # A thread of its own: whatever it hangs in, the shell waits no longer than this.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(COMPLETE_WITHIN_S)
    last = [(LAST, "the newest job")] if found and LAST.startswith(incomplete) else []
    return [*found, *last]


def _once(name: str, jobs: Sequence[Job]) -> bool:
    return sum(job.name == name for job in jobs) == 1 and all(job.id != name for job in jobs)


JobGiven = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="The job: its id, the beginning of it, its name, or `last`.",
        show_default=False,
        autocompletion=complete_job,
    ),
]
JobsGiven = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB...",
        help="Jobs: ids, beginnings of them, names, or `last`.",
        show_default=False,
        autocompletion=complete_job,
    ),
]
