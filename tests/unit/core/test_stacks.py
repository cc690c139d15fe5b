"""What is read out of stacks: of processes that answered, of those that could not, and of those that lie."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticdl_core.ports.launcher import InspectedProcess, ProcessId, Role, SystemThread
from elasticdl_core.stacks import MOST_FRAMES, MOST_TEXT, MOST_THREADS, StackFrame, read_stacks, waits_of

pytestmark = pytest.mark.unit
WORKER = ProcessId("a-1", Role.WORKER, 0, 0)
LOCK = ["/usr/lib/python3.11/threading.py", 327, "Condition.wait"]
FUTURE = ["/usr/lib/python3.11/concurrent/futures/_base.py", 451, "Future.result"]
SELECT = ["/usr/lib/python3.11/selectors.py", 468, "EpollSelector.select"]
TRAINER = "/x/elasticdl_worker/trainers/on_servers/trainer.py"
SESSION = "/x/elasticdl_worker/master/session.py"
LOOP = "/x/elasticdl_worker/loop.py"


def answered(frames: list[list[Any]], *, spans: list[dict[str, Any]] | None = None) -> InspectedProcess:
    threads = [{"name": "training", "thread": 1, "frames": frames}, {"name": "MainThread", "thread": 2, "frames": []}]
    answer = {"answers": 1, "threads": threads, "tasks": [], "spans": spans or [], "loop": 2}
    return InspectedProcess(WORKER, "sleeping", json.dumps(answer).encode())


@pytest.mark.parametrize(
    ("frames", "waits"),
    [
        ([LOCK, ["/usr/lib/python3.11/queue.py", 171, "Queue.get"], ["read_ahead.py", 1, "x"]], "waiting for work"),
        (
            [LOCK, ["/x/elasticdl_worker/trainers/on_servers/read_ahead.py", 1, "ReadAhead.take"], [LOOP, 1, "run"]],
            "reading data",
        ),
        (
            [LOCK, FUTURE, [SESSION, 1, "Session.call"], [SESSION, 1, "Session.lease_task"]],
            "waiting for a lease",
        ),
        ([LOCK, FUTURE, [TRAINER, 1, "Trainer._finish_first"], [TRAINER, 1, "Trainer.train"]], "push to PS"),
        ([LOCK, FUTURE, ["/x/session.py", 1, "call"], [TRAINER, 1, "Trainer._pull"]], "pull from PS"),
        ([LOCK, FUTURE, [TRAINER, 1, "Trainer.train"], [LOOP, 1, "run"]], "pull from PS"),
        ([["/y/tensorflow/x.py", 1, "execute"], [TRAINER, 1, "Trainer._gradients"], [LOOP, 1, "run"]], "computing"),
        ([["/x/elasticdl_worker/collectives/waiting.py", 1, "Waiter.wait"], [LOOP, 1, "run"]], "allreduce"),
        ([SELECT, ["/usr/lib/python3.11/asyncio/base_events.py", 1, "BaseEventLoop._run_once"]], "idle event loop"),
        ([["/zoo/model.py", 3, "feed"], ["/x/other.py", 1, "y"]], "running feed"),
    ],
)
def test_threads_are_told_apart_by_what_they_wait_for(frames: list[list[Any]], waits: str) -> None:
    assert waits_of([StackFrame(*frame) for frame in frames]) == waits


def test_a_worker_waits_for_the_server_that_has_not_answered() -> None:
    frames = [LOCK, FUTURE, [TRAINER, 1, "Trainer._pull"]]
    calls = [{"name": "pull from PS 1", "kind": "rpc"}, {"name": "Heartbeat at the master", "kind": "rpc"}]
    assert read_stacks(answered(frames, spans=calls)).waits_for == "pull from PS 1"
    assert read_stacks(answered(frames)).waits_for == "pull from PS"


def test_a_dump_is_read_and_its_threads_get_names() -> None:
    dump = b"""Thread 0x00007f0a (most recent call first):
  File "/x/elasticdl_worker/trainers/on_servers/trainer.py", line 7 in _gradients
  File "/x/elasticdl_worker/main.py", line 8 in _train
  File "/usr/lib/python3.11/threading.py", line 982 in run
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f0b (most recent call first):
  File "/zoo/odd name.py", line 3 in <lambda>
  File "<frozen runpy>", line ??? in _run_code
"""
    stacks = read_stacks(InspectedProcess(WORKER, "running", b"", dump))
    assert [(one.name, one.waits_for) for one in stacks.threads] == [
        ("training", "computing"),
        ("MainThread", "running <lambda>"),
    ]
    assert stacks.threads[1].frames[0] == StackFrame("/zoo/odd name.py", 3, "<lambda>")
    assert stacks.threads[1].frames[1].line == 0
    assert stacks.waits_for == "computing"


def test_of_what_does_not_answer_there_is_what_the_system_says() -> None:
    threads = (SystemThread("python", "stopped", "do_signal_stop"),)
    stacks = read_stacks(InspectedProcess(WORKER, "stopped", threads=threads))
    assert (stacks.waits_for, stacks.threads[0].waits_for) == ("stopped (SIGSTOP)", "stopped, in do_signal_stop")
    assert read_stacks(InspectedProcess(WORKER, "pending")).waits_for == "waiting for a slot"
    assert read_stacks(InspectedProcess(WORKER, "sleeping")).error


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        b'{"threads": 7, "tasks": {}, "spans": "x"}',
        b'{"threads": [7, null, {"frames": [[1], ["a", -5, {}], {}]}], "tasks": [{"frames": 3}]}',
        json.dumps(
            {"threads": [{"name": "\x1b[2J\ud800" * 99, "frames": [["f" * 400, 1, "x"]] * 99}] * 200}
        ).encode(),
    ],
    ids=range(7),
)
def test_whatever_a_process_writes_is_bounded_and_can_be_shown(answer: bytes) -> None:
    stacks = read_stacks(InspectedProcess(WORKER, "running", answer, dump=answer))
    assert len(stacks.threads) <= MOST_THREADS
    for thread in stacks.threads:
        assert len(thread.frames) <= MOST_FRAMES
        for text in (thread.name, *(part for frame in thread.frames for part in (frame.file, frame.function))):
            assert len(text) <= MOST_TEXT and text.isprintable()
            text.encode()
