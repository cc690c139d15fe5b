"""The pull that the reading thread has ready goes along with the next push."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job import JobSpec
from elasticdl_core.model import InitializerSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_core.shard import Shard
from elasticdl_core.task import Task, TaskId, TaskType
from elasticdl_worker.master.client import LeasedTask
from elasticdl_worker.parameters.types import Origin
from elasticdl_worker.reporting.progress import WorkerProgress
from elasticdl_worker.trainers.framework import Lookups, PreparedJob, StepResult
from elasticdl_worker.trainers.minibatch import Minibatch
from elasticdl_worker.trainers.on_servers.read_ahead import TrainingStep
from elasticdl_worker.trainers.on_servers.trainer import Trainer
from tests.fakes.parameters import MemoryParameters

pytestmark = pytest.mark.unit
SPEC = {"model_def": "m.forward", "model_zoo": "/zoo", "training_data": "/data"}
LEASE = LeasedTask(Task(TaskId(TaskType.TRAINING, 0, 0, 0, 4), Shard("a", 0, 4), -1, ""), "1-1-0000000000000001")


class AtOnce:
    """Runs coroutines when they are given."""

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(coroutine)

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(asyncio.run(coroutine))
        return future


def make() -> tuple[Any, MemoryParameters, Callable[[], TrainingStep], StepResult]:
    parameters, anything = MemoryParameters(), Any
    table = TableSpec("t", 2, InitializerSpec("zeros"))
    optimizer = OptimizerSpec("sgd", {"learning_rate": 1.0})
    asyncio.run(parameters.ensure_model({"w": np.zeros(1)}, [], [table], optimizer, UpdateMode()))
    spec = JobSpec.from_mapping(SPEC)
    job = PreparedJob(anything, anything, [], [table])
    trainer: Any = Trainer(spec, anything, job, parameters, AtOnce(), WorkerProgress())  # type: ignore[arg-type]
    result = StepResult((0.0,), {}, {"t": np.full((2, 2), -1, np.float32)}, {}, Origin({}, {}))

    def step() -> TrainingStep:
        batch = Minibatch(np.zeros(2), np.zeros(2), 2, LEASE.task.shard)
        return TrainingStep(LEASE, (batch,), Lookups({"t": np.array([3, 4])}, {}))

    return trainer, parameters, step, result


def test_a_pull_that_is_ready_goes_along_and_has_the_push() -> None:
    trainer, parameters, step, result = make()
    first, second = step(), step()
    pushes: list[Any] = []

    def permit() -> bool:
        pushes.append(trainer._send(first, result, 0))
        return True

    assert trainer.prefetch(second, permit)
    assert (parameters.together, len(parameters.pulls), len(parameters.pushes)) == (1, 1, 1)
    assert pushes[0].outcome.result().accepted
    np.testing.assert_array_equal(second.pulled.result().rows["t"], np.ones((2, 2)))
    trainer._send(second, result, 1)
    assert (parameters.together, len(parameters.pushes)) == (1, 2)


def test_a_pull_that_is_refused_is_the_failure_of_its_own_step() -> None:
    trainer, parameters, step, result = make()
    first, second = step(), step()
    trainer.announce(second, lambda: True)
    parameters.refuse_pull = InvalidInputError("the id 99 is outside")
    trainer._pushes.append(trainer._send(first, result, 0))
    trainer.wait_for_pushes()
    assert trainer.accounts.close(LEASE.token).applied == 2
    with pytest.raises(InvalidInputError, match="99"):
        second.pulled.result()


def test_without_a_push_the_pull_goes_alone() -> None:
    trainer, parameters, step, result = make()
    first, second = step(), step()
    assert trainer.prefetch(first, lambda: True)
    trainer._send(first, result, 0)
    assert first.pulled.result().version == 0
    assert not trainer.prefetch(second, lambda: False)
    assert second.pulled is None
    trainer._send(first, result, 0)
    assert (parameters.together, len(parameters.pulls), len(parameters.pushes)) == (0, 1, 2)


def test_in_order_the_announced_step_goes_along_with_the_push_before_it() -> None:
    trainer, parameters, step, result = make()
    first, left_out, second, third = step(), step(), step(), step()
    for one in (first, left_out, second, third):
        assert trainer.announce(one, lambda: False), "nothing is pulled, so there is nothing to wait for"
    trainer._drop_announced(first)
    trainer._drop_announced(second)
    assert trainer._send(second, result, 0).following is third
    assert (parameters.together, len(parameters.pulls), left_out.pulled) == (1, 1, None)
    np.testing.assert_array_equal(third.pulled.result().rows["t"], np.ones((2, 2)))
    assert trainer._send(third, result, 1).following is None
    trainer._drop_announced(first)


def test_in_order_a_step_read_before_an_update_that_is_made_anew_is_read_again() -> None:
    trainer, parameters, step, result = make()
    first, second = step(), step()
    trainer._spec = JobSpec.from_mapping({**SPEC, "max_staleness": 0})
    trainer.announce(second, lambda: True)
    parameters.refuse = 1
    trainer._pushes.append(trainer._send(first, result, 0))
    made_anew: list[TrainingStep] = []
    trainer._train_until_accepted = lambda step, pulled: made_anew.append(step)
    trainer.wait_for_pushes()
    assert [one is first for one in made_anew] == [True]
    assert second.pulled is None
