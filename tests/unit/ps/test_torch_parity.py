"""Every optimizer in PyTorch's words does what ``torch.optim`` does: dense, rows, and groups with their rates."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseSpec, InitializerSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_core.ports.launcher import Role
from elasticdl_ps import codec
from elasticdl_ps.families.torch import TORCH_FAMILIES
from elasticdl_ps.kernels import KernelSet, load_kernels
from elasticdl_ps.optimizers import Optimizer
from elasticdl_ps.pushes import DenseGradient, PushRequest
from elasticdl_ps.rounds import Member, Round
from elasticdl_ps.store.merging import Changes
from elasticdl_ps.store.partition import DenseInit, Partition
from elasticdl_ps.updates import Updates
from elasticdl_runtime.tokens import Claims

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.unit

CLASSES = {
    "torch.sgd": "SGD",
    "torch.adam": "Adam",
    "torch.adamw": "AdamW",
    "torch.adagrad": "Adagrad",
    "torch.rmsprop": "RMSprop",
    "torch.adadelta": "Adadelta",
    "torch.adamax": "Adamax",
    "torch.nadam": "NAdam",
    "torch.radam": "RAdam",
    "torch.sparse_adam": "SparseAdam",
}
Options = dict[str, Any]
CASES: list[tuple[str, Options]] = [
    *[(name, {}) for name in CLASSES],
    ("torch.sgd", {"lr": 0.05, "weight_decay": 0.1, "maximize": True}),
    ("torch.sgd", {"momentum": 0.9, "weight_decay": 0.01}),
    ("torch.sgd", {"momentum": 0.9, "dampening": 0.3, "maximize": True}),
    ("torch.sgd", {"momentum": 0.8, "nesterov": True, "lr": 0.02}),
    ("torch.sgd", {"momentum": 1.2, "dampening": -0.1, "lr": 1e-19}),
    ("torch.adam", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-3}),
    ("torch.adam", {"amsgrad": True, "weight_decay": 0.05}),
    ("torch.adam", {"maximize": True, "weight_decay": 0.05}),
    ("torch.adam", {"decoupled_weight_decay": True, "weight_decay": 0.05}),
    ("torch.adam", {"betas": (0.0, 0.0), "eps": 0.1}),
    ("torch.adamw", {"weight_decay": 0.1, "amsgrad": True, "maximize": True}),
    ("torch.adagrad", {"lr_decay": 0.05, "initial_accumulator_value": 0.3}),
    ("torch.adagrad", {"weight_decay": 0.1, "eps": 0.01, "maximize": True}),
    ("torch.rmsprop", {"momentum": 0.9, "lr": 0.001}),
    ("torch.rmsprop", {"centered": True, "alpha": 0.8, "lr": 0.002}),
    ("torch.rmsprop", {"centered": True, "momentum": 0.3, "weight_decay": 0.02, "lr": 0.001}),
    ("torch.rmsprop", {"maximize": True, "eps": 0.01}),
    ("torch.adadelta", {"lr": 0.5, "rho": 0.7, "eps": 1e-4, "weight_decay": 0.1}),
    ("torch.adadelta", {"maximize": True}),
    ("torch.adamax", {"betas": (0.7, 0.9), "eps": 0.01, "weight_decay": 0.1}),
    ("torch.adamax", {"maximize": True}),
    ("torch.nadam", {"momentum_decay": 0.05, "weight_decay": 0.1}),
    ("torch.nadam", {"decoupled_weight_decay": True, "weight_decay": 0.1, "maximize": True}),
    ("torch.radam", {"betas": (0.8, 0.9), "weight_decay": 0.1}),
    ("torch.radam", {"decoupled_weight_decay": True, "weight_decay": 0.1, "maximize": True}),
    ("torch.sparse_adam", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-3, "maximize": True}),
]
GROUPS: list[tuple[str, list[Options]]] = [
    ("torch.sgd", [{"lr": 0.02}, {"lr": 0.002, "momentum": 0.9, "weight_decay": 0.1}, {"momentum": 0.5, "lr": 0.01}]),
    (
        "torch.sgd",
        [
            {"lr": 0.002, "momentum": 0.9, "dampening": 0.2},
            {"lr": 0.01},
            {"lr": 0.01, "momentum": 0.5, "nesterov": True},
        ],
    ),
    ("torch.adamw", [{"weight_decay": 0.0}, {"lr": 0.01, "betas": (0.8, 0.9)}, {"amsgrad": True}]),
    ("torch.adam", [{"weight_decay": 0.1}, {"maximize": True}, {"eps": 0.01, "lr": 0.01}]),
    ("torch.adagrad", [{}, {"eps": 0.1, "weight_decay": 0.2}, {"lr_decay": 0.1}]),
    ("torch.rmsprop", [{"lr": 0.001}, {"momentum": 0.5, "lr": 0.001}, {"centered": True, "lr": 0.002}]),
    ("torch.nadam", [{}, {"momentum_decay": 0.1, "weight_decay": 0.1}, {"decoupled_weight_decay": True}]),
]
STEPS, ROWS, DIM = 200, 6, 9
INITIAL = InitializerSpec("uniform", {"minval": -0.5, "maxval": 0.5}, seed=3)
_WORDS = {"lr": "learning_rate", "eps": "epsilon"}


def label(case: tuple[str, Any]) -> str:
    return "-".join([case[0].removeprefix("torch."), *(case[1] if isinstance(case[1], dict) else ["groups"])])


@pytest.fixture(params=["numba", "numpy"])
def kernels(request: pytest.FixtureRequest) -> KernelSet:
    return load_kernels(request.param)


def params_of(options: Options) -> Options:
    """PyTorch's words as those of the specification."""
    params: Options = {_WORDS.get(name, name): value for name, value in options.items() if name != "betas"}
    if "betas" in options:
        params["beta_1"], params["beta_2"] = options["betas"]
    return params


