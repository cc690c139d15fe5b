"""Evaluation metrics whose states add up over minibatches, tasks and workers.

The states of a set of metrics are JSON: ``{name: {"kind": ..., "sum": [...]}}``. Two states of a metric merge by
adding the numbers of ``sum`` at equal places, or by taking the larger or smaller one where ``by`` says ``max`` or
``min`` of a variable. ``kind`` is ``mean`` for a function, with ``[sum, count]``; for an
object it is that of the framework, with one flat list for each of its variables.

That states add up, and that a mean of means weighed by records is the mean, is true of some metrics only: where it
does not follow from the class it is tried, states on the first minibatch and means on each.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NotRequired, Protocol, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.contract import Subject, refusal
from elasticdl_core.errors import UserCodeError
from elasticdl_core.job.bounds import METRIC_CHARS
from elasticdl_worker.trainers.framework import LossOf, Metrics, Outputs
from elasticdl_worker.trainers.minibatch import Tensors
from elasticdl_worker.user_code import ModelModule

LOSS = "loss"
_HELD, _HELD_VALUES = 64, 1 << 20
"""Minibatches of training that are held to be measured in one go, and values of their predictions and labels."""


class MeanState(TypedDict):
    """The state of a function: its sum over records, and how many these are."""

    kind: Literal["mean"]
    sum: list[float]


class ObjectState(TypedDict):
    """The state of a metric object: the numbers of each of its variables."""

    kind: str
    sum: list[list[float]]
    by: NotRequired[list[str]]


MetricState = MeanState | ObjectState


class MetricObject(Protocol):
    """A metric of the framework's kind, with a state."""

    def reset(self) -> None:
        """Begins anew."""

    def update(self, labels: Tensors, predictions: Tensors, records: int) -> None:
        """Takes a minibatch; raises where its state does not add up."""

    def numbers(self) -> list[list[float]]:
        """The state: the numbers of each variable."""

    def rules(self) -> list[str]:
        """The rule by which each variable merges: ``sum``, ``max`` or ``min``."""

    def result_of(self, numbers: Sequence[Sequence[float]]) -> NDArray[np.float64]:
        """The value of a state; any shape."""


class MetricKind(Protocol):
    """A framework's knowledge of metrics."""

    @property
    def name(self) -> str:
        """``kind`` of the states of its objects; not ``mean``."""

    @property
    def words(self) -> str:
        """The name of its objects, e.g. ``a Keras metric``."""

    def find(self, name: str, wanted: str) -> object:
        """A metric or function by the framework's name for it; ``name`` is the user's.

        Raises:
            UserCodeError: there is none, or it is refused.
        """

    def is_own(self, metric: object) -> bool:
        """Whether the framework, and not the user, has written an object."""

    def adopt(self, name: str, metric: object) -> MetricObject | None:
        """An object of the framework's kind; None if it is something else.

        Raises:
            UserCodeError: it is a class, where an object is needed.
        """

    def align(self, labels: Tensors, predictions: Tensors) -> Tensors:
        """Labels ``[N]`` in the shape of predictions ``[N, 1]``; others as they are."""

    def in_order(self, what: str, function: LossOf) -> LossOf:
        """A function as one of ``(labels, predictions)``.

        Raises:
            UserCodeError: it names the predictions first.
        """

    def check_function(self, what: str, function: LossOf, labels: Tensors, predictions: Tensors) -> None:
        """Refuses a function in which each label meets the prediction of every record."""

    def cut(self, values: Tensors, start: int, end: int) -> Tensors:
        """Some of the records of nested tensors; None if they cannot be cut."""

    def join(self, parts: Sequence[Tensors]) -> Tensors:
        """Nested tensors of several minibatches as those of one; None if they cannot be joined."""

    def count(self, values: Tensors) -> int:
        """The number of values in nested tensors."""

    def numbers(self, values: Any) -> NDArray[np.float64]:
        """A tensor of any type, an array or a number as an array."""


