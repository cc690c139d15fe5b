"""Changes of a model's state (what no gradient changes) by a step whose microbatches were computed apart.

Each microbatch begins with the state from before the step, and contributes how it changed it. The contributions are
sums of float32, so that members can add them like gradients, and the outcome does not depend on who computed what:

- what is said or seen to be a largest, smallest or last value is that of all microbatches: each adds its value, as
  bits in halves of 16, at a place of its own, where others add zeros, so that infinite ones come out as they went in;
- a float (a moving average) moves by the mean of the changes, weighed by rows;
- a counter (an integer, or a float whose ``aggregation`` is ``sum``) moves by the sum of the changes;
- a flag, or an integer that is no such counter, takes the mean of the values that microbatches gave it, rounded:
  all give a count of updates the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from elasticdl_worker.trainers.integer_sums import LIMBS, join, mean, split
from elasticdl_worker.trainers.state_merging import Merge, infinite_state, nothing_merges
from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.model.state import ModelState
from elasticdl_worker.trainers.tensorflow.types import Tensor, Variable


class StateChanges:
    """The changes of some variables as one flat array of float32; to be called while tracing.

    Args:
        state: of the model.
        names: of the variables that a minibatch may change.
        microbatches: of an update.

    Raises:
        UserCodeError: a variable that moves by differences has infinite numbers, or there is no rule for one.
    """

    def __init__(self, state: ModelState, names: Sequence[str], microbatches: int) -> None:
        self.names = list(names)
        self._microbatches = microbatches
        self._rules = {name: state.rules[name] for name in names}
        self._unset = state.unset
        self._variables = {name: state.variables[name] for name in names}
        for name, variable in self._variables.items():
            if (
                self._is_float(name)
                and not self._rules[name].selects
                and not bool(tf.reduce_all(tf.math.is_finite(variable)))
            ):
                if microbatches > 1:
                    raise infinite_state(name)
                self._rules[name] = Merge.LAST
            if name in state.unmerged and microbatches > 1:
                raise nothing_merges(name)
        self._lengths = {name: self._length(name) for name in names}
        self.length = sum(self._lengths.values())

    def read(self) -> dict[str, Tensor]:
        """The values now."""
        return {name: tf.identity(variable) for name, variable in self._variables.items()}

    def assign(self, values: dict[str, Tensor]) -> None:
        """Sets the values."""
        for name, value in values.items():
            self._variables[name].assign(value)

    def take(self, before: dict[str, Tensor], rows: Tensor, microbatch: Tensor) -> Tensor:
        """Takes back all changes, and gives them.

        Args:
            before: from ``read``.
            rows: of the minibatch, a float32 scalar.
            microbatch: its number within the update, an int32 scalar.
        """
        parts = []
        for name, variable in self._variables.items():
            old, new = before[name], tf.identity(variable)
            selects = self._rules[name].selects
            parts.append(self._placed(name, new, microbatch) if selects else self._part(name, old, new, rows))
            variable.assign(old)
        return tf.concat(parts, 0) if parts else tf.zeros([0], tf.float32)

    def apply(self, changes: Tensor, rows: Tensor) -> None:
        """Moves the state by the sum of changes.

        Args:
            changes: summed over the microbatches.
            rows: of all of them, a float32 scalar.
        """
        at = 0
        for name, variable in self._variables.items():
            part = changes[at : at + self._lengths[name]]
            at += self._lengths[name]
            selects = self._rules[name].selects
            variable.assign(
                self._chosen(name, variable, part) if selects else self._moved(name, variable, part, rows)
            )

    def _placed(self, name: str, value: Tensor, microbatch: Tensor) -> Tensor:
        """A mark that there are values, NaN if one of them newly is, and the values, at the place of a microbatch."""
        halves = value if value.dtype.size == 1 else tf.bitcast(value, tf.uint16)
        may_be_bad = value.dtype.is_floating and name not in self._unset
        bad = tf.reduce_any(tf.math.is_nan(value)) if may_be_bad else False
        mark = tf.where(bad, [math.nan], [1.0])
        given = tf.concat([mark, tf.reshape(tf.cast(halves, tf.float32), [-1])], 0)
        place = tf.one_hot(microbatch, self._microbatches, dtype=tf.float32)
        return tf.reshape(place[:, tf.newaxis] * given[tf.newaxis], [-1])

    def _chosen(self, name: str, variable: Variable, part: Tensor) -> Tensor:
        """The value that the rule takes from those of the microbatches that there were."""
        value, rule = tf.identity(variable), self._rules[name]
        places = tf.reshape(part, [self._microbatches, -1])
        there, numbers = places[:, 0] > 0, places[:, 1:]
        shape = [self._microbatches, *value.shape]
        if value.dtype.size == 1:
            given = tf.reshape(tf.cast(numbers, value.dtype), shape)
        else:
            halves = tf.cast(tf.cast(numbers, tf.int32), tf.uint16)
            width = [value.dtype.size // 2] if value.dtype.size > 2 else []
            given = tf.bitcast(tf.reshape(halves, [*shape, *width]), value.dtype)
        old = tf.broadcast_to(value, shape)
        given = tf.where(tf.reshape(there, [-1, *[1] * len(value.shape)]), given, old)
        if rule is Merge.LAST:
            numbered = tf.where(there, tf.range(self._microbatches), -tf.ones_like(there, tf.int32))
            return tf.gather(given, tf.maximum(tf.reduce_max(numbered), 0))
        every = tf.concat([given, value[tf.newaxis]], 0)
        every = tf.cast(every, tf.uint8) if value.dtype == tf.bool else every
        found = tf.reduce_max(every, 0) if rule is Merge.MAX else tf.reduce_min(every, 0)
        return tf.cast(found, value.dtype)

    def _length(self, name: str) -> int:
        elements = math.prod(cast("list[int]", self._variables[name].shape.as_list()))
        if self._rules[name].selects:
            return self._microbatches * (1 + elements * max(1, self._variables[name].dtype.size // 2))
        if self._is_float(name):
            return elements
        return elements * (LIMBS if self._rules[name] is Merge.SUM else LIMBS + 1)

    def _is_float(self, name: str) -> bool:
        return not self._variables[name].dtype.is_integer and self._variables[name].dtype != tf.bool

    def _part(self, name: str, old: Tensor, new: Tensor, rows: Tensor) -> Tensor:
        counts = self._rules[name] is Merge.SUM
        if self._is_float(name):
            change = tf.reshape(tf.cast(new - old, tf.float32), [-1])
            return change if counts else change * rows
        if counts:
            return _limbs(tf.cast(new, tf.int64) - tf.cast(old, tf.int64))
        changed = tf.not_equal(new, old)
        given = tf.where(changed, tf.cast(new, tf.int64), tf.zeros_like(new, tf.int64))
        return tf.concat([tf.reshape(tf.cast(changed, tf.float32), [-1]), _limbs(given)], 0)

    def _moved(self, name: str, variable: Variable, part: Tensor, rows: Tensor) -> Tensor:
        value = tf.identity(variable)
        shape, counts = value.shape, self._rules[name] is Merge.SUM
        if self._is_float(name):
            change = part if counts else part / rows
            return value + tf.cast(tf.reshape(change, shape), value.dtype)
        if counts:
            return tf.cast(tf.cast(value, tf.int64) + tf.reshape(join(_limb_sums(part)), shape), value.dtype)
        elements = math.prod(shape.as_list())
        changed = tf.cast(part[:elements], tf.int64)
        count = tf.maximum(changed, tf.ones_like(changed))
        below, rest = mean(_limb_sums(part[elements:]), count)
        # To the nearest, and from the middle to the even one.
        up = (2 * rest > count) | (tf.equal(2 * rest, count) & tf.equal(below % 2, tf.ones_like(below)))
        given = tf.cast(tf.reshape(below + tf.cast(up, tf.int64), shape), value.dtype)
        return tf.where(tf.reshape(changed, shape) > 0, given, value)


def _limbs(values: Tensor) -> Tensor:
    return tf.concat([tf.cast(limb, tf.float32) for limb in split(tf.reshape(values, [-1]))], 0)


def _limb_sums(limbs: Tensor) -> list[Tensor]:
    return cast("list[Tensor]", tf.split(tf.cast(limbs, tf.int64), LIMBS))
