"""The limit: a process that holds all parameters itself and talks to nobody, one compiled step a call."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from benchmarks.training.data import Clicks
from benchmarks.training.models import InGraph, use_threads
from benchmarks.training.processes import Train, for_a_while


def start(arguments: dict[str, Any]) -> Train:
    """Builds the model and gets the data into memory.

    Args:
        arguments: ``data``, ``dim``, ``batch``, ``seed``, ``xla``, and ``threads``, 1 by default.
    """
    use_threads(arguments.get("threads", 1))
    clicks = Clicks.load(arguments["data"])
    model = InGraph(clicks.vocabulary, arguments["dim"])
    minibatches = [
        (tf.constant(ids), tf.constant(labels))
        for ids, labels in clicks.minibatches(arguments["batch"], arguments["seed"])
    ]
    step = tf.function(model.step, jit_compile=arguments["xla"]).get_concrete_function(*minibatches[0])

    def one(i: int) -> int:
        step(*minibatches[i % len(minibatches)])
        return int(arguments["batch"])

    return for_a_while(one)
