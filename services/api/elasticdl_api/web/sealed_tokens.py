"""Texts that the database keeps closed: tokens of an identity provider, addresses of sources with their passwords.

A token can be opened only by who holds the session's secret, an address by who holds the cluster's.

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


TOKEN, SOURCE = b"provider token", b"address of a source"
"""What a text is: of each kind the key is another."""


def seal(secret: str, text: str, kind: bytes = TOKEN) -> str:
    """Closes a text with a secret."""
    nonce = os.urandom(_NONCE_BYTES)
    return base64.urlsafe_b64encode(nonce + _cipher(secret, kind).encrypt(nonce, text.encode(), None)).decode()


def unseal(secret: str, sealed: str, kind: bytes = TOKEN) -> str:
    """Opens it.

    Raises:
        UnauthenticatedError: it was closed with another secret, or changed.
    """
    try:
        data = base64.urlsafe_b64decode(sealed)
        return _cipher(secret, kind).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], None).decode()
    except (InvalidTag, ValueError):
        raise UnauthenticatedError("the session is over", fix="log in again") from None


def _cipher(secret: str, kind: bytes) -> AESGCM:
    return AESGCM(hmac.new(secret.encode("utf-8", "surrogatepass"), kind, hashlib.sha256).digest())
