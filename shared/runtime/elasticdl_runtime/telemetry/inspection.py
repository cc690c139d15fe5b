"""The process' side of inspections: the agent asks what a process does, and it answers, without a port.

The agent names a file in ``ELASTICDL_INSPECTION``. It writes a question into it and sends ``ASK``; the event loop
answers into the same file. Where the loop does not come round (it hangs, or something holds the interpreter), the
agent sends ``DUMP``: the interpreter's own handler then writes all stacks into the file, whoever holds what. Both are
signals that a process ignores by default, so that one that knows nothing of this goes on.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import structlog

from elasticdl_runtime.telemetry import meters, spans

VARIABLE = "ELASTICDL_INSPECTION"
ASK, DUMP = signal.SIGURG, signal.SIGWINCH
MOST_THREADS, MOST_FRAMES = 128, 64
_QUESTION_BYTES = 4096
_log = structlog.get_logger(__name__)
_file = -1


def listen(loop: asyncio.AbstractEventLoop) -> None:
    """Answers inspections from now on, if an agent started this process; to be called in the main thread."""
    global _file
    began = time.time()
    meters.show("elasticdl_process_start_time_seconds", lambda: began)
    path = os.environ.get(VARIABLE)
    if not path:
        return
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        _file = os.open(path, flags, 0o600)
        # Where workers are users of their own, the folder makes it a file of the agent's group.
        os.fchmod(_file, 0o660)
        # Never closed: the interpreter's handler writes to it until the end.
        faulthandler.register(DUMP, file=_file, all_threads=True)
        loop.add_signal_handler(ASK, _answer)
    except OSError as error:
        _log.warning("cannot be inspected", error=str(error))


def _answer() -> None:
    try:
        line, end, _ = os.pread(_file, _QUESTION_BYTES, 0).partition(b"\n")
        question = json.loads(line) if end else {}
        answer = _ANSWERS[question["ask"]](question)
        # The number comes first: by it the agent finds the answer among what else may stand there.
        data = json.dumps({"answers": question["number"], **answer}, default=str).encode() + b"\n"
        while data:
            data = data[os.write(_file, data) :]
    except (OSError, ValueError, LookupError, TypeError) as error:
        _log.warning("an inspection was not answered", error=str(error))


def _stacks(_: Mapping[str, Any]) -> dict[str, Any]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = [
        {"name": names.get(ident, "not Python's"), "thread": ident, "frames": _frames(frame)}
        for ident, frame in list(sys._current_frames().items())[:MOST_THREADS]
    ]
    tasks = []
    for task in list(asyncio.all_tasks())[:MOST_THREADS]:
        tasks.append({"name": task.get_name(), "frames": _awaited(task.get_coro())})
    # A task as a whole says nothing of what is waited for.
    doing = [one for one in spans.open_spans() if one.kind != "task"]
    now = [{"name": one.name, "kind": one.kind, "thread": one.thread} for one in doing[-MOST_THREADS:]]
    return {"threads": threads, "tasks": tasks, "spans": now, "loop": threading.get_ident()}


def _frames(frame: FrameType | None) -> list[tuple[str, int, str]]:
    """The innermost frames, that one first."""
    found: list[tuple[str, int, str]] = []
    while frame is not None and len(found) < MOST_FRAMES:
        found.append((frame.f_code.co_filename, frame.f_lineno, _function(frame)))
        frame = frame.f_back
    return found


def _awaited(waiting: object) -> list[tuple[str, int, str]]:
    """The frames that a task awaits, down to what is no coroutine any more; the innermost first."""
    found: list[tuple[str, int, str]] = []
    while waiting is not None and len(found) < MOST_FRAMES:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is None:
            break
        found.append((frame.f_code.co_filename, frame.f_lineno, _function(frame)))
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    return found[::-1]


def _function(frame: FrameType) -> str:
    return frame.f_code.co_qualname


def _trace(question: Mapping[str, Any]) -> dict[str, Any]:
    spans.record(float(question.get("seconds", 0.0)))
    return {}


_ANSWERS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "stacks": _stacks,
    "metrics": lambda _: {"values": meters.read()},
    "trace": _trace,
    "recorded": lambda _: spans.take_recorded(),
}
