"""Bearer tokens of an identity provider, against a local one with real keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from sqlalchemy import select

from elasticdl_api.services import Services
from elasticdl_api.settings import ApiSettings
from elasticdl_api.store.wakeups import Wakeups
from elasticdl_api.web import oidc
from elasticdl_api.web.sealed_tokens import unseal
from elasticdl_core.errors import InvalidInputError, UnauthenticatedError
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database
from tests.fakes.identity_provider import AUDIENCE, CURVE, FIRST, STRANGER, Issuer, public
from tests.fakes.launcher import FakeLauncher
from tests.integration.api.conftest import MODULE, Api, digest_of, make_zip

pytestmark = pytest.mark.integration
GRANTS = {"ads": "team-a:submit", "ads-leads": "team-a:admin", "vision": "team-b:read", "platform": "*:admin"}


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


@pytest.fixture
def settings(settings: ApiSettings, issuer: Issuer) -> ApiSettings:
    told = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE, "oidc_user_claim": "email"}
    return ApiSettings(**{**settings.model_dump(), **told, "oidc_grants": json.dumps(GRANTS)})


@pytest.fixture
async def api(database: Database, settings: ApiSettings) -> AsyncIterator[Api]:
    services = Services(settings, database, FakeLauncher(), Wakeups(database))
    api = Api(services, services.launcher)  # type: ignore[arg-type]
    async with api.http:
        for name in ("team-a", "team-b"):
            assert (await api.http.put(f"/namespaces/{name}", json={"data_roots": ["/data"]})).status_code == 201
        yield api
    services.examiners.close()
    await services.close_provider()


async def ask(api: Api, token: str, method: str = "GET", path: str = "/whoami", **options: Any) -> httpx.Response:
    return await api.http.request(method, path, headers={"Authorization": f"Bearer {token}"}, **options)


async def test_a_user_of_the_provider_is_known_by_name_namespace_and_scope(api: Api, issuer: Issuer) -> None:
    for groups, key, place, scope in (
        (["everybody", "ads"], (FIRST, "first", "RS256"), "team-a", "submit"),
        (["ads", "ads-leads"], (CURVE, "curve", "ES256"), "team-a", "admin"),
        ("vision", (FIRST, "first", "RS256"), "team-b", "read"),
        (["platform"], (FIRST, "first", "RS256"), None, "admin"),
    ):
        me = (await ask(api, issuer.token(*key, groups=groups))).json()
        assert (me["user"], me["namespace"], me["scope"]) == ("ada@example.org", place, scope)
        assert me["token_id"].startswith("oidc-") and me["expires_at"] is not None
    assert issuer.fetched == 1
    submitted = await ask(api, issuer.token(), "POST", "/jobs", json={})
    assert submitted.json()["code"] == "invalid_spec"
    reader = issuer.token(groups=["vision"])
    assert (await ask(api, reader, "POST", "/jobs", json={})).status_code == 403
    assert (await ask(api, reader, "PUT", "/namespaces/team-b", json={})).status_code == 403


async def test_a_token_that_is_not_for_us_is_refused(api: Api, issuer: Issuer) -> None:
    now = int(time.time())
    secret = FIRST.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )

    def unsigned(header: dict[str, Any], signature: bytes = b"") -> str:
        claims = issuer.token().split(".")[1]
        parts = base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode()
        return f"{parts}.{claims}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"

    confused = unsigned({"alg": "HS256", "kid": "first"})
    confused = confused[: confused.rindex(".")]
    mac = hmac.new(secret, confused.encode(), hashlib.sha256).digest()
    good = issuer.token()
    bad = {
        "another audience": issuer.token(aud="billing"),
        "no audience": issuer.token(aud=None),
        "another issuer": issuer.token(iss="https://evil.example"),
        "expired": issuer.token(exp=now - 60),
        "no end": issuer.token(exp=None),
        "an end that is none": issuer.token(exp=10**30),
        "not yet": issuer.token(nbf=now + 600),
        "no subject": issuer.token(sub=None),
        "another key under that name": issuer.token(STRANGER),
        "another algorithm": issuer.token(FIRST, algorithm="RS512"),
        "no signature": unsigned({"alg": "none", "kid": "first"}),
        "the public key as a secret": f"{confused}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}",
        "a secret of the list": jwt.encode({"sub": "x"}, b"abc" * 20, algorithm="HS256", headers={"kid": "o"}),
        "a key of its own": unsigned({"alg": "RS256", "jwk": public(STRANGER, "x")}),
        "cut off": good[:-10],
        "changed": good.replace(good.split(".")[1][:6], "eyJhIj", 1),
        "nonsense": "a.b.c",
        "deep": unsigned({"alg": "RS256", "kid": "first"}).split(".")[0] + "." + "W1tb" * 60 + ".AA",
    }
    for name, token in bad.items():
        answer = await ask(api, token)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated"), name
        assert answer.json()["fix"]
    assert (await ask(api, good)).status_code == 200
    assert (await ask(api, good, path="/internal/jobs/x/bundle")).status_code == 401


async def test_who_belongs_nowhere_may_do_nothing(api: Api, issuer: Issuer) -> None:
    for claims, said in (
        ({"groups": ["everybody"]}, "names nothing that may do something here"),
        ({"groups": None}, "names nothing"),
        ({"groups": {"ads": 1}}, "names nothing"),
        ({"groups": ["ads", "vision"]}, "several namespaces"),
        ({"email": None}, "is no user's name"),
        ({"email": "a\nb"}, "is no user's name"),
    ):
        answer = await ask(api, issuer.token(**claims))
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied"), claims
        assert said in answer.json()["detail"]
    assert (await api.http.delete("/namespaces/team-a")).status_code == 204
    gone = await ask(api, issuer.token())
    assert gone.status_code == 403 and "there is no namespace 'team-a'" in gone.json()["detail"]


async def test_what_needs_a_token_of_ours_says_so(api: Api, issuer: Issuer) -> None:
    """A token would go on when the provider has long taken its word back."""
    admin = issuer.token(groups=["ads-leads"])
    refused = await ask(api, admin, "POST", "/tokens", json={"name": "mine"})
    assert refused.status_code == 403 and "identity provider" in refused.json()["detail"]
    assert (await ask(api, admin, "GET", "/tokens")).status_code == 200


class Page:
    """A page in a browser: has cookies, and logs in as its user with authorization code and PKCE."""

    def __init__(self, api: Api, issuer: Issuer) -> None:
        transport = httpx.ASGITransport(api.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://api", timeout=60)
        self._issuer = issuer

    async def id_token(self, verifier: str = "", **claims: Any) -> httpx.Response:
        """Asks the provider; the verifier is the right one unless given."""
        secret = base64.urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()
        challenge = base64.urlsafe_b64encode(hashlib.sha256(secret.encode()).digest()).rstrip(b"=").decode()
        self._issuer.claims = claims
        query = {"response_type": "code", "client_id": AUDIENCE, "scope": "openid", "state": "s", "nonce": "n"}
        query |= {"redirect_uri": "http://api/ui", "code_challenge": challenge, "code_challenge_method": "S256"}
        async with httpx.AsyncClient() as provider:
            back = await provider.get(f"{self._issuer.url}/authorize", params=query)
            given = parse_qs(urlsplit(back.headers["location"]).query)
            assert given["state"] == ["s"]
            form = {"grant_type": "authorization_code", "client_id": AUDIENCE, "redirect_uri": "http://api/ui"}
            form |= {"code": given["code"][0], "code_verifier": verifier or secret}
            return await provider.post(f"{self._issuer.url}/token", data=form)

    async def log_in(self, **claims: Any) -> httpx.Response:
        token = (await self.id_token(**claims)).json()["id_token"]
        return await self.http.post("/session", headers={"Authorization": f"Bearer {token}"})


@pytest.fixture
async def page(api: Api, issuer: Issuer) -> AsyncIterator[Page]:
    found = Page(api, issuer)
    async with found.http:
        yield found


async def test_a_browser_logs_in_with_the_provider(api: Api, page: Page, database: Database) -> None:
    assert (await page.id_token("the verifier of somebody else")).status_code == 400
    answer = await page.log_in()
    assert answer.status_code == 201, answer.text
    shown = answer.json()
    assert (shown["user"], shown["namespace"], shown["scope"]) == ("ada@example.org", "team-a", "submit")
    ends_in = datetime.fromisoformat(shown["expires_at"]) - datetime.now(UTC)
    assert timedelta(minutes=8) < ends_in <= timedelta(minutes=10)  # as the token, not after twelve hours
    me = (await page.http.get("/whoami")).json()
    assert (me["user"], me["namespace"]) == ("ada@example.org", "team-a")
    proof = {"X-CSRF-Token": shown["csrf_token"]}
    bundle = make_zip({"model.py": MODULE})
    path = f"/bundles/{digest_of(bundle)}"
    assert (await page.http.put(path, content=bundle)).status_code == 403
    assert (await page.http.put(path, content=bundle, headers=proof)).status_code == 201
    submitted = await page.http.post("/jobs", json=await api.spec(), headers=proof)
    assert submitted.status_code == 201, submitted.text
    assert (await page.http.get(f"/jobs/{submitted.json()['id']}")).json()["owner"] == "ada@example.org"
    refused = await page.http.post("/tokens", json={"name": "mine"}, headers=proof)
    assert refused.status_code == 403
    stolen = dict(page.http.cookies)
    assert (await page.http.delete("/session", headers=proof)).status_code == 204
    page.http.cookies.update(stolen)
    assert (await page.http.get("/whoami")).status_code == 401


@pytest.mark.parametrize("path", ["/session/providers", "/v1/session/providers"])
async def test_a_page_without_a_token_is_told_where_to_log_in(
    api: Api, issuer: Issuer, page: Page, path: str
) -> None:
    assert (await page.http.get(path)).json() == {"oidc": {"issuer": issuer.url, "client_id": AUDIENCE}}
    settings = api.services.settings
    named = ApiSettings.model_validate({**settings.model_dump(), "oidc_client_id": "the-dashboard"})
    assert named.provider is not None
    assert named.provider.client_id == "the-dashboard"
    none = ApiSettings.model_validate({**settings.model_dump(), "oidc_issuer": ""})
    services = Services(none, api.services.database, api.launcher, Wakeups(api.services.database))
    other = Api(services, api.launcher)
    async with other.http:
        assert (await other.http.get(path, headers={"Authorization": ""})).json() == {"oidc": None}
    services.examiners.close()


async def test_a_providers_token_is_kept_so_that_the_database_alone_opens_nothing(
    page: Page, issuer: Issuer, database: Database
) -> None:
    token = (await page.id_token()).json()["id_token"]
    await page.http.post("/session", headers={"Authorization": f"Bearer {token}"})
    secret = page.http.cookies["elasticdl_session"]
    async with database.transaction() as connection:
        row = (await connection.execute(select(t.sessions))).one()
    assert not [text for text in map(str, row) if token in text or secret in text or token.split(".")[2] in text]
    assert unseal(secret, row.sealed_token) == token
    with pytest.raises(UnauthenticatedError):
        unseal(secret + "x", row.sealed_token)


async def test_a_session_is_over_when_the_provider_takes_its_word_back(
    api: Api, page: Page, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await page.log_in()).status_code == 201
    assert (await page.http.get("/whoami")).status_code == 200
    keys = api.services.provider_keys
    assert keys is not None
    issuer.keys = [public(STRANGER, "second")]
    keys._fetched_at -= oidc.KEPT_S + 1
    keys._tried_at -= oidc.AGAIN_S + 1
    assert (await page.http.get("/whoami")).status_code == 401


async def test_who_may_do_nothing_begins_no_session(page: Page) -> None:
    for claims, status in (({"groups": ["everybody"]}, 403), ({"aud": "another"}, 401), ({"exp": 1}, 401)):
        assert (await page.log_in(**claims)).status_code == status
        assert not page.http.cookies


async def test_new_keys_are_fetched_and_old_ones_kept_for_a_while(
    api: Api, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = api.services.provider_keys
    assert keys is not None
    now = [1000.0]
    monkeypatch.setattr(keys, "_clock", lambda: now[0])
    assert (await ask(api, issuer.token())).status_code == 200
    issuer.keys = [public(STRANGER, "second")]
    turned = issuer.token(STRANGER, "second")
    assert (await ask(api, turned)).status_code == 401  # asked for a moment ago: nobody makes us ask again
    now[0] += oidc.AGAIN_S + 1
    assert (await ask(api, turned)).status_code == 200
    assert (await ask(api, issuer.token())).status_code == 401
    assert issuer.fetched == 2
    issuer.works = False
    now[0] += oidc.KEPT_S - 1
    assert (await ask(api, turned)).status_code == 200
    now[0] += 2
    for _ in range(3):
        assert (await ask(api, turned)).status_code == 503
    issuer.works = True
    now[0] += oidc.AGAIN_S + 1
    assert (await ask(api, turned)).status_code == 200


@pytest.mark.parametrize(
    "changes",
    [
        {"oidc_issuer": "http://idp.example"},
        {"oidc_issuer": "idp"},
        {"oidc_audience": ""},
        {"oidc_grants": ""},
        {"oidc_grants": "[]"},
        {"oidc_grants": "{"},
        {"oidc_grants": '{"a": "team-a"}'},
        {"oidc_grants": '{"a": "team-a:write"}'},
        {"oidc_grants": '{"a": "Team:read"}'},
        {"oidc_grants": '{"a": 3}'},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: ApiSettings, changes: dict[str, str]) -> None:
    given = {"oidc_issuer": "https://idp.example", "oidc_audience": "x", "oidc_grants": json.dumps(GRANTS), **changes}
    with pytest.raises(InvalidInputError, match="ELASTICDL_OIDC_"):
        ApiSettings(
            database_url=settings.database_url,
            cluster_secret=settings.cluster_secret,
            data_dir=settings.data_dir,
            **given,  # type: ignore[arg-type]
        )
