"""The local cluster: ``elasticdl status``, and what takes it down; ``up`` and ``down`` come with the agent."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elasticdl.cli.connection import connect
from elasticdl.cli.formats import FormatOption, JsonOption, OutputFormat, choose_format, print_data
from elasticdl.cli.output import EXIT_UNAVAILABLE, print_table, size, write_line
from elasticdl_core.errors import InvalidInputError, UnavailableError

if TYPE_CHECKING:
    from elasticdl_runtime.cluster.paths import DataDirectory
    from elasticdl_runtime.cluster.state import ClusterState

_DOWN_S = 120.0
_KILLED_S = 20.0
_API_S = 3.0

DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", help="The directory of all data.", show_default="$ELASTICDL_DATA_DIR or ~/.elasticdl"),
]


def register(app: typer.Typer) -> None:
    """Adds the commands to the command line."""
    app.command("status", rich_help_panel="Cluster")(status)


def take_down_local(data_dir: Path | None) -> None:
    """Takes the local cluster down; its data stay, and jobs that ran go on after the next `up`.

    Raises:
        InvalidInputError: it is another user's.
    """
    import psutil

    directory = data_directory(data_dir)
    state = running(directory)
    if state is None:
        write_line(f"No cluster runs with the data directory {directory.root}.")
        return
    started = time.monotonic()
    write_line(f"Taking down {state.api_url} (pid {state.pid}) ...")
    try:
        supervisor = psutil.Process(state.pid)
        supervisor.terminate()
        supervisor.wait(_DOWN_S)
    except psutil.NoSuchProcess:
        pass
    except psutil.TimeoutExpired:
        write_line(f"It has not stopped in {_DOWN_S:.0f} s; killing it and all of its processes.")
        supervisor.kill()
        supervisor.wait(_KILLED_S)
    except psutil.AccessDenied:
        raise InvalidInputError(
            f"the cluster belongs to another user (pid {state.pid})", fix="run `elasticdl down` as that user"
        ) from None
    _await_lock(directory)
    write_line(f"Down after {time.monotonic() - started:.1f} s; the data are in {directory.root}.")


def status(data_dir: DataDirOption = None, output: FormatOption = None, as_json: JsonOption = False) -> None:
    """Show the cluster: components, address, slots, versions, disk. Exits with 4 when none runs.

    That is the one that ELASTICDL_API_URL or a context names, as its API tells it; without either, and with
    --data-dir, the one of this machine.
    """
    from elasticdl.client.endpoint import find_endpoint, names_api

    chosen = choose_format(output, as_json)
    directory = data_directory(data_dir)
    state = running(directory)
    if data_dir is None and names_api() and (state is None or find_endpoint().url != state.api_url.rstrip("/")):
        _show_named(chosen)
        return
    if state is None:
        if chosen.of_data:
            print_data({"running": False, "data_dir": str(directory.root)}, chosen)
        else:
            write_line(f"No cluster runs with the data directory {directory.root}. Start one with `elasticdl up`.")
        raise typer.Exit(EXIT_UNAVAILABLE)
    slots, keeps, devices = _ask(state, directory)
    disk = _disk(directory)
    if chosen.of_data:
        import dataclasses

        found = {"running": True, **dataclasses.asdict(state), "slots": slots, "isolation": _isolation(state)}
        print_data({**found, "devices": devices, "disk": disk, "keeps_days": keeps}, chosen)
        return
    _show(state, slots, disk, keeps, devices)


def _show_named(chosen: OutputFormat) -> None:
    """Shows a cluster by what its API tells of it."""
    with connect() as client:
        url, cluster = client.endpoint.url, client.cluster()
    components = {str(name): str(state) for name, state in cluster.get("components", {}).items()}
    if chosen.of_data:
        told = {**cluster, "components": {name: {"state": state} for name, state in components.items()}}
        print_data({"running": True, "api_url": url, **told}, chosen)
        return
    write_line(f"Cluster   {url}")
    _show_shared(cluster["slots"], cluster.get("devices", []))
    write_line(f"Jobs      {', '.join(f'{count} {state}' for state, count in cluster['jobs'].items()) or 'none'}")
    _show_ages(cluster.get("keeps_days", {}))
    write_line("")
    print_table(("component", "state"), list(components.items()), empty="No components.")


def _show(
    state: ClusterState,
    slots: dict[str, Any],
    disk: dict[str, int],
    keeps: dict[str, float],
    devices: list[dict[str, Any]],
) -> None:
    age = time.time() - state.pid_started
    write_line(f"Cluster   {state.api_url}  {'up' if state.ready else 'coming up'} for {_duration(age)}")
    if state.ca_file:
        write_line(f"Verified  by {state.ca_file} (for other machines: ELASTICDL_CA_FILE)")
    write_line(f"Version   {state.version}  (supervisor: pid {state.pid})")
    _show_shared(slots, devices)
    write_line(f"Isolation {_isolation(state) or '?'}")
    write_line(f"Data      {state.data_dir}")
    parts = ", ".join(f"{name} {size(value)}" for name, value in disk.items() if name != "free")
    write_line(f"Disk      {parts}; free {size(disk['free'])}")
    _show_ages(keeps)
    write_line("")
    rows = [
        (item.name, item.state, str(item.pid or "-"), str(item.restarts), item.detail)
        for item in state.components.values()
    ]
    print_table(("component", "state", "pid", "restarts", "detail"), rows, empty="No components yet.")


def _show_shared(slots: Mapping[str, Any], devices: Sequence[Mapping[str, Any]]) -> None:
    """Shows slots and devices."""
    used = "?" if slots["used"] is None else str(slots["used"])
    reserved = f", {slots['reserved']} reserved for others" if slots.get("reserved") else ""
    write_line(f"Slots     {used} of {slots['total']} in use{reserved}")
    for number, device in enumerate(devices):
        write_line(f"{'Devices' if number == 0 else '':<9} {_device(device)}")


def _show_ages(keeps: Mapping[str, float]) -> None:
    """Shows how long things are kept, where that is known."""
    if keeps:
        ages = (f"{name} {f'{days:g} days' if days else 'for ever'}" for name, days in keeps.items())
        write_line(f"Keeps     {', '.join(ages)}")


def _device(device: Mapping[str, Any]) -> str:
    what = "declared" if device["declared"] else device["model"] or "found"
    workers = f" by {device['workers']} worker{'s' if device['workers'] != 1 else ''}" if device["workers"] else ""
    return f"{device['name']}  {device['used']:g} of 1 in use{workers}  ({what})"


def _isolation(state: ClusterState) -> str:
    """Describes the isolation of jobs as the agent found it; empty if the cluster is not up."""
    agent = state.components.get("agent")
    return agent.detail.partition("isolation: ")[2] if agent is not None else ""


def _duration(seconds: float) -> str:
    minutes = int(seconds // 60)
    return f"{int(seconds)} s" if minutes < 2 else f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"


def _ask(
    state: ClusterState, directory: DataDirectory
) -> tuple[dict[str, Any], dict[str, float], list[dict[str, Any]]]:
    """Slots in all and in use (``used`` is None when the API does not answer), days that things are kept, devices."""
    import urllib.request

    from elasticdl_runtime.cluster.secrets import read_secret_file
    from elasticdl_runtime.tls import direct_opener

    request = urllib.request.Request(
        f"{state.api_url}/cluster", headers={"Authorization": f"Bearer {read_secret_file(directory.token)}"}
    )
    try:
        opener = direct_opener(state.api_url, state.ca_file)
        with opener.open(request, timeout=_API_S) as response:
            cluster = json.load(response)
        slots = cluster["slots"]
        found = {
            "total": int(slots["total"]),
            "used": int(slots["used"]),
            "reserved": int(slots.get("reserved", 0)),
        }
        keeps = {str(name): float(days) for name, days in cluster.get("keeps_days", {}).items()}
        return found, keeps, [dict(device) for device in cluster.get("devices", ())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidInputError):
        return {"total": state.slots, "used": None, "reserved": 0}, {}, []


def _disk(directory: DataDirectory) -> dict[str, int]:
    """Bytes used by each part of the data directory, and bytes free on its disk."""
    import shutil

    from elasticdl_runtime.disk import measure

    parts = {
        name: measure([directory.root / name]).bytes for name in ("postgres", "redis", "jobs", "bundles", "logs")
    }
    return {**parts, "free": shutil.disk_usage(directory.root).free}


def data_directory(data_dir: Path | None) -> DataDirectory:
    """The data directory that an option names, or the default one."""
    from elasticdl_runtime.cluster.paths import DataDirectory, default_data_dir
    from elasticdl_runtime.home import expand_home

    return DataDirectory((default_data_dir() if data_dir is None else expand_home(data_dir)).absolute())


def running(directory: DataDirectory) -> ClusterState | None:
    """The cluster that runs with this data directory, or None when none does."""
    from elasticdl_runtime.cluster.state import ClusterState

    return ClusterState.running(directory)


def _await_lock(directory: DataDirectory) -> None:
    """Waits until the lock of the data directory is free, so that an `up` right after can take it."""
    from elasticdl_runtime.cluster.state import DataLock

    lock = DataLock(directory.lock)
    deadline = time.monotonic() + _KILLED_S
    while not lock.acquire():
        if time.monotonic() > deadline:
            raise UnavailableError(f"{directory.lock} is still held", fix="see `elasticdl status`, and try again")
        time.sleep(0.05)
    lock.release()
