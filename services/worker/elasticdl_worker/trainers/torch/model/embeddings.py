"""Makes large ``nn.Embedding`` and ``nn.EmbeddingBag`` layers PS-backed, without a change to the model.

``install`` wraps the constructors and ``forward`` of PyTorch's own layers once a process. While a table registry
is active, a large layer is made without numbers, on the device ``meta``; what its initialisers do to it is noted and
becomes the rule by which its table's rows begin. Its calls then ask the active scope for rows.

A table's rows begin by that rule wherever the model trains: on parameter servers, in one process, in an export.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import structlog
import torch
from torch import nn

from elasticdl.torch import Embedding
from elasticdl.torch.lookup import FoundRows, find_rows, take_rows
from elasticdl_core.errors import UserCodeError
from elasticdl_core.model import InitializerSpec, TableSpec
from elasticdl_runtime.initializers import first_rows
from elasticdl_worker.trainers.torch.model.first_values import FirstValues, FirstValuesRecorder, draw_alike

_log = structlog.get_logger(__name__)
_FLOAT_BYTES = 4
ClosedLayer: TypeAlias = nn.Embedding | nn.EmbeddingBag
TableLayer: TypeAlias = nn.Embedding | nn.EmbeddingBag | Embedding


@dataclass
class _Candidate:
    """A large layer whose weight has no numbers.

    Attributes:
        number: of the layer in the order of their making.
        layer: the layer.
        weight: its weight on ``meta``.
        begins: how its rows begin.
    """

    number: int
    layer: ClosedLayer
    weight: nn.Parameter
    begins: FirstValues


@dataclass
class TorchTableRegistry:
    """The embedding layers of one model.

    Attributes:
        threshold_bytes: layers larger than this become tables, and those that give sparse gradients.
        seed: the job's seed.
        keep: numbers of layers that keep their weights, in the order of their making.
        tables: specification of each table.
        layers: the layers of each table; those that share a weight share its table.
        padding: the id that means padding, of each table that has one.
    """

    threshold_bytes: int
    seed: int = 0
    keep: frozenset[int] = frozenset()
    tables: dict[str, TableSpec] = field(default_factory=dict)
    layers: dict[str, list[TableLayer]] = field(default_factory=dict)
    padding: dict[str, int] = field(default_factory=dict)
    _candidates: list[_Candidate] = field(default_factory=list)
    _made: int = 0

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """A context in which the model is made."""
        install()
        token = _registry.set(self)
        try:
            with warnings.catch_warnings(), FirstValuesRecorder(self.notes_of):
                # Of a state that is loaded: the layer is made anew with its numbers then.
                warnings.filterwarnings("ignore", "for .*: copying from a non-meta parameter")
                yield
        finally:
            _registry.reset(token)

    def takes(self, size: int, options: Mapping[str, Any]) -> bool:
        """Whether a layer that is about to be made is made without numbers.

        Args:
            size: bytes of its weight.
            options: that the user gave.
        """
        number, self._made = self._made, self._made + 1
        large = size > self.threshold_bytes or bool(options.get("sparse"))
        # What is refused, or given, is left to the check of the finished model.
        return large and number not in self.keep and not any(options.get(name) is not None for name in _GIVEN)

    def watch(self, layer: ClosedLayer) -> None:
        """Begins to note what is done to the weight of a layer that was made without numbers."""
        begins = FirstValues(layer.padding_idx, layer.num_embeddings, layer.embedding_dim)
        self._candidates.append(_Candidate(self._made - 1, layer, cast(nn.Parameter, layer.weight), begins))

    @property
    def made(self) -> frozenset[int]:
        """The numbers of the layers that were made so far."""
        return frozenset(range(self._made))

    def notes_of(self, tensor: torch.Tensor) -> FirstValues | None:
        """The notes on the layer that a tensor is the weight of, or a part of that."""
        found = self._candidate_of(tensor)
        return None if found is None else found.begins

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The number of the layer that a tensor is the weight of, or a part of that."""
        found = self._candidate_of(tensor)
        return None if found is None else found.number

    def _candidate_of(self, tensor: torch.Tensor) -> _Candidate | None:
        address = tensor.untyped_storage()._cdata
        return next((one for one in self._candidates if one.weight.untyped_storage()._cdata == address), None)

    def adopt(self, model: nn.Module) -> frozenset[int]:
        """Gives tables to the layers of a finished model.

        Returns:
            Numbers of layers that must keep their weights: the model is to be made anew with them in ``keep``.

        Raises:
            UserCodeError: a layer that is refused.
        """
        _refuse_renorm(model)
        by_weight = {id(one.weight): one for one in self._candidates}
        users = _users(model, by_weight.keys())
        wrong: set[int] = set()
        for key, names in users.items():
            one = by_weight[key]
            reason = one.begins.obstacle or _obstacle(model, one, names)
            if reason:
                size = one.weight.numel() * _FLOAT_BYTES
                _log.warning("a large embedding stays in the model", layer=names[0], bytes=size, reason=reason)
                wrong.add(one.number)
        stray = _find_copies(model, users.keys())
        if stray and self._candidates:
            _log.warning("large embeddings stay in the model", reason=f"{stray} begins with numbers of one")
            wrong.update(one.number for one in self._candidates)
        if wrong:
            return frozenset(wrong)
        open_tables: dict[int, str] = {}
        for name, layer in model.named_modules():
            if isinstance(layer, Embedding):
                if has_hooks(layer.weight):
                    raise UserCodeError(
                        f"the weight of {name}, an elasticdl.torch.Embedding, has a hook, and its rows lie elsewhere",
                        fix="use torch.nn.Embedding, or change the vectors in forward (their register_hook works)",
                    )
                begins = InitializerSpec(layer.initializer, layer.initializer_params)
                self._add(open_tables.setdefault(id(layer.weight), name), layer, None, begins)
            elif isinstance(layer, ClosedLayer) and id(layer.weight) in users:
                one = by_weight[id(layer.weight)]
                first = users[id(layer.weight)][0].rpartition(".")[0]
                if not one.begins.padding_is_zero:
                    _log.warning("the padding row of a large embedding reads as zeros", layer=first)
                self._add(first, layer, layer.num_embeddings, one.begins.spec(0))
        return frozenset()

    def _add(self, name: str, layer: TableLayer, size: int | None, begins: InitializerSpec) -> None:
        name = name or "embedding"
        if name not in self.tables:
            seed = (zlib.crc32(name.encode()) ^ (self.seed * 0x9E3779B1 & 0xFFFFFFFF)) & 0x7FFFFFFF
            spec = InitializerSpec(begins.kind, begins.params, seed)
            self.tables[name] = TableSpec(name, layer.embedding_dim, spec, size)
            self.layers[name] = []
            if layer.padding_idx is not None:
                self.padding[name] = layer.padding_idx
        elif layer.padding_idx != self.padding.get(name) or not self._begins_so(name, begins):
            what = "padding_idx" if layer.padding_idx != self.padding.get(name) else "how their rows begin"
            rest = "" if size is None else ", or raise --embedding_threshold_bytes so that they keep their weight"
            raise UserCodeError(
                f"embeddings that share the weight of {name} differ in {what}", fix=f"give all of them the same{rest}"
            )
        self.layers[name].append(layer)
        layer.elasticdl_table = name

    def _begins_so(self, name: str, begins: InitializerSpec) -> bool:
        known = self.tables[name].initializer
        return (known.kind, dict(known.params)) == (begins.kind, dict(begins.params))


