"""The page at ``/``: every file is served, small, kept by browsers, and under a policy that runs nothing else."""

from __future__ import annotations

import gzip
import re
from pathlib import PurePosixPath

import pytest

from elasticdl_api.dashboard import files
from elasticdl_api.settings import ApiSettings
from elasticdl_api.web.auth import OPEN_PATHS
from elasticdl_api.web.session_cookies import COOKIE
from tests.integration.api.conftest import Api

pytestmark = pytest.mark.integration
MOST_BYTES = 150_000
NOBODY = {"Authorization": ""}


def _content(name: str) -> str:
    found = files.read(name)
    assert found is not None
    return found.content.decode()


def _addresses() -> list[str]:
    return [files.PAGE, *(f"{files.base()}/{name}" for name in files.names() if name != files.INDEX)]


def test_all_files_together_are_small() -> None:
    """As they are sent: one by one, compressed."""
    found = [files.read(name) for name in files.names()]
    assert len(found) > 20
    assert sum(len(one.packed) for one in found if one is not None) <= MOST_BYTES


async def test_every_file_is_served_to_everybody_and_kept(api: Api) -> None:
    for path in _addresses():
        assert path in OPEN_PATHS
        for coding in ("gzip", "identity"):
            headers = {**NOBODY, "Accept-Encoding": coding}
            async with api.http.stream("GET", path, headers=headers) as answer:
                raw = b"".join([piece async for piece in answer.aiter_raw()])
            assert answer.status_code == 200, path
            assert answer.headers.get("content-encoding", "identity") == coding
            assert "Accept-Encoding" in answer.headers["vary"]
            body = gzip.decompress(raw) if coding == "gzip" else raw
            again = await api.http.get(path, headers={**headers, "If-None-Match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b""), path
        kept = "private, no-cache" if path == files.PAGE else "public, max-age=31536000, immutable"
        assert answer.headers["cache-control"] == kept
        assert answer.headers["x-content-type-options"] == "nosniff"
        wanted = {"": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
        assert answer.headers["content-type"].split(";")[0] == wanted[PurePosixPath(path).suffix]
        assert body


async def test_the_address_of_a_job_is_its_page_in_a_browser_and_its_data_elsewhere(api: Api) -> None:
    browser = {**NOBODY, "Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path in ("/jobs", "/jobs/digits-x7k2p9", "/v1/jobs/digits-x7k2p9"):
        answer = await api.http.get(path, headers=browser)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/#{path.removeprefix('/v1')}")
        assert (answer.headers["vary"], answer.headers["cache-control"]) == ("Accept", "no-store")
        assert (await api.http.get(path, headers={**NOBODY, "Accept": "*/*"})).status_code == 401
        assert (await api.http.get(path, headers={"Accept": "application/json"})).status_code in (200, 404)
    for path in ("/jobs/digits-x7k2p9/logs", "/jobs//evil.example", "/tokens"):
        assert (await api.http.get(path, headers=browser)).status_code == 401


async def test_the_page_says_whether_it_was_asked_for_with_a_session(api: Api) -> None:
    """For no script can see the cookie, and the page asks at once for what it shows where somebody is logged in."""
    stranger = await api.http.get("/", headers=NOBODY)
    request = api.http.build_request("GET", "/", headers={"Cookie": f"{COOKIE}=any"})
    del request.headers["Authorization"]
    known = await api.http.send(request)
    assert 'data-session="none"' in stranger.text and 'data-session="sent"' not in stranger.text
    assert 'data-session="sent"' in known.text
    assert stranger.headers["etag"] != known.headers["etag"]
    assert "Cookie" in known.headers["vary"] and "private" in known.headers["cache-control"]


async def test_the_page_runs_its_own_files_only(api: Api) -> None:
    page = await api.http.get("/", headers=NOBODY)
    policy = page.headers["content-security-policy"]
    assert policy == files.policy()
    assert "unsafe" not in policy and "sha256" not in policy and policy.startswith("default-src 'none'")
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\bon\w+=|\bstyle=|https?:", page.text) == []
    named = re.findall(r'(?:src|href)="(/[^"]+)"', page.text)
    assert len(named) >= 6 and set(named) <= {*_addresses(), "/docs"}
    assert page.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("name", [one for one in files.names() if one.endswith(".js")])
def test_what_a_module_imports_is_there(name: str) -> None:
    """References are relative, so that all files are of one release; nothing comes from elsewhere."""
    imported = re.findall(r"""(?:from\s*|import\(|import\s+)["']([^"']+)["']""", _content(name))
    folder = PurePosixPath(name).parent
    for reference in imported:
        assert reference.startswith("."), f"{name} imports {reference}"
        parts: list[str] = []
        for part in (folder / reference).parts:
            if part == "..":
                parts.pop()
            else:
                parts.append(part)
        assert "/".join(parts) in files.names(), f"{name} imports {reference}"


async def test_files_of_another_release_are_not_there(api: Api) -> None:
    for path in (
        f"{files.FOLDER}/0123456789abcdef/app.js",
        f"{files.base()}/nothing.js",
        f"{files.base()}/index.html",
    ):
        assert (await api.http.get(path)).status_code == 404
        assert (await api.http.get(path, headers=NOBODY)).status_code == 401


def test_the_policy_lets_the_page_ask_the_identity_provider(settings: ApiSettings) -> None:
    assert settings.oidc_issuer == ""
    assert files.policy("").endswith("connect-src 'self'")
    assert files.policy("https://id.example/realms/a").endswith("connect-src 'self' https://id.example")


def test_licences_of_what_comes_with_the_page_are_there() -> None:
    notice = (files.LICENCES / "NOTICE").read_text(encoding="utf-8")
    vendored = {PurePosixPath(name).stem for name in files.names() if name.startswith("vendor/")}
    assert vendored == {"preact", "hooks", "htm", "uplot"}
    for name in ("preact", "htm", "uplot"):
        assert f"{name} " in notice
        assert len((files.LICENCES / f"{name}.LICENSE").read_text(encoding="utf-8")) > 1000
