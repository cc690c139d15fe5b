"""The owner's side of a zygote: keeps one running, and has it fork what need not have an interpreter of its own."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import structlog

from elasticdl_agent.processes.child import Command, ShimProcess, spawn_shim
from elasticdl_agent.zygote.process import EXIT_NO_IMPORT, MAX_ORDER, ROOM
from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import InvalidInputError, UnavailableError
from elasticdl_runtime.lifecycle import wait_for_event, within
from elasticdl_runtime.memory_group import MemoryGroups
from elasticdl_runtime.retry import Attempts

START_DELAY_S = 15.0
"""A zygote is started with the first launch, or so long after its owner: it must not slow the owner's start."""
AUTO_MEMORY = 2 << 30
_WARM_UP_S = 120.0
_ANSWER_S = 10.0
_END_S = 10.0
_RESTARTS = Backoff(1.0, 60.0)
_ROOM_BYTES = 8192
_ARGUMENT_ROOM_BYTES = 512
_ZYGOTE = "elasticdl_agent.zygote.process"
_READ_AT_IMPORT = (
    *("PYTHON", "LD_", "DYLD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "TZ", "PATH", "HOME", "VIRTUAL_ENV"),
    *("TF_", "TF2_", "KERAS_", "XLA_", "TPU_", "CUDA_", "NVIDIA_", "ABSL_", "GRPC_", "PROTOCOL_BUFFERS_", "HDF5_"),
    *(
        "OMP_",
        "KMP_",
        "GOMP_",
        "MKL_",
        "OPENBLAS_",
        "GOTO_",
        "BLIS_",
        "VECLIB_",
        "ONEDNN_",
        "DNNL_",
        "NPY_",
        "NUMPY_",
    ),
    *("NUMBA_", "SCIPY_", "SKLEARN_", "JOBLIB_", "MPLBACKEND", "MPLCONFIGDIR", "SSL_", "OPENSSL_", "ELASTICDL_LOG_"),
)
"""Beginnings of names of variables that libraries read while they are imported, which has happened in a zygote."""
_READ_LATER = frozenset(
    {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
)
"""Of these, what is read when a process first looks for devices, which no zygote does."""
_log = structlog.get_logger(__name__)


def wanted(setting: str) -> bool:
    """Whether to keep a zygote.

    Args:
        setting: ``on``, ``off``, or ``auto``: where the system can, with 2 GiB of memory to spare.

    Raises:
        InvalidInputError: it is another word, or ``on`` where the system cannot.
    """
    able = sys.platform == "linux" and hasattr(os, "pidfd_open") and hasattr(socket, "SOCK_SEQPACKET")
    if setting not in ("auto", "on", "off"):
        raise InvalidInputError(f"ELASTICDL_ZYGOTE={setting!r} is unknown", fix="set it to auto, on or off")
    if setting == "on" and not able:
        raise InvalidInputError("ELASTICDL_ZYGOTE=on needs Linux", fix="set it to auto or off")
    if setting == "auto":
        return able and MemoryGroups().available() >= AUTO_MEMORY
    return setting == "on"


class _End(enum.Enum):
    """The end of a zygote's life."""

    SERVED = enum.auto()
    FAILED = enum.auto()
    USELESS = enum.auto()


class ForkedShim:
    """A shim that a zygote has forked.

    Args:
        pid: its process id.
        pidfd: names it for ever; closed here after its end.
    """

    def __init__(self, pid: int, pidfd: int) -> None:
        self._pid = pid
        self._pidfd = pidfd

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._pid

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end, which is always by a signal: a shim kills its own group.

        Raises:
            subprocess.TimeoutExpired: it took longer than ``timeout`` seconds.
        """
        if self._pidfd >= 0:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired("forked shim", timeout or 0.0)
            os.close(self._pidfd)
            self._pidfd = -1
        return -signal.SIGKILL

    def kill(self) -> None:
        """Kills it."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


class ZygoteClient:
    """Keeps a zygote; an async context manager.

    Args:
        module: what the zygote imports.
        environment: the zygote's variables: no secrets. A command whose variables differ from these in one that is
            read at import gets an interpreter of its own.
        start_delay_s: seconds until a zygote is started though nobody has asked for it; None for never.
    """

    def __init__(
        self, module: str, environment: Mapping[str, str], *, start_delay_s: float | None = START_DELAY_S
    ) -> None:
        self._module = module
        self._environment = dict(environment)
        self._start_delay_s = start_delay_s
        self._asked = asyncio.Event()
        self._warm: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._socket: socket.socket | None = None
        self._lock = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self.pid = 0

    async def __aenter__(self) -> ZygoteClient:
        self._keeper = asyncio.create_task(self._keep(), name="zygote")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    def ask(self) -> None:
        """Says that a zygote will soon be wanted."""
        self._asked.set()

    async def warm(self) -> bool:
        """Waits until a zygote that is being started is ready; returns whether there is one."""
        try:
            return await within(asyncio.shield(self._warm), _WARM_UP_S)
        except TimeoutError:
            return False

    def suits(self, command: Command) -> bool:
        """Whether a fork of the zygote would be what a new interpreter would be."""
        if command.user is not None or len(command.argv) < 3 or tuple(command.argv[:2]) != (sys.executable, "-P"):
            return False
        names = (self._environment.keys() | command.environment.keys()) - _READ_LATER
        if command.confinement.get("user") or command.confinement.get("files"):
            names -= {"HOME"}  # it is the job's own then, and what was read from ours is our settings of libraries
        differing = [name for name in names if self._environment.get(name) != command.environment.get(name)]
        return not any(name.startswith(_READ_AT_IMPORT) for name in differing)

    async def spawn(self, command: Command, control: int) -> ShimProcess:
        """Starts a command's shim by a fork or, where that cannot be, in a new interpreter.

        Raises:
            UnavailableError: the zygote did not do it.
            OSError: neither can be started.
        """
        self.ask()
        if not self.suits(command) or not await self.warm():
            return await spawn_shim(command, control)
        order = json.dumps(command.to_order()).encode()
        if len(order) > MAX_ORDER:
            return await spawn_shim(command, control)
        async with self._lock:
            return await self._fork(order, control)

    async def _fork(self, order: bytes, control: int) -> ShimProcess:
        connection = self._socket
        if connection is None:
            raise UnavailableError("the zygote is gone", fix="nothing: another one is started")
        try:
            socket.send_fds(connection, [order], [control])
            answer, passed = await _receive(connection, _ANSWER_S)
        except (OSError, TimeoutError) as error:
            self._drop()
            raise UnavailableError(f"the zygote did not answer: {error}", fix="nothing: it is replaced") from error
        except asyncio.CancelledError:
            self._drop()
            raise
        if "pid" not in answer:
            raise UnavailableError(f"the zygote did not fork: {answer.get('error')}", fix="nothing")
        return ForkedShim(int(answer["pid"]), passed[0])

    def _drop(self) -> None:
        """Gives up this zygote: its answers would no longer fit the questions."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._warm = _settled(False)
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def _keep(self) -> None:
        if self._start_delay_s is None:
            await self._asked.wait()
        else:
            await wait_for_event(self._asked, self._start_delay_s)
        attempts = Attempts(_RESTARTS)
        while True:
            end = _End.FAILED
            try:
                end = await self._live()
            except Exception as error:  # whatever it is: nobody else would try again
                unexpected = None if isinstance(error, OSError) else error
                _log.warning("the zygote did not start", error=str(error), exc_info=unexpected)
            finally:
                if not self._warm.done():
                    self._warm.set_result(False)
                self._warm = _settled(False)
            if end is _End.USELESS:
                return
            if end is _End.SERVED:
                attempts.reset()
            await attempts.pause()
            self._warm = asyncio.get_running_loop().create_future()

    async def _live(self) -> _End:
        """The life of one zygote."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with ours:
            with theirs:
                process = self._start(theirs.fileno())
            end = _End.FAILED
            try:
                answer, _ = await _receive(ours, 2 * _WARM_UP_S)
                if answer.get("ready"):
                    end = _End.SERVED
                    await self._serve(process.pid, ours)
                elif answer:
                    end = _End.USELESS
                    _log.warning("the zygote has threads after its imports", threads=answer.get("threads"))
            finally:
                self._socket = None
                self.pid = 0
                process.kill()
                code = process.wait(_END_S)
        if code == EXIT_NO_IMPORT:
            end = _End.USELESS
        if end is _End.USELESS:
            _log.warning("no zygote: each process gets an interpreter of its own", module=self._module, code=code)
        else:
            _log.warning("the zygote ended", code=code)
        return end

    def _start(self, control: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", _ZYGOTE, str(control), self._module, " " * _ARGUMENT_ROOM_BYTES],
            stdin=subprocess.DEVNULL,
            env={**self._environment, ROOM: " " * _ROOM_BYTES},
            cwd="/",
            pass_fds=(control,),
            start_new_session=True,
        )

    async def _serve(self, pid: int, connection: socket.socket) -> None:
        """Offers a zygote that is ready, until it has ended."""
        pidfd = os.pidfd_open(pid)
        try:
            self.pid = pid
            self._socket = connection
            self._warm.set_result(True)
            _log.info("the zygote is ready", pid=pid)
            await _readable(pidfd)
        finally:
            os.close(pidfd)


def _settled(value: bool) -> asyncio.Future[bool]:
    future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future


async def _receive(connection: socket.socket, timeout_s: float) -> tuple[dict[str, Any], list[int]]:
    """Receives an answer; an empty one at the end of the other side."""
    async with asyncio.timeout(timeout_s):  # wait_for loses a cancellation that comes with the answer (Python 3.11)
        await _readable(connection.fileno())
    try:
        data, passed, _, _ = socket.recv_fds(connection, 4096, 1)
    except ConnectionError:
        data, passed = b"", []
    for fd in passed:
        os.set_inheritable(fd, False)
    return (json.loads(data) if data else {}), passed


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(fd)