def install() -> None:
    """Wraps PyTorch's embeddings for this process; without an active registry or scope they behave as ever."""
    if getattr(nn.Embedding, "elasticdl_installed", False):
        return
    _wrap(nn.Embedding, _embed)
    _wrap(nn.EmbeddingBag, _embed_bags)
    for name in ("trunc_normal_", "orthogonal_", "sparse_", "dirac_"):
        _note_instead(name)
    nn.Embedding.elasticdl_installed = True  # type: ignore[attr-defined]


def materialise(registry: TorchTableRegistry) -> dict[str, nn.Parameter]:
    """Gives the layers of closed tables their weights, with the rows that ids begin with.

    Returns:
        The new weight of each table.
    """
    made = {}
    for name, layers in registry.layers.items():
        spec = registry.tables[name]
        if spec.input_dim is None:
            continue
        weight = torch.from_numpy(first_rows(spec, _all_ids(spec.input_dim)))
        if name in registry.padding:
            weight[registry.padding[name]] = 0.0
        made[name] = nn.Parameter(weight)
        for layer in layers:
            layer.weight = made[name]
            layer.elasticdl_table = None
    return made


def _all_ids(count: int) -> Any:
    return torch.arange(count).numpy()


_MOST_AT_ONCE = 1 << 26
"""Numbers that are made for no other purpose than to draw as many."""
_GIVEN = ("device", "dtype", "_weight", "max_norm")
_registry: ContextVar[TorchTableRegistry | None] = ContextVar("elasticdl_torch_registry", default=None)


