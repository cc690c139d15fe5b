"""Updates of a local run that change no rows of a table but those of the minibatch, as parameter servers do it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence

from elasticdl_worker.trainers.tensorflow.framework import raw_variable, tf
from elasticdl_worker.trainers.tensorflow.model.slots import OptimizerSlots
from elasticdl_worker.trainers.tensorflow.types import KerasOptimizer, KerasVariable, Tensor, Variable


class TouchedRows:
    """The rows of tables that a minibatch looked up: all others stay as they are, and so do their slots.

    Keras' optimizers move every row of a variable, by momentum, averages and weight decay of its own.

    Args:
        optimizer: built for ``trained``.
        trained: what it trains, in that order.
        tables: those of them that are tables.
    """

    def __init__(
        self, optimizer: KerasOptimizer, trained: Sequence[KerasVariable], tables: Collection[KerasVariable]
    ) -> None:
        named = {str(number): variable for number, variable in enumerate(trained)}
        slots, wanted = OptimizerSlots(optimizer, named), {id(table) for table in tables}
        self._held: dict[int, list[Variable]] = {
            id(variable): [raw_variable(variable), *slots.of(name)]
            for name, variable in named.items()
            if id(variable) in wanted
        }

    @contextlib.contextmanager
    def updating(self, pairs: Sequence[tuple[Tensor, KerasVariable]]) -> Iterator[None]:
        """A context in which the optimizer is given gradients; to be entered while tracing.

        Args:
            pairs: each gradient and its variable; a gradient of rows has each id once.
        """
        before = [
            (_rows_of(gradient), [(one, one.read_value()) for one in self._held[id(variable)]])
            for gradient, variable in pairs
            if id(variable) in self._held
        ]
        yield
        for ids, held in before:
            for variable, old in held:
                rows = tf.gather(variable, ids)
                variable.assign(old)
                variable.scatter_update(tf.IndexedSlices(rows, ids))


def _rows_of(gradient: Tensor) -> Tensor:
    """The ids of a gradient's rows; of a dense one, as mixed precision makes it, of those that are not zero."""
    if isinstance(gradient, tf.IndexedSlices):
        return gradient.indices
    return tf.where(tf.reduce_any(tf.not_equal(gradient, 0), axis=1))[:, 0]
