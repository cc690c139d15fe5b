"""The step compiled by XLA: static shapes, rows padded to bucketed counts, and the plain step where it cannot run."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

import numpy as np
import structlog
from numpy.typing import NDArray

from elasticdl_worker.trainers.tensorflow.compiled import CompiledFunction
from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.model.embeddings import ROWS_NAME
from elasticdl_worker.trainers.tensorflow.step.step_choice import StepChoice, StepKind
from elasticdl_worker.trainers.tensorflow.types import (
    Array,
    Batches,
    GraphDef,
    Inverse,
    NestedSpec,
    Node,
    Predictions,
    Shape,
    Tensor,
    TypeSpec,
)

_log = structlog.get_logger(__name__)
_SMALLEST_BUCKET = 8
_MAX_COMPILATIONS = 6
_OVERFLOWS_TO_GROW = 20
_CHECKED = ("Assert", "CheckNumerics", "CheckNumericsV2")
_INDEXED = {
    "GatherV2": 1,
    "GatherNd": 1,
    "ResourceGather": 1,
    "ResourceGatherNd": 1,
    "ScatterNd": 0,
    "TensorScatterAdd": 1,
    "TensorScatterUpdate": 1,
    "UnsortedSegmentSum": 1,
}
"""Operations that go by indices, and the place of the indices among their inputs."""
_DATA = ("Placeholder", "ReadVariableOp", "VariableV2")
# Gradients go by the indices of their operation, which is looked at itself.
_GRADIENTS = ("gradients/", "gradient_tape/")
_SHAPES = ("Shape", "ShapeN", "Size", "Rank")

StepOutputs = tuple[
    Tensor, list[Tensor], list[Tensor], tuple[list[Tensor], Tensor], "list[Predictions]", "Tensor | None"
]
"""Losses; dense gradients; gradients of rows; what is added to the state, and which of it changed; predictions of
each minibatch, where they are kept."""
StepFunction = Callable[[Batches, Mapping[str, Array], Mapping[str, NDArray[np.float32]], Inverse], StepOutputs]
"""Computes minibatches from dense parameters, rows and the places of ids in them."""


class XlaUnusableError(Exception):
    """XLA cannot run the step; the message says why."""


def bucket(count: int) -> int:
    """The smallest of 8, 12, 16, 24, 32, 48, ... that holds ``count`` rows."""
    size = _SMALLEST_BUCKET
    while size < count:
        size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
    return size


def padded(rows: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Rows with zeros after them, ``[count, dim]``; a new array, as TensorFlow may keep its memory."""
    whole = np.empty((count, rows.shape[1]), np.float32)
    whole[: len(rows)] = rows
    whole[len(rows) :] = 0
    return whole


