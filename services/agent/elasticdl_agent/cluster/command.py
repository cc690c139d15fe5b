"""``elasticdl up``: the agent adds it to the command line, because bringing a cluster up needs all of the agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elasticdl.cli.cluster import DataDirOption, data_directory, running, take_down_local
from elasticdl.extras import require
from elasticdl_core.errors import ConflictError, ElasticDLError, InvalidInputError, UnavailableError
from elasticdl_runtime.telemetry.log_format import FORMAT_VARIABLE, LogFormat

if TYPE_CHECKING:
    from elasticdl_agent.cluster.options import ClusterOptions
    from elasticdl_agent.cluster.supervisor import ClusterStep

_DOWN_S = 120.0
_ERRORS: dict[str, type[ElasticDLError]] = {
    kind.code: kind for kind in (ConflictError, InvalidInputError, UnavailableError)
}


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command line; named as an entry point of the distribution."""
    app.command("up", rich_help_panel="Cluster")(up)
    app.command("down", rich_help_panel="Cluster")(down)


KubernetesOption = Annotated[
    bool,
    typer.Option("--kubernetes", help="In the Kubernetes cluster of KUBECONFIG or ~/.kube/config, not here."),
]
ContextOption = Annotated[
    str, typer.Option(help="With --kubernetes: the context of the kubeconfig.", show_default="the current one")
]
NamespaceOption = Annotated[str, typer.Option(help="With --kubernetes: the namespace of its own.")]


