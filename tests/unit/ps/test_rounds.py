from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl_core.errors import ConflictError, FencedError
from elasticdl_core.model import DenseSpec, OptimizerSpec, UpdateMode
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.rounds import HELD, STALE, Incarnations, Member, Rounds
from elasticdl_ps.store.merging import Changes
from elasticdl_ps.store.partition import DenseInit, Partition

pytestmark = pytest.mark.unit

KERNELS = load_kernels()


def make(grads_to_wait: int = 2, tolerance: int = 0) -> tuple[Partition, Rounds]:
    partition = Partition(KERNELS)
    part = DenseInit(DenseSpec("w", (1,)), 0, 1, np.zeros(1, np.float32))
    mode = UpdateMode(False, grads_to_wait, tolerance)
    partition.push_model([part], [], OptimizerSpec("sgd", {"learning_rate": 1.0}), mode)
    return partition, Rounds(partition)


def change(amount: float = 1.0) -> Changes:
    return Changes({"w": np.array([amount], np.float32)})


def value(partition: Partition) -> float:
    return float(partition.dense.read(-1)[0].values[0])


def member(worker: int, sequence: int = 1) -> Member:
    return Member(f"worker-{worker}.0", sequence)


def test_a_round_is_the_mean_of_its_members() -> None:
    partition, rounds = make()
    rounds.prepare(member(0), change(1), 0, ())
    rounds.prepare(member(1), change(3), 0, ())
    first = rounds.commit(member(0), 0)
    assert (first.accepted, first.version, first.closed) == (True, 0, None)
    second = rounds.commit(member(1), 0)
    assert second.closed is not None
    assert (second.version, second.closed.members) == (1, (member(0), member(1)))
    assert value(partition) == -2


def test_a_commit_counts_once_however_often_it_is_sent() -> None:
    partition, rounds = make()
    rounds.prepare(member(0), change(), 0, ())
    assert rounds.prepare(member(0), change(), 0, ()).replay
    assert not rounds.commit(member(0), 0).replay
    again = rounds.commit(member(0), 0)
    assert (again.accepted, again.replay, again.closed) == (True, True, None)
    assert partition.version == 0


def test_the_closing_answer_is_given_again() -> None:
    partition, rounds = make(1)
    rounds.prepare(member(0), change(), 0, ())
    closed = rounds.commit(member(0), 0).closed
    again = rounds.commit(member(0), 0)
    assert (again.replay, again.closed, partition.version) == (True, closed, 1)
    assert rounds.prepare(member(0), change(), 0, ()).replay


def test_stale_gradients_are_refused_at_either_step() -> None:
    _, rounds = make(1)
    rounds.prepare(member(1), change(), 0, ())
    rounds.prepare(member(0), change(), 0, ())
    rounds.commit(member(0), 0)
    assert rounds.commit(member(1), 0).reason == STALE
    assert rounds.prepare(member(2), change(), 0, ()).reason == STALE


def test_tolerance_lets_older_gradients_in() -> None:
    partition, rounds = make(1, tolerance=2)
    for sequence in (1, 2, 3):
        rounds.prepare(member(0, sequence), change(), 0, ())
        assert rounds.commit(member(0, sequence), 0).accepted
    assert partition.version == 3
    assert rounds.prepare(member(0, 4), change(), 0, ()).reason == STALE


def test_one_worker_alone_fills_rounds() -> None:
    partition, rounds = make(3)
    for sequence in range(1, 7):
        version = partition.version
        rounds.prepare(member(0, sequence), change(), version, ())
        assert rounds.commit(member(0, sequence), version).accepted
    assert (partition.version, value(partition)) == (2, -2)


def test_another_ps_applies_the_same_members_once() -> None:
    first_partition, first = make()
    other_partition, other = make()
    for worker in (0, 1, 2):
        first.prepare(member(worker), change(worker), 0, (0.25,))
        other.prepare(member(worker), change(worker), 0, (0.25,))
    first.commit(member(2), 0)
    closed = first.commit(member(0), 0).closed
    assert closed is not None
    assert (other.apply(closed), other.apply(closed)) == (1, 1)
    assert value(other_partition) == value(first_partition) == -0.25


def test_missed_rounds_are_applied_in_order() -> None:
    first_partition, first = make(1, tolerance=1)
    other_partition, other = make(1, tolerance=1)
    for sequence in (1, 2):
        first.prepare(member(0, sequence), change(sequence), 0, ())
        other.prepare(member(0, sequence), change(sequence), 0, ())
        first.commit(member(0, sequence), 0)
    missed = first.closed_since(0)
    with pytest.raises(ConflictError, match="cannot follow"):
        other.apply(missed[1])
    for round_ in missed:
        other.apply(round_)
    assert value(other_partition) == value(first_partition)
    assert first.closed_since(2) == []


