"""Calls compiled functions of a known signature without TensorFlow's checks of it, which cost more than the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.types import Graph, GraphDef, Tensor

R = TypeVar("R")
_ONE_THREAD = "SINGLE_THREADED_EXECUTOR"
_MASK = "_keras_mask"


def shares_cores() -> bool:
    """Whether this process was given one thread, and has no accelerator to keep busy."""
    one = tf.config.threading.get_intra_op_parallelism_threads() == 1
    return one and not tf.config.list_physical_devices("GPU")


class KerasMasks(Generic[R]):
    """Keras' masks of what a function returns, over the border of its compilation.

    Keras notes as an attribute of a tensor which of its steps are padding; its losses and metrics count the others
    alone. A compiled function returns tensors that are new, and have none.
    """

    def __init__(self, function: Callable[..., R]) -> None:
        self._function = function
        self._places: list[int] = []

    def take(self, *arguments: object) -> tuple[R, list[Tensor]]:
        """Calls the function and takes its masks along: to be compiled."""
        result = self._function(*arguments)
        masks = {at: mask_of(value) for at, value in enumerate(tf.nest.flatten(result))}
        self._places = [at for at, mask in masks.items() if mask is not None]
        return result, [mask for mask in masks.values() if mask is not None]

    def give(self, returned: tuple[R, list[Tensor]]) -> R:
        """The results of the compiled function, with their masks where they were."""
        result, masks = returned
        if masks:
            flat = tf.nest.flatten(result)
            for at, mask in zip(self._places, masks, strict=True):
                set_mask(flat[at], mask)
        return result


def mask_of(value: object) -> Tensor | None:
    """The mask of a tensor's steps, as Keras notes it; None if all count."""
    mask: Tensor | None = getattr(value, _MASK, None)
    return mask


def set_mask(value: Tensor, mask: Tensor) -> None:
    """Notes which steps of a tensor count."""
    setattr(value, _MASK, mask)


class CompiledFunction(Generic[R]):
    """A compiled function of fixed argument types; traced when it is made.

    Measured for a training step's arguments: 0.14 ms of CPU a call, against 0.56 ms of ``tf.function``.

    A worker that shares its cores with others (one thread an operation, no accelerator) runs the operations one after
    the other in one thread, which saves 5 to 20 % of a step's CPU: nothing is handed from thread to thread.

    Args:
        function: takes nested tensors.
        signature: nested ``tf.TypeSpec`` of its arguments, one entry for each.
        xla: have XLA compile it, in the first call; a function that XLA cannot compile raises then.
    """

    def __init__(self, function: Callable[..., R], signature: tuple[object, ...], *, xla: bool = False) -> None:
        self._masks = KerasMasks(function)

        def flattened(*tensors: Tensor) -> tuple[R, list[Tensor]]:
            return self._masks.take(*tf.nest.pack_sequence_as(signature, list(tensors), expand_composites=True))

        specs = [tf.TensorSpec(s.shape, s.dtype) for s in tf.nest.flatten(signature, expand_composites=True)]
        traced = tf.function(flattened, input_signature=specs, autograph=False, jit_compile=xla or None)
        self._concrete = traced.get_concrete_function()
        self._captures = self._concrete.captured_inputs
        self._in_one_thread = not xla and shares_cores()
        self._called = False

    def __call__(self, *arguments: object) -> R:
        """Calls the function; the arguments must be of its types."""
        flat = tf.nest.flatten(arguments, expand_composites=True)
        if not self._in_one_thread:
            return self._run(flat)
        try:
            with tf.experimental.function_executor_type(_ONE_THREAD):
                result = self._run(flat)
        except tf.errors.OpError:
            if self._called:
                raise
            # Some operations need the other executor, which the first call tells; it raises what is the user's fault.
            self._in_one_thread = False
            return self._run(flat)
        self._called = True
        return result

    def _run(self, flat: list[Tensor]) -> R:
        result: tuple[R, list[Tensor]] = self._concrete._call_flat(flat, self._captures)
        return self._masks.give(result)

    def graph_def(self) -> GraphDef:
        """The traced operations, as a ``GraphDef``."""
        graph: Graph = self._concrete.graph
        return graph.as_graph_def()
