"""The worker's process: registers with the master, loads the user's module, works, leaves.

Exit codes: 0 after the job's end or a drain; 1 when the user's code or the data failed, which the master was told;
64 for a wrong environment; 70 when the master or the parameter servers stayed away.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import faulthandler
import gc
import math
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import structlog

from elasticdl_core.errors import ElasticDLError, InvalidInputError, UnavailableError
from elasticdl_core.job import JobSpec
from elasticdl_core.job.strategy import ModelProfile
from elasticdl_core.ports.launcher import Role
from elasticdl_core.process_life import EXIT_UNREACHABLE
from elasticdl_runtime.device_turns import told_grant
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.lifecycle import run_service, within
from elasticdl_runtime.memory import keep_large_blocks, keep_one_heap
from elasticdl_runtime.rpc.credentials import CREDENTIALS_VARIABLE, RpcSettings
from elasticdl_runtime.telemetry import meters
from elasticdl_runtime.telemetry.logs import configure_logs
from elasticdl_runtime.tokens import certificate_name
from elasticdl_worker import framework_environment
from elasticdl_worker.collectives import GroupListener, LinkSecurity, open_listener
from elasticdl_worker.group.loop import MemberLoop, Membership
from elasticdl_worker.group.master_session import MasterSession
from elasticdl_worker.loop import ExitReason, TaskLoop
from elasticdl_worker.master.client import MasterClient, Registration
from elasticdl_worker.master.session import Session
from elasticdl_worker.parameters import ParameterClient
from elasticdl_worker.reporting.failures import classify
from elasticdl_worker.reporting.startup_timer import StartupTimer
from elasticdl_worker.reporting.traces import TraceWriter
from elasticdl_worker.settings import WorkerSettings
from elasticdl_worker.user_code import guarded

EXIT_FAILED = 1
_DRAIN_S = 25.0
_FLUSH_S = 10.0
_SWITCH_S = 0.0005
_log = structlog.get_logger(__name__)
T = TypeVar("T")


def main() -> int:
    """Runs a worker; returns the exit code."""
    faulthandler.enable()
    start_up = StartupTimer()
    framework_environment.prepare()
    # The event loop must not wait the usual 5 ms for the training thread to let go of the interpreter.
    sys.setswitchinterval(_SWITCH_S)

    async def serve(stop: asyncio.Event) -> int:
        settings = WorkerSettings.read()
        configure_logs(role="worker", job=settings.job_id, index=settings.index, incarnation=settings.incarnation)
        return await _serve(settings, stop, start_up)

    configure_logs(role="worker")
    code = run_service(serve)
    # The user's threads, and the framework's, must not keep a worker that is done.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _serve(settings: WorkerSettings, stop: asyncio.Event, start_up: StartupTimer) -> int:
    index, incarnation = settings.index, settings.incarnation
    owner = f"worker-{index}.{incarnation}"
    holder: list[Session] = []

    def token() -> str:
        return (holder[0].token if holder else "") or settings.job_token

    async with contextlib.AsyncExitStack() as stack:
        master = MasterClient(settings.master, token)
        stack.push_async_callback(master.close)
        failpoint("worker.before_register")
        try:
            registration = await _until(stop, master.register(index, incarnation, os.getpid()))
        except UnavailableError as error:
            _log.error("no master", error=str(error))
            return EXIT_UNREACHABLE
        if registration is None:
            return 0
        failpoint("worker.after_register")
        start_up.record("register")
        if registration.inspects:
            await _until(stop, _inspect(master, registration))
            return 0
        session = Session(
            master,
            heartbeat_s=registration.heartbeat_s,
            ps_generation=registration.ps_generation,
            start_version=registration.start_version,
        )
        holder.append(session)
        meters.show_all("progress", session.progress.meters)
        parameters = ParameterClient(
            list(registration.ps_addresses),
            token,
            owner,
            registration.spec.wire_dtype,
            # How long to wait for a parameter server is the master's to say: it replaces one that hangs, and the job
            # is alive while heartbeats are answered.
            patience_s=math.inf,
            hot_rows_staleness=registration.spec.hot_rows_staleness,
        )
        stack.push_async_callback(parameters.close)
        session.on_servers_changed(
            lambda addresses, generation: parameters.update_servers(list(addresses), str(generation))
        )
        traces = TraceWriter(Path(registration.job_dir), owner)
        stack.callback(traces.close)
        membership = None
        if registration.spec.by_group:
            keep_one_heap()  # of the training thread, which takes as much memory as all gradients in each step
            group_listener = _open_listener(settings)
            stack.callback(group_listener.close)
            master_session = MasterSession(master, session, owner, group_listener.endpoint, group_listener.abort)
            stack.push_async_callback(master_session.close)
            membership = Membership(owner, group_listener, master_session)
        return await _work(registration, session, parameters, membership, traces, index, stop, start_up)


def _open_listener(settings: WorkerSettings) -> GroupListener:
    """The listener for members of this machine and, where this process has an address of its own, of others."""
    if not settings.group_host:
        return open_listener(settings.sockets)
    file = RpcSettings.read().rpc_credentials
    if file is None:
        raise InvalidInputError(
            "members on other machines are met under TLS, and this process has no credentials",
            fix=f"set {CREDENTIALS_VARIABLE}, or leave ELASTICDL_GROUP_HOST out",
        )
    name = certificate_name(settings.job_id, Role.WORKER, settings.index)
    return open_listener(settings.sockets, host=settings.group_host, security=LinkSecurity(file, name))


async def _inspect(master: MasterClient, registration: Registration) -> None:
    """Says what the model is like; in a thread, which nobody waits for once the process shall leave."""
    profile: asyncio.Future[ModelProfile] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def work() -> None:
        found = _look_at_model(registration)
        loop.call_soon_threadsafe(lambda: None if profile.done() else profile.set_result(found))

    threading.Thread(target=work, name="inspection", daemon=True).start()
    seen = await profile
    _log.info("looked at the model", **dataclasses.asdict(seen))
    await master.describe_sight(dataclasses.asdict(seen))


def _look_at_model(registration: Registration) -> ModelProfile:
    from elasticdl_worker.trainers.choosing import load_framework
    from elasticdl_worker.trainers.inspection import inspect_model, sized_for_group

    spec = sized_for_group(registration.spec)
    zoo = Path(registration.model_zoo or spec.model_zoo)
    try:
        with guarded("the worker", (zoo,)):
            framework = load_framework(spec, zoo)
            framework.configure(_threads(spec), repeatable=True)
            framework.use_devices(told_grant())
            return inspect_model(framework, spec, zoo)
    except BaseException as raised:
        error = raised if isinstance(raised, ElasticDLError) else classify(raised)[1]
        return ModelProfile(fault=error.message)


async def _work(
    registration: Registration,
    session: Session,
    parameters: ParameterClient,
    membership: Membership | None,
    traces: TraceWriter,
    index: int,
    stop: asyncio.Event,
    start_up: StartupTimer,
) -> int:
    """Runs the training thread beside the heartbeat, until either ends."""
    outcome: asyncio.Future[ExitReason] = asyncio.get_running_loop().create_future()
    thread = threading.Thread(
        target=_train,
        args=(
            registration,
            session,
            parameters,
            membership,
            traces,
            index,
            start_up,
            asyncio.get_running_loop(),
            outcome,
        ),
        name="training",
        daemon=True,
    )
    thread.start()
    beat = asyncio.create_task(session.send_heartbeats(), name="heartbeat")
    stopping = asyncio.create_task(_drain_on(stop, session), name="drain on stop")
    waited: set[asyncio.Future[ExitReason] | asyncio.Future[None]] = {outcome, beat, stopping}
    try:
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if outcome.done():
            ending = outcome.result()
            await within(session.flush(), _FLUSH_S)
            _log.info("the end", how=ending.value)
            return 0
        if beat.done():
            beat.result()
        _log.error("could not drain in time", seconds=_DRAIN_S)
        return EXIT_FAILED
    except (UnavailableError, TimeoutError) as error:
        _log.error("gave up", error=str(error))
        return EXIT_UNREACHABLE
    except ElasticDLError as error:
        _log.error("failed", error=str(error))
        return EXIT_FAILED
    finally:
        beat.cancel()
        stopping.cancel()
        await asyncio.gather(beat, stopping, return_exceptions=True)


def _train(
    registration: Registration,
    session: Session,
    parameters: ParameterClient,
    membership: Membership | None,
    traces: TraceWriter,
    index: int,
    start_up: StartupTimer,
    loop: asyncio.AbstractEventLoop,
    outcome: asyncio.Future[ExitReason],
) -> None:
    """The training thread: everything that touches the user's code or a framework."""

    def settle(action: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(lambda: None if outcome.done() else action())

    zoo = Path(registration.model_zoo or registration.spec.model_zoo)
    try:
        with guarded("the worker", (zoo,)):
            ending = _run(registration, zoo, session, parameters, membership, traces, index, start_up)
        settle(lambda: outcome.set_result(ending))
    except BaseException as raised:
        error = raised if isinstance(raised, ElasticDLError) else classify(raised)[1]
        if not isinstance(error, UnavailableError):
            with contextlib.suppress(ElasticDLError):
                session.fail(None, error)
        settle(lambda: outcome.set_exception(error))


def _run(
    registration: Registration,
    zoo: Path,
    session: Session,
    parameters: ParameterClient,
    membership: Membership | None,
    traces: TraceWriter,
    index: int,
    start_up: StartupTimer,
) -> ExitReason:
    spec = registration.spec
    if spec.runs_script:
        assert membership is not None, "scripts are trained by groups"
        return _run_script(registration, zoo, session, membership, traces, start_up)
    from elasticdl_worker.trainers.choosing import load_framework
    from elasticdl_worker.trainers.from_checkpoint import CheckpointEngine
    from elasticdl_worker.trainers.in_group import prepare_member
    from elasticdl_worker.trainers.on_servers.engine import ParameterServerEngine

    framework = load_framework(spec, zoo)
    start_up.record("framework")
    # Before the user's module, which may run the framework when it is imported.
    framework.configure(_threads(spec), repeatable=spec.by_group and not spec.fuses)
    framework.use_devices(told_grant())
    keep_large_blocks()
    module = framework.load_module(spec, zoo)
    # Hundreds of thousands of objects that stay: the garbage collector need not look at them again and again.
    gc.freeze()
    start_up.record("model module")
    job_dir = Path(registration.job_dir)
    with framework.print_layer_outputs() if spec.eager else contextlib.nullcontext():
        if membership is not None:
            member = prepare_member(framework, spec, module, session, index, job_dir)
            start_up.record("prepare")
            loop = MemberLoop(
                membership, spec, member.replica, session, member.others.run, traces, start_up.log_first_step
            )
            return ExitReason.FINISHED if loop.run() else ExitReason.DRAINED
        if not spec.has_servers:
            alone = CheckpointEngine(framework, spec, module, session, index, job_dir)
            alone.prepare()
            start_up.record("prepare")
            return TaskLoop(alone, session, traces, start_up.log_first_step).run()
        engine = ParameterServerEngine(framework, spec, module, session, parameters, index, job_dir)
        engine.prepare()
        start_up.record("prepare")
        return TaskLoop(engine, session, traces, start_up.log_first_step).run()


def _run_script(
    registration: Registration,
    zoo: Path,
    session: Session,
    membership: Membership,
    traces: TraceWriter,
    start_up: StartupTimer,
) -> ExitReason:
    from elasticdl_worker.own_loop.member import ScriptMember
    from elasticdl_worker.trainers.choosing import load_framework

    spec = registration.spec
    framework = load_framework(spec, zoo)
    start_up.record("framework")
    framework.configure(_threads(spec))
    framework.use_devices(told_grant())
    keep_large_blocks()
    member = ScriptMember(membership, spec, zoo, session, Path(registration.job_dir), traces, start_up.log_first_step)
    return ExitReason.FINISHED if member.run() else ExitReason.DRAINED


def _threads(spec: JobSpec) -> int:
    """Threads that one operation of the framework may use.

    The last bits of a sum depend on them, so members of a group that shall give the same bits go by what stays as it
    is while workers come and go.
    """
    if spec.worker_threads:
        return spec.worker_threads
    sharing = spec.microbatches_per_step if spec.by_group and spec.deterministic else spec.max_workers
    return max(1, len(os.sched_getaffinity(0)) // max(1, sharing))


async def _drain_on(stop: asyncio.Event, session: Session) -> None:
    """Drains the worker after a signal; ends when the time for that is over."""
    await stop.wait()
    session.request_drain()
    await asyncio.sleep(_DRAIN_S)


async def _until(stop: asyncio.Event, call: Coroutine[object, None, T]) -> T | None:
    """Waits for a call, or for the process to be told to stop."""
    calling = asyncio.ensure_future(call)
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({calling, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if calling.done():
        return calling.result()
    calling.cancel()
    return None
