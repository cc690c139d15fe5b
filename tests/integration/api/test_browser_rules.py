"""Names that are not ours, pages of others, and the headers of every answer."""

from __future__ import annotations

import re

import pytest

from elasticdl_api.settings import ApiSettings
from elasticdl_api.web.safe_headers import policy_of_page
from elasticdl_core.errors import InvalidInputError
from tests.integration.api.conftest import Api

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "host",
    ["api", "API:8850", "localhost", "localhost:1", "127.0.0.1:8850", "[::1]:8850", "192.0.2.7", "localhost."],
)
async def test_names_of_ours_and_addresses_are_answered(api: Api, host: str) -> None:
    assert (await api.http.get("/jobs", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8850", "localhost.evil.example", "127.0.0.1.evil.example", "a@localhost"),
        *("", "localhost:x", "[::1", "localhost evil", "xapi", "localhost:1:2", "127.0.0.1:999999", "0x7f000001"),
    ],
)
async def test_other_names_are_refused(api: Api, host: str) -> None:
    """A page whose name leads to this machine reads nothing, with or without a token."""
    answer = await api.http.get("/jobs", headers={"Host": host})
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert "ELASTICDL_API_ALLOWED_HOSTS" in answer.json()["fix"]
    assert (await api.http.get("/healthz", headers={"Host": host})).status_code == 200  # whoever watches it


async def test_two_names_are_refused(api: Api) -> None:
    assert (await api.http.get("/jobs", headers=[("Host", "api"), ("Host", "evil.example")])).status_code == 403


@pytest.mark.parametrize("origin", ["http://api", "https://api", "http://API:80", "https://api:443"])
async def test_a_page_of_ours_is_answered(api: Api, origin: str) -> None:
    assert (await api.http.get("/jobs", headers={"Origin": origin})).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://api:8851", "null", "", "file://", "http://api.evil.example", "http://["]
)
async def test_a_page_of_others_is_refused(api: Api, origin: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        answer = await api.http.request(method, "/jobs", headers={"Origin": origin})
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")


async def test_every_answer_has_the_headers_of_a_safe_one(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    job_id = await api.submit()
    answers = [
        await api.http.get("/jobs"),
        await api.http.get("/jobs", headers={"Authorization": ""}),
        await api.http.get("/jobs", headers={"Host": "evil.example"}),
        await api.http.get("/nothing"),
        await api.http.get("/healthz"),
        await api.http.post("/jobs", content=b"{"),
        await api.http.get(f"/jobs/{job_id}/logs"),
        await api.http.get("/openapi.json"),
        await api.http.get("/docs"),
    ]
    monkeypatch.setattr(api.services.job_lists, "list_page", broken)
    answers.append(await api.http.get("/jobs"))
    assert [answer.status_code for answer in answers][-1] == 500
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff", answer.request.url
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; frame-ancestors 'none'")
        assert answer.headers["cache-control"] in {"private, no-cache", "no-store"}
        assert "access-control-allow-origin" not in answer.headers


async def test_the_policy_lets_the_reference_run_its_own_scripts(api: Api) -> None:
    page = await api.http.get("/docs")
    policy = page.headers["content-security-policy"]
    inline = [content for content in re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL) if content.strip()]
    assert policy == policy_of_page(page.content)
    assert policy.count("'sha256-") == len(inline)
    assert "connect-src 'self'" in policy and "unsafe-eval" not in policy
    assert policy_of_page(page.content.replace(b"SwaggerUIBundle(", b"evil(")) != policy or not inline


async def test_a_page_that_a_browser_has_kept_keeps_its_policy(api: Api) -> None:
    """A header of a 304 replaces the one that was kept: the general policy would leave the page blank."""
    page = await api.http.get("/docs")
    again = await api.http.get("/docs", headers={"If-None-Match": page.headers["etag"]})
    assert again.status_code == 304
    kept = {**page.headers, **again.headers}
    assert kept["content-security-policy"] == policy_of_page(page.content)
    assert again.headers["x-frame-options"] == "DENY"


def test_hosts_that_are_no_names_are_refused_at_the_start(settings: ApiSettings) -> None:
    given = {"database_url": settings.database_url, "cluster_secret": settings.cluster_secret}
    assert ApiSettings(**given, data_dir=settings.data_dir, allowed_hosts=" a.example, B ").hosts == {
        "a.example",
        "b",
    }
    for wrong in ("http://a", "a:80", "*", "a b"):
        with pytest.raises(InvalidInputError, match="ELASTICDL_API_ALLOWED_HOSTS"):
            ApiSettings(**given, data_dir=settings.data_dir, allowed_hosts=wrong)
