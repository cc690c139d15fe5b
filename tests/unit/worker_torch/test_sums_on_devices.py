"""Contributions that stay tensors, and sums that are made of them, with the numbers of sums in the host's memory.

The CPU is the device here, as with a declared one; only where tensors are differs from an accelerator.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job import JobSpec
from elasticdl_core.job.fields import default_of
from elasticdl_worker.collectives import Collective, GroupPlan, open_listener
from elasticdl_worker.group.replica import HOST_MEMORY, copies
from elasticdl_worker.reporting.failures import NotFiniteError
from elasticdl_worker.trainers.torch.device import finite_flag, settle_flags
from elasticdl_worker.trainers.torch.replica.memory import TensorMemory, choose_memory
from tests.fakes.group_steps import MICROBATCH, RECORDS
from tests.unit.worker_torch.test_replica import make_step, read, replica_of

pytestmark = [pytest.mark.unit, pytest.mark.timeout(120)]
META = torch.device("meta")
ON_DEVICES = {
    "distribution_strategy": "AllReduceStrategy",
    "deterministic": False,
    "worker_resource_request": "gpu=1",
    "collective": "nccl",
    "embedding_threshold_bytes": default_of("embedding_threshold_bytes"),
}
STEPS = 6


@pytest.fixture
def job(values: Path, make_spec: Any) -> Any:
    def make(model: str, **fields: Any) -> JobSpec:
        own = {"training_data": str(values), "model_def": f"grouped.{model}", "minibatch_size": MICROBATCH}
        spec: JobSpec = make_spec(**own, **{**ON_DEVICES, **fields})
        return spec

    return make


@pytest.fixture
def groups() -> Iterator[Any]:
    """Forms a group of two members in this process, each with its own listener."""
    with tempfile.TemporaryDirectory(prefix="edl-") as folder, ThreadPoolExecutor(2) as pool:
        lobbies = [open_listener(Path(folder)) for _ in range(2)]
        generation = 0

        def form(adapter: str) -> list[Collective]:
            nonlocal generation
            generation += 1
            secret = secrets.token_bytes(16)
            plan = GroupPlan(generation, [one.endpoint for one in lobbies], secret, adapter=adapter)
            forming = [pool.submit(one.form, plan, rank, timeout_s=60.0) for rank, one in enumerate(lobbies)]
            return [one.result() for one in forming]

        yield form
        for group_listener in lobbies:
            group_listener.close()


def train(replica: Any, group: Collective, spec: JobSpec) -> bytes:
    """What a member does that computes its half of each step in one pass."""
    for step in range(STEPS):
        pending = group.begin_sum(replica.lengths, timeout_s=60.0)
        data = read(replica, spec, (2 * step + group.rank) * MICROBATCH % RECORDS)
        for number, array in enumerate(replica.compute(step, group.rank, data, 0).arrays):
            pending.add(group.rank, number, array)
        replica.apply(copies(replica.memory, pending.finish()), 2 * MICROBATCH, 0)
    found: bytes = replica.digest()
    return found


@pytest.mark.parametrize("model", ["plain", "large"])
def test_members_whose_sums_are_of_tensors_end_in_the_bits_of_sums_of_arrays(
    job: Any, groups: Any, model: str
) -> None:
    found = {}
    for collective in ("auto", "nccl"):
        spec = job(model, collective=collective)
        members = [replica_of(spec) for _ in range(2)]
        (adapter,) = {one.memory.adapter for one in members}
        joined = groups(adapter)
        with ThreadPoolExecutor(2) as pool:
            training = [
                pool.submit(train, member, group, spec) for member, group in zip(members, joined, strict=True)
            ]
            found[joined[0].adapter] = [one.result() for one in training]
    assert found.keys() == {"shared_memory", "gloo_tensors"}
    # Of two leaves there is one sum.
    assert found["gloo_tensors"] == found["shared_memory"]
    assert len(set(found["gloo_tensors"])) == 1


def test_state_and_counters_move_as_on_the_host(job: Any) -> None:
    digests = set()
    for collective in ("auto", "nccl"):
        spec = job("net", collective=collective, model_params={"dropout": 0.5, "wild": True})
        members = [replica_of(spec) for _ in range(2)]
        for step in range(3):
            make_step(members, spec, step)
        digests |= {member.digest() for member in members}
    assert len(digests) == 1


def test_contributions_are_tensors_and_what_is_kept_of_them_goes_to_the_host_and_back(job: Any) -> None:
    spec = job("plain")
    replica = replica_of(spec)
    memory = replica.memory
    arrays = replica.compute(0, 0, read(replica, spec), 0).arrays
    assert all(isinstance(one, torch.Tensor) for one in arrays)
    kept = copies(memory, arrays)
    told = [memory.on_host(one) for one in kept]
    assert all(isinstance(one, np.ndarray) for one in told)
    again = copies(memory, told)
    for one, other in zip(again, arrays, strict=True):
        assert torch.equal(one, other) and one is not other


def test_gradients_on_a_device_that_are_not_finite_are_told_by_name(job: Any) -> None:
    spec = job("plain")
    replica = replica_of(spec)
    data = read(replica, spec)
    data.content.features[0, 0] = float("inf")
    with pytest.raises(NotFiniteError, match=r"gradient|loss"):
        replica.compute(0, 0, data, 0)


def test_answers_that_a_device_has_still_to_make_are_settled_in_their_order() -> None:
    good, bad = torch.ones(3), torch.tensor([1.0, torch.inf])
    asked = [True, torch.isfinite(bad).all(), False, torch.isfinite(good).all(), finite_flag(bad), finite_flag(good)]
    assert settle_flags(asked) == [True, False, False, True, False, True]
    assert settle_flags([]) == []
    assert isinstance(finite_flag(torch.ones(2, device=META)), torch.Tensor)


def test_where_contributions_are_follows_from_the_job_and_the_device() -> None:
    assert choose_memory("auto", META) is HOST_MEMORY
    declared = choose_memory("nccl", torch.device("cpu"))
    assert isinstance(declared, TensorMemory) and declared.adapter == "gloo_tensors"
    with pytest.raises(InvalidInputError, match="NCCL joins CUDA devices, and this worker computes on meta"):
        choose_memory("nccl", META)


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch finds a CUDA device")
def test_without_nccl_it_is_said_what_to_do() -> None:
    with pytest.raises(InvalidInputError, match=r"without NCCL|finds none") as caught:
        choose_memory("nccl", torch.device("cuda", 0))
    assert "--collective auto" in caught.value.fix
