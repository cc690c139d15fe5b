"""Bearer tokens of an identity provider, against a local one with real keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from elasticdl_api.services import Services
from elasticdl_api.settings import ApiSettings
from elasticdl_api.store.wakeups import Wakeups
from elasticdl_api.web import oidc
from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.database.engine import Database
from tests.fakes.launcher import FakeLauncher
from tests.integration.api.conftest import Api

pytestmark = pytest.mark.integration
AUDIENCE = "elasticdl"
GRANTS = {"ads": "team-a:submit", "ads-leads": "team-a:admin", "vision": "team-b:read", "platform": "*:admin"}
FIRST, CURVE, STRANGER = (
    rsa.generate_private_key(65537, 2048),
    ec.generate_private_key(ec.SECP256R1()),
    rsa.generate_private_key(65537, 2048),
)


def public(key: Any, key_id: str, **more: Any) -> dict[str, Any]:
    kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return {**kind.to_jwk(key.public_key(), as_dict=True), "kid": key_id, **more}


class Issuer:
    """A provider over real HTTP: its description, its keys, and how often they were asked for."""

    def __init__(self) -> None:
        self.keys = [
            public(FIRST, "first", alg="RS256"),
            public(CURVE, "curve"),
            {"kty": "oct", "k": "YWJj", "kid": "o"},
        ]
        self.fetched = 0
        self.works = True
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.fetched += self.path == "/keys"
                about = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys"}
                body = json.dumps({"keys": issuer.keys} if self.path == "/keys" else about).encode()
                self.send_response(200 if issuer.works else 500)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def token(self, key: Any = FIRST, key_id: str = "first", algorithm: str = "RS256", **claims: Any) -> str:
        """A token; a claim that is None is left out."""
        every = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "00u1",
            "email": "ada@example.org",
            "groups": ["everybody", "ads"],
            "exp": int(time.time()) + 600,
            **claims,
        }
        told = {name: value for name, value in every.items() if value is not None}
        return jwt.encode(told, key, algorithm=algorithm, headers={"kid": key_id})


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
    """A session and a token would go on when the provider has long taken its word back."""
    admin = issuer.token(groups=["ads-leads"])
    for method, path in (("POST", "/session"), ("POST", "/tokens")):
        refused = await ask(api, admin, method, path, json={"name": "mine"})
        assert refused.status_code == 403 and "identity provider" in refused.json()["detail"]
    assert (await ask(api, admin, "GET", "/tokens")).status_code == 200


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