class ModuleMetrics(Metrics):
    """The metrics of a model module.

    Args:
        kind: the framework's.
        module: the user's module.
        loss: gives the loss of ``(labels, predictions)``; it becomes the metric ``loss`` unless there is one of
            that name. None leaves it out.
        outputs: names of the model's outputs; empty for a single one, None for a list without names.

    Raises:
        UserCodeError: ``eval_metrics_fn`` is missing while there is no loss either, gives something else than
            functions and metrics of the framework, or a metric for an output that the model does not have.
    """

    def __init__(self, kind: MetricKind, module: ModelModule, loss: LossOf | None, outputs: Outputs = ()) -> None:
        self._kind = kind
        self._module = module
        self._outputs = outputs
        self._tried: dict[str, Given] = {}
        self._functions: dict[str, tuple[str | None, LossOf]] = {}
        self._objects: dict[str, tuple[str | None, MetricObject]] = {}
        self._sums: dict[str, tuple[float, float]] = {}
        self._compared: set[str] = set()
        self._epoch: int | None = None
        self._held: list[tuple[Tensors, Tensors, int]] = []
        self._held_values = 0
        given: object = {}
        if module.eval_metrics_fn is not None:
            with module.guard("eval_metrics_fn"):
                given = module.eval_metrics_fn()
        elif loss is None:
            module.need("eval_metrics_fn")
        self._collect(given)
        self._loss = None if loss is None or LOSS in self._functions or LOSS in self._objects else loss
        self.reset()

    @property
    def names(self) -> list[str]:
        """Names of the metrics."""
        return [*([LOSS] if self._loss else []), *self._functions, *self._objects]

    def reset(self) -> None:
        """Begins anew."""
        self._sums = dict.fromkeys([*([LOSS] if self._loss else []), *self._functions], (0.0, 0.0))
        for _, metric in self._objects.values():
            metric.reset()

    def update(self, labels: Tensors, predictions: Tensors, records: int) -> None:
        """Takes the labels and predictions of one minibatch."""
        if self._module.feed is None:
            labels = self._kind.align(labels, predictions)
        if self._loss is not None:
            self._add(LOSS, float(self._loss(labels, predictions)) * records, records)
        for name, (output, function) in self._functions.items():
            with self._module.guard(f"the metric {name}"):
                picked = self._picked(labels, predictions, output)
                if name not in self._compared:
                    self._kind.check_function(f"the metric {name}", function, *picked)
                    self._compared.add(name)
                values = one_array(name, self._kind.numbers, function(*picked))
                if records > 1:  # each time: the first minibatches may have no masked record
                    known = name in self._tried
                    shown = what_is_given(self._kind, name, function, picked, values, records, known=known)
                    if shown is not None:
                        self._tried[name] = shown
                if values.size == 1 and records > 1 and self._tried.get(name) != "values":
                    values = np.broadcast_to(values.ravel(), [records])
            self._add(name, float(values.sum()), values.size)
        for name, (output, metric) in self._objects.items():
            with self._module.guard(f"the metric {name}"):
                metric.update(*self._picked(labels, predictions, output), records)

    def of_epoch(
        self, epoch: int, labels: Tensors, predictions: Tensors, records: int, *, due: bool = True
    ) -> dict[str, float]:
        """Takes a minibatch; if due, the values for all that were taken of its epoch. Another epoch begins anew.

        Minibatches are held and measured together, which costs little more than one of them does.
        """
        if epoch != self._epoch:
            self._held, self._held_values = [], 0
            self.reset()
            self._epoch = epoch
        self._held.append((labels, predictions, records))
        self._held_values += self._kind.count(labels) + self._kind.count(predictions)
        if due or len(self._held) >= _HELD or self._held_values >= _HELD_VALUES:
            self._take_held()
        return self.results(self.state()) if due else {}

    def _take_held(self) -> None:
        held, self._held, self._held_values = self._held, [], 0
        if len(held) > 1:
            labels = self._kind.join([one[0] for one in held])
            predictions = self._kind.join([one[1] for one in held])
            if labels is not None and predictions is not None:
                held = [(labels, predictions, sum(one[2] for one in held))]
        for labels, predictions, records in held:
            self.update(labels, predictions, records)

    def state(self) -> dict[str, MetricState]:
        """The states as JSON data."""
        states: dict[str, MetricState] = {n: {"kind": "mean", "sum": list(pair)} for n, pair in self._sums.items()}
        for name, (_, metric) in self._objects.items():
            state: ObjectState = {"kind": self._kind.name, "sum": metric.numbers()}
            rules = metric.rules()
            if any(rule != "sum" for rule in rules):
                state["by"] = rules
            states[name] = state
        return states

    def results(self, states: Mapping[str, Any]) -> dict[str, float]:
        """The values of merged states; a metric of several values gives ``name[0]``, ``name[1]``, ...

        Raises:
            UserCodeError: the states are of other metrics.
        """
        values: dict[str, float] = {}
        for name, state in states.items():
            if name in self._objects and state["kind"] == self._kind.name:
                values |= self._object_result(name, state["sum"])
            elif name in self._sums and state["kind"] == "mean":
                total, count = state["sum"]
                values[name] = total / count if count else float("nan")
            else:
                raise UserCodeError(f"there is no metric {name}", fix="do not change the module while a job runs")
        return values

    def _object_result(self, name: str, numbers: list[list[float]]) -> dict[str, float]:
        with self._module.guard(f"the result of the metric {name}"):
            result = self._objects[name][1].result_of(numbers)
        if result.ndim == 0:
            return {name: float(result)}
        return {f"{name}[{place}]": float(value) for place, value in enumerate(result.ravel())}

    def _picked(self, labels: Tensors, predictions: Tensors, output: str | None) -> tuple[Tensors, Tensors]:
        """The labels and predictions of an output; labels need not be split by output."""
        if output is None:
            return labels, predictions
        names = self._outputs or ()
        return _pick(labels, output, names, optional=True), _pick(predictions, output, names)

    def _add(self, name: str, value: float, count: int) -> None:
        total, seen = self._sums[name]
        self._sums[name] = (total + value, seen + count)

    def _collect(self, given: object) -> None:
        if not isinstance(given, Mapping):
            raise UserCodeError(
                f"eval_metrics_fn returned a {type(given).__name__}",
                fix='return a dict, e.g. {"accuracy": lambda labels, predictions: ...}',
            )
        for name, value in given.items():
            if isinstance(value, Mapping):
                for inner, metric in value.items():
                    self._take(f"{name}.{inner}", str(name), metric)
            else:
                self._take(str(name), None, value)

    def _check_output(self, name: str, output: str | None, metric: object) -> None:
        """Refuses a metric for an output that is not there, and one of the framework's for all outputs together."""
        if output is not None and self._outputs is None:
            raise refusal(Subject.METRIC, "output_without_name", f"the metric {name}")
        names = self._outputs or ()
        if output is not None and output not in names:
            has = f"outputs {', '.join(names)}" if names else "a single output, without a name"
            raise UserCodeError(
                f"the metric {name} is for the output {output!r}, but the model has {has}",
                fix="name one of these" if names else "give {name: metric} without the name of an output",
            )
        several = self._outputs is None or len(names) > 1
        if output is None and several and self._kind.is_own(metric) and not inspect.isfunction(metric):
            raise UserCodeError(
                f"the metric {name} takes one output, but the model has {', '.join(names) or 'several'}",
                fix="say of which output: {output: {name: metric}}",
            )

    def _take(self, name: str, output: str | None, metric: object) -> None:
        if len(name) > METRIC_CHARS:
            raise UserCodeError(
                f"the name of a metric has {len(name)} characters: {name[:60]}...",
                fix=f"give it a name of {METRIC_CHARS} or fewer",
            )
        if isinstance(metric, str):
            metric = self._kind.find(name, metric)
        self._check_output(name, output, metric)
        adopted = self._kind.adopt(name, metric)
        if adopted is not None:
            self._objects[name] = (output, adopted)
        elif callable(metric):
            self._functions[name] = (output, self._kind.in_order(f"the metric {name}", cast(LossOf, metric)))
        else:
            raise UserCodeError(
                f"the metric {name} is a {type(metric).__name__}",
                fix=f"give a function (labels, predictions) -> values, or {self._kind.words}",
            )


_CLOSE, _CLOSE_LATER = 1e-3, 3e-2
"""How far a function may be off a mean over records by rounding, as part of it, on the first minibatch and later."""
Given = Literal["mean", "values"]
"""What a function gives for a minibatch: the mean over its records, or values of each."""


def what_is_given(
    kind: MetricKind,
    name: str,
    function: Callable[[Tensors, Tensors], Any],
    given: tuple[Tensors, Tensors],
    whole: NDArray[np.float64],
    records: int,
    *,
    known: bool = False,
) -> Given | None:
    """Tries on its halves what a function gives for a minibatch; None where nobody can tell yet.

    A mean is that of the means of both halves, weighed by their records; values are those of the halves together, as
    many and of the same sum.

    Args:
        kind: the framework's.
        name: of the metric.
        function: of labels and predictions.
        given: a minibatch of these.
        whole: the function's values for it.
        records: of the minibatch.
        known: whether another minibatch has shown it: half precision may be that far off in one of many.

    Raises:
        UserCodeError: it is neither.
    """
    at = records // 2
    halves = [half for half in (kind.cut(given, 0, at), kind.cut(given, at, records)) if half is not None]
    if len(halves) < 2 or not np.all(np.isfinite(whole)):
        return None
    first, second = (one_array(name, kind.numbers, function(*half)) for half in halves)
    found, together = float(whole.sum()), float(first.sum() + second.sum())
    as_many = whole.size == first.size + second.size
    what: Given = "values" if whole.size > 1 or (whole.ndim and as_many) else "mean"
    if what == "mean":
        together = float(first.sum() * at + second.sum() * (records - at)) / records
        shown = (
            f"the metric {name} is {found:.6g} on {records} records and {together:.6g} on average on its halves: it"
        )
    else:
        shown = (
            f"the metric {name} gives {whole.size} values of sum {found:.6g} for {records} records, and "
            f"{first.size} and {second.size} of sum {together:.6g} for its halves: it"
        )
    if not np.isfinite(together):
        return None
    size = float(np.abs(whole).sum())
    if known:
        size = max(size, float(np.abs(first).sum() + np.abs(second).sum()))
    close = abs(found - together) <= 1e-6 + (_CLOSE_LATER if known else _CLOSE) * size
    if not close or (what == "values" and not as_many):
        raise refusal(Subject.METRIC, "function_of_no_mean", shown)
    return what if np.any(whole) or np.any(first) or np.any(second) else None


