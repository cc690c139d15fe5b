"""Imports a model module in the state that models are built in: the same in one process and on a cluster.

A module may make layers, a whole model or a dtype policy when it is imported. Keras counts the names of layers, so a
build begins with those that the import has taken: every process, and every later build, gives the same names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from elasticdl.keras_settings import check_keras_file
from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_worker.trainers.tensorflow.framework import is_legacy, keras, tf
from elasticdl_worker.trainers.tensorflow.model import embeddings
from elasticdl_worker.user_code import ModelModule, load_model_module


def load_module(spec: JobSpec, zoo: Path) -> ModelModule:
    """Imports the model module of a job, with the job's seed for what it makes meanwhile.

    Raises:
        UserCodeError: see ``load_model_module``.
    """
    check_keras_file()  # of who runs the machine, where processes of jobs see that home
    embeddings.install()
    # Collecting garbage among all of TensorFlow's objects besides would take a fifth of a second.
    keras.backend.clear_session(**({} if is_legacy() else {"free_memory": False}))
    keras.utils.set_random_seed(spec.seed & 0x7FFFFFFF)
    module = load_model_module(spec, zoo)
    if not tf.executing_eagerly():
        raise UserCodeError(
            f"{module.path}, or what it imports, switches eager execution off, without which Keras 3 does not train",
            fix="leave disable_eager_execution() and disable_v2_behavior() out; a model of TensorFlow 1 runs in a "
            "layer or a tf.function of TensorFlow 2",
        )
    return replace(module, taken_names=_taken_names())


def begin_build(module: ModelModule, seed: int) -> None:
    """Prepares Keras for the building of a module's model: names, and random numbers from the seed."""
    embeddings.install()
    _set_names(module.taken_names)
    keras.utils.set_random_seed(seed & 0x7FFFFFFF)


def _taken_names() -> dict[str, int]:
    """The number of layers to which Keras has given each name."""
    if is_legacy():
        from tf_keras.src import backend

        return dict(backend.get_default_graph_uid_map())
    from keras.src.backend.common import global_state

    return dict(global_state.get_global_attribute("object_name_uids") or {})


def _set_names(names: Mapping[str, int]) -> None:
    if is_legacy():
        from tf_keras.src import backend

        counts = backend.get_default_graph_uid_map()
        counts.clear()
        counts.update(names)
        return
    from keras.src.backend.common import global_state

    global_state.set_global_attribute("object_name_uids", defaultdict(int, names))
