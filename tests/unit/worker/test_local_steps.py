"""Groups of minibatches: one pull, one compiled call and one push, and what comes out is what single steps give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_worker.loop import ExitReason
from tests.fakes.master import FakeMaster
from tests.fakes.parameters import MemoryParameters
from tests.unit.worker.test_ps_training import add_training, plain_keras, work

pytestmark = pytest.mark.unit


async def train(spec: Any, job_dir: Path, epochs: int = 1) -> tuple[FakeMaster, MemoryParameters]:
    job_dir.mkdir(exist_ok=True)
    master, parameters = FakeMaster(spec, job_dir), MemoryParameters()
    await master.start()
    records = add_training(master, spec, epochs)
    assert await work(master, parameters) is ExitReason.FINISHED
    await master.stop()
    assert sum(report.records for report in master.reports) == records
    return master, parameters


def assert_same(parameters: MemoryParameters, other: MemoryParameters) -> None:
    for name, value in parameters.dense.items():
        np.testing.assert_allclose(value, other.dense[name], atol=1e-5, err_msg=name)
    for table, rows in parameters.rows.items():
        for i, row in rows.items():
            np.testing.assert_allclose(row, other._row(table, i), atol=1e-5, err_msg=f"{table} {i}")


@pytest.mark.parametrize(
    ("steps", "groups", "how"),
    [(4, 5, {}), (3, 9, {}), (8, 5, {}), (2, 10, {"eager": True}), (4, 5, {"xla": "on"})],
    ids=["whole tasks", "the rest of a task", "more than a task has", "eager", "XLA"],
)
@pytest.mark.rotates
async def test_local_steps_with_sgd_equal_plain_keras(
    make_spec: Any, tmp_path: Path, steps: int, groups: int, how: dict[str, Any]
) -> None:
    """Tasks of 4, 4, 4, 4 and 3 minibatches; a group never reaches beyond its task."""
    spec = make_spec(
        embedding_threshold_bytes=0,
        get_model_steps=steps,
        max_staleness=0,
        log_loss_steps=1,
        model_params={"regularised": True},
        optimizer_params={"clipnorm": 0.5},
        **how,
    )
    master, parameters = await train(spec, tmp_path)
    assert len(parameters.pulls) == len(parameters.pushes) == parameters.version == groups
    expected, weights = plain_keras(spec, parameters, epochs=1)
    losses = [point.loss for beat in master.heartbeats for point in beat.losses]
    np.testing.assert_allclose(losses, expected[: len(losses)], rtol=1e-5)
    for name, value in parameters.dense.items():
        np.testing.assert_allclose(value, weights[name], atol=1e-5, err_msg=name)
    for table, rows in parameters.rows.items():
        for i, row in rows.items():
            np.testing.assert_allclose(row, weights[f"{table}/embeddings"][i], atol=1e-5)


async def test_a_bad_minibatch_is_left_out_and_the_others_of_its_group_are_not(
    make_spec: Any, clicks: Path, tmp_path: Path
) -> None:
    lines = clicks.read_text().splitlines()
    lines[40] = "nan" + lines[40][1:]
    data = tmp_path / "bad.csv"
    data.write_text("\n".join(lines) + "\n")
    fields = {"training_data": str(data), "embedding_threshold_bytes": 0, "max_staleness": 0, "on_nan": "skip"}
    _, one_by_one = await train(make_spec(**fields), tmp_path / "single")
    _, grouped = await train(make_spec(**fields, get_model_steps=4), tmp_path / "grouped")
    assert one_by_one.version == 18
    assert grouped.version == 4 + 3
    assert all(np.isfinite(value).all() for value in grouped.dense.values())
    assert_same(grouped, one_by_one)


@pytest.mark.rotates(turns=2, place=0)
async def test_a_refused_group_is_computed_anew(make_spec: Any, tmp_path: Path) -> None:
    spec = make_spec(embedding_threshold_bytes=0, get_model_steps=4, max_staleness=0)
    _, expected = await train(spec, tmp_path / "accepted")
    master, parameters = FakeMaster(spec, tmp_path), MemoryParameters(refuse=2)
    await master.start()
    add_training(master, spec)
    await work(master, parameters)
    await master.stop()
    assert parameters.version == 5
    # One for each group, one for each time that one is computed anew, and perhaps one that went along in vain.
    assert 5 + 2 <= len(parameters.pulls) <= 5 + 2 + 1
    assert_same(parameters, expected)


@pytest.mark.rotates(turns=2, place=1)
async def test_groups_overlap_and_learn_with_any_optimizer(make_spec: Any, tmp_path: Path) -> None:
    """Rows of an optimizer with slots stay as they were pulled within a group; one sum of gradients is pushed."""
    spec = make_spec(
        embedding_threshold_bytes=0,
        get_model_steps=2,
        max_staleness=2,
        optimizer_params={"kind": "Adagrad"},
        model_params={"dim": 8},
        log_loss_steps=1,
    )
    master, parameters = await train(spec, tmp_path, epochs=3)
    assert parameters.version == 3 * 10
    losses = [point.loss for beat in master.heartbeats for point in beat.losses]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.rotates(turns=2)
async def test_with_delay_compensation_a_push_says_what_its_gradients_were_computed_on(
    make_spec: Any, tmp_path: Path, steps: int
) -> None:
    fields = {"embedding_threshold_bytes": 0, "max_staleness": 0, "get_model_steps": steps}
    _, without = await train(make_spec(**fields), tmp_path / "without")
    assert all(gradients.origin is None for _, gradients, _ in without.pushes)
    _, parameters = await train(make_spec(**fields, delay_compensation=3), tmp_path / "with")
    assert parameters.mode is not None
    assert parameters.mode.delay_compensation == 3.0
    # By plain SGD of one worker, what a push begins with is what the one before has made of its own.
    rate, expected = 0.1, None
    for _, gradients, _ in parameters.pushes:
        assert gradients.origin is not None
        assert gradients.origin.rows.keys() == gradients.rows.keys()
        for table, (ids, values) in gradients.rows.items():
            assert gradients.origin.rows[table].shape == values.shape == (len(ids), values.shape[1])
        for name, gradient in gradients.dense.items():
            if expected is not None:
                np.testing.assert_allclose(gradients.origin.dense[name], expected[name], rtol=1e-5, atol=1e-6)
            assert gradients.origin.dense[name].shape == gradient.shape
        expected = {name: gradients.origin.dense[name] - rate * g for name, g in gradients.dense.items()}
