"""Who calls over TLS: the certificate is for the process that the token names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elasticdl_core.errors import InvalidInputError, PermissionDeniedError
from elasticdl_core.ports.launcher import Role
from elasticdl_runtime.rpc.credentials import check_peer, require_private
from elasticdl_runtime.tokens import derive_job_secret, issue, verify

pytestmark = pytest.mark.unit
SECRET = derive_job_secret("s" * 32, "job-1")
CALLER = verify(SECRET, issue(SECRET, "job-1", Role.WORKER, 3, 1))


def call(*names: str, kind: str = "ssl") -> Any:
    """A call over a connection whose other side has shown a certificate for these names."""
    found = {"transport_security_type": [kind.encode()], "x509_subject_alternative_name": [n.encode() for n in names]}
    return SimpleNamespace(auth_context=lambda: found)


def test_a_token_beside_the_certificate_of_its_process_gets_in() -> None:
    check_peer(call("worker-3.job-1"), CALLER)
    check_peer(call("localhost", "worker-3.job-1"), CALLER)
    check_peer(call(kind="local"), CALLER)


@pytest.mark.parametrize("names", [["worker-4.job-1"], ["worker-3.job-2"], ["ps-3.job-1"], ["node.elasticdl"], []])
def test_a_token_beside_anothers_certificate_is_refused(names: list[str]) -> None:
    with pytest.raises(PermissionDeniedError, match=r"the token for worker-3\.job-1"):
        check_peer(call(*names), CALLER)
    with pytest.raises(PermissionDeniedError, match="nobody known"):
        check_peer(call(*names), object())


@pytest.mark.parametrize(
    "address", ["0.0.0.0:1", "10.0.0.1:1", "[::]:1", "example.org:80", "127.0.0.1.example.org:1"]
)
def test_nothing_is_sent_or_heard_beyond_this_machine_without_tls(address: str) -> None:
    with pytest.raises(InvalidInputError, match="without TLS"):
        require_private(address)
    for private in ("unix:/run/x.sock", "127.0.0.1:1", "[::1]:1"):
        require_private(private)
