"""A group ends, evaluates and exports as the local run of the same batches does.

A step of the group is a minibatch of the local run, whose pieces the members compute.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from elasticdl_core.chrome_trace import chrome_trace
from elasticdl_core.group.member import Apply
from elasticdl_core.ports.launcher import InspectedProcess, ProcessId, Role
from elasticdl_runtime.telemetry import spans
from elasticdl_worker.group.loop import MemberLoop
from elasticdl_worker.group.replica import copied
from tests.differential.data import validated
from tests.differential.driver import Bench, Row, differences
from tests.differential.rows import TORCH_ROWS, embeddings
from tests.differential.rows.callbacks import LONG, METRIC, ours, theirs
from tests.differential.zoo import module
from tests.fakes.frameworks import NEEDS_TORCH
from tests.fakes.trace_events import faults_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
ADAM = "def optimizer():\n    return keras.optimizers.Adam(0.05, amsgrad=True)"
ROWS = [
    Row("grouped_max_steps", module(), "groups", {"max_steps": 5, "evaluation_steps": 2}, data=validated),
    ours(
        "grouped_early_stopping_steps",
        "EarlyStopping(patience=2, min_delta=1.0)",
        spec={"evaluation_steps": 3, **LONG},
        data=validated,
    ),
]
SLOW_ROWS = [
    Row("grouped_max_steps_later", module(), "groups", {"max_steps": 9, "evaluation_steps": 3}, data=validated),
    ours("grouped_early_stopping", "EarlyStopping(patience=2, min_delta=1.0)", spec=LONG, data=validated),
    theirs(
        "grouped_keras_stopping",
        "EarlyStopping('val_error', patience=1, mode='max')",
        METRIC,
        spec=LONG,
        data=validated,
    ),
    ours(
        "grouped_early_stopping_in_tasks",
        "EarlyStopping(patience=2, min_delta=1.0)",
        spec={"evaluation_steps": 4, "num_minibatches_per_task": 1, **LONG},
        data=validated,
    ),
    ours("grouped_max_steps_callback", "MaxStepsStopping(7)"),
]


@pytest.mark.parametrize(
    "row", [*ROWS, *(pytest.param(row, marks=pytest.mark.slow) for row in SLOW_ROWS)], ids=lambda row: row.name
)
def test_a_group_ends_where_the_local_run_does(bench: Bench, row: Row) -> None:
    local, group = bench.local(row), bench.group(row)
    assert differences(row, local, group) == []
    assert group.steps == local.steps
    assert group.history[-2:] == local.history[-2:]
    assert group.evaluated == local.evaluated


def test_a_group_that_fuses_its_minibatches_trains_as_the_local_run_does(bench: Bench) -> None:
    row = Row("grouped_fused", module(ADAM), "groups", tolerance=1e-5)
    local, group = bench.local(row), bench.group(row, members=2, microbatches=4, deterministic=False)
    assert differences(row, local, group) == []
    assert group.steps == local.steps


@pytest.mark.parametrize(
    "row",
    [
        next(row for row in embeddings.ROWS if row.name == "table_adam"),
        pytest.param(next((row for row in TORCH_ROWS if row.name == "torch_table_adam"), None), marks=NEEDS_TORCH),
    ],
    ids=["tensorflow", "torch"],
)
def test_a_group_says_when_it_begins_that_all_rows_of_tables_move(bench: Bench, row: Row) -> None:
    large = row.source.replace("Embedding(50, 3", "Embedding(200_000, 3")
    spec = {name: value for name, value in row.spec.items() if name != "embedding_threshold_bytes"}
    group = bench.group(replace(row, name=f"grouped_{row.name}", source=large, spec=spec))
    (said,) = (message for kind, message in group.told if kind == "rows")
    assert "moves all of them in each update" in said


def _goes_on(bench: Bench, row: Row) -> None:
    """Two epochs on PS, one in a group, one on PS: each starts from the checkpoint of the one before."""
    local = bench.local(row, num_epochs=4)
    first = bench.cluster(row, workers=1, num_epochs=2)
    assert first.error == ("", "")
    second = bench.group(row, num_epochs=1, checkpoint_dir_for_init=str(first.checkpoints))
    assert second.error == ("", "")
    third = bench.cluster(row, workers=1, num_epochs=1, checkpoint_dir_for_init=str(second.checkpoints))
    assert differences(row, local, third, records=False) == []
    assert (first.steps, second.steps, third.steps) == (12, 18, 24) and local.steps == 24


def test_checkpoints_go_from_either_strategy_to_the_other(bench: Bench) -> None:
    _goes_on(bench, Row("handed_on", module(ADAM), "groups"))


@NEEDS_TORCH
@pytest.mark.slow
def test_checkpoints_of_torch_go_from_either_strategy_to_the_other(bench: Bench) -> None:
    _goes_on(bench, next(row for row in TORCH_ROWS if row.name == "torch_adam"))


def test_a_group_that_goes_on_from_a_checkpoint_draws_what_it_would_have_drawn(bench: Bench) -> None:
    drawing = module(
        ADAM,
        "def forward():\n    x = keras.Input((4,), name='x')\n"
        "    return keras.Model(x, layers.Dense(1)(layers.Dropout(0.5)(layers.Dense(6)(x))))",
    )
    row = Row("drawn_again", drawing, "groups")
    whole = bench.group(row, members=1, num_epochs=2)
    first = bench.group(row, members=1, num_epochs=1)
    second = bench.group(row, members=1, num_epochs=1, checkpoint_dir_for_init=str(first.checkpoints))
    assert whole.error == first.error == second.error == ("", "")
    assert whole.weights.keys() == second.weights.keys()
    for name, value in whole.weights.items():
        np.testing.assert_array_equal(second.weights[name], value, err_msg=name)


def assert_recorded(answer: dict[str, Any]) -> None:
    """What a recording shows of a group: how it forms, its steps, and the state that goes to newcomers."""
    process = InspectedProcess(ProcessId("a-1", Role.WORKER, 0, 0), "running", json.dumps(answer).encode())
    trace = chrome_trace([process], "a-1")
    assert faults_of(trace) == []
    told = {(one["cat"], one["name"]): one.get("args", {}) for one in trace["traceEvents"] if one["ph"] == "X"}
    steps = {"form the group", "gather", "reduce", "apply", "send state", "receive state"}
    assert steps <= {name for kind, name in told if kind == "group"}
    assert {"generation", "members"} <= told["group", "form the group"].keys()
    assert {"generation", "version"} <= told["group", "apply"].keys()
    assert {"step", "microbatch", "version"} <= told["step", "compute"].keys()


def test_a_member_that_differs_is_put_out_and_fetches_the_model(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three: after its fourth step one of its parameters is another."""
    row = Row("odd_member", module(ADAM), "groups", {"num_epochs": 30})
    local = bench.local(row)
    apply: Callable[..., None] = MemberLoop._apply
    run = MemberLoop.run
    # A recording lasts a minute at most, and starting the members of a busy machine takes longer.
    all_there = threading.Barrier(3, lambda: spans.record(spans.LONGEST_S), timeout=250.0)
    hit: list[str] = []

    def run_with_all(loop: Any) -> bool:
        all_there.wait()  # the first could be done with the job before the last has started
        return run(loop)

    def spoil(loop: Any, operation: Apply, rank: int) -> None:
        apply(loop, operation, rank)
        if rank == 1 and operation.step.number >= 4 and len(operation.told) == 3 and not hit:
            hit.append(loop._owner)
            state = copied(loop._replica.state())
            name = next(name for name, value in state.values.items() if value.ndim == 2)
            state.values[name][0, 0] = np.float32(17.0)
            loop._replica.load(state)

    monkeypatch.setattr(MemberLoop, "run", run_with_all)
    monkeypatch.setattr(MemberLoop, "_apply", spoil)
    group = bench.group(row, members=3, microbatches=4)
    assert_recorded(spans.take_recorded())
    assert differences(row, local, group) == []
    assert hit, "void: there were never three members"
    told = [message for kind, message in group.told if kind == "group"]
    # Another member may have told before that it lost this one.
    expelled = told.index(f"{hit[0]} differs from the others, and fetches their model")
    assert told[expelled + 1].endswith("3 members"), "it is in the next generation again"
    assert "rolled_back" not in dict(group.told)
