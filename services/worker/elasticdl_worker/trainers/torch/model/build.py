"""Builds the user's model and names everything in it that is trained or shared."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import structlog
import torch
from torch import nn

from elasticdl.torch.lookup import finding_rows
from elasticdl_core.errors import UserCodeError
from elasticdl_core.model import DenseKind, DenseSpec, TableSpec
from elasticdl_worker.trainers.framework import Array, Outputs
from elasticdl_worker.trainers.minibatch import Tensors
from elasticdl_worker.trainers.torch.device import HOST, arrays_of, copies_on_host, fill, move_model
from elasticdl_worker.trainers.torch.model import embeddings
from elasticdl_worker.trainers.torch.model.calling import TorchModelCall, describe, output_names
from elasticdl_worker.trainers.torch.model.first_values import WeightUses
from elasticdl_worker.trainers.torch.model.operation_work import OperationWork
from elasticdl_worker.trainers.torch.model.refused_modules import check_modules, check_tensors
from elasticdl_worker.trainers.torch.model.repeated_memory import own_memory, saved_buffers
from elasticdl_worker.trainers.torch.model.scopes import TorchCollectScope
from elasticdl_worker.trainers.torch.model.state import TorchModelState
from elasticdl_worker.trainers.torch.model.trials import (
    KeptBuffers,
    LazyLayers,
    generators_kept,
    tensor_names,
    trial_of,
)
from elasticdl_worker.trainers.torch.nested import leaves
from elasticdl_worker.user_code import ModelModule

_WORKER_STRIDE = 7919
_MOST_BUILDS = 100
_OF_META = ("meta", "incompatible tensor type", "only available on CPU")
"""What PyTorch says of operations that need the numbers of a tensor that has none."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class TorchBuildOptions:
    """Options for building a model.

    Attributes:
        threshold_bytes: embeddings larger than this become tables.
        seed: seeds initial values.
    """

    threshold_bytes: int
    seed: int = 0


