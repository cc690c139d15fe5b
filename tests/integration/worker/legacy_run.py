"""Run by a test in a process of its own, with Keras 2: trains locally and on stand-in parameter servers, compares."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from elasticdl_core.job import JobSpec
from elasticdl_worker.local import run_local
from elasticdl_worker.trainers.tensorflow.framework import keras_version
from elasticdl_worker.trainers.tensorflow.model.build import BuildOptions, build_model
from elasticdl_worker.user_code import ModelModule
from tests.fakes.master import FakeMaster
from tests.fakes.parameters import MemoryParameters
from tests.unit.worker.test_ps_training import add_training, work


async def on_servers(spec: JobSpec, job_dir: Path) -> MemoryParameters:
    master, parameters = FakeMaster(spec, job_dir), MemoryParameters()
    await master.start()
    add_training(master, spec)
    await work(master, parameters)
    await master.stop()
    assert not master.failures, master.failures[0].message
    return parameters


def later_layers() -> dict[str, float]:
    """The largest difference of the layers after an embedding: in the graph, and on servers or in one process."""

    def make() -> Any:
        layers = tf.keras.layers
        rows = layers.Embedding(50, 4, input_length=3)
        return tf.keras.Sequential([rows, layers.Flatten(), layers.Dense(3), layers.Dense(1)])

    def values(threshold: int | None, alone: bool) -> dict[str, Any]:
        module = ModelModule(Path(__file__), (), make)
        options = BuildOptions(threshold, seed=5, alone=alone)
        made = build_model(module, tf.TensorSpec([None, 3], tf.int64), options).values()
        return {name: value for name, value in made.items() if "embeddings" not in name}

    plain = values(None, False)
    return {
        how: max(float(np.abs(value - plain[name]).max()) for name, value in values(0, how == "alone").items())
        for how in ("servers", "alone")
    }


def main() -> None:
    base = JobSpec.from_mapping(json.loads(sys.argv[1]))
    root = Path(tempfile.mkdtemp(prefix="legacy-"))
    events: list[dict[str, object]] = []
    run_local(base, root / "local", events.append)
    parameters = asyncio.run(on_servers(base, root))
    model = tf.keras.models.load_model(root / "local" / "model.keras", compile=False)
    served = tf.saved_model.load(str(root / "local" / "saved_model"))
    ids = np.arange(12).reshape(4, 3)
    split = JobSpec.from_mapping(base.to_mapping() | {"embedding_threshold_bytes": 0})
    tables = asyncio.run(on_servers(split, root)).rows
    original = {}
    for name in ("custom_model", "closed"):
        spec = JobSpec.from_mapping(split.to_mapping() | {"model_def": f"original.{name}"})
        run_local(spec, root / name, events.append)
        original[name] = sorted(len(rows) for rows in asyncio.run(on_servers(spec, root)).rows.values())
    print(
        json.dumps(
            {
                "keras": keras_version(),
                "difference": max(
                    float(np.abs(v.numpy() - parameters.dense[v.name.removesuffix(":0")]).max())
                    for v in model.weights
                ),
                "served": float(np.abs(model(ids).numpy() - served.serve(ids).numpy()).max()),
                "original": original,
                "later": later_layers(),
                "tables": {name: len(rows) for name, rows in tables.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
