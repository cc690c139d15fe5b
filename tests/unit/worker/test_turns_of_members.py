"""A worker that shares its device updates its model in its turn, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.job import JobSpec
from elasticdl_worker.device import device_turn
from elasticdl_worker.own_loop.bridge import LoopBridge, NothingTrained
from elasticdl_worker.own_loop.records import ScriptRecords
from elasticdl_worker.own_loop.replica import ScriptReplica
from tests.fakes.shared_device import SharedDevice, shared_device

pytestmark = pytest.mark.unit


class Watched(NothingTrained):
    """Looks at the turn when it is updated."""

    def __init__(self, device: SharedDevice) -> None:
        self.seen: list[bool] = []
        self._device = device

    @property
    def lengths(self) -> Sequence[int]:
        return (1,)

    def apply(self, sums: Sequence[Any], rows: int) -> None:
        self.seen.append(self._device.is_taken())

    def values(self) -> Mapping[str, Any]:
        return {"parameter": np.zeros(1, np.float32)}


def test_a_turn_lasts_until_what_is_under_way_has_ended(tmp_path: Path) -> None:
    with shared_device(tmp_path) as device:
        seen = []
        with device_turn(lambda: seen.append(device.is_taken())):
            seen.append(device.is_taken())
        assert seen == [True, True]
        assert not device.is_taken()


def test_a_script_is_updated_in_the_turn_of_its_device(tmp_path: Path) -> None:
    spec = JobSpec.from_mapping({"model_zoo": str(tmp_path), "model_def": "script.__main__", "minibatch_size": 8})
    with shared_device(tmp_path) as device:
        bridge, trained = LoopBridge(spec, lambda: None), Watched(device)
        bridge.use(trained)
        bridge.use_records(8)
        replica = ScriptReplica(spec, bridge, ScriptRecords(spec, tmp_path, 8))
        replica.apply([np.zeros(1, np.float32)], 8, 0)
        assert trained.seen == [True]
        assert not device.is_taken()
