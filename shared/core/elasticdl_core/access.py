"""Rights: the scopes of tokens, and the form of a token.

A token is ``edl_``, 32 random letters and digits (190 bits), and 6 that are a checksum of the rest: programs that
look for leaked secrets know it when they see it, and one that was cut off or mistyped is told from one that nobody
has.
"""

from __future__ import annotations

import re
import secrets
import string
import zlib
from dataclasses import dataclass
from enum import StrEnum

PREFIX = "edl_"
DEFAULT_NAMESPACE = "default"
NAMESPACE_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"
"""A namespace's name: as a label of a DNS name, at most 40 characters."""
USER_PATTERN = r"^[A-Za-z0-9]([-A-Za-z0-9._@+]{0,118}[A-Za-z0-9])?$"
"""A user's name, such as ``ada``, ``ci-bot`` or ``ada@example.org``."""

USER = re.compile(USER_PATTERN.removesuffix("$"))

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_RANDOM = 32
_CHECKSUM = 6


class TokenScope(StrEnum):
    """Scopes of a token in its namespace; each may do what those before it may."""

    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"

    def includes(self, other: TokenScope) -> bool:
        """Whether who has this scope may do what needs the other one."""
        order = list(TokenScope)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class ProviderGrant:
    """The rights of those whom an identity provider counts to a group.

    Attributes:
        namespace: the only one that they see; None for all.
        scope: what they may do there.
    """

    namespace: str | None
    scope: TokenScope

    @classmethod
    def parse(cls, text: str) -> ProviderGrant:
        """Reads ``team-a:submit``, or ``*:admin`` for the whole cluster.

        Raises:
            ValueError: it is neither.
        """
        namespace, _, scope = text.partition(":")
        if namespace != "*" and re.fullmatch(NAMESPACE_PATTERN, namespace) is None:
            raise ValueError(f"{namespace!r} is no namespace")
        return cls(None if namespace == "*" else namespace, TokenScope(scope))


def make_token() -> str:
    """Makes a token."""
    body = PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM))
    return body + _checksum(body)


def is_mistyped(token: str) -> bool:
    """Whether a token began as one of ours, and its checksum says that it is not as it was made."""
    if not token.startswith(PREFIX):
        return False
    body, checksum = token[:-_CHECKSUM], token[-_CHECKSUM:]
    return len(token) != len(PREFIX) + _RANDOM + _CHECKSUM or _checksum(body) != checksum


def _checksum(body: str) -> str:
    number = zlib.crc32(body.encode("utf-8", "surrogatepass"))
    digits = ""
    for _ in range(_CHECKSUM):
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits
