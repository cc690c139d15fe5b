"""Recordings of processes become one trace, whatever the processes wrote."""

from __future__ import annotations

import json

import pytest

from elasticdl_core import chrome_trace as module
from elasticdl_core.chrome_trace import chrome_trace
from elasticdl_core.ports.launcher import InspectedProcess, ProcessId, Role
from tests.fakes.trace_events import faults_of

pytestmark = pytest.mark.unit


def process(index: int, answer: bytes) -> InspectedProcess:
    return InspectedProcess(ProcessId("a-1", Role.WORKER, index, 0), "running", answer)


def test_processes_and_threads_have_names_and_spans_their_times() -> None:
    told = {"task": "t:0:1:0:16", "version": 3}
    spans = [["compute", "step", True, 100, 50, 77, told], ["pull from PS 1", "rpc", False, 90, 5, 78, {}]]
    answer = json.dumps({"spans": spans, "threads": {"77": "training"}, "lost": 3}).encode()
    trace = chrome_trace([process(0, answer), process(1, b"")], "a-1")
    assert faults_of(trace) == []
    assert trace["otherData"] == {"job": "a-1", "lost_spans": 3}
    common = {"pid": 1, "cat": "rpc", "name": "pull from PS 1", "tid": 2, "id": "1.1"}
    assert trace["traceEvents"] == [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "worker-0.0"}},
        {"name": "process_sort_index", "ph": "M", "pid": 1, "tid": 0, "args": {"sort_index": 20_000}},
        {"name": "compute", "cat": "step", "pid": 1, "tid": 1, "ts": 10, "args": told, "ph": "X", "dur": 50},
        {**common, "ts": 0, "ph": "b"},
        {**common, "ts": 5, "ph": "e"},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "training"}},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": 2, "args": {"name": "thread 2"}},
        {"name": "process_name", "ph": "M", "pid": 2, "tid": 0, "args": {"name": "worker-1.0"}},
        {"name": "process_sort_index", "ph": "M", "pid": 2, "tid": 0, "args": {"sort_index": 20_001}},
    ]


def test_clocks_of_processes_on_different_machines_are_brought_together() -> None:
    begun = 1_700_000_000_000_000
    answers = [
        {"spans": [["a", "step", True, 5_000, 10, 1, {}]], "clock": begun},
        {"spans": [["b", "step", True, 900_000, 10, 1, {}]], "clock": begun - 894_000},
    ]
    trace = chrome_trace([process(i, json.dumps(one).encode()) for i, one in enumerate(answers)], "a-1")
    assert [(one["name"], one["ts"]) for one in trace["traceEvents"] if one["ph"] == "X"] == [("a", 0), ("b", 1_000)]


def test_what_is_told_beside_a_span_is_bounded_and_can_be_written_as_json() -> None:
    told = '{"nan": NaN, "far": Infinity, "list": [1], "text": "%s", "number": 1.5, "line\\n": "x"}' % ("y" * 500)
    answer = f'{{"spans": [["a", "step", true, 1, 2, 1, {told}], ["b", "step", true, 1, 2, 1, 7]]}}'.encode()
    trace = chrome_trace([process(0, answer)], "a-1")
    assert [one.get("args") for one in trace["traceEvents"] if one["ph"] == "X"] == [
        {"text": "y" * 100, "number": 1.5, "line?": "x"},
        None,
    ]
    assert faults_of(trace) == []


def test_what_is_too_much_is_left_out_as_a_whole_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_EVENTS", 5)
    spans = [["pull", "rpc", False, number, 5, 1, {}] for number in range(4)]
    trace = chrome_trace([process(0, json.dumps({"spans": spans}).encode())], "a-1")
    assert faults_of(trace) == []
    assert [one["ph"] for one in trace["traceEvents"]] == ["M", "M", "b", "e", "M"]
    assert trace["otherData"]["lost_spans"] == 3


def span(name: str, began: int, lasted: int, thread: int = 1, alone: bool = True, **told: object) -> list:
    return [name, "step", alone, began, lasted, thread, told]


def flows(trace: dict) -> list[tuple[str, str, int, int]]:
    return [
        (one["id"], one["ph"], one["pid"], one["ts"]) for one in trace["traceEvents"] if one["ph"] in ("s", "t", "f")
    ]


def answer_of(*spans: list) -> bytes:
    return json.dumps({"spans": spans}).encode()


