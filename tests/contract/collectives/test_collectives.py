"""What every adapter of the collectives keeps, with members that are processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.contract.collectives.members import SECRET, Crew, MemberProcess, digest, each, leaf_of

pytestmark = pytest.mark.contract
SIZES = (1, 2, 3, 4, 5)


def tree_sum(leaves: Sequence[np.ndarray]) -> np.ndarray:
    """The promised sum, written down as plainly as can be."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    with np.errstate(all="ignore"):
        return tree_sum(leaves[:half]) + tree_sum(leaves[half:])


def expected(lengths: Sequence[int], microbatches: int, seed: int, dtype: str = "float32") -> str:
    return digest(
        [
            tree_sum([leaf_of(seed, m, bucket, length, dtype) for m in range(microbatches)])
            for bucket, length in enumerate(lengths)
        ]
    )


def check_sums(
    crew: Crew,
    members: Sequence[MemberProcess],
    lengths: Sequence[int],
    owners: Sequence[int],
    seed: int,
    repeats: int = 1,
) -> None:
    """Has members sum, and compares the bits with the tree's; of fused sums those of the members with each other."""
    if crew.fuses:
        found = each(members, "sums", lengths, None, seed, repeats=repeats)
        assert found == [found[0]] * len(members)
        return
    wanted = [expected(lengths, len(owners), seed + repeat) for repeat in range(repeats)]
    assert each(members, "sums", lengths, owners, seed, repeats=repeats) == [wanted] * len(members)


def skip_fused(crew: Crew) -> None:
    if crew.fuses:
        pytest.skip("sums on devices are fused")


def survivors_of(members: Sequence[MemberProcess], lost: MemberProcess) -> list[MemberProcess]:
    return [member for member in members if member is not lost]


