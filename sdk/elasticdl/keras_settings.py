"""Settings of Keras that only this machine has, in its environment or the user's home."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from elasticdl_core.errors import InvalidInputError

_PLAIN = {"floatx": "float32", "epsilon": 1e-7, "image_data_format": "channels_last"}


def chosen_keras(environment: Mapping[str, str] = os.environ) -> str:
    """The job's ``keras`` that ``TF_USE_LEGACY_KERAS`` stands for, as TensorFlow reads it."""
    return "legacy" if environment.get("TF_USE_LEGACY_KERAS") in {"true", "True", "1"} else "default"


def check_keras_file(environment: Mapping[str, str] = os.environ) -> None:
    """Refuses Keras' own file where it changes models: the same code would train another model on another machine.

    Args:
        environment: where ``KERAS_HOME`` may say where the file is.

    Raises:
        InvalidInputError: the file says something other than what Keras does without it.
    """
    home = Path(environment.get("KERAS_HOME") or "~/.keras").expanduser()
    try:
        found = json.loads((home / "keras.json").read_text())
    except (OSError, ValueError):
        return  # as Keras does
    if not isinstance(found, dict):
        return
    odd = {name: found[name] for name, plain in _PLAIN.items() if found.get(name, plain) != plain}
    if odd:
        name, value = next(iter(odd.items()))
        raise InvalidInputError(
            f"{home / 'keras.json'} sets {' and '.join(odd)}, which other machines do not have: there "
            "the same module makes another model",
            fix=f"write it into the module (keras.config.set_{name}({value!r})) and remove it from that file",
        )