def optimizer_of(name: str, options: Options, parameters: Sequence[Any]) -> Any:
    return getattr(torch.optim, CLASSES[name])(parameters, **options)


def gradients(rows: int = ROWS) -> Any:
    return np.random.default_rng(7).normal(size=(STEPS, rows, DIM)).astype(np.float32)


def first_values() -> Any:
    return np.random.default_rng(2).uniform(-0.5, 0.5, (ROWS, DIM)).astype(np.float32)


def torch_run(name: str, options: Options, first: Any, grads: Any) -> Any:
    """A dense parameter after as many steps as there are gradients."""
    if name == "torch.sparse_adam":
        return sparse_run(name, options, first, [(np.arange(len(first)), grad) for grad in grads])
    parameter = torch.nn.Parameter(torch.tensor(first))
    optimizer = optimizer_of(name, options, [parameter])
    for grad in grads:
        parameter.grad = torch.tensor(grad)
        optimizer.step()
    return parameter.detach().numpy()


def sparse_run(name: str, options: Options, first: Any, grads: Sequence[tuple[Any, Any]]) -> Any:
    """The weights of an embedding that is given sparse gradients."""
    parameter = torch.nn.Parameter(torch.tensor(first))
    optimizer = optimizer_of(name, options, [parameter])
    for rows, grad in grads:
        with torch.sparse.check_sparse_tensor_invariants():
            at, values = torch.tensor(rows)[None], torch.tensor(grad)
            parameter.grad = torch.sparse_coo_tensor(at, values, parameter.shape)
            optimizer.step()
    return parameter.detach().numpy()


def dense_partition(kernels: KernelSet, spec: OptimizerSpec, values: Any, groups: Sequence[int] = (0,)) -> Partition:
    partition = Partition(kernels)
    parts = [
        DenseInit(DenseSpec(f"w{number}", values.shape, group=group), 0, values.size, values.reshape(-1))
        for number, group in enumerate(groups)
    ]
    partition.push_model(parts, [], spec, UpdateMode())
    return partition


def test_every_named_optimizer_is_tested() -> None:
    assert {name for name, _ in CASES} == set(CLASSES) == set(TORCH_FAMILIES)


@pytest.mark.parametrize("name", CLASSES)
def test_hyper_parameters_and_their_defaults_are_those_of_pytorch(name: str) -> None:
    signature = inspect.signature(getattr(torch.optim, CLASSES[name]))
    theirs = params_of({key: value.default for key, value in signature.parameters.items() if key != "params"})
    ignored = {"foreach", "fused", "capturable", "differentiable"}
    if name == "torch.adamw":
        theirs["decoupled_weight_decay"] = True  # PyTorch says so to Adam, whose subclass it is.
    assert TORCH_FAMILIES[name].defaults == {key: value for key, value in theirs.items() if key not in ignored}
    assert ignored >= theirs.keys() - TORCH_FAMILIES[name].defaults.keys()
    Optimizer(OptimizerSpec(name, {**theirs, **dict.fromkeys(ignored, True)}))