class BuiltModel:
    """A model with names for its parameters.

    Args:
        net: the model.
        registry: its embedding tables.
        outputs: names of the outputs; empty for a single one, None for several without names.
        roots: directories whose code counts as the user's.
        work: of the operations of a forward pass over the records of the sample.

    Attributes:
        call: calls the model.
        trainable: what the optimizer changes, by name.
        placeholders: the parameters that stand for a table's rows, by table.
        merging: the other tensors, and how what workers make of them becomes one.
        device: where it is computed.
        closed: the tables that have their weights in the model, and these.
        host_net: of a model with tables that is computed elsewhere than on the CPU, a copy that is on the CPU, with
            the values that it began with.
    """

    def __init__(
        self,
        net: nn.Module,
        registry: embeddings.TorchTableRegistry,
        outputs: Outputs,
        roots: Sequence[Path],
        work: OperationWork,
    ) -> None:
        self.net = net
        self.roots = roots
        self.work = work
        self.registry = registry
        self.call = TorchModelCall(net)
        self.outputs = outputs
        self.device = HOST
        self.host_net: nn.Module | None = None
        self.closed: dict[str, tuple[TableSpec, nn.Parameter]] = {}
        self.placeholders = {name: cast(nn.Parameter, layers[0].weight) for name, layers in registry.layers.items()}
        check_tensors(net, {id(weight) for weight in self.placeholders.values()})
        own_memory(net)
        self._split(frozenset())

    def _split(self, untrained: frozenset[int]) -> None:
        held = {id(weight) for weight in self.placeholders.values()}
        self.trainable: dict[str, nn.Parameter] = {}
        others: dict[str, torch.Tensor] = {}
        for name, parameter in self.net.named_parameters():
            if id(parameter) in held:
                continue
            if not parameter.requires_grad or id(parameter) in untrained:
                others[name] = parameter
                continue
            if parameter.dtype != torch.float32:
                raise UserCodeError(
                    f"the parameter {name} is of {parameter.dtype}",
                    fix="keep parameters in float32; --autocast bfloat16 computes with fewer bits",
                )
            self.trainable[name] = parameter
        kept = saved_buffers(self.net)
        others |= {name: buffer for name, buffer in self.net.named_buffers() if name in kept}
        self.merging = TorchModelState(self.net, others, self.device)

    def keep_untrained(self, parameters: Iterable[nn.Parameter]) -> None:
        """Counts parameters that the user's optimizer was not given among the state."""
        self._split(frozenset(id(one) for one in parameters))

    @property
    def layers(self) -> Mapping[str, str]:
        """Nothing: parameters have the names of the attributes that they are in."""
        return {}

    @property
    def tables(self) -> Mapping[str, TableSpec]:
        """The embedding tables by name."""
        return self.registry.tables

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """The state that no gradient changes, by name."""
        return self.merging.tensors

    @property
    def unset(self) -> Collection[str]:
        """Names of state that begins with numbers that are none."""
        return self.merging.unset

    def materialise(self) -> None:
        """Gives closed embeddings their weights, so that the model can be trained in this process alone."""
        made = embeddings.materialise(self.registry)
        for name, weight in made.items():
            self.closed[name] = self.registry.tables.pop(name), weight
            del self.placeholders[name]
        self._split(frozenset())

    def place(self, device: torch.device) -> None:
        """Moves the model to a device, before anything was computed with it there."""
        if device == self.device:
            return
        if self.tables:
            self.host_net = copy.deepcopy(self.net)
        move_model(self.net, device)
        self.device = self.merging.device = device

    def on_host(self) -> BuiltModel:
        """The model, if it is on the CPU; else a copy that is."""
        if self.device == HOST:
            return self
        twin = copy.deepcopy(self, copies_on_host(self.net))
        twin.device = twin.merging.device = HOST
        return twin

    def looked_up(self) -> list[str]:
        """Names of the trained parameters that are weights of embeddings."""
        kinds = (nn.Embedding, nn.EmbeddingBag)
        weights = {id(one.weight) for one in self.net.modules() if isinstance(one, kinds)}
        return [name for name, parameter in self.trainable.items() if id(parameter) in weights]

    def dense_specs(self, groups: Mapping[int, int]) -> list[DenseSpec]:
        """Specifications of all dense parameters, as the parameter servers need them.

        Args:
            groups: the optimizer's group of each parameter, by id.
        """
        return [
            DenseSpec(
                name,
                tuple(tensor.shape),
                str(tensor.dtype).removeprefix("torch."),
                DenseKind.TRAINABLE if name in self.trainable else DenseKind.STATE,
                group=groups.get(id(tensor), 0),
            )
            for name, tensor in self._dense().items()
        ]

    def table_specs(self, groups: Mapping[int, int]) -> list[TableSpec]:
        """Specifications of all tables, as the parameter servers need them."""
        return [replace(spec, group=groups.get(id(self.placeholders[name]), 0)) for name, spec in self.tables.items()]

    def values(self) -> dict[str, Array]:
        """Copies of all dense parameters."""
        dense = self._dense()
        return {
            name: np.array(array)
            for name, array in zip(dense, arrays_of([*dense.values()], self.device), strict=True)
        }

    def assign(self, values: Mapping[str, Array]) -> None:
        """Sets dense parameters."""
        dense = self._dense()
        if self.device != HOST:
            fill([dense[name] for name in values], [*values.values()])
        elif values:
            with torch.no_grad():
                torch._foreach_copy_([dense[name] for name in values], [as_tensor(one) for one in values.values()])

    def vary_randomness(self, worker_index: int) -> None:
        """Makes the dropout masks of this worker differ from those of others that built the same model."""
        torch.manual_seed((torch.initial_seed() + _WORKER_STRIDE * (worker_index + 1)) % (1 << 63))

    def _dense(self) -> dict[str, torch.Tensor]:
        return {**self.trainable, **self.state}


def as_tensor(array: Array | torch.Tensor) -> torch.Tensor:
    """A tensor of an array's numbers; of the array itself where it may be written to. A tensor stays what it is."""
    if isinstance(array, torch.Tensor):
        return array
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def build_model(module: ModelModule, sample: Tensors | None, options: TorchBuildOptions) -> BuiltModel:
    """Builds the user's model; names and first values are the same in every process that builds it.

    Args:
        module: the user's module.
        sample: features of a few records, to run the model on once; None where there are none.
        options: see ``TorchBuildOptions``.

    Raises:
        UserCodeError: the model function raised, returned something that is no model, or a model that has what is
            refused.
    """
    keep: frozenset[int] = frozenset()
    for _ in range(_MOST_BUILDS):
        registry = embeddings.TorchTableRegistry(options.threshold_bytes, options.seed, keep)
        torch.manual_seed(options.seed & 0x7FFFFFFF)
        try:
            with registry.building(), module.guard("the model function"):
                net = module.build_model()
        except UserCodeError as error:
            if registry.made <= keep or not _wants_numbers(error.__cause__):
                raise
            _log.warning("large embeddings stay in the model", reason=f"they are used at once: {error.message}")
            keep |= registry.made
            continue
        if not isinstance(net, nn.Module):
            raise UserCodeError(
                f"the model function in {module.path} returned a {type(net).__name__}",
                fix="return a torch.nn.Module; for a Keras model give --framework tensorflow",
            )
        check_modules(net)
        more = registry.adopt(net)
        if not more:
            work, uses = OperationWork(), WeightUses(registry.number_of)
            try:
                outputs = _run_once(net, sample, module, registry, work, uses)
            except UserCodeError:
                if not uses.numbers:
                    raise
            else:
                if registry.tables and not uses.numbers:
                    _try_training(net, sample, module, registry, uses)
            if not uses.numbers:
                return BuiltModel(net, registry, outputs, module.roots, work)
            more = frozenset(uses.numbers)
            _log.warning("large embeddings stay in the model", reason="forward uses their weights, not rows of them")
        keep |= more
    raise UserCodeError(
        f"the model function in {module.path} makes other embeddings each time that it is called",
        fix="make the same layers in each call",
    )


