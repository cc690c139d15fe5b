"""A worker's description of the model for its master, as JSON data."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict  # Pydantic does not read that of typing before Python 3.12

from elasticdl_core.model import OptimizerSpec


class EarlyStoppingRule(TypedDict):
    """A rule of early stopping, without what it has seen; see ``elasticdl_core.early_stopping``."""

    monitor: str
    patience: int
    mode: str
    min_delta: float


class BestRule(TypedDict):
    """A rule of which evaluation is the best; see ``elasticdl_core.best_evaluation``."""

    monitor: str
    mode: str
    min_delta: float


class DenseEntry(TypedDict):
    """A dense parameter."""

    name: str
    shape: list[int]
    dtype: str
    kind: str


class TableEntry(TypedDict):
    """An embedding table; ``input_dim`` is None where any id may come."""

    name: str
    dim: int
    input_dim: int | None


class OptimizerEntry(TypedDict):
    """The optimizer: hyper-parameters of its first group of parameters, and of each further one."""

    name: str
    params: dict[str, float | bool]
    groups: NotRequired[list[dict[str, float | bool]]]


class CallbackSettings(TypedDict):
    """Settings that the module's callbacks ask for; ``max_steps`` is 0 for no limit."""

    max_steps: int
    early_stopping: EarlyStoppingRule | None
    saved_model: bool
    keep_best: NotRequired[BestRule | None]


class ModelDescription(TypedDict):
    """The model.

    Attributes:
        has: which entries the module has.
        dense: dense parameters.
        tables: embedding tables.
        dense_bytes: size of all dense parameters.
        table_bytes: size of all tables whose ids are bounded.
        optimizer: None where nothing is trained.
        callbacks: what they ask for.
        keras: version of Keras.
        layers: what names of layers stand for in the module, as far as it says that; workers have said so since 0.3.
        closed: of a model that each worker holds whole, the names of the tables that parameter servers would hold.
    """

    has: dict[str, bool]
    dense: list[DenseEntry]
    tables: list[TableEntry]
    dense_bytes: int
    table_bytes: int
    optimizer: OptimizerEntry | None
    callbacks: CallbackSettings
    keras: str
    layers: NotRequired[dict[str, str]]
    closed: NotRequired[list[str]]


def optimizer_entry(spec: OptimizerSpec) -> OptimizerEntry:
    """An optimizer's entry."""
    params, *groups = spec.params_of_groups
    return {"name": spec.name, "params": params, "groups": groups}
