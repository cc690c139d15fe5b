"""The supervisor: brings the components up in order, keeps them running, and takes them down in the reverse order."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import structlog

from elasticdl_agent.cluster.certificates import (
    ApiCertificate,
    DevelopmentCertificates,
    ca_of_environment,
    in_the_open,
    names_of_machine,
)
from elasticdl_agent.cluster.component import Component, ComponentSpec
from elasticdl_agent.cluster.options import DEFAULT_HOST, ClusterOptions
from elasticdl_agent.cluster.postgres import EmbeddedPostgres
from elasticdl_agent.cluster.redis import EmbeddedRedis
from elasticdl_agent.cluster.relocation import former_root, note_location, relocate
from elasticdl_agent.cluster.services import HOSTS_VARIABLE, Wiring
from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import ConflictError, ElasticDLError
from elasticdl_core.installation import own_version
from elasticdl_runtime.cluster.paths import RUN_DIR_VARIABLE, DataDirectory
from elasticdl_runtime.cluster.secrets import derive, ensure_secret_file
from elasticdl_runtime.cluster.state import ClusterState, ComponentState, DataLock
from elasticdl_runtime.memory_group import MemoryGroups
from elasticdl_runtime.retry import Attempts

_LOCK_WAIT_S = 2.0
_RENEWAL_CHECK_S = 3600.0
_LOCK_POLLS = Backoff(0.1, 0.1)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterStep:
    """One step of coming up or going down, for the user to see.

    Attributes:
        name: what it is about.
        detail: what came of it.
        seconds: how long it took.
        kind: ``done``, ``warning``, ``ready`` or ``stopped``.
    """

    name: str
    detail: str
    seconds: float = 0.0
    kind: str = "done"


Report = Callable[[ClusterStep], None]


class Supervisor:
    """A local cluster for as long as ``run`` runs.

    Args:
        options: what the user chose.
        report: told of each step.
    """

    def __init__(self, options: ClusterOptions, report: Report) -> None:
        options.check()
        self._options = options
        self._report = report
        self._directory = DataDirectory(options.data_dir)
        self._lock = DataLock(self._directory.lock)
        self._run_lock = DataLock(self._directory.run_lock)
        self._state = ClusterState(0, 0.0, "", 0, "", "", "")

    async def run(self, stop: asyncio.Event) -> None:
        """Brings the cluster up, keeps it up until ``stop`` is set, takes it down.

        Raises:
            ConflictError: a cluster runs with this data or run directory already, or the port is taken.
            InvalidInputError: an option cannot work, or the directory cannot be used.
            UnavailableError: a component did not start; what had started is stopped again.
        """
        started = time.monotonic()
        await asyncio.to_thread(self._directory.prepare)
        await self._take_lock()
        async with AsyncExitStack() as stack:
            stack.callback(self._lock.release)
            self._take_run_directory(stack)
            stack.callback(self._forget)
            up = asyncio.create_task(self._bring_up(stack), name="bring-up")
            stopped = asyncio.create_task(stop.wait(), name="stop")
            if self._options.owner_pid:
                owner = asyncio.create_task(self._end_with(self._options.owner_pid, stop), name="owner")
                stack.callback(owner.cancel)
            await asyncio.wait({up, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not up.done():
                up.cancel()
            try:
                await up
            except asyncio.CancelledError:
                stopped.cancel()
                return
            self._state.ready = True
            self._write()
            self._report(ClusterStep("cluster", self._state.api_url, time.monotonic() - started, "ready"))
            await stopped

    async def _end_with(self, owner: int, stop: asyncio.Event) -> None:
        """Sets ``stop`` when a process has ended, which may have been before."""
        await process_ended(owner)
        _log.info("the owner of the cluster has ended", pid=owner)
        stop.set()

    async def _take_lock(self) -> None:
        async for _ in Attempts(_LOCK_POLLS, _LOCK_WAIT_S):
            if self._lock.acquire():
                return
        state = ClusterState.read(self._directory.state)
        who = f"{state.api_url} (pid {state.pid})" if state is not None else "it is coming up or going down"
        raise ConflictError(
            f"a cluster runs already with the data directory {self._directory.root}: {who}",
            fix="run `elasticdl status`; to change its options run `elasticdl down` first",
        )

    def _take_run_directory(self, stack: AsyncExitStack) -> None:
        if not self._run_lock.acquire():
            raise ConflictError(
                f"another cluster has its sockets in {self._directory.run}",
                fix=f"name another folder with {RUN_DIR_VARIABLE}, or unset it: each cluster has one of its own then",
            )
        stack.callback(self._run_lock.release)

    async def _bring_up(self, stack: AsyncExitStack) -> None:
        directory, options = self._directory, self._options
        await asyncio.to_thread(_empty, directory.run, directory.run_lock)
        former = await asyncio.to_thread(former_root, directory)
        tls = await asyncio.to_thread(self._certificate)
        port = free_port(options.port, options.host)
        api_url = in_the_open(options.host, port) if tls is None else tls.url(options.host, port)
        first = not directory.token.exists()
        ensure_secret_file(directory.token)
        secret = ensure_secret_file(directory.secret)
        if first:
            self._report(ClusterStep("token", f"made in {directory.token}"))
        if tls is not None and options.tls_generate:
            self._report(ClusterStep("tls", f"authority in {tls.ca_file}; for {', '.join(tls.names)}"))
            keeper = asyncio.create_task(self._renew(), name="certificate")
            stack.callback(keeper.cancel)
        room = MemoryGroups().room()
        self._report(ClusterStep("memory", room.describe(options.slots)))
        if fix := room.fix(options.slots):
            self._report(ClusterStep("memory", fix, kind="warning"))
        process = psutil.Process()
        self._state = ClusterState(
            pid=process.pid,
            pid_started=process.create_time(),
            api_url=api_url,
            slots=options.slots,
            data_dir=str(directory.root),
            run_dir=str(directory.run),
            version=own_version(),
            ca_file=tls.ca_file if tls is not None else "",
        )
        self._write()
        database_url = options.database_url or await self._postgres(stack, secret)
        redis_url = options.redis_url or await self._redis(stack, secret)
        wiring = Wiring(
            directory,
            api_url,
            port,
            database_url,
            redis_url,
            secret,
            derive(secret, "node"),
            options.slots,
            options.policy,
            options.host,
            tls,
            options.devices,
        )
        # The api needs an agent to reach; but on the way down masters still tell it what they have done.
        api = self._add(stack, wiring.api_spec())
        agent = self._add(stack, wiring.agent_spec())
        scheduler = self._add(stack, wiring.scheduler_spec())
        await self._start(agent)
        await self._step("schema", _silent(wiring.migrate()))
        if former is not None:
            await self._step("moved", self._relocate(former, database_url))
        else:
            note_location(directory, directory.root)
        await self._start(api)
        await self._start(scheduler)

    async def _relocate(self, former: Path, database_url: str) -> str:
        changed = await relocate(self._directory, former, database_url)
        return f"from {former}: {changed} paths follow"

    def _certificate(self) -> ApiCertificate | None:
        """The certificate of the API, if it speaks TLS."""
        options = self._options
        if options.tls_cert is not None and options.tls_key is not None:
            return ApiCertificate.given(options.tls_cert, options.tls_key, ca_of_environment())
        if not options.tls_generate:
            return None
        others = os.environ.get(HOSTS_VARIABLE, "").split(",")
        names = names_of_machine(options.host, (name.strip() for name in others))
        return DevelopmentCertificates(self._directory.tls, names).ensure()

    async def _renew(self) -> None:
        """Makes the certificate anew before it ends; the api notices that."""
        while True:
            await asyncio.sleep(_RENEWAL_CHECK_S)
            try:
                await asyncio.to_thread(self._certificate)
            except (ElasticDLError, OSError) as error:
                _log.error("cannot renew the certificate", error=str(error))

    async def _postgres(self, stack: AsyncExitStack, secret: str) -> str:
        sockets = self._directory.postgres_sockets(self._directory.run)
        log = self._directory.log("postgres")
        postgres = EmbeddedPostgres(self._directory.postgres, sockets, derive(secret, "postgres"), log)
        stack.callback(shutil.rmtree, sockets, ignore_errors=True)
        stack.callback(postgres.release)
        started = time.monotonic()
        spec = await asyncio.to_thread(postgres.prepare)
        await self._start(self._add(stack, spec), since=started)
        return postgres.url

    async def _redis(self, stack: AsyncExitStack, secret: str) -> str:
        directory = self._directory
        started = time.monotonic()
        redis = await asyncio.to_thread(
            EmbeddedRedis,
            directory.redis,
            directory.run / "redis.sock",
            derive(secret, "redis"),
            derive(secret, "redis-admin"),
            directory.log("redis"),
        )
        spec = await asyncio.to_thread(redis.prepare)
        await self._start(self._add(stack, spec), since=started)
        return redis.url

    def _add(self, stack: AsyncExitStack, spec: ComponentSpec) -> Component:
        """Makes a component, to be stopped before those that were added earlier."""
        self._state.components[spec.name] = ComponentState(spec.name)
        component = Component(spec, lambda state, pid, detail: self._component_changed(component, state, pid, detail))
        stack.push_async_callback(self._stop, component)
        return component

    async def _start(self, component: Component, *, since: float | None = None) -> None:
        await self._step(component.spec.name, component.start(), since=since)

    async def _step(self, name: str, work: Awaitable[str], *, since: float | None = None) -> None:
        started = time.monotonic() if since is None else since
        detail = await work
        self._report(ClusterStep(name, detail, time.monotonic() - started))

    async def _stop(self, component: Component) -> None:
        started = time.monotonic()
        if not await component.stop():
            return
        self._report(ClusterStep(component.spec.name, "stopped", time.monotonic() - started, "stopped"))

    def _component_changed(self, component: Component, state: str, pid: int, detail: str) -> None:
        entry = self._state.components[component.spec.name]
        entry.state, entry.pid, entry.restarts = state, pid, component.restarts
        entry.detail = detail or entry.detail
        _log.info("component", name=entry.name, state=state, pid=pid, detail=detail)
        self._write()

    def _write(self) -> None:
        try:
            self._state.write(self._directory.state)
        except OSError as error:
            _log.error("cannot write the state of the cluster", error=str(error))

    def _forget(self) -> None:
        """After the end nothing says that a cluster runs, and its sockets are gone."""
        self._directory.state.unlink(missing_ok=True)
        shutil.rmtree(self._directory.run, ignore_errors=True)


def _empty(folder: Path, lock: Path) -> None:
    """Removes what an unclean end left in the run directory, but for the lock that is held."""
    for path in folder.iterdir():
        if path == lock:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


async def process_ended(pid: int) -> None:
    """Returns when a process, of any parent, has ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    try:
        loop.add_reader(process, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(process)
        os.close(process)


async def _silent(work: Awaitable[None]) -> str:
    await work
    return "up to date"


def free_port(wanted: int, host: str = DEFAULT_HOST) -> int:
    """The wanted port of a host of this machine if it is free; for 0 any free one.

    Raises:
        ConflictError: something listens there already, or the host is none of this machine's.
    """
    family, _, _, _, place = socket.getaddrinfo(host, wanted, type=socket.SOCK_STREAM)[0]
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except OSError as error:
            raise ConflictError(
                f"port {wanted} of {host} cannot be used: {error.strerror}",
                fix="give another one with --port, or --port 0 for any free one",
            ) from None
        return int(probe.getsockname()[1])
