"""NCCL: what can be said without a device, and groups of two where there are two."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import ElasticDLError
from elasticdl_worker.collectives import GroupPlan, open_listener
from tests.contract.collectives.members import DEADLINE_S, SECRET, Crew, crew_of, each, on_device
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


class Hanging:
    """Torch's group on a device that does not answer: aborting it hangs until the test lets it go."""

    def __init__(self) -> None:
        self.aborted, self.go_on = threading.Event(), threading.Event()
        self.aborts = 0

    def abort(self) -> None:
        self.aborts += 1
        self.aborted.set()
        assert self.go_on.wait(DEADLINE_S)


class Memory:
    """What a device writes to."""


def test_an_abort_that_hangs_holds_nobody_up_and_keeps_the_memory() -> None:
    from elasticdl_worker.collectives.nccl import NcclGroup

    torchs, memory = Hanging(), Memory()
    freed = threading.Event()
    weakref.finalize(memory, freed.set)
    group = NcclGroup(torchs)
    group.cut()
    group.cut()
    assert torchs.aborted.wait(DEADLINE_S)
    group.close([memory])
    del memory
    assert not freed.is_set(), "a kernel may still write to it"
    torchs.go_on.set()
    assert freed.wait(DEADLINE_S)
    assert (torchs.aborts, group.group) == (1, None)


def form_as_if_on(devices: Sequence[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[Any]:
    """Forms a group of members in this process, as if each had a CUDA device, with gloo in NCCL's place."""
    import torch

    from elasticdl_worker.collectives import tensors

    names = iter(devices)
    monkeypatch.setattr(tensors, "find_cuda_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(tensors, "name_of", lambda device: next(names))
    monkeypatch.setattr(
        tensors, "join_nccl", lambda mesh, store, device: tensors.join_gloo(mesh, store, "127.0.0.1", DEADLINE_S)
    )
    with contextlib.ExitStack() as stack:
        lobbies = [open_listener(folder) for _ in devices]
        for group_listener in lobbies:
            stack.callback(group_listener.close)
        plan = GroupPlan(1, [group_listener.endpoint for group_listener in lobbies], SECRET, adapter="nccl")

        def form_and_sum(rank: int) -> Any:
            try:
                group = lobbies[rank].form(plan, rank, timeout_s=DEADLINE_S)
                pending = group.begin_sum([3])
                pending.add(rank, 0, on_device("gloo_tensors", np.full(3, rank + 1, np.float32)))
                found = [group.adapter, *pending.finish()[0].tolist()]
                group.gather(b"whole")
            except ElasticDLError as error:
                return error.message
            return found

        with ThreadPoolExecutor(len(devices)) as pool:
            return list(pool.map(form_and_sum, range(len(devices))))


def test_members_on_devices_of_their_own_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        found = form_as_if_on(["H100 GPU-1", "H100 GPU-2"], monkeypatch, Path(folder))
    assert found == [["nccl", 3.0, 3.0, 3.0]] * 2


def test_two_members_on_one_device_are_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        found = form_as_if_on(["H100 GPU-1", "H100 GPU-1"], monkeypatch, Path(folder))
    assert any("ranks 0 and 1 compute on the same device, H100 GPU-1" in one for one in found)
    assert all(isinstance(one, str) for one in found)