@pytest.mark.rotates(turns=3)
@pytest.mark.parametrize("size", SIZES)
def test_the_bits_of_a_sum_do_not_depend_on_who_owns_what(crew: Crew, size: int) -> None:
    skip_fused(crew)
    members = crew.form(size)
    rng = np.random.default_rng(size)
    lengths = [1, 5000, 0, 40_001, 16, 100_003]
    for microbatches in (1, 5, 8, 16):
        owners = [m * size // microbatches for m in range(microbatches)]
        drawn = [int(owner) for owner in rng.integers(0, size, microbatches)]
        wanted = expected(lengths, microbatches, 4)
        for distribution in (owners, drawn, [size - 1] * microbatches):
            assert each(members, "sums", lengths, distribution, 4) == [[wanted]] * size


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_odd_numbers_keep_their_bits(crew: Crew, dtype: str) -> None:
    skip_fused(crew)
    for size in (2, 3):
        members = crew.form(size)
        wanted = expected([3, 1037, 20_011], 8, 3, dtype)
        owners = [m % size for m in range(8)]
        assert each(members, "sums", [3, 1037, 20_011], owners, 3, dtype) == [[wanted]] * size


def test_sums_on_devices_have_no_owners(crew: Crew) -> None:
    if not crew.fuses:
        pytest.skip("it makes others, too")
    members = crew.form(2)
    for member in members:
        assert "sums on devices are fused" in member.call("attempt", "begin_sum", [100], [0, 1])
    check_sums(crew, members, [100], [0, 1], 2)


@pytest.mark.parametrize("size", [1, 3, 4])
def test_a_fused_sum_is_the_same_at_all_members_and_about_right(crew: Crew, size: int) -> None:
    members = crew.form(size)
    lengths = [1, 100, 300_000]
    found = each(members, "sums", lengths, None, 1, repeats=3)
    assert all(hashes == found[0] for hashes in found)
    assert len(set(found[0])) == 3


def test_many_buckets_and_large_ones(crew: Crew) -> None:
    members = crew.form(4)
    many = [int(length) for length in np.random.default_rng(0).integers(1, 3000, 150)]
    owners = [0, 1, 2, 3, 3, 2, 1, 0]
    check_sums(crew, members, many, owners, 5)
    large = [(25 << 20) // 4]
    check_sums(crew, members, large, [0, 1, 2, 3], 6)


def test_groups_of_other_sizes_follow_one_another_and_leave_nothing(crew: Crew) -> None:
    crew.start(5)
    # After the first round, in which members make what they keep, and still have what tests before this one made.
    for rounds in (1, 1, 2):
        before = each(crew.members, "held")
        for _ in range(rounds):
            for size in (5, 2, 4, 1, 3):
                members = crew.form(size)
                owners = [m % size for m in range(8)]
                check_sums(crew, members, [9000, 3], owners, 8, repeats=2)
                each(members, "leave")
    assert_hold_no_more(crew.members, before)


@pytest.mark.parametrize("length", [1000, (4 << 20) // 4])
def test_a_member_that_is_killed_frees_the_others_who_go_on(crew: Crew, length: int) -> None:
    members = crew.form(4)
    each(members, "gather", b"ready")
    lost = members[2]
    for member in members:
        member.begin("sum_until_broken", length)
    lost.kill()
    left = survivors_of(members, lost)
    assert [member.answer() for member in left] == [("MemberLostError", [2])] * 3
    crew.form_of(left)
    check_sums(crew, left, [5000], [0, 1, 2, 1], 11)


def die_in_a_sum(crew: Crew) -> list[MemberProcess]:
    """Kills the last of three members in the middle of a sum; returns the two others when they know."""
    members = crew.form(3)
    for member in members:
        member.begin("sum_until_broken", 100_000)
    members[2].kill()
    assert [member.answer()[0] for member in members[:2]] == ["MemberLostError"] * 2
    return members[:2]


def die_between_two_sums(crew: Crew) -> list[MemberProcess]:
    """Kills the last of three members when a sum is whole; returns the two others when they know."""
    members = crew.form(3)
    each(members, "begin_a_sum", 100_000, bring=True)
    assert each(members, "end_a_sum", bring=False) == [("whole", [3.0])] * 3
    members[2].kill()
    assert each(members[:2], "wait_for_leaf", 100_000, 60.0) == [("MemberLostError", [2])] * 2
    return members[:2]


def assert_hold_no_more(members: Sequence[MemberProcess], before: Sequence[tuple[int, int]]) -> None:
    """Waits until members hold no more descriptors and threads than before."""
    found = [member.call("held", most) for member, most in zip(members, before, strict=True)]
    pairs = zip(found, before, strict=True)
    assert all(now[0] <= then[0] and now[1] <= then[1] for now, then in pairs), f"{found} after {before}"


@pytest.mark.rotates(turns=3)
@pytest.mark.parametrize("die", [die_in_a_sum, die_between_two_sums])
def test_deaths_leave_no_descriptors_and_threads(crew: Crew, die: Callable[[Crew], list[MemberProcess]]) -> None:
    crew.start(5)
    # After the first deaths, in which a member makes what it keeps. More of them follow than a descriptor could hide
    # that is still open when it is first looked.
    for _ in range(2):
        before = each(die(crew), "held")
    for _ in range(3):
        survivors = die(crew)
    assert_hold_no_more(survivors, before)


def test_a_sum_that_is_not_finished_keeps_no_descriptors(crew: Crew) -> None:
    crew.start(5)
    for _ in range(2):
        members = crew.form(3)
        for rank, member in enumerate(members):
            member.begin("begin_a_sum", 100_000, bring=rank < 2)
        assert [member.answer() for member in members] == [None] * 3
        members[2].kill()
        assert each(members[:2], "wait_until_it_fails") == [("MemberLostError", [2])] * 2
        unfinished = each(members[:2], "held")
        assert each(members[:2], "end_a_sum", bring=False) == [("MemberLostError", [])] * 2
        assert each(members[:2], "held") == unfinished


def test_a_member_that_was_stopped_is_suspected_and_does_no_harm_when_it_wakes(crew: Crew) -> None:
    members = crew.form(4)
    each(members, "gather", b"ready")
    stopped = members[1]
    for member in members:
        member.begin("sum_until_broken", 200_000)
    stopped.signal(signal.SIGSTOP)
    left = survivors_of(members, stopped)
    assert [member.answer() for member in left] == [("MemberLostError", [1])] * 3
    crew.form_of(left)
    check_sums(crew, left, [200_000], [0, 1, 2, 1], 12)
    kept = each(left, "kept_results")
    stopped.signal(signal.SIGCONT)
    assert stopped.answer()[0] in {"MemberLostError", "GroupAbortedError"}
    assert each(left, "kept_results") == kept
    crew.form_of(members)
    check_sums(crew, members, [200_000], [0, 1, 2, 3], 12)


def test_a_member_that_wakes_never_takes_what_others_wrote_since_for_a_sum(crew: Crew) -> None:
    length = 200_000
    members = crew.form(3)
    stopped, left = members[2], members[:2]
    for rank, member in enumerate(members):
        member.begin("begin_a_sum", length, bring=rank > 0)
    assert [member.answer() for member in members] == [None] * 3
    # Stopped when all but the last leaf is there: the others do their part, tell so, and wait for its.
    stopped.stop()
    left[0].begin("end_a_sum", bring=True)
    left[1].begin("end_a_sum", bring=False)
    assert [member.answer()[0] for member in left] == ["MemberLostError"] * 2
    crew.form_of(left)
    check_sums(crew, left, [length], [0, 1], 12)
    stopped.begin("end_a_sum", bring=False)
    stopped.signal(signal.SIGCONT)
    assert stopped.answer() in [("whole", [3.0]), ("MemberLostError", []), ("GroupAbortedError", [])]


def test_abort_from_another_thread_frees_all(crew: Crew) -> None:
    members = crew.form(3)
    for member in members[1:]:
        member.begin("wait_for_leaf", 1000, 600.0)  # nobody waits for that
    aborted = ("GroupAbortedError", [1])
    members[0].begin("attempt", "abort", "the test says so", suspects=[1])
    assert members[0].answer() == ""
    assert [member.answer() for member in members[1:]] == [aborted] * 2
    assert members[0].call("failure") == aborted
    members = crew.form(3)
    members[1].begin("abort_beside", 1000)
    assert members[1].answer() == aborted


def test_a_member_that_brings_nothing_is_named_when_the_time_is_over(crew: Crew) -> None:
    members = crew.form(3)
    for member in members[:2]:
        member.begin("wait_for_leaf", 1000, 1.5)
    for member in members[:2]:
        kind, suspects = member.answer()
        assert kind == "CollectiveTimeoutError"
        assert 2 in suspects


def test_a_member_that_leaves_is_not_suspected(crew: Crew) -> None:
    members = crew.form(3)
    each(members, "gather", b"x")
    members[1].call("leave")
    for member in (members[0], members[2]):
        assert member.call("wait_for_leaf", 1000, 30.0) == ("GroupAbortedError", [])
    assert "has left" in members[1].call("attempt", "gather", b"x")


def test_who_is_alone_exchanges_nothing_any_more_once_the_group_was_given_up(crew: Crew) -> None:
    (alone,) = crew.form(1)
    assert alone.call("gather", b"x") == [b"x"]
    alone.call("attempt", "abort", "the test says so")
    assert "the test says so" in alone.call("attempt", "gather", b"x")


def test_small_messages_reach_all(crew: Crew) -> None:
    for size in SIZES:
        members = crew.form(size)
        payloads = [os.urandom(rank * 50_000) for rank in range(size)]
        for member, payload in zip(members, payloads, strict=True):
            member.begin("gather", payload)
        assert [member.answer() for member in members] == [payloads] * size
        assert each(members, "broadcast", b"from the last", size - 1) == [b"from the last"] * size


def test_state_streams_while_sums_go_on(crew: Crew) -> None:
    members = crew.form(3)
    length = 700_000
    found = each(members, "stream_beside_sums", 0, 2, length, 20)
    state = [np.arange(length, dtype=np.float64), np.frombuffer(b"tail", np.uint8), np.empty(0, np.float32)]
    assert [got for got, _ in found] == ["", "", "three buffers" + digest(state)]
    assert len({tuple(hashes) for _, hashes in found}) == 1


def test_what_a_forked_child_holds_does_not_hide_its_parents_death(crew: Crew) -> None:
    members = crew.form(3)
    child = members[2].call("keep_a_child")
    try:
        for member in members:
            member.begin("sum_until_broken", 1000)
        members[2].kill()
        assert [member.answer() for member in members[:2]] == [("MemberLostError", [2])] * 2
    finally:
        os.kill(child, signal.SIGKILL)


def test_plans_that_cannot_be_are_refused(crew: Crew) -> None:
    members = crew.form(2)
    stale = crew.plan(members)
    crew.form_of(members)
    for plan, rank, reason in [
        (stale, 0, "is not newer than"),
        (crew.plan(members), 1, "is not this process'"),
        (crew.plan(members), 7, "has no endpoint"),
        (crew.plan(members, secret=b"short"), 0, "can be guessed"),
        (crew.plan(members, adapter="pigeons"), 0, "there is no adapter 'pigeons'"),
    ]:
        with pytest.raises(AssertionError, match=reason):
            members[0].call("form", plan, rank)


def test_who_does_not_know_the_secret_does_not_get_in(crew: Crew) -> None:
    members = crew.form(3)
    plan = crew.plan(members)
    stranger = type(plan)(plan.generation, plan.endpoints, SECRET[::-1], plan.channel, plan.adapter)
    members[0].begin("form", plan, 0, 2.0)
    members[1].begin("form", plan, 1, 2.0)
    members[2].begin("form", stranger, 2, 2.0)
    for member in members:
        with pytest.raises(AssertionError, match=r"MemberLostError|GroupAbortedError"):
            member.answer()


def test_forming_can_be_aborted_and_names_who_did_not_come(crew: Crew) -> None:
    crew.start(3)
    members = crew.members[:3]
    assert members[0].call("abort_forming", crew.plan(members), 0) == "GroupAbortedError"
    plan = crew.plan(members)
    members[0].begin("form", plan, 0, 1.0)
    members[1].begin("form", plan, 1, 1.0)
    for member in members[:2]:
        with pytest.raises(AssertionError, match=r"MemberLostError: .*ranks 2 did not come"):
            member.answer()


def test_wrong_use_is_refused_and_breaks_nothing(crew: Crew) -> None:
    members = crew.form(2)
    refusals = members[0].call("refusals")
    assert refusals == [
        "microbatch 1 is not rank 0's",
        "a leaf has shape (9,), its bucket (10,)",
        "a leaf of float64 does not fit into a sum of float32",
        "microbatches [0] of bucket 0 were not brought",
        "a sum is under way already",
        "microbatch 0 of bucket 0 was brought before",
        "there is no bucket 5",
        "sums of int32 are not made",
        "owners [0, 2] are not all ranks of 2 members",
    ]
    assert members[1].call("wait_for_leaf", 10, 30.0) == ("whole", [])
    assert members[0].call("finish_pending") == 20.0
    check_sums(crew, members, [100], [0, 1], 2)
