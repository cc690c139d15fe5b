"""The protocols of a framework: everything that touches its tensors, behind interfaces that name no framework.

``on_servers`` trains by these protocols with parameter servers, ``elasticdl_worker.local`` in one process. Each
framework is a package beside this module that implements ``Framework``; ``choosing`` finds it. Arrays that cross the
border are numpy's; tensors cross it only to be handed back to the framework that made them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from elasticdl.callbacks import Callback
from elasticdl.data import DataReader, Shard
from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_core.model import DenseSpec, OptimizerSpec, TableSpec, UpdateClipping
from elasticdl_core.shuffling import Reading
from elasticdl_runtime.device_turns import DeviceGrant
from elasticdl_worker.group.replica import Replica
from elasticdl_worker.group.state_files import CheckpointPart
from elasticdl_worker.parameters import Origin, StateChange
from elasticdl_worker.reporting.accounts import Intake
from elasticdl_worker.trainers.export_request import ExportRequest
from elasticdl_worker.trainers.minibatch import Minibatch, Tensors
from elasticdl_worker.trainers.output_files import OutputFile
from elasticdl_worker.user_code import ModelModule

Array: TypeAlias = NDArray[np.generic]
"""An array of any dtype."""
Outputs: TypeAlias = "tuple[str, ...] | None"
"""Names of a model's outputs; empty for a single one, None for several without names."""
LossOf: TypeAlias = Callable[[Tensors, Tensors], Any]
"""The loss of ``(labels, predictions)`` as something that ``float`` takes."""
LearningRate: TypeAlias = Callable[[int, int], float]
"""The rate by model version and epoch."""
LearningRates: TypeAlias = "Callable[[int, int], float | tuple[float, ...]]"
"""The same, or one for each group of the optimizer, where it has several."""


@dataclass(frozen=True)
class Lookups:
    """The rows that one or more minibatches need.

    Attributes:
        unique: for each table, its ids without duplicates, int64. Tables with the same ids may share one array.
        inverse: for each table, a tensor in the ids' shape that indexes ``unique`` for each of its lookups, minibatch
            by minibatch; of the framework, for its own use.
        whole: whether the whole model ran for them; else it was taken to look up as it did with the first records.
    """

    unique: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    inverse: Tensors = field(default_factory=dict)
    whole: bool = False


class LookupsChangedError(UserCodeError):
    """A model looks up otherwise than with the first records: its ids are to be found anew, by whole runs."""


@dataclass(frozen=True)
class StepResult:
    """The result of one or more minibatches; its arrays may be read until the next call of the programs.

    Attributes:
        losses: the loss of each minibatch, with regularisation.
        dense: gradients of the trainable variables that the loss depends on, by name, summed over the minibatches.
        rows: gradients of the rows of each table, ``[unique ids, dim]``, summed over the minibatches.
        state: how the other variables changed, by name.
        origin: the parameters that the gradients were computed on.
        predictions: of each minibatch, in training mode; empty unless the programs keep them.
        denominator: of the loss, measured of so many rows; None where gradients weigh what their records do.
    """

    losses: tuple[float, ...]
    dense: Mapping[str, Array]
    rows: Mapping[str, NDArray[np.float32]]
    state: Mapping[str, StateChange]
    origin: Origin
    predictions: Sequence[Tensors] = ()
    denominator: Callable[[int], float] | None = None

    @property
    def loss(self) -> float:
        """The loss of the last minibatch."""
        return self.losses[-1]


@dataclass(frozen=True)
class LocalStep:
    """The result of a minibatch that is trained in one process.

    Attributes:
        loss: its loss.
        not_finite: what of it is not finite, so that it was left out; empty if all is well.
        predictions: of the model for it, in training mode.
    """

    loss: float
    not_finite: str = ""
    predictions: Tensors = None


