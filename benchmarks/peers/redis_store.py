"""Redis as the parameter server: it stores, the workers compute the updates.

``pipelined`` false is the way of the design's first year, re-implemented: a key for each id, a GET for each id that a
minibatch has, gradients applied in the worker, a SET for each id. With ``pipelined`` all values are read by one MGET
and written by one MSET, which is as good as Redis can be used. Concurrent workers overwrite each other's updates in
both: Redis does not add vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import redis

from benchmarks.training.data import LEARNING_RATE, Clicks
from benchmarks.training.models import RowsIn, dense_values, first_vectors, use_threads
from benchmarks.training.processes import Train, for_a_while


def start(arguments: dict[str, Any]) -> Train:
    """Connects, and builds the step.

    Args:
        arguments: ``data``, ``dim``, ``batch``, ``seed``, ``pipelined``, and ``servers`` with Redis' socket.
    """
    use_threads()
    clicks, dim, batch = Clicks.load(arguments["data"]), int(arguments["dim"]), int(arguments["batch"])
    minibatches = clicks.minibatches(batch, arguments["seed"])
    kind = Pipelined if arguments["pipelined"] else OneByOne
    store = kind(redis.Redis(unix_socket_path=arguments["servers"][0]), dim)
    store.initialise()
    step = RowsIn(dim, batch).gradients

    def one(i: int) -> int:
        ids, labels = minibatches[i % len(minibatches)]
        unique, inverse = np.unique(ids, return_inverse=True)
        vectors, weights, dense = store.read(unique)
        found = step(vectors, weights, inverse.reshape(ids.shape).astype(np.int32), labels, *dense)
        updated = [
            old - np.float32(LEARNING_RATE) * gradient.numpy()
            for old, gradient in zip([vectors, weights, *dense], found, strict=True)
        ]
        store.write(unique, updated[0], updated[1], updated[2:])
        return batch

    one(0)
    return for_a_while(one)


class OneByOne:
    """A GET and a SET for each value."""

    def __init__(self, client: redis.Redis, dim: int) -> None:
        self._client, self._dim = client, dim
        self._first = first_vectors(1, dim)[0].tobytes()
        self._shapes = [value.shape for value in dense_values(dim)]

    def initialise(self) -> None:
        """Writes the dense parameters unless another worker did."""
        for index, value in enumerate(dense_values(self._dim)):
            self._client.set(f"dense:{index}", value.tobytes(), nx=True)

    def read(self, unique: Any) -> tuple[Any, Any, list[Any]]:
        """Rows of both tables and the dense parameters."""
        get = self._client.get
        vectors = [get(f"vectors:{row}") or self._first for row in unique.tolist()]
        weights = [get(f"weights:{row}") or b"\0\0\0\0" for row in unique.tolist()]
        return self._arrays(vectors, weights, [get(f"dense:{index}") for index in range(len(self._shapes))])

    def write(self, unique: Any, vectors: Any, weights: Any, dense: list[Any]) -> None:
        """Replaces what was read by what came of it."""
        put = self._client.set
        for row, vector, weight in zip(unique.tolist(), vectors, weights, strict=True):
            put(f"vectors:{row}", vector.tobytes())
            put(f"weights:{row}", weight.tobytes())
        for index, value in enumerate(dense):
            put(f"dense:{index}", value.tobytes())

    def _arrays(self, vectors: list[bytes], weights: list[bytes], dense: list[Any]) -> tuple[Any, Any, list[Any]]:
        return (
            np.frombuffer(b"".join(vectors), np.float32).reshape(-1, self._dim),
            np.frombuffer(b"".join(weights), np.float32).reshape(-1, 1),
            [np.frombuffer(d, np.float32).reshape(s) for d, s in zip(dense, self._shapes, strict=True)],
        )


class Pipelined(OneByOne):
    """One command to read everything and one to write it; vector and weight of an id share a value."""

    def read(self, unique: Any) -> tuple[Any, Any, list[Any]]:
        """Rows of both tables and the dense parameters, by one MGET."""
        names = [f"row:{row}" for row in unique.tolist()]
        values = self._client.mget([*names, *(f"dense:{index}" for index in range(len(self._shapes)))])
        first = self._first + b"\0\0\0\0"
        rows = np.frombuffer(b"".join(value or first for value in values[: len(names)]), np.float32)
        rows = rows.reshape(-1, self._dim + 1)
        dense = values[len(names) :]
        _, _, arrays = self._arrays([], [], dense)
        return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, -1:]), arrays

    def write(self, unique: Any, vectors: Any, weights: Any, dense: list[Any]) -> None:
        """Replaces what was read by what came of it, by one MSET."""
        rows = np.concatenate([vectors, weights], axis=1).tobytes()
        size = 4 * (self._dim + 1)
        values = {f"row:{row}": rows[at * size : (at + 1) * size] for at, row in enumerate(unique.tolist())}
        values |= {f"dense:{index}": value.tobytes() for index, value in enumerate(dense)}
        self._client.mset(values)
