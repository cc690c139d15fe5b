"""The state of a replica in the shares of a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elasticdl_core.model import DenseKind, DenseSpec, OptimizerSpec
from elasticdl_worker.group.replica import ModelLayout, ReplicaState
from elasticdl_worker.group.shares import ShareWriter
from elasticdl_worker.group.state_files import CheckpointPart, read_state
from elasticdl_worker.master.group_client import WrittenShare

LAYOUT = ModelLayout(
    (
        DenseSpec("w", (3, 2), "float32", DenseKind.TRAINABLE),
        DenseSpec("scale", (), "float32", DenseKind.TRAINABLE),
        DenseSpec("nothing", (0, 3), "float32", DenseKind.TRAINABLE),
        DenseSpec("seen", (), "int64", DenseKind.STATE),
    ),
    OptimizerSpec("adam", {"learning_rate": 0.5}),
    ("m",),
)
STATE = ReplicaState(
    7,
    {
        "w": np.arange(6, dtype=np.float32).reshape(3, 2),
        "scale": np.array(1.5, np.float32),
        "nothing": np.zeros((0, 3), np.float32),
        "seen": np.array(2**40 + 1),
    },
    {
        "w": [np.full((3, 2), 0.25, np.float32)],
        "scale": [np.array(0.75, np.float32)],
        "nothing": [np.zeros((0, 3), np.float32)],
    },
    {"mu": np.array(0.1), "none": np.zeros((0, 2), np.float32)},
    {"w": 7, "scale": 5, "nothing": 7},
)


@pytest.mark.parametrize("members", [1, 2, 3])
def test_shares_hold_all_that_training_goes_on_from(tmp_path: Path, members: int) -> None:
    tally = {(0, 1): 64, (0, 2): 32}
    files = [CheckpointPart(LAYOUT, STATE, rank, members, tally).write(tmp_path) for rank in range(members)]
    found, counted = read_state(str(tmp_path), files, LAYOUT)
    assert (found.version, counted, found.steps) == (7, tally, STATE.steps)
    assert found.extra.keys() == STATE.extra.keys()
    slots, wanted = ({name: one[0] for name, one in state.slots.items()} for state in (found, STATE))
    for mine, theirs in ((found.values, STATE.values), (found.extra, STATE.extra), (slots, wanted)):
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            assert isinstance(mine[name], np.ndarray), f"{name} is numpy's kind of a number, which no framework takes"
            assert (mine[name].dtype, mine[name].shape) == (value.dtype, value.shape), name
            np.testing.assert_array_equal(mine[name], value)


def test_what_another_optimizer_kept_is_left_behind(tmp_path: Path) -> None:
    files = [CheckpointPart(LAYOUT, STATE, 0, 1, {}).write(tmp_path)]
    other = replace(LAYOUT, optimizer=OptimizerSpec("sgd", {"learning_rate": 0.5}), slots=())
    found, _ = read_state(str(tmp_path), files, other)
    assert found.slots == found.extra == found.steps == {}


@pytest.mark.parametrize("name", ["w", "scale"])
def test_what_was_kept_in_the_order_of_other_parameters_is_left_behind(tmp_path: Path, name: str) -> None:
    """As where a job freezes some of what another one trained."""
    specs = tuple(replace(one, kind=DenseKind.STATE) if one.name == name else one for one in LAYOUT.dense)
    files = [CheckpointPart(LAYOUT, STATE, 0, 1, {}).write(tmp_path)]
    found, _ = read_state(str(tmp_path), files, replace(LAYOUT, dense=specs))
    assert found.slots.keys() == STATE.slots.keys() and found.extra == {}
    np.testing.assert_array_equal(found.values[name], STATE.values[name])


def test_a_checkpoint_without_it_says_nothing_of_it(tmp_path: Path) -> None:
    files = [CheckpointPart(LAYOUT, replace(STATE, extra={}, steps={}), 0, 1, {}).write(tmp_path)]
    found, _ = read_state(str(tmp_path), files, LAYOUT)
    assert found.extra == {}
    assert found.steps == dict.fromkeys(STATE.steps, 7)


@pytest.mark.parametrize("name", ["file", "nul\0byte"])
def test_a_share_that_cannot_be_written_is_told_whatever_the_reason(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    told: list[WrittenShare] = []
    writer = ShareWriter(told.append)
    writer.begin(3, CheckpointPart(LAYOUT, STATE, 0, 1, {}), tmp_path / name, "")
    writer.wait(60.0)
    assert [(share.order, bool(share.trouble), share.name) for share in told] == [(3, True, "")]