def _wants_numbers(error: BaseException | None) -> bool:
    """Whether an error may be there because large embeddings are made without numbers."""
    return isinstance(error, RuntimeError | NotImplementedError) and any(word in str(error) for word in _OF_META)


def _run_once(
    net: nn.Module,
    sample: Tensors | None,
    module: ModelModule,
    registry: embeddings.TorchTableRegistry,
    work: OperationWork,
    uses: WeightUses,
) -> Outputs:
    """Runs a copy of the model on a few records, so that lazy layers are made and wrong shapes show at once.

    The model itself runs only if it cannot be copied, or if it makes parameters or buffers when it first runs.
    """
    if sample is None:
        return ()
    trial = trial_of(net, _weights_of(registry))
    with generators_kept(net, module.roots):
        if trial is not None:
            lazy = LazyLayers(net, trial)
            predictions = _outputs_of(trial, sample, module, work, uses)
        if trial is None or tensor_names(trial) != tensor_names(net):
            trial = None
            with KeptBuffers(net).kept():
                predictions = _outputs_of(net, sample, module, work, uses)
    if trial is not None:
        lazy.make()
    if not leaves(predictions):
        raise UserCodeError(
            f"the model returns a {type(predictions).__name__}, in which no tensor is found",
            fix="return a tensor, or a dict, tuple, named tuple or dataclass of tensors",
        )
    return output_names(predictions)


def _outputs_of(
    net: nn.Module, sample: Tensors, module: ModelModule, work: OperationWork, uses: WeightUses
) -> Tensors:
    fix = f"the features that feed gives are {describe(sample)}; make them what the model takes"
    training = net.training
    net.eval()
    guarded = module.guard("calling the model on the features", fix)
    with guarded, explaining_tables(), torch.no_grad(), finding_rows(TorchCollectScope()), work, uses:
        predictions = TorchModelCall(net)(sample)
    net.train(training)
    return predictions


def _try_training(
    net: nn.Module,
    sample: Tensors | None,
    module: ModelModule,
    registry: embeddings.TorchTableRegistry,
    uses: WeightUses,
) -> None:
    """Runs a copy of the model in training mode, for weights that are used then alone.

    What it raises the first step of training raises as well.
    """
    trial = None if sample is None else trial_of(net, _weights_of(registry))
    if trial is None:
        return
    kept = generators_kept(net, module.roots)
    with contextlib.suppress(Exception), kept, torch.no_grad(), finding_rows(TorchCollectScope()), uses:
        TorchModelCall(trial.train())(sample)


def _weights_of(registry: embeddings.TorchTableRegistry) -> list[torch.Tensor]:
    """The weights that have no numbers."""
    return [layers[0].weight for layers in registry.layers.values()]


@contextlib.contextmanager
def explaining_tables() -> Iterator[None]:
    """Says what is wrong where a model uses weights whose rows are elsewhere, or tensors on another device."""
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        if "on the same device" in str(error):
            raise UserCodeError(
                f"the model or its loss makes a tensor elsewhere than where it is computed: "
                f"{str(error).partition(chr(10))[0]}",
                fix="make it with device=features.device, or keep it in the model by register_buffer",
            ) from error
        if "meta" not in str(error):
            raise
        raise UserCodeError(
            "the model uses the weight of a large embedding itself, but its rows live on the parameter servers: "
            f"{str(error).partition(chr(10))[0]}",
            fix="raise --embedding_threshold_bytes so that the layer keeps its weight in the model",
        ) from error
