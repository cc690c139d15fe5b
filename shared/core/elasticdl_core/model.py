"""The parameter servers' description of a model: dense parameters, embedding tables, optimizer."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

NO_ID = -(1 << 63)
"""The one int64 that is no id: the parameter servers mark rows without an id by it."""


class DenseKind(enum.StrEnum):
    """Kinds of changes that pushes make to a dense parameter."""

    TRAINABLE = "trainable"
    """Pushes carry gradients; the optimizer applies them."""
    STATE = "state"
    """Pushes carry what is kept of the old value, and what is added to that (moving averages, counters)."""


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """The constraint on a trained parameter after each update, in Keras' words.

    Attributes:
        kind: non_neg, max_norm, unit_norm or min_max_norm.
        axes: along which the norms go, counted from 0; none for non_neg, which looks at each element by itself.
        params: numbers that the kind takes: ``max_value``, ``min_value``, ``rate``, and ``epsilon``, which norms are
            raised by before they divide.
    """

    kind: str
    axes: tuple[int, ...] = ()
    params: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """One dense parameter.

    Attributes:
        name: unique in the model.
        shape: the tensor's shape.
        dtype: numpy name of the dtype; trainable parameters are float32 on the PS.
        kind: trained by gradients, or state.
        weight_decay: whether the optimizer's weight decay applies (it can exclude variables).
        constraint: what holds after each update, if anything.
        group: the optimizer's group that it belongs to; see ``OptimizerSpec``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    kind: DenseKind = DenseKind.TRAINABLE
    weight_decay: bool = True
    constraint: ConstraintSpec | None = None
    group: int = 0

    @property
    def whole(self) -> bool:
        """Whether one parameter server must hold all of it: norms need every element along their axes."""
        return self.constraint is not None and bool(self.constraint.axes)

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size