def one_array(name: str, array: Callable[[Any], NDArray[np.float64]], computed: Any) -> NDArray[np.float64]:
    """The result of a metric as one array; several values of one shape are stacked.

    Args:
        name: of the metric.
        array: makes one of a tensor, an array or a number.
        computed: a tensor, an array, a number, or a list of these.

    Raises:
        UserCodeError: it is None, a dict, or a list of values of different shapes.
    """
    if computed is None:
        raise UserCodeError(f"the metric {name} gives None", fix="return its value")
    if isinstance(computed, Mapping):
        raise UserCodeError(f"the metric {name} computes a dict", fix="give an object for each of its values")
    if not isinstance(computed, list | tuple):
        return array(computed)
    parts = [array(one) for one in computed]
    if len({part.shape for part in parts}) > 1:
        shapes = ", ".join(str(list(part.shape)) for part in parts)
        raise UserCodeError(
            f"the metric {name} computes {len(parts)} arrays of different shapes, {shapes}, as curves do, and a "
            "report has numbers",
            fix="give a metric of one value, such as the area under the curve, or an object for each of the arrays",
        )
    return np.stack(parts)


def require_sum(
    name: str,
    kind: str,
    variables: Sequence[str],
    once: Sequence[NDArray[np.float64]],
    twice: Sequence[NDArray[np.float64]],
) -> bool:
    """Refuses a metric object whose state after the same minibatch twice is not twice the state after it.

    Args:
        name: of the metric.
        kind: name of its class.
        variables: names of its variables.
        once: their values after the minibatch.
        twice: those after it came a second time.

    Returns:
        Whether the minibatch showed anything: not all values are 0.

    Raises:
        UserCodeError: it does not add up.
    """
    for variable, one, two in zip(variables, once, twice, strict=True):
        if not np.allclose(two, 2 * one, rtol=1e-3, atol=1e-6, equal_nan=True):
            place = np.unravel_index(np.argmax(np.abs(two - 2 * one)), one.shape) if one.shape else ()
            shown = (
                f"the metric {name} ({kind}): after the same minibatch twice its variable {variable} is "
                f"{two[place]:.6g}, not twice {one[place]:.6g}; it"
            )
            raise refusal(Subject.METRIC, "state_that_does_not_add", shown)
    return any(np.any(one) for one in once)


def _pick(values: Tensors, output: str, names: Sequence[str], *, optional: bool = False) -> Tensors:
    """One output of several, by name or by the place that its name has."""
    if isinstance(values, Mapping):
        if output in values or not optional:
            return values[output]
        return values
    if output in getattr(values, "_fields", ()) or output in getattr(values, "__dataclass_fields__", ()):
        return getattr(values, output)
    if isinstance(values, list | tuple) and len(values) == len(names):
        return values[names.index(output)]
    return values
