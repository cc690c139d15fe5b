"""Requests of the client and the reading of their responses. No I/O happens here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any
from urllib.parse import quote

from elasticdl.client.messages import Request, plain
from elasticdl.client.transport import moment_text
from elasticdl.submission import absolute_paths
from elasticdl_core.errors import InvalidInputError, NotFoundError, UnavailableError
from elasticdl_core.job import JobSpec, resolve_aliases
from elasticdl_core.json_numbers import from_json

POLL_S = 1.0
PATIENCE_S = 600.0
"""How long an API that does not answer is waited for by what waits for a job: an upgrade, a restart of a machine."""
UPLOAD_TIMEOUT_S = 300.0
STATEMENT_TIMEOUT_S = 400.0
"""Seconds for a statement: its SELECT has 300 of them."""
EVENTS_AT_ONCE = 1000
_OF_JOB = re.compile(r"/jobs/(?P<job>[^/?]+)(?P<below>/.*)?")
_ID = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,99}")


def checked(request: Request, answer: Any) -> Any:
    """The answer to a request, if it tells of the job that was asked for.

    Raises:
        UnavailableError: it tells of another one.
    """
    asked = _OF_JOB.fullmatch(request.path)
    if asked is None or not isinstance(answer, dict):
        return answer
    told = answer.get("id" if asked["below"] is None or request.method == "POST" else "job_id")
    if isinstance(told, str) and told != asked["job"]:
        raise UnavailableError(
            f"{request.method} {request.path} was answered with the job {told}",
            fix="look for what mixes up answers: a proxy, or one connection that two processes use",
        )
    return answer


def job_path(job_id: str, *rest: str) -> str:
    """The path of a job, or of something below it, with every part quoted.

    Raises:
        InvalidInputError: the id is empty.
        NotFoundError: no job can have that id.
    """
    fix = "give the id that submit() or `elasticdl jobs list` shows"
    if not job_id:
        raise InvalidInputError("the job id is empty", fix=fix)
    if not isinstance(job_id, str):
        raise InvalidInputError(f"a {type(job_id).__name__} is no job id", fix=f"{fix}: of a Job its .id")
    if not _ID.fullmatch(job_id):
        raise NotFoundError(f"there is no job {job_id!r}", fix=fix)
    return "/".join(["/jobs", job_id, *(_quoted(part) for part in rest)])


def _quoted(part: str) -> str:
    """A part of a path, which a name that goes up from there is not."""
    if {".", ".."} & set(part.split("/")):
        raise NotFoundError(f"there is no {part!r}", fix="give a name as it is listed")
    return quote(part, errors="surrogateescape")


def _below(collection: str, name: str, what: str, fix: str) -> str:
    """The path of one of a collection, whatever characters its name has.

    Raises:
        InvalidInputError: the name is empty.
        NotFoundError: nothing can have that name.
    """
    if not name:
        raise InvalidInputError(f"{what} is empty", fix=fix)
    if name in {".", ".."}:
        raise NotFoundError(f"there is no {name!r}", fix="give a name as it is listed")
    return f"{collection}/{quote(name, safe='', errors='surrogateescape')}"


def reservation_path(name: str) -> str:
    """The path of a reservation. Raises what ``_below`` does."""
    return _below("/cluster/reservations", name, "the name of the reservation", "say for whom the slots are")


def token_path(token_id: str) -> str:
    """The path of a token. Raises what ``_below`` does."""
    return _below("/tokens", token_id, "the token's id", "give the id that `elasticdl tokens list` shows")


def namespace_path(name: str) -> str:
    """The path of a namespace. Raises what ``_below`` does."""
    return _below("/namespaces", name, "the name of the namespace", "say which namespace is meant")


def submission(spec: JobSpec | Mapping[str, Any] | None, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON data of a specification with fields replaced and local paths made absolute.

    Default values are left to the API; aliases of fields are understood.

    Raises:
        InvalidInputError: the specification is neither a JobSpec nor a mapping.
        SpecError: a field is given under two names, with values that differ.
    """
    if spec is None:
        given: dict[str, Any] = {}
    elif isinstance(spec, JobSpec):
        mapping, untouched = plain(spec.to_mapping()), _defaults()
        given = {key: value for key, value in mapping.items() if key not in untouched or untouched[key] != value}
    elif isinstance(spec, Mapping):
        given = resolve_aliases(plain(spec))
    else:
        raise InvalidInputError(
            f"a job specification cannot be a {type(spec).__name__}",
            fix="give a JobSpec, a dict, or keyword arguments",
        )
    # Names of data that are no paths here may be known to the cluster, or to a reader of the user's.
    return absolute_paths({**given, **resolve_aliases(plain(overrides))}, any_word=True)


def _defaults() -> dict[str, Any]:
    plain = JobSpec(model_def="a.b").to_mapping()
    return {item.name: plain[item.name] for item in fields(JobSpec) if item.name != "model_def"}


def submission_of_directory(
    spec: JobSpec | Mapping[str, Any] | None, overrides: Mapping[str, Any], model_zoo: str
) -> tuple[dict[str, Any], list[str]]:
    """The JSON data of a job whose code is a directory on this machine, without its code, and its paths of data.

    Raises:
        SpecError: the specification cannot work.
    """
    body = {**submission(spec, overrides), "model_zoo": model_zoo}
    body.pop("model_bundle", None)
    JobSpec.from_mapping(body)
    body.pop("model_zoo")
    return body, [str(body.get(name) or "") for name in ("training_data", "validation_data", "prediction_data")]


def log_params(role: str, index: int, tail: int | None, since: datetime | None) -> dict[str, str]:
    """The query parameters that choose a log, or a part of it."""
    part = {"tail": None if tail is None else str(tail), "since": moment_text(since)}
    return {"role": role, "index": str(index), **given(**part)}


def given(**values: Any) -> dict[str, Any]:
    """Arguments without those that were not given."""
    return {name: value for name, value in values.items() if value is not None}


def metrics_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """Losses and evaluations so far; numbers that JSON cannot write are floats here."""
    losses = [{**point, "loss": from_json(point["loss"])} for point in data["losses"]]
    evaluations = [{**one, "metrics": from_json(one["metrics"])} for one in data["evaluations"]]
    return {**data, "losses": losses, "evaluations": evaluations}
