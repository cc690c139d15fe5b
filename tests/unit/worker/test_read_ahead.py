"""The thread that reads ahead of training."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from elasticdl_worker.trainers.on_servers.read_ahead import ReadAhead

pytestmark = pytest.mark.unit


def test_a_reader_that_does_not_come_back_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was to leave waited for it for ever."""
    monkeypatch.setattr("elasticdl_worker.trainers.on_servers.read_ahead._PATIENCE_S", 0.0)
    asked, comes_back = threading.Event(), threading.Event()

    def next_task() -> None:
        asked.set()
        comes_back.wait(60.0)

    source: Any = None
    reading = ReadAhead(next_task, lambda lease: False, lambda: source, None, 1)
    reading.start()
    assert asked.wait(60.0)
    assert reading.stop() == []
    comes_back.set()
    monkeypatch.setattr("elasticdl_worker.trainers.on_servers.read_ahead._PATIENCE_S", 60.0)
    assert reading.stop() == []
    assert not reading._thread.is_alive()
