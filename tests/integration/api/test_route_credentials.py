"""Every route of the OpenAPI description against every kind of credential."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from sqlalchemy import func, select

from elasticdl_api.web.auth import OPEN_PATHS
from elasticdl_api.web.route_scopes import check_rules
from elasticdl_api.web.session_cookies import csrf_token
from elasticdl_core.access import TokenScope, make_token
from elasticdl_core.ports.launcher import Role
from elasticdl_runtime import tokens
from elasticdl_runtime.database import tables as t
from tests.integration.api.conftest import ADMIN, SECRET, Api

pytestmark = pytest.mark.integration
METHODS = ("get", "head", "post", "put", "patch", "delete")
NOBODY = 401, "unauthenticated"
DENIED = 403, "permission_denied"


@dataclass(frozen=True)
class Holder:
    """A user who shows a valid token.

    Attributes:
        headers: of the user's requests.
        scope: the token's scope.
        place: ``home`` for the namespace of the job, ``elsewhere`` for another one, ``cluster`` for none.
        proven: whether requests that change something prove where they come from; sessions must.
        session: whether it is a browser's session, not the token itself.
    """

    headers: dict[str, str]
    scope: TokenScope
    place: str
    proven: bool = True
    session: bool = False


async def logged_in(api: Api, headers: dict[str, str]) -> dict[str, str]:
    """The headers of a browser after its user has logged in with a token."""
    api.http.cookies.clear()
    answer = await api.http.post("/session", headers=headers)
    assert answer.status_code == 201, answer.text
    secret = answer.cookies["elasticdl_session"]
    api.http.cookies.clear()
    return {"Cookie": f"elasticdl_session={secret}", "X-CSRF-Token": answer.json()["csrf_token"]}


def operations(api: Api) -> list[tuple[str, str, dict[str, Any]]]:
    paths = api.app.openapi()["paths"]
    return [(method, path, paths[path][method]) for path in paths for method in METHODS if method in paths[path]]


def fill(path: str, job_id: str) -> str:
    path = path.replace("{job_id}", job_id).replace("{digest}", "sha256:" + "0" * 64).replace("{version}", "1")
    return re.sub(r"\{.*?\}", "x", path)


async def _holders(api: Api) -> dict[str, Holder]:
    found = {"the token file's": Holder({"Authorization": f"Bearer {ADMIN}"}, TokenScope.ADMIN, "cluster")}
    for place, namespace in (("home", "default"), ("elsewhere", "team-b"), ("cluster", None)):
        for scope in TokenScope:
            headers = await api.token(namespace, scope)
            found[f"{place} {scope}"] = Holder(headers, scope, place)
            if place == "elsewhere":
                continue  # a session is the token that it was made with: two places show that
            session = await logged_in(api, headers)
            found[f"{place} {scope}, logged in"] = Holder(session, scope, place, session=True)
            session = await logged_in(api, headers)
            forged = {**session, "X-CSRF-Token": "0" * 64}
            found[f"{place} {scope}, by a foreign page"] = Holder(forged, scope, place, proven=False, session=True)
    return found


async def _execute(api: Api, statement: Any) -> None:
    async with api.services.database.transaction() as connection:
        await connection.execute(statement)


async def _strangers(api: Api, job_id: str, other: str) -> dict[str, dict[str, str]]:
    past = datetime.now(UTC) - timedelta(seconds=1)
    secret, foreign = (tokens.derive_job_secret(SECRET, one) for one in (job_id, other))
    late = tokens.issue(secret, job_id, Role.MASTER, 0, 1, lifetime_s=-1)
    forged = tokens.issue(foreign, job_id, Role.MASTER, 0, 1)
    raw = {
        "none": "",
        "empty": "Bearer ",
        "basic": "Basic YTpi",
        "wrong": "Bearer wrong",
        "not there": f"Bearer {make_token()}",
        "admin with a tail": f"Bearer {ADMIN}x",
        "another scheme": f"Token {ADMIN}",
        "late master": f"Bearer {late}",
        "forged master": f"Bearer {forged}",
    }
    found = {name: {"Authorization": value} for name, value in raw.items()}
    valid = await api.token("default", "admin", name="cut")
    found["cut off"] = {"Authorization": valid["Authorization"][:-1]}
    found["expired"] = await api.token("default", "admin", name="expired", expires_at=past)
    found["revoked"] = await api.token("default", "admin", name="revoked", revoked_at=past)
    for name, change in (
        ("a session that is over", t.sessions.update().values(expires_at=past)),
        ("a session of a revoked token", t.tokens.update().values(revoked_at=past)),
        ("a session of an expired token", t.tokens.update().values(expires_at=past)),
    ):
        found[name] = await logged_in(api, await api.token("default", "admin", name=name.replace(" ", "-")))
        await _execute(api, change)
    unknown = "A" * 43
    found["a session that is not there"] = {
        "Cookie": f"elasticdl_session={unknown}",
        "X-CSRF-Token": csrf_token(unknown),
    }
    for role in Role:
        found[f"{role} of another job"] = api.master(other, role=role).headers
    return found


def _expected(holder: Holder, method: str, path: str, operation: dict[str, Any]) -> set[int] | None:
    """The statuses that a user must get: None for any that is not a refusal."""
    if holder.session and method == "post" and path == "/v1/session":
        return {401} if holder.proven else {403}  # one logs in with a token
    if not holder.proven and method not in ("get", "head"):
        return {403}
    ((scope,),) = [needed["user"] for needed in operation["security"]]
    if operation["x-of-the-cluster"] and holder.place != "cluster":
        return {403}
    if not holder.scope.includes(TokenScope(scope)):
        return {403}
    return {404} if holder.place == "elsewhere" and "{job_id}" in path else None


async def _ask(http: httpx.AsyncClient, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    answer = await http.request(method, path, headers=headers, json={})
    http.cookies.clear()
    if answer.status_code == 401:
        assert answer.headers["www-authenticate"].startswith("Bearer")
    code = answer.json()["code"] if answer.status_code >= 400 and answer.content else ""
    return answer.status_code, code


@pytest.fixture
async def http(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """Sends no credential but what it is given."""
    transport = httpx.ASGITransport(api.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api", timeout=60) as client:
        yield client


async def test_every_route_refuses_who_may_not_use_it(api: Api, http: httpx.AsyncClient) -> None:
    job_id, _ = await api.running()
    other, _ = await api.running()
    strangers, holders = await _strangers(api, job_id, other), await _holders(api)
    of_the_job = {role: api.master(job_id, role=role).headers for role in Role}
    found = operations(api)
    assert len(found) > 35
    cells: list[tuple[str, str, str, dict[str, str], set[int] | None]] = []
    for method, path, operation in found:
        assert (path in OPEN_PATHS) == ("security" not in operation), path
        if path in OPEN_PATHS:
            for name, headers in strangers.items():
                cells.append((name, method, path, headers, {200}))
            continue
        (security,) = operation["security"]
        internal = "master" in security
        assert internal == path.startswith("/internal/")
        cells += [(name, method, path, headers, {401}) for name, headers in strangers.items()]
        for role, headers in of_the_job.items():
            opens = None if role is Role.MASTER else {403}
            cells.append((f"{role} of this job", method, path, headers, opens if internal else {401}))
        for name, holder in holders.items():
            expected = {401} if internal else _expected(holder, method, path, operation)
            cells.append((name, method, path, holder.headers, expected))
    entries = select(func.count()).select_from(t.audit_log)
    async with api.services.database.transaction() as connection:
        before = (await connection.execute(entries)).scalar_one()
    # What must be refused first: afterwards nothing may have changed.
    for name, method, path, headers, expected in sorted(cells, key=lambda cell: cell[4] is None):
        if expected is None:
            break
        status, code = await _ask(http, method, fill(path, job_id), headers)
        case = f"{name}: {method} {path} gave {status} {code}, not {expected}"
        assert status in expected, case
        if method != "head" and status in (401, 403):
            assert (status, code) in (NOBODY, DENIED), case
    assert (await api.job(job_id))["state"] == "RUNNING"
    async with api.services.database.transaction() as connection:
        assert (await connection.execute(entries)).scalar_one() == before
    # Logging out comes last: nothing is left of a session after it.
    allowed = sorted(
        (cell for cell in cells if cell[4] is None), key=lambda cell: cell[1:3] == ("delete", "/v1/session")
    )
    assert len(allowed) > 100
    for name, method, path, headers, _ in allowed:
        status, code = await _ask(http, method, fill(path, job_id), headers)
        assert status not in (401, 403) and status < 500, f"{name}: {method} {path} gave {status} {code}"


def test_a_route_without_a_rule_is_not_served() -> None:
    router = APIRouter()
    router.add_api_route("/jobs/{job_id}/secrets", _secrets)
    with pytest.raises(LookupError, match="GET /jobs/{job_id}/secrets is not in the table"):  # noqa: RUF043
        check_rules(router.routes)


async def test_a_route_without_a_rule_that_is_added_late_is_not_there(api: Api) -> None:
    api.app.add_api_route("/jobs/{job_id}/secrets", _secrets)
    assert (await api.http.get("/jobs/x/secrets")).status_code == 404
    assert (await api.http.get("/jobs/x/secrets", headers={"Authorization": ""})).status_code == 401


async def _secrets() -> str:
    return "told"


async def test_a_revoked_token_is_not_valid_at_once(api: Api) -> None:
    headers = await api.token("default", "admin")
    assert (await api.http.get("/jobs", headers=headers)).status_code == 200
    async with api.services.database.transaction() as connection:
        await connection.execute(t.tokens.update().values(revoked_at=func.now()))
    answer = await api.http.get("/jobs", headers=headers)
    assert (answer.status_code, answer.json()["detail"]) == (401, "the token 'default-admin' was revoked")


async def test_the_last_use_of_a_token_is_written_at_most_once_a_minute(api: Api) -> None:
    headers = await api.token("default", "read")

    async def used(back: timedelta = timedelta()) -> datetime:
        assert (await api.http.get("/jobs", headers=headers)).status_code == 200
        async with api.services.database.transaction() as connection:
            at = (await connection.execute(select(t.tokens.c.last_used_at))).scalar_one()
            if back:
                await connection.execute(t.tokens.update().values(last_used_at=t.tokens.c.last_used_at - back))
        assert isinstance(at, datetime)
        return at

    first = await used()
    assert await used(timedelta(seconds=61)) == first
    assert await used() > first
