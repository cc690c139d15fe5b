"""Steps are counted as each framework counts: by the parameter and table (PyTorch), or by the optimizer (Keras)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from elasticdl_core.model import DenseKind, DenseSpec, InitializerSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_ps.checkpoint import load_partition, save_partition
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.store.merging import Changes
from elasticdl_ps.store.partition import DenseInit, Partition
from elasticdl_runtime.checkpoint_files import CheckpointFile, PartHeader
from elasticdl_runtime.partition import ps_of_ids

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'elasticdl[torch]'")
pytestmark = pytest.mark.unit

KERNELS = load_kernels()
SIZE, DIM, STEPS = 7, 3, 24
IDS = np.arange(6) * 31
TABLE = TableSpec("t", DIM, InitializerSpec("uniform", {"minval": -0.5, "maxval": 0.5}, seed=3))
USES = {
    "always": [True] * STEPS,
    "sometimes": [step % 3 == 1 for step in range(STEPS)],
    "late": [step > 15 for step in range(STEPS)],
}
"""In which steps a parameter has a gradient."""
TORCH: list[tuple[str, str, dict[str, Any]]] = [
    ("torch.adam", "Adam", {"lr": 0.05}),
    ("torch.adamw", "AdamW", {"lr": 0.05, "amsgrad": True}),
    ("torch.nadam", "NAdam", {"lr": 0.05}),
    ("torch.radam", "RAdam", {"lr": 0.05, "betas": (0.8, 0.9)}),
    ("torch.adamax", "Adamax", {"lr": 0.05}),
    ("torch.adagrad", "Adagrad", {"lr": 0.1, "lr_decay": 0.2}),
    ("torch.sgd", "SGD", {"lr": 0.1, "momentum": 0.9}),
    ("torch.rmsprop", "RMSprop", {"lr": 0.01}),
]
named = pytest.mark.parametrize(("name", "kind", "options"), TORCH, ids=[case[1] for case in TORCH])


def spec_of(name: str, options: dict[str, Any]) -> OptimizerSpec:
    words = {"lr": "learning_rate"}
    params = {words.get(key, key): value for key, value in options.items() if key != "betas"}
    if "betas" in options:
        params["beta_1"], params["beta_2"] = options["betas"]
    return OptimizerSpec(name, params)


def first_values() -> Any:
    return np.linspace(-1, 1, SIZE, dtype=np.float32)


def gradient(random: np.random.Generator, *shape: int) -> Any:
    return random.normal(size=shape).astype(np.float32)


def declare(
    partition: Partition, specs: Sequence[DenseSpec], optimizer: OptimizerSpec, *, anew: bool = False
) -> None:
    values = None if anew else first_values()
    partition.push_model([DenseInit(one, 0, SIZE, values) for one in specs], [TABLE], optimizer, UpdateMode())


def saved(partitions: Sequence[Partition], folder: Path) -> list[CheckpointFile]:
    count = len(partitions)
    return [save_partition(one, str(folder), index, count)[2] for index, one in enumerate(partitions)]


def restored(folder: Path, files: Sequence[CheckpointFile], count: int) -> list[Partition]:
    partitions = [Partition(KERNELS, count) for _ in range(count)]
    for index, partition in enumerate(partitions):
        partition.become(load_partition(KERNELS, str(folder), files, index, count))
    return partitions


def apply(partitions: Sequence[Partition], dense: dict[str, Any], rows: tuple[Any, Any] | None = None) -> None:
    """One update, cut over servers as workers cut it: every one hears of each table that has gradients."""
    for index, partition in enumerate(partitions):
        held = {spec.name for spec in partition.dense.specs}
        pushed = {}
        if rows is not None:
            mine = ps_of_ids(rows[0], len(partitions)) == index
            pushed["t"] = rows[0][mine], np.ascontiguousarray(rows[1][mine])
        partition.apply([Changes({name: value for name, value in dense.items() if name in held}, pushed)])


def values_of(partitions: Sequence[Partition]) -> dict[str, Any]:
    found = {value.spec.name: value.values for one in partitions for value in one.dense.read(-1)}
    table = np.empty((len(IDS), DIM), np.float32)
    for index, partition in enumerate(partitions):
        mine = ps_of_ids(IDS, len(partitions)) == index
        rows = np.empty((int(mine.sum()), DIM), np.float32)
        partition.tables["t"].read(IDS[mine], rows)
        table[mine] = rows
    return found | {"t": table}


@named
def test_torch_counts_by_the_parameter_and_the_table(
    name: str, kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """Also over checkpoints, by two servers and then by one, where some servers have no row of a step."""
    specs = [DenseSpec(use, (SIZE,)) for use in USES]
    first = Partition(KERNELS)
    declare(first, specs, spec_of(name, options))
    partitions = [first]
    their = {use: torch.nn.Parameter(torch.tensor(first_values())) for use in USES}
    # PyTorch takes dense gradients of a table too, and then moves rows that have none: each here is looked up always.
    their["t"] = torch.nn.Parameter(torch.tensor(values_of(partitions)["t"]))
    optimizer = getattr(torch.optim, kind)(list(their.values()), **options)
    random = np.random.default_rng(5)
    for step in range(STEPS):
        if step in (10, 18):
            folder = tmp_path / str(step)
            partitions = restored(folder, saved(partitions, folder), 2 if step == 10 else 1)
        dense = {use: gradient(random, SIZE) for use, used in USES.items() if used[step]}
        rows = gradient(random, len(IDS), DIM) if USES["sometimes"][step] else None
        for use, parameter in their.items():
            found = rows if use == "t" else dense.get(use)
            parameter.grad = None if found is None else torch.tensor(found)
        apply(partitions, dense, None if rows is None else (IDS, rows))
        optimizer.step()
    for use, value in values_of(partitions).items():
        np.testing.assert_allclose(value, their[use].detach().numpy(), rtol=0, atol=2e-6, err_msg=use)


@pytest.mark.parametrize("options", [{"lr": 0.05}, {"lr": 0.1, "lr_decay": 0.2}], ids=["SparseAdam", "Adagrad"])
def test_a_row_has_the_count_of_its_table_wherever_it_lies(options: dict[str, Any], tmp_path: Path) -> None:
    name, kind = ("adagrad", "Adagrad") if "lr_decay" in options else ("sparse_adam", "SparseAdam")
    specs = [DenseSpec("always", (SIZE,))]
    one = Partition(KERNELS)
    declare(one, specs, spec_of(f"torch.{name}", options))
    partitions = restored(tmp_path, saved([one], tmp_path), 2)
    table = torch.nn.Parameter(torch.tensor(values_of(partitions)["t"]))
    optimizer = getattr(torch.optim, kind)([table], **options)
    random = np.random.default_rng(5)
    for step in range(STEPS):
        dense, rows = {"always": gradient(random, SIZE)}, np.flatnonzero(random.random(len(IDS)) < 0.3)
        if step % 3:
            apply(partitions, dense)
            continue
        grads = gradient(random, len(rows), DIM)
        apply(partitions, dense, (IDS[rows], grads))
        with torch.sparse.check_sparse_tensor_invariants():
            table.grad = torch.sparse_coo_tensor(torch.tensor(rows)[None], torch.tensor(grads), table.shape)
        optimizer.step()
    np.testing.assert_allclose(values_of(partitions)["t"], table.detach().numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["adam", "adamax"])
def test_keras_counts_by_the_optimizer(name: str, tmp_path: Path) -> None:
    made: Any = {"adam": keras.optimizers.Adam, "adamax": keras.optimizers.Adamax}[name](0.05)
    partition = Partition(KERNELS)
    declare(partition, [DenseSpec(use, (SIZE,)) for use in USES], OptimizerSpec(name, {"learning_rate": 0.05}))
    their = {use: keras.Variable(first_values()) for use in USES}
    made.build(list(their.values()))
    random = np.random.default_rng(5)
    for step in range(STEPS):
        if step == 10:
            (partition,) = restored(tmp_path, saved([partition], tmp_path), 1)
        dense = {use: gradient(random, SIZE) for use, used in USES.items() if used[step]}
        apply([partition], dense)
        made.apply([keras.ops.convert_to_tensor(value) for value in dense.values()], [their[use] for use in dense])
    for use, variable in their.items():
        np.testing.assert_allclose(values_of([partition])[use], np.asarray(variable), rtol=0, atol=1e-6)


@named
def test_what_a_second_job_unfreezes_is_counted_from_its_first_update(
    name: str, kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """As plain PyTorch does with ``add_param_group``."""
    trained, frozen = DenseSpec("old", (SIZE,)), DenseSpec("new", (SIZE,), "float32", DenseKind.STATE)
    partition = Partition(KERNELS)
    declare(partition, [trained, frozen], spec_of(name, options))
    their = {use: torch.nn.Parameter(torch.tensor(first_values())) for use in ("old", "new")}
    optimizer = getattr(torch.optim, kind)([their["old"]], **options)
    random = np.random.default_rng(5)
    for step in range(STEPS):
        if step == 10:
            (partition,) = restored(tmp_path, saved([partition], tmp_path), 1)
            both = [trained, replace(frozen, kind=DenseKind.TRAINABLE)]
            declare(partition, both, spec_of(name, options), anew=True)
            optimizer.add_param_group({"params": [their["new"]]})
        dense = {use: gradient(random, SIZE) for use in (("old",) if step < 10 else ("old", "new"))}
        for use, value in dense.items():
            their[use].grad = torch.tensor(value)
        apply([partition], dense)
        optimizer.step()
    for use, parameter in their.items():
        np.testing.assert_allclose(
            values_of([partition])[use], parameter.detach().numpy(), rtol=0, atol=2e-6, err_msg=use
        )


@pytest.mark.parametrize(("before", "after"), [("torch.sgd", "torch.adam"), ("sgd", "adam"), ("adagrad", "adamax")])
def test_another_optimizer_counts_from_its_first_update(before: str, after: str, tmp_path: Path) -> None:
    """All of its state is fresh."""
    specs, random = [DenseSpec("always", (SIZE,))], np.random.default_rng(5)
    partition, fresh = Partition(KERNELS), Partition(KERNELS)
    declare(partition, specs, OptimizerSpec(before, {"learning_rate": 0.0}))
    declare(fresh, specs, OptimizerSpec(after, {"learning_rate": 0.05}))
    for _ in range(10):
        apply([partition], {"always": gradient(random, SIZE)}, (IDS, gradient(random, len(IDS), DIM)))
    (partition,) = restored(tmp_path, saved([partition], tmp_path), 1)
    declare(partition, specs, OptimizerSpec(after, {"learning_rate": 0.05}), anew=True)
    for _ in range(5):
        dense, rows = {"always": gradient(random, SIZE)}, (IDS, gradient(random, len(IDS), DIM))
        apply([partition], dense, rows)
        apply([fresh], dense, rows)
    assert partition.version == 15
    for use, value in values_of([fresh]).items():
        np.testing.assert_array_equal(values_of([partition])[use], value)


@pytest.mark.parametrize("name", ["torch.adam", "adam"])
def test_a_checkpoint_without_counts_has_them_of_its_version(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As all had them when it was written."""
    partition = Partition(KERNELS)
    declare(partition, [DenseSpec(use, (SIZE,)) for use in USES], OptimizerSpec(name))
    for _ in range(10):
        apply([partition], {"always": np.ones(SIZE, np.float32)})
    written = PartHeader.to_json
    with monkeypatch.context() as patched:
        patched.setattr(PartHeader, "to_json", lambda self: written(self).replace('"steps"', '"unknown"'))
        files = saved([partition], tmp_path)
    (again,) = restored(tmp_path, files, 1)
    assert again.iterations == again.version == again.tables["t"].steps == 10
    assert {value.spec.name: value.steps for value in again.dense.read(-1)} == dict.fromkeys(USES, 10)


