"""What begins with another job's checkpoint does so alike, or is refused alike, by whatever trains it."""

from __future__ import annotations

import pytest

from tests.differential.driver import Bench, Outcome, Row, differences
from tests.differential.rows import TORCH_ROWS
from tests.differential.rows.embeddings import ROWS as EMBEDDING_ROWS
from tests.differential.rows.embeddings import TABLES
from tests.differential.rows.torch_models import module_of
from tests.differential.zoo import module
from tests.fakes.frameworks import NEEDS_TORCH

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
KERAS, TORCH = "keras", pytest.param("torch", marks=NEEDS_TORCH)

LOCAL_CHECKPOINTS = {"keep_checkpoint_max": 1}
"""Asks a local run for checkpoints, of which the last is left."""


def heads(framework: str, *, extra: bool, frozen: bool = False, optimizer: str = "Adam") -> Row:
    """A model of one or two layers of its input; the second one may be frozen."""
    if framework == KERAS:
        second = f" + layers.Dense(1, name='extra', trainable={not frozen})(x)" if extra else ""
        source = module(
            f"def forward():\n    x = keras.Input((4,), name='x')\n"
            f"    return keras.Model(x, layers.Dense(1, name='first')(x){second})",
            f"def optimizer():\n    return keras.optimizers.{optimizer}(0.05)",
        )
        return Row("warm_keras", source, "groups")
    made = f"self.extra = nn.Linear(4, 1).requires_grad_({not frozen})" if extra else "pass"
    used = " + self.extra(x)" if extra else ""
    source = module_of(
        f"""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = nn.Linear(4, 1)
                {made}

            def forward(self, x):
                return (self.first(x){used}).flatten(0)

        forward = Net

        def optimizer():
            return functools.partial(torch.optim.{optimizer}, lr=0.05)
        """
    )
    return Row("warm_torch", source, "groups", {"export_formats": "safetensors"}, tolerance=1e-5)


def begun(bench: Bench, row: Row, first: Outcome, place: str = "") -> dict[str, Outcome]:
    """A row that begins with what a job left, there or at a place of its own, in every way."""
    assert first.error == ("", "")
    given = {"checkpoint_dir_for_init": place or str(first.checkpoints), "num_epochs": 1}
    return {
        "--local": bench.local(row, **given),
        "parameter servers": bench.cluster(row, workers=1, **given),
        "a group": bench.group(row, **given),
    }


def agree(row: Row, ways: dict[str, Outcome]) -> None:
    """What came of a row is the same in every way."""
    for way, outcome in ways.items():
        assert differences(row, ways["--local"], outcome, records=False) == [], way


@pytest.mark.parametrize("framework", [KERAS, TORCH])
def test_the_optimizer_goes_on_with_what_it_remembers(bench: Bench, framework: str) -> None:
    """A local run began it anew."""
    row = heads(framework, extra=True)
    whole = bench.local(row, num_epochs=2)
    firsts = (
        bench.cluster(row, workers=1, num_epochs=1),
        bench.group(row, num_epochs=1),
        bench.local(row, num_epochs=1, **LOCAL_CHECKPOINTS),
    )
    for first in firsts:
        ways = begun(bench, row, first)
        agree(row, ways)
        assert differences(row, whole, ways["--local"], records=False) == []


@pytest.mark.rotates(turns=2)
@pytest.mark.parametrize("framework", [KERAS, TORCH])
@pytest.mark.parametrize("more", [True, False], ids=["left_over", "missing"])
def test_a_parameter_that_only_one_of_them_has_is_refused_by_name(bench: Bench, framework: str, more: bool) -> None:
    first = bench.cluster(heads(framework, extra=more), workers=1, num_epochs=1)
    for way, outcome in begun(bench, heads(framework, extra=not more), first).items():
        assert "extra" in outcome.error[0], (way, outcome.error)


@pytest.mark.rotates(turns=2)
@pytest.mark.parametrize("framework", [KERAS, TORCH])
@pytest.mark.parametrize("frozen", [True, False], ids=["unfrozen", "frozen"])
def test_what_is_trained_may_change(bench: Bench, framework: str, frozen: bool) -> None:
    first = bench.group(heads(framework, extra=True, frozen=frozen), num_epochs=1)
    row = heads(framework, extra=True, frozen=not frozen)
    agree(row, begun(bench, row, first))


@pytest.mark.parametrize("framework", [KERAS, TORCH])
def test_another_optimizer_begins_with_a_state_of_its_own(bench: Bench, framework: str) -> None:
    first = bench.cluster(heads(framework, extra=True), workers=1, num_epochs=1)
    row = heads(framework, extra=True, optimizer="Adagrad")
    agree(row, begun(bench, row, first))


