"""Finds the operations of a graph that draw random numbers."""

from __future__ import annotations

from elasticdl_worker.trainers.tensorflow.types import GraphDef

_RANDOM = ("Random", "Uniform", "Normal", "Multinomial", "CandidateSampler", "Rng", "Gamma", "Binomial", "Poisson")


def operations_of(definition: GraphDef) -> list[str]:
    """The kinds of all operations of a graph and of its functions."""
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    return [node.op for node in nodes]


def draws(operation: str) -> bool:
    """Whether an operation draws numbers by a state of its own."""
    return not operation.startswith("Stateless") and any(word in operation for word in _RANDOM)