def _wrap(kind: Any, look_up: Callable[..., torch.Tensor]) -> None:
    original_init, original_forward, original_reset = kind.__init__, kind.forward, kind.reset_parameters
    names = list(inspect.signature(original_init).parameters)[3:]

    @functools.wraps(original_init)
    def init(self: Any, num_embeddings: int, embedding_dim: int, *args: Any, **options: Any) -> None:
        registry = _registry.get()
        given = dict(zip(names, args, strict=False)) | options
        if registry is None or not registry.takes(num_embeddings * embedding_dim * _FLOAT_BYTES, given):
            original_init(self, num_embeddings, embedding_dim, *args, **options)
            return
        original_init(self, num_embeddings, embedding_dim, **{**given, "device": "meta"})
        registry.watch(self)
        if type(self).reset_parameters is not original_reset:
            self.reset_parameters()  # of a class of the user's: noted this time
        else:
            draw_alike("normal_", num_embeddings * embedding_dim)

    @functools.wraps(original_forward)
    def forward(self: Any, input: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        table = self.elasticdl_table
        if table is None:
            if self.elasticdl_asked is not None:
                self.elasticdl_asked.append(input)
            result: torch.Tensor = original_forward(self, input, *args, **options)
            return result
        found = find_rows(table, input, self.embedding_dim, self.padding_idx)
        if found is None:
            raise UserCodeError(
                f"the embedding {table} is called outside of the model's forward, where its rows are not at hand",
                fix="call it in forward, or raise --embedding_threshold_bytes so that it keeps its weight",
            )
        return look_up(self, found, *args, **options)

    kind.__init__, kind.forward, kind.elasticdl_table, kind.elasticdl_asked = init, forward, None, None


def _note_instead(name: str) -> None:
    """Has an initialiser noted that PyTorch leaves undone where there are no numbers, so that no operation shows."""
    original = getattr(nn.init, name)

    @functools.wraps(original)
    def initialise(tensor: Any, *args: Any, **options: Any) -> Any:
        registry = _registry.get()
        notes = None if registry is None or not tensor.is_meta else registry.notes_of(tensor)
        if notes is None:
            return original(tensor, *args, **options)
        notes.note(name, args, options, tensor)
        if name == "trunc_normal_" and tensor.numel() <= _MOST_AT_ONCE:
            original(torch.empty(tensor.shape), *args, **options)  # which draws again what falls outside
        return tensor

    setattr(nn.init, name, initialise)


def _embed(layer: nn.Embedding, found: FoundRows) -> torch.Tensor:
    if not layer.scale_grad_by_freq:
        return take_rows(found)
    return nn.functional.embedding(found.positions, found.rows, found.padding, scale_grad_by_freq=True)


def _embed_bags(
    layer: nn.EmbeddingBag,
    found: FoundRows,
    offsets: torch.Tensor | None = None,
    per_sample_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    return nn.functional.embedding_bag(
        found.positions,
        found.rows,
        offsets,
        scale_grad_by_freq=layer.scale_grad_by_freq,
        mode=layer.mode,
        per_sample_weights=per_sample_weights,
        include_last_offset=layer.include_last_offset,
        padding_idx=found.padding,
    )


def _users(model: nn.Module, weights: Any) -> dict[int, list[str]]:
    """For each of some weights, by id, the names under which the model has it."""
    found: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in weights:
            found.setdefault(id(parameter), []).append(name)
    return found


def _obstacle(model: nn.Module, one: _Candidate, names: list[str]) -> str:
    """Why a layer must keep its weight; empty if nothing hinders."""
    for name in names:
        home, _, attribute = name.rpartition(".")
        if attribute != "weight" or not isinstance(model.get_submodule(home), ClosedLayer):
            return f"its weight is that of {name} as well"
    if one.weight.dtype != torch.float32:
        return f"it is of {one.weight.dtype}"
    if has_hooks(one.weight):
        return "a hook is to see its gradient"
    return "" if one.weight.requires_grad else "it is not trained (requires_grad is False)"


def has_hooks(weight: nn.Parameter) -> bool:
    """Whether the user's functions are called with the gradient of a parameter."""
    return bool(weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None))


def _find_copies(model: nn.Module, weights: Any) -> str:
    """The name of something in the model that has no numbers, and is none of the layers' weights; empty for none."""
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if tensor.device.type == "meta" and id(tensor) not in weights:
            return name
    return ""


def _refuse_renorm(model: nn.Module) -> None:
    for name, layer in model.named_modules():
        if isinstance(layer, ClosedLayer) and layer.max_norm is not None:
            raise UserCodeError(
                f"the embedding {name} has max_norm={layer.max_norm}, which changes its weight in forward: that "
                "would be undone by the next pull, as the parameter servers own what is trained",
                fix="leave max_norm out, and scale the looked-up vectors in forward where that is needed",
            )
