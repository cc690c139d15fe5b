"""What opens which door: scopes, sessions of browsers, sealed tokens, and names that pages of others ask by."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl_api.web.auth import ADMINISTRATOR, Identity
from elasticdl_api.web.browsers import BrowserRules
from elasticdl_api.web.sealed_tokens import seal, unseal
from elasticdl_api.web.session_cookies import COOKIE, CSRF_HEADER, SECURE_COOKIE, check_csrf, csrf_token, session_of
from elasticdl_core.access import TokenScope
from elasticdl_core.errors import PermissionDeniedError, UnauthenticatedError

pytestmark = pytest.mark.unit


def request(method: str = "POST", **headers: str) -> dict[str, Any]:
    named = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": method, "path": "/v1/jobs", "scheme": "http", "headers": named}


@pytest.mark.parametrize("namespace", ["team", None])
def test_a_token_may_what_its_scope_says_and_no_more(namespace: str | None) -> None:
    submitter = Identity(namespace, "ada", TokenScope.SUBMIT)
    submitter.require(TokenScope.READ)
    submitter.require(TokenScope.SUBMIT)
    with pytest.raises(PermissionDeniedError, match="needs the scope 'admin'; this token has 'submit'"):
        submitter.require(TokenScope.ADMIN)


def test_the_administrator_of_a_namespace_is_none_of_the_cluster() -> None:
    ADMINISTRATOR.require(TokenScope.ADMIN, cluster=True)
    owner = Identity("team", "ada", TokenScope.ADMIN)
    owner.require(TokenScope.ADMIN)
    with pytest.raises(PermissionDeniedError, match="administrators of the cluster"):
        owner.require(TokenScope.READ, cluster=True)
    assert owner.restricted and not ADMINISTRATOR.restricted
    assert Identity(None, "ada", TokenScope.SUBMIT).restricted


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_what_changes_something_by_a_session_proves_that_a_page_of_ours_sent_it(method: str) -> None:
    check_csrf(request(method, **{CSRF_HEADER: csrf_token("mine")}), "mine")
    for headers in ({}, {CSRF_HEADER: ""}, {CSRF_HEADER: csrf_token("another's")}):
        with pytest.raises(PermissionDeniedError, match=CSRF_HEADER):
            check_csrf(request(method, **headers), "mine")
    check_csrf(request("GET"), "mine")


def test_under_tls_only_the_cookie_that_no_other_host_can_set_is_a_session() -> None:
    both = request(cookie=f"{COOKIE}=tossed; {SECURE_COOKIE}=mine")
    assert session_of({**both, "scheme": "https"}) == "mine"
    assert session_of({**request(cookie=f"{COOKIE}=tossed"), "scheme": "https"}) is None
    assert session_of(request(cookie=f"{COOKIE}=mine")) == "mine"
    assert session_of(request(cookie=f"{COOKIE}=mine", authorization="Bearer t")) is None


def test_a_sealed_token_is_opened_by_its_session_alone() -> None:
    sealed = seal("mine", "token")
    assert unseal("mine", sealed) == "token"
    assert "token" not in sealed and seal("mine", "token") != sealed
    for secret, text in (("another's", sealed), ("mine", sealed[:-4] + "AAAA"), ("mine", "")):
        with pytest.raises(UnauthenticatedError):
            unseal(secret, text)


async def asked(**headers: str) -> int:
    """The status of a request, behind the rules, of an app that answers 204 to everything."""
    statuses: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    await BrowserRules(app, ["api.example.org"])(request("GET", **headers), receive, send)
    (status,) = statuses
    return status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "api.example.org:8000"}, 204),
        ({"host": "10.0.0.7"}, 204),
        ({"host": "[::1]:8000"}, 204),
        ({"host": "LOCALHOST."}, 204),
        ({"host": "rebound.example.com:8000"}, 403),
        ({"host": "localhost", "origin": "http://localhost"}, 204),
        ({"host": "localhost:8000", "origin": "https://evil.example.com"}, 403),
        ({"host": "localhost:8000", "origin": "null"}, 403),
        ({}, 403),
    ],
)
async def test_names_and_pages_of_others_find_no_door(headers: dict[str, str], status: int) -> None:
    assert await asked(**headers) == status
