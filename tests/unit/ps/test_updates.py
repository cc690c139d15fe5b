"""What becomes of a push: applied, counted for a round, answered again, or refused with a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import ConflictError, FencedError, InvalidInputError, PermissionDeniedError
from elasticdl_core.model import DenseSpec, OptimizerSpec, UpdateMode
from elasticdl_core.ports.launcher import Role
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.pushes import DenseGradient, PushRequest
from elasticdl_ps.rounds import STALE
from elasticdl_ps.store.partition import DenseInit, Partition
from elasticdl_ps.updates import LIMIT, Updates
from elasticdl_runtime.tokens import Claims

pytestmark = pytest.mark.unit

KERNELS = load_kernels("numpy")
GRADIENT = memoryview(np.ones(1, np.float32).tobytes())


def make(*, first: bool = True, rate: float = 1.0, **mode: Any) -> tuple[Partition, Updates]:
    """A partition with one parameter, from which each plain update takes one."""
    partition = Partition(KERNELS)
    part = DenseInit(DenseSpec("w", (1,)), 0, 1, np.zeros(1, np.float32))
    partition.push_model([part], [], OptimizerSpec("sgd", {"learning_rate": rate}), UpdateMode(**mode))
    return partition, Updates(partition, first=first)


def push(sequence: int, worker: int = 0, incarnation: int = 0, version: int = 0, **fields: Any) -> PushRequest:
    name = f"worker-{worker}.{incarnation}"
    dense = [DenseGradient("w", 0, 1, 0)]
    return PushRequest(name, sequence, version, **{"records": 1, "dense": dense, "buffers": [GRADIENT], **fields})


def caller_of(request: PushRequest) -> Claims:
    worker, _, incarnation = request.worker.removeprefix("worker-").partition(".")
    return Claims("job", Role.WORKER, int(worker), int(incarnation), 0.0)


def take(updates: Updates, request: PushRequest) -> tuple[bool, int, str, bool]:
    outcome = updates.take(request, caller_of(request))
    return outcome.accepted, outcome.version, outcome.reason, outcome.replay


def value(partition: Partition) -> float:
    return float(partition.dense.read(-1)[0].values[0])


@pytest.mark.parametrize("use_async", [True, False], ids=["asynchronous", "synchronous"])
def test_each_client_of_a_worker_counts_its_own_pushes(use_async: bool) -> None:
    """Numbers came from the clock: those of a client that began before it was set back were taken for repeats."""
    partition, updates = make(use_async=use_async)
    named = [replace(push(1), worker=f"worker-0.0{name}") for name in ("", "/a", "/b")]
    caller = caller_of(named[0])
    for repeated in (False, True):
        for request in named:
            assert updates.take(replace(request, version=partition.version), caller).replay == repeated
    assert partition.version == 3
    with pytest.raises(PermissionDeniedError):
        updates.take(replace(push(2), worker="worker-1.0/a"), caller)
    # A worker that comes back is another one, with all of its clients.
    assert take(updates, push(1, incarnation=1, version=3)) == (True, 4, "", False)
    with pytest.raises(FencedError):
        updates.take(replace(named[1], sequence=2), caller)


@pytest.mark.parametrize("use_async", [True, False], ids=["asynchronous", "synchronous"])
def test_the_model_of_another_job_takes_no_push_before_this_job_has_declared_it(use_async: bool) -> None:
    """It was trained by the other job's rate: also of a push that names the generation which it has now, or none."""
    other, _ = make(rate=100.0, use_async=use_async)
    partition, updates = make(use_async=use_async)
    other.declared = False
    partition.become(other)
    updates.reset()
    for number, generation in enumerate(("", partition.generation)):
        assert take(updates, push(number, generation=generation)) == (False, 0, "generation", False)
    part = DenseInit(DenseSpec("w", (1,)), 0, 1, None)
    partition.push_model([part], [], OptimizerSpec("sgd", {"learning_rate": 1.0}), UpdateMode(use_async=use_async))
    assert take(updates, push(2, generation=partition.generation)) == (True, 1, "", False)
    assert value(partition) == -1


