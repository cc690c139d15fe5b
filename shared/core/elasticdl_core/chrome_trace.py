"""Recordings of a job's processes as one Chrome trace (what Perfetto and chrome://tracing read)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from elasticdl_core.ports.launcher import InspectedProcess, Role

MOST_EVENTS = 200_000
"""Of a trace; what is beyond is left out, and counted."""
_MOST_THREADS = 128
_LONGEST_US = 1 << 53
_TEXT = 100
_MOST_DETAILS = 16
_STAGES = ("leased", "read", "compute", "push", "reported", "returned")
"""What becomes of a task, by the first word of the span; the last push counts, of all else the first."""
_PUSHED, _OVER = _STAGES.index("push"), _STAGES.index("reported")
_ORDER = {Role.MASTER: 0, Role.PS: 1, Role.WORKER: 2}


def chrome_trace(found: Iterable[InspectedProcess], job_id: str) -> dict[str, Any]:
    """One trace out of what processes recorded; whatever they wrote, this ends, and raises nothing.

    Its times count from the first event: the processes' own clocks are brought together by what each says of its own.

    Args:
        found: what each process answered to ``Inquiry.RECORDED``.
        job_id: the job.
    """
    events: list[dict[str, Any]] = []
    lost = 0
    for pid, one in enumerate(found, start=1):
        answer = _parsed(one.answer)
        events.append(_named("process_name", pid, 0, one.id.owner))
        order = _ORDER.get(one.id.role, len(_ORDER)) * 10_000 + one.id.index
        events.append({"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "args": {"sort_index": order}})
        threads = answer.get("threads")
        names = threads if isinstance(threads, dict) else {}
        numbers: dict[str, int] = {}
        for span in _spans(answer, pid, numbers):
            if len(events) + len(span) <= MOST_EVENTS:
                events += span
            else:
                lost += 1
        for thread, number in numbers.items():
            events.append(_named("thread_name", pid, number, _text(names.get(thread)) or f"thread {number}"))
        missed = answer.get("lost")
        lost += missed if isinstance(missed, int) and 0 <= missed < _LONGEST_US else 0
    events += _flows(events, MOST_EVENTS - len(events))
    first = min((event["ts"] for event in events if "ts" in event), default=0)
    for event in events:
        if "ts" in event:
            event["ts"] -= first
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"job": job_id, "lost_spans": lost}}


def _spans(answer: Mapping[str, Any], pid: int, numbers: dict[str, int]) -> Iterator[list[dict[str, Any]]]:
    """The events of each span: one, or its begin and its end."""
    spans, clock = answer.get("spans"), answer.get("clock")
    shift = clock if _moment(clock) else 0
    for number, one in enumerate(spans if isinstance(spans, list) else ()):
        if not (isinstance(one, list) and len(one) == 7):
            continue
        name, kind, alone, began, lasted, thread, details = one
        if not (_moment(began) and _moment(lasted) and isinstance(thread, int)):
            continue
        if str(thread) not in numbers and len(numbers) >= _MOST_THREADS:
            continue
        tid = numbers.setdefault(str(thread), len(numbers) + 1)
        event = {"name": _text(name), "cat": _text(kind), "pid": pid, "tid": tid, "ts": shift + began}
        args = _details(details)
        if args:
            event["args"] = args
        if alone is True:
            yield [{**event, "ph": "X", "dur": lasted}]
        else:  # they overlap on an event loop: each is a track of its own
            identity = f"{pid}.{number}"
            begin, end = {**event, "ph": "b", "id": identity}, {**event, "ph": "e", "id": identity}
            yield [begin, {**end, "ts": shift + began + lasted}]


def _flows(events: list[dict[str, Any]], room: int) -> list[dict[str, Any]]:
    """Arrows from where a task was leased, over the threads that read, computed and pushed it, to its report.

    Viewers bind an arrow to the span of a thread that is open at its time: a span without a length, or one that
    overlaps others, has none.
    """
    told = [
        one for one in events if one["ph"] == "X" and one["dur"] and isinstance(one.get("args", {}).get("task"), str)
    ]
    chains: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    ended: list[list[tuple[int, dict[str, Any]]]] = []
    for event in sorted(told, key=lambda one: one["ts"]):
        word = event["name"].partition(":")[0]
        if word not in _STAGES:
            continue
        stage, task = _STAGES.index(word), event["args"]["task"]
        chain = chains.setdefault(task, [])
        last = chain[-1][0] if chain else -1
        if stage == 0 and chain:  # it was leased anew
            ended.append(chain)
            chain = chains[task] = []
        elif stage == last == _PUSHED:
            chain.pop()
        elif stage <= last or last >= _OVER:
            continue
        chain.append((stage, event))
    flows: list[dict[str, Any]] = []
    for number, chain in enumerate(one for one in (*ended, *chains.values()) if len(one) > 1):
        if len(flows) + len(chain) > room:
            break
        for place, (_, event) in enumerate(chain):
            at = {name: event[name] for name in ("pid", "tid", "ts")}
            flow = {"name": "task", "cat": "task", "id": str(number), **at, "args": {"task": event["args"]["task"]}}
            if place == 0:
                flows.append({**flow, "ph": "s"})
            elif place < len(chain) - 1:
                flows.append({**flow, "ph": "t"})
            else:
                flows.append({**flow, "ph": "f", "bp": "e"})
    return flows


def _details(given: object) -> dict[str, str | int | float]:
    """The details beside a span: a few texts and numbers."""
    told: dict[str, str | int | float] = {}
    for name, value in list(given.items())[:_MOST_DETAILS] if isinstance(given, dict) else ():
        if isinstance(value, str):
            told[_text(name)] = _text(value)
        elif isinstance(value, int | float) and abs(value) < _LONGEST_US:  # no NaN, which JSON does not have
            told[_text(name)] = value
    return told


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _moment(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LONGEST_US


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _text(value: object) -> str:
    shown = value[:_TEXT] if isinstance(value, str) else ""
    return "".join(c if c.isprintable() else "?" for c in shown)
