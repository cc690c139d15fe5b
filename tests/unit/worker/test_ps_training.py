"""The worker's road from lease to report: a real gRPC master, the parameter servers inside the process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from elasticdl.data import Shard, create_data_reader
from elasticdl_core.job import JobSpec
from elasticdl_core.task import TaskType
from elasticdl_worker.local import run_local
from elasticdl_worker.loop import ExitReason, TaskLoop
from elasticdl_worker.master.client import MasterClient
from elasticdl_worker.master.session import Session
from elasticdl_worker.reporting.traces import TraceWriter
from elasticdl_worker.trainers.on_servers.engine import ParameterServerEngine
from elasticdl_worker.trainers.tensorflow.implementation import TensorFlowFramework
from elasticdl_worker.trainers.tensorflow.model.loading import load_module
from tests.fakes.master import FakeMaster
from tests.fakes.parameters import MemoryParameters

pytestmark = pytest.mark.unit


def add_training(master: FakeMaster, spec: JobSpec, epochs: int = 1) -> int:
    records = 0
    shards = list(create_data_reader(spec.training_data, spec.records_per_task).create_shards())
    for epoch in range(epochs):
        for index, shard in enumerate(shards):
            master.add(TaskType.TRAINING, shard, epoch=epoch, index=index)
            records += shard.records
    return records


async def work(master: FakeMaster, parameters: Any, *, index: int = 0, framework: Any = None) -> ExitReason:
    """One worker, as its process runs it, without the process; by default of TensorFlow."""
    framework = framework or TensorFlowFramework()
    client = MasterClient(master.address, lambda: "token", patience_s=60)
    session = Session(client, heartbeat_s=0.05, ps_generation=1)
    traces, loop = TraceWriter(master.job_dir, f"worker-{index}.0"), asyncio.get_running_loop()

    def train() -> ExitReason:
        module = framework.load_module(master.spec, Path(master.spec.model_zoo))
        engine = ParameterServerEngine(framework, master.spec, module, session, parameters, index, master.job_dir)
        try:
            engine.prepare()
            return TaskLoop(engine, session, traces).run()
        except BaseException:
            loop.call_soon_threadsafe(session.request_drain)
            engine.stop_reading()  # which ends with the process elsewhere
            raise

    beat = asyncio.create_task(session.send_heartbeats())
    try:
        ending = await asyncio.to_thread(train)
        await session.flush()
        return ending
    finally:
        beat.cancel()
        await asyncio.gather(beat, return_exceptions=True)
        traces.close()
        await client.close()


def traced(job_dir: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for file in (job_dir / "traces").glob("*.jsonl") for line in file.read_text().splitlines()
    ]


@pytest.mark.parametrize(
    ("threshold", "how"),
    [
        (2 << 20, {"use_async": False}),
        (0, {"use_async": False}),
        (0, {"use_async": False, "xla": "on"}),
        (2 << 20, {"use_async": True}),
        (0, {"use_async": True, "max_staleness": 0}),
    ],
    ids=["in graph", "on PS", "on PS with XLA", "asynchronous in graph", "asynchronous on PS, in order"],
)
async def test_training_strictly_in_order_equals_plain_keras(
    make_spec: Any, tmp_path: Path, threshold: int, how: dict[str, Any]
) -> None:
    """One worker, SGD: the same losses and the same weights as Keras' own training, to 1e-5."""
    fields = {"model_params": {"regularised": True}, "optimizer_params": {"clipnorm": 0.5}}
    spec = make_spec(embedding_threshold_bytes=threshold, log_loss_steps=1, **fields, **how)
    master, parameters = FakeMaster(spec, tmp_path), MemoryParameters()
    await master.start()
    records = add_training(master, spec, epochs=2)
    assert await work(master, parameters) is ExitReason.FINISHED
    await master.stop()
    assert len(parameters.rows) == (2 if threshold == 0 else 0)
    assert sum(r.records for r in master.reports) == records == 1200
    assert parameters.version == 2 * 19
    assert sum(line["end"] - line["start"] for line in traced(tmp_path)) == records

    expected, weights = plain_keras(spec, parameters if threshold == 0 else None, epochs=2)
    losses = [point.loss for beat in master.heartbeats for point in beat.losses]
    np.testing.assert_allclose(losses, expected[: len(losses)], rtol=1e-5)
    assert len(losses) >= 10, "those after the last heartbeat stay with the worker"
    for name, value in parameters.dense.items():
        np.testing.assert_allclose(value, weights[name], atol=1e-5, err_msg=name)
    for table, rows in parameters.rows.items():
        matrix = weights[f"{table}/embeddings"]
        for i, row in rows.items():
            np.testing.assert_allclose(row, matrix[i], atol=1e-5)


