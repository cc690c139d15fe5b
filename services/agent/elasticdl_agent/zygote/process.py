"""A process that has imported what a command needs, and forks the command when its owner asks for it.

    python -P -m elasticdl_agent.zygote.process <fd> <module> [<room>]

Importing TensorFlow takes seconds, a fork milliseconds. The zygote imports ``module``, says that it is ready, and
waits for orders on ``fd``, one end of a SOCK_SEQPACKET socket pair. Each order (a JSON object, with the descriptor of
the command's control socket) makes it fork a shim, which forks the command, so that signals, exit codes, logs and the
killing of whole trees are the very code that runs above a command of its own interpreter. The answer is the shim's
process id, with a pidfd of it.

What makes the fork safe: the zygote runs nobody's code but that of the imports and has one thread, which is checked
before each fork; libraries whose pools know how to leave for a fork (OpenBLAS) are made to do so by a first one.
It gets no secret: its environment is the harmless part, and the commands' own come with their orders. It dies with
its owner; the commands do not die with it.

``room`` is ignored: it and a variable leave room for the arguments and the environment that ``/proc`` and ``ps`` show
of a command.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from typing import TYPE_CHECKING, Any

from elasticdl_agent.processes import shim
from elasticdl_agent.processes.confinement import confine
from elasticdl_agent.zygote.forked import enter, prepare_interpreter, run, show_as

if TYPE_CHECKING:
    from elasticdl_agent.processes.shim import Order

MAX_ORDER = 64 << 10
"""Bytes of an order; a command with a larger environment gets an interpreter of its own."""
EXIT_NO_IMPORT = 3
ROOM = "ELASTICDL_ZYGOTE_ROOM"
_PR_SET_PDEATHSIG = 1


class _InCommand(BaseException):
    """Not an error: it leads the forked process out of the zygote's loop."""

    def __init__(self, order: Order) -> None:
        super().__init__()
        self.order = order


class Zygote:
    """The loop: orders, and the ends of shims.

    Args:
        owner: the socket to the owner.
        imported: variables that the imports have set.
    """

    def __init__(self, owner: socket.socket, imported: dict[str, str]) -> None:
        self._owner = owner
        self._imported = imported
        self._kept = descriptors() - {owner.fileno()}
        self._shims: dict[int, int] = {}
        self._poll = select.poll()
        self._poll.register(owner, select.POLLIN)

    def serve(self) -> None:
        """Forks what is ordered until the owner is gone.

        Raises:
            _InCommand: in the process that shall run the command.
        """
        self._answer({"ready": threads() == 1, "threads": threads()})
        while True:
            for fd, _ in self._poll.poll():
                if fd != self._owner.fileno():
                    self._reap(fd)
                elif not self._obey():
                    return

    def _obey(self) -> bool:
        """Carries out an order; returns False when the owner is gone."""
        try:
            message, passed, _, _ = socket.recv_fds(self._owner, MAX_ORDER, 1)
        except ConnectionError:
            return False
        if not message:
            return False
        order: Order = json.loads(message)
        (control,) = passed
        if threads() != 1:
            os.close(control)
            self._answer({"error": f"{threads()} threads run, which a fork would cut off"})
            return True
        try:
            pid = os.fork()
        except OSError as error:
            os.close(control)
            self._answer({"error": f"cannot fork: {error}"})
            return True
        if pid == 0:
            self._become_shim(order, control)
        os.close(control)
        pidfd = os.pidfd_open(pid)
        self._shims[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        self._answer({"pid": pid}, pidfd)
        return True

    def _become_shim(self, order: Order, control: int) -> None:
        """Runs the shim's loop; returns never, and raises in the command alone."""
        try:
            gc.disable()  # it would copy the pages of all objects
            self._owner.detach()
            for fd in descriptors() - self._kept - {control}:
                os.close(fd)
            os.setsid()
            os.chdir(order["directory"])
            enter({})  # what the command gets, a tenant may have chosen
            show_as([sys.executable, shim.__file__, *order["argv"]], {})
            shim.become_subreaper()
            log = shim.RotatingLog(order["log"], order["log_bytes"]) if order["log"] else None
            loop = shim.Shim(control, log, order["eof_signal"], order["eof_grace_s"], order["expendable"])
            loop.run(lambda writer: self._become_command(order, writer))
        except _InCommand:
            raise
        except BaseException:
            traceback.print_exc()
        os._exit(1)

    def _become_command(self, order: Order, writer: int) -> None:
        try:
            shim.take_defaults(writer)
            for fd in descriptors() - self._kept:
                os.close(fd)
            enter({**self._imported, **order["environment"]})
            show_as(order["argv"], order["environment"])
            prepare_interpreter()
            confine(order["confinement"])
        except BaseException:
            traceback.print_exc()
            os._exit(127)
        raise _InCommand(order)

    def _reap(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        os.close(pidfd)
        os.waitpid(self._shims.pop(pidfd), 0)

    def _answer(self, answer: dict[str, Any], *passed: int) -> None:
        try:
            socket.send_fds(self._owner, [json.dumps(answer).encode()], passed)
        except OSError:
            return  # the owner is gone, which the next poll finds


def threads() -> int:
    """Number of threads of this process, whoever started them."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - nothing to build before a fork


def descriptors() -> set[int]:
    """Open descriptors of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - as above
        try:
            os.fstat(int(name))
        except OSError:
            continue  # the one that read the list
        found.add(int(name))
    return found


def die_with_owner() -> None:
    """Makes the kernel kill this process when the one that started it dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def leave_pools() -> None:
    """Makes libraries end the threads that they end for a fork."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def warm_up(module: str) -> dict[str, str]:
    """Imports the module; returns the variables that this has set. Ends the process when it cannot be imported."""
    before = dict(os.environ)
    try:
        importlib.import_module(module)
    except Exception:
        traceback.print_exc()
        sys.exit(EXIT_NO_IMPORT)
    leave_pools()
    gc.collect()
    gc.freeze()
    return {name: value for name, value in os.environ.items() if before.get(name) != value}


def main() -> None:
    """Serves; in a forked command, runs that."""
    owner = socket.socket(fileno=int(sys.argv[1]))
    owner.set_inheritable(False)
    die_with_owner()
    try:
        Zygote(owner, warm_up(sys.argv[2])).serve()
        return
    except _InCommand as forked:
        order = forked.order
    run(order["argv"])


if __name__ == "__main__":
    main()
