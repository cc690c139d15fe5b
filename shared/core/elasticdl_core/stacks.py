"""Stacks of processes: read out of what they wrote, which may be anything, and told apart by what they wait for."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from elasticdl_core.ports.launcher import InspectedProcess, Role

MOST_THREADS, MOST_FRAMES, MOST_TEXT = 128, 64, 300
IDLE = "idle event loop"
_DUMPED_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)')
_DUMPED_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]{1,16})")
_WAITS: Sequence[tuple[str, str, str]] = (
    ("elasticdl_worker/master/session.py", "lease_task", "waiting for a lease"),
    ("elasticdl_worker/group/master_session.py", "", "waiting for the master's orders"),
    ("elasticdl_worker/collectives/", "", "allreduce"),
    ("elasticdl_worker/trainers/on_servers/trainer.py", "_finish_first", "push to PS"),
    ("elasticdl_worker/trainers/on_servers/trainer.py", "result", "push to PS"),
    ("elasticdl_worker/trainers/on_servers/trainer.py", "_pull", "pull from PS"),
    ("elasticdl_worker/trainers/on_servers/trainer.py", "infer", "computing"),
    ("elasticdl_worker/trainers/on_servers/read_ahead.py", "_permit", "waiting for the trainer"),
    ("elasticdl_worker/trainers/on_servers/read_ahead.py", "take", "reading data"),
    ("elasticdl_worker/trainers/on_servers/read_ahead.py", "_prefetch", "computing"),
    ("elasticdl_worker/trainers/on_servers/read_ahead.py", "_read", "reading data"),
    ("elasticdl_worker/group/reader.py", "", "reading data"),
    ("elasticdl/data/", "", "reading data"),
    ("elasticdl_worker/trainers/", "", "computing"),
    ("elasticdl_worker/group/", "", "computing"),
    ("elasticdl_ps/", "", "computing"),
    ("importlib/_bootstrap", "", "importing"),
)
"""Part of a file's path, a function's name, what is waited for: the first rule that fits any frame of a thread, for
the innermost frames are those of locks and futures."""
_POLLS = (("selectors.py", "select"), ("asyncio/base_events.py", "_run_once"))


@dataclass(frozen=True)
class StackFrame:
    """One call.

    Attributes:
        file: path of the source.
        line: line number; 0 if it is not known.
        function: name of the function.
    """

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class ThreadStack:
    """One thread, or one task of an event loop.

    Attributes:
        name: its name.
        waits_for: what it waits for, or does.
        frames: its calls, the innermost one first.
    """

    name: str
    waits_for: str
    frames: tuple[StackFrame, ...] = ()


@dataclass(frozen=True)
class ProcessStacks:
    """Stacks of a process.

    Attributes:
        state: what the system says: running, sleeping, stopped, ...
        waits_for: what it waits for, or does.
        error: why there are no frames; empty if there are.
        threads: threads, those that matter first, and tasks.
    """

    state: str
    waits_for: str
    error: str = ""
    threads: tuple[ThreadStack, ...] = ()


def read_stacks(found: InspectedProcess) -> ProcessStacks:
    """Reads the stacks in a process' answer; whatever it wrote, this ends, and raises nothing."""
    answer = _parsed(found.answer)
    if answer is not None:
        threads = _answered_threads(answer)
        return ProcessStacks(found.state, _waits_of_process(threads, answer, found.id.role), "", threads)
    if found.dump:
        threads = _dumped_threads(found.dump.decode(errors="replace"))
        if threads:
            return ProcessStacks(found.state, _waits_of_process(threads, {}, found.id.role), "", threads)
    threads = tuple(
        ThreadStack(_text(one.name), f"{one.state}, in {one.waits_in}" if one.waits_in else one.state)
        for one in found.threads[:MOST_THREADS]
    )
    return ProcessStacks(found.state, *_without_frames(found.state), threads)


def _without_frames(state: str) -> tuple[str, str]:
    if state == "stopped":
        return "stopped (SIGSTOP)", "it is stopped, so it cannot say where it is"
    if state == "traced":
        return "stopped by a debugger", "a debugger holds it, so it cannot say where it is"
    if state == "pending":
        return "waiting for a slot", "it does not run yet"
    if state == "ended":
        return "ending", "it has ended"
    return "starting", "it did not answer: it has only just started, or is about to end"


