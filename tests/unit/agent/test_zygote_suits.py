"""Processes that a zygote can fork: those that differ in nothing that was read while it imported. And its end."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl_agent.processes.child import Command
from elasticdl_agent.processes.devices import MachineDevices
from elasticdl_agent.zygote import client
from elasticdl_agent.zygote.client import ZygoteClient, _receive
from elasticdl_core.backoff import Backoff
from elasticdl_runtime.lifecycle import within

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


async def test_a_zygote_whose_end_cannot_be_waited_for_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_RESTARTS", Backoff(0.01, 0.01))
    lives = 0
    again = asyncio.Event()

    class Stuck(ZygoteClient):
        """Its first process does not end."""

        async def _live(self) -> client._End:
            nonlocal lives
            lives += 1
            if lives == 1:
                raise subprocess.TimeoutExpired("zygote", 10.0)
            again.set()
            return client._End.USELESS

    async with Stuck("json", {}, start_delay_s=0.0):
        await within(again.wait(), 60)
