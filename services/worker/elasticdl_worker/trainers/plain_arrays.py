"""Numbers of any type of a framework as arrays that numpy alone can compute with, store and read again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def plain_array(values: Any) -> NDArray[Any]:
    """An array of one of numpy's own types: small floats become float32, small integers int8 or uint8.

    ``np.asarray`` keeps bfloat16, float8, int4 (which ml_dtypes adds to numpy) and TensorFlow's quantised types, and
    files hold them as bytes without a meaning.

    Args:
        values: an array, or what ``np.asarray`` takes.
    """
    array = np.asarray(values)
    names = array.dtype.names
    if names is not None and len(names) == 1:  # qint8 and its kin: a record of one integer
        return np.asarray(array[names[0]])
    if array.dtype.isbuiltin != 2:  # 2: another package registered it
        return array
    name = array.dtype.name
    return array.astype(np.uint8 if name.startswith("uint") else np.int8 if name.startswith("int") else np.float32)
