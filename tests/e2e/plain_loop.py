"""Trains a model module in a plain loop of its framework and prints its metrics: the yardstick for ElasticDL.

    python plain_loop.py MODULE TRAIN VALIDATION EPOCHS BATCH READER_PARAMS SEED...

Reads the records with ElasticDL's readers, and shuffles all of them for each epoch; model, loss, optimizer, feed and
metrics are the module's own.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from elasticdl.data import create_data_reader


def main(path: str, train: str, validation: str, epochs: str, batch: str, params: str, *seeds: str) -> None:
    """Trains once a seed and prints a line of JSON each."""
    spec = importlib.util.spec_from_file_location("module", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    data = [_read(one, params) for one in (train, validation)]
    loop = _keras if hasattr(module, "keras") else _torch
    for seed in seeds:
        print(json.dumps(loop(module, *data, int(epochs), int(batch), int(seed))))


def _read(path: str, params: str) -> tuple[list[Any], Any]:
    reader = create_data_reader(path, reader_params=params)
    records = [record for shard in reader.create_shards() for record in reader.read_records(shard)]
    return records, reader.metadata


def _named(record: Any, names: list[str]) -> dict[str, Any]:
    """A row, or a window of rows, by the names of columns."""
    if isinstance(record, dict):
        return record
    window = record and not isinstance(record[0], str)
    return dict(zip(names, map(list, zip(*record, strict=True)) if window else record, strict=True))


def _keras(module: ModuleType, train: Any, validation: Any, epochs: int, batch: int, seed: int) -> dict[str, float]:
    import keras
    import tensorflow as tf

    def fed(records: list[Any], metadata: Any, mode: str) -> tf.data.Dataset:
        return module.feed(tf.data.Dataset.from_tensor_slices(records), mode, metadata)

    keras.utils.set_random_seed(seed)
    model, metrics = module.forward(), module.eval_metrics_fn()
    model.compile(optimizer=module.optimizer(), loss=module.loss, metrics=list(metrics.values()))
    shuffled = fed(*train, "training").shuffle(len(train[0]), seed=seed).batch(batch)
    model.fit(shuffled, epochs=epochs, verbose=0)
    values = model.evaluate(fed(*validation, "evaluation").batch(256), verbose=0)
    return dict(zip(metrics, values[1:], strict=True))


def _torch(module: ModuleType, train: Any, validation: Any, epochs: int, batch: int, seed: int) -> dict[str, float]:
    import torch
    from torch.utils.data import DataLoader, default_collate

    def fed(data: tuple[list[Any], Any], mode: str, size: int, shuffle: bool) -> DataLoader:
        names = data[1].column_names
        records = [_named(record, names) if names else record for record in data[0]]
        return DataLoader(list(module.feed(records, mode, data[1])), size, shuffle, collate_fn=default_collate)

    torch.manual_seed(seed)
    random.seed(seed)
    model = module.forward()
    made = module.optimizer()
    make, schedule = made if isinstance(made, tuple) else (made, None)
    optimizer = make(model.parameters())
    scheduler = schedule(optimizer) if schedule else SimpleNamespace(step=lambda: None)
    for _ in range(epochs):
        for inputs, labels in fed(train, "training", batch, True):
            optimizer.zero_grad()
            module.loss(labels, model(inputs)).mean().backward()
            optimizer.step()
            scheduler.step()
    model.eval()
    found = {}
    with torch.no_grad():
        for name, metric in module.eval_metrics_fn().items():
            pairs = [(labels, model(inputs)) for inputs, labels in fed(validation, "evaluation", 256, False)]
            if hasattr(metric, "compute"):
                for labels, predictions in pairs:
                    metric.update(predictions, labels)
                found[name] = float(metric.compute())
            else:
                found[name] = float(torch.cat([metric(*pair).float().reshape(-1) for pair in pairs]).mean())
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
