"""Spans: what is recorded, with what the thread works on, and that nothing is kept when nobody records."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from elasticdl_runtime.telemetry import spans, work

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def nothing_recorded() -> Iterator[None]:
    spans.take_recorded()
    yield
    spans.take_recorded()
    work.end()


def recorded() -> list[tuple[str, dict]]:
    return [(name, details) for name, _, _, _, _, _, details in spans.take_recorded()["spans"]]


def test_a_span_tells_what_its_thread_works_on_and_not_the_proof_of_the_lease() -> None:
    spans.record(30.0)

    def train() -> None:
        work.begin("t:0:1:0:16", "1.24.00ff00ff00ff00ff")
        with spans.traced("compute", "step", version=3):
            spans.mark("leased", "task", task="other")
        work.end()
        with spans.span("push", "step"):
            pass

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(60)
    with spans.traced("read", "data"):
        pass

    own = {"task": "t:0:1:0:16", "lease": "1.24"}
    assert recorded() == [
        ("leased", {**own, "task": "other"}),
        ("compute", {**own, "version": 3}),
        ("push", {}),
        ("read", {}),
    ]


def test_a_span_that_is_open_at_the_end_tells_what_its_thread_works_on() -> None:
    spans.record(30.0)
    computes, over = threading.Event(), threading.Event()

    def train() -> None:
        work.begin("t:0:1:0:16", "1.24.00ff00ff00ff00ff")
        with spans.span("compute", "step", details={"version": 3}):
            computes.set()
            over.wait(60)

    thread = threading.Thread(target=train)
    thread.start()
    assert computes.wait(60)
    told = recorded()
    over.set()
    thread.join(60)
    assert told == [("compute", {"task": "t:0:1:0:16", "lease": "1.24", "version": 3})]


def test_what_only_recordings_show_is_not_even_a_span_without_one() -> None:
    with spans.traced("compute", "step"):
        assert spans.open_spans() == []
    spans.mark("leased", "task")
    spans.record(30.0)
    with spans.traced("compute", "step"):
        assert [one.name for one in spans.open_spans()] == ["compute"]
    assert [name for name, _ in recorded()] == ["compute"]
    assert spans.traced("a", "step") is spans.traced("b", "step")


def test_a_span_inside_of_another_is_inside_of_it_in_whole_microseconds() -> None:
    """What only overlaps is left out by who shows a trace."""
    spans.record(30.0)
    for _ in range(2000):
        with spans.span("outer", "step"), spans.span("inner", "step"):
            pass
    told = [(begin, begin + lasted) for _, _, _, begin, lasted, _, _ in spans.take_recorded()["spans"]]
    assert len(told) == 4000
    for inner, outer in zip(told[::2], told[1::2], strict=True):
        assert outer[0] <= inner[0] <= inner[1] <= outer[1]