def plain_keras(spec: JobSpec, rows_of: MemoryParameters | None, epochs: int) -> tuple[list[float], dict[str, Any]]:
    """The same model by ``model.fit``, from the same initial values."""
    module = load_module(spec, Path(spec.model_zoo))
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(spec.seed)
    model = module.build_model()
    if rows_of is not None:
        fresh = MemoryParameters()
        fresh._tables, fresh.rows = rows_of._tables, {name: {} for name in rows_of.rows}
        for layer in model.layers:
            if layer.name in fresh.rows:
                layer.set_weights([np.stack([fresh._row(layer.name, i) for i in range(layer.input_dim)])])
    data = np.loadtxt(spec.training_data, delimiter=",", dtype=np.int64)
    batches = [data[start : start + 128] for start in range(0, len(data), 128)]
    pieces = [task[at : at + 32] for task in batches for at in range(0, len(task), 32)]
    model.compile(optimizer=module.optimizer(), loss=module.loss)
    losses = []
    for _ in range(epochs):
        for piece in pieces:
            losses.append(float(model.train_on_batch(piece[:, 1:], piece[:, 0].astype(np.float32))))
            model.reset_metrics()
    return losses, {v.path: v.numpy() for v in model.weights}


async def test_asynchronous_training_with_overlap_processes_every_record_once(make_spec: Any, tmp_path: Path) -> None:
    spec = make_spec(
        embedding_threshold_bytes=0, model_params={"dim": 8}, num_epochs=3, log_loss_steps=1, max_staleness=2
    )
    master, parameters = FakeMaster(spec, tmp_path), MemoryParameters()
    await master.start()
    records = add_training(master, spec, epochs=3)
    assert await work(master, parameters) is ExitReason.FINISHED
    await master.stop()
    assert parameters.version == 3 * 19
    assert sum(r.records for r in master.reports) == records
    lines = traced(tmp_path)
    assert sorted((t["epoch"], t["start"], t["end"]) for t in lines) == sorted(
        (epoch, start, min(start + 128, 600)) for epoch in range(3) for start in range(0, 600, 128)
    )
    staleness = [at - version for at, (version, _, _) in enumerate(parameters.pushes)]
    assert max(staleness) <= 3
    assert len(parameters.pulls) == parameters.version
    losses = [point.loss for beat in master.heartbeats for point in beat.losses]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    assert master.description["tables"] == [
        {"name": "weights", "dim": 1, "input_dim": 1000},
        {"name": "vectors", "dim": 8, "input_dim": 1000},
    ]


async def test_a_refused_gradient_is_computed_anew(make_spec: Any, tmp_path: Path) -> None:
    spec = make_spec(use_async=False, embedding_threshold_bytes=0)
    master, parameters = FakeMaster(spec, tmp_path), MemoryParameters(refuse=3)
    await master.start()
    add_training(master, spec)
    await work(master, parameters)
    await master.stop()
    assert parameters.version == 19
    assert len(parameters.pulls) == 19 + 3


