"""A process of a TensorFlow cluster for ParameterServerStrategy: a worker or a parameter server."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from benchmarks.training.models import use_threads
from benchmarks.training.processes import Train

_KEPT: list[Any] = []


def start(arguments: dict[str, Any]) -> tuple[Train, str]:
    """Starts the server of one task.

    Args:
        arguments: ``cluster``, ``role`` and ``index``.
    """
    use_threads()
    _KEPT.append(
        tf.distribute.Server(
            tf.train.ClusterSpec(arguments["cluster"]),
            job_name=arguments["role"],
            task_index=arguments["index"],
            protocol="grpc",
            start=True,
        )
    )
    return (lambda seconds: 0), arguments["cluster"][arguments["role"]][arguments["index"]]