def test_flush_closes_what_there_is_and_repeats_the_last_round() -> None:
    partition, rounds = make(3)
    assert rounds.flush().closed is None
    rounds.prepare(member(0), change(4), 0, ())
    rounds.commit(member(0), 0)
    closed = rounds.flush().closed
    assert closed is not None
    assert closed.members == (member(0),)
    assert (rounds.flush().closed, partition.version, value(partition)) == (closed, 1, -4)


def test_what_was_not_prepared_cannot_count() -> None:
    _, rounds = make()
    with pytest.raises(ConflictError, match="not prepared"):
        rounds.commit(member(0), 0)
    first, source = make(1)
    source.prepare(member(0), change(), 0, ())
    closed = source.commit(member(0), 0).closed
    assert closed is not None
    with pytest.raises(ConflictError, match="not here"):
        rounds.apply(closed)
    assert first.version == 1


def test_gradients_that_are_never_committed_do_not_pile_up() -> None:
    _, rounds = make(1)
    for sequence in range(1, 4):
        rounds.prepare(member(0, sequence), change(), 0, ())
    with pytest.raises(ConflictError, match="waiting"):
        rounds.prepare(member(0, 4), change(), 0, ())
    rounds.prepare(member(1), change(), 0, ())
    rounds.commit(member(1), 0)
    assert rounds.prepare(member(0, 5), change(), 1, ()).accepted


@pytest.mark.parametrize("worker", ["\u00b9", "worker-3.\u00b9", "worker-3.", "worker-3.x"])
def test_a_name_without_a_number_is_a_first_incarnation(worker: str) -> None:
    incarnations = Incarnations()
    assert incarnations.check(worker) is None
    assert incarnations.check(worker) is None


def test_a_replaced_incarnation_is_fenced_off() -> None:
    incarnations = Incarnations()
    assert incarnations.check("worker-3.1") is None
    assert incarnations.check("worker-3.1") is None
    assert incarnations.check("worker-3.2") == "worker-3.1"
    with pytest.raises(FencedError, match=r"worker-3\.2"):
        incarnations.check("worker-3.1")
    assert incarnations.check("worker-4.0") is None


@settings(max_examples=60, deadline=None)
@given(
    order=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["prepare", "lost", "repeat"])), max_size=40),
    tolerance=st.integers(0, 2),
    wait=st.integers(1, 3),
)
def test_any_helper_brings_the_other_ps_to_the_same_parameters(
    order: list[tuple[int, str]], tolerance: int, wait: int
) -> None:
    """Workers die after any message; the other PS is brought along now and then from the closed rounds."""
    first_partition, first = make(wait, tolerance)
    other_partition, other = make(wait, tolerance)
    counted = 0
    for sequence, (worker, fate) in enumerate(order, start=1):
        # A pull helps first, as the client does.
        for round_ in first.closed_since(other_partition.version):
            other.apply(round_)
        version = first_partition.version
        who = Member(f"worker-{worker}.{sequence}", sequence)
        for rounds in (first, other):
            assert rounds.prepare(who, change(worker + 1), version, ()).accepted
        if fate == "lost":
            continue
        for _ in range(2 if fate == "repeat" else 1):
            assert first.commit(who, version).accepted
        counted += 1
    first.flush()
    for round_ in first.closed_since(other_partition.version):
        other.apply(round_)
    assert other_partition.version == first_partition.version == -(-counted // wait)
    assert value(other_partition) == value(first_partition)


def test_a_gradient_that_would_begin_a_held_round_is_counted_later_and_one_that_fills_a_round_now() -> None:
    partition, _ = make()
    may_begin = True
    rounds = Rounds(partition, lambda: may_begin)
    for number in range(3):
        rounds.prepare(member(number), change(number), 0, ())
    assert rounds.commit(member(0), 0).accepted
    may_begin = False
    assert rounds.is_open
    assert rounds.commit(member(1), 0).version == 1
    assert not rounds.is_open
    rounds.prepare(member(3), change(8), 1, ())
    held = rounds.commit(member(3), 1)
    assert (held.accepted, held.reason, rounds.is_open) == (False, HELD, False)
    may_begin = True
    assert rounds.commit(member(3), 1).accepted
    rounds.flush()
    assert value(partition) == -0.5 - 8
