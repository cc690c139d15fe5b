"""Goes on with searches for models: makes the jobs of a round, compares them when they are over, and the last job.

All that is known of a search is in its row, which one replica has at a time. Ids of jobs are kept before these are
made, so that whoever goes on after an end in the middle makes none twice.
"""

from __future__ import annotations

import functools
from pathlib import Path

from elasticdl.sql.plans import MODULE
from elasticdl.sql.search import TrialOutcome
from elasticdl_api.files.model_code import check_model, place_bundle
from elasticdl_api.services import Services
from elasticdl_api.statements.submission import checked, make_folder, pack, remove_folder, with_room_to_grow
from elasticdl_api.statements.trial_jobs import ROWS, draw_jobs, halving_of, job_fields
from elasticdl_api.store.records import JobRecord
from elasticdl_api.store.searches import StoredSearch
from elasticdl_api.web import telemetry
from elasticdl_core.errors import ElasticDLError, UnavailableError
from elasticdl_core.job import JobRequest
from elasticdl_core.job.searches import SearchState
from elasticdl_core.job.updates import words_at_submission
from elasticdl_core.json_numbers import from_json
from elasticdl_runtime import durable
from elasticdl_runtime.items import Items
from elasticdl_runtime.lifecycle import in_thread


class SearchRounds:
    """The searches that are open, each by itself.

    Args:
        api: what the routes work with.
    """

    def __init__(self, api: Services) -> None:
        self._api = api
        self._items = Items("searches", tell=telemetry.tell_of("searches"))

    async def step(self) -> None:
        """Takes each search as far as it goes now.

        Raises:
            UnavailableError: the database is down; nothing is lost.
        """
        round_ = self._items.begin()
        for job_id in await self._api.searches.list_open():
            await round_.handle(job_id, functools.partial(self._go_on, job_id))
        round_.end()

    async def _go_on(self, job_id: str) -> None:
        while await self._take(job_id):
            pass

    async def _take(self, job_id: str) -> bool:
        """Takes one step of a search; returns whether the next one can be taken at once."""
        async with self._api.searches.hold(job_id) as search:
            if search is None:
                return False
            try:
                return await self._advance(search)
            except UnavailableError:
                raise
            except ElasticDLError as error:
                search.state = SearchState.STOPPING
                search.error = {"message": error.message, "fix": error.fix}
                return True

    async def _advance(self, search: StoredSearch) -> bool:
        jobs = {one.id: one for one in await self._api.jobs.list_some(search.all_jobs, namespace=search.namespace)}
        if search.state is SearchState.STOPPING:
            return await self._stop(search, list(jobs.values()))
        if search.state is SearchState.CHOSEN:
            return await self._train(search)
        halving = halving_of(search)
        if not search.submitted:
            for at in halving.left:
                if search.jobs[at][-1] not in jobs:
                    await self._try(search, at)
            search.submitted = True
            return False
        present = {at: jobs.get(search.jobs[at][-1]) for at in halving.left}
        if any(job is not None and not job.terminal for job in present.values()):
            return False
        for at, job in present.items():
            halving.note(at, await self._outcome(search.jobs[at][-1], job))
        _, best = halving.conclude()
        if best is not None:
            search.state = SearchState.CHOSEN
            search.chosen = [search.plan.trials.index(best), halving.best_round(best)]
            return True
        search.number = halving.number
        draw_jobs(search)
        return True

    async def _outcome(self, job_id: str, job: JobRecord | None) -> TrialOutcome:
        if job is None:
            return TrialOutcome({}, f"its job {job_id} was deleted")
        if not job.state.succeeded:
            return TrialOutcome({}, f"{job_id}: {job.reason}")
        return TrialOutcome(from_json(await self._api.outputs.last_metrics(job_id)))

    async def _try(self, search: StoredSearch, at: int) -> None:
        """Makes a model's job of this round."""
        job_id, plan = search.jobs[at][-1], search.plan
        fields = with_room_to_grow(job_fields(self._api, search, job_id, at, search.number))
        if search.number:
            before = search.jobs[at][-2]
            checkpoint = await self._api.statements.find_checkpoint(before)
            if checkpoint is None:
                raise ElasticDLError(f"job {before} left no checkpoint to go on from", fix="send the statement again")
            fields["checkpoint_dir_for_init"] = checkpoint
        await self._api.disk.require_room(search.namespace)
        folder = self._api.settings.job_dir(job_id)
        names = [plan.parts["trained"], plan.parts["held"]]
        source = self._api.settings.job_dir(search.job_id) / ROWS
        try:
            await in_thread(functools.partial(_link, source, folder / ROWS, names))
            spec, _ = await checked(self._api, search.user, fields, folder)
            told = words_at_submission(fields, spec)
            await self._api.jobs.create(search.user, spec, key=None, body_hash="", told=told, job_id=job_id)
        except UnavailableError:
            raise  # it may have been made
        except ElasticDLError:
            await in_thread(functools.partial(remove_folder, folder))
            raise

    async def _train(self, search: StoredSearch) -> bool:
        """Makes the job that trains the best model on all rows."""
        assert search.chosen is not None
        at, rounds = search.chosen
        plan, user = search.plan, search.user
        made = await self._api.jobs.list_some([search.job_id], namespace=search.namespace)
        if not made:
            data, digest = pack({MODULE: plan.modules[at]})
            fields = with_room_to_grow(job_fields(self._api, search, search.job_id, at, None)) | {
                "model_bundle": digest
            }
            spec, reach = await checked(self._api, user, fields, self._api.settings.job_dir(search.job_id))
            await place_bundle(self._api, user, data)
            await check_model(self._api, user.home, spec, reach)
            about = {"columns": plan.columns, "classes": plan.classes, "rows": plan.sizes["whole"]}
            kept = {
                "verb": "TRAIN",
                "model": search.model,
                "source": search.source,
                "text": plan.texts[at][rounds],
                "plan": {**about, "module": plan.modules[at], "spec": fields, "target": search.model},
            }
            await self._api.jobs.create(
                user,
                spec,
                key=None,
                body_hash="",
                told=words_at_submission(fields, spec),
                job_id=search.job_id,
                statement=kept,
            )
        search.state = SearchState.DONE
        return False

    async def _stop(self, search: StoredSearch, jobs: list[JobRecord]) -> bool:
        """Cancels the trials, and ends the search when all are over."""
        for job in jobs:
            if not job.terminal:
                await self._api.jobs.request(job.id, JobRequest.CANCEL, user=search.user)
        if any(not job.terminal for job in jobs):
            return False
        await in_thread(functools.partial(remove_folder, self._api.settings.job_dir(search.job_id)))
        search.state = SearchState.CANCELLED if search.error is None else SearchState.FAILED
        return False


def _link(source: Path, rows: Path, names: list[str]) -> None:
    """Gives a job the rows of a search: the same files, in a folder of its own."""
    make_folder(rows)
    for name in names:
        try:
            durable.link(source / name, rows / name)  # or it is there, of an attempt that ended in the middle
        except FileNotFoundError:
            raise ElasticDLError("the rows of the search are gone", fix="send the statement again") from None
