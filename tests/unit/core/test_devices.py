"""Shares of devices: what may be asked for, and where a share goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_core.devices import WHOLE, DevicePool, Place, parse_request, share_words
from elasticdl_core.errors import InvalidInputError, SpecError
from elasticdl_core.job import JobSpec

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", 0),
        ("gpu=1", 100),
        ("gpu=1.0", 100),
        ("gpu=0.5", 50),
        ("gpu=0.50", 50),
        (" gpu = 0.25 ", 25),
        ("gpu=0.01", 1),
        ("gpu=0.33", 33),
        ("gpu=8", 800),
        ("gpu=64", 6400),
    ],
)
def test_a_request_is_a_share_of_one_device_or_whole_ones(text: str, share: int) -> None:
    assert parse_request(text) == share


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("gpu=0", "no device", "leave it out"),
        ("gpu=0.0", "no device", "leave it out"),
        ("gpu=0.001", "finer than hundredths", "gpu=0.5"),
        ("gpu=1.5", "neither a share of one device nor", "gpu=1, gpu=2"),
        ("gpu=-1", "no amount", "gpu=0.5"),
        ("gpu=1e1", "no amount", "gpu=0.5"),
        ("gpu=half", "no amount", "gpu=0.5"),
        ("gpu=\u0661", "no amount", "gpu=0.5"),
        ("gpu=", "no amount", "gpu=0.5"),
        ("gpu", "cannot be asked for", "gpu=0.5"),
        ("tpu=1", "cannot be asked for", "gpu=0.5"),
        ("gpu=65", "too much", "gpu=64"),
        ("gpu=1,gpu=1", "cannot be asked for", "gpu=0.5"),
        ("gpu=1,", "cannot be asked for", "gpu=0.5"),
        ("cpu=1,gpu=1", "cpu is not applied", "one slot"),
        ("cpu=1,memory=4096Mi", "cpu is not applied", "one slot"),
        ("memory=4096Mi", "memory is not applied", "worker_memory_mib"),
        ("gpu=1,disk=1Gi", "disk is not applied", "leave it out"),
    ],
)
def test_what_cannot_be_given_is_refused_with_what_to_do(text: str, message: str, fix: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_request(text)
    assert message in caught.value.message
    assert fix in caught.value.fix


def test_a_specification_says_so_at_once() -> None:
    common = {"model_def": "m.f", "model_zoo": "/zoo", "training_data": "/data"}
    assert JobSpec.from_mapping({**common, "worker_resource_request": "gpu=0.5"}).device_share == 50
    assert JobSpec.from_mapping(common).device_share == 0
    with pytest.raises(SpecError) as caught:
        JobSpec.from_mapping({**common, "worker_resource_request": "gpu=1.5"})
    assert [problem.field for problem in caught.value.problems] == ["worker_resource_request"]


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"])
def test_no_job_chooses_its_device_itself_but_any_may_hide_all(name: str) -> None:
    common = {"model_def": "m.f", "model_zoo": "/zoo", "training_data": "/data"}
    JobSpec.from_mapping({**common, "envs": {name: ""}})
    JobSpec.from_mapping({**common, "envs": {name: "-1"}})
    with pytest.raises(SpecError) as caught:
        JobSpec.from_mapping({**common, "envs": {name: "0"}})
    assert "worker_resource_request" in caught.value.problems[0].fix


def test_a_share_goes_where_least_is_left() -> None:
    pool = DevicePool([100, 60, 50])
    assert pool.find(50) == (2,)
    assert pool.find(60) == (1,)
    assert pool.find(100) == (0,)
    assert pool.find(200) is None
    assert DevicePool([100, 20, 100]).find(200) == (0, 2)
    assert DevicePool([]).find(1) is None


def test_what_is_spoken_for_is_taken_last() -> None:
    assert DevicePool([50, 100]).find(50, [50, 0]) == (1,)
    assert DevicePool([50, 50]).find(50, [50, 50]) == (0,)


def test_amounts_read_well() -> None:
    assert [share_words(share) for share in (50, 1, 100, 300)] == ["0.5 of a GPU", "0.01 of a GPU", "1 GPU", "3 GPUs"]


SHARES = st.one_of(st.integers(1, 100), st.sampled_from([25, 50, 100, 200, 300]))


@given(devices=st.integers(0, 6), moves=st.lists(st.tuples(SHARES, st.integers(0, 20)), max_size=60))
def test_no_device_is_ever_promised_twice_and_nothing_leaks(devices: int, moves: list[tuple[int, int]]) -> None:
    """Launches in random sizes with deaths in between: what is free and what is held always make whole devices."""
    pool = DevicePool([WHOLE] * devices)
    held: list[tuple[int, Place]] = []
    for share, death in moves:
        place = pool.find(share)
        fits = pool.room(share) > 0
        assert (place is not None) == fits
        if place is not None:
            assert pool.holds(share, place)
            assert len(set(place)) == max(share // WHOLE, 1)
            pool.take(share, place)
            held.append((share, place))
        elif held:
            pool.give_back(*held.pop(death % len(held)))
        for number, free in enumerate(pool.free):
            taken = sum(min(share, WHOLE) for share, place in held if number in place)
            assert 0 <= free == WHOLE - taken
    for share, place in held:
        pool.give_back(share, place)
    assert pool.free == [WHOLE] * devices


@given(devices=st.integers(1, 6), share=st.integers(1, 100), used=st.lists(st.integers(0, 100), max_size=6))
def test_as_many_are_placed_as_there_is_room_for(devices: int, share: int, used: list[int]) -> None:
    pool = DevicePool([WHOLE - amount for amount in (used + [0] * devices)[:devices]])
    room, placed = pool.room(share), 0
    while (place := pool.find(share)) is not None:
        pool.take(share, place)
        placed += 1
    assert placed == room
