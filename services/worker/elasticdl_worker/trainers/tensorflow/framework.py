"""TensorFlow and the Keras that goes with it, set up once for this process."""

from __future__ import annotations

import importlib.metadata

import tensorflow as tf

from elasticdl_worker.trainers.tensorflow.types import KerasVariable, Variable

__all__ = ["configure", "is_legacy", "keras", "keras_version", "raw_variable", "tf"]

keras = tf.keras


def is_legacy() -> bool:
    """Whether ``tf.keras`` is Keras 2 (``TF_USE_LEGACY_KERAS=1``)."""
    return str(keras.Model.__module__).startswith("tf_keras")


def keras_version() -> str:
    """The version of the Keras in use."""
    return importlib.metadata.version("tf-keras" if is_legacy() else "keras")


def configure(threads: int, *, repeatable: bool = False) -> None:
    """Sizes TensorFlow's pools for a process that shares its machine; call before TensorFlow runs anything.

    Args:
        threads: threads that one operation may use.
        repeatable: have TensorFlow run no operation whose result may differ from run to run.
    """
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
    if repeatable:
        tf.config.experimental.enable_op_determinism()


def raw_variable(variable: KerasVariable) -> Variable:
    """The ``tf.Variable`` behind a Keras variable."""
    return variable if isinstance(variable, tf.Variable) else variable.value