def up(
    context_of_command: typer.Context,
    port: Annotated[
        int | None, typer.Option(help="Port of the API; 0 for any free one.", show_default="8850")
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address or name to listen on; beyond loopback with TLS only. 0.0.0.0 for all of this machine's.",
            show_default="127.0.0.1",
        ),
    ] = "",
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Certificate of the API with its chain, as PEM: it speaks TLS then.",
            show_default=False,
        ),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The key of --tls-cert, as PEM.", show_default=False)
    ] = None,
    tls_generate: Annotated[
        bool, typer.Option("--tls-generate", help="Speak TLS with a certificate for development that is made here.")
    ] = False,
    data_dir: DataDirOption = None,
    database_url: Annotated[
        str, typer.Option(envvar="ELASTICDL_DATABASE_URL", help="A Postgres to use instead of the embedded one.")
    ] = "",
    redis_url: Annotated[
        str,
        typer.Option(
            envvar="ELASTICDL_REDIS_URL",
            help="A Redis to use instead of the embedded one.",
        ),
    ] = "",
    slots: Annotated[
        int | None, typer.Option(help="Workers that may run at once on this machine.", show_default="one per core")
    ] = None,
    devices: Annotated[
        str,
        typer.Option(
            envvar="ELASTICDL_DEVICES",
            metavar="auto|gpu=N|off",
            help="Accelerators that workers ask for shares of: those that are found; gpu=N declares N where there "
            "are none; off leaves what workers see of them as it is.",
        ),
    ] = "auto",
    policy: Annotated[
        str, typer.Option(envvar="ELASTICDL_SCHEDULER_POLICY", help="The scheduler's policy.", show_default="its own")
    ] = "",
    log_format: Annotated[
        LogFormat | None,
        typer.Option(
            envvar=FORMAT_VARIABLE, help="The format of all logs: for people, or for machines.", show_default="text"
        ),
    ] = None,
    owner_pid: Annotated[
        int,
        typer.Option(
            metavar="PID", help="End the cluster when this process has ended, however it ends.", show_default=False
        ),
    ] = 0,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when it is up, and leave it running.")
    ] = False,
    kubernetes: KubernetesOption = False,
    context: ContextOption = "",
    namespace: NamespaceOption = "elasticdl",
    image: Annotated[
        str,
        typer.Option(help="With --kubernetes: the image of all processes, registry/name:tag.", show_default=False),
    ] = "",
    services_image: Annotated[
        str,
        typer.Option(
            help="With --kubernetes: another image for the API and the scheduler.", show_default="that of --image"
        ),
    ] = "",
    storage_class: Annotated[
        str,
        typer.Option(
            help="With --kubernetes: of the volume that all pods share, which several nodes can write.",
            show_default="the cluster's",
        ),
    ] = "",
    timeout: Annotated[
        int, typer.Option(metavar="SECONDS", help="With --kubernetes: how long it may take to be ready.", min=1)
    ] = 600,
) -> None:
    """Bring up a local cluster: Postgres, Redis, the API, the scheduler and the agent that runs jobs.

    Data survive `down` and the next `up`. Without --detach it runs until Ctrl-C. With --kubernetes the same services
    are set up in a Kubernetes cluster, or made what the options say, and go on there.
    """
    _refuse_others(context_of_command, kubernetes)
    if kubernetes:
        require("`elasticdl up --kubernetes`", "agent")
        from elasticdl_agent.kubernetes.command import set_up
        from elasticdl_agent.kubernetes.deployment import DeploymentOptions

        made = DeploymentOptions(namespace, image, services_image, storage_class, database_url, redis_url)
        set_up(made, context, timeout)
        return
    require("`elasticdl up`", "local")
    from elasticdl_agent.cluster.options import DEFAULT_HOST, DEFAULT_PORT, ClusterOptions, default_slots
    from elasticdl_agent.cluster.postgres import forget_client_settings

    forget_client_settings()
    directory = data_directory(data_dir)
    options = ClusterOptions(
        port=DEFAULT_PORT if port is None else port,
        host=host or DEFAULT_HOST,
        tls_cert=_absolute(tls_cert),
        tls_key=_absolute(tls_key),
        tls_generate=tls_generate,
        data_dir=directory.root,
        database_url=database_url,
        redis_url=redis_url,
        slots=default_slots() if slots is None else slots,
        policy=policy,
        devices=devices,
        owner_pid=owner_pid,
    )
    options.check()
    state = running(directory)
    if state is not None:
        typer.echo(f"The cluster is up already: {state.api_url} (pid {state.pid}, data in {state.data_dir})")
        typer.echo("The options of this call change nothing; for that run `elasticdl down` first.")
        return
    if log_format is not None:
        # All processes have it from this one.
        os.environ[FORMAT_VARIABLE] = log_format
    if detach:
        _up_detached(options)
    else:
        _up_in_foreground(options)


def down(
    context_of_command: typer.Context,
    data_dir: DataDirOption = None,
    kubernetes: KubernetesOption = False,
    context: ContextOption = "",
    namespace: NamespaceOption = "elasticdl",
    delete_data: Annotated[
        bool,
        typer.Option(
            "--delete-data",
            help="With --kubernetes: remove volumes and the Secret, too, and so all jobs.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before data are removed.")] = False,
) -> None:
    """Take the local cluster down; its data stay, and jobs that ran go on after the next `up`.

    With --kubernetes: the services in a Kubernetes cluster, and the pods of jobs, which go on from their checkpoints.
    """
    _refuse_others(context_of_command, kubernetes)
    if not kubernetes:
        take_down_local(data_dir)
        return
    require("`elasticdl down --kubernetes`", "agent")
    from elasticdl_agent.kubernetes.command import take_down

    if delete_data and not yes:
        typer.confirm(f"remove all jobs, models and volumes of ElasticDL in namespace {namespace}?", abort=True)
    take_down(namespace, context, delete_data=delete_data)


_OF_KUBERNETES = {"context", "namespace", "image", "services_image", "storage_class", "timeout", "delete_data"}
_OF_BOTH = {"kubernetes", "database_url", "redis_url", "yes"}


