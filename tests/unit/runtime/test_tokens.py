"""Job tokens: who signed them, for which job, and until when."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_core.errors import PermissionDeniedError, UnauthenticatedError
from elasticdl_core.ports.launcher import Role
from elasticdl_runtime import tokens

pytestmark = pytest.mark.unit
SECRET = tokens.derive_job_secret("cluster", "job-a")


def issue(**options: float) -> str:
    return tokens.issue(SECRET, "job-a", Role.WORKER, 3, 1, **options)


def test_a_token_tells_whose_it_is() -> None:
    claims = tokens.verify(SECRET, issue(), job_id="job-a")
    assert (claims.job_id, claims.role, claims.owner) == ("job-a", Role.WORKER, "worker-3.1")
    assert tokens.peek_job_id(issue()) == "job-a"


def test_a_token_that_has_expired_is_refused() -> None:
    with pytest.raises(UnauthenticatedError, match="expired"):
        tokens.verify(SECRET, issue(lifetime_s=-1.0))


def test_a_token_of_another_job_is_refused_even_with_the_right_signature() -> None:
    with pytest.raises(PermissionDeniedError, match="not for job job-b"):
        tokens.verify(SECRET, issue(), job_id="job-b")


def test_another_secret_signs_nothing() -> None:
    with pytest.raises(UnauthenticatedError, match="not valid"):
        tokens.verify(tokens.derive_job_secret("cluster", "job-b"), issue())
    with pytest.raises(UnauthenticatedError, match="not valid"):
        tokens.verify(tokens.derive_job_secret("other", "job-a"), issue())


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_token_that_was_changed_is_refused(part: int) -> None:
    parts = issue().split(".")
    parts[part] = ("a" if parts[part][0] != "a" else "b") + parts[part][1:]
    with pytest.raises(UnauthenticatedError):
        tokens.verify(SECRET, ".".join(parts))


def encoded(claims: bytes) -> str:
    return base64.urlsafe_b64encode(claims).rstrip(b"=").decode()


def signed(secret: str, claims: bytes) -> str:
    body = f"job-a.{encoded(claims)}"
    return f"{body}.{encoded(hmac.new(secret.encode(), body.encode(), hashlib.sha256).digest())}"


CLAIMS = (
    b"[" * 100_000,
    b'{"role":"worker","index":1e999,"inc":1,"exp":1e999}',
    b'{"role":"worker","index":1,"inc":1,"exp":NaN}',
    b'{"role":"worker","index":' + b"9" * 5000 + b',"inc":1,"exp":1}',
    b'{"role":"\\ud800","index":1,"inc":1,"exp":1e9}',
    b'{"role":"worker"}',
    b'{"role":["worker"],"index":1,"inc":1,"exp":1}',
    b"[]",
    b"\xff",
    b"",
)


@pytest.mark.parametrize("claims", CLAIMS)
@pytest.mark.parametrize("secret", [SECRET, "another"])
def test_no_claims_however_odd_do_more_than_be_refused(claims: bytes, secret: str) -> None:
    with pytest.raises(UnauthenticatedError):
        tokens.verify(secret, signed(secret, claims), job_id="job-a")


def test_nothing_of_a_token_is_parsed_before_its_signature_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_claims", lambda body: pytest.fail("parsed"))
    with pytest.raises(UnauthenticatedError, match="not valid"):
        tokens.verify(SECRET, signed("another", b'{"role":"worker","index":1,"inc":1,"exp":1e12}'))
    assert tokens.peek_job_id(signed("another", b"[[[[")) == "job-a"


@given(st.text(max_size=60) | st.from_regex(r"[-a-z0-9.]{0,40}\.[\w.-]{0,40}\.[\w-]{40,46}", fullmatch=True))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(UnauthenticatedError):
        tokens.verify(SECRET, text)


@pytest.mark.parametrize(
    "token", ["", ".", "e30.", "no token", "a.b.c", "\ud800.e30.x", "é.e30.x", "a." + "e" * 9999]
)
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(UnauthenticatedError):
        tokens.verify(SECRET, token)
    with pytest.raises(UnauthenticatedError):
        tokens.peek_job_id(token)


def test_a_role_is_required() -> None:
    claims = tokens.verify(SECRET, issue())
    claims.require(Role.WORKER, Role.MASTER)
    with pytest.raises(PermissionDeniedError, match="a worker may not"):
        claims.require(Role.MASTER)
