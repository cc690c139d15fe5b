"""An identity provider (OpenID Connect) on this machine, with real keys."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

AUDIENCE = "elasticdl"
"""Whom its tokens are for."""
FIRST, CURVE, STRANGER = (
    rsa.generate_private_key(65537, 2048),
    ec.generate_private_key(ec.SECP256R1()),
    rsa.generate_private_key(65537, 2048),
)


def public(key: Any, key_id: str, **more: Any) -> dict[str, Any]:
    kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return {**kind.to_jwk(key.public_key(), as_dict=True), "kid": key_id, **more}


class Issuer:
    """A provider over real HTTP, also for pages in browsers: description, keys, authorization code with PKCE.

    Attributes:
        url: where it is.
        keys: that it shows.
        fetched: how often they were asked for.
        codes: given and not yet taken: the challenge of each and the nonce that was asked with.
        claims: what its next tokens say besides, or instead.
        refuses: why it logs nobody in; empty while it does.
        works: whether it answers at all.
    """

    def __init__(self) -> None:
        self.keys = [
            public(FIRST, "first", alg="RS256"),
            public(CURVE, "curve"),
            {"kty": "oct", "k": "YWJj", "kid": "o"},
        ]
        self.fetched = 0
        self.codes: dict[str, tuple[str, str | None]] = {}
        self.claims: dict[str, Any] = {}
        self.refuses = ""
        self.works = True
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.startswith("/authorize?"):
                    self._authorize(parse_qs(urlsplit(self.path).query))
                    return
                issuer.fetched += self.path == "/keys"
                about = {
                    "issuer": issuer.url,
                    "jwks_uri": f"{issuer.url}/keys",
                    "authorization_endpoint": f"{issuer.url}/authorize",
                    "token_endpoint": f"{issuer.url}/token",
                }
                self._answer(200 if issuer.works else 500, {"keys": issuer.keys} if self.path == "/keys" else about)

            def _authorize(self, asked: dict[str, list[str]]) -> None:
                """Somebody is logged in there: sent back with a code, once, for who knows the verifier."""
                assert asked["response_type"] == ["code"] and asked["code_challenge_method"] == ["S256"]
                code = os.urandom(8).hex()
                issuer.codes[code] = (asked["code_challenge"][0], asked.get("nonce", [None])[0])
                told = {"code": code, "state": asked["state"][0]}
                if issuer.refuses:
                    told = {"error": "access_denied", "error_description": issuer.refuses, "state": told["state"]}
                self.send_response(302)
                self.send_header("Location", f"{asked['redirect_uri'][0]}?{urlencode(told)}")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                digest = hashlib.sha256(form["code_verifier"][0].encode()).digest()
                challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
                wanted, nonce = issuer.codes.pop(form["code"][0], ("", None))
                if wanted != challenge:
                    self._answer(400, {"error": "invalid_grant"})
                    return
                self._answer(200, {"id_token": issuer.token(**{"nonce": nonce, **issuer.claims})})

            def _answer(self, status: int, content: dict[str, Any]) -> None:
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Access-Control-Allow-Origin", "*")
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