def _refuse_others(command: typer.Context, kubernetes: bool) -> None:
    """Refuses options that only the other kind of cluster has."""
    odd = [
        name
        for name in command.params
        if getattr(command.get_parameter_source(name), "name", "") == "COMMANDLINE"
        and name not in _OF_BOTH
        and (name in _OF_KUBERNETES) != kubernetes
    ]
    if odd:
        shown = f"--{odd[0].replace('_', '-')}"
        if kubernetes:
            raise InvalidInputError(f"{shown} is of a cluster on this machine", fix="leave it out with --kubernetes")
        raise InvalidInputError(f"{shown} is of a cluster on Kubernetes", fix="leave it out, or add --kubernetes")


def _absolute(path: Path | None) -> Path | None:
    from elasticdl_runtime.home import expand_home

    return None if path is None else expand_home(path).absolute()


def _up_in_foreground(options: ClusterOptions) -> None:
    import asyncio

    import structlog

    from elasticdl_agent.cluster.supervisor import Supervisor
    from elasticdl_runtime.telemetry.logs import configure_logs

    supervisor = Supervisor(options, _show_step)
    log = _supervisor_log(options)
    with log.open("a", encoding="utf-8") as file:
        configure_logs(role="supervisor")
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
    argv = [sys.executable, "-P", "-m", "elasticdl_agent.cluster", "--progress-fd", str(writer)]
    argv += ["--port", str(options.port), "--data-dir", str(options.data_dir), "--slots", str(options.slots)]
    argv += ["--host", options.host, "--devices", options.devices]
    argv += ["--policy", options.policy] if options.policy else []
    argv += ["--tls-cert", str(options.tls_cert), "--tls-key", str(options.tls_key)] if options.tls_cert else []
    argv += ["--tls-generate"] if options.tls_generate else []
    argv += ["--owner-pid", str(options.owner_pid)] if options.owner_pid else []
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
        except (KeyboardInterrupt, OSError) as error:  # or nobody reads what is shown
            typer.echo("Interrupted; taking it down again.", err=True)
            supervisor.terminate()
            supervisor.wait(_DOWN_S)
            if isinstance(error, OSError):
                raise
            raise typer.Exit(130) from None
    # It goes on without us: this is no process to wait for any more.
    supervisor.returncode = 0


def _show_progress(progress: Any, supervisor: subprocess.Popen[bytes], log: Path) -> None:
    from elasticdl_agent.cluster.component import log_tail
    from elasticdl_agent.cluster.supervisor import ClusterStep

    ready = False
    for line in progress:
        data = json.loads(line)
        if "error" in data:
            supervisor.wait(_DOWN_S)
            error = data["error"]
            raise _ERRORS.get(error["code"], ElasticDLError)(error["message"], fix=error["fix"])
        step = ClusterStep(**data["step"])
        ready = ready or step.kind == "ready"
        _show_step(step, detached=True)
    if not ready:
        code = supervisor.wait(_DOWN_S)
        raise UnavailableError(
            f"the supervisor ended with code {code}; the end of its log:\n{log_tail(log)}", fix=f"see {log}"
        )


def _show_step(step: ClusterStep, *, detached: bool = False) -> None:
    if step.kind == "warning":
        typer.secho(f"warning: {step.name}: {step.detail}", fg=typer.colors.YELLOW, err=True)
        return
    mark = {"stopped": "-", "ready": "*"}.get(step.kind, "+")
    seconds = f"{step.seconds:6.1f} s" if step.seconds >= 0.05 or step.kind != "done" else " " * 8
    typer.echo(f"{mark} {step.name:<10}{seconds}  {step.detail}")
    if step.kind == "ready":
        after = "`elasticdl down` stops it" if detached else "Ctrl-C stops it"
        typer.echo(f"The cluster is up at {step.detail}; the CLI and the client find it. {after}.")


def _supervisor_log(options: ClusterOptions) -> Path:
    from elasticdl_runtime.cluster.paths import DataDirectory

    directory = DataDirectory(options.data_dir)
    directory.prepare()
    return directory.log("supervisor")
