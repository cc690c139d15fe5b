"""Trains a model module with plain single-process Keras and prints its metrics: the yardstick for the cluster.

    python plain_keras.py MODULE TRAIN_DIR VALIDATION_DIR EPOCHS BATCH

Reads the records with ElasticDL's readers; model, loss, optimizer, feed and metrics are the module's own.
"""

from __future__ import annotations

import importlib.util
import json
import sys

import keras
import tensorflow as tf

from elasticdl.data import create_data_reader


def records(path: str) -> tf.data.Dataset:
    """All raw records of a data source, in memory."""
    reader = create_data_reader(path)
    return tf.data.Dataset.from_tensor_slices(
        [record for shard in reader.create_shards() for record in reader.read_records(shard)]
    )


def main(module_path: str, train: str, validation: str, epochs: str, batch: str) -> None:
    """Trains and prints one line of JSON."""
    keras.utils.set_random_seed(0)
    spec = importlib.util.spec_from_file_location("module", module_path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = (getattr(module, "forward", None) or module.custom_model)()
    feed = getattr(module, "feed", None) or module.dataset_fn
    metrics = module.eval_metrics_fn()
    model.compile(
        optimizer=module.optimizer(),
        loss=lambda labels, predictions: module.loss(labels, predictions),
        metrics=list(metrics.values()),
    )
    training = feed(records(train), "training", None).shuffle(100_000, seed=1).batch(int(batch)).prefetch(4)
    model.fit(training, epochs=int(epochs), verbose=0)
    held_out = feed(records(validation), "evaluation", None).batch(1024)
    values = model.evaluate(held_out, verbose=0)
    print(json.dumps(dict(zip(metrics, values[1:], strict=True))))


if __name__ == "__main__":
    main(*sys.argv[1:])