@pytest.mark.parametrize("case", CASES, ids=label)
def test_dense_update_equals_torch(case: tuple[str, Options], kernels: KernelSet) -> None:
    name, options = case
    first, grads = first_values(), gradients()
    partition = dense_partition(kernels, OptimizerSpec(name, params_of(options)), first)
    for grad in grads:
        partition.apply([Changes({"w0": grad.reshape(-1)})])
    (value,) = partition.dense.read(-1)
    expected = torch_run(name, options, first, grads)
    assert np.abs(expected - first).max() > 1e-3
    np.testing.assert_allclose(value.values.reshape(first.shape), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=label)
def test_rows_that_are_always_touched_equal_torch(case: tuple[str, Options]) -> None:
    name, options = case
    ids = np.array([10**12, 3, 77, 0, 5, 8])
    partition = Partition(load_kernels())
    partition.push_model([], [TableSpec("t", DIM, INITIAL)], OptimizerSpec(name, params_of(options)), UpdateMode())
    first, last = np.empty((ROWS, DIM), np.float32), np.empty((ROWS, DIM), np.float32)
    partition.tables["t"].read(ids, first)
    grads = gradients()
    for grad in grads:
        partition.apply([Changes(rows={"t": (ids[::-1], np.ascontiguousarray(grad[::-1]))})])
    partition.tables["t"].read(ids, last)
    np.testing.assert_allclose(last, torch_run(name, options, first, grads), rtol=0, atol=1e-6)


SPARSE: list[tuple[str, Options]] = [
    ("torch.sparse_adam", {"lr": 0.01}),
    ("torch.adagrad", {"lr_decay": 0.01, "initial_accumulator_value": 0.1}),
    ("torch.sgd", {"lr": 0.1}),
]


@pytest.mark.parametrize("case", SPARSE, ids=label)
def test_rows_equal_an_embedding_with_sparse_gradients(case: tuple[str, Options], kernels: KernelSet) -> None:
    """The optimizers that take sparse gradients: untouched rows stay, and the step count is the table's."""
    name, options = case
    ids = np.arange(ROWS) * 31
    partition = Partition(kernels)
    partition.push_model([], [TableSpec("t", DIM, INITIAL)], OptimizerSpec(name, params_of(options)), UpdateMode())
    first, last = np.empty((ROWS, DIM), np.float32), np.empty((ROWS, DIM), np.float32)
    partition.tables["t"].read(ids, first)
    random = np.random.default_rng(9)
    pushed = []
    for grad in gradients():
        # The last row comes late, so that it is seen which step its first update is.
        rows = np.flatnonzero(
            (random.random(ROWS) < 0.5) & ((np.arange(ROWS) < ROWS - 1) | (len(pushed) > STEPS / 2))
        )
        rows = rows if len(rows) else np.zeros(1, np.int64)
        pushed.append((rows, np.ascontiguousarray(grad[rows])))
        partition.apply([Changes(rows={"t": (ids[rows], pushed[-1][1])})])
    partition.tables["t"].read(ids, last)
    np.testing.assert_allclose(last, sparse_run(name, options, first, pushed), rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=label)