@dataclass(frozen=True, slots=True)
class InitializerSpec:
    """The first values of an embedding table's rows.

    Attributes:
        kind: uniform, normal, truncated_normal, zeros, ones, constant, glorot_uniform, glorot_normal, he_uniform
            or he_normal.
        params: numbers that the kind takes (``minval``/``maxval``, ``mean``/``stddev``, ``value``).
        seed: makes tables differ; a row's values depend on seed, id and column only.
    """

    kind: str = "uniform"
    params: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One embedding table: an open-ended map from int64 id to a float32 vector.

    Attributes:
        name: unique in the model.
        dim: length of each vector.
        initializer: how rows begin.
        input_dim: number of ids when the id space is closed, else None. Fan-in of Glorot and He initialisers.
        weight_decay: whether the optimizer's weight decay applies.
        group: the optimizer's group that it belongs to; see ``OptimizerSpec``.
    """

    name: str
    dim: int
    initializer: InitializerSpec = field(default_factory=InitializerSpec)
    input_dim: int | None = None
    weight_decay: bool = True
    group: int = 0


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """An optimizer and its hyper-parameters: which arithmetic is wanted, whatever framework the worker uses.

    The name says whose arithmetic it is, for the same name means different things in Keras and in PyTorch (where
    epsilon stands, what weight decay is).

    - In Keras' words: sgd, adam, adamw, adagrad, rmsprop, adadelta, adamax, ftrl, with hyper-parameters as
      ``get_config`` names them, e.g. ``learning_rate``, ``beta_1``, ``epsilon``, ``momentum``, ``nesterov``,
      ``amsgrad``, ``weight_decay``.
    - In PyTorch's words: the names below, with hyper-parameters as ``torch.optim`` names them, except that ``lr`` is
      ``learning_rate``, ``eps`` is ``epsilon`` and ``betas`` are ``beta_1`` and ``beta_2``. What is left out has
      PyTorch's default. ``foreach``, ``fused``, ``capturable`` and ``differentiable``, which change no result, are
      taken and ignored. All have ``learning_rate`` and ``maximize``, and all but ``torch.sparse_adam`` have
      ``weight_decay``:

      - ``torch.sgd``: ``momentum``, ``dampening``, ``nesterov``
      - ``torch.adam``, ``torch.adamw``: ``beta_1``, ``beta_2``, ``epsilon``, ``amsgrad``, ``decoupled_weight_decay``
      - ``torch.adagrad``: ``lr_decay``, ``initial_accumulator_value``, ``epsilon``
      - ``torch.rmsprop``: ``alpha``, ``epsilon``, ``momentum``, ``centered``
      - ``torch.adadelta``: ``rho``, ``epsilon``
      - ``torch.adamax``: ``beta_1``, ``beta_2``, ``epsilon``
      - ``torch.nadam``: ``beta_1``, ``beta_2``, ``epsilon``, ``momentum_decay``, ``decoupled_weight_decay``
      - ``torch.radam``: ``beta_1``, ``beta_2``, ``epsilon``, ``decoupled_weight_decay``
      - ``torch.sparse_adam``: ``beta_1``, ``beta_2``, ``epsilon``

    Parameters may be in groups with hyper-parameters of their own. Group 0 has ``params``; each further group has
    what its entry in ``groups`` says, and ``params`` for the rest. ``DenseSpec.group`` and ``TableSpec.group`` say
    which group a parameter belongs to. A push that sends learning rates sends one for each group, group 0 first.

    Attributes:
        name: as above.
        params: numbers and booleans by hyper-parameter.
        groups: for group 1, 2, ...: what differs from ``params``.
    """

    name: str
    params: Mapping[str, float | bool] = field(default_factory=dict)
    groups: tuple[Mapping[str, float | bool], ...] = ()

    @property
    def params_of_groups(self) -> list[dict[str, float | bool]]:
        """The hyper-parameters of each group, from group 0 on."""
        return [{**self.params, **group} for group in ({}, *self.groups)]


@dataclass(frozen=True, slots=True)
class RowPolicy:
    """The policy on ids' rows in the embedding tables. An id without one reads as its first value.

    A sighting is an update that has a gradient for the id. With any policy only updates make rows, never reads.

    Attributes:
        admission: an id gets its row at this sighting; its gradients before are dropped. At most 255.
        eviction_updates: a row that was not sighted for so many updates leaves; 0 for never.
        max_rows: of each table, over all PS; the rows sighted longest ago leave beyond that. 0 for no limit.
    """

    admission: int = 1
    eviction_updates: int = 0
    max_rows: int = 0

    @property
    def active(self) -> bool:
        """Whether this differs from keeping every id that was ever asked for."""
        return self.admission > 1 or self.eviction_updates > 0 or self.max_rows > 0


CLIPPED_BY = ("", "value", "norm", "global_norm")
"""What ``UpdateClipping.by`` may be."""


@dataclass(frozen=True, slots=True)
class UpdateClipping:
    """Clipping of the gradients of an update, by the parameter servers.

    Attributes:
        by: ``value`` (each element), ``norm`` (of each gradient; the rows of a table are one), ``global_norm`` (of
            all together), or empty for none.
        limit: the largest value or norm.
        norm_type: which norm that is; 2 for the Euclidean one.
        slack: what is added to a norm before the limit is divided by it, as PyTorch does.
    """

    by: str = ""
    limit: float = 0.0
    norm_type: float = 2.0
    slack: float = 0.0

    @property
    def needs_whole(self) -> bool:
        """Whether all gradients of a model have to be in one place."""
        return self.by in ("norm", "global_norm")


@dataclass(frozen=True, slots=True)
class UpdateMode:
    """When a pushed gradient becomes an update, and of which rows.

    Attributes:
        use_async: apply each gradient at once.
        grads_to_wait: synchronous: gradients whose mean makes one update.
        sync_version_tolerance: synchronous: how many versions old a gradient may be.
        lr_staleness_modulation: asynchronous: divide the learning rate by the gradient's staleness in versions
            (Zhang et al. 2015, "Staleness-aware Async-SGD for Distributed Deep Learning").
        rows: which ids have rows.
        delay_compensation: asynchronous: how strongly a gradient is corrected by how far the parameters have moved
            since they were pulled; 0 is off. Pushes then say what was pulled.
        stop_at: the version after which the first PS refuses further updates; 0 for none.
        clipping: of each update's gradients.
    """

    use_async: bool = True
    grads_to_wait: int = 1
    sync_version_tolerance: int = 0
    lr_staleness_modulation: bool = False
    rows: RowPolicy = field(default_factory=RowPolicy)
    delay_compensation: float = 0.0
    stop_at: int = 0
    clipping: UpdateClipping = field(default_factory=UpdateClipping)
