"""A parameter server as the original project designed it, re-implemented for comparison.

A gRPC server with threads; a table is a Python dictionary from id to row; a new row comes from the Keras initialiser,
one call an id; gradients are applied under one lock. (Updates are plain numpy here, where the original went through a
Keras optimizer: that is in the original's favour.)
"""

from __future__ import annotations

import threading
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import tensorflow as tf

from benchmarks.peers.original_messages import METHODS, SERVICE, Model, array, tensor
from benchmarks.training.data import LEARNING_RATE
from benchmarks.training.models import dense_values, use_threads
from benchmarks.training.processes import Train

_KEPT: list[Any] = []
_THREADS = 64


def start(arguments: dict[str, Any]) -> tuple[Train, str]:
    """Starts the server; answers with its address.

    Args:
        arguments: ``dim``, and ``index`` of this server of ``count``.
    """
    use_threads()
    servicer = ParameterServer(arguments["dim"], arguments["index"], arguments["count"])
    server = grpc.server(futures.ThreadPoolExecutor(_THREADS))
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, name), request.FromString, response.SerializeToString
        )
        for name, (request, response) in METHODS.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    _KEPT.append(server)
    return (lambda seconds: 0), f"127.0.0.1:{port}"


class ParameterServer:
    """The rows and dense parameters whose number fits this server."""

    def __init__(self, dim: int, index: int, count: int) -> None:
        self._lock = threading.Lock()
        self._version = 0
        self._dense = {str(n): np.array(value) for n, value in enumerate(dense_values(dim)) if n % count == index}
        self._tables: dict[str, dict[int, Any]] = {"vectors": {}, "weights": {}}
        self._dims = {"vectors": dim, "weights": 1}
        self._initialisers = {
            "vectors": tf.keras.initializers.RandomUniform(),
            "weights": tf.keras.initializers.Zeros(),
        }

    def pull_dense(self, request: Any, _: Any) -> Any:
        """The dense parameters, if they are newer than what the worker has."""
        with self._lock:
            answer = Model(version=self._version)
            if request.version < self._version or self._version == 0:
                answer.dense.extend(tensor(name, value) for name, value in self._dense.items())
        return answer

    def pull_embedding_vectors(self, request: Any, _: Any) -> Any:
        """Rows of one table; missing ones are made."""
        table, initialiser = self._tables[request.name], self._initialisers[request.name]
        rows = []
        for row in request.ids:
            value = table.get(row)
            if value is None:
                value = table[row] = np.array(initialiser(shape=[self._dims[request.name]]))
            rows.append(value)
        return tensor(request.name, np.stack(rows) if rows else np.zeros((0, self._dims[request.name]), np.float32))

    def push_gradients(self, request: Any, _: Any) -> Any:
        """Applies gradients by SGD."""
        with self._lock:
            for message in request.dense:
                self._dense[message.name] -= LEARNING_RATE * array(message)
            for message in request.tables:
                table = self._tables[message.name]
                for row, gradient in zip(message.ids, array(message), strict=True):
                    table[row] = table[row] - LEARNING_RATE * gradient
            self._version += 1
            return Model(version=self._version)
