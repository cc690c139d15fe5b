"""Job tokens: who signed them, for which job, and until when."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize("part", [0, 1])
def test_a_token_that_was_changed_is_refused(part: int) -> None:
    parts = issue().split(".")
    parts[part] = ("A" if parts[part][0] != "A" else "B") + parts[part][1:]
    with pytest.raises(UnauthenticatedError):
        tokens.verify(SECRET, ".".join(parts))


@pytest.mark.parametrize("token", ["", ".", "e30.", "no token", "a.b.c"])
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