@pytest.mark.parametrize("kind", ["layers.Embedding(50, 2", "elasticdl.layers.Embedding(2"], ids=["closed", "open"])
def test_a_table_of_another_name_is_refused(bench: Bench, kind: str) -> None:
    """Its rows began anew on parameter servers, and those that were trained were left behind."""

    def named(name: str) -> Row:
        source = module(
            "import elasticdl.layers",
            f"def forward():\n    ids = keras.Input((3,), dtype='int64', name='ids')\n"
            f"    rows = layers.Flatten()({kind}, name='{name}')(ids))\n"
            "    return keras.Model(ids, layers.Dense(1, name='out')(rows))",
            "feed = give('ids')",
        )
        return Row("warm_table", source, "groups", TABLES)

    first = bench.cluster(named("old"), workers=1, num_epochs=1)
    assert first.error == ("", "")
    given = {"checkpoint_dir_for_init": str(first.checkpoints), "num_epochs": 1}
    for outcome in (bench.local(named("new"), **given), bench.cluster(named("new"), workers=1, **given)):
        assert "'new" in outcome.error[0] and "does not have" not in outcome.error[0], outcome.error


OPEN = module(
    "import elasticdl.layers",
    "def forward():\n    ids = keras.Input((3,), dtype='int64', name='ids')\n"
    "    rows = layers.Flatten()(elasticdl.layers.Embedding(2)(ids))\n"
    "    return keras.Model(ids, layers.Dense(1)(rows))",
    "def optimizer():\n    return keras.optimizers.Adagrad(0.05)",
    "feed = give('ids')",
)
LARGE = """

def feed(dataset, mode, metadata):
    return dataset.map(lambda record: (tf.range(1500, dtype=tf.int64) + parse(record)["ids"][0], parse(record)["y"]))
"""
OPEN_TORCH = module_of(
    """
    feed = give(lambda x, ids: ids)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.out = Embedding(2), nn.Linear(6, 1)

        def forward(self, ids):
            return self.out(self.rows(ids).flatten(1)).squeeze(-1)

    forward = Net

    def optimizer():
        return functools.partial(torch.optim.Adagrad, lr=0.05, initial_accumulator_value=0.1)
    """
)
WITH_TABLES = [
    *(row for row in EMBEDDING_ROWS if row.name in ("table_momentum", "table_adam", "table_adagrad", "table_ftrl")),
    Row("warm_open", OPEN, "groups", {"export_formats": "saved_model"}),
    # More rows than a table begins with in one process.
    Row("warm_large", OPEN.replace("(3,)", "(1500,)") + LARGE, "groups", {"export_formats": "saved_model"}),
]
TORCH_WITH_TABLES = [
    *(row for row in TORCH_ROWS if "torch.optim.SparseAdam" in row.source and not row.refused),
    Row("warm_torch_open", OPEN_TORCH, "groups", {"export_formats": "safetensors"}, tolerance=1e-5),
]


@pytest.mark.rotates(turns=3)
@pytest.mark.parametrize(
    "row",
    [*WITH_TABLES, *(pytest.param(row, marks=NEEDS_TORCH) for row in TORCH_WITH_TABLES)],
    ids=lambda row: row.name,
)
def test_rows_of_tables_go_on_with_what_the_optimizer_remembers(bench: Bench, row: Row) -> None:
    whole = bench.local(row, num_epochs=2)
    goes_on(bench, row, whole, bench.cluster(row, workers=1, num_epochs=1))
    if row.name in ("table_adam", "warm_open", "warm_torch_open", TORCH_WITH_TABLES[0].name):
        goes_on(bench, row, whole, bench.local(row, num_epochs=1, **LOCAL_CHECKPOINTS))


def goes_on(bench: Bench, row: Row, whole: Outcome, first: Outcome) -> None:
    """What goes on from the checkpoint of an epoch ends as two epochs in one go."""
    assert first.error == ("", "")
    given = {"checkpoint_dir_for_init": str(first.checkpoints), "num_epochs": 1}
    for again in (bench.local(row, **given), bench.cluster(row, workers=1, **given)):
        assert differences(row, whole, again, records=False) == []


@NEEDS_TORCH
def test_an_open_table_of_another_name_is_refused_in_torch(bench: Bench) -> None:
    def named(name: str) -> Row:
        source = module_of(
            f"""
            feed = give(lambda x, ids: ids)

            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.{name} = Embedding(2)
                    self.out = nn.Linear(6, 1)

                def forward(self, ids):
                    return self.out(self.{name}(ids).flatten(1)).squeeze(-1)

            forward = Net
            """
        )
        return Row("warm_torch_table", source, "groups", {"export_formats": ""})

    first = bench.cluster(named("old"), workers=1, num_epochs=1)
    assert first.error == ("", "")
    given = {"checkpoint_dir_for_init": str(first.checkpoints), "num_epochs": 1}
    for outcome in (bench.local(named("new"), **given), bench.cluster(named("new"), workers=1, **given)):
        assert "'new'" in outcome.error[0], outcome.error
