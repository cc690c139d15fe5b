"""A newcomer's state, and the sums that it keeps until the state has come."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest

from elasticdl_worker.collectives import CollectiveError
from elasticdl_worker.group.replica import HOST_MEMORY, Flat, ReplicaState
from elasticdl_worker.group.state_files import pack_state
from elasticdl_worker.group.streams import IncomingState

pytestmark = pytest.mark.unit

PLENTY_S = 60.0
ROOM = 4
"""Sums of ``Parameters`` that fit into what a newcomer may keep."""


class Source:
    """The other end: its state comes when the test lets it."""

    def __init__(self, state: ReplicaState | None) -> None:
        self.go = threading.Event()
        self._state = state

    def receive(self, source: int, *, timeout_s: float) -> tuple[bytes, list[Any]]:
        assert self.go.wait(timeout_s)
        if self._state is None:
            raise CollectiveError("rank 0 is gone")
        note, buffers = pack_state(self._state)
        return json.dumps(note).encode(), [np.array(one) for one in buffers]


class Parameters:
    """A model of so many numbers that few sums of them may be kept; it notes what happens to it."""

    lengths = (128 << 20 >> 2,)
    memory = HOST_MEMORY

    def __init__(self) -> None:
        self.story: list[Any] = []

    def load(self, state: ReplicaState) -> None:
        self.story.append(("load", state.version))

    def apply(self, sums: list[Flat], rows: int, epoch: int) -> None:
        self.story.append((float(sums[0][0]), rows, epoch))


def newcomer(state: ReplicaState | None) -> tuple[IncomingState, Source, Parameters]:
    source, replica = Source(state), Parameters()
    return IncomingState(source, 0, replica, PLENTY_S), source, replica  # type: ignore[arg-type]


def state() -> ReplicaState:
    return ReplicaState(7, {"w": np.arange(3, dtype=np.float32)}, {"w": [np.zeros(3, np.float32)]})


def few(value: float) -> list[Flat]:
    return [np.array([value], np.float32)]


def test_sums_are_kept_as_they_were_and_applied_in_order_a_few_at_a_time() -> None:
    incoming, source, replica = newcomer(state())
    reused = few(0.0)
    for number in range(3):
        reused[0][0] = number  # the sum's memory is written again by the next step
        incoming.keep(reused, rows=8, epoch=number)
        assert not incoming.take_some()
    assert replica.story == []
    source.go.set()
    incoming.finish()
    assert not incoming.take_some()
    assert replica.story == [("load", 7)]
    assert not incoming.take_some()
    assert replica.story[1:] == [(0.0, 8, 0), (1.0, 8, 1)]
    assert incoming.take_some()
    assert replica.story[3:] == [(2.0, 8, 2)]


def test_steps_without_rows_change_nothing() -> None:
    incoming, source, replica = newcomer(state())
    incoming.keep(few(1.0), rows=0, epoch=0)
    incoming.keep(few(2.0), rows=4, epoch=0)
    source.go.set()
    incoming.take_all()
    assert replica.story == [("load", 7), (2.0, 4, 0)]


def test_a_newcomer_that_has_kept_as_much_as_it_may_waits_for_its_state() -> None:
    incoming, source, replica = newcomer(state())
    for _ in range(ROOM - 1):
        incoming.keep((), rows=0, epoch=0)
        assert not incoming.take_some()
    incoming.keep((), rows=0, epoch=0)
    coming = threading.Timer(0.05, source.go.set)
    coming.start()
    incoming.take_some()
    coming.join()
    assert replica.story == [("load", 7)]


def test_a_source_that_dies_ends_the_newcomers_wait() -> None:
    incoming, source, replica = newcomer(None)
    incoming.keep(few(1.0), rows=4, epoch=0)
    source.go.set()
    with pytest.raises(CollectiveError, match="rank 0 is gone"):
        incoming.take_all()
    assert replica.story == []
