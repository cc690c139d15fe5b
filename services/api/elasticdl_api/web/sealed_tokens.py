"""Tokens of an identity provider, kept so that only who holds the session's secret can open them.

A session of such a token is checked by the token, with every request, as if it had come along. The database has the
hash of the secret only, so what lies there opens nothing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from elasticdl_core.errors import UnauthenticatedError

_NONCE_BYTES = 12


def seal(secret: str, token: str) -> str:
    """Closes a token with a session's secret."""
    nonce = os.urandom(_NONCE_BYTES)
    return base64.urlsafe_b64encode(nonce + _cipher(secret).encrypt(nonce, token.encode(), None)).decode()


def unseal(secret: str, sealed: str) -> str:
    """Opens it.

    Raises:
        UnauthenticatedError: it was closed with another secret, or changed.
    """
    try:
        data = base64.urlsafe_b64decode(sealed)
        return _cipher(secret).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], None).decode()
    except (InvalidTag, ValueError):
        raise UnauthenticatedError("the session is over", fix="log in again") from None


def _cipher(secret: str) -> AESGCM:
    return AESGCM(hmac.new(secret.encode("utf-8", "surrogatepass"), b"provider token", hashlib.sha256).digest())
