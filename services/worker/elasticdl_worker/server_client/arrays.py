"""Checks of a program's input to parameter servers: ids, rows and tensors.

Servers check again; but what one of them refuses another may have applied by then, so nothing wrong is to be sent.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import NO_ID, DenseSpec, TableSpec


def ids_from(spec: TableSpec, ids: ArrayLike) -> NDArray[np.int64]:
    """Ids of a table as int64 ``[n]``.

    Raises:
        InvalidInputError: they are no flat list of integers, or one of them cannot be in the table.
    """
    table = spec.name
    found = np.asarray(ids)
    if found.ndim != 1 or (found.dtype.kind not in "iu" and len(found)):
        raise InvalidInputError(
            f"ids of {table!r} have the shape {found.shape} and the dtype {found.dtype}",
            fix="give a flat array or list of integers",
        )
    if found.dtype.kind == "u" and len(found) and found.max() > np.iinfo(np.int64).max:
        raise InvalidInputError(f"an id of {table!r} is beyond int64", fix="give ids below 2^63")
    wanted = found.astype(np.int64)
    low, high = (NO_ID + 1, None) if spec.input_dim is None else (0, spec.input_dim)
    if ((wanted < low) | (high is not None and wanted >= high)).any():
        raise InvalidInputError(
            f"an id of {table!r} is out of range", fix=f"give ids from {low} on" + (f", below {high}" if high else "")
        )
    return wanted


def merged_rows(
    spec: TableSpec, ids: ArrayLike, gradients: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Different ids and the sum of each one's gradients.

    Raises:
        InvalidInputError: ids are none, there is not one row of the table's length for each, or a number is not
            finite.
    """
    wanted, values, dim = ids_from(spec, ids), np.asarray(gradients, np.float32), spec.dim
    if values.shape != (len(wanted), dim):
        raise InvalidInputError(
            f"gradients of {spec.name!r} have the shape {values.shape} for {len(wanted)} ids",
            fix=f"give one row of {dim} numbers for each id",
        )
    _require_finite(spec.name, values)
    different, inverse = np.unique(wanted, return_inverse=True)
    if len(different) == len(wanted):
        return wanted, np.ascontiguousarray(values)
    total = np.zeros((len(different), dim), np.float32)
    np.add.at(total, inverse, values)
    return different, total


def tensor_for(spec: DenseSpec, value: ArrayLike) -> NDArray[np.generic]:
    """A dense parameter's value or gradient, of its dtype.

    Raises:
        InvalidInputError: it is of another shape, or a number is not finite.
    """
    found: NDArray[np.generic] = np.asarray(value, np.dtype(spec.dtype))
    if found.shape != spec.shape:
        raise InvalidInputError(
            f"{spec.name!r} has the shape {spec.shape}, and what is given {found.shape}",
            fix="give an array of the parameter's shape",
        )
    _require_finite(spec.name, found)
    return np.ascontiguousarray(found)


def spec_of(name: str, value: ArrayLike) -> DenseSpec:
    """A trained parameter with a value as its first one."""
    return DenseSpec(name, np.shape(value))


def _require_finite(name: str, values: NDArray[np.generic]) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise InvalidInputError(
            f"what is given for {name!r} has NaN or infinite numbers",
            fix="lower the learning rate, or clip gradients",
        )
