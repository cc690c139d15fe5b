"""Processes of one side that train at the same time, told over pipes when and for how long."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_START_S = 240.0
_SLACK_S = 60.0
_PR_SET_PDEATHSIG = 1
Train = Callable[[float], int]


class Member:
    """A child process that answers requests, one line of JSON each.

    Args:
        module: what it runs; ``module.start(arguments)`` gives the function that answers.
        arguments: JSON data for it.
        log: file for its errors.
        cpus: cores that it may use; all by default.
    """

    def __init__(self, module: str, arguments: dict[str, Any], log: Path, cpus: Sequence[int] | None = None) -> None:
        self.module, self._log = module, log
        command = [sys.executable, "-m", "benchmarks.training.processes", module, json.dumps(arguments)]
        if cpus is not None:
            command = ["taskset", "-c", ",".join(map(str, cpus)), *command]
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )

    def ask(self, request: Any) -> None:
        """Sends a request; ``answer`` gives what comes back."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def answer(self, timeout: float = _START_S) -> Any:
        """The next answer.

        Raises:
            RuntimeError: the process ended, or did not answer in time.
        """
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._process.stdout, selectors.EVENT_READ)
            if not waiting.select(timeout):
                raise RuntimeError(f"{self.module} did not answer within {timeout:.0f} s; see {self._log}")
        line = self._process.stdout.readline()
        if not line:
            end = self._log.read_text(errors="replace")[-1500:] if self._log.exists() else ""
            raise RuntimeError(f"{self.module} ended with {self._process.wait(10)}:\n{end}")
        return json.loads(line)

    def close(self) -> None:
        """Ends it and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


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
    ) -> None:
        self.name, self.label = name, label
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
    """Runs a member: module and JSON arguments on the command line, requests on stdin, answers on stdout."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def answer(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    module = importlib.import_module(sys.argv[1])
    started = module.start(json.loads(sys.argv[2]))
    train, first = started if isinstance(started, tuple) else (started, "ready")
    answer(first)
    for line in sys.stdin:
        request = json.loads(line)
        if "train" in request:
            begun = time.monotonic()
            samples = train(request["train"])
            answer({"samples": samples, "seconds": time.monotonic() - begun})
        else:
            answer(module.answer(request))
    os._exit(0)


if __name__ == "__main__":
    main()