def test_a_repeated_push_is_answered_again_and_applied_once() -> None:
    partition, updates = make()
    assert take(updates, push(1)) == (True, 1, "", False)
    assert take(updates, push(2)) == (True, 2, "", False)
    assert take(updates, push(1, worker=1)) == (True, 3, "", False)
    # With the present version; an older one than the last is a repeat as well.
    assert take(updates, push(2)) == (True, 3, "", True)
    assert take(updates, push(1)) == (True, 3, "", True)
    assert take(updates, push(1, worker=1)) == (True, 3, "", True)
    assert (value(partition), partition.version, updates.made, updates.rejected) == (-3, 3, 3, 0)
    assert take(updates, push(3)) == (True, 4, "", False)


def test_a_push_that_could_not_be_applied_may_come_again() -> None:
    partition, updates = make()
    with pytest.raises(InvalidInputError, match="refers to buffer 0 of 0"):
        take(updates, push(1, buffers=[]))
    assert take(updates, push(1)) == (True, 1, "", False)
    assert value(partition) == -1


def test_repeats_are_forgotten_with_the_parameters() -> None:
    _, updates = make()
    take(updates, push(5))
    updates.reset()
    assert take(updates, push(1)) == (True, 2, "", False)


def test_gradients_on_the_parameters_of_another_generation_are_refused() -> None:
    partition, updates = make()
    assert take(updates, push(1, generation="of a PS that is gone")) == (False, 0, "generation", False)
    assert (value(partition), updates.made, updates.rejected) == (0, 0, 1)
    # It was no answer to this sequence number: computed anew, it counts.
    assert take(updates, push(1, generation=partition.generation)) == (True, 1, "", False)
    assert take(updates, push(2, generation="")) == (True, 2, "", False)


@pytest.mark.parametrize(
    ("modulation", "version", "rate", "expected"),
    [
        (True, 4, None, 1.0),  # computed on the present parameters
        (True, 3, None, 1.0),  # one update in between is usual
        (True, 2, None, 1 / 2),
        (True, 0, None, 1 / 4),
        (True, 0, 0.5, 0.5 / 4),
        (True, 2, 0.0, 0.0),
        (False, 0, None, 1.0),
    ],
)
def test_the_learning_rate_is_divided_by_the_staleness(
    modulation: bool, version: int, rate: float | None, expected: float
) -> None:
    partition, updates = make(lr_staleness_modulation=modulation)
    for sequence in range(1, 5):
        take(updates, push(sequence, version=sequence - 1))
    assert value(partition) == -4
    take(updates, push(1, worker=1, version=version, learning_rates=() if rate is None else (rate,)))
    assert value(partition) == pytest.approx(-4 - expected)


@pytest.mark.parametrize("tolerance", [0, 2])
def test_synchronous_gradients_that_are_too_old_are_refused(tolerance: int) -> None:
    partition, updates = make(use_async=False, grads_to_wait=1, sync_version_tolerance=tolerance)
    for sequence in range(1, 4):
        assert take(updates, push(sequence, version=sequence - 1)) == (True, sequence, "", False)
    oldest = 3 - tolerance
    assert take(updates, push(1, worker=1, version=oldest - 1)) == (False, 3, STALE, False)
    assert updates.rejected == 1
    assert take(updates, push(2, worker=1, version=oldest)) == (True, 4, "", False)
    assert (value(partition), updates.made, updates.rejected) == (-4, 4, 1)


def test_a_repeated_gradient_is_counted_once_in_a_round() -> None:
    partition, updates = make(use_async=False, grads_to_wait=2)
    assert take(updates, push(1)) == (True, 0, "", False)
    assert take(updates, push(1)) == (True, 0, "", True)
    assert updates.made == 0
    assert take(updates, push(1, worker=1)) == (True, 1, "", False)
    assert take(updates, push(1)) == (True, 1, "", True)
    assert (value(partition), updates.made) == (-1, 1)


