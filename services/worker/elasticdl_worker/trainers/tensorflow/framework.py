"""TensorFlow and the Keras that goes with it, set up once for this process."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"

import tensorflow as tf

__all__ = ["configure", "is_legacy", "keep_freed_memory", "keras", "keras_version", "raw_variable", "tf"]

keras: Any = tf.keras

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 30


def is_legacy() -> bool:
    """Whether ``tf.keras`` is Keras 2 (``TF_USE_LEGACY_KERAS=1``)."""
    return str(keras.Model.__module__).startswith("tf_keras")


def keras_version() -> str:
    """The version of the Keras in use."""
    return importlib.metadata.version("tf-keras" if is_legacy() else "keras")


def configure(threads: int) -> None:
    """Sizes TensorFlow's pools for a process that shares its machine; call before TensorFlow runs anything.

    Args:
        threads: threads that one operation may use.
    """
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))


def keep_freed_memory() -> None:
    """Tells glibc to keep large freed blocks: each message would otherwise fault all its pages in again."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
    except (OSError, AttributeError):
        return  # another C library: only slower


def raw_variable(variable: Any) -> Any:
    """The ``tf.Variable`` behind a Keras variable."""
    return variable if isinstance(variable, tf.Variable) else variable.value