class MinibatchSource(Protocol):
    """Makes minibatches of the records of tasks, by the user's ``feed``, for one mode."""

    @property
    def ordered(self) -> bool:
        """Whether the record at position ``i`` of a task is record ``i`` of its minibatches."""

    @property
    def intake(self) -> Intake:
        """The intake of the present shard so far."""

    def minibatches(self, shard: Shard, reading: Reading | None = None) -> Iterator[Minibatch]:
        """Reads the minibatches of a shard; one shard at a time.

        Args:
            shard: the records, or their positions.
            reading: where the records of the positions lie, if they are shuffled.

        Raises:
            DataError: the data cannot be read.
            UserCodeError: ``feed`` or the user's reader raised.
        """


class OptimizerPlan(Protocol):
    """The translation of the user's optimizer."""

    @property
    def spec(self) -> OptimizerSpec:
        """For the parameter servers."""

    @property
    def learning_rate(self) -> LearningRates | None:
        """The rate by model version and epoch, or None where it is constant."""

    @property
    def clipping_of_updates(self) -> UpdateClipping:
        """The clipping that is asked for, as parameter servers do it where an update is of several minibatches."""


class TrainedModel(Protocol):
    """The user's model, built, with names for its parameters that are the same in every worker."""

    @property
    def outputs(self) -> Outputs:
        """Names of the outputs."""

    @property
    def layers(self) -> Mapping[str, str]:
        """The meaning of layers' names in the module, as far as it says that and the names do not."""

    @property
    def tables(self) -> Mapping[str, TableSpec]:
        """The embedding tables by name."""

    @property
    def trainable(self) -> Mapping[str, object]:
        """The parameters that the optimizer changes, by name."""

    @property
    def state(self) -> Mapping[str, object]:
        """The other state (moving averages, counters, frozen weights), by name."""

    @property
    def unset(self) -> Collection[str]:
        """Names of state that begins with numbers that are none (NaN), and may be so later."""

    def values(self) -> dict[str, Array]:
        """Copies of all dense parameters."""

    def assign(self, values: Mapping[str, Array]) -> None:
        """Sets dense parameters."""

    def vary_randomness(self, worker_index: int) -> None:
        """Makes the dropout masks of this worker differ from those of others that built the same model."""


class StepPrograms(Protocol):
    """Computations of a model whose tables lie elsewhere: ids, gradients, predictions."""

    def collect(self, *batches: Tensors, training: bool) -> Lookups:
        """Finds the rows that minibatches need together, from the features of each.

        Raises:
            DataError: an id outside the range of a closed table.
            UserCodeError: ids that do not follow from the features alone.
        """

    def prepare_collect(self, *, training: bool) -> None:
        """Makes ready what ``collect`` needs, so that another thread can run it."""

    def steps(
        self,
        batches: Sequence[tuple[Tensors, Tensors]],
        dense: Mapping[str, Array],
        rows: Mapping[str, NDArray[np.float32]],
        lookups: Lookups,
    ) -> StepResult:
        """Runs the model forward and backward on minibatches, one after the other; gradients come clipped.

        Each minibatch finds the parameters that the updates between minibatches made of those before it.

        Args:
            batches: features and labels of each minibatch.
            dense: the trainable parameters to begin with, by name; empty begins with those that the model has.
            rows: for each table float32 ``[unique ids, dim]``.
            lookups: what ``collect`` gave for the same features.
        """

    def forward(self, features: Tensors, rows: Mapping[str, NDArray[np.float32]], lookups: Lookups) -> Tensors:
        """The model's outputs for a minibatch, in inference mode."""

    def evaluation_loss(self, labels: Tensors, predictions: Tensors) -> Any:
        """The loss of predictions without regularisation, as something that ``float`` takes."""


class GroupUpdates(Protocol):
    """Moves the worker's own copy of the parameters between the minibatches of a group (``get_model_steps`` > 1)."""

    def set_rates(self, rates: Sequence[float]) -> None:
        """Sets the learning rates for the next group: of each group of the optimizer."""

    def reset(self) -> None:
        """Resets the optimizer's state, after a gradient that is not finite."""


