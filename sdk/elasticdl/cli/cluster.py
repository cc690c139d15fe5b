"""``elasticdl up``, ``down`` and ``status``: the local cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elasticdl.cli.output import EXIT_UNAVAILABLE, print_json, print_table, size
from elasticdl_core.errors import ConflictError, ElasticDLError, InvalidInputError, UnavailableError

if TYPE_CHECKING:
    from elasticdl_runtime.cluster.options import ClusterOptions
    from elasticdl_runtime.cluster.paths import DataDirectory
    from elasticdl_runtime.cluster.state import ClusterState
    from elasticdl_runtime.cluster.supervisor import Step

_DOWN_S = 120.0
_KILLED_S = 20.0
_API_S = 3.0
_ERRORS: dict[str, type[ElasticDLError]] = {
    kind.code: kind for kind in (ConflictError, InvalidInputError, UnavailableError)
}

DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where everything is kept.", show_default="$ELASTICDL_DATA_DIR or ~/.elasticdl"),
]


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command line."""
    app.command("up", rich_help_panel="Cluster")(up)
    app.command("down", rich_help_panel="Cluster")(down)
    app.command("status", rich_help_panel="Cluster")(status)


def up(
    port: Annotated[
        int | None, typer.Option(help="Port of the API on 127.0.0.1; 0 for any free one.", show_default="8850")
    ] = None,
    data_dir: DataDirOption = None,
    database_url: Annotated[
        str, typer.Option(envvar="ELASTICDL_DATABASE_URL", help="A Postgres to use instead of the embedded one.")
    ] = "",
    redis_url: Annotated[
        str,
        typer.Option(
            envvar="ELASTICDL_REDIS_URL",
            help="A Redis to use instead of the embedded one; memory:// for one in memory, which is not durable.",
        ),
    ] = "",
    slots: Annotated[
        int | None, typer.Option(help="Workers that may run at once on this machine.", show_default="one per core")
    ] = None,
    policy: Annotated[
        str, typer.Option(envvar="ELASTICDL_SCHEDULER_POLICY", help="The scheduler's policy.", show_default="its own")
    ] = "",
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when it is up, and leave it running.")
    ] = False,
) -> None:
    """Bring up a local cluster: Postgres, Redis, the API, the scheduler and the agent that runs jobs.

    Data survive `down` and the next `up`. Without --detach it runs until Ctrl-C.
    """
    from elasticdl_runtime.cluster.options import DEFAULT_PORT, ClusterOptions, default_slots
    from elasticdl_runtime.cluster.paths import default_data_dir

    options = ClusterOptions(
        port=DEFAULT_PORT if port is None else port,
        data_dir=(default_data_dir() if data_dir is None else data_dir.expanduser()).absolute(),
        database_url=database_url,
        redis_url=redis_url,
        slots=default_slots() if slots is None else slots,
        policy=policy,
    )
    options.check()
    running = _running(options.data_dir)
    if running is not None:
        typer.echo(f"The cluster is up already: {running.api_url} (pid {running.pid}, data in {running.data_dir})")
        typer.echo("The options of this call change nothing; for that run `elasticdl down` first.")
        return
    if detach:
        _up_detached(options)
    else:
        _up_in_foreground(options)


def down(
    data_dir: DataDirOption = None,
) -> None:
    """Take the local cluster down; its data stay, and jobs that ran go on after the next `up`."""
    import psutil

    directory = _directory(data_dir)
    state = _running(directory.root)
    if state is None:
        typer.echo(f"No cluster runs with the data directory {directory.root}.")
        return
    started = time.monotonic()
    typer.echo(f"Taking down {state.api_url} (pid {state.pid}) ...")
    try:
        supervisor = psutil.Process(state.pid)
        supervisor.terminate()
        supervisor.wait(_DOWN_S)
    except psutil.NoSuchProcess:
        pass
    except psutil.TimeoutExpired:
        typer.echo(f"It has not stopped in {_DOWN_S:.0f} s; killing it and all of its processes.")
        supervisor.kill()
        supervisor.wait(_KILLED_S)
    except psutil.AccessDenied:
        raise InvalidInputError(
            f"the cluster belongs to another user (pid {state.pid})", fix="run `elasticdl down` as that user"
        ) from None
    _await_lock(directory)
    typer.echo(f"Down after {time.monotonic() - started:.1f} s; the data are in {directory.root}.")


