"""The compiled functions of a member: what a microbatch contributes, and the update by the sum of it all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.tensorflow.compiled import CompiledFunction
from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.model.build import PreparedModel
from elasticdl_worker.trainers.tensorflow.replica.buckets import GradientBuckets
from elasticdl_worker.trainers.tensorflow.replica.randomness import find_generators, refuse_own_state
from elasticdl_worker.trainers.tensorflow.replica.state_changes import StateChanges
from elasticdl_worker.trainers.tensorflow.step.denominators import KerasDenominators
from elasticdl_worker.trainers.tensorflow.step.programs import Programs
from elasticdl_worker.trainers.tensorflow.step.straight_backward import has_own_gradients
from elasticdl_worker.trainers.tensorflow.types import (
    Features,
    KerasOptimizer,
    KerasVariable,
    Labels,
    NestedSpec,
    Predictions,
    Tensor,
    Variable,
)


class ComputeResult(NamedTuple):
    """The results of a microbatch.

    Attributes:
        loss: the mean over its rows, with regularisation.
        arrays: the buckets of gradients, and the changes of the state if there are any.
        predictions: in training mode; None unless they are kept.
        measured: what ``KerasDenominators`` makes the denominator of the loss of; None where that is the rows.
    """

    loss: Tensor
    arrays: list[Tensor]
    predictions: Predictions | None
    measured: Tensor | None


class UpdateResult(NamedTuple):
    """The results of an update that was made along with computing it.

    Attributes:
        loss: the mean over the rows, with regularisation.
        finite: whether each bucket of gradients was, and the change of the state if there is one.
        predictions: in training mode; None unless they are kept.
    """

    loss: Tensor
    finite: Tensor
    predictions: Predictions | None


class GroupSteps:
    """Computes and applies.

    Args:
        model: the model, all of it in this process.
        programs: of the model.
        labels_spec: nested ``tf.TypeSpec`` of the labels.
        optimizer: the user's, built for the trained variables.
        eager: run without compilation.
        keeps_predictions: whether ``compute`` gives predictions.
        microbatches: of an update.
        learn: finds how state is merged of which no layer says it, by names; is given the generators' seeds, too.
        denominators: of the loss; None where updates are of one part.

    Attributes:
        lengths: of each array of a contribution.
        generators: the variables that random generators keep their seeds in.
        buckets: where gradients lie.
        is_pure: whether computing assigns to no variable.
        has_own_gradients: whether something has a gradient function of its own.

    Raises:
        UserCodeError: the loss depends on nothing that is trained, or the model draws numbers that nobody can seed.
    """

    def __init__(
        self,
        model: PreparedModel,
        programs: Programs,
        labels_spec: NestedSpec | None,
        optimizer: KerasOptimizer,
        *,
        eager: bool,
        keeps_predictions: bool,
        microbatches: int,
        learn: Callable[[Sequence[str], Sequence[Variable]], None],
        denominators: KerasDenominators | None = None,
    ) -> None:
        self._learn = learn
        self._model = model
        self._denominators = denominators
        self._programs = programs
        self._optimizer = optimizer
        self._keeps_predictions = keeps_predictions
        self._microbatches = microbatches
        self._trained = dict(zip(model.trainable, model.keras_model.trainable_variables, strict=True))
        scalars = tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.int32)
        self._signature = (model.features_spec, labels_spec, *scalars)
        self._update: CompiledFunction[UpdateResult] | None = None
        self._discover(self._signature)
        self.compute: Callable[[Features, Labels, Tensor, Tensor], ComputeResult] = self._compute_now
        self.apply: Callable[[list[Tensor], Tensor, Tensor], None] = self._apply_now
        if not eager:
            self.compute = CompiledFunction(self._compute_now, self._signature)
            sums = [tf.TensorSpec([length], tf.float32) for length in self.lengths]
            self.apply = CompiledFunction(self._apply_now, (sums, scalars[0], scalars[0]))

    def _discover(self, signature: tuple[object, ...]) -> None:
        """Traces the step once to see which variables have gradients, which are assigned to, and what is drawn."""
        flat = tf.nest.flatten(signature, expand_composites=True)
        graph = tf.__internal__.FuncGraph("discover")
        with graph.as_default():
            inputs = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in flat]
            features, labels, *_ = tf.nest.pack_sequence_as(signature, inputs, expand_composites=True)
            with tf.GradientTape() as tape:
                loss, _ = self._programs.compute(features, labels, None)
            found = tape.gradient(loss, list(self._model.trainable.values()))
            refuse_own_state(definition := graph.as_graph_def())
            self.has_own_gradients = has_own_gradients(definition)
            written = {id(op_input) for op in graph.get_operations() if _may_write(op.type) for op_input in op.inputs}
            changed = [
                name
                for name, variable in self._model.state.items()
                if any(outer is variable.handle and id(inner) in written for outer, inner in graph.captures)
            ]
        used = [name for name, gradient in zip(self._model.trainable, found, strict=True) if gradient is not None]
        if not used:
            raise UserCodeError(
                "the loss depends on no trainable parameter",
                fix="compute the loss from the model's predictions with differentiable operations",
            )
        watched: Sequence[Variable] = graph.variables
        self.generators = find_generators(self._model, watched)
        self.buckets = GradientBuckets({name: self._model.trainable[name] for name in used})
        self._used = used
        untold = [name for name in self._model.merging.untold if name in changed]
        if untold and self._microbatches > 1:
            self._learn(untold, self.generators)
        self._state = StateChanges(self._model.merging, changed, self._microbatches)
        self._kept = self._state.read()
        self.is_pure = not self.generators and not changed
        self.lengths = [*self.buckets.lengths, *([self._state.length] if self._state.length else [])]

    def remember(self) -> None:
        """Keeps the state as it is, for ``restore``."""
        self._kept = self._state.read()

    def restore(self) -> None:
        """Sets the state as it was remembered, after a microbatch that was computed in part."""
        self._state.assign(self._kept)

    def update(self, features: Features, labels: Labels, rows: Tensor, microbatch: Tensor) -> UpdateResult:
        """Computes, and applies what was computed, in one compiled function, which is traced in the first call.

        What is not finite is applied, too: nobody may use the model then.
        """
        if self._update is None:
            self._update = CompiledFunction(self._update_now, self._signature)
        return self._update(features, labels, rows, microbatch)

    def _update_now(self, features: Features, labels: Labels, rows: Tensor, microbatch: Tensor) -> UpdateResult:
        before = self._state.read()
        loss, predictions, gradients = self._gradients(features, labels, rows)
        finite = self.buckets.finite(gradients)
        self._optimize({name: gradient / rows for name, gradient in gradients.items()})
        if self._state.length:
            change = self._state.take(before, rows, microbatch)
            self._state.apply(change, rows)
            finite.append(tf.reduce_all(tf.math.is_finite(change)))
        return UpdateResult(loss, tf.stack(finite), predictions if self._keeps_predictions else None)

    def _gradients(
        self, features: Features, labels: Labels, rows: Tensor
    ) -> tuple[Tensor, Predictions, dict[str, Tensor]]:
        """The loss, the predictions, and the gradient of each variable times the rows."""
        with tf.GradientTape() as tape:
            loss, predictions = self._programs.compute(features, labels, None)
        found = tape.gradient(loss, [self._model.trainable[name] for name in self._used])
        pairs = zip(self._used, found, strict=True)
        weighed = {name: _weighed(gradient, self._model.trainable[name], rows) for name, gradient in pairs}
        return loss, predictions, weighed

    def _optimize(self, gradients: dict[str, Tensor]) -> None:
        pairs: list[tuple[object, KerasVariable]] = [(gradients[name], self._trained[name]) for name in self._used]
        self._optimizer.apply_gradients(pairs)

    def _compute_now(self, features: Features, labels: Labels, rows: Tensor, microbatch: Tensor) -> ComputeResult:
        before = self._state.read()
        loss, predictions, gradients = self._gradients(features, labels, rows)
        arrays = self.buckets.pack(gradients)
        if self._state.length:
            arrays.append(self._state.take(before, rows, microbatch))
        measured = None if self._denominators is None else self._denominators.measure(labels, predictions)
        return ComputeResult(loss, arrays, predictions if self._keeps_predictions else None, measured)

    def _apply_now(self, sums: list[Tensor], rows: Tensor, denominator: Tensor) -> None:
        buckets = len(self.buckets.lengths)
        self._optimize(self.buckets.unpack([total / denominator for total in sums[:buckets]]))
        if self._state.length:
            self._state.apply(sums[buckets], rows)


def _may_write(operation: str) -> bool:
    """Whether an operation that takes a variable's handle may assign to it."""
    return operation not in ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")


def _weighed(gradient: Tensor | None, variable: Variable, rows: Tensor) -> Tensor:
    """A gradient times its rows, dense; nothing at all, where a minibatch takes another way, counts as 0."""
    if gradient is None:
        return tf.zeros(variable.shape, tf.float32)
    return tf.convert_to_tensor(gradient) * rows