class XlaStep:
    """A step of static shapes for full-size minibatches.

    Its rows are padded to a count for each table that holds an eighth more than the largest minibatch so far. No id
    points at padding, so its gradients are zero. Larger minibatches are refused; after ``_OVERFLOWS_TO_GROW`` of them
    the step is compiled anew for more rows.

    Args:
        function: takes minibatches, dense parameters, rows and inverse.
        signature: nested ``tf.TypeSpec`` of minibatches, with open first dimensions, and of dense parameters.
        minibatch_size: number of records in a full-size minibatch.
    """

    def __init__(
        self,
        function: Callable[..., StepOutputs],
        signature: tuple[object, Mapping[str, TypeSpec]],
        minibatch_size: int,
    ) -> None:
        self._function = function
        self._shapes: list[Shape | None] = []
        self._obstacle = ""
        self._batches, self._dense = signature
        for spec in tf.nest.flatten(self._batches):
            shape = tf.TensorShape([minibatch_size]).concatenate(spec.shape[1:]) if _is_batch(spec) else None
            if shape is None or not shape.is_fully_defined():
                self._obstacle = f"features and labels must have fixed shapes, and there is {spec}"
            elif spec.dtype == tf.string:
                self._obstacle = f"it has no strings, and there is {spec}"
            self._shapes.append(shape)
        self._compiled: CompiledFunction[StepOutputs] | None = None
        self._capacity: dict[str, int] = {}
        self._inverse_shapes: list[Shape] = []
        self._largest: dict[str, int] = {}
        self._overflows = 0
        self._compilations = 0

    def fits(self, batches: Batches, rows: Mapping[str, NDArray[np.float32]]) -> bool:
        """Whether all minibatches are of full size."""
        if not self._obstacle:
            tensors = tf.nest.flatten(batches)
            if any(tensor.shape != shape for tensor, shape in zip(tensors, self._shapes, strict=True)):
                return False
        for table, values in rows.items():
            self._largest[table] = max(self._largest.get(table, 0), len(values))
        return True

    def run(
        self,
        batches: Batches,
        dense: Mapping[str, Array],
        rows: Mapping[str, NDArray[np.float32]],
        inverse: Inverse,
    ) -> tuple[StepOutputs | None, bool]:
        """Computes full-size minibatches.

        Returns:
            The function's outputs, None if there are more rows than the step was compiled for; and whether
            something was compiled.

        Raises:
            XlaUnusableError: XLA cannot run the step.
        """
        if self._obstacle:
            raise XlaUnusableError(self._obstacle)
        shapes = [index.shape for index in tf.nest.flatten(inverse)]
        grow = self._overflows >= _OVERFLOWS_TO_GROW
        if self._compiled is not None and not grow and not self._holds(rows, shapes):
            self._overflows += 1
            return None, False
        fresh = self._compiled is None or grow
        try:
            if fresh:
                self._compile(rows, inverse, shapes)
            assert self._compiled is not None
            tensors = {t: tf.convert_to_tensor(padded(values, self._capacity[t])) for t, values in rows.items()}
            values = {name: tf.convert_to_tensor(value) for name, value in dense.items()}
            return self._compiled(batches, values, tensors, inverse), fresh
        except XlaUnusableError:
            raise
        except Exception as error:  # whatever XLA or the tracing says; the plain step raises what is the user's fault
            raise XlaUnusableError(_shortened(error)) from error

    def _holds(self, rows: Mapping[str, NDArray[np.float32]], shapes: list[Shape]) -> bool:
        enough = all(len(values) <= self._capacity[table] for table, values in rows.items())
        return enough and shapes == self._inverse_shapes

    def _compile(self, rows: Mapping[str, NDArray[np.float32]], inverse: Inverse, shapes: list[Shape]) -> None:
        if self._compilations == _MAX_COMPILATIONS:
            raise XlaUnusableError(f"the shapes still change after {_MAX_COMPILATIONS} compilations")
        for table in rows:
            # There are never more rows than ids.
            ids = sum(index.shape.num_elements() or 0 for index in inverse[table])
            largest = self._largest[table]
            self._capacity[table] = max(min(bucket(largest + largest // 8), ids), len(rows[table]))
        flat = [
            tf.TensorSpec(shape, spec.dtype)
            for spec, shape in zip(tf.nest.flatten(self._batches), self._shapes, strict=True)
        ]
        batches = tf.nest.pack_sequence_as(self._batches, flat)
        row_specs = {t: tf.TensorSpec([self._capacity[t], values.shape[1]]) for t, values in rows.items()}
        inverse_specs = {t: [tf.TensorSpec(i.shape, tf.int32) for i in calls] for t, calls in inverse.items()}
        self._compilations += 1
        self._overflows = 0
        self._inverse_shapes = shapes
        self._compiled = CompiledFunction(self._function, (batches, self._dense, row_specs, inverse_specs), xla=True)


class ChosenStep:
    """Runs each call by the step that is chosen for it.

    Args:
        plain: the step for any shape.
        xla: the step of static shapes.
        choice: decides, and hears the timings.
    """

    def __init__(self, plain: CompiledFunction[StepOutputs], xla: XlaStep, choice: StepChoice) -> None:
        self._plain = plain
        self._xla = xla
        self._choice = choice
        self._examined = False

    def __call__(
        self,
        batches: Batches,
        dense: Mapping[str, Array],
        rows: Mapping[str, NDArray[np.float32]],
        inverse: Inverse,
    ) -> StepOutputs:
        """Computes minibatches; rows' gradients may have padding at their end."""
        if self._choice.settled is StepKind.PLAIN or not self._xla.fits(batches, rows):
            return self._run_plain(batches, dense, rows, inverse)
        outputs, started, kind, compiled = None, time.perf_counter(), self._choice.choose(), False
        if kind is StepKind.XLA:
            try:
                self._examine()
                outputs, compiled = self._xla.run(batches, dense, rows, inverse)
            except XlaUnusableError as error:
                self._choice.disable_xla(str(error))
        if outputs is None:
            started, kind = time.perf_counter(), StepKind.PLAIN
            outputs = self._run_plain(batches, dense, rows, inverse)
        outputs[0].numpy()  # waits until the accelerator is done
        if not compiled:
            self._choice.record(kind, time.perf_counter() - started)
        return outputs

    def _run_plain(
        self, batches: Batches, dense: Mapping[str, Array], rows: Mapping[str, NDArray[np.float32]], inverse: Inverse
    ) -> StepOutputs:
        tensors = {table: tf.convert_to_tensor(values) for table, values in rows.items()}
        parameters = {name: tf.convert_to_tensor(value) for name, value in dense.items()}
        return self._plain(batches, parameters, tensors, inverse)

    def _examine(self) -> None:
        """Checks, before the first use of XLA, whether mistakes in the data would pass unnoticed."""
        if self._examined:
            return
        self._examined = True
        unchecked = dropped_check(self._plain.graph_def())
        if unchecked and self._choice.mode == "on":
            _log.warning("compiled step: XLA drops a check of the values; bad ids go unnoticed", operation=unchecked)
        elif unchecked:
            raise XlaUnusableError(f"it would drop a check of the values: {unchecked}")


def dropped_check(graph_def: GraphDef) -> str:
    """The first operation whose check of its inputs XLA leaves out; empty if there is none.

    XLA ignores assertions and takes the nearest row for an index outside the range, where the plain step raises.
    Indices of PS-backed rows, and those that follow from shapes and constants alone, are known to be good.
    """
    for nodes in [graph_def.node, *(function.node_def for function in graph_def.library.function)]:
        by_name = {node.name: node for node in nodes}
        for node in nodes:
            if node.op in _CHECKED:
                return str(node.name)
            if node.op in _INDEXED and not any(part in node.name for part in (ROWS_NAME, *_GRADIENTS)):
                index = _source(node.input[_INDEXED[node.op]])
                if _follows_from_data(index, by_name):
                    return str(node.name)
    return ""


def _follows_from_data(name: str, by_name: Mapping[str, Node]) -> bool:
    """Whether a node's value depends on arguments or variables, other than by their shapes."""
    waiting, met = [name], {name}
    while waiting:
        node = by_name.get(waiting.pop())
        if node is None or node.op in _DATA:
            return True
        if node.op in _SHAPES:
            continue
        new = {_source(given) for given in node.input if not given.startswith("^")} - met
        met |= new
        waiting += new
    return False


def _source(given: str) -> str:
    return given.split(":")[0]


def _is_batch(spec: NestedSpec) -> bool:
    return isinstance(spec, tf.TensorSpec) and bool(spec.shape.rank)


def _shortened(error: Exception) -> str:
    text = re.sub(r"__inference_\S+", "the step", str(getattr(error, "message", None) or error))
    return f"{type(error).__name__}: {' '.join(text.split())[:400]}"
