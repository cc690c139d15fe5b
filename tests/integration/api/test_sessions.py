"""Sessions of browsers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, text

from elasticdl_runtime.database import tables as t
from tests.integration.api.conftest import ADMIN, Api
from tests.integration.api.test_streams import limited

pytestmark = pytest.mark.integration


@pytest.fixture
async def browser(api: Api) -> Any:
    """Speaks as a browser does: with cookies, and without a token of its own."""
    transport = httpx.ASGITransport(api.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api", timeout=60) as client:
        yield client


async def _log_in(browser: httpx.AsyncClient, headers: dict[str, str]) -> dict[str, str]:
    answer = await browser.post("/session", headers=headers)
    assert answer.status_code == 201, answer.text
    return {"X-CSRF-Token": answer.json()["csrf_token"]}


async def test_a_browser_logs_in_reads_changes_and_logs_out(api: Api, browser: httpx.AsyncClient) -> None:
    assert (await api.http.put("/namespaces/default", json={"data_roots": ["/data"]})).status_code == 200
    ada = await api.token("default", "submit", name="ada")
    assert (await browser.get("/jobs")).status_code == 401
    answer = await browser.post("/session", headers=ada)
    cookie = answer.headers["set-cookie"].lower()
    assert answer.headers["cache-control"] == "no-store"
    for part in ("elasticdl_session=", "httponly", "samesite=strict", "path=/", "max-age=43200"):
        assert part in cookie
    assert "secure" not in cookie and "domain" not in cookie
    proof = {"X-CSRF-Token": answer.json()["csrf_token"]}
    assert (await browser.get("/whoami")).json()["user"] == "ada-owner"
    again = (await browser.get("/session")).json()
    assert (again["user"], again["scope"], again["csrf_token"]) == ("ada-owner", "submit", proof["X-CSRF-Token"])
    spec = await api.spec()
    refused = await browser.post("/jobs", json=spec)
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    submitted = await browser.post("/jobs", json=spec, headers=proof)
    assert submitted.status_code == 201, submitted.text
    job_id = submitted.json()["id"]
    assert (await api.job(job_id))["owner"] == "ada-owner"
    assert (await browser.post(f"/jobs/{job_id}/cancel", headers=proof)).status_code == 202
    events = await browser.get(f"/jobs/{job_id}/events", headers={"Accept": "text/event-stream"})
    assert "event: end" in events.text  # what an EventSource asks for
    stolen = dict(browser.cookies)
    assert (await browser.delete("/session")).status_code == 403
    assert (await browser.delete("/session", headers=proof)).status_code == 204
    assert not browser.cookies
    browser.cookies.update(stolen)
    assert (await browser.get("/jobs")).status_code == 401
    actions = [one["action"] for one in (await api.http.get("/audit?actor=ada-owner")).json()["entries"]]
    assert actions == ["session.end", "job.cancel", "job.submit", "session.begin"]


async def test_the_cookie_is_of_this_host_alone_under_tls(api: Api) -> None:
    transport = httpx.ASGITransport(api.app)
    async with httpx.AsyncClient(transport=transport, base_url="https://api") as browser:
        answer = await browser.post("/session", headers={"Authorization": f"Bearer {ADMIN}"})
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-elasticdl_session=") and "; Secure" in cookie
        assert answer.headers["strict-transport-security"]
        assert (await browser.get("/whoami")).json()["user"] == "admin"


async def test_a_session_ends_with_its_token_and_by_its_age(api: Api, browser: httpx.AsyncClient) -> None:
    await _log_in(browser, await api.token("default", "admin", name="ada"))
    assert (await browser.get("/whoami")).status_code == 200
    assert (await api.http.delete("/tokens/ada")).status_code == 204
    assert (await browser.get("/whoami")).json()["detail"] == "the token 'ada' was revoked"
    await _log_in(browser, await api.token("default", "admin", name="bob"))
    async with api.services.database.transaction() as connection:
        old = t.sessions.update().values(expires_at=func.now() - timedelta(seconds=1))
        await connection.execute(old)
    assert (await browser.get("/whoami")).json()["detail"] == "the session is over"


async def test_sessions_are_kept_as_hashes_and_the_oldest_give_way(
    api: Api, browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticdl_api.store.sessions.MOST_SESSIONS", 3)
    headers = await api.token("default", "read")
    secrets = []
    for _ in range(5):
        await _log_in(browser, headers)
        secrets.append(browser.cookies["elasticdl_session"])
        browser.cookies.clear()
    async with api.services.database.transaction() as connection:
        kept = (await connection.execute(text("SELECT string_agg(s::text, '') FROM sessions s"))).scalar_one()
        assert (await connection.execute(select(func.count()).select_from(t.sessions))).scalar_one() == 3
    assert not any(secret in kept for secret in secrets)
    for secret, status in zip(secrets, (401, 401, 200, 200, 200), strict=True):
        assert (await browser.get("/jobs", headers={"Cookie": f"elasticdl_session={secret}"})).status_code == status


async def test_a_token_goes_before_a_session(api: Api, browser: httpx.AsyncClient) -> None:
    await _log_in(browser, await api.token("default", "read", name="ada"))
    bob = await api.token("default", "submit", name="bob")
    assert (await browser.get("/whoami", headers=bob)).json()["user"] == "bob-owner"
    assert (await browser.get("/session", headers=bob)).status_code == 404
    assert (await browser.get("/whoami", headers={"Authorization": "Bearer wrong"})).status_code == 401
    assert (await browser.post("/session")).status_code == 403  # neither a token nor a proof


@pytest.mark.parametrize(
    "cookie", ["elasticdl_session", "elasticdl_session=", "a=b; =; \xff", "elasticdl_session=\xff"]
)
async def test_odd_cookies_are_nobodys(browser: httpx.AsyncClient, cookie: str) -> None:
    answer = await browser.get("/jobs", headers=[(b"Cookie", cookie.encode("latin-1"))])
    assert answer.status_code == 401


async def test_an_address_that_sends_bad_sessions_has_to_wait_and_logs_nobody_out(api: Api) -> None:
    """Each costs a look at the database, as a bad token does."""
    one = limited(api, failed_tokens_per_s=0.01, failed_tokens_at_once=3)
    token = await api.token("default", "read", name="ada")
    transport = httpx.ASGITransport(one.app)
    async with one.http, httpx.AsyncClient(transport=transport, base_url="http://api") as browser:

        async def ask(secret: str) -> int:
            answer = await one.http.get("/whoami", headers={"Cookie": f"elasticdl_session={secret}"})
            return answer.status_code

        del one.http.headers["Authorization"]
        proof = await _log_in(browser, token)
        secret = browser.cookies["elasticdl_session"]
        assert await ask(secret) == 200
        assert [await ask(f"made-up-{number}") for number in range(5)] == [401, 401, 401, 429, 429]
        assert await ask(secret) == 200
        assert (await browser.delete("/session", headers=proof)).status_code == 204
        # Over is over: it is refused once with the reason, and waits with the others from then on.
        assert [await ask(secret) for _ in range(2)] == [401, 429]
        assert (await one.http.post("/session", headers={"Authorization": f"Bearer {ADMIN}"})).status_code == 201


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 201),
        (b"{}", 201),
        (b'{"token": "x"}', 422),
        (b"token=x", 422),
        (b"[" * 100_000, 400),
        (b" " * (1 << 20) + b"{}", 413),
    ],
)
async def test_a_login_takes_a_header_and_no_body(api: Api, body: bytes, status: int) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await api.http.post("/session", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert ("set-cookie" in answer.headers) == (status == 201)
