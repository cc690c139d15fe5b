"""Whether a trace keeps the rules of the Trace Event Format, as Perfetto reads it."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

_METADATA = {"process_name": ("name", str), "thread_name": ("name", str), "process_sort_index": ("sort_index", int)}


def faults_of(trace: Mapping[str, Any]) -> list[str]:
    """What is wrong with a trace, in words.

    Complete events (``X``) of a thread lie beside or inside of each other: what only overlaps is not shown.
    Each asynchronous event that begins (``b``) ends (``e``), in the same process, later or at once. Each flow begins
    once (``s``) and ends once (``f``), with steps (``t``) between them, never going back in time, and each of these
    lies in a complete event of its thread: a viewer draws no arrow to what it cannot bind.
    """
    json.dumps(trace, allow_nan=False)
    events = trace["traceEvents"]
    wrong = [*_unknown_top(trace), *(fault for event in events for fault in _faults(event))]
    return wrong or [*_unpaired(events), *_overlaps(events), *_broken_flows(events), *_unnamed(events)]


def _unknown_top(trace: Mapping[str, Any]) -> Iterator[str]:
    if trace.get("displayTimeUnit") not in ("ms", "ns"):
        yield f"displayTimeUnit is {trace.get('displayTimeUnit')!r}"


def _faults(event: Mapping[str, Any]) -> Iterator[str]:
    for name, kind in (("name", str), ("ph", str), ("pid", int), ("tid", int)):
        if type(event.get(name)) is not kind:
            yield f"{name} of {event}"
    match event.get("ph"):
        case "M":
            name, kind = _METADATA.get(event["name"], ("", type(None)))
            if type(event.get("args", {}).get(name)) is not kind:
                yield f"metadata {event}"
        case "X" | "b" | "e" | "s" | "t" | "f" as phase:
            times = [event.get("ts"), *([event.get("dur")] if phase == "X" else [])]
            if not all(type(one) in (int, float) and one >= 0 for one in times):
                yield f"times of {event}"
            if not isinstance(event.get("cat"), str) or not event["cat"]:
                yield f"category of {event}"
            if not isinstance(event.get("args", {}), dict):
                yield f"arguments of {event}"
            if phase != "X" and not isinstance(event.get("id"), str):
                yield f"id of {event}"
            if phase == "f" and event.get("bp") != "e":
                yield f"{event} is bound to the span that follows"
        case other:
            yield f"phase {other!r}"


def _unpaired(events: list[dict[str, Any]]) -> Iterator[str]:
    open_: dict[tuple[Any, ...], float] = {}
    for event in events:
        key = tuple(event.get(name) for name in ("cat", "id", "name", "pid", "tid"))
        if event["ph"] == "b":
            if key in open_:
                yield f"{key} begins twice"
            open_[key] = event["ts"]
        elif event["ph"] == "e":
            began = open_.pop(key, None)
            if began is None or event["ts"] < began:
                yield f"{key} ends before it begins"
    yield from (f"{key} does not end" for key in open_)


def _overlaps(events: list[dict[str, Any]]) -> Iterator[str]:
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    for thread, found in threads.items():
        around: list[float] = []  # where those that a span lies in end
        for event in sorted(found, key=lambda one: (one["ts"], -one["dur"])):
            end = event["ts"] + event["dur"]
            while around and around[-1] <= event["ts"]:
                around.pop()
            if around and end > around[-1]:
                yield f"{event['name']} at {event['ts']} for {event['dur']} of {thread} sticks out of what it is in"
            around.append(end)


def _broken_flows(events: list[dict[str, Any]]) -> Iterator[str]:
    threads, flows = defaultdict(list), defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
        elif event["ph"] in "stf":
            flows[event["cat"], event["name"], event["id"]].append(event)
    for key, found in flows.items():
        order = "".join(event["ph"] for event in found)
        if order != f"s{'t' * (len(found) - 2)}f":
            yield f"the flow {key} is {order}"
        if any(later["ts"] < earlier["ts"] for earlier, later in itertools.pairwise(found)):
            yield f"the flow {key} goes back in time"
        for event in found:
            around = threads[event["pid"], event["tid"]]
            if not any(one["ts"] <= event["ts"] < one["ts"] + one["dur"] for one in around):
                yield f"{event} lies in no span"


def _unnamed(events: list[dict[str, Any]]) -> Iterator[str]:
    named = {(one["name"], one["pid"], one["tid"]) for one in events if one["ph"] == "M"}
    for pid, tid in sorted({(one["pid"], one["tid"]) for one in events if one["ph"] != "M"}):
        if ("process_name", pid, 0) not in named or ("thread_name", pid, tid) not in named:
            yield f"process {pid}, thread {tid} has no name"
