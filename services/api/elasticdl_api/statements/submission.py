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
from elasticdl_api.examination.statements import Planning
from elasticdl_api.files.model_code import check_model, place_bundle
from elasticdl_api.scheduling.job_limits import check_limits, check_pods
from elasticdl_api.services import Services
from elasticdl_api.store.jobs import draw_id
from elasticdl_api.store.statements import StoredStatement
from elasticdl_api.web.auth import Identity
from elasticdl_api.web.sealed_tokens import SOURCE, unseal
from elasticdl_core.errors import ConflictError, InvalidInputError, UnauthenticatedError
from elasticdl_core.job import JobSpec
from elasticdl_core.job.updates import words_at_submission
from elasticdl_core.job.ways import refuse_meaningless
from elasticdl_runtime import durable
from elasticdl_runtime.bundles import pack_bundle
from elasticdl_runtime.lifecycle import in_thread, to_its_end
from elasticdl_runtime.tree_removal import remove_tree

ROWS = "rows"
"""The folder of a job's folder that has the rows of its statement."""
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
        known = await api.jobs.find_submitted(user.home, sent.key, sent.body_hash)
        if known is not None:
            return shown(await api.statements.get(known.id, namespace=user.home)), False
    folder: Path | None = None
    try:
        async with api.planner.begin(user.home, sent.text) as planning:
            if planning.verb == "SHOW":
                return await _show(api, user, planning.model), False
            trained = await api.statements.find_model(user.home, planning.model) if planning.uses else None
            await api.disk.require_room(user.home)
            job_id = draw_id(planning.job_name)
            folder = api.settings.job_dir(job_id)
            await in_thread(functools.partial(_make_folder, folder / ROWS))
            found = await _plan(api, user, sent, planning, trained, folder)
    except BaseException:
        if folder is not None:
            await in_thread(functools.partial(_remove, folder))
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
    spec = {**found["fields"], found["data"]: str(folder / ROWS / found["snapshot"])}
    if "min_workers" in spec:
        spec["max_workers"] = max(spec.get("max_workers", 1), spec["min_workers"])
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
        data, digest = await asyncio.to_thread(_pack, planned.modules)
        planned.spec["model_bundle"] = digest
        spec = JobSpec.from_mapping(planned.spec)
        refuse_meaningless(spec)
        await check_limits(api.namespaces, api.settings, user.home, spec)
        await check_pods(api.launcher, spec)
        reach = await api.reaches.check(spec, user.home, restricted=user.restricted, own=folder)
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
            await in_thread(functools.partial(_remove, folder))


def shown(kept: StoredStatement) -> dict[str, Any]:
    """The fields of ``StatementResponse`` of a statement that became a job."""
    given = {"job_id": kept.job_id, "statement": kept.text, "verb": kept.verb, "model": kept.model}
    return {**given, "source": kept.source, **kept.plan}


async def _show(api: Services, user: Identity, model: str) -> dict[str, Any]:
    kept, _ = await api.statements.find_model(user.home, model)
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


def _make_folder(path: Path) -> None:
    durable.make_folder(path.parent, 0o700)
    durable.make_folder(path, 0o755)


def _remove(folder: Path) -> None:
    if (failed := remove_tree(folder)) is not None:
        _log.warning("files of a statement stay until the next clean-up", folder=str(folder), error=str(failed))


def _pack(modules: Mapping[str, str]) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory(prefix="elasticdl-statement-") as above:
        folder = Path(above) / "models"
        folder.mkdir()
        for name, module in modules.items():
            (folder / name).write_text(module, encoding="utf-8")
        return pack_bundle(folder)
