"""Calls whose time depends on the size of the model have deadlines that do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.model import DenseSpec, OptimizerSpec, UpdateMode
from elasticdl_master.parameter_servers import ServerControl
from elasticdl_runtime.rpc.client import RpcClient
from elasticdl_worker.parameters import Gradients
from elasticdl_worker.parameters import connection as connection_module

pytestmark = pytest.mark.integration
SPECS = [DenseSpec("w", (1000, 1000))]
ADAM = OptimizerSpec("adam", {"learning_rate": 0.01})


@pytest.fixture
def deadlines(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The last deadline of each method's calls."""
    seen: dict[str, float] = {}
    for name in ("begin", "stream"):
        real = getattr(RpcClient, name)

        def noting(self: RpcClient, method: str, request: Any, *, deadline_s: float, real: Any = real) -> Any:
            seen[method] = deadline_s
            return real(self, method, request, deadline_s=deadline_s)

        monkeypatch.setattr(RpcClient, name, noting)
    return seen


@pytest.mark.parametrize("use_async", [True, False])
async def test_deadlines_grow_with_the_model(
    start_servers: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    deadlines: dict[str, float],
    use_async: bool,
) -> None:
    # As if a machine moved 10 KB a second, and a disk 1 KB.
    monkeypatch.setattr("elasticdl_runtime.rpc.deadlines.SLOWEST_BYTES_S", 1e4)
    monkeypatch.setattr("elasticdl_runtime.rpc.deadlines.SLOWEST_FILE_BYTES_S", 1e3)
    monkeypatch.setattr(connection_module, "CHUNK_BYTES", 1 << 16)
    servers = await start_servers(2)
    worker = servers.client()
    values = {"w": np.zeros((1000, 1000), np.float32)}
    await worker.ensure_model(values, SPECS, [], ADAM, UpdateMode(use_async=use_async))
    half = 4 * 500_000
    assert deadlines["PushModel"] > half / 1e4
    await worker.pull({})
    assert deadlines["PullDenseParameters"] > half / 1e4
    await worker.push(Gradients({"w": np.ones((1000, 1000), np.float32)}), version=0)
    await worker.pull({})
    if not use_async:
        assert deadlines["ApplyRound"] > half / 1e4
    master = servers.master()
    control: ServerControl = master._control
    for index in range(2):
        await control.status(index)
    held = 3 * half
    await control.pin(1, one_version=not use_async)
    assert deadlines["Pin"] > held / 1e4
    await control.unpin(1)
    files = await master.save(str(tmp_path))
    if not use_async:
        await control.save(str(tmp_path / "again"), one_version=True)
        assert deadlines["Cut"] > held / 1e4
    # All servers may write to one disk, and all read all files.
    assert deadlines["Save"] > 2 * held / 1e3
    await master.restore(str(tmp_path), files)
    assert deadlines["Restore"] > 2 * held / 1e3
