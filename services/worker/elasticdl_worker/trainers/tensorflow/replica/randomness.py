"""Seeds what is random in a model by the number of a step and of a microbatch, whichever member computes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.replica_rules import step_seed
from elasticdl_worker.trainers.tensorflow.compiled import CompiledFunction
from elasticdl_worker.trainers.tensorflow.drawing import draws, operations_of
from elasticdl_worker.trainers.tensorflow.framework import raw_variable, tf
from elasticdl_worker.trainers.tensorflow.model.build import PreparedModel, is_seed
from elasticdl_worker.trainers.tensorflow.types import GraphDef, Tensor, Variable


class SeededDraws:
    """The random generators of a model."""

    def __init__(self, generators: Sequence[Variable]) -> None:
        self._generators = list(generators)
        self._first = [np.array(variable.numpy()) for variable in generators]
        self._assign: CompiledFunction[None] | None = None

    def seed(self, step: int, microbatch: int) -> None:
        """Sets all of them for one microbatch of a step."""
        if not self._generators:
            return
        if self._assign is None:

            def assign(values: list[Tensor]) -> None:
                for variable, value in zip(self._generators, values, strict=True):
                    variable.assign(value)

            specs = [tf.TensorSpec(one.shape, one.dtype) for one in self._generators]
            self._assign = CompiledFunction(assign, (specs,))
        mixed = step_seed(step, microbatch)
        # Below 2**31, which suits uint32 and int64.
        words = np.array([mixed & 0x7FFFFFFF, mixed >> 33], np.int64)
        values = [((one.astype(np.int64) + words) & 0x7FFFFFFF).astype(one.dtype) for one in self._first]
        self._assign([tf.convert_to_tensor(value) for value in values])


def find_generators(model: PreparedModel, used: Sequence[Variable]) -> list[Variable]:
    """The variables that random generators of Keras keep their seeds in.

    Args:
        model: the model; weights are none.
        used: what the step uses beside the weights.
    """
    weights = {id(raw_variable(variable)) for variable in model.keras_model.weights}
    own = [raw_variable(one) for one in getattr(model.keras_model, "non_trainable_variables", ())]
    found = {id(one): one for one in [*own, *used] if id(one) not in weights and is_seed(one.dtype, one.shape)}
    return list(found.values())


def refuse_own_state(definition: GraphDef) -> None:
    """Refuses operations that draw by a state of their own, which nobody can set.

    Raises:
        UserCodeError: names one.
    """
    found = next((operation for operation in operations_of(definition) if draws(operation)), None)
    if found is not None:
        raise UserCodeError(
            f"the model draws random numbers by {found}, which keeps a state of its own: members of a group could "
            "not draw the same",
            fix="draw by layers of Keras 3, by keras.random with a SeedGenerator or by tf.random.stateless_*; or "
            "train with --distribution_strategy ParameterServerStrategy",
        )