def test_another_ps_keeps_gradients_until_it_is_told_the_round() -> None:
    _, deciding = make(use_async=False, grads_to_wait=2)
    partition, updates = make(first=False, use_async=False, grads_to_wait=2)
    for worker in (0, 1):
        assert take(updates, push(1, worker=worker))[:2] == (True, 0)
        closed = deciding.take(push(1, worker=worker), caller_of(push(1, worker=worker))).closed
    assert (value(partition), updates.made) == (0, 0)
    assert closed is not None
    assert updates.apply(closed) == updates.apply(closed) == 1
    assert (value(partition), updates.made) == (-1, 1)


def test_a_flush_closes_the_round_with_what_it_has() -> None:
    partition, updates = make(use_async=False, grads_to_wait=3)
    take(updates, push(1))
    assert updates.flush().version == updates.flush().version == 1
    assert (value(partition), updates.made) == (-1, 1)


@pytest.mark.parametrize("use_async", [True, False])
def test_nothing_is_applied_after_the_last_update_but_repeats_are_answered(use_async: bool) -> None:
    partition, updates = make(use_async=use_async, grads_to_wait=1, stop_at=2)
    for sequence in (1, 2):
        take(updates, push(sequence, version=sequence - 1))
    assert take(updates, push(3, version=2)) == (False, 2, LIMIT, False)
    assert take(updates, push(1, worker=1, version=2)) == (False, 2, LIMIT, False)
    accepted, version, _, replay = take(updates, push(2, version=1))
    assert (accepted, version, replay) == (True, 2, True)
    assert (value(partition), updates.made, updates.rejected) == (-2, 2, 2)


def test_only_the_first_ps_knows_the_last_update() -> None:
    _, updates = make(first=False, stop_at=1)
    assert take(updates, push(1))[0]
    assert take(updates, push(2)) == (True, 2, "", False)


def test_a_worker_that_was_replaced_is_fenced_and_its_successor_counts_anew() -> None:
    partition, updates = make()
    take(updates, push(7, incarnation=1))
    assert take(updates, push(1, incarnation=2)) == (True, 2, "", False)
    with pytest.raises(FencedError, match=r"worker-0\.1 was replaced by worker-0\.2"):
        take(updates, push(8, incarnation=1))
    assert value(partition) == -2


def test_a_worker_pushes_in_its_own_name_only() -> None:
    partition, updates = make()
    with pytest.raises(PermissionDeniedError, match=r"worker-1\.0 may not push as 'worker-0\.0'"):
        updates.take(push(1), caller_of(push(1, worker=1)))
    assert updates.take(push(1), Claims("job", Role.MASTER, 0, 0, 0.0)).accepted
    assert value(partition) == -1


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf")])
def test_a_learning_rate_that_cannot_be_meant_is_refused(rate: float) -> None:
    partition, updates = make()
    with pytest.raises(InvalidInputError, match="cannot be meant"):
        take(updates, push(1, learning_rates=(rate,)))
    assert partition.version == 0


def test_without_a_model_nothing_is_taken() -> None:
    updates = Updates(Partition(KERNELS), first=True)
    with pytest.raises(ConflictError, match="no model yet"):
        take(updates, push(1))


def test_records_are_tallied_once_for_their_task() -> None:
    partition, updates = make()
    for _ in range(2):
        take(updates, push(1, records=8, task=(0, 3)))
    take(updates, push(2, records=5, task=(0, 3)))
    assert partition.tally.numbers().tolist() == [[0, 3, 13]]


def test_costs_grow_with_what_is_touched() -> None:
    _, updates = make(use_async=False, grads_to_wait=2)
    assert updates.estimate_cost(push(1)) == 4
    take(updates, push(1))
    # The next one closes the round.
    assert updates.estimate_cost(push(1, worker=1)) == 8
