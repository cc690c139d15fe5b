"""NCCL: what can be said without a device, and groups of two where there are two."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.collectives.members import Crew, crew_of, each
from tests.fakes.frameworks import NEEDS_TORCH, count_cuda_devices

pytestmark = [pytest.mark.contract, NEEDS_TORCH]
TWO_DEVICES = pytest.mark.skipif(count_cuda_devices() < 2, reason="two CUDA devices are needed: NCCL joins no others")
NO_DEVICE = pytest.mark.skipif(count_cuda_devices() > 0, reason="this machine has a CUDA device")


@pytest.fixture
def crew() -> Iterator[Crew]:
    with tempfile.TemporaryDirectory(prefix="edl-") as folder, crew_of("nccl", Path(folder)) as crew:
        yield crew


@NO_DEVICE
def test_without_a_device_it_is_said_what_to_do(crew: Crew) -> None:
    crew.start(2)
    plan = crew.plan(crew.members)
    for rank, member in enumerate(crew.members):
        member.begin("form", plan, rank)
    for member in crew.members:
        with pytest.raises(AssertionError, match=r"built without NCCL|PyTorch finds none|could not be formed"):
            member.answer()


@TWO_DEVICES
def test_two_devices_sum(crew: Crew) -> None:
    members = crew.form(2)
    found = each(members, "sums", [1, 300_000, 0], None, 1, repeats=3)
    assert found[0] == found[1]
    assert len(set(found[0])) == 3


@TWO_DEVICES
def test_a_member_that_is_killed_or_stands_still_frees_the_other_who_goes_on(crew: Crew) -> None:
    for hard in (True, False):
        members = crew.form(2)
        each(members, "gather", b"ready")
        for member in members:
            member.begin("sum_until_broken", 1 << 22)
        if hard:
            members[1].kill()
        else:
            members[1].stop()
        assert members[0].answer() == ("MemberLostError", [1])
        crew.form_of(members[:1])
        assert members[0].call("sums", [1000], None, 2)
        if not hard:
            members[1].kill()


@TWO_DEVICES
def test_abort_frees_who_waits_for_a_device(crew: Crew) -> None:
    members = crew.form(2)
    assert members[0].call("abort_beside", 1 << 22) == ("GroupAbortedError", [1])
    assert members[1].call("wait_until_it_fails") == ("GroupAbortedError", [1])