def status(
    data_dir: DataDirOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the local cluster: components, address, slots, versions, disk. Exits with 4 when none runs."""
    directory = _directory(data_dir)
    state = _running(directory.root)
    if state is None:
        if as_json:
            print_json({"running": False, "data_dir": str(directory.root)})
        else:
            typer.echo(f"No cluster runs with the data directory {directory.root}. Start one with `elasticdl up`.")
        raise typer.Exit(EXIT_UNAVAILABLE)
    slots = _slots(state, directory)
    disk = _disk(directory)
    if as_json:
        import dataclasses

        print_json({"running": True, **dataclasses.asdict(state), "slots": slots, "disk": disk})
        return
    _show(state, slots, disk)


def _up_in_foreground(options: ClusterOptions) -> None:
    import asyncio

    import structlog

    from elasticdl_runtime.cluster.supervisor import Supervisor
    from elasticdl_runtime.telemetry.logs import configure_logs

    supervisor = Supervisor(options, _show_step)
    log = _supervisor_log(options)
    with log.open("a", encoding="utf-8") as file:
        configure_logs(service="supervisor")
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(file=file))

        async def serve() -> None:
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, stop.set)
            await supervisor.run(stop)

        asyncio.run(serve())


def _up_detached(options: ClusterOptions) -> None:
    """Starts the supervisor as a process of its own and shows its steps until it is up.

    Raises:
        ElasticDLError: what the supervisor failed with.
    """
    reader, writer = os.pipe()
    argv = [sys.executable, "-P", "-m", "elasticdl_runtime.cluster", "--progress-fd", str(writer)]
    argv += ["--port", str(options.port), "--data-dir", str(options.data_dir), "--slots", str(options.slots)]
    argv += ["--policy", options.policy] if options.policy else []
    urls = {"ELASTICDL_DATABASE_URL": options.database_url, "ELASTICDL_REDIS_URL": options.redis_url}
    with _supervisor_log(options).open("ab") as log, os.fdopen(reader, encoding="utf-8") as progress:
        supervisor = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **urls},
            pass_fds=(writer,),
            start_new_session=True,
        )
        os.close(writer)
        try:
            _show_progress(progress, supervisor, Path(log.name))
        except KeyboardInterrupt:
            typer.echo("Interrupted; taking it down again.", err=True)
            supervisor.terminate()
            supervisor.wait(_DOWN_S)
            raise typer.Exit(130) from None
    # It goes on without us: this is no process to wait for any more.
    supervisor.returncode = 0


def _show_progress(progress: Any, supervisor: subprocess.Popen[bytes], log: Path) -> None:
    from elasticdl_runtime.cluster.component import log_tail
    from elasticdl_runtime.cluster.supervisor import Step

    ready = False
    for line in progress:
        data = json.loads(line)
        if "error" in data:
            supervisor.wait(_DOWN_S)
            error = data["error"]
            raise _ERRORS.get(error["code"], ElasticDLError)(error["message"], fix=error["fix"])
        step = Step(**data["step"])
        ready = ready or step.kind == "ready"
        _show_step(step, detached=True)
    if not ready:
        code = supervisor.wait(_DOWN_S)
        raise UnavailableError(
            f"the supervisor ended with code {code}; the end of its log:\n{log_tail(log)}", fix=f"see {log}"
        )


def _show_step(step: Step, *, detached: bool = False) -> None:
    if step.kind == "warning":
        typer.secho(f"warning: {step.name}: {step.detail}", fg=typer.colors.YELLOW, err=True)
        return
    mark = {"stopped": "-", "ready": "*"}.get(step.kind, "+")
    seconds = f"{step.seconds:6.1f} s" if step.seconds >= 0.05 or step.kind != "done" else " " * 8
    typer.echo(f"{mark} {step.name:<10}{seconds}  {step.detail}")
    if step.kind == "ready":
        after = "`elasticdl down` stops it" if detached else "Ctrl-C stops it"
        typer.echo(f"The cluster is up at {step.detail}; the CLI and the client find it. {after}.")


def _show(state: ClusterState, slots: dict[str, Any], disk: dict[str, int]) -> None:
    age = time.time() - state.pid_started
    typer.echo(f"Cluster   {state.api_url}  {'up' if state.ready else 'coming up'} for {_duration(age)}")
    typer.echo(f"Version   {state.version}  (supervisor: pid {state.pid})")
    used = "?" if slots["used"] is None else str(slots["used"])
    reserved = f", {slots['reserved']} reserved for others" if slots["reserved"] else ""
    typer.echo(f"Slots     {used} of {slots['total']} in use{reserved}")
    typer.echo(f"Data      {state.data_dir}")
    parts = ", ".join(f"{name} {size(value)}" for name, value in disk.items() if name != "free")
    typer.echo(f"Disk      {parts}; free {size(disk['free'])}\n")
    rows = [
        (item.name, item.state, str(item.pid or "-"), str(item.restarts), item.detail)
        for item in state.components.values()
    ]
    print_table(("component", "state", "pid", "restarts", "detail"), rows, empty="No components yet.")


def _duration(seconds: float) -> str:
    minutes = int(seconds // 60)
    return f"{int(seconds)} s" if minutes < 2 else f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"


def _slots(state: ClusterState, directory: DataDirectory) -> dict[str, Any]:
    """Slots in all and in use; ``used`` is None when the API does not answer."""
    import urllib.request

    from elasticdl_runtime.cluster.secrets import read_secret_file

    request = urllib.request.Request(
        f"{state.api_url}/cluster", headers={"Authorization": f"Bearer {read_secret_file(directory.token)}"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_API_S) as response:
            slots = json.load(response)["slots"]
        return {
            "total": int(slots["total"]),
            "used": int(slots["used"]),
            "reserved": int(slots.get("reserved", 0)),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {"total": state.slots, "used": None, "reserved": 0}


def _disk(directory: DataDirectory) -> dict[str, int]:
    """Bytes that the parts of the data directory take, and that are free there."""
    import shutil

    parts = {name: _tree_bytes(directory.root / name) for name in ("postgres", "redis", "jobs", "bundles", "logs")}
    return {**parts, "free": shutil.disk_usage(directory.root).free}


def _tree_bytes(root: Path) -> int:
    total = 0
    for folder, _, files in os.walk(root.resolve()):
        for name in files:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - many files
            except OSError:
                continue
    return total


def _directory(data_dir: Path | None) -> DataDirectory:
    from elasticdl_runtime.cluster.paths import DataDirectory, default_data_dir

    return DataDirectory((default_data_dir() if data_dir is None else data_dir.expanduser()).absolute())


def _running(data_dir: Path) -> ClusterState | None:
    from elasticdl_runtime.cluster.paths import DataDirectory
    from elasticdl_runtime.cluster.state import ClusterState

    state = ClusterState.read(DataDirectory(data_dir).state)
    return state if state is not None and state.alive() else None


def _await_lock(directory: DataDirectory) -> None:
    """Waits until nobody holds the data directory, so that an `up` right after finds it free."""
    from elasticdl_runtime.cluster.state import DataLock

    lock = DataLock(directory.lock)
    deadline = time.monotonic() + _KILLED_S
    while not lock.acquire():
        if time.monotonic() > deadline:
            raise UnavailableError(f"{directory.lock} is still held", fix="see `elasticdl status`, and try again")
        time.sleep(0.05)
    lock.release()


def _supervisor_log(options: ClusterOptions) -> Path:
    from elasticdl_runtime.cluster.paths import DataDirectory

    directory = DataDirectory(options.data_dir)
    directory.prepare()
    return directory.log("supervisor")
