"""Runs one command, writes what it prints to a file, and lets nothing of it outlive its owner.

    python -I -S shim.py <fd>

What to run comes as a JSON object (see ``Order``) through standard input: the shim itself runs with none of the
command's variables, which may be a tenant's. The descriptor is a socket whose other end the owner holds. The shim
writes ``pid <n>`` when the command runs and ``exit <code>`` when it has ended (minus the signal's number when a
signal ended it). The owner writes ``signal <n>`` (for the command alone) or ``kill`` (the whole tree, now). When
the owner dies, however it dies, the socket ends, and the shim ends the tree: the kernel's parent-death signal would
reach the command alone and leave what it started.

On Linux the shim is a subreaper: whatever the command leaves behind becomes the shim's child, in whatever session
or group it hides, and is killed with it. Elsewhere the process group is killed.

A zygote (see ``zygote``) runs the same loop in a process that it has forked, and the command in a fork of that.

Standard library only, and little of it: each process of a job has one of these, and it starts in some 20 ms.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypedDict

    class Order(TypedDict):
        """The command to run, and its limits.

        Attributes:
            argv: the program and its arguments.
            environment: all variables of the command.
            directory: working directory.
            log: file for the command's output, or empty to leave it where it goes.
            log_bytes: at that size the file becomes ``<log>.1`` and begins anew.
            eof_signal: sent to the command when the owner dies; 0 for none.
            eof_grace_s: seconds between that signal and the end of the tree.
            expendable: the kernel is offered the command, rather than the services, when memory runs out.
            confinement: what is taken from the command before it starts (see ``confinement``).
        """

        argv: list[str]
        environment: dict[str, str]
        directory: str
        log: str
        log_bytes: int
        eof_signal: int
        eof_grace_s: float
        expendable: bool
        confinement: dict[str, Any]


_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_CHILD_SUBREAPER = 36
_SWEEP_S = 10.0
_DRAIN_S = 1.0
_OOM_SCORE = b"500"
TIMES = ".times"
"""Beside ``<log>``: ``<log>.times``, the inode of the log and then lines of an offset and the time from which on what
stands there was printed, in milliseconds since 1970: one for each second in which something was."""
TIMES_EVERY_S = 1.0
DROPPED = ".dropped"
"""Beside a log that was rotated more than once: ``<log>.dropped``, how many bytes and how many lines were printed
before what ``<log>.1`` begins with, and are gone."""


class RotatingLog:
    """Appends to a file that becomes ``<path>.1`` when it is full; a full disk loses output, never the process.

    When it was written is kept in a file beside it (see ``TIMES``), and in another what was lost (see ``DROPPED``).

    Args:
        path: the file; its folder exists.
        limit: size in bytes at which to rotate.
        clock: the time in seconds since 1970.
    """

    def __init__(self, path: str, limit: int, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._limit = limit
        self._clock = clock
        self._fd = self._times = -1
        self._size = self._line = 0
        self._lines = self._lines_before = 0
        self._gone = [0, 0]
        self._begin()

    def write(self, data: bytes) -> None:
        """Appends data, rotating first if it would not fit."""
        try:
            if self._size and self._size + len(data) > self._limit:
                self._note_dropped()
                os.replace(self._path, self._path + ".1")  # noqa: PTH105 - pathlib doubles the start-up time
                self._replace_times()
                os.close(self._fd)
                self._fd = -1
                self._begin()
            self._mark()
            while data:
                written = os.write(self._fd, data)
                self._lines += data.count(b"\n", 0, written)
                last = data.rfind(b"\n", 0, written)
                if last >= 0:
                    self._line = self._size + last + 1
                self._size += written
                data = data[written:]
        except OSError:
            return

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)
        if self._times >= 0:
            os.close(self._times)

    def _begin(self) -> None:
        """Opens the file, and the one of its times; without that one there are none."""
        self._fd = self._open(self._path)
        found = os.fstat(self._fd)
        self._size = self._line = found.st_size
        self._marked = float("-inf")
        if self._times >= 0:
            os.close(self._times)
            self._times = -1
        try:
            if not self._size:
                self._remove(self._path + TIMES)
            self._times = self._open(self._path + TIMES)
            if not os.fstat(self._times).st_size:
                os.write(self._times, b"%d\n" % found.st_ino)
        except OSError:
            return

    def _note_dropped(self) -> None:
        """Notes what goes with the file that was rotated last, if there is one."""
        lines, self._lines_before, self._lines = self._lines_before, self._lines, 0
        try:
            self._gone[0] += os.lstat(self._path + ".1").st_size
            self._gone[1] += lines
            self._remove(self._path + DROPPED)
            note = self._open(self._path + DROPPED)
            try:
                os.write(note, b"%d %d\n" % (self._gone[0], self._gone[1]))
            finally:
                os.close(note)
        except OSError:
            return

    def _replace_times(self) -> None:
        try:
            os.replace(self._path + TIMES, self._path + ".1" + TIMES)  # noqa: PTH105 - as above
        except OSError:
            return

    def _mark(self) -> None:
        """Notes where the line begins that is written to now, unless that was done within the last second."""
        now = self._clock()
        if self._times < 0 or 0 <= now - self._marked < TIMES_EVERY_S:
            return
        self._marked = now
        try:
            os.write(self._times, b"%d %d\n" % (self._line, int(now * 1000)))
        except OSError:
            return

    @staticmethod
    def _remove(path: str) -> None:
        try:
            os.unlink(path)  # noqa: PTH108 - as above
        except FileNotFoundError:
            return

    @classmethod
    def _open(cls, path: str) -> int:
        """Opens a file; a link, a pipe or another file's second name that a job has put there is removed first."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(path, flags)
        except OSError:
            fd = -1
        if fd >= 0:
            found = os.fstat(fd)
            if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
                return fd
            os.close(fd)
        cls._remove(path)
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)


