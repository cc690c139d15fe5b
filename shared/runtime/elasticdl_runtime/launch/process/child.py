"""One command under a shim: start, signal, stop, kill, wait."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM

import structlog

from elasticdl_core.errors import UnavailableError

LOG_BYTES = 32 << 20
"""A log file is rotated at this size; with the file before it, it never takes more than twice as much."""
_SHIM = Path(__file__).with_name("shim.py")
_START_S = 30.0
_KILL_S = 15.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Command:
    """What a child runs.

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


class Child:
    """A running command and everything that it starts; made by ``Child.start``.

    Attributes:
        pid: the command's process id.
        shim_pid: the shim's, which is also the id of the session and the process group.
    """

    def __init__(
        self,
        shim: subprocess.Popen[bytes],
        pid: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.pid = pid
        self.shim_pid = shim.pid
        self._shim = shim
        self._reader = reader
        self._writer = writer
        self._ended = asyncio.create_task(self._watch(), name=f"child-{pid}")

    @classmethod
    async def start(cls, command: Command) -> Child:
        """Starts a command in a session of its own.

        Raises:
            UnavailableError: the shim did not start.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            shim = _spawn_shim(command, theirs.fileno())
        ours.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            line = await asyncio.wait_for(reader.readline(), _START_S)
        except TimeoutError:
            line = b""
        except asyncio.CancelledError:
            writer.close()  # the shim ends what it may have started
            raise
        if not line.startswith(b"pid "):
            writer.close()
            shim.kill()
            shim.wait(_KILL_S)
            raise UnavailableError(
                f"cannot start {command.argv[0]}: its shim did not answer",
                fix="see the log; is the machine overloaded?",
            )
        return cls(shim, int(line[4:]), reader, writer)

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
        """Kills the command and all that it started, at once."""
        self._order("kill\n")

    async def stop(self, *, grace_s: float, number: int = SIGTERM) -> int:
        """Asks the command to leave, kills the tree after ``grace_s`` seconds; returns the exit code."""
        self.signal(number)
        try:
            return await asyncio.wait_for(self.wait(), grace_s)
        except TimeoutError:
            self.kill()
        try:
            return await asyncio.wait_for(self.wait(), _KILL_S)
        except TimeoutError:
            _log.warning("shim does not answer; killing its group", pid=self.pid, shim=self.shim_pid)
            self._kill_group()
            return await self.wait()

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
        self._kill_group()
        lost = await asyncio.to_thread(self._shim.wait, _KILL_S)
        self._writer.close()
        return lost if code is None else code

    def _kill_group(self) -> None:
        try:
            os.killpg(self.shim_pid, SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def _spawn_shim(command: Command, control: int) -> subprocess.Popen[bytes]:
    user = "" if command.user is None else f"{command.user[0]}:{command.user[1]}"
    argv = [
        sys.executable,
        "-I",
        "-S",
        str(_SHIM),
        str(control),
        str(command.log or ""),
        str(command.log_bytes),
        str(command.owner_lost_signal),
        str(command.owner_lost_grace_s),
        user,
        "1" if command.expendable else "0",
        *command.argv,
    ]
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        env=dict(command.environment),
        cwd=command.directory,
        pass_fds=(control,),
        start_new_session=True,
    )
