"""TensorFlow's ParameterServerStrategy as its guide writes it: the coordinator's process, and what it schedules.

Tables are split over the parameter servers by a partitioner, each worker makes its own data set, and a scheduled
function makes one or several steps; gradients are applied asynchronously, to the touched rows only.
"""

from __future__ import annotations

import collections
import os
import time
from typing import Any

os.environ["GRPC_FAIL_FAST"] = "use_caller"

import tensorflow as tf

from benchmarks.training.data import LEARNING_RATE, Clicks
from benchmarks.training.models import dense_values, first_vectors, logit, loss_of
from benchmarks.training.processes import Train

CALLS_AHEAD = 4
"""Calls of many steps that are scheduled ahead for each worker."""


def start(arguments: dict[str, Any]) -> Train:
    """Connects to the cluster and makes the variables.

    Args:
        arguments: ``data``, ``dim``, ``batch``, ``cluster``, and ``steps`` of a scheduled call.
    """
    clicks, batch, steps = Clicks.load(arguments["data"]), int(arguments["batch"]), int(arguments["steps"])
    cluster = arguments["cluster"]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster), rpc_layer="grpc")
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=64 << 10, max_shards=len(cluster["ps"])
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    dim = int(arguments["dim"])
    with strategy.scope():
        vectors = tf.Variable(first_vectors(clicks.vocabulary, dim))
        weights = tf.Variable(tf.zeros([clicks.vocabulary, 1]))
        dense = [tf.Variable(value) for value in dense_values(dim)]
    tables = [_parts(vectors), _parts(weights)]
    denses = [_parts(variable) for variable in dense]

    def step(ids: Any, labels: Any) -> Any:
        variables = [part for parts in (*tables, *denses) for part in parts]
        with tf.GradientTape() as tape:
            rows = [tf.nn.embedding_lookup(table, ids) for table in (vectors, weights)]
            loss = loss_of(labels, logit(rows[0], rows[1], [_whole(v) for v in dense]))
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                variable.scatter_sub(tf.IndexedSlices(LEARNING_RATE * gradient.values, gradient.indices))
            else:
                variable.assign_sub(LEARNING_RATE * gradient)
        return loss

    @tf.function
    def work(iterator: Any) -> Any:
        loss = tf.constant(0.0)
        for _ in tf.range(steps):
            loss = strategy.run(step, args=next(iterator))
        return loss

    @tf.function
    def one_step(iterator: Any) -> Any:
        return strategy.run(step, args=next(iterator))

    def data() -> Any:
        slices = tf.data.Dataset.from_tensor_slices((clicks.ids, clicks.labels[:, None]))
        return slices.batch(batch, drop_remainder=True).cache().shuffle(256).repeat().prefetch(4)

    iterator = iter(coordinator.create_per_worker_dataset(data))
    function = one_step if steps == 1 else work

    def train(seconds: float) -> int:
        calls, until = 0, time.monotonic() + seconds
        running: collections.deque[Any] = collections.deque()
        while time.monotonic() < until:
            # The coordinator's own queue holds 256 calls: of many steps each, too long to wait for at the end.
            if steps > 1 and len(running) == CALLS_AHEAD * len(cluster["worker"]):
                running.popleft().get()
            running.append(coordinator.schedule(function, args=(iterator,)))
            calls += 1
        coordinator.join()
        return calls * steps * batch

    train(0.5)
    return train


def _parts(variable: Any) -> list[Any]:
    """The variables on the parameter servers that a variable consists of."""
    return list(variable.variables) if hasattr(variable, "variables") else [variable]


def _whole(variable: Any) -> Any:
    return tf.convert_to_tensor(variable)
