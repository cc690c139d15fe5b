"""Environment variables that TensorFlow and Keras read while they are imported."""

from __future__ import annotations

import os
from collections.abc import MutableMapping


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Chooses Keras' backend and quiets TensorFlow's own log; call in a process before it imports either.

    Args:
        environment: the process's. A log level that is set there already stays.
    """
    environment["KERAS_BACKEND"] = "tensorflow"
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