class Metrics(Protocol):
    """The metrics of a model module; their states add up over minibatches, tasks and workers."""

    @property
    def names(self) -> list[str]:
        """Names of the metrics."""

    def reset(self) -> None:
        """Begins anew."""

    def update(self, labels: Tensors, predictions: Tensors, records: int) -> None:
        """Takes the labels and predictions of one minibatch."""

    def of_epoch(
        self, epoch: int, labels: Tensors, predictions: Tensors, records: int, *, due: bool = True
    ) -> dict[str, float]:
        """Takes a minibatch; if due, the values for all that were taken of its epoch. Another epoch begins anew."""

    def state(self) -> Mapping[str, Any]:
        """The states as JSON data: ``{name: {"kind": ..., "sum": [...]}}``; those of ``sum`` add up."""

    def results(self, states: Mapping[str, Any]) -> dict[str, float]:
        """The values of merged states."""


@dataclass(frozen=True)
class Preparation:
    """The purpose that a model is prepared for.

    Attributes:
        spec: the job.
        module: the user's module.
        source: makes the minibatches of the job's main mode.
        callbacks: those of the module.
        formats: of export, by the job and the callbacks; empty where another process tries them before training.
        remaining_steps: number of steps that this worker is still expected to make; None if nobody knows.
        keeps_predictions: whether a step also gives the predictions of its minibatches.
    """

    spec: JobSpec
    module: ModelModule
    source: MinibatchSource
    callbacks: Sequence[Callback] = ()
    formats: Sequence[str] = ()
    remaining_steps: Callable[[], int | None] = lambda: None
    keeps_predictions: bool = False


@dataclass(frozen=True)
class PreparedJob:
    """A model made ready to be trained, evaluated or to predict, with parameters on parameter servers.

    Attributes:
        model: with the values that the job begins with, if no parameter server has others.
        programs: of the model.
        dense: its dense parameters, as the parameter servers need them.
        tables: its tables, as the parameter servers need them.
        optimizer: None where the module has none, in a job that does not train.
        group_updates: what moves the parameters between the minibatches of a group; None without groups.
    """

    model: TrainedModel
    programs: StepPrograms
    dense: Sequence[DenseSpec]
    tables: Sequence[TableSpec]
    optimizer: OptimizerPlan | None = None
    group_updates: GroupUpdates | None = None


class LocalSteps(Protocol):
    """Trains a model in one process: all parameters in it, the user's own optimizer.

    Attributes:
        steps: number of updates so far.
        epoch: which epoch the next minibatch is of, for schedules that go by epoch.
        rule_of_rows: what the start of the run says of rows that a minibatch does not have; empty for nothing.
    """

    steps: int
    epoch: int
    rule_of_rows: str

    @property
    def outputs(self) -> Outputs:
        """Names of the model's outputs."""

    @property
    def version(self) -> int:
        """The model version: the number of updates that are in the model, with those of a checkpoint."""

    @property
    def learning_rate(self) -> float | None:
        """The rate of the latest step; None where nothing is trained."""

    def train(self, batch: Minibatch, *, closes: bool = True) -> LocalStep:
        """Updates the model by a minibatch, unless its loss or a gradient is not finite: then it changes nothing.

        Args:
            batch: the minibatch.
            closes: whether it is the last one of an update.
        """

    def close_round(self) -> None:
        """Makes the update of the minibatches since the last one."""

    def predict(self, features: Tensors) -> Tensors:
        """The model's outputs, in inference mode."""

    def evaluation_loss(self, labels: Tensors, predictions: Tensors) -> Any:
        """The loss of predictions without regularisation, as something that ``float`` takes."""

    def restore(self, path: str) -> None:
        """Begins from a checkpoint: a directory with a manifest, or a directory of such directories."""

    def checkpoint(self) -> CheckpointPart:
        """A copy of all that training goes on from, in the words of parameter servers, ready to be written."""

    def export(self, output: Path, formats: Sequence[str]) -> list[OutputFile]:
        """Writes the trained model into a directory."""


