"""What no user can correct is not told to the user as an error of the model module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticdl_core.errors import (
    ElasticDLError,
    FencedError,
    InvalidInputError,
    UnauthenticatedError,
    UnavailableError,
    UserCodeError,
)
from elasticdl_core.shard import Shard
from elasticdl_core.task import Task, TaskId, TaskType
from elasticdl_worker.loop import TaskLoop
from elasticdl_worker.master.client import LeasedTask
from elasticdl_worker.user_code import guarded

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kind", [UnavailableError, FencedError, UnauthenticatedError])
def test_the_guard_of_user_code_passes_on_what_is_no_users_fault(kind: type[ElasticDLError]) -> None:
    raised = kind("PS 0 does not answer", fix="wait")
    with pytest.raises(kind) as caught, guarded("the worker", (Path("/zoo"),)):
        raise raised
    assert caught.value is raised


def test_the_guard_of_user_code_keeps_what_an_error_of_ours_says_to_do() -> None:
    raised = InvalidInputError("a model in torch needs torch", fix="pip install 'elasticdl[torch]'")
    with pytest.raises(UserCodeError) as caught, guarded("the worker", (Path("/zoo"),), fix="look"):
        raise raised
    assert caught.value.message == "the worker raised InvalidInputError: a model in torch needs torch"
    assert caught.value.fix == "pip install 'elasticdl[torch]'"


class Failing:
    """An engine and a session in one: each task fails, and the failure is heard."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.failed: list[BaseException] = []

    def fail(self, lease: LeasedTask | None, error: BaseException) -> None:
        self.failed.append(error)

    def drop_account(self, lease: LeasedTask) -> None:
        pass


def loop_of(error: Exception) -> tuple[Failing, TaskLoop[Any], LeasedTask]:
    shard = Shard("a", 0, 4)
    lease = LeasedTask(Task(TaskId(TaskType.TRAINING, 0, 0, 0, 4), shard, -1, ""), "1-1-0000000000000001")
    session: Any = Failing(error)
    traces: Any = None
    return session, TaskLoop(session, session, traces), lease


def test_what_to_do_is_no_part_of_what_is_wrong() -> None:
    error = UserCodeError("the metric gap is wrong", fix="correct it", traceback="line 3")
    _, loop, lease = loop_of(error)
    with pytest.raises(UserCodeError) as caught:
        for _ in range(3):
            loop._fail(lease, error)
    assert caught.value.message == "3 tasks failed one after the other; the last one: the metric gap is wrong"
    assert (caught.value.fix, caught.value.traceback) == ("correct it", "line 3")


@pytest.mark.parametrize(
    ("error", "expected"),
    [(UnavailableError("away"), UnavailableError), (UserCodeError("wrong"), UserCodeError)],
)
def test_a_worker_that_cannot_go_on_says_whose_fault_it_is(error: Exception, expected: type[Exception]) -> None:
    session, loop, lease = loop_of(error)
    with pytest.raises(expected):
        for _ in range(3):
            loop._fail(lease, error)
    assert session.failed == [error] * 3
