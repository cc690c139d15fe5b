"""Job tokens: short-lived, signed statements of who a process of a job is.

A token is ``<job>.<claims>.<signature>``: the job's id, base64url of JSON claims, and base64url of the HMAC-SHA256 of
both under the job's secret. The id stands in the open, so that who checks a token knows the secret before anything of
it is parsed: what anybody may send is compared with a signature, and only what was signed is read.

The job's secret is derived from the cluster's, so that the api and the agents know every job's, a master and its
parameter servers know their own job's, and a worker, which runs a tenant's code, knows none.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
import re
import time
from dataclasses import dataclass

from elasticdl_core.errors import PermissionDeniedError, UnauthenticatedError
from elasticdl_core.ports.launcher import Role

LIFETIME_S = 24 * 3600.0
_TOKEN = re.compile(r"[a-z0-9][-a-z0-9]{0,99}\.[-_A-Za-z0-9]{1,400}\.[-_A-Za-z0-9]{43}", re.ASCII)
_REMEMBERED = 1024
"""Tokens whose decoding and right signature are kept: a worker shows the same one with every call."""


FIRST_GUEST = 1_000_000
"""No worker of a job has such an index: programs that are none push under one."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Claims of a token's holder.

    Attributes:
        job_id: the job.
        role: master, PS or worker.
        index: which of that role.
        incarnation: which launch of it.
        expires_at: seconds since the epoch.
    """

    job_id: str
    role: Role
    index: int
    incarnation: int
    expires_at: float

    @property
    def owner(self) -> str:
        """The holder's name in leases and traces, e.g. ``worker-3.1``."""
        return f"{self.role}-{self.index}.{self.incarnation}"

    @property
    def certificate_name(self) -> str:
        """For whom the holder's certificate is."""
        return certificate_name(self.job_id, self.role, self.index)

    @property
    def is_guest(self) -> bool:
        """Whether it is a program that is no worker of the job, and pushes as one."""
        return self.role is Role.WORKER and self.index >= FIRST_GUEST

    def require(self, *roles: Role) -> None:
        """Refuses holders of other roles.

        Raises:
            PermissionDeniedError: the role is not one of ``roles``.
        """
        if self.role not in roles:
            raise PermissionDeniedError(f"a {self.role} may not do this", fix="use the token of the right process")


def certificate_name(job_id: str, role: Role, index: int) -> str:
    """For whom the certificate of a process of a job is."""
    return f"{role}-{index}.{job_id}"


def derive_job_secret(cluster_secret: str, job_id: str) -> str:
    """The secret that signs one job's tokens, as 64 hex digits."""
    return hmac.new(cluster_secret.encode(), f"job:{job_id}".encode(), hashlib.sha256).hexdigest()


def issue(
    job_secret: str, job_id: str, role: Role, index: int, incarnation: int, *, lifetime_s: float = LIFETIME_S
) -> str:
    """Makes a token for a process of a job."""
    claims = {"role": str(role), "index": index, "inc": incarnation, "exp": time.time() + lifetime_s}
    body = f"{job_id}.{_encode(json.dumps(claims, separators=(',', ':')).encode())}"
    return f"{body}.{_signature(job_secret, body)}"


def verify(job_secret: str, token: str, *, job_id: str | None = None) -> Claims:
    """Checks a token's signature, expiry and, if given, its job.

    Raises:
        UnauthenticatedError: the token is malformed, forged or expired.
        PermissionDeniedError: it belongs to another job.
    """
    if not _TOKEN.fullmatch(token):
        raise _malformed()
    body, _, signature = token.rpartition(".")
    if not hmac.compare_digest(signature, _signature(job_secret, body)):
        raise UnauthenticatedError("the job token is not valid", fix="use the token that the launcher gave")
    claims = _claims(body)
    if not claims.expires_at >= time.time():
        raise UnauthenticatedError("the job token has expired", fix="take the fresh token from the heartbeat")
    if job_id is not None and claims.job_id != job_id:
        raise PermissionDeniedError(f"the token is not for job {job_id}", fix="use that job's token")
    return claims


def peek_job_id(token: str) -> str:
    """The job that a token claims to be of, unverified: tells which secret to verify it with.

    Raises:
        UnauthenticatedError: the token is malformed.
    """
    if not _TOKEN.fullmatch(token):
        raise _malformed()
    return token.partition(".")[0]


def peek_owner(token: str) -> str:
    """The holder that a token names, e.g. ``worker-3.1``, unverified: who it is good for is said by who checks it.

    Raises:
        UnauthenticatedError: the token is malformed.
    """
    if not _TOKEN.fullmatch(token):
        raise _malformed()
    return _claims(token.rpartition(".")[0]).owner


@functools.lru_cache(_REMEMBERED)
def _claims(body: str) -> Claims:
    try:
        job_id, _, text = body.partition(".")
        data = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        return Claims(job_id, Role(data["role"]), int(data["index"]), int(data["inc"]), float(data["exp"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise _malformed() from None


def _malformed() -> UnauthenticatedError:
    return UnauthenticatedError("the job token is malformed", fix="use the token that the launcher gave")


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@functools.lru_cache(_REMEMBERED)
def _signature(job_secret: str, body: str) -> str:
    return _encode(hmac.new(job_secret.encode(), body.encode(), hashlib.sha256).digest())
