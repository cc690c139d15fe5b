"""From a statement to its job: planned, its rows in the job's own folder, its module a bundle."""

from __future__ import annotations

import asyncio
import functools
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from elasticdl.sql.plans import MODULE
from elasticdl.sql.search import SearchPlan
from elasticdl_api.examination.statements import Planning
from elasticdl_api.files.model_code import check_model, place_bundle
from elasticdl_api.scheduling.job_limits import check_limits, check_pods
from elasticdl_api.services import Services
from elasticdl_api.statements.trial_jobs import ROWS, draw_jobs, job_fields, shown_search
from elasticdl_api.store.jobs import draw_id
from elasticdl_api.store.searches import StoredSearch
from elasticdl_api.store.statements import StoredStatement
from elasticdl_api.web.auth import Identity
from elasticdl_api.web.sealed_tokens import SOURCE, unseal
from elasticdl_core.errors import ConflictError, InvalidInputError, UnauthenticatedError
from elasticdl_core.job import JobSpec
from elasticdl_core.job.searches import SearchState
from elasticdl_core.job.updates import words_at_submission
from elasticdl_core.job.ways import refuse_meaningless
from elasticdl_core.path_policy import PathPolicy
from elasticdl_runtime import durable
from elasticdl_runtime.bundles import pack_bundle
from elasticdl_runtime.lifecycle import in_thread, to_its_end
from elasticdl_runtime.tree_removal import remove_tree

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class SentStatement:
    """A statement as it was sent.

    Attributes:
        text: the statement.
        source: the name of the source.
        dry_run: whether only its plan is wanted.
        key: that names the request; None for none.
        body_hash: of the request.
    """

    text: str
    source: str
    dry_run: bool
    key: str | None
    body_hash: str


async def run_statement(api: Services, user: Identity, sent: SentStatement) -> tuple[Mapping[str, Any], bool]:
    """Plans a statement, and submits its job unless only the plan is wanted.

    Args:
        api: what the routes work with.
        user: who sends it.
        sent: the statement.

    Returns:
        The fields of ``StatementResponse``, and whether this call made a job.

    Raises:
        StatementError: it is written wrong.
        InvalidInputError: rows, columns, model or source do not fit it.
    """
    if sent.key is not None and not sent.dry_run:
        begun = await api.searches.find_submitted(user.home, sent.key, sent.body_hash)
        if begun is not None:
            return shown_search(begun), False
        known = await api.jobs.find_submitted(user.home, sent.key, sent.body_hash)
        if known is not None:
            return shown(await api.statements.get(known.id, namespace=user.home)), False
    folder: Path | None = None
    try:
        async with api.planner.begin(user.home, sent.text) as planning:
            if planning.verb == "SHOW":
                return await _show(api, user, planning.model), False
            trained = await find_model(api, user.home, planning.model) if planning.uses else None
            await api.disk.require_room(user.home)
            job_id = draw_id(planning.job_name)
            folder = api.settings.job_dir(job_id)
            await in_thread(functools.partial(make_folder, folder / ROWS))
            if planning.searches:
                search = await _plan_search(api, user, sent, planning, job_id)
                return await to_its_end(_begin_search(api, user, sent, search))
            found = await _plan(api, user, sent, planning, trained, folder)
    except BaseException:
        if folder is not None:
            await in_thread(functools.partial(remove_folder, folder))
        raise
    return await to_its_end(_submit(api, user, sent, found, job_id))


@dataclass(frozen=True)
class _Planned:
    """A statement that is planned, with its module as a bundle.

    Attributes:
        spec: the job's specification.
        kept: what is kept with the job.
        modules: the files of the bundle.
    """

    spec: dict[str, Any]
    kept: dict[str, Any]
    modules: Mapping[str, str]


async def _plan(
    api: Services,
    user: Identity,
    sent: SentStatement,
    planning: Planning,
    trained: tuple[StoredStatement, str] | None,
    folder: Path,
) -> _Planned:
    model = None
    if trained is not None:
        kept = trained[0].plan
        model = {"name": planning.model, "columns": kept["columns"], "classes": kept["classes"]}
    found = await planning.plan(
        sent.source,
        await _address(api, user, sent.source),
        folder / ROWS,
        room=await api.disk.room(user.home),
        model=model,
    )
    spec = {**with_room_to_grow(found["fields"]), found["data"]: str(folder / ROWS / found["snapshot"])}
    modules = {found["file"]: found["module"]} if found["file"] else {}
    if trained is not None:
        spec["checkpoint_dir_for_init"] = trained[1]
        modules[MODULE] = trained[0].plan["module"]
    plan = {
        **{name: found[name] for name in ("columns", "classes", "rows")},
        "module": found["module"] or modules[MODULE],
        "spec": spec,
        "target": planning.target,
    }
    kept = {
        "verb": planning.verb,
        "model": planning.model,
        "source": sent.source,
        "text": sent.text,
        "plan": plan,
    }
    return _Planned(spec, kept, modules)


async def _submit(
    api: Services, user: Identity, sent: SentStatement, planned: _Planned, job_id: str
) -> tuple[Mapping[str, Any], bool]:
    """Submits the job; unless that is made its folder goes."""
    folder = api.settings.job_dir(job_id)
    needed = False
    try:
        data, digest = await asyncio.to_thread(pack, planned.modules)
        planned.spec["model_bundle"] = digest
        spec, reach = await checked(api, user, planned.spec, folder)
        if sent.dry_run:
            return {"job_id": None, "statement": sent.text.strip(), **planned.kept, **planned.kept["plan"]}, False
        await place_bundle(api, user, data)
        await check_model(api, user.home, spec, reach)
        needed = True  # also where nobody hears whether the job was made; the clean-up of strays knows
        job, made = await api.jobs.create(
            user,
            spec,
            key=sent.key,
            body_hash=sent.body_hash,
            told=words_at_submission(planned.spec, spec),
            job_id=job_id,
            statement=planned.kept,
        )
        needed = made
        return shown(await api.statements.get(job.id, namespace=user.home)), made
    finally:
        if not needed:
            await in_thread(functools.partial(remove_folder, folder))


async def checked(
    api: Services, user: Identity, fields: Mapping[str, Any], folder: Path
) -> tuple[JobSpec, PathPolicy | None]:
    """The specification of a job that reads rows in its own folder, and what it may touch.

    Raises:
        SpecError: it may not be so.
    """
    spec = JobSpec.from_mapping(fields)
    refuse_meaningless(spec)
    await check_limits(api.namespaces, api.settings, user.home, spec)
    await check_pods(api.launcher, spec)
    return spec, await api.reaches.check(spec, user.home, restricted=user.restricted, own=folder)


def with_room_to_grow(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a job that has as many workers as it needs."""
    if "min_workers" not in fields:
        return dict(fields)
    return {**fields, "max_workers": max(fields.get("max_workers", 1), fields["min_workers"])}


async def _plan_search(
    api: Services, user: Identity, sent: SentStatement, planning: Planning, job_id: str
) -> tuple[StoredSearch, bytes]:
    rows = api.settings.job_dir(job_id) / ROWS
    address, room = await _address(api, user, sent.source), await api.disk.room(user.home)
    plan = SearchPlan.of(await planning.plan(sent.source, address, rows, room=room, model=None))
    modules = {f"trial_{at}.py": module for at, module in enumerate(plan.modules)}
    data, bundle = await asyncio.to_thread(pack, modules)
    search = StoredSearch(
        job_id=job_id,
        namespace=user.home,
        owner=user.user,
        restricted=user.restricted,
        model=planning.model,
        source=sent.source,
        text=sent.text,
        state=SearchState.COMPARING,
        plan=plan,
        bundle=bundle,
    )
    draw_jobs(search)
    return search, data


async def _begin_search(
    api: Services, user: Identity, sent: SentStatement, planned: tuple[StoredSearch, bytes]
) -> tuple[Mapping[str, Any], bool]:
    """Keeps the search, which a background task goes on with; unless that is done its folder goes."""
    search, data = planned
    folder = api.settings.job_dir(search.job_id)
    needed = False
    try:
        # What would be refused of the trials and the last job is refused now.
        for number in (None, 0):
            await checked(api, user, job_fields(api, search, search.job_id, 0, number), folder)
        if sent.dry_run:
            search.jobs = []
            return {**shown_search(search), "job_id": None}, False
        await place_bundle(api, user, data)
        needed = True
        try:
            await api.searches.begin(user, search, key=sent.key, body_hash=sent.body_hash)
        except ConflictError:
            needed = False
            raise
        return shown_search(search), True
    finally:
        if not needed:
            await in_thread(functools.partial(remove_folder, folder))


async def find_model(api: Services, namespace: str, name: str) -> tuple[StoredStatement, str]:
    """The training of a model that statements may use, and its last checkpoint.

    Raises:
        NotFoundError: there is none.
        ConflictError: it is still being found, or trained.
    """
    search = await api.searches.find_comparing(namespace, name)
    if search is not None:
        raise ConflictError(
            f"the model {name} is being found by the search {search.job_id}",
            fix="wait until that is over, or cancel it",
        )
    return await api.statements.find_model(namespace, name)


def shown(kept: StoredStatement) -> dict[str, Any]:
    """The fields of ``StatementResponse`` of a statement that became a job."""
    given = {"job_id": kept.job_id, "statement": kept.text, "verb": kept.verb, "model": kept.model}
    return {**given, "source": kept.source, **kept.plan}


async def _show(api: Services, user: Identity, model: str) -> dict[str, Any]:
    kept, _ = await find_model(api, user.home, model)
    return {**shown(kept), "verb": "SHOW"}


async def _address(api: Services, user: Identity, source: str) -> str:
    if not source:
        raise InvalidInputError("there is no source", fix="name the one that has the rows, as an administrator did")
    sealed = await api.namespaces.find_source(user.home, source)
    try:
        return unseal(api.settings.cluster_secret, sealed, SOURCE)
    except UnauthenticatedError:
        raise ConflictError(
            f"the address of the source {source!r} was kept under another secret of the cluster",
            fix="have an administrator set it again",
        ) from None


def make_folder(path: Path) -> None:
    """Makes the folder of a job's rows, which workers of another user may read."""
    durable.make_folder(path.parent, 0o700)
    durable.make_folder(path, 0o755)


def remove_folder(folder: Path) -> None:
    """Removes a job's folder, or leaves it to the clean-up."""
    if (failed := remove_tree(folder)) is not None:
        _log.warning("files of a statement stay until the next clean-up", folder=str(folder), error=str(failed))


def pack(modules: Mapping[str, str]) -> tuple[bytes, str]:
    """A bundle of modules, and its digest."""
    with tempfile.TemporaryDirectory(prefix="elasticdl-statement-") as above:
        folder = Path(above) / "models"
        folder.mkdir()
        for name, module in modules.items():
            (folder / name).write_text(module, encoding="utf-8")
        return pack_bundle(folder)