def test_untouched_rows_and_their_slots_stay(case: tuple[str, Options], kernels: KernelSet) -> None:
    """Against a dense parameter for each row, updated at the table's steps at which its row is touched."""
    name, options = case
    spec = OptimizerSpec(name, params_of(options))
    partition = Partition(kernels)
    partition.push_model([], [TableSpec("t", DIM, INITIAL)], spec, UpdateMode())
    ids = np.arange(ROWS) * 31
    first, last = np.empty((ROWS, DIM), np.float32), np.empty((ROWS, DIM), np.float32)
    partition.tables["t"].read(ids, first)
    made = Optimizer(spec)
    update = load_kernels("numpy").update(made.kernel)
    records = [np.concatenate([row, np.repeat(made.slot_values(), DIM)]).reshape(1, -1) for row in first]
    random = np.random.default_rng(9)
    for step, grad in enumerate(gradients()[:60], start=1):
        touched = np.flatnonzero(random.random(ROWS) < 0.5)
        partition.apply([Changes(rows={"t": (ids[touched], np.ascontiguousarray(grad[touched]))})])
        for row in touched:
            update(records[row], np.zeros(1, np.int64), grad[row : row + 1], made.numbers(step))
    partition.tables["t"].read(ids, last)
    np.testing.assert_allclose(last, np.concatenate(records)[:, :DIM], rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", GROUPS, ids=label)
def test_groups_with_a_schedule_for_each_equal_torch(case: tuple[str, list[Options]], kernels: KernelSet) -> None:
    """As a worker does it: ``torch.optim.lr_scheduler`` runs there, and a push sends the rates that it says."""
    name, options = case
    first, grads = first_values(), gradients(len(options) * ROWS)
    parameters = [torch.nn.Parameter(torch.tensor(first)) for _ in options]
    groups = [{"params": [parameter], **group} for parameter, group in zip(parameters, options, strict=True)]
    optimizer = optimizer_of(name, {}, groups)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, [lambda step, power=power: 0.995 ** (power * step) for power in range(len(options))]
    )
    spec = OptimizerSpec(name, params_of(options[0]), tuple(_as_differences(name, options)))
    partition = dense_partition(kernels, spec, first, range(len(options)))
    for grad in grads:
        parts = np.split(grad, len(options))
        rates = [group["lr"] for group in optimizer.param_groups]
        partition.apply([Changes({f"w{i}": part.reshape(-1) for i, part in enumerate(parts)})], rates)
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = torch.tensor(part)
        optimizer.step()
        scheduler.step()
    for value, parameter in zip(partition.dense.read(-1), parameters, strict=True):
        expected = parameter.detach().numpy()
        assert np.abs(expected - first).max() > 1e-3
        np.testing.assert_allclose(value.values.reshape(first.shape), expected, rtol=0, atol=1e-6)


def _as_differences(name: str, options: list[Options]) -> list[Options]:
    """What further groups say: whatever any group changed is said again, as PyTorch's own default or else."""
    defaults = TORCH_FAMILIES[name].defaults
    mentioned = params_of({key: None for group in options for key in group if key != "betas"})
    whole = {**{key: defaults[key] for key in mentioned}, "beta_1": 0.9, "beta_2": 0.999}
    known = {key: value for key, value in whole.items() if key in defaults}
    return [{**known, **params_of(group)} for group in options[1:]]


def test_groups_of_tables_have_rates_and_decay_of_their_own(kernels: KernelSet) -> None:
    tables = [TableSpec(name, 2, InitializerSpec("ones"), group=group) for name, group in (("a", 0), ("b", 1))]
    spec = OptimizerSpec("torch.sgd", {"learning_rate": 1.0}, ({"learning_rate": 0.5, "weight_decay": 0.2},))
    partition = Partition(kernels)
    partition.push_model([], tables, spec, UpdateMode())
    ids, out = np.zeros(1, np.int64), np.empty((1, 2), np.float32)

    def push(rates: Sequence[float]) -> list[float]:
        partition.apply([Changes(rows={name: (ids, np.ones((1, 2), np.float32)) for name in "ab"})], rates)
        found = []
        for name in "ab":
            partition.tables[name].read(ids, out)
            found.append(float(out[0, 1]))
        return found

    assert push(()) == pytest.approx([0.0, 1 - 0.5 * (1 + 0.2)])
    assert push((0.0, 1.0)) == pytest.approx([0.0, 0.4 - (1 + 0.2 * 0.4)])


@pytest.mark.parametrize(
    ("name", "steps", "expected"),
    [
        ("torch.sgd", 3, 0.9**3),
        ("torch.adamw", 3, 0.9**3),
        ("torch.sgd", 1, 0.9),
    ],
)
def test_decay_acts_for_each_minibatch(name: str, steps: int, expected: float, kernels: KernelSet) -> None:
    spec = OptimizerSpec(name, {"learning_rate": 0.1, "weight_decay": 1.0})
    partition = dense_partition(kernels, spec, np.ones((2, 2), np.float32))
    partition.apply([Changes({"w0": np.zeros(4, np.float32)}, steps=steps)])
    np.testing.assert_allclose(partition.dense.read(-1)[0].values, np.full(4, expected), rtol=1e-6)