class TrainedReplica(Replica, Protocol):
    """A replica that also predicts: the whole model in one member of a group."""

    @property
    def outputs(self) -> Outputs:
        """Names of the model's outputs."""

    def predict(self, features: Tensors) -> Tensors:
        """The model's outputs, in inference mode."""

    def evaluation_loss(self, labels: Tensors, predictions: Tensors) -> Any:
        """The loss of predictions without regularisation, as something that ``float`` takes."""


class Framework(Protocol):
    """One framework."""

    @property
    def name(self) -> str:
        """``tensorflow`` or ``torch``."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Installed versions, for the description of the model: ``{"keras": "3.11.3"}``."""

    def configure(self, threads: int, *, repeatable: bool = False) -> None:
        """Sizes its pools for a process that shares its machine; called before it runs anything.

        Args:
            threads: threads that one operation may use.
            repeatable: whether the same operation on the same values must give the same bits each time.
        """

    def use_devices(self, grant: DeviceGrant) -> None:
        """Computes on what the process was given of devices, and takes no more than its share of their memory.

        Call before it runs anything; what cannot be used is refused when a model is prepared.
        """

    def load_module(self, spec: JobSpec, zoo: Path) -> ModelModule:
        """Imports the model module of a job, with the job's seed for what it makes meanwhile.

        Raises:
            UserCodeError: a file or an entry is missing, or importing it failed.
        """

    def print_layer_outputs(self) -> AbstractContextManager[None]:
        """A context in which every layer's output is printed, for ``--eager``."""

    def callbacks_of(self, module: ModelModule, spec: JobSpec) -> list[Callback]:
        """The callbacks of a module, each of them one that is acted upon.

        Raises:
            UserCodeError: ``callbacks()`` raised, or gave something that nobody would act upon.
        """

    def make_source(self, reader: DataReader, module: ModelModule, mode: str, minibatch_size: int) -> MinibatchSource:
        """Makes the pipeline of a mode: ``training``, ``evaluation`` or ``prediction``."""

    def prepare(self, preparation: Preparation) -> PreparedJob:
        """Builds the model for parameter servers; large embeddings become tables without their weights.

        Refuses before training what could not be trained, nor written after it.

        Raises:
            UserCodeError: something of the module cannot be trained so.
        """

    def prepare_local(self, preparation: Preparation) -> LocalSteps:
        """Builds the model for this process alone."""

    def prepare_replica(self, preparation: Preparation) -> TrainedReplica:
        """Builds the model for a member of a group: all of it in this process, the user's own optimizer.

        The source of the preparation gives all rows of a range as one minibatch, if it was made for that many.

        Raises:
            UserCodeError: something of the module cannot be trained so.
        """

    def export_replica(self, replica: TrainedReplica, output: Path, formats: Sequence[str]) -> list[OutputFile]:
        """Writes the model of a replica of this framework into a directory."""

    def make_metrics(self, module: ModelModule, loss: LossOf | None, outputs: Outputs) -> Metrics:
        """Makes the metrics of a module; ``loss`` becomes the metric ``loss`` unless there is one of that name.

        Raises:
            UserCodeError: ``eval_metrics_fn`` is missing while there is no loss either, or gives what is no metric.
        """

    def cut(self, values: Tensors, start: int, end: int) -> Tensors:
        """Some of the records of nested tensors; None if they cannot be cut."""

    def to_numpy(self, predictions: Tensors) -> object:
        """A nested structure of tensors as arrays."""

    def export_checkpoint(
        self, module: ModelModule, source: MinibatchSource, request: ExportRequest, seed: int
    ) -> list[OutputFile]:
        """Exports the model of a checkpoint; the model is built anew, with all of its embeddings inside.

        Raises:
            DataError: the checkpoint is damaged.
            InvalidInputError: the checkpoint is of another model.
        """


def training_metrics(framework: Framework, module: ModelModule, outputs: Outputs) -> Metrics | None:
    """The metrics shown of training minibatches, by what ``eval_metrics_fn`` gives; None if there are none.

    Without the loss, which is shown by itself, and with metric objects of its own where the module makes new ones.
    """
    if module.eval_metrics_fn is None:
        return None
    metrics = framework.make_metrics(module, None, outputs)
    return metrics if metrics.names else None
