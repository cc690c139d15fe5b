"""Every RPC of an agent against every kind of credential: the node, and masters for their own job only."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from elasticdl_core.ports.launcher import Role
from elasticdl_runtime import tokens
from tests.contract.launcher.conftest import ENDPOINTS, NODE_TOKEN, AgentHarness
from tests.contract.launcher.test_odd_messages import GOOD, METHODS, MINE, OTHER, SERVICE, harness, odd
from tests.fakes.odd_messages import OddClient
from tests.fakes.rpc_credentials import DENIED, UNKNOWN, status_of, strangers

__all__ = ["harness", "odd"]
pytestmark = pytest.mark.contract
ENDLESS = {"Watch", "Logs"}


def _token(job_id: str, role: Role) -> str:
    return tokens.issue(tokens.derive_job_secret(ENDPOINTS.cluster_secret, job_id), job_id, role, 0, 0)


def _request(method: str) -> Any:
    """A message about the job MINE where the RPC is about a job; an empty one where it is not."""
    return (GOOD.get(method) or [GetMessageClass(SERVICE.methods_by_name[method].input_type)()])[0]


def _names_a_job(method: str) -> bool:
    fields = SERVICE.methods_by_name[method].input_type.fields_by_name
    return "job_id" in fields or "id" in fields


async def test_every_rpc_refuses_who_may_not_call_it(harness: AgentHarness, odd: OddClient) -> None:
    living = await harness.launcher.list(OTHER)
    secret = tokens.derive_job_secret(ENDPOINTS.cluster_secret, MINE)
    for method in METHODS:
        for name, token in {**strangers(MINE, secret), "the node's cut off": NODE_TOKEN[:-1]}.items():
            assert await status_of(odd, method, token) is UNKNOWN, (method, name)
        for role in set(Role) - {Role.MASTER}:
            assert await status_of(odd, method, _token(MINE, role)) is DENIED, (method, role)
        if method == "Capacity":
            continue  # which tells nothing of any job
        # What is about a job is its own master's only; what is about none is the node's.
        odd.token = _token(OTHER if _names_a_job(method) else MINE, Role.MASTER)
        statuses = await odd.send(method, [_request(method).SerializeToString()])
        assert statuses == {DENIED}, method
    assert await harness.launcher.list(MINE) == []
    assert await harness.launcher.list(OTHER) == living
    assert (await harness.launcher.capacity()).reservations == ()


async def test_the_node_may_call_every_rpc(harness: AgentHarness, odd: OddClient) -> None:
    odd.token = NODE_TOKEN
    refused = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
    for method in METHODS:
        message = _request(method).SerializeToString()
        assert not refused & await odd.send(method, [message], endless=method in ENDLESS), method
