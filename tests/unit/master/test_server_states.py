"""What the status of a job says of its parameter servers."""

from __future__ import annotations

import pytest

from elasticdl_core.ports.launcher import ProcessId, ProcessState, ProcessStatus, Role
from elasticdl_master.state.events import ServerSeen
from elasticdl_master.state.limits import Limits
from elasticdl_master.state.servers import ServerPool


def exited(code: int) -> ProcessStatus:
    return ProcessStatus(ProcessId("job", Role.PS, 0, 0), ProcessState.EXITED, exit_code=code)


@pytest.mark.parametrize(("told", "code", "state"), [(True, 0, "stopped"), (False, -9, "lost"), (False, 0, "lost")])
def test_a_server_that_was_told_to_leave_is_not_lost(told: bool, code: int, state: str) -> None:
    pool = ServerPool(1, Limits(), memory_mib=0)
    (server,) = pool.servers
    assert server.state == "starting", "it was not launched yet"
    pool.reconcile(0.0)
    assert server.state == "starting"
    pool.seen(ServerSeen(0, 0, True, 7))
    assert server.state == "ready"
    if told:
        pool.stop(1.0)
    pool.process(exited(code), 1.0)
    assert server.state == state
