"""TensorFlow and the Keras that goes with it, set up once for this process."""

from __future__ import annotations

import importlib.metadata

import tensorflow as tf

from elasticdl_worker.trainers.tensorflow.types import KerasVariable, Variable

__all__ = ["configure", "is_legacy", "keras", "keras_version", "limit_devices", "raw_variable", "tf"]

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


def limit_devices(share: float, memory_mib: int) -> None:
    """Keeps TensorFlow from taking all memory of a device that it shares; call before TensorFlow runs anything.

    Args:
        share: of the device; 1 for all of it.
        memory_mib: what that is, as a limit; 0 where nobody knows: then it takes memory as it needs it.
    """
    if share >= 1.0:
        return
    for device in tf.config.list_physical_devices("GPU"):
        if memory_mib:
            limit = tf.config.LogicalDeviceConfiguration(memory_limit=memory_mib)
            tf.config.set_logical_device_configuration(device, [limit])
        else:
            tf.config.experimental.set_memory_growth(device, True)


def raw_variable(variable: KerasVariable) -> Variable:
    """The ``tf.Variable`` behind a Keras variable."""
    return variable if isinstance(variable, tf.Variable) else variable.value
