"""What PyTorch lets a model do to itself: it trains alike wherever it trains, or is refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elasticdl_core.errors import UserCodeError
from elasticdl_core.shard import Shard
from elasticdl_worker.trainers.torch.implementation import TorchFramework
from elasticdl_worker.trainers.torch.model.own_changes import OwnChanges
from tests.fakes.group_steps import MICROBATCH, RECORDS
from tests.fakes.master import FakeMaster
from tests.fakes.parameters import MemoryParameters
from tests.unit.worker.test_ps_training import add_training, work
from tests.unit.worker_torch.test_replica import make_step, preparation_of, replica_of
from tests.unit.worker_torch.test_training import trained

pytestmark = pytest.mark.unit
STEPS = RECORDS // MICROBATCH


@pytest.fixture
def job(values: Path, make_spec: Any) -> Any:
    def make(kind: str, *, loss: str = "loss", **options: Any) -> Any:
        which: dict[str, Any] = {"model_def": "odd.model", "model_params": {"kind": kind, **options}}
        if kind[0].islower():
            which = {"model_def": f"odd.{kind}"}
        own = {"num_minibatches_per_task": STEPS, "minibatch_size": MICROBATCH}
        return make_spec(training_data=str(values), loss=loss, **which, **own)

    return make


def locally(spec: Any) -> dict[str, Any]:
    preparation = preparation_of(spec)
    local: Any = TorchFramework().prepare_local(preparation)
    for start in range(0, RECORDS, MICROBATCH):
        for batch in preparation.source.minibatches(Shard(spec.training_data, start, start + MICROBATCH)):
            local.train(batch)
    values: dict[str, Any] = local.model.values()
    return values


def by_members(spec: Any) -> dict[str, Any]:
    members = [replica_of(spec) for _ in range(2)]
    for step in range(STEPS):
        make_step(members, spec, step, microbatches=1)
    assert members[0].digest() == members[1].digest()
    values: dict[str, Any] = members[0].state().values
    return values


REFUSED = {
    "Clamps": "parameter out.weight is changed in forward",
    "ClampsData": "parameter out.weight is changed in forward",
    "UpdatesInBackward": "parameter out.weight is changed in forward or by a hook",
    "Averages": "parameter average.module.weight is changed",
    "Replaces": "parameter out.weight is another object",
    "Unfreezes": "parameter body.weight gets requires_grad=True",
    "Grows": r"model's more\.\w+ is made while the model trains",
    "MakesBuffer": "model's mean is made while the model trains",
    "InList": r"layers\[1\]\[.*second.*\]\.weight of the model \(InList\) is used by the model or its loss",
    "Lazy": "head.weight of a lazy layer",
    "Wraps": "returns a dict, in which no tensor",
    "elsewhere": "far is on the device meta",
    "scripted": "compiled by torch.jit",
    "compiled": "0, a OptimizedModule, is compiled already",
    "parallel": "a DataParallel, spreads",
    "synchronised": "1, a SyncBatchNorm, needs a process group",
    "ExpandsAnother": "the buffer scale is a view of another tensor of the model",
}


@pytest.mark.rotates(turns=3)
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("train", [locally, by_members])
def test_a_model_that_no_cluster_could_train_alike_is_refused_by_name(kind: str, train: Any, job: Any) -> None:
    with pytest.raises(UserCodeError, match=REFUSED[kind]) as raised:
        train(job(kind))
    assert raised.value.fix


@pytest.mark.parametrize("kind", ["Clamps", "Unfreezes", "InList"])
async def test_with_parameter_servers_too(kind: str, job: Any, tmp_path: Path) -> None:
    master = FakeMaster(job(kind), tmp_path / "cluster")
    await master.start()
    add_training(master, master.spec)
    try:
        await work(master, MemoryParameters(), framework=TorchFramework())
    finally:
        await master.stop()
    assert re.search(REFUSED[kind], str(master.failures))


def test_what_goes_past_the_counts_is_found_in_later_steps_as_well() -> None:
    net: Any = torch.nn.Linear(3, 1)
    built: Any = type("Built", (), {"net": net, "trainable": dict(net.named_parameters()), "state": {}, "roots": ()})
    own, loss = OwnChanges(built), net(torch.ones(3)).sum()
    for step in range(1, 300):
        own.begin()
        if step > 200:
            net.weight.data.mul_(0.5)
        if step >= 256:  # and each time from then on: the task that failed is tried again
            with pytest.raises(UserCodeError, match="parameter weight is changed"):
                own.check(loss)
            continue
        own.check(loss)


def test_a_loss_that_learns_is_refused(job: Any) -> None:
    with pytest.raises(UserCodeError, match=r"parameter learns\.scale of .*odd\.py is used by the model or its loss"):
        locally(job("Net", loss="learns"))
    with pytest.raises(UserCodeError, match=r"parameter SCALE of .*odd\.py is used by the model or its loss"):
        locally(job("OfTheFile"))


@pytest.mark.parametrize("train", [locally, by_members])
def test_parts_that_are_hidden_from_the_model_may_help_as_long_as_nobody_trains_them(train: Any, job: Any) -> None:
    """A frozen teacher in a list, and an input that has a gradient."""
    hidden, plain = train(job("Teacher")), train(job("Net"))
    assert hidden.keys() == plain.keys()
    assert any(not np.array_equal(hidden[name], value) for name, value in plain.items())


@pytest.mark.parametrize("kind", ["Plain", "Expanded"])
async def test_tensors_of_every_layout_train_alike_everywhere(kind: str, job: Any, tmp_path: Path) -> None:
    spec = job(kind)
    wanted = locally(spec)
    _, servers = await trained(spec, tmp_path / "cluster", epochs=1)
    for found in (by_members(spec), servers.dense):
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("reentrant", [False, True])
async def test_a_checkpointed_embedding_finds_its_rows_in_the_backward_pass(
    reentrant: bool, job: Any, tmp_path: Path
) -> None:
    _, whole = await trained(job("Whole"), tmp_path / "whole", epochs=1)
    _, again = await trained(job("Checkpointed", reentrant=reentrant), tmp_path / "again", epochs=1)
    assert again.rows["rows"].keys() == whole.rows["rows"].keys()
    for number, row in whole.rows["rows"].items():
        np.testing.assert_allclose(again.rows["rows"][number], row, atol=1e-6)
    for name, value in whole.dense.items():
        np.testing.assert_allclose(again.dense[name], value, atol=1e-6, err_msg=name)


def test_a_checkpointed_part_draws_the_same_again(job: Any) -> None:
    whole, again = (by_members(job(kind, dropout=0.5)) for kind in ("Whole", "Checkpointed"))
    for name, value in whole.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)
