"""The accelerators of this machine: which there are, and what a process is told and shown of them.

They are found (NVIDIA's, by ``nvidia-smi`` or by their files in ``/dev``) or declared, for machines without any: a
declared device is given out and waited for like another, and has nothing behind it. Where there are devices, a
process that was given none sees none.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from elasticdl_core.devices import HIDING, MOST_DEVICES, WHOLE, DevicePool, Place, share_words
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.ports.launcher import DeviceInfo
from elasticdl_runtime.device_turns import MEMORY_VARIABLE, NAME_VARIABLE, SHARE_VARIABLE, TURN_VARIABLE

AUTO, OFF = "auto", "off"
VARIABLE = "ELASTICDL_DEVICES"
_DECLARED = re.compile(r"gpu=([0-9]{1,4})")
_ASK_S = 20.0
_ALL_NEED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps")
_NOTHING = ("", "-1", "void", "none", "NoDevFiles")
_log = structlog.get_logger(__name__)


def parse_devices(setting: str) -> int | None:
    """The number of devices that a setting declares; None where it says to look for them, or to leave them alone.

    Raises:
        InvalidInputError: it is none of these.
    """
    if setting in (AUTO, OFF):
        return None
    found = _DECLARED.fullmatch(setting)
    if found is None or not 1 <= int(found[1]) <= MOST_DEVICES:
        raise InvalidInputError(
            f"{setting[:40]!r} are no devices",
            fix=f"give auto (those that are found), gpu=N to declare N of them (1 to {MOST_DEVICES}), or off",
        )
    return int(found[1])


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator.

    Attributes:
        info: what others are told of it.
        key: how CUDA names it: its UUID, or its number on the bus; empty for a declared one.
        file: its file in ``/dev``; empty if that is not known.
    """

    info: DeviceInfo
    key: str = ""
    file: str = ""


@dataclass(frozen=True, slots=True)
class GivenDevices:
    """The devices that a process gets.

    Attributes:
        environment: its variables.
        files: the files of devices that it may open; None for all that there are.
        turns: files that it takes turns by.
    """

    environment: dict[str, str]
    files: Sequence[str] | None = None
    turns: Sequence[str] = ()


