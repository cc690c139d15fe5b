"""A few processes that read what tenants made, so that no zip and no module can stop, fill or end the api."""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from elasticdl_api.examination import confined
from elasticdl_api.examination.fair_queue import FairQueue
from elasticdl_core.errors import InvalidInputError, UnavailableError, UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_core.path_policy import PathPolicy

_log = structlog.get_logger(__name__)
_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True)
class ExaminationLimits:
    """Limits on one zip or one module.

    Attributes:
        memory_bytes: address space of the process that reads it.
        cpu_s: seconds of processor time.
        wall_s: seconds in all.
        processes: how many are read at once; one namespace has all but one of them, if there are several.
        waiting: how many more of one namespace may wait for that.
        waiting_in_all: how many of all namespaces.
    """

    memory_bytes: int = 640 << 20
    cpu_s: int = 5
    wall_s: float = 20.0
    processes: int = 3
    waiting: int = 32
    waiting_in_all: int = 256


class Examiners:
    """Reads zips and modules in processes of its own, a few at a time, the namespaces in turns.

    A process that dies or is late is the fault of what it read: that is refused, and the next one gets a new process.

    Args:
        limits: what one may take, and how many may be at it.
    """

    def __init__(self, limits: ExaminationLimits | None = None) -> None:
        self._limits = limits or ExaminationLimits()
        self._threads = ThreadPoolExecutor(self._limits.processes, thread_name_prefix="examiner")
        self._lock = threading.Lock()
        self._idle: list[_Examiner] = []
        self._working: set[_Examiner] = set()
        self._turns: FairQueue[tuple[dict[str, Any], Future[dict[str, Any]]]] = FairQueue()
        self._busy: Counter[str] = Counter()
        self._closed = False

    async def examine_bundle(self, path: Path, *, namespace: str = "") -> None:
        """Reads a zip of a namespace from its beginning to its end.

        Raises:
            InvalidInputError: it is refused.
            UnavailableError: too many wait already.
        """
        answer = await self._ask(namespace, {"zip": str(path)})
        if "died" in answer:
            raise InvalidInputError(
                f"the bundle is refused: {answer['died']}",
                fix="pack the directory anew: a plain zip of .py and small files",
            )
        _raise(answer)

    async def check_model(
        self,
        spec: JobSpec,
        *,
        namespace: str = "",
        bundle: Path | None = None,
        zoo: str = "",
        reach: PathPolicy | None = None,
    ) -> None:
        """Checks the module of a job, in a bundle or in a directory, without running it.

        Args:
            spec: the job.
            namespace: whose turn it takes.
            bundle: the zip of the zoo.
            zoo: else its directory.
            reach: what of that directory the job may read; None for everything.

        Raises:
            UserCodeError: it is missing, does not parse, lacks an entry, or takes too much to be checked.
            InvalidInputError: the bundle is refused.
            UnavailableError: too many wait already.
        """
        within = {} if reach is None else {"reach": reach.to_mapping()}
        where = {"zoo": zoo, **within} if bundle is None else {"zip": str(bundle)}
        answer = await self._ask(namespace, {**where, "spec": spec.to_mapping()})
        if "died" in answer:
            raise UserCodeError(
                f"the module of {spec.model_def} could not be checked: {answer['died']}",
                fix="make the module shorter and simpler: keep data out of it, in files beside it",
            )
        _raise(answer)

    def close(self) -> None:
        """Ends the processes; what is being read is not waited for."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for _, future in self._turns.clear():
                future.cancel()
            for working in self._working:
                working.kill()  # its thread ends it
        for examiner in idle:
            examiner.end()
        self._threads.shutdown(wait=True)

    async def _ask(self, namespace: str, request: dict[str, Any]) -> dict[str, Any]:
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            full = len(self._turns) >= self._limits.waiting_in_all
            if full or self._turns.count(namespace) >= self._limits.waiting or self._closed:
                raise UnavailableError(
                    "too much model code is being checked at this moment", fix="try again in some seconds"
                )
            self._turns.add(namespace, (request, future))
            self._start_next()
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            with self._lock:
                self._turns.discard(namespace, (request, future))
            raise

    def _start_next(self) -> None:
        """Starts what can be started now; the lock is held."""
        most = max(self._limits.processes - 1, 1)
        while self._busy.total() < self._limits.processes:
            found = self._turns.take(lambda namespace: self._busy[namespace] < most)
            if found is None:
                return
            namespace, (request, future) = found
            if future.set_running_or_notify_cancel():
                self._busy[namespace] += 1
                self._threads.submit(self._work, namespace, request, future)

    def _work(self, namespace: str, request: dict[str, Any], future: Future[dict[str, Any]]) -> None:
        try:
            future.set_result(self._serve(request))
        except BaseException as error:
            future.set_exception(error)
        with self._lock:
            self._busy[namespace] -= 1
            if not self._closed:
                self._start_next()

    def _serve(self, request: dict[str, Any]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="elasticdl-examined-") as folder:
            examiner = self._take()
            answer: dict[str, Any] = {"died": "it was interrupted"}
            try:
                answer = examiner.ask({**request, "folder": folder}, self._limits)
            finally:
                self._give_back(examiner, answer)
        if "died" in answer:
            _log.warning("model code was refused", reason=answer["died"])
        return answer

    def _take(self) -> _Examiner:
        with self._lock:
            examiner = self._idle.pop() if self._idle else None
        if examiner is not None and not examiner.alive:
            examiner.end()
            examiner = None
        examiner = examiner or _Examiner(self._limits)
        with self._lock:
            self._working.add(examiner)
            if self._closed:
                examiner.kill()
        return examiner

    def _give_back(self, examiner: _Examiner, answer: dict[str, Any]) -> None:
        with self._lock:
            self._working.discard(examiner)
            keep = not self._closed and "died" not in answer
            if keep:
                self._idle.append(examiner)
        if not keep:
            examiner.end()


class _Examiner:
    """One process."""

    def __init__(self, limits: ExaminationLimits) -> None:
        arguments = (str(limits.memory_bytes), str(limits.cpu_s))
        self._process = subprocess.Popen(
            confined.command_of("elasticdl_api.examination.process", *arguments), **confined.options()
        )

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def ask(self, request: dict[str, Any], limits: ExaminationLimits) -> dict[str, Any]:
        """Asks it; the answer is ``died`` if it did not come in time."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return {"died": self._cause(limits)}
        line = self._read_line(time.monotonic() + limits.wall_s)
        if line is None:
            return {"died": f"it took longer than {limits.wall_s:g} s"}
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            return {"died": self._cause(limits)}
        return answer

    def kill(self) -> None:
        """Kills it; what it was asked for is answered with its death."""
        self._process.kill()

    def end(self) -> None:
        """Kills it, and waits until it is gone."""
        self._process.kill()
        self._process.communicate()

    def _read_line(self, deadline: float) -> bytes | None:
        """A line, or what came before the end of the output; None when the deadline has passed."""
        assert self._process.stdout is not None
        line = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n") and len(line) < _ANSWER_BYTES:
                if not selector.select(max(deadline - time.monotonic(), 0.0)):
                    return None
                piece = os.read(self._process.stdout.fileno(), 1 << 16)
                if not piece:
                    break
                line += piece
        return bytes(line)

    def _cause(self, limits: ExaminationLimits) -> str:
        self._process.kill()  # it has closed its output, or said something else: nothing more is to be expected
        code = self._process.wait()
        if code == -signal.SIGXCPU:
            return f"it took more than {limits.cpu_s} s of processor time"
        return f"the process that read it ended with {code}"


def _raise(answer: dict[str, Any]) -> None:
    if not answer:
        return
    if answer["code"] == "user_code":
        raise UserCodeError(answer["message"], fix=answer["fix"], traceback=answer["traceback"])
    if answer["code"] == "invalid_input":
        raise InvalidInputError(answer["message"], fix=answer["fix"])
    raise UnavailableError(answer["message"], fix=answer["fix"])
