"""The parameter servers as the worker sees them: one client, whatever their number."""

from elasticdl_worker.parameters.client import ParameterClient
from elasticdl_worker.parameters.types import (
    LIMIT,
    Gradients,
    Origin,
    PulledParameters,
    PullOutcome,
    PushResult,
    Rows,
    ServedModel,
    StateChange,
)

__all__ = [
    "LIMIT",
    "Gradients",
    "Origin",
    "ParameterClient",
    "PullOutcome",
    "PulledParameters",
    "PushResult",
    "Rows",
    "ServedModel",
    "StateChange",
]