async def test_a_draining_worker_returns_the_rest_of_its_task(make_spec: Any, tmp_path: Path) -> None:
    spec = make_spec(embedding_threshold_bytes=0, num_minibatches_per_task=15)
    master = FakeMaster(spec, tmp_path)

    class Draining(MemoryParameters):
        async def push(self, *args: Any, **kwargs: Any) -> Any:
            result = await super().push(*args, **kwargs)
            if self.version == 4:
                master.drain = True
                heard = len(master.heartbeats)
                await master.until(lambda: len(master.heartbeats) >= heard + 2)
            return result

    parameters = Draining()
    await master.start()
    add_training(master, spec)
    assert await work(master, parameters) is ExitReason.DRAINED
    await master.stop()
    assert not master.doing
    first = next(r for r in master.returns if r.task_id == "t:0:0:0:480")
    assert 4 * 32 <= first.position < 480
    assert first.position == parameters.version * 32
    assert [(t["start"], t["end"]) for t in traced(tmp_path)] == [(0, first.position)]


async def test_evaluation_merges_states_and_prediction_writes_files(
    make_spec: Any, more_clicks: Path, tmp_path: Path
) -> None:
    spec = make_spec(embedding_threshold_bytes=0, validation_data=str(more_clicks), num_epochs=2)
    master, parameters = FakeMaster(spec, tmp_path), MemoryParameters()
    await master.start()
    add_training(master, spec, epochs=2)
    master.add(TaskType.EVALUATION, Shard(str(more_clicks), 0, 128), epoch=1, index=0)
    master.add(TaskType.EVALUATION, Shard(str(more_clicks), 128, 200), epoch=1, index=1)
    await work(master, parameters)
    assert {pull["pin"] for pull in parameters.pulls} == {0, 1}
    states = [json.loads(r.result)["states"] for r in master.reports if r.task_id.startswith("e")]
    merged = {
        name: {"kind": states[0][name]["kind"], "sum": add(states[0][name]["sum"], states[1][name]["sum"])}
        for name in states[0]
    }
    assert merged["accuracy"]["sum"][1] == 200
    master.add(TaskType.EVALUATION_SUMMARY, Shard("", 0, 0), epoch=1, payload={"states": merged})
    await work(master, parameters)
    await master.stop()
    metrics = json.loads(master.reports[-1].result)["metrics"]
    whole = whole_metrics(spec, parameters, more_clicks)
    assert metrics == pytest.approx(whole, rel=1e-4)


def add(first: Any, second: Any) -> Any:
    if isinstance(first, list):
        return [add(a, b) for a, b in zip(first, second, strict=True)]
    return first + second


def whole_metrics(spec: JobSpec, parameters: MemoryParameters, data: Path) -> dict[str, float]:
    """The metrics of the trained model over all records at once."""
    module = load_module(spec, Path(spec.model_zoo))
    tf.keras.backend.clear_session()
    model = module.build_model()
    for variable in model.weights:
        if variable.path in parameters.dense:
            variable.assign(parameters.dense[variable.path])
    for name, rows in parameters.rows.items():
        matrix = np.stack([parameters._row(name, i) for i in range(1000)])
        del rows
        model.get_layer(name).set_weights([matrix])
    table = np.loadtxt(data, delimiter=",", dtype=np.int64)
    logits, labels = model(table[:, 1:]), table[:, 0].astype(np.float32)
    metric = tf.keras.metrics.AUC(from_logits=True)
    metric.update_state(labels, logits)
    accuracy = float(np.mean((np.asarray(logits)[:, 0] > 0) == (labels > 0.5)))
    return {"loss": float(module.loss(labels, logits)), "auc": float(metric.result()), "accuracy": accuracy}


async def test_local_and_ps_training_agree(make_spec: Any, tmp_path: Path) -> None:
    spec = make_spec(use_async=False, log_loss_steps=1)
    master, parameters = FakeMaster(spec, tmp_path), MemoryParameters()
    await master.start()
    add_training(master, spec)
    await work(master, parameters)
    await master.stop()
    await asyncio.to_thread(run_local, spec, tmp_path / "local", lambda event: None)
    model = tf.keras.models.load_model(tmp_path / "local" / "model.keras", compile=False)
    for variable in model.weights:
        np.testing.assert_allclose(variable.numpy(), parameters.dense[variable.path], atol=1e-5)