class MachineDevices:
    """The devices that are given out here.

    Args:
        devices: by number; none leaves what processes see of accelerators as it is.
        folder: where the files lie by which processes that share a device take turns; None for no turns.
    """

    def __init__(self, devices: Sequence[Device] = (), folder: Path | None = None) -> None:
        self._devices = tuple(devices)
        self._folder = folder
        if folder is not None and devices:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            folder.chmod(0o755)
            for file in (file for device in devices for file in self._turn_files(device)):
                # Who may read a file may lock it, and nobody needs to write.
                file.touch(mode=0o444)
                file.chmod(0o444)

    @classmethod
    def find(cls, setting: str, folder: Path | None = None) -> MachineDevices:
        """The devices that a setting means.

        Raises:
            InvalidInputError: the setting is unknown.
        """
        declared = parse_devices(setting)
        if declared is not None:
            return cls([Device(DeviceInfo(f"gpu{number}", declared=True)) for number in range(declared)], folder)
        return cls(_visible(_found()) if setting == AUTO else (), folder)

    @property
    def infos(self) -> tuple[DeviceInfo, ...]:
        """Descriptions of the devices for others."""
        return tuple(device.info for device in self._devices)

    def check(self, share: int) -> None:
        """Refuses what could not even be given on the empty machine.

        Raises:
            InvalidInputError: there are too few devices, or no process can have that much.
        """
        if not share:
            return
        if share < 0 or (share > WHOLE and share % WHOLE) or self.left(()).room(share) < 1:
            has = f"{len(self._devices)} devices" if self._devices else "no devices"
            raise InvalidInputError(
                f"a process wants {share_words(share)}, and this machine has {has}",
                fix="ask for less with worker_resource_request, or give the machine devices (--devices)",
            )

    def left(self, given: Iterable[tuple[int, Place]]) -> DevicePool:
        """The capacity left beside the shares that are given."""
        pool = DevicePool([WHOLE] * len(self._devices))
        for share, place in given:
            pool.take(share, place)
        return pool

    def give(self, share: int, place: Place) -> GivenDevices:
        """Gives a process that holds a share at a place its devices; without a share none, and it sees none."""
        if not self._devices:
            return GivenDevices({})
        if not share:
            return GivenDevices(dict.fromkeys(HIDING, "") | {HIDING[1]: "void"}, ())
        held = [self._devices[number] for number in place]
        keys = ",".join(device.key for device in held)
        environment = {
            HIDING[0]: keys,
            HIDING[1]: keys or "void",
            NAME_VARIABLE: ",".join(device.info.name for device in held),
            SHARE_VARIABLE: f"{share / WHOLE:g}",
        }
        if keys:
            environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        turns: list[str] = []
        if share < WHOLE:
            if held[0].info.memory_mib:
                environment[MEMORY_VARIABLE] = str(held[0].info.memory_mib * share // WHOLE)
            if self._folder is not None:
                turns = [str(file) for file in self._turn_files(held[0])]
                environment[TURN_VARIABLE] = turns[0]
        return GivenDevices(environment, self._files(held), turns)

    def _turn_files(self, device: Device) -> tuple[Path, Path]:
        assert self._folder is not None
        return self._folder / f"{device.info.name}.turn", self._folder / f"{device.info.name}.turn.next"

    @staticmethod
    def _files(held: Sequence[Device]) -> list[str] | None:
        if not all(device.file or device.info.declared for device in held):
            return None
        own = [device.file for device in held if device.file]
        return [*own, *(f"/dev/{name}" for name in _ALL_NEED)] if own else []


def _found() -> list[Device]:
    """NVIDIA's devices; none if there are none."""
    program = shutil.which("nvidia-smi")
    if program is not None:
        argv = [program, "--query-gpu=index,uuid,memory.total,name", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=_ASK_S, check=True)
            return _parse_listing(done.stdout)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            _log.warning("nvidia-smi does not tell the devices", error=str(error))
    files = sorted(Path("/dev").glob("nvidia[0-9]*"), key=lambda path: (len(path.name), path.name))
    return [
        Device(DeviceInfo(f"gpu{number}"), str(number), str(file)) for number, file in enumerate(files[:MOST_DEVICES])
    ]


def _parse_listing(text: str) -> list[Device]:
    files = _files_by_uuid()
    devices = []
    for number, row in enumerate(csv.reader(text.splitlines(), skipinitialspace=True)):
        if len(row) >= 4 and row[0].isdecimal():
            memory = int(row[2]) if row[2].isdecimal() else 0
            devices.append(
                Device(DeviceInfo(f"gpu{number}", False, memory, row[3]), row[1] or row[0], files.get(row[1], ""))
            )
    return devices[:MOST_DEVICES]


def _files_by_uuid(folder: Path = Path("/proc/driver/nvidia/gpus")) -> dict[str, str]:
    """The devices' files by UUID, as the driver tells them."""
    found = {}
    for file in folder.glob("*/information"):
        try:
            told = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        uuid, minor = told.get("GPU UUID", "").strip(), told.get("Device Minor", "").strip()
        if uuid and minor.isdecimal():
            found[uuid] = f"/dev/nvidia{minor}"
    return found


def _visible(devices: Sequence[Device], variables: Mapping[str, str] = os.environ) -> list[Device]:
    """The devices that the agent itself may use; numbered anew."""
    setting = variables.get(HIDING[0])
    if setting is None:
        return list(devices)
    chosen = []
    for word in (word.strip() for word in setting.split(",")):
        if word in _NOTHING:
            break  # as CUDA does: what comes after an invalid entry does not count
        by_number = word.isdecimal() and int(word) < len(devices)
        match = [devices[int(word)]] if by_number else [one for one in devices if one.key.startswith(word)]
        if len(match) != 1 or match[0] in chosen:
            break
        chosen += match
    return [
        Device(DeviceInfo(f"gpu{number}", one.info.declared, one.info.memory_mib, one.info.model), one.key, one.file)
        for number, one in enumerate(chosen)
    ]