def check_drawn(seed: int, folder: Path) -> None:
    """A drawn optimizer over drawn uses of parameters and tables, jobs and numbers of servers, against PyTorch."""
    random = np.random.default_rng(seed)
    name, kind, options = TORCH[random.integers(len(TORCH))]
    uses = {f"w{number}": float(random.choice([1.0, 0.6, 0.2])) for number in range(random.integers(1, 5))}
    begins = {use: int(random.choice([0, 0, 1, 2])) for use in uses} | {"w0": 0}
    rows_used = float(random.choice([1.0, 0.4]))

    def specs_of(job: int) -> list[DenseSpec]:
        kinds = {use: DenseKind.TRAINABLE if begins[use] <= job else DenseKind.STATE for use in uses}
        return [DenseSpec(use, (SIZE,), "float32", one) for use, one in kinds.items()]

    partitions = [Partition(KERNELS)]
    declare(partitions[0], specs_of(0), spec_of(name, options))
    their = {use: torch.nn.Parameter(torch.tensor(first_values())) for use in uses}
    their["t"] = torch.nn.Parameter(torch.tensor(values_of(partitions)["t"]))
    first = [their["t"], *(their[use] for use in uses if not begins[use])]
    optimizer = getattr(torch.optim, kind)(first, **options)
    for job in range(3):
        if job:
            files = saved(partitions, folder / str(job))
            partitions = restored(folder / str(job), files, int(random.integers(1, 4)))
            for partition in partitions:
                held = [spec for spec in specs_of(job) if partition.dense.part(spec.name)]
                declare(partition, held, spec_of(name, options), anew=True)
            added = [their[use] for use in uses if begins[use] == job]
            if added:
                optimizer.add_param_group({"params": added})
        for _ in range(random.integers(1, 12)):
            dense = {
                use: gradient(random, SIZE)
                for use, often in uses.items()
                if begins[use] <= job and random.random() < often
            }
            rows = gradient(random, len(IDS), DIM) if random.random() < rows_used else None
            for use, parameter in their.items():
                found = rows if use == "t" else dense.get(use)
                parameter.grad = None if found is None else torch.tensor(found)
            apply(partitions, dense, None if rows is None else (IDS, rows))
            optimizer.step()
    for use, value in values_of(partitions).items():
        what = f"{use} of seed {seed}: {kind}"
        np.testing.assert_allclose(value, their[use].detach().numpy(), rtol=0, atol=3e-6, err_msg=what)


def test_some_drawn_trainings_count_as_torch_does(tmp_path: Path) -> None:
    for seed in range(12):
        check_drawn(seed, tmp_path / str(seed))


@pytest.mark.slow
def test_many_drawn_trainings_count_as_torch_does(tmp_path: Path) -> None:
    for seed in range(12, 400):
        check_drawn(seed, tmp_path / str(seed))