def test_arrows_lead_from_a_tasks_lease_over_read_and_push_to_its_report() -> None:
    own = {"task": "t:0:1:0:16"}
    master = answer_of(
        span("leased", 0, 2, **own), span("reported: DONE", 90, 2, **own), span("leased", 92, 1, task="t:0:2:16:32")
    )
    worker = answer_of(
        span("read", 10, 5, 7, **own),
        span("read", 15, 5, 7, **own),
        span("compute", 17, 9, **own),
        span("push", 30, 5, **own),
        span("compute", 40, 9, **own),
        span("push", 50, 5, **own),
        span("Pull at PS 0", 51, 2, 9, alone=False, **own),
    )
    trace = chrome_trace([process(0, master), process(1, worker)], "a-1")
    assert faults_of(trace) == []
    assert flows(trace) == [
        ("0", "s", 1, 0),
        ("0", "t", 2, 10),
        ("0", "t", 2, 17),
        ("0", "t", 2, 50),
        ("0", "f", 1, 90),
    ]
    assert {one["args"]["task"] for one in trace["traceEvents"] if one["ph"] == "s"} == {"t:0:1:0:16"}


def test_a_task_that_is_leased_anew_has_arrows_of_its_own() -> None:
    own = {"task": "t:0:1:0:16"}
    spans = [
        span("leased", 0, 1, **own),
        span("read", 5, 2, 2, **own),
        span("returned: DONE", 9, 1, **own),
        span("leased", 20, 1, **own),
        span("read", 25, 2, 2, **own),
    ]
    trace = chrome_trace([process(0, answer_of(*spans))], "a-1")
    assert faults_of(trace) == []
    assert flows(trace) == [
        ("0", "s", 1, 0),
        ("0", "t", 1, 5),
        ("0", "f", 1, 9),
        ("1", "s", 1, 20),
        ("1", "f", 1, 25),
    ]


def test_what_has_no_length_or_overlaps_gets_no_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"task": "t:0:1:0:16"}
    spans = [span("leased", 0, 0, **own), span("read", 5, 2, 2, False, **own), span("push", 9, 1, **own)]
    assert flows(chrome_trace([process(0, answer_of(*spans))], "a-1")) == []
    two = [span("read", 5, 2, 2, **own), span("push", 9, 1, **own)]
    assert len(flows(chrome_trace([process(0, answer_of(*two))], "a-1"))) == 2
    monkeypatch.setattr(module, "MOST_EVENTS", 6)
    trace = chrome_trace([process(0, answer_of(*two))], "a-1")
    assert (flows(trace), faults_of(trace)) == ([], [])


def test_the_rules_of_the_format_are_seen_to_be_broken() -> None:
    """By the check that other tests use."""
    named = [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "a"}},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "b"}},
    ]
    one = {"name": "x", "cat": "step", "pid": 1, "tid": 1, "ts": 5}

    def faults(*events: dict, unit: str = "ms") -> list[str]:
        return faults_of({"traceEvents": [*named, *events], "displayTimeUnit": unit})

    assert (
        faults({**one, "ph": "X", "dur": 5}, {**one, "ph": "X", "dur": 2}, {**one, "ph": "X", "ts": 10, "dur": 2})
        == []
    )
    assert faults({**one, "ph": "X", "dur": 5}, {**one, "ph": "X", "ts": 7, "dur": 9}), "one sticks out of the other"
    assert faults({**one, "ph": "X"}) and faults({**one, "ph": "X", "dur": -1}), "no time"
    assert faults({**one, "ph": "b", "id": "1"}), "it does not end"
    assert faults({**one, "ph": "e", "id": "1"}), "it does not begin"
    assert faults({**one, "ph": "X", "dur": 1, "tid": 2}), "a thread without a name"
    flow = [{**one, "ph": "s", "id": "1"}, {**one, "ph": "f", "id": "1", "bp": "e", "ts": 6}]
    around = {**one, "ph": "X", "dur": 2}
    assert faults(around, *flow) == []
    assert faults(around, flow[0]) and faults(around, flow[1]) and faults(around, *reversed(flow)), "half of a flow"
    assert faults(*flow), "no span to bind to"
    assert faults(around, flow[0], {**flow[1], "ts": 7}), "after the span"
    assert faults(around, flow[0], {**flow[1], "bp": "x"}) and faults(around, flow[0], {**flow[1], "ts": 4})
    assert faults({**one, "ph": "Q"}) and faults(unit="s")


@pytest.mark.parametrize(
    "answer",
    [
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"spans": 7, "threads": [], "lost": "x"}',
        b'{"spans": [7, [], ["x", 1, true, -1, 5, 1, {}], ["x", "y", true, 1e99, 5, 1, {}]], "lost": -5}',
        b'{"spans": [["x", "y", true, 1, 5, {}, {}], ["x", "y", true, 1, null, 1, {}]]}',
    ],
)
def test_what_is_no_recording_gives_no_spans(answer: bytes) -> None:
    trace = chrome_trace([process(0, answer)], "a-1")
    assert [event["name"] for event in trace["traceEvents"]] == ["process_name", "process_sort_index"]
    assert trace["otherData"]["lost_spans"] == 0
