"""Devices belong to living processes, as slots do: given once, waited for, and back however a process ends."""

from __future__ import annotations

import asyncio
import random
import stat
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.processes.devices import MachineDevices, parse_devices
from elasticdl_agent.table import ProcessTable
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.ports.launcher import DeviceInfo, ProcessId, ProcessSpec, ProcessState, Role
from elasticdl_runtime.device_turns import DeviceGrant, DeviceTurn, open_turn, told_grant
from tests.contract.launcher.conftest import ENDPOINTS

pytestmark = pytest.mark.contract

JOB = "digits-x7k2p9"
COMMANDS = dict.fromkeys(Role, ("/bin/sh", "-c", "env; echo .; exec sleep 600"))
DEADLINE_S = 60.0


@pytest.fixture
async def table(directories: AgentDirectories) -> AsyncIterator[ProcessTable]:
    devices = MachineDevices.find("gpu=2", directories.run / "devices")
    table = ProcessTable(directories, ENDPOINTS, 8, COMMANDS, devices=devices)
    yield table
    await table.close(grace_s=0.0)


def spec(index: int, share: int, *, role: Role = Role.WORKER, incarnation: int = 1, slots: int = 1) -> ProcessSpec:
    return ProcessSpec(ProcessId(JOB, role, index, incarnation), slots=slots, device_share=share)


def places(table: ProcessTable) -> dict[int, tuple[int, ...]]:
    return {use.index: use.devices for use in table.capacity().device_uses}


def given(table: ProcessTable) -> list[int]:
    uses = table.capacity().device_uses
    return [sum(min(use.share, 100) for use in uses if number in use.devices) for number in range(2)]


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def environment_of(directories: AgentDirectories, role: Role, index: int) -> dict[str, str]:
    """What a process printed of its variables."""

    def printed() -> str:
        files = sorted(directories.log_dir(JOB).glob(f"{role}-{index}*"))
        return "".join(file.read_text() for file in files)

    await until(lambda: "\n.\n" in printed())
    lines = (line.partition("=") for line in printed().splitlines() if "=" in line)
    return {name: value for name, _, value in lines}


async def test_two_halves_share_a_device_and_who_comes_late_waits_until_one_ends(table: ProcessTable) -> None:
    for index, share in enumerate((50, 100, 50)):
        table.launch(spec(index, share))
    assert places(table) == {0: (0,), 1: (1,), 2: (0,)}
    table.launch(spec(3, 50))
    assert [status.state for status in table.statuses()][-1] is ProcessState.PENDING
    assert given(table) == [100, 100]
    table.terminate(ProcessId(JOB, Role.WORKER, 2, 1), grace_s=0.0)
    await until(lambda: 3 in places(table))
    assert places(table) == {0: (0,), 1: (1,), 3: (0,)}


async def test_who_waits_for_a_device_holds_up_nobody_else_and_keeps_its_place(table: ProcessTable) -> None:
    table.launch(spec(0, 200))
    table.launch(spec(1, 100))
    table.launch(spec(2, 0))
    table.launch(spec(3, 1))
    await until(lambda: table.statuses()[2].state is ProcessState.RUNNING)
    assert places(table) == {0: (0, 1)}
    table.terminate(ProcessId(JOB, Role.WORKER, 0, 1), grace_s=0.0)
    await until(lambda: len(places(table)) == 2)
    assert places(table) == {1: (0,), 3: (1,)}


async def test_a_slot_is_kept_for_who_waits_for_a_device(directories: AgentDirectories) -> None:
    table = ProcessTable(directories, ENDPOINTS, 2, COMMANDS, devices=MachineDevices.find("gpu=1"))
    try:
        table.launch(spec(0, 100))
        table.launch(spec(1, 100))
        table.launch(spec(2, 0))
        assert [status.state for status in table.statuses()][1:] == [ProcessState.PENDING] * 2
        table.terminate(ProcessId(JOB, Role.WORKER, 0, 1), grace_s=0.0)
        await until(lambda: places(table) == {1: (0,)})
    finally:
        await table.close(grace_s=0.0)


