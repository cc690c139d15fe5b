"""Keras on its own: ``fit`` in one process with the embeddings inside."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import tensorflow as tf

from benchmarks.training.data import ZOO, Clicks
from benchmarks.training.models import use_threads
from benchmarks.training.processes import Train

_HELD: dict[str, Any] = {}


def start(arguments: dict[str, Any]) -> Train:
    """Compiles the model of the zoo, as a user would.

    Args:
        arguments: ``data``, ``dim``, ``batch``, ``optimizer`` (arguments of the zoo's ``optimizer``), and ``threads``
            of TensorFlow, if not all; ``xla`` false keeps Keras from choosing XLA.
    """
    if arguments.get("threads"):
        use_threads(arguments["threads"])
    clicks = Clicks.load(arguments["data"])
    zoo = _zoo()
    _HELD.update(arguments=arguments, clicks=clicks, zoo=zoo)
    model = _compiled()
    batch = int(arguments["batch"])
    data = _dataset(clicks, batch).repeat()

    def train(seconds: float) -> int:
        stop = StopAt(model, time.monotonic() + seconds)
        model.fit(data, steps_per_epoch=1_000_000, epochs=1, verbose=0, callbacks=[stop])
        return stop.batches * batch

    return train


def answer(request: dict[str, Any]) -> dict[str, float]:
    """Trains a fresh model for ``epochs`` and returns its AUC on what was held out."""
    clicks, batch = _HELD["clicks"], _HELD["arguments"]["batch"]
    tf.keras.utils.set_random_seed(int(request.get("seed", 0)))
    model = _compiled()
    model.fit(_dataset(clicks, batch), epochs=request["epochs"], verbose=0)
    auc = _HELD["zoo"].eval_metrics_fn()["auc"]
    for at in range(0, len(clicks.held_out_ids), 4096):
        part = slice(at, at + 4096)
        auc.update_state(clicks.held_out_labels[part][:, None], model.predict_on_batch(clicks.held_out_ids[part]))
    return {"auc": float(auc.result())}


class StopAt(tf.keras.callbacks.Callback):
    """Ends ``fit`` in the middle of an epoch."""

    def __init__(self, model: Any, moment: float) -> None:
        super().__init__()
        self.batches = 0
        self._stopped, self._moment = model, moment

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts."""
        self.batches += 1
        if time.monotonic() >= self._moment:
            self._stopped.stop_training = True


def _zoo() -> Any:
    spec = importlib.util.spec_from_file_location("zoo_deepfm", ZOO / "deepfm.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compiled() -> Any:
    arguments, zoo = _HELD["arguments"], _HELD["zoo"]
    model = zoo.forward(_HELD["clicks"].vocabulary, arguments["dim"])
    jit = "auto" if arguments.get("xla", True) else False
    model.compile(optimizer=zoo.optimizer(**arguments["optimizer"]), loss=zoo.loss, jit_compile=jit)
    return model


def _dataset(clicks: Clicks, batch: int) -> Any:
    data = tf.data.Dataset.from_tensor_slices((clicks.ids, clicks.labels[:, None]))
    return data.shuffle(len(clicks.ids), reshuffle_each_iteration=True).batch(batch, drop_remainder=True).prefetch(4)
