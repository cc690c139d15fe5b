"""Processes of one side that train at the same time, told over pipes when and for how long."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
_START_S = 240.0
_SLACK_S = 60.0
_PR_SET_PDEATHSIG = 1
Train = Callable[[float], int]


class Nursery:
    """A process that has imported TensorFlow, but not run it, and forks members: imports are paid for once."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.training.processes", str(theirs.fileno())],
                cwd=ROOT,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._socket.settimeout(_START_S)

    def fork(self, module: str, arguments: dict[str, Any], log: Path, cpus: Sequence[int] | None) -> Any:
        """A new member: its process id, and files for requests and answers."""
        requests, our_requests = os.pipe()
        our_answers, answers = os.pipe()
        order = {"module": module, "arguments": arguments, "cpus": list(cpus) if cpus is not None else None}
        with log.open("ab") as errors:
            socket.send_fds(self._socket, [json.dumps(order).encode()], [requests, answers, errors.fileno()])
            pid = int(self._socket.recv(64))
        os.close(requests)
        os.close(answers)
        return pid, os.fdopen(our_requests, "wb"), os.fdopen(our_answers, "rb", buffering=0)

    def close(self) -> None:
        """Ends it, and with it all its children."""
        self._process.kill()
        self._process.wait(10)
        self._socket.close()


@functools.cache
def nursery() -> Nursery:
    """The one of this process; ends with it."""
    made = Nursery()
    atexit.register(made.close)
    return made


class Member:
    """A child process that answers requests, one line of JSON each.

    Args:
        module: what it runs; ``module.start(arguments)`` gives the function that trains, and perhaps a first answer.
        arguments: JSON data for it.
        log: file for its output.
        cpus: cores that it may use; all by default.
    """

    def __init__(self, module: str, arguments: dict[str, Any], log: Path, cpus: Sequence[int] | None = None) -> None:
        self.module, self._log = module, log
        self._pid, self._requests, self._answers = nursery().fork(module, arguments, log, cpus)

    def ask(self, request: Any) -> None:
        """Sends a request; ``answer`` gives what comes back."""
        with contextlib.suppress(BrokenPipeError):
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()

    def answer(self, timeout: float = _START_S) -> Any:
        """The next answer.

        Raises:
            RuntimeError: the process ended, or did not answer in time.
        """
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._answers, selectors.EVENT_READ)
            if not waiting.select(timeout):
                raise RuntimeError(f"{self.module} did not answer within {timeout:.0f} s")
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"{self.module} ended:\n{self._log.read_text(errors='replace')[-1500:]}")
        return json.loads(line)

    def close(self) -> None:
        """Ends it and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()
        self._answers.close()


class Team:
    """A side made of processes that train side by side; see ``benchmarks.training.sides.Side``.

    Args:
        name: of the side.
        label: for people.
        module: of its processes.
        arguments: for each of them.
        logs: folder for what they say.
        servers: module and arguments of processes that have to be there first; their first answer goes to the others
            as ``servers``.
        cpus: cores that all may use.
        warm_up: seconds that they train before each measurement, from the first values of their model on, as a job
            does that is started for it: how long a step takes may depend on what was learned. 0 lets them go on.
    """

    def __init__(
        self,
        name: str,
        label: str,
        module: str,
        arguments: Sequence[dict[str, Any]],
        logs: Path,
        servers: tuple[str, Sequence[dict[str, Any]]] = ("", ()),
        cpus: Sequence[int] | None = None,
        warm_up: float = 0.0,
    ) -> None:
        self.name, self.label, self._warm_up = name, label, warm_up
        self._module, self._arguments, self._logs, self._cpus = module, arguments, logs, cpus
        self._server_module, self._server_arguments = servers
        self._members: list[Member] = []
        self._servers: list[Member] = []

    def prepare(self) -> None:
        """Starts the processes."""
        log = self._logs / f"{self.name}.log"
        for arguments in self._server_arguments:
            self._servers.append(Member(self._server_module, arguments, log, self._cpus))
        addresses = [server.answer() for server in self._servers]
        for arguments in self._arguments:
            given = {**arguments, "servers": addresses}
            self._members.append(Member(self._module, given, log, self._cpus))

    def ready(self) -> None:
        """Waits until they can train, and lets them warm up."""
        for member in self._members:
            member.answer()
        self.measure(1.0)

    def measure(self, seconds: float) -> float:
        """Lets them train; the sum of their samples a second."""
        if self._warm_up:
            self.ask({"begin": True}, _SLACK_S)
            self.ask({"train": self._warm_up}, self._warm_up + _SLACK_S)
        answers = self.ask({"train": seconds}, seconds + _SLACK_S)
        return float(sum(answer["samples"] / answer["seconds"] for answer in answers))

    def ask(self, request: Any, timeout: float) -> list[Any]:
        """Asks all at once."""
        for member in self._members:
            member.ask(request)
        return [member.answer(timeout) for member in self._members]

    def close(self) -> None:
        """Ends them."""
        for member in [*self._members, *self._servers]:
            member.close()
        self._members.clear()
        self._servers.clear()


def free_addresses(counts: Mapping[str, int]) -> dict[str, list[str]]:
    """Addresses on this machine that nobody listens on now, as many as wanted for each role."""
    with contextlib.ExitStack() as stack:

        def free() -> str:
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{probe.getsockname()[1]}"

        return {role: [free() for _ in range(count)] for role, count in counts.items()}


def for_a_while(step: Callable[[int], int]) -> Train:
    """Calls ``step(i)``, which returns its samples, with i = 0, 1, ... until the seconds are over."""
    count = 0

    def train(seconds: float) -> int:
        nonlocal count
        samples, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            samples += step(count)
            count += 1
        return samples

    return train


def main() -> None:
    """Runs the nursery: orders come over the socket whose number is the argument."""
    _die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    orders = socket.socket(fileno=int(sys.argv[1]))
    while True:
        order, descriptors, _, _ = socket.recv_fds(orders, 1 << 16, 3)
        if not order:
            return
        pid = os.fork()
        if pid == 0:
            orders.close()
            _be_member(json.loads(order), *descriptors)
        orders.send(str(pid).encode())
        for descriptor in descriptors:
            os.close(descriptor)


def _be_member(order: dict[str, Any], requests: int, answers: int, log: int) -> None:
    """A member's life in its forked process; never returns."""
    try:
        os.setsid()
        _die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if order["cpus"] is not None:
            os.sched_setaffinity(0, order["cpus"])
        _live(order, os.fdopen(requests, "rb"), os.fdopen(answers, "w"))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _live(order: dict[str, Any], requests: IO[bytes], answers: IO[str]) -> None:
    def answer(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    module = importlib.import_module(order["module"])
    started = module.start(order["arguments"])
    train, first = started if isinstance(started, tuple) else (started, "ready")
    answer(first)
    for line in requests:
        request = json.loads(line)
        if "train" in request:
            begun = time.monotonic()
            samples = train(request["train"])
            answer({"samples": samples, "seconds": time.monotonic() - begun})
        elif "begin" in request:
            module.begin_anew()
            answer("ready")
        else:
            answer(module.answer(request))


def _die_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