def _parsed(data: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _answered_threads(answer: dict[str, Any]) -> tuple[ThreadStack, ...]:
    threads = []
    for one in _mappings(answer.get("threads")):
        frames = _frames(one.get("frames"))
        answering = one.get("thread") == answer.get("loop")
        threads.append(
            ThreadStack(_text(one.get("name")), IDLE if answering else waits_of(frames), _own(frames, answering))
        )
    for one in _mappings(answer.get("tasks")):
        frames = _frames(one.get("frames"))
        threads.append(ThreadStack(f"task {_text(one.get('name'))}", waits_of(frames, task=True), frames))
    return tuple(sorted(threads, key=_rank))


def _own(frames: tuple[StackFrame, ...], answering: bool) -> tuple[StackFrame, ...]:
    """Without the frames that answer the question."""
    if not answering:
        return frames
    for number, frame in enumerate(frames):
        if frame.file.endswith("asyncio/events.py"):
            return frames[number + 1 :]
    return frames


def _dumped_threads(text: str) -> tuple[ThreadStack, ...]:
    threads: list[tuple[str, list[StackFrame]]] = []
    for line in text.splitlines():
        begin = _DUMPED_THREAD.match(line)
        if begin and len(threads) < MOST_THREADS:
            threads.append((begin[1], []))
        frame = _DUMPED_FRAME.fullmatch(line)
        if frame and threads and len(threads[-1][1]) < MOST_FRAMES:
            number = int(frame[2]) if frame[2].isdigit() else 0
            threads[-1][1].append(StackFrame(_text(frame[1]), number, _text(frame[3])))
    found = [ThreadStack(_name_of(name, frames), waits_of(frames), tuple(frames)) for name, frames in threads]
    return tuple(sorted(found, key=_rank))


def _name_of(number: str, frames: Sequence[StackFrame]) -> str:
    """A dump has no names: a thread is called by the function that it was begun with."""
    if not frames:
        return number
    if frames[-1].file.startswith("<frozen runpy") or frames[-1].function == "<module>":
        return "MainThread"
    outer = [frame for frame in frames if not frame.file.endswith("/threading.py")]
    known = {"_train": "training", "ReadAhead._run": "read-ahead"}
    last = outer[-1].function if outer else frames[-1].function
    if outer and outer[-1].file.endswith("read_ahead.py"):
        return "read-ahead"
    return known.get(last, last)


def _rank(thread: ThreadStack) -> tuple[int, str]:
    order = ("training", "MainThread", "read-ahead")
    if thread.name in order:
        return order.index(thread.name), thread.name
    return (4 if thread.name.startswith("task ") else 3), thread.name


def waits_of(frames: Sequence[StackFrame], *, task: bool = False) -> str:
    """The wait, or work, of a thread, by its frames, the innermost first.

    Args:
        frames: its calls.
        task: whether it is a task of an event loop, which waits wherever it is not run.
    """
    for inner, outer in itertools.pairwise(frames):
        if inner.file.endswith("concurrent/futures/_base.py") and outer.file.endswith("on_servers/trainer.py"):
            return "push to PS" if outer.function.endswith(("_finish_first", "result")) else "pull from PS"
    for part, function, words in _WAITS:
        for frame in frames:
            last = frame.function.rpartition(".")[2]
            if part in frame.file and (not function or last == function):
                return words
    for file, function in _POLLS:
        if any(frame.file.endswith(file) and frame.function.rpartition(".")[2] == function for frame in frames):
            return IDLE
    if not frames:
        return "nothing of Python's"
    if task:
        return f"waiting in {frames[0].function}"
    if frames[0].file.endswith(("/threading.py", "/queue.py", "concurrent/futures/thread.py")):
        return "waiting for work"
    return f"running {frames[0].function}"


def _waits_of_process(threads: Sequence[ThreadStack], answer: dict[str, Any], role: Role) -> str:
    """The wait of the process as a whole: what its training thread does, or else its loop."""
    training = next((one for one in threads if one.name == "training"), None)
    spans = [(_text(one.get("name")), one.get("kind")) for one in _mappings(answer.get("spans"))]
    calls = sorted({name for name, kind in spans if kind == "rpc"})
    if training is not None:
        prefix = training.waits_for.partition(" PS")[0]
        near = [name for name in calls if name.startswith(prefix)] if " PS" in training.waits_for else []
        return ", ".join(near[:3]) or training.waits_for
    steps = [name for name, kind in spans if kind != "rpc"]
    if steps:
        return steps[-1]
    main = next((one for one in threads if one.name == "MainThread"), None)
    if role is Role.WORKER and main is not None and main.waits_for == IDLE:
        return "starting"
    busy = [one.waits_for for one in threads if not one.name.startswith("task ") and one.waits_for == "computing"]
    return busy[0] if busy else main.waits_for if main is not None else threads[0].waits_for if threads else "unknown"


def _frames(value: object) -> tuple[StackFrame, ...]:
    found = []
    for one in value[:MOST_FRAMES] if isinstance(value, list) else ():
        if isinstance(one, list) and len(one) == 3:
            line = one[1] if isinstance(one[1], int) and 0 <= one[1] < 1 << 31 else 0
            found.append(StackFrame(_text(one[0]), line, _text(one[2])))
    return tuple(found)


def _mappings(value: object) -> Iterable[dict[str, Any]]:
    return [one for one in value[:MOST_THREADS] if isinstance(one, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    """A text to show: bounded, on one line, and such as every program can write down."""
    shown = str(value)[:MOST_TEXT] if isinstance(value, str | int) else ""
    return "".join(c if c.isprintable() else "?" for c in shown).encode("utf-8", "replace").decode()
