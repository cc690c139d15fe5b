"""Every RPC of a master against every kind of credential: only workers of its own job get in."""

from __future__ import annotations

import pytest

from elasticdl_core.ports.launcher import Role
from elasticdl_runtime.tokens import issue
from tests.fakes.rpc_credentials import DENIED, UNKNOWN, status_of, strangers
from tests.integration.master.conftest import SECRET
from tests.integration.master.test_odd_messages import METHODS, MasterDoor, door

__all__ = ["door"]
pytestmark = pytest.mark.integration


async def test_every_rpc_refuses_who_may_not_call_it(door: MasterDoor) -> None:
    job_id, before = door.job.api.job_id, door.kept()
    others = {f"{role} of another job": issue(SECRET, "other-abc123", role, 0, 0) for role in Role}
    for method in METHODS:
        for name, token in strangers(job_id, SECRET).items():
            assert await status_of(door.odd, method, token) is UNKNOWN, (method, name)
        for name, token in others.items():
            assert await status_of(door.odd, method, token) is DENIED, (method, name)
        for role in set(Role) - {Role.WORKER}:
            token = issue(SECRET, job_id, role, 0, 0)
            assert await status_of(door.odd, method, token) is DENIED, (method, role)
    assert door.kept() == before
