"""Processes that a zygote can fork: those that differ in nothing that was read while it imported. And its end."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from elasticdl_agent.processes.child import Command
from elasticdl_agent.processes.devices import MachineDevices
from elasticdl_agent.zygote.client import ZygoteClient, _receive

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


@pytest.mark.parametrize("turns", range(6))
async def test_who_is_cancelled_while_an_answer_comes_is_cancelled(turns: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        receiving = asyncio.create_task(_receive(ours, 60.0))
        for _ in range(3):
            await asyncio.sleep(0)
        theirs.send(b"{}")
        for _ in range(turns):
            await asyncio.sleep(0)
        if receiving.cancel():
            with pytest.raises(asyncio.CancelledError):
                await receiving
