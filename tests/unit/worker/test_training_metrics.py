"""The module's metrics on training minibatches: where the loss is reported and nowhere else; ``--local`` alike."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.local import run_local
from elasticdl_worker.loop import ExitReason
from elasticdl_worker.trainers.tensorflow.model.loading import load_module
from elasticdl_worker.trainers.tensorflow.model.metrics import make_metrics
from elasticdl_worker.user_code import ModelModule
from tests.fakes.master import FakeMaster
from tests.fakes.parameters import MemoryParameters
from tests.unit.worker.test_ps_training import add_training, work

pytestmark = pytest.mark.unit
HEAD = """
from deepfm import custom_model, feed, loss, optimizer
import numpy as np
import tensorflow as tf
"""
METRICS = """

def eval_metrics_fn():
    def clicks(labels, predictions):
        return labels

    def worst(labels, predictions):
        return tf.fill([tf.shape(labels)[0]], float("inf"))

    def unknown(labels, predictions):
        return tf.fill([tf.shape(labels)[0]], float("nan"))

    error = tf.keras.metrics.MeanSquaredError()
    return {"clicks": clicks, "worst": worst, "error": error, "unknown": unknown}
"""
FAILING = """

def eval_metrics_fn():
    def failing(labels, predictions):
        raise RuntimeError("no such column")

    return {"odd": failing}
"""
FIRST_IS_NAN = """
plain, FIRST = loss, []

def loss(labels, predictions):
    if not FIRST:
        FIRST.append(float(tf.reduce_mean(labels)))
    bad = tf.abs(tf.reduce_mean(labels) - FIRST[0]) < 1e-6
    return plain(labels, predictions) * tf.where(bad, float("nan"), 1.0)
"""


@pytest.fixture
def module_of(tmp_path: Path) -> Any:
    """Writes a module beside the zoo's deepfm; gives the fields of a job that has it."""

    def write(name: str, *parts: str) -> dict[str, Any]:
        folder = tmp_path / "zoo"
        folder.mkdir(exist_ok=True)
        (folder / "deepfm.py").write_text((Path(__file__).parent / "zoo" / "deepfm.py").read_text())
        (folder / f"{name}.py").write_text("".join((HEAD, *parts)))
        return {"model_zoo": str(folder), "model_def": f"{name}.custom_model", "export_formats": ""}

    return write


async def on_cluster(spec: Any, folder: Path, parameters: MemoryParameters) -> FakeMaster:
    """One worker before a master; ends when there are no tasks left or when it gives up."""
    master = FakeMaster(spec, folder)
    await master.start()
    add_training(master, spec, epochs=spec.num_epochs)
    try:
        assert await work(master, parameters) is ExitReason.FINISHED
    except UserCodeError:
        assert master.failures
    finally:
        await master.stop()
    return master