class Shim:
    """The loop: control socket, output pipe and the ends of children, whichever comes first.

    Args:
        control: descriptor of the socket to the owner.
        log: where the command's output goes, or None to leave it alone.
        eof_signal: signal for the command when the owner dies; 0 for none.
        eof_grace_s: seconds between that signal and the end of the whole tree.
        expendable: whether the kernel shall choose the command first when memory runs out.
    """

    def __init__(
        self, control: int, log: RotatingLog | None, eof_signal: int, eof_grace_s: float, expendable: bool
    ) -> None:
        self._control = control
        self._log = log
        self._eof_signal = eof_signal
        self._eof_grace_s = eof_grace_s
        self._expendable = expendable
        self._output = -1
        self._child = 0
        self._code: int | None = None
        self._pending = b""
        self._kill_at: float | None = None
        self._wake, wake_writer = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_writer, False)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _do_nothing)
        for number in _IGNORED:
            signal.signal(number, _do_nothing)

    def run(self, become: Callable[[int], None]) -> None:
        """Runs a command until it has ended, by itself or with its owner.

        Args:
            become: turns the forked process into the command; gets the descriptor for its output, -1 to leave that
                alone. It may raise to leave this loop in the forked process.
        """
        self._spawn(become)
        self._say(f"pid {self._child}\n")
        poll = select.poll()
        for fd in (self._control, self._wake, self._output):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        while self._code is None:
            for fd, _ in poll.poll(self._timeout_ms()):
                if fd == self._wake:
                    self._reap()
                elif not (self._obey() if fd == self._control else self._copy()):
                    poll.unregister(fd)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._sweep()
                break
        self._finish()

    def _spawn(self, become: Callable[[int], None]) -> None:
        writer = -1
        if self._log is not None:
            self._output, writer = os.pipe()
            os.set_blocking(self._output, False)
        self._child = os.fork()
        if self._child == 0:
            become(writer)
        if writer >= 0:
            os.close(writer)
        if self._expendable:
            _offer_to_oom_killer(self._child)

    def _timeout_ms(self) -> int | None:
        if self._kill_at is None:
            return None
        return max(0, int((self._kill_at - time.monotonic()) * 1000) + 1)

    def _obey(self) -> bool:
        """Reads the owner's orders; returns False when the owner is gone."""
        try:
            data = os.read(self._control, 4096)
        except ConnectionError:
            data = b""
        self._pending += data
        *orders, self._pending = self._pending.split(b"\n")
        for order in orders:
            if order == b"kill":
                self._kill_at = time.monotonic()
            elif order.startswith(b"signal "):
                self._signal(int(order[7:]))
        if not data:
            if self._eof_signal:
                self._signal(self._eof_signal)
            deadline = time.monotonic() + (self._eof_grace_s if self._eof_signal else 0.0)
            self._kill_at = deadline if self._kill_at is None else min(deadline, self._kill_at)
        return bool(data)

    def _signal(self, number: int) -> None:
        if self._code is None:
            try:
                os.kill(self._child, number)
            except ProcessLookupError:
                pass

    def _copy(self) -> bool:
        """Moves output to the log; returns False when nobody can write any more."""
        try:
            data = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return True
        if data and self._log is not None:
            self._log.write(data)
        return bool(data)

    def _reap(self) -> None:
        try:
            os.read(self._wake, 4096)
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child:
                self._code = os.waitstatus_to_exitcode(status)

    def _sweep(self) -> None:
        """Kills all descendants; those that lose their parent become children of the shim, so it comes to an end."""
        deadline = time.monotonic() + _SWEEP_S
        while time.monotonic() < deadline:
            living = _descendants()
            if not living and self._code is not None:
                return
            # Stopped first: what forks for ever would otherwise be one generation ahead.
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in living:
                    try:
                        os.kill(pid, number)
                    except ProcessLookupError:
                        pass
            self._signal(signal.SIGKILL)
            self._reap()
            time.sleep(0.002)

    def _finish(self) -> None:
        self._sweep()
        deadline = time.monotonic() + _DRAIN_S
        while self._output >= 0 and time.monotonic() < deadline:
            readable, _, _ = select.select([self._output], [], [], 0.05)
            if readable and not self._copy():
                break
        self._say(f"exit {-signal.SIGKILL if self._code is None else self._code}\n")
        os.killpg(0, signal.SIGKILL)

    def _say(self, line: str) -> None:
        try:
            os.write(self._control, line.encode())
        except OSError:
            pass


