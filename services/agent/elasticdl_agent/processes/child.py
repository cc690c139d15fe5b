"""One command under a shim: start, signal, stop, kill, wait."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import IO, TYPE_CHECKING, Any, Protocol

import psutil
import structlog

from elasticdl_core.errors import UnavailableError
from elasticdl_runtime.lifecycle import to_its_end, within

if TYPE_CHECKING:
    from elasticdl_agent.processes.shim import Order

LOG_BYTES = 32 << 20
"""A log file is rotated at this size; with the file before it, it never takes more than twice as much."""
SHIM = Path(__file__).with_name("shim.py")
SHIM_ANSWER_S = 12.0
"""A shim needs at most 11 s to end a tree; one that has not is done without."""
_START_S = 30.0
_KILL_S = 15.0
_SWEEP_S = 5.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Command:
    """The command of a child.

    Attributes:
        argv: the program and its arguments; no secrets, since everybody can read them.
        environment: all variables of the child; nothing is inherited.
        directory: working directory.
        log: file for stdout and stderr; its folder exists. None leaves them with the owner's.
        log_bytes: size at which the log file is rotated.
        owner_lost_signal: sent to the child when its owner dies, before the tree is killed; 0 kills at once.
        owner_lost_grace_s: seconds between the two.
        user: (uid, gid) to become, or None to stay who we are.
        expendable: the kernel chooses it before others when memory runs out.
        confinement: what is taken from it before it starts (see ``confinement``).
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    log: Path | None = None
    log_bytes: int = LOG_BYTES
    owner_lost_signal: int = 0
    owner_lost_grace_s: float = 0.0
    user: tuple[int, int] | None = None
    expendable: bool = False
    confinement: Mapping[str, Any] = field(default_factory=dict)

    def to_order(self) -> Order:
        """The order for its shim."""
        return {
            "argv": list(self.argv),
            "environment": dict(self.environment),
            "directory": str(self.directory),
            "log": str(self.log or ""),
            "log_bytes": self.log_bytes,
            "eof_signal": int(self.owner_lost_signal),
            "eof_grace_s": self.owner_lost_grace_s,
            "expendable": self.expendable,
            "confinement": {**self.confinement, **({"user": list(self.user)} if self.user else {})},
        }


