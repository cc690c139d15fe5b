"""A PyTorch model as a replica: equal to a run in one process, and to the last bit whoever computes what."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from elasticdl.data import create_data_reader
from elasticdl_core.errors import DataError, UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_core.shard import Shard
from elasticdl_core.task import Task, TaskId, TaskType
from elasticdl_worker.group.replica import copied
from elasticdl_worker.group.state_files import CheckpointPart, pack_state, read_state, unpack_state
from elasticdl_worker.local import run_local
from elasticdl_worker.reporting.failures import NotFiniteError
from elasticdl_worker.trainers.framework import Preparation
from elasticdl_worker.trainers.state_merging import Merge
from elasticdl_worker.trainers.torch.implementation import TorchFramework
from elasticdl_worker.trainers.torch.model.state import TorchModelState
from elasticdl_worker.trainers.torch.replica.buckets import TorchBuckets
from elasticdl_worker.trainers.torch.replica.state_changes import TorchStateChanges
from tests.fakes import group_steps
from tests.fakes.group_steps import MICROBATCH, RECORDS
from tests.fakes.shared_device import shared_device

pytestmark = pytest.mark.unit
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "lr": 0.01},
    "Adam": {"amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "Adagrad": {"initial_accumulator_value": 0.1},
    "RMSprop": {"centered": True, "momentum": 0.5, "lr": 0.01},
    "Adadelta": {"lr": 1.0},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
}


@pytest.fixture
def job(values: Path, make_spec: Any) -> Any:
    def make(model: str = "net", **fields: Any) -> JobSpec:
        own = {"training_data": str(values), "model_def": f"grouped.{model}", "minibatch_size": MICROBATCH}
        spec: JobSpec = make_spec(**own, **fields)
        return spec

    return make


def preparation_of(spec: JobSpec) -> Preparation:
    framework = TorchFramework()
    module = framework.load_module(spec, Path(spec.model_zoo))
    params = dict(spec.data_reader_params)
    reader = create_data_reader(spec.training_data, spec.records_per_task, reader_params=params)
    source = framework.make_source(reader, module, "training", 1 << 30)
    return Preparation(spec, module, source, framework.callbacks_of(module, spec), keeps_predictions=True)


def replica_of(spec: JobSpec) -> Any:
    return TorchFramework().prepare_replica(preparation_of(spec))


def task_of(spec: JobSpec) -> Task:
    return Task(TaskId(TaskType.TRAINING, 0, 0, 0, RECORDS), Shard(spec.training_data, 0, RECORDS))


def read(replica: Any, spec: JobSpec, start: int = 0, minibatches: int = 1) -> Any:
    return replica.read(task_of(spec), start, start + minibatches * MICROBATCH)


def make_step(members: Sequence[Any], spec: JobSpec, *how: int, **options: int) -> None:
    task = task_of(spec)
    group_steps.make_step(members, lambda member, start, end: member.read(task, start, end), *how, **options)


def as_bytes(array: Any) -> Any:
    return np.frombuffer(bytearray(array.tobytes()), np.uint8)


def locally(spec: JobSpec, steps: int) -> Any:
    preparation = preparation_of(spec)
    local: Any = TorchFramework().prepare_local(preparation)
    for step in range(steps):
        start = step * MICROBATCH % RECORDS
        shard = Shard(spec.training_data, start, start + MICROBATCH)
        for batch in preparation.source.minibatches(shard):
            local.train(batch)
    return local


def test_a_local_run_of_a_group_has_the_bits_of_its_members(job: Any, tmp_path: Path) -> None:
    """Batch normalisation sees a part of the update at a time, and dropout is seeded by it."""
    parts = {"distribution_strategy": "AllReduceStrategy", "microbatches": 2, "num_minibatches_per_task": 4}
    spec = dataclasses.replace(job(), minibatch_size=2 * MICROBATCH, **parts)
    members = [replica_of(spec) for _ in range(2)]
    for number in range(RECORDS // (2 * MICROBATCH)):
        make_step(members, spec, number, microbatches=2)
    events: list[Any] = []
    run_local(dataclasses.replace(spec, shuffle=False, export_formats="safetensors"), tmp_path / "out", events.append)
    assert (events[-1]["records"], events[-1]["steps"]) == (RECORDS, RECORDS // (2 * MICROBATCH))
    exported = load_file(tmp_path / "out" / "model.safetensors")
    for name, value in members[0].state().values.items():
        np.testing.assert_array_equal(exported[name].numpy(), value, err_msg=name)


@pytest.mark.rotates(turns=3)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # of Adagrad in PyTorch itself
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_microbatch_a_step_is_a_step_of_a_local_run(name: str, job: Any, tmp_path: Path) -> None:
    """Also over two ends of all members, after one of which the checkpoint says what parameter servers would say."""
    sparse = name in ("SGD", "Adagrad")
    spec = job(optimizer_params={"name": name, **OPTIMIZERS[name]}, model_params={"sparse": sparse})
    replica = replica_of(spec)
    for step in range(12):
        if step in (4, 8):
            state, replica = replica.state(), replica_of(spec)
            kept = state if step == 8 else dataclasses.replace(state, extra={}, steps={})
            files = [CheckpointPart(replica.layout, kept, rank, 2, {}).write(tmp_path) for rank in range(2)]
            replica.load(read_state(str(tmp_path), files, replica.layout)[0])
        make_step([replica], spec, step, microbatches=1)
    local = locally(dataclasses.replace(spec, distribution_strategy="AllReduceStrategy"), 12)
    wanted = local.model.values()
    assert replica.state().values.keys() == wanted.keys()
    for key, value in replica.state().values.items():
        np.testing.assert_allclose(value, wanted[key], atol=2e-5, err_msg=key)
    assert replica.version == local.version == 12
    first = OPTIMIZERS[name].get("lr", 0.05)
    assert replica.learning_rate() == pytest.approx(first * 0.9**11)


@pytest.mark.rotates(turns=4)
@pytest.mark.parametrize(
    "fields",
    [{}, {"autocast": "bfloat16"}, {"callbacks": "more.clipping"}, {"optimizer_params": {"name": "NAdam"}}],
    ids=["plain", "autocast", "clipped", "nadam"],
)
def test_members_end_in_the_same_bits_as_one_alone(job: Any, fields: dict[str, Any]) -> None:
    spec = job(model_params={"dropout": 0.5, "wild": True}, feed="grouped.drawing_feed", **fields)
    alone = replica_of(spec)
    first = alone.digest()
    for step in range(4):
        make_step([alone], spec, step)
    members = [replica_of(spec) for _ in range(3)]
    assert {member.digest() for member in members} == {first}
    make_step(members, spec, 0)
    make_step(members[:2], spec, 1)
    newcomer = replica_of(spec)
    note, buffers = pack_state(members[0].state())
    newcomer.load(unpack_state(json.loads(json.dumps(note)), [as_bytes(one) for one in buffers]))
    make_step([newcomer, members[1]], spec, 2)
    make_step([newcomer], spec, 3)
    assert newcomer.digest() == alone.digest() != first
    assert members[1].digest() != alone.digest()
    state = alone.state()
    for name, value in newcomer.state().values.items():
        np.testing.assert_array_equal(value, state.values[name], err_msg=name)
    assert (int(state.values["seen"]), state.values["flag"].tolist()) == (4 * 70000, [True, False])
    assert int(state.values["norm.num_batches_tracked"]) == 4
    assert not np.allclose(state.values["average"], 1.0)
    assert not np.allclose(state.values["norm.running_mean"], 0.0)


def test_reading_in_another_thread_changes_nothing(job: Any) -> None:
    """What ``feed`` draws and what the model draws come from the same generators."""
    spec = job(model_params={"dropout": 0.5, "wild": True}, feed="grouped.drawing_feed")
    replica = replica_of(spec)
    data = read(replica, spec)
    wanted = [replica.compute(0, n, data, 0).arrays[0].copy() for n in range(8)]
    features = [read(replica, spec, n * MICROBATCH).content.features for n in range(8)]
    done, found = threading.Event(), []

    def reading() -> None:
        while not done.is_set():
            found.append([read(replica, spec, n * MICROBATCH).content.features for n in range(8)])

    thread = threading.Thread(target=reading, daemon=True)
    thread.start()
    try:
        for _ in range(5):
            for number, array in enumerate(wanted):
                np.testing.assert_array_equal(replica.compute(0, number, data, 0).arrays[0], array)
    finally:
        done.set()
        thread.join(60)
    assert found
    for again in found:
        assert all(torch.equal(one, other) for one, other in zip(again, features, strict=True))
    assert not torch.allclose(features[0] - features[1], features[1] - features[2]), "drawn anew for each microbatch"


def test_minibatches_computed_in_one_pass_make_the_same_update_but_for_rounding(job: Any) -> None:
    spec = job("plain", optimizer_params={"name": "SGD", "momentum": 0.9, "lr": 0.1})
    exact, fused = [replica_of(spec)], [replica_of(spec) for _ in range(2)]
    first = {name: np.array(value) for name, value in exact[0].state().values.items()}
    for step in range(6):
        make_step(exact, spec, step)
        make_step(fused, spec, step, fused=2)
    assert fused[0].digest() == fused[1].digest(), "members stay equal to each other"
    for name, value in exact[0].state().values.items():
        np.testing.assert_allclose(fused[0].state().values[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
        assert not np.allclose(value, first[name], atol=1e-3), name


def test_dropout_follows_step_and_microbatch_alone(job: Any) -> None:
    spec = job(model_params={"dropout": 0.5})
    replica = replica_of(spec)
    data = read(replica, spec)

    def gradient(step: int, microbatch: int) -> bytes:
        return b"".join(array.tobytes() for array in replica.compute(step, microbatch, data, 0).arrays)

    once = gradient(3, 1)
    assert gradient(3, 2) != once != gradient(4, 1)
    assert gradient(3, 1) == once


@pytest.mark.parametrize(("dropout", "differs"), [(0.5, True), (0.0, False)])
def test_dropout_follows_the_seed_of_the_job(job: Any, dropout: float, differs: bool) -> None:
    found, states = set(), []
    for seed in (0, 7):
        spec = job(model_params={"dropout": dropout}, seed=seed)
        replica = replica_of(spec)
        states.append(copied(replica.state()))
        replica.load(states[0])
        data = read(replica, spec)
        found.add(b"".join(array.tobytes() for array in replica.compute(3, 1, data, 0).arrays))
    assert (len(found) == 2) is differs


def test_a_parameter_without_a_gradient_in_any_microbatch_is_left_alone(job: Any) -> None:
    """As DDP does it; one that any microbatch used gets the mean over all."""
    spec = job("sometimes", optimizer_params={"name": "SGD", "momentum": 0.9, "weight_decay": 0.5})
    members = [replica_of(spec) for _ in range(2)]
    before = members[0].state().values
    used = []
    for step in range(2):
        for number in range(4):
            start = (step * 4 + number) * MICROBATCH
            used.append(bool((read(members[0], spec, start).content.features[:, 0] > 2.2).any()))
        make_step(members, spec, step)
    assert 0 < sum(used) < len(used), "the test needs records of both kinds"
    after, slots = members[1].state().values, members[1].state().slots
    np.testing.assert_array_equal(after["never.weight"], before["never.weight"])
    assert np.isnan(slots["never.weight"][0]).all()
    assert not np.array_equal(after["sometimes.weight"], before["sometimes.weight"])
    assert not np.array_equal(after["always.weight"], before["always.weight"])
    newcomer = replica_of(spec)
    newcomer.load(members[0].state())
    make_step([newcomer, members[1]], spec, 2)
    assert newcomer.digest() == members[1].digest()


def test_gradients_of_large_models_lie_in_several_buckets(job: Any) -> None:
    replica = replica_of(job("large"))
    assert len(replica.lengths) == 4
    parameters = {name: torch.nn.Parameter(torch.ones(size)) for name, size in (("a", 5), ("b", 2), ("c", 4))}
    buckets = TorchBuckets(parameters, bucket=6)
    assert buckets.lengths == [6, 5]
    parameters["a"].grad, parameters["c"].grad = torch.arange(5.0), torch.full((4,), 2.0)
    flat, marks = buckets.pack(3)
    np.testing.assert_array_equal(torch.cat(flat), [6.0] * 4 + [0.0] * 2 + [0.0, 3.0, 6.0, 9.0, 12.0])
    assert marks.tolist() == [1.0, 0.0, 1.0]
    flat[1][2] = torch.nan
    assert buckets.find_not_finite([True, False]) == "a"
    buckets.set_gradients([one / 3 for one in flat], marks)
    assert parameters["b"].grad is None
    assert parameters["c"].grad.tolist() == [2.0] * 4


@pytest.mark.timeout(600)  # 42 s where nothing is compiled yet
@pytest.mark.slow  # the compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own parts
def test_a_compiled_model_gives_one_shape_the_same_bits_whatever_came_before(job: Any) -> None:
    spec = job(torch_compile="on")
    one, other = replica_of(spec), replica_of(spec)
    few = other.read(task_of(spec), 0, 3)
    other.compute(0, 0, few, 0)
    wanted = one.compute(0, 1, read(one, spec), 0).arrays[0].copy()
    np.testing.assert_array_equal(other.compute(0, 1, read(other, spec), 0).arrays[0], wanted)
    np.testing.assert_array_equal(one.compute(0, 0, few, 0).arrays[0], other.compute(0, 0, few, 0).arrays[0])
    make_step([one, other], spec, 0)
    assert one.digest() == other.digest()


def test_training_metrics_predictions_and_checkpoints_in_the_words_of_parameter_servers(job: Any) -> None:
    replica = replica_of(job(optimizer_params={"amsgrad": True}))
    assert replica.layout.slots == ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    assert replica.layout.optimizer.name == "torch.adam"
    spec = job()
    part = replica.compute(0, 0, read(replica, spec), 0)
    assert part.measure is not None
    assert part.measure(True)["error"] > 0
    state = replica.state()
    assert {one.name for one in replica.layout.dense} == set(state.values)
    assert all(len(slots) == 3 and slots[0].shape == state.values[name].shape for name, slots in state.slots.items())
    features = read(replica, spec).content.features
    assert replica.predict(features).shape == (MICROBATCH,)
    assert float(replica.evaluation_loss(torch.ones(3), torch.zeros(3))) == 1.0
    assert replica.outputs == ()


def test_a_state_of_another_model_or_optimizer_is_refused(job: Any) -> None:
    replica = replica_of(job())
    state = replica.state()
    name = next(iter(state.slots))
    with pytest.raises(DataError, match="slots"):
        replica.load(type(state)(1, state.values, dict(state.slots) | {name: []}))
    with pytest.raises(DataError, match="has the shape None in the state"):
        replica.load(type(state)(1, {k: v for k, v in state.values.items() if k != name}, state.slots))
    assert replica.version == 0


def test_a_minibatch_that_is_not_finite_is_left_out_or_fails(job: Any) -> None:
    spec = job(on_nan="skip")
    replica = replica_of(spec)
    data, before = read(replica, spec), replica.digest()
    batch = data.content
    poisoned = type(batch)(batch.features, batch.labels * torch.inf, batch.records, batch.shard, batch.first)
    part = replica.compute(0, 0, type(data)(data.fed, data.skips, poisoned), 0)
    assert (part.rows, list(part.arrays), part.skips.records) == (0, [], MICROBATCH)
    assert replica.digest() == before


def test_a_gradient_that_is_not_finite_where_the_loss_is_is_named(job: Any) -> None:
    spec = dataclasses.replace(job(), model_def="odd.model", model_params={"kind": "Roots"})
    replica = replica_of(spec)
    with pytest.raises(NotFiniteError, match=r"the gradient of out\.weight is not finite"):
        replica.compute(0, 0, read(replica, spec), 0)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "open embedding": (
        {"model": "net", "model_def": "clicks.open_tables", "training_data": "clicks"},
        "has no bound on its ids",
    ),
    "sparse adam": ({"model": "rows", "optimizer_params": {"name": "SparseAdam"}}, "SparseAdam leaves rows alone"),
    "sometimes changed": ({"model": "rarely"}, "the model changes large in some minibatches only"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_member_can_do_is_refused(name: str, job: Any, make_spec: Any) -> None:
    fields, message = REFUSED[name]
    with pytest.raises(UserCodeError, match=message):
        if name == "open embedding":
            replica_of(make_spec(model_def=fields["model_def"]))
        spec = job(**fields)
        replica = replica_of(spec)
        make_step([replica], spec, 0, microbatches=8)


def test_a_model_is_updated_in_the_turn_of_its_device(job: Any, tmp_path: Path) -> None:
    spec = job("plain")
    replica, seen = replica_of(spec), []
    with shared_device(tmp_path) as device:
        hook = register_optimizer_step_pre_hook(lambda *_: seen.append(device.is_taken()))
        try:
            make_step([replica], spec, 0)
        finally:
            hook.remove()
        assert not device.is_taken()
    assert seen == [True]


@pytest.mark.parametrize("count", [1, 255, 256, 257, 511, 513, 1023, 1024])
def test_whole_numbers_move_by_the_exact_sum_of_all_microbatches(count: int) -> None:
    model = nn.Module()
    model.register_buffer("left", torch.tensor([998_257, -5, 0]))
    model.register_buffer("seen", torch.tensor([False, False]))
    state = TorchModelState(model, dict(model.named_buffers()))
    changes = TorchStateChanges(state, ["left", "seen"])
    total = torch.zeros(changes.length)
    for _ in range(count):
        changes.begin()
        model.left -= torch.tensor([1, -(2**40), 2**62])
        model.seen[0] = True
        total += changes.take(rows=3)
        changes.undo()
    changes.apply(total, 3 * count)
    wrapped = (-count * 2**62 + 2**63) % 2**64 - 2**63
    assert model.left.tolist() == [998_257 - count, -5 + count * 2**40, wrapped]
    assert model.seen.tolist() == [True, False]


@pytest.mark.parametrize("rule", [Merge.MAX, Merge.MIN, Merge.LAST])
def test_a_selected_value_that_is_no_number_shows_in_the_sums(rule: Merge) -> None:
    """Its bits, which are sent as whole numbers, were finite: a group went on with it where servers refuse it."""
    model = nn.Module()
    model.register_buffer("high", torch.zeros(2))
    state = TorchModelState(model, dict(model.named_buffers()))
    state.rules["high"] = rule
    changes = TorchStateChanges(state, ["high"], microbatches=2)
    for value, finite in ((torch.inf, True), (torch.nan, False)):
        changes.begin()
        model.high[0] = value
        assert bool(changes.take(3, 1).isfinite().all()) == finite
        changes.undo()
