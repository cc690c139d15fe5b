"""Bearer tokens of an identity provider (OpenID Connect): who their holder is here.

The provider's keys are fetched from where its description says, kept, and fetched anew when a token names one that is
not among them. Only signatures by a private key count: what is signed with a secret, or not at all, is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt
import structlog

from elasticdl_api.web.auth import Identity
from elasticdl_core.access import USER, ProviderGrant, TokenScope
from elasticdl_core.errors import PermissionDeniedError, UnauthenticatedError, UnavailableError

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
FETCH_S = 5.0
KEPT_S = 3600.0
"""Seconds for which keys are kept: one that the provider takes back is refused from then on at the latest."""
AGAIN_S = 30.0
"""Seconds between two fetches at least, whatever tokens are sent."""
LEEWAY_S = 30.0
LONGEST_DOCUMENT = 1 << 20
MOST_KEYS = 100
_KINDS = frozenset({"RSA", "EC", "OKP"})
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Provider:
    """An identity provider, and what its users may do.

    Attributes:
        issuer: its address, as its tokens name it.
        audience: whom its tokens must be for.
        user_claim: says who the holder is.
        grants_claim: lists what the holder belongs to.
        grants: what those who belong there may do.
        client_id: what the dashboard is called there.
    """

    issuer: str
    audience: str
    user_claim: str
    grants_claim: str
    grants: Mapping[str, ProviderGrant]
    client_id: str


class ProviderKeys:
    """The public keys of an identity provider.

    Args:
        issuer: the provider's address.
        http: fetches them.
        clock: seconds that only grow.
    """

    def __init__(self, issuer: str, http: httpx.AsyncClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._http = http
        self._clock = clock
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_at = self._tried_at = float("-inf")
        self._fetching = asyncio.Lock()

    async def find(self, key_id: str) -> jwt.PyJWK:
        """The key of that id.

        Raises:
            UnauthenticatedError: the provider has none.
            UnavailableError: the keys are too old, and the provider does not answer.
        """
        if self._lacks(key_id):
            async with self._fetching:
                if self._lacks(key_id):  # nobody else has fetched them meanwhile
                    await self._refresh()
        if self._clock() - self._fetched_at > KEPT_S:
            raise UnavailableError("the identity provider does not answer", fix="try again in a moment")
        key = self._keys.get(key_id)
        if key is None:
            raise UnauthenticatedError(
                "the token is signed by a key that its issuer does not have", fix="get a new one from the provider"
            )
        return key

    def _lacks(self, key_id: str) -> bool:
        now = self._clock()
        missing = key_id not in self._keys or now - self._fetched_at > KEPT_S
        return missing and now - self._tried_at > AGAIN_S

    async def _refresh(self) -> None:
        self._tried_at = self._clock()
        try:
            async with asyncio.timeout(2 * FETCH_S):
                about = await self._fetch(self._issuer.rstrip("/") + "/.well-known/openid-configuration")
                if about.get("issuer") != self._issuer:
                    raise ValueError(f"it calls itself {about.get('issuer')!r}")
                document = await self._fetch(str(about.get("jwks_uri")))
            self._keys = _public_keys(document)
            self._fetched_at = self._clock()
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            _log.warning("the keys of the identity provider cannot be had", issuer=self._issuer, error=repr(error))

    async def _fetch(self, url: str) -> dict[str, Any]:
        if not is_safe_address(url):
            raise ValueError(f"{url!r} is not https")
        body = bytearray()
        async with self._http.stream("GET", url, timeout=FETCH_S, follow_redirects=False) as response:
            if response.status_code != 200:
                raise ValueError(f"{url} answered {response.status_code}")
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > LONGEST_DOCUMENT:
                    raise ValueError(f"{url} is too long")
        document = json.loads(body)
        if not isinstance(document, dict):
            raise ValueError(f"{url} is no JSON object")
        return document


def is_safe_address(url: str) -> bool:
    """Whether what comes from an address is what its server sent: https, or this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme == "https" and host:
            return True
        return parts.scheme == "http" and (host == "localhost" or ipaddress.ip_address(host).is_loopback)
    except ValueError:
        return False


def _public_keys(document: Mapping[str, Any]) -> dict[str, jwt.PyJWK]:
    """The keys that can verify; a secret in the list is none, nor is one that we cannot read."""
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise ValueError("it lists no keys")
    found = {}
    for one in listed[:MOST_KEYS]:
        if isinstance(one, dict) and one.get("kty") in _KINDS and isinstance(one.get("kid"), str):
            if one.get("use", "sig") != "sig":
                continue
            try:
                found[one["kid"]] = jwt.PyJWK(one)
            except jwt.PyJWTError:
                continue
    return found


class ProviderTokens:
    """Tells users by tokens of an identity provider.

    Args:
        provider: whose.
        keys: of it.
    """

    def __init__(self, provider: Provider, keys: ProviderKeys) -> None:
        self._provider = provider
        self._keys = keys

    async def identify(self, token: str) -> Identity:
        """Checks a token.

        Raises:
            UnauthenticatedError: it is not the provider's, not for us, or has expired.
            PermissionDeniedError: it is, but its holder may do nothing here.
            UnavailableError: the provider's keys cannot be had.
        """
        provider = self._provider
        try:
            header = jwt.get_unverified_header(token)
            key_id, algorithm = header.get("kid"), header.get("alg")
            if algorithm not in ALGORITHMS or not isinstance(key_id, str):
                raise jwt.InvalidTokenError(f"it is signed by {str(algorithm)[:20]!r}")
            key = await self._keys.find(key_id)
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=provider.audience,
                issuer=provider.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"], "strict_aud": False},
            )
            expires_at = datetime.fromtimestamp(claims["exp"], UTC)
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, OSError, RecursionError) as error:
            raise UnauthenticatedError(
                f"the token of the identity provider is not valid: {str(error)[:200]}",
                fix="get a new one from the provider",
            ) from None
        return self._identity(claims, expires_at)

    def _identity(self, claims: Mapping[str, Any], expires_at: datetime) -> Identity:
        provider = self._provider
        user = claims.get(provider.user_claim)
        if not isinstance(user, str) or USER.fullmatch(user) is None:
            raise PermissionDeniedError(
                f"the token's claim {provider.user_claim!r} is no user's name",
                fix="have ELASTICDL_OIDC_USER_CLAIM name a claim that is",
            )
        grant = self._grant(claims.get(provider.grants_claim))
        subject = hashlib.sha256(f"{claims['iss']} {claims['sub']}".encode("utf-8", "replace")).hexdigest()
        return Identity(grant.namespace, user, grant.scope, f"oidc-{subject[:16]}", expires_at)

    def _grant(self, listed: Any) -> ProviderGrant:
        names = [listed] if isinstance(listed, str) else listed if isinstance(listed, list) else []
        found = [
            self._provider.grants[name] for name in names if isinstance(name, str) and name in self._provider.grants
        ]
        if not found:
            raise PermissionDeniedError(
                f"the token's claim {self._provider.grants_claim!r} names nothing that may do something here",
                fix="ask an administrator to add one of your groups to ELASTICDL_OIDC_GRANTS",
            )
        if len({one.namespace for one in found}) > 1:
            raise PermissionDeniedError(
                "the token's groups belong to several namespaces", fix="ask for a token of one of them"
            )
        return max(found, key=lambda one: list(TokenScope).index(one.scope))
