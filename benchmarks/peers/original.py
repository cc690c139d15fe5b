"""A worker as the original project designed it, re-implemented for comparison.

For each minibatch it pulls the dense parameters from each server, then the rows of each embedding layer from each
server, computes, and pushes gradients with merged duplicates to each server, strictly in that order.
"""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np

from benchmarks.peers.original_messages import METHODS, SERVICE, Model, PullRows, array, tensor
from benchmarks.training.data import Clicks
from benchmarks.training.models import RowsIn, dense_values, use_threads
from benchmarks.training.processes import Train, for_a_while

_TIMEOUT_S = 60.0


def start(arguments: dict[str, Any]) -> Train:
    """Connects, and builds the step.

    Args:
        arguments: ``data``, ``dim``, ``batch``, ``seed``, and the addresses of the ``servers``.
    """
    use_threads()
    clicks, batch = Clicks.load(arguments["data"]), int(arguments["batch"])
    minibatches = clicks.minibatches(batch, arguments["seed"])
    servers = Servers(arguments["servers"], len(dense_values(arguments["dim"])))
    step = RowsIn(arguments["dim"], batch).gradients

    def one(i: int) -> int:
        ids, labels = minibatches[i % len(minibatches)]
        dense = servers.pull_dense()
        unique, inverse = np.unique(ids, return_inverse=True)
        vectors, weights = (servers.pull_rows(table, unique) for table in ("vectors", "weights"))
        found = step(vectors, weights, inverse.reshape(ids.shape).astype(np.int32), labels, *dense)
        gradients = [gradient.numpy() for gradient in found]
        servers.push(unique, {"vectors": gradients[0], "weights": gradients[1]}, gradients[2:])
        return batch

    one(0)
    return for_a_while(one)


class Servers:
    """All parameter servers, with an RPC for each purpose."""

    def __init__(self, addresses: list[str], dense: int) -> None:
        self._stubs = []
        for address in addresses:
            channel = grpc.insecure_channel(address)
            self._stubs.append(
                {
                    name: channel.unary_unary(f"/{SERVICE}/{name}", request.SerializeToString, response.FromString)
                    for name, (request, response) in METHODS.items()
                }
            )
        self._versions = [-1] * len(addresses)
        self._dense: list[Any] = [None] * dense

    def pull_dense(self) -> list[Any]:
        """The dense parameters; those that did not change are known already."""
        for index, stub in enumerate(self._stubs):
            answer = stub["pull_dense"](Model(version=self._versions[index]), timeout=_TIMEOUT_S)
            self._versions[index] = answer.version
            for message in answer.dense:
                self._dense[int(message.name)] = array(message)
        return self._dense

    def pull_rows(self, table: str, unique: Any) -> Any:
        """Rows of one table from all servers at once."""
        owners = unique % len(self._stubs)
        calls = [
            stub["pull_embedding_vectors"].future(
                PullRows(name=table, ids=unique[owners == index]), timeout=_TIMEOUT_S
            )
            for index, stub in enumerate(self._stubs)
        ]
        parts = [array(call.result()) for call in calls]
        rows = np.empty((len(unique), parts[0].shape[1]), np.float32)
        for index, part in enumerate(parts):
            rows[owners == index] = part
        return rows

    def push(self, unique: Any, rows: dict[str, Any], dense: list[Any]) -> None:
        """Gradients to all servers at once."""
        owners, count = unique % len(self._stubs), len(self._stubs)
        calls = []
        for index, stub in enumerate(self._stubs):
            mine = owners == index
            request = Model(
                dense=[tensor(str(n), value) for n, value in enumerate(dense) if n % count == index],
                tables=[tensor(name, values[mine], unique[mine]) for name, values in rows.items()],
            )
            calls.append(stub["push_gradients"].future(request, timeout=_TIMEOUT_S))
        for call in calls:
            call.result()