def test_l2_decay_counts_as_often_as_there_are_gradients(kernels: KernelSet) -> None:
    first, grad = first_values(), gradients()[0]
    decayed = OptimizerSpec("torch.adagrad", {"weight_decay": 0.1})
    found = dense_partition(kernels, decayed, first)
    found.apply([Changes({"w0": 3 * grad.reshape(-1)}, steps=3)])
    wanted = dense_partition(kernels, OptimizerSpec("torch.adagrad"), first)
    wanted.apply([Changes({"w0": (3 * (grad + np.float32(0.1) * first)).reshape(-1)})])
    np.testing.assert_allclose(found.dense.read(-1)[0].values, wanted.dense.read(-1)[0].values, rtol=0, atol=1e-6)


def test_a_variable_that_is_excluded_does_not_decay(kernels: KernelSet) -> None:
    for name in set(CLASSES) - {"torch.sparse_adam"}:
        for decoupled in ({}, {"decoupled_weight_decay": True}):
            if decoupled and "decoupled_weight_decay" not in TORCH_FAMILIES[name].defaults:
                continue
            partition = Partition(kernels)
            part = DenseInit(DenseSpec("b", (4,), weight_decay=False), 0, 4, np.ones(4, np.float32))
            spec = OptimizerSpec(name, {"learning_rate": 0.5, "weight_decay": 0.5, **decoupled})
            partition.push_model([part], [], spec, UpdateMode())
            partition.apply([Changes({"b": np.zeros(4, np.float32)})])
            assert partition.dense.read(-1)[0].values.tolist() == [1.0] * 4, name


def test_a_late_gradient_is_corrected_the_other_way_where_it_goes_uphill(kernels: KernelSet) -> None:
    found = []
    for sign, maximize in ((1.0, False), (-1.0, True)):
        spec = OptimizerSpec("torch.sgd", {"learning_rate": 0.1, "maximize": maximize})
        partition = Partition(kernels)
        part = DenseInit(DenseSpec("w", (3,)), 0, 3, np.array([1.0, 2.0, 3.0], np.float32))
        tables = [TableSpec("t", 1, InitializerSpec("ones"))]
        partition.push_model([part], tables, spec, UpdateMode(delay_compensation=0.5))
        grad, pulled = np.array([1.0, -2.0, 0.5], np.float32), np.array([0.5, 2.5, 3.0], np.float32)
        ids, row = np.zeros(1, np.int64), np.full((1, 1), 0.5, np.float32)
        partition.apply(
            [
                Changes(
                    {"w": np.float32(sign) * grad},
                    {"t": (ids, np.float32(sign) * row)},
                    pulled_dense={"w": pulled},
                    pulled_rows={"t": row},
                )
            ]
        )
        out = np.empty((1, 1), np.float32)
        partition.tables["t"].read(ids, out)
        found.append([*partition.dense.read(-1)[0].values.tolist(), float(out[0, 0])])
    assert found[0] == pytest.approx(found[1])
    assert found[0][0] == pytest.approx(1 - 0.1 * (1 + 0.5 * 0.5))


def test_a_long_pause_of_nadam_is_caught_up(kernels: KernelSet) -> None:
    """As after a restore: the step count goes on from the checkpoint's, and the product of momenta with it."""
    made = Optimizer(OptimizerSpec("torch.nadam", {"beta_1": 0.7}))
    in_order = [made.numbers(step) for step in range(1, 40)]
    again = Optimizer(OptimizerSpec("torch.nadam", {"beta_1": 0.7}))
    for step in (39, 7, 8, 20, 1):
        np.testing.assert_array_equal(again.numbers(step), in_order[step - 1])
    assert np.isfinite(again.numbers(10**7)).all()


def test_what_groups_cannot_differ_in_is_refused_by_name() -> None:
    differing = [
        OptimizerSpec("torch.adagrad", {}, ({"initial_accumulator_value": 0.5},)),
        OptimizerSpec("adam", {}, ({"amsgrad": True},)),
    ]
    for spec, word in zip(differing, ("initial_accumulator_value", "amsgrad"), strict=True):
        with pytest.raises(InvalidInputError, match=word) as caught:
            Optimizer(spec)
        assert caught.value.fix


