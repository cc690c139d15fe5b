"""Which processes a zygote can fork: those that differ in nothing that was read while it imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elasticdl_agent.processes.child import Command
from elasticdl_agent.processes.devices import MachineDevices
from elasticdl_agent.zygote.client import ZygoteClient

pytestmark = pytest.mark.unit


def command(environment: dict[str, str]) -> Command:
    return Command((sys.executable, "-P", "-m", "json"), environment, Path("/"), Path("/tmp/log"))


async def test_what_a_worker_is_told_of_devices_costs_it_no_interpreter_of_its_own() -> None:
    common = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0,1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    zygote = ZygoteClient("json", common)
    devices = MachineDevices.find("gpu=2")
    assert zygote.suits(command(common | devices.give(0, ()).environment))
    assert zygote.suits(command(common | devices.give(50, (1,)).environment))
    assert not zygote.suits(command(common | {"CUDA_CACHE_DISABLE": "1"}))
    assert not zygote.suits(command(common | {"TF_CPP_MIN_LOG_LEVEL": "0"}))
