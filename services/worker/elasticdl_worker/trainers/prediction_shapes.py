"""Whether the outputs of a model are predictions: a row of one width for each record."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.plain_arrays import plain_array

Columns = Mapping[str, NDArray[np.generic]]
_FIX = "let the model return only what has a row for each record, or take the rest in a PredictionOutputsProcessor"


def named_outputs(predictions: object) -> dict[str, NDArray[np.generic]]:
    """A model's outputs as arrays by name: ``predictions`` for a single one."""
    if isinstance(predictions, Mapping):
        return {str(name): plain_array(value) for name, value in predictions.items()}
    if isinstance(predictions, list | tuple):
        return {f"output_{number}": plain_array(value) for number, value in enumerate(predictions)}
    return {"predictions": plain_array(predictions)}


def check_rows(columns: Columns, records: int, before: Columns | None = None) -> None:
    """Sees that each output has a row for each record, as wide as those of other minibatches.

    Args:
        columns: the outputs of a minibatch, by name.
        records: in the minibatch.
        before: the outputs of another minibatch.

    Raises:
        UserCodeError: names the output that has not.
    """
    for name, values in columns.items():
        if values.ndim == 0 or len(values) != records:
            said = "is one number" if values.ndim == 0 else f"has the shape {list(values.shape)}"
            if values.dtype == object:  # None, or outputs in outputs
                said = f"is of the type {type(values.flat[0]).__name__}"
            raise UserCodeError(
                f"the output {name} {said} for {records} records: its first dimension is not the records'", fix=_FIX
            )
        other = None if before is None else before.get(name)
        if other is not None and other.shape[1:] != values.shape[1:]:
            raise UserCodeError(
                f"the width of the output {name} follows the minibatch: rows have the shape {list(other.shape[1:])} "
                f"in one of {len(other)} records and {list(values.shape[1:])} in one of {records}",
                fix="make rows of one width, as by padding to a length of your own in feed or in the model",
            )