class ShimProcess(Protocol):
    """A shim that was started, as its owner sees it.

    Attributes:
        pid: its process id, which is also the id of its session and group.
    """

    @property
    def pid(self) -> int: ...

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end; returns its exit code, or minus the signal.

        Raises:
            subprocess.TimeoutExpired: it took longer.
        """
        ...

    def kill(self) -> None:
        """Kills it."""
        ...


class Child:
    """A running command and everything that it starts; made by ``Child.start``.

    Attributes:
        pid: the command's process id.
        shim_pid: the shim's, which is also the id of the session and the process group.
    """

    def __init__(
        self,
        shim: ShimProcess,
        pid: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.pid = pid
        self.shim_pid = shim.pid
        self._shim = shim
        self._reader = reader
        self._writer = writer
        self._forced: asyncio.Task[None] | None = None
        self._ended = asyncio.create_task(self._watch(), name=f"child-{pid}")

    @classmethod
    async def start(cls, command: Command, spawn: Spawn | None = None) -> Child:
        """Starts a command in a session of its own.

        Args:
            command: what to run.
            spawn: another way to start the shim; should it fail, a new interpreter is started.

        Raises:
            OSError: the interpreter or the directory is not there, or there are too many processes.
            UnavailableError: the shim did not start.
        """
        if spawn is not None:
            try:
                return await cls._start(command, spawn)
            except (UnavailableError, OSError) as error:
                _log.warning("starting a new interpreter instead", command=command.argv, error=str(error))
        return await cls._start(command, spawn_shim)

    @classmethod
    async def _start(cls, command: Command, spawn: Spawn) -> Child:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                shim = await spawn(command, theirs.fileno())
        except BaseException:
            ours.close()  # a shim that was started nevertheless ends what it started
            raise
        writer: asyncio.StreamWriter | None = None
        try:
            ours.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            try:
                line = await within(reader.readline(), _START_S)
            except (TimeoutError, ConnectionError):
                line = b""
            if not line.startswith(b"pid "):
                raise UnavailableError(
                    f"cannot start {command.argv[0]}: its shim did not answer",
                    fix="see the log; is the machine overloaded?",
                )
            return cls(shim, int(line[4:]), reader, writer)
        except BaseException:
            # Whoever launches may be gone; nothing of what was started is left behind.
            (ours if writer is None else writer).close()
            await to_its_end(asyncio.to_thread(_end_shim, shim))
            raise

    @property
    def running(self) -> bool:
        """Whether the command has not ended yet."""
        return not self._ended.done()

    async def wait(self) -> int:
        """Waits until the command and all that it started have ended; returns its exit code, or minus the signal."""
        return await asyncio.shield(self._ended)

    def signal(self, number: int) -> None:
        """Sends a signal to the command (not to what it started)."""
        self._order(f"signal {number}\n")

    def kill(self) -> None:
        """Kills the command and all that it started, at once; without the shim's help if that does not answer."""
        self._order("kill\n")
        if self._forced is None and self.running:
            self._forced = asyncio.create_task(self._kill_without_shim(), name=f"kill-{self.pid}")

    async def end(self) -> None:
        """Kills what still runs and waits until nothing does."""
        if self.running:
            self.kill()
            await asyncio.wait({self._ended})
        if self._forced is not None:
            self._forced.cancel()
            await asyncio.gather(self._forced, return_exceptions=True)

    async def stop(self, *, grace_s: float, number: int = SIGTERM) -> int:
        """Asks the command to leave, kills the tree after ``grace_s`` seconds; returns the exit code."""
        self.signal(number)
        try:
            return await within(self.wait(), grace_s)
        except TimeoutError:
            await self.end()
            return await self.wait()

    async def _kill_without_shim(self) -> None:
        """Kills from outside as a shim would, for one that was stopped or hangs."""
        await asyncio.wait({self._ended}, timeout=SHIM_ANSWER_S)
        if self.running:
            _log.warning("the shim does not answer: killing its tree", pid=self.pid, shim=self.shim_pid)
            await asyncio.to_thread(_kill_tree, self.shim_pid)

    def _order(self, line: str) -> None:
        if self.running and not self._writer.is_closing():
            self._writer.write(line.encode())

    async def _watch(self) -> int:
        code: int | None = None
        try:
            while line := await self._reader.readline():
                if line.startswith(b"exit "):
                    code = int(line[5:])
        except ConnectionError:
            pass
        except (ValueError, asyncio.LimitOverrunError):
            _log.error("a shim says what no shim says", pid=self.pid, shim=self.shim_pid)
            await asyncio.to_thread(_kill_tree, self.shim_pid)
        _kill_group(self.shim_pid)
        lost: int | None = None
        while lost is None:
            try:
                lost = await asyncio.to_thread(self._shim.wait, _KILL_S)
            except subprocess.TimeoutExpired:
                _log.warning("a shim that was killed does not end", pid=self.pid, shim=self.shim_pid)
                await asyncio.to_thread(_kill_tree, self.shim_pid)
        self._writer.close()
        return lost if code is None else code


Spawn = Callable[[Command, int], Awaitable[ShimProcess]]
"""Starts the shim of a command; the number is the descriptor of its end of the socket to the owner."""


async def spawn_shim(command: Command, control: int) -> ShimProcess:
    """Starts a shim in a new interpreter.

    Args:
        command: what it shall run.
        control: its end of the socket to the owner.

    Raises:
        OSError: the interpreter or the directory is not there, or there are too many processes.
    """
    with _nameless_file() as order:
        order.write(json.dumps(command.to_order()).encode())
        order.seek(0)
        return subprocess.Popen(  # noqa: ASYNC220 - some milliseconds
            [sys.executable, "-I", "-S", str(SHIM), str(control)],
            stdin=order,
            env=_shim_environment(),
            cwd="/",
            pass_fds=(control,),
            start_new_session=True,
        )


def _nameless_file() -> IO[bytes]:
    """A file that nobody else can open."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("order"), "w+b")
    return tempfile.TemporaryFile()


def _shim_environment() -> dict[str, str]:
    """The variables an interpreter needs to be found and to start, from our own: nothing that a job asks for."""
    return {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG") if name in os.environ}


def _end_shim(shim: ShimProcess) -> None:
    _kill_tree(shim.pid)
    shim.wait(_KILL_S)


def _kill_tree(shim: int) -> None:
    """Kills all below a shim, then it: while it is there, even stopped, what loses its parent stays below it."""
    deadline = time.monotonic() + _SWEEP_S
    try:
        root = psutil.Process(shim)
        while time.monotonic() < deadline:
            living = [one for one in root.children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE]
            if not living:
                break
            for process in living:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(0.002)
        root.kill()
    except psutil.Error:
        pass
    _kill_group(shim)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