async def test_a_process_is_told_its_device_and_sees_no_other(
    table: ProcessTable, directories: AgentDirectories
) -> None:
    table.launch(spec(0, 25))
    table.launch(spec(1, 0))
    table.launch(spec(0, 0, role=Role.PS, slots=0))
    shared = await environment_of(directories, Role.WORKER, 0)
    assert (shared["ELASTICDL_DEVICE"], shared["ELASTICDL_DEVICE_SHARE"]) == ("gpu0", "0.25")
    assert told_grant(shared) == DeviceGrant("gpu0", 0.25, 0, declared=True)
    turn = open_turn(shared)
    assert isinstance(turn, DeviceTurn)
    with turn.held():
        assert turn.taken == 1
    turn.close()
    for role, index in ((Role.WORKER, 1), (Role.PS, 0)):
        none = await environment_of(directories, role, index)
        assert (none["CUDA_VISIBLE_DEVICES"], none["NVIDIA_VISIBLE_DEVICES"]) == ("", "void")
        assert not any(name.startswith("ELASTICDL_DEVICE") for name in none)
        assert open_turn(none) is None and told_grant(none) == DeviceGrant()


async def test_what_no_machine_could_give_is_refused_at_once(table: ProcessTable) -> None:
    for share in (300, 150, -1):
        with pytest.raises(InvalidInputError, match="this machine has 2 devices") as caught:
            table.launch(spec(0, share))
        assert "--devices" in caught.value.fix
    assert table.statuses() == []


@pytest.mark.parametrize("seed", range(2))
async def test_no_device_is_given_twice_and_all_come_back(
    table: ProcessTable, directories: AgentDirectories, seed: int
) -> None:
    """Random launches, drains and kills, with whole devices among shares: each moment within each device's whole."""
    rng = random.Random(seed)
    for number in range(16):
        table.launch(spec(rng.randrange(6), rng.choice([0, 25, 50, 60, 100, 200]), incarnation=number + 1))
        assert max(given(table)) <= 100
        if rng.random() < 0.6:
            living = [status.id for status in table.statuses() if status.state is not ProcessState.EXITED]
            if living:
                table.terminate(rng.choice(living), grace_s=rng.choice([0.0, 5.0]))
        await asyncio.sleep(0)
        assert max(given(table)) <= 100
    table.terminate_job(JOB, grace_s=0.0)
    await until(lambda: all(status.state is ProcessState.EXITED for status in table.statuses()))
    assert given(table) == [0, 0]
    table.launch(spec(9, 200, incarnation=99))
    await until(lambda: places(table) == {9: (0, 1)})  # as soon as what the job left is removed


def fake_program(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


LISTING = """0, GPU-aaaa, 81559, NVIDIA H100 80GB HBM3
1, GPU-bbbb, 81559, NVIDIA H100 80GB HBM3
2, GPU-cccc, [N/A], Tesla, odd"""


def test_devices_are_found_as_the_driver_tells_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_program(tmp_path / "bin", LISTING)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = MachineDevices.find("auto", tmp_path / "turns")
    model = "NVIDIA H100 80GB HBM3"
    assert found.infos == (
        DeviceInfo("gpu0", False, 81559, model),
        DeviceInfo("gpu1", False, 81559, model),
        DeviceInfo("gpu2", False, 0, "Tesla"),
    )
    half = found.give(50, (1,)).environment
    assert (half["CUDA_VISIBLE_DEVICES"], half["NVIDIA_VISIBLE_DEVICES"]) == ("GPU-bbbb", "GPU-bbbb")
    assert told_grant(half) == DeviceGrant("gpu1", 0.5, 40779)
    whole = found.give(200, (0, 2)).environment
    assert whole["CUDA_VISIBLE_DEVICES"] == "GPU-aaaa,GPU-cccc"
    assert told_grant(whole) == DeviceGrant("gpu0,gpu2") and open_turn(whole) is None
    assert found.give(0, ()).files == ()


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("1", ["NVIDIA H100 80GB HBM3"]),
        ("GPU-c,0", ["Tesla", "NVIDIA H100 80GB HBM3"]),
        ("2,7,0", ["Tesla"]),
        ("-1", []),
        ("", []),
    ],
)
def test_the_agents_own_view_of_devices_holds_for_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, names: list[str]
) -> None:
    fake_program(tmp_path / "bin", LISTING)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [device.model for device in MachineDevices.find("auto").infos] == names


def test_without_devices_what_processes_see_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_program(tmp_path / "bin", "")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for setting in ("auto", "off"):
        found = MachineDevices.find(setting, tmp_path / "turns")
        assert found.infos == () and found.give(0, ()).environment == {} and found.give(0, ()).files is None


@pytest.mark.parametrize("setting", ["", "gpu", "gpu=0", "gpu=65", "gpu=1.5", "tpu=1", "on", "GPU=1"])
def test_what_are_no_devices_is_refused(setting: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_devices(setting)
    assert "gpu=N" in caught.value.fix
