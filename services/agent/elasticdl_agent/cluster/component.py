"""One component of a cluster: started, watched until ready, restarted when it dies, stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM

import structlog

from elasticdl_agent.processes.child import Child, Command
from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import ElasticDLError, UnavailableError
from elasticdl_runtime.lifecycle import within
from elasticdl_runtime.retry import Attempts

READY_S = 90.0
"""A start takes well under a second on a quiet machine; a busy one takes many times as long."""
RESTARTS = Backoff(0.5, 30.0)
STEADY_S = 60.0
"""A component that ran this long before it died is restarted without the back-off of its earlier deaths."""
_PROBES = Backoff(0.05, 0.05)
_PROBE_S = 5.0
_LOG_TAIL_LINES = 15
_log = structlog.get_logger(__name__)

Probe = Callable[[], Awaitable[str]]
"""Returns a detail to show (a version, an address) when the component is ready; raises anything while it is not."""


@dataclass(frozen=True, slots=True)
class ComponentSpec:
    """The specification of a component.

    Attributes:
        name: e.g. ``postgres``.
        argv: program and arguments; no secrets.
        environment: all its variables.
        log: where its output goes.
        probe: tells when it is ready; None: ready when it runs.
        directory: working directory.
        stop_signal: asks it to leave.
        stop_grace_s: seconds until it is killed.
        owner_lost_signal: sent to it when the supervisor dies; 0 kills it at once.
        owner_lost_grace_s: seconds from that signal until it is killed.
        user: (uid, gid) to run as, or None for ours.
        before_start: blocking preparation before each start, in a thread.
        attempts: how often to try the first start.
    """

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    probe: Probe | None = None
    directory: Path = Path("/")
    stop_signal: int = SIGTERM
    stop_grace_s: float = 10.0
    owner_lost_signal: int = 0
    owner_lost_grace_s: float = 0.0
    user: tuple[int, int] | None = None
    before_start: Callable[[], None] = field(default=lambda: None)
    attempts: int = 1


class Component:
    """Runs a component and keeps it running.

    Args:
        spec: what it is.
        changed: called with (state, pid, detail) on every change.
    """

    def __init__(self, spec: ComponentSpec, changed: Callable[[str, int, str], None]) -> None:
        self.spec = spec
        self.restarts = 0
        self._changed = changed
        self._child: Child | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Starts it, waits until it is ready and keeps it running from then on; returns the probe's detail.

        Raises:
            UnavailableError: it ended, or was not ready in time; with the end of its log.
        """
        for remaining in reversed(range(self.spec.attempts)):
            try:
                detail = await self._start_once()
                break
            except UnavailableError:
                await self._drop_child()
                if not remaining:
                    raise
        self._keeper = asyncio.create_task(self._keep(), name=f"keep-{self.spec.name}")
        return detail

    async def stop(self) -> bool:
        """Stops it: by its signal, then, after its grace, by force. Returns whether there was anything to stop."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        child, self._child = self._child, None
        if child is None:
            return False
        await child.stop(grace_s=self.spec.stop_grace_s, number=self.spec.stop_signal)
        self._changed("stopped", 0, "")
        return True

    async def _start_once(self) -> str:
        spec = self.spec
        self._changed("starting", 0, "")
        await asyncio.to_thread(spec.before_start)
        command = Command(
            argv=spec.argv,
            environment=spec.environment,
            directory=spec.directory,
            log=spec.log,
            owner_lost_signal=spec.owner_lost_signal,
            owner_lost_grace_s=spec.owner_lost_grace_s,
            user=spec.user,
        )
        self._child = child = await Child.start(command)
        detail = await self._await_ready(child) if spec.probe is not None else ""
        self._changed("running", child.pid, detail)
        return detail

    async def _await_ready(self, child: Child) -> str:
        assert self.spec.probe is not None
        last = ""
        async for _ in Attempts(_PROBES, READY_S):
            if not child.running:
                break
            try:
                return await within(self.spec.probe(), _PROBE_S)
            except Exception as error:
                last = f"{type(error).__name__}: {error}"
        if child.running:
            problem = f"was not ready after {READY_S:.0f} s ({last})"
        else:
            problem = f"ended with code {await child.wait()} before it was ready"
        raise UnavailableError(
            f"{self.spec.name} {problem}; the end of its log:\n{log_tail(self.spec.log)}",
            fix=f"see {self.spec.log}, correct the cause, and run `elasticdl up` again",
        )

    async def _keep(self) -> None:
        attempts = Attempts(RESTARTS)
        while True:
            child = self._child
            started = time.monotonic()
            reason = f"ended with code {await child.wait()}" if child is not None else "did not start"
            if time.monotonic() - started > STEADY_S:
                attempts.reset()
            self.restarts += 1
            _log.warning("component died", component=self.spec.name, reason=reason)
            self._changed("restarting", 0, reason)
            await attempts.pause()
            try:
                await self._start_once()
            except Exception as error:  # whatever it is: nobody else would try again
                unexpected = None if isinstance(error, ElasticDLError | OSError) else error
                _log.error(
                    "component did not come back", component=self.spec.name, error=str(error), exc_info=unexpected
                )
                await self._drop_child()

    async def _drop_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.stop(grace_s=0.0)


def log_tail(path: Path, lines: int = _LOG_TAIL_LINES) -> str:
    """The last lines of a log, indented; or that there is none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "    (there is no log)"
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:]) or "    (the log is empty)"
