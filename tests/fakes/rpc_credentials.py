"""Credentials that a gRPC service must refuse on every RPC, and what it answers to them."""

from __future__ import annotations

import grpc

from elasticdl_core.ports.launcher import Role
from elasticdl_runtime.rpc.framing import encode_frame
from elasticdl_runtime.tokens import issue
from tests.fakes.odd_messages import OddClient

UNKNOWN = grpc.StatusCode.UNAUTHENTICATED
DENIED = grpc.StatusCode.PERMISSION_DENIED


def strangers(job_id: str, secret: str) -> dict[str, str]:
    """Tokens that are nobody's, by what is wrong with them.

    Args:
        job_id: the job whose processes may call.
        secret: signs its tokens.
    """
    good = issue(secret, job_id, Role.WORKER, 0, 0)
    body, _, signature = good.partition(".")
    return {
        "none": "",
        "nonsense": "x",
        "an api token": "edl_" + "A" * 38,
        "two parts of nothing": "a.b",
        "no signature": f"{body}.",
        "half a signature": f"{body}.{signature[:20]}",
        "another body": f"{body[:-2]}AA.{signature}",
        "signed by another job": issue("another secret", job_id, Role.MASTER, 0, 0),
        **{f"expired {role}": issue(secret, job_id, role, 0, 0, lifetime_s=-1) for role in Role},
    }


async def status_of(client: OddClient, method: str, token: str) -> grpc.StatusCode:
    """What an RPC answers to a token, with a message that is empty."""
    client.token = token
    framed = client.service.methods_by_name[method].input_type.name == "Chunk"
    (status,) = await client.send(method, [encode_frame(b"") if framed else b""])
    return status
