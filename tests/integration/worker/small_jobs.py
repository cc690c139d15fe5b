"""Small jobs three ways: the real trainer on real parameter servers over gRPC, ``--local``, and Keras alone."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from elasticdl.data import create_data_reader
from elasticdl_core.errors import UserCodeError
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
from tests.integration.ps.conftest import Servers

HEAD = """
import numpy as np
import tensorflow as tf

def loss(labels, predictions):
    return tf.reduce_mean(tf.square(tf.reshape(labels, [-1, 1]) - predictions))

def feed(dataset, mode, metadata):
    def parse(columns):
        values = tf.strings.to_number(columns[1:], FEATURES)
        return values if mode == "prediction" else (values, tf.strings.to_number(columns[0], tf.float32))
    return dataset.map(parse)
"""
"""A module over CSV: a label, then features of the dtype ``FEATURES``."""


_PREPARING = threading.Lock()


@dataclass(frozen=True)
class Trained:
    """What a job on the cluster left.

    Attributes:
        dense: dense parameters by name.
        rows: gives rows of a table by its ids.
        master: what it heard.
        pushes: number of updates.
        directory: the job's.
    """

    dense: dict[str, Any]
    rows: Callable[[str, Any], Any]
    master: FakeMaster
    pushes: int
    directory: Path


def make_job(directory: Path, module: str, records: Any, *, features: str = "tf.float32", **fields: Any) -> JobSpec:
    """Writes a module and its data.

    Args:
        directory: where to.
        module: source, without loss and feed, which are in ``HEAD``.
        records: ``[n, 1 + features]``: labels and features.
        features: dtype of the features.
        fields: of the specification.
    """
    zoo = directory / "zoo"
    zoo.mkdir(parents=True, exist_ok=True)
    name = f"m{abs(hash((str(directory), module))):x}"
    (zoo / f"{name}.py").write_text(HEAD.replace("FEATURES", features) + module)
    data = directory / "data.csv"
    data.write_text("\n".join(",".join(map(str, row)) for row in np.asarray(records).tolist()) + "\n")
    base: dict[str, Any] = {
        "model_zoo": str(zoo),
        "model_def": f"{name}.forward",
        "training_data": str(data),
        "minibatch_size": 8,
        "num_minibatches_per_task": 4,
        "shuffle": False,
        "embedding_threshold_bytes": 0,
        "log_loss_steps": 1,
        "export_formats": "keras",
    }
    return JobSpec.from_mapping(base | fields)


async def on_cluster(
    spec: JobSpec,
    servers: Servers,
    directory: Path,
    *,
    beside: list[tuple[TaskType, dict[str, Any]]] | None = None,
    start_version: int = 0,
) -> Trained:
    """Trains with one worker.

    Args:
        spec: the job.
        servers: running parameter servers.
        directory: the job's.
        start_version: the model version that the job begins at.
        beside: tasks for when training is done, with their payloads.

    Raises:
        UserCodeError: what the worker told the master of a task that failed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    master = FakeMaster(spec, directory, servers.addresses)
    await master.start()
    try:
        shards = list(create_data_reader(spec.training_data, spec.records_per_task).create_shards())
        for epoch in range(spec.num_epochs):
            for index, shard in enumerate(shards):
                master.add(TaskType.TRAINING, shard, epoch=epoch, index=index)
        parameters = servers.client()
        ending = await _work(master, parameters, start_version=start_version)
        if master.failures:
            raise UserCodeError(master.failures[0].message)
        assert ending is ExitReason.FINISHED
        for kind, payload in beside or []:
            master.add(kind, shards[0], payload=payload)
            assert await _work(master, servers.client()) is ExitReason.FINISHED
    finally:
        await master.stop()
    reader = servers.client(1)
    reader._group.place(parameters._group.placement.specs, parameters._group.placement.tables)
    pulled = await reader.pull({})

    async def rows(table: str, ids: Any) -> Any:
        return (await reader.pull({table: np.asarray(ids, np.int64)}, dense=False)).rows[table]

    return Trained(dict(pulled.dense), rows, master, pulled.version, directory)


async def _work(master: FakeMaster, parameters: Any, index: int = 0, *, start_version: int = 0) -> ExitReason:
    client = MasterClient(master.address, lambda: "token", patience_s=60)
    session = Session(client, heartbeat_s=0.05, ps_generation=1, start_version=start_version)
    traces = TraceWriter(master.job_dir, f"worker-{index}.0")

    def train() -> ExitReason:
        # Workers are processes of their own; here only their training is to be at the same time.
        with _PREPARING:
            module = load_module(master.spec, Path(master.spec.model_zoo))
            engine = ParameterServerEngine(
                TensorFlowFramework(), master.spec, module, session, parameters, index, master.job_dir
            )
            engine.prepare()
        return TaskLoop(engine, session, traces).run()

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


async def locally(spec: JobSpec, directory: Path) -> dict[str, Any]:
    """Trains with ``--local``; the exported weights by name."""
    events: list[dict[str, Any]] = []
    await asyncio.to_thread(run_local, spec, directory, events.append)
    assert json.dumps(events[-1])
    model = tf.keras.models.load_model(directory / "model.keras", compile=False)
    return {variable.path: variable.numpy() for variable in model.weights}


def by_keras(
    spec: JobSpec, *, rate: Callable[[int], float] | None = None, merged: bool = False, matrices: Any = None
) -> dict[str, Any]:
    """Trains with Keras' own optimizer, and nothing of ours; the weights by name.

    Args:
        spec: the job.
        rate: the learning rate by step, if it is not the optimizer's.
        merged: whether gradients of equal ids are summed before the optimizer sees them.
        matrices: first values of variables by name.
    """
    module = load_module(spec, Path(spec.model_zoo))
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(spec.seed)
    model, optimizer = module.build_model(), module.need("optimizer")()
    for variable in model.weights:
        if variable.path in (matrices or {}):
            variable.assign(matrices[variable.path])
    data = np.loadtxt(spec.training_data, delimiter=",")
    step, size = 0, spec.minibatch_size
    task = size * spec.num_minibatches_per_task
    for _ in range(spec.num_epochs):
        for start in range(0, len(data), task):
            for at in range(start, min(start + task, len(data)), size):
                piece = data[at : min(at + size, start + task)]
                if rate is not None:
                    optimizer.learning_rate = rate(step)
                _step(model, optimizer, module.need("loss"), piece, merged=merged)
                step += 1
    return {variable.path: variable.numpy() for variable in model.weights}


def _step(model: Any, optimizer: Any, loss: Any, piece: Any, *, merged: bool) -> None:
    features = tf.cast(piece[:, 1:], model.inputs[0].dtype)
    with tf.GradientTape() as tape:
        value = loss(tf.constant(piece[:, 0], tf.float32), model(features, training=True))
        if model.losses:
            value += tf.add_n(model.losses)
    gradients = tape.gradient(value, [variable.value for variable in model.trainable_variables])
    if merged:
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def assert_close(found: dict[str, Any], expected: dict[str, Any], atol: float = 1e-6) -> None:
    """Compares weights by name."""
    assert found.keys() <= expected.keys(), (sorted(found), sorted(expected))
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], atol=atol, rtol=1e-5, err_msg=name)