def take_defaults(writer: int) -> None:
    """In the forked process: default signal handlers, no input, and the output where the shim reads it.

    Args:
        writer: descriptor for the output, -1 to leave that alone.
    """
    signal.set_wakeup_fd(-1)
    for number in (*_IGNORED, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if writer >= 0:
        os.dup2(writer, 1)
        os.dup2(writer, 2)


def _become(order: Order, confine: Callable[[Mapping[str, Any]], None], writer: int) -> None:
    """Turns the forked process into the command; never returns."""
    program = order["argv"][0]
    try:
        take_defaults(writer)
        os.chdir(order["directory"])
        confine(order["confinement"])
        os.execvpe(program, order["argv"], order["environment"])
    except (OSError, ValueError) as error:
        os.write(2, f"cannot run {program}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def _load_confinement() -> Callable[[Mapping[str, Any]], None]:
    """``confinement.confine``, from the file beside this one: in this interpreter there are no packages."""
    path = os.path.join(os.path.dirname(__file__), "confinement.py")  # noqa: PTH118, PTH120 - as above
    found = importlib.util.spec_from_file_location("confinement", path)
    if found is None or found.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    confine: Callable[[Mapping[str, Any]], None] = module.confine
    return confine


def _read_order() -> Order:
    """Reads standard input to its end, and leaves none."""
    pieces = []
    while piece := os.read(0, 1 << 16):
        pieces.append(piece)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    order: Order = json.loads(b"".join(pieces))
    return order


def _descendants() -> list[int]:
    """Ids of all living descendants of this process; empty where there is no /proc."""
    parents: dict[int, int] = {}
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - as above
    except OSError:
        return []
    for name in names:
        if not name.isdigit():
            continue
        try:
            fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            parents[int(name)] = int(fields[1])
    own = os.getpid()
    return [pid for pid in parents if pid != own and _descends(pid, own, parents)]


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def _offer_to_oom_killer(pid: int) -> None:
    """Makes the kernel choose a job's process before the services when memory runs out."""
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(fd, _OOM_SCORE)
    except OSError:
        pass
    finally:
        os.close(fd)


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    for _ in range(len(parents) + 1):
        parent = parents.get(pid, 0)
        if parent == ancestor:
            return True
        if parent <= 1:
            return False
        pid = parent
    return False


def become_subreaper() -> None:
    """Makes this process the parent of descendants that lose theirs; on Linux."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _do_nothing(number: int, frame: object) -> None:
    """Handles a signal so that it interrupts nothing; unlike ignoring it, this does not pass to the command."""


def main() -> None:
    """Runs the command line."""
    control = int(sys.argv[1])
    os.set_inheritable(control, False)
    order = _read_order()
    confine = _load_confinement()
    become_subreaper()
    output = RotatingLog(order["log"], order["log_bytes"]) if order["log"] else None
    shim = Shim(control, output, order["eof_signal"], order["eof_grace_s"], order["expendable"])
    shim.run(lambda writer: _become(order, confine, writer))


if __name__ == "__main__":
    main()
