"""Logging in at an identity provider (OpenID Connect, authorization code with PKCE), in a real browser."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.visits import Visit
from tests.fakes import recorded_states
from tests.fakes.identity_provider import AUDIENCE, Issuer
from tests.fakes.recorded_cluster import RecordedCluster, recorded_cluster
from tests.integration.conftest import PostgresServer

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    """The identity provider."""
    made = Issuer()
    yield made
    made.close()


@pytest.fixture(scope="module")
def federated(server: PostgresServer, issuer: Issuer) -> Iterator[RecordedCluster]:
    """A cluster that takes the provider's word."""
    settings = {
        "ELASTICDL_OIDC_ISSUER": issuer.url,
        "ELASTICDL_OIDC_AUDIENCE": AUDIENCE,
        "ELASTICDL_OIDC_USER_CLAIM": "email",
        "ELASTICDL_OIDC_GRANTS": json.dumps({"ads": "team-a:submit"}),
    }
    with recorded_cluster(server, recorded_states.nothing, settings=settings) as cluster:
        headers = {"Authorization": f"Bearer {cluster.token}"}
        made = httpx.put(f"{cluster.url}/v1/namespaces/team-a", json={}, headers=headers, timeout=30, trust_env=False)
        assert made.status_code == 201, made.text
        yield cluster


def log_in(page: Page, issuer: Issuer) -> None:
    page.get_by_role("button", name=f"Log in at {urlsplit(issuer.url).netloc}").click()


def test_a_user_of_the_provider_logs_in_and_is_where_he_wanted_to_be(
    visit: Callable[..., Visit], federated: RecordedCluster, issuer: Issuer
) -> None:
    here = visit(federated, path="/#/jobs?state=QUEUED", token=None, expected="401")
    page = here.page
    log_in(page, issuer)
    expect(page.get_by_label("State")).to_have_value("QUEUED")
    expect(page).to_have_url(f"{federated.url}/#/jobs?state=QUEUED")
    expect(page.locator(".who")).to_contain_text("ada@example.org team-a")
    views = page.get_by_role("navigation", name="Views")
    expect(views.get_by_role("link", name="Submit")).to_be_visible()
    expect(views.get_by_role("link", name="Admin")).to_have_count(0)
    (cookie,) = here.context.cookies(federated.url)
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert "eyJ" not in kept and "verifier" not in kept, kept
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert here.context.cookies(federated.url) == []


@pytest.mark.parametrize(
    ("refuses", "claims", "said"),
    [
        ("you are not one of us", {}, "you are not one of us"),
        ("", {"nonce": "of another login"}, "its token is not for this login"),
        ("", {"groups": ["everybody"]}, "names nothing that may do something here"),
        ("", {"aud": "billing"}, "token"),
    ],
    ids=["refused", "another login", "no group", "another audience"],
)
def test_what_the_provider_does_not_vouch_for_begins_no_session(
    visit: Callable[..., Visit],
    federated: RecordedCluster,
    issuer: Issuer,
    refuses: str,
    claims: dict[str, object],
    said: str,
) -> None:
    here = visit(federated, token=None, expected="401|403")
    issuer.refuses, issuer.claims = refuses, claims
    try:
        log_in(here.page, issuer)
        expect(here.page.get_by_role("alert")).to_contain_text(said)
    finally:
        issuer.refuses, issuer.claims = "", {}
    assert here.context.cookies(federated.url) == []
    expect(here.page).to_have_url(f"{federated.url}/")


def test_an_answer_to_no_question_of_ours_is_refused(visit: Callable[..., Visit], federated: RecordedCluster) -> None:
    here = visit(federated, path="/?code=stolen&state=made-up", token=None, expected="401")
    expect(here.page.get_by_role("alert")).to_contain_text("the answer is not to our question")
    assert here.context.cookies(federated.url) == []