def locally(spec: Any, folder: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    run_local(spec, folder, events.append)
    return events


def mean_of(spec: Any, places: list[int]) -> Any:
    """The mean label of all records of some minibatches."""
    return pytest.approx(
        np.average([clicks_of(spec)[at] for at in places], weights=[24 if at % 19 == 18 else 32 for at in places])
    )


def clicks_of(spec: Any) -> list[float]:
    """The mean label of each minibatch, in order; the last one of an epoch has 24 records, all others 32."""
    labels = np.loadtxt(spec.training_data, delimiter=",", dtype=np.int64)[:, 0]
    tasks = [labels[start : start + 128] for start in range(0, len(labels), 128)]
    return [float(task[at : at + 32].mean()) for task in tasks for at in range(0, len(task), 32)] * spec.num_epochs


@pytest.mark.parametrize(
    ("name", "how", "last"),
    [
        ("in_order", {"use_async": False, "num_epochs": 2}, 35),
        ("with_xla", {"use_async": False, "xla": "on"}, 15),
        ("eager", {"use_async": False, "eager": True, "log_loss_steps": 18}, 18),
        ("ahead", {"max_staleness": 2}, 15),
        # Pairs of minibatches are one step.
        ("groups", {"max_staleness": 1, "get_model_steps": 2, "log_loss_steps": 4}, 17),
        ("many", {"use_async": False, "num_epochs": 8, "log_loss_steps": 149}, 149),
    ],
)
async def test_metrics_are_of_all_records_of_the_epoch_so_far(
    make_spec: Any, module_of: Any, tmp_path: Path, name: str, how: dict[str, Any], last: int
) -> None:
    fields = {"log_loss_steps": 5, "embedding_threshold_bytes": 0, **module_of(f"measured_{name}", METRICS)}
    spec = make_spec(**fields | how)
    master = await on_cluster(spec, tmp_path, MemoryParameters())
    beat = master.heartbeats[-1]
    shown = dict(beat.training_metrics)
    assert set(shown) == {"clicks", "worst", "error"}, "what is not a number yet is left out"
    so_far = [place for place in range(last + 1) if place // 19 == last // 19]
    assert (shown["clicks"], shown["worst"]) == (mean_of(spec, so_far), math.inf)
    assert 0 < beat.training_metrics_version <= beat.model_version


async def test_a_local_run_shows_the_same(make_spec: Any, module_of: Any, tmp_path: Path) -> None:
    fields = {"log_loss_steps": 5, "use_async": False, "num_epochs": 2, **module_of("shown", METRICS)}
    spec = make_spec(**fields)
    master = await on_cluster(spec, tmp_path, MemoryParameters())
    events = locally(spec, tmp_path / "out")
    shown = events[-1]["training_metrics"]
    assert shown == pytest.approx(dict(master.heartbeats[-1].training_metrics), rel=1e-4)
    assert shown == events[-2]["training_metrics"]
    assert events[-1]["metrics"] == {}, "nothing was evaluated"


async def test_a_module_without_metrics_shows_none(make_spec: Any, module_of: Any, tmp_path: Path) -> None:
    spec = make_spec(**module_of("unmeasured"))
    master = await on_cluster(spec, tmp_path, MemoryParameters())
    assert not any(beat.training_metrics for beat in master.heartbeats)
    events = locally(spec, tmp_path / "out")
    shown = [event["training_metrics"] for event in events if event["event"] != "started"]
    assert shown == [{}] * len(shown)


async def test_a_metric_that_fails_fails_as_in_an_evaluation(make_spec: Any, module_of: Any, tmp_path: Path) -> None:
    spec = make_spec(**module_of("failing", FAILING))
    metrics = make_metrics(load_module(spec, Path(spec.model_zoo)), None)
    with pytest.raises(UserCodeError, match="the metric odd") as evaluated:
        metrics.update([0.0], [[0.0]], 1)
    with pytest.raises(UserCodeError) as local:
        locally(spec, tmp_path / "out")
    master = await on_cluster(spec, tmp_path, MemoryParameters())
    told = master.failures[0]
    assert told.kind == "user_code"
    assert told.message == local.value.message == evaluated.value.message
    assert told.fix == local.value.fix == evaluated.value.fix


async def test_a_minibatch_that_is_left_out_is_not_measured(make_spec: Any, module_of: Any, tmp_path: Path) -> None:
    spec = make_spec(**module_of("left_out", METRICS, FIRST_IS_NAN), log_loss_steps=5, eager=True, on_nan="skip")
    of = clicks_of(spec)
    left_out = {place for place, value in enumerate(of[:19]) if abs(value - of[0]) < 1e-6}
    assert {0, 3} <= left_out
    last = next(place for place in range(15, 19) if place not in left_out)
    expected = mean_of(spec, [place for place in range(last + 1) if place not in left_out])
    master = await on_cluster(spec, tmp_path, MemoryParameters())
    assert dict(master.heartbeats[-1].training_metrics)["clicks"] == expected
    assert locally(spec, tmp_path / "out")[-1]["training_metrics"]["clicks"] == expected


@pytest.mark.parametrize(
    "labels", [tf.range(40.0), tf.ragged.constant([[1.0], [2.0, 3.0]] * 20)], ids=["plain", "ragged"]
)
def test_held_minibatches_count_as_if_each_was_taken_by_itself(labels: Any) -> None:
    """Also where they cannot be joined; another epoch begins anew, with what is held of the one before left out."""

    def total(labels: Any, predictions: Any) -> Any:
        return tf.reduce_sum(labels, axis=-1) if len(labels.shape) > 1 else labels

    given = {"total": total, "error": tf.keras.metrics.MeanSquaredError()}
    kept = {name: metric for name, metric in given.items() if name == "total" or not hasattr(labels, "to_tensor")}
    made = make_metrics(ModelModule(Path("net.py"), (), lambda: None, eval_metrics_fn=lambda: kept), None)
    alone = make_metrics(ModelModule(Path("net.py"), (), lambda: None, eval_metrics_fn=lambda: kept), None)
    for start in range(0, 40, 4):
        part = labels[start : start + 4]
        assert made.of_epoch(0, part, tf.ones(4), 4, due=False) == {}
    shown: dict[str, float] = {}
    for start in range(0, 36, 4):
        alone.update(labels[start : start + 4], tf.zeros(4), 4)
        shown = made.of_epoch(1, labels[start : start + 4], tf.zeros(4), 4, due=start == 32)
    assert shown == pytest.approx(alone.results(alone.state()))