def test_a_parameter_of_a_group_that_there_is_not_is_refused(kernels: KernelSet) -> None:
    spec, partition = OptimizerSpec("torch.adam", {}, ({},)), Partition(kernels)
    part = DenseInit(DenseSpec("w", (1,), group=2), 0, 1, np.ones(1, np.float32))
    for dense, tables in (([part], []), ([], [TableSpec("w", 2, group=-1)])):
        with pytest.raises(InvalidInputError, match=r"'w' is in the group") as caught:
            partition.push_model(dense, tables, spec, UpdateMode())
        assert caught.value.fix
    assert not partition.initialised


@pytest.mark.parametrize(
    ("name", "params", "word"),
    [
        ("torch.lbfgs", {}, "torch.lbfgs"),
        ("torch.adam", {"lr": 0.1}, "lr"),
        ("torch.adam", {"beta_1": 1.0}, "below 1"),
        ("torch.sgd", {"momentum": -0.1}, "momentum"),
        ("torch.sgd", {"nesterov": True}, "nesterov"),
        ("torch.sgd", {"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "nesterov"),
        ("torch.sgd", {"maximize": 2}, "maximize"),
        ("torch.adadelta", {"rho": 1.1}, "rho"),
        ("torch.sparse_adam", {"weight_decay": 0.1}, "weight_decay"),
        ("torch.adamax", {"epsilon": -1.0}, "epsilon"),
        ("torch.adagrad", {"lr_decay": float("inf")}, "lr_decay"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(name: str, params: Options, word: str) -> None:
    for spec in (OptimizerSpec(name, params), OptimizerSpec(name, {}, (params,))):
        with pytest.raises(InvalidInputError, match=word) as caught:
            Optimizer(spec)
        assert caught.value.fix


GROUPS_OF_SGD = OptimizerSpec("torch.sgd", {"learning_rate": 1.0}, ({"learning_rate": 0.5},))


def two_groups(mode: UpdateMode) -> tuple[Partition, Updates]:
    partition = Partition(load_kernels())
    parts = [DenseInit(DenseSpec(f"w{group}", (1,), group=group), 0, 1, np.zeros(1, np.float32)) for group in (0, 1)]
    partition.push_model(parts, [], GROUPS_OF_SGD, mode)
    return partition, Updates(partition, first=True)


def take(updates: Updates, sequence: int, worker: int, version: int, rates: tuple[float, ...]) -> None:
    one = memoryview(np.ones(1, np.float32).tobytes())
    dense = [DenseGradient(f"w{group}", 0, 1, 0) for group in (0, 1)]
    name = f"worker-{worker}.0"
    push = PushRequest(name, sequence, version, learning_rates=rates, records=1, dense=dense, buffers=[one])
    assert updates.take(push, Claims("job", Role.WORKER, worker, 0, 0.0)).accepted


def values(partition: Partition) -> list[float]:
    return [float(value.values[0]) for value in partition.dense.read(-1)]


@pytest.mark.parametrize(("rates", "expected"), [((), (1.0, 0.5)), ((0.2, 0.4), (0.2, 0.4))])
def test_staleness_divides_the_rate_of_each_group(rates: tuple[float, ...], expected: tuple[float, ...]) -> None:
    partition, updates = two_groups(UpdateMode(lr_staleness_modulation=True))
    for sequence in range(1, 5):
        take(updates, sequence, 0, sequence - 1, (0.0, 0.0))
    take(updates, 1, 1, 0, rates)
    assert values(partition) == pytest.approx([-expected[0] / 4, -expected[1] / 4])


def test_a_round_has_the_rates_of_each_group() -> None:
    partition, updates = two_groups(UpdateMode(use_async=False, grads_to_wait=2))
    for worker in (0, 1):
        take(updates, 1, worker, 0, (0.2, 0.4))
    assert values(partition) == pytest.approx([-0.2, -0.4])
    closed = updates.rounds.last
    assert closed is not None
    assert codec.round_from_message(codec.round_to_message(closed)).learning_rates == pytest.approx((0.2, 0.4))
    with pytest.raises(InvalidInputError, match="2 groups"):
        updates.apply(Round(1, (Member("worker-0.0", 2),), (0.1,)))
