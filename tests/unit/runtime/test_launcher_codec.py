"""What the launcher port says comes through the agent's messages whole."""

from __future__ import annotations

import pytest

from elasticdl_core.pods import PodRequest, PodRules
from elasticdl_core.ports.launcher import CapacityInfo, ProcessId, ProcessSpec, Role
from elasticdl_runtime.launcher import codec

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("pod", [PodRequest(), PodRequest("i", "Always", "2", "1Gi", "claim_name=a", {"b": "c"})])
def test_a_launch_is_told_whole(pod: PodRequest) -> None:
    spec = ProcessSpec(ProcessId("a-1", Role.PS, 1, 2), {"A": "b"}, 512, 1, device_share=50, pod=pod)
    assert codec.spec_from_message(codec.spec_to_message(spec)) == spec


@pytest.mark.parametrize("pods", [None, PodRules(), PodRules(("i",), ("c", "d"), "e", "/f", "4", "1Gi", {"g": "h"})])
def test_the_capacity_is_told_whole(pods: PodRules | None) -> None:
    capacity = CapacityInfo(4, {"a-1": 2}, isolation="pods", pods=pods, memory_mib=4096)
    assert codec.capacity_from_message(codec.capacity_to_message(capacity)) == capacity
