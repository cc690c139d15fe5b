"""Where predictions go: to the user's processor, or to files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.data import ShardLike
from elasticdl_core.errors import UserCodeError
from elasticdl_worker.user_code import ModelModule


class Outputs(NDArray[Any]):
    """An output of the model as an array, which modules written for tensors can ask for the array."""

    def numpy(self) -> NDArray[Any]:
        """The plain array."""
        return np.asarray(self)


class PredictionSink:
    """Takes the predictions of tasks.

    With a ``PredictionOutputsProcessor`` in the module each minibatch goes to its ``process``. Otherwise each task
    becomes one ``.npz`` file named by its shard, written under another name first, so that a task that is done
    twice leaves the same single file. A single output is the array ``predictions``, several keep their names.

    Args:
        module: the user's module.
        output: directory of the files.
        worker_index: handed to the processor.
    """

    def __init__(self, module: ModelModule, output: Path, worker_index: int) -> None:
        self._module = module
        self._output = output
        self._worker_index = worker_index
        self._written: dict[str, Path] = {}
        self._processor: Any = None
        if module.prediction_outputs_processor is not None:
            with module.guard("PredictionOutputsProcessor"):
                self._processor = module.prediction_outputs_processor()
            if not callable(getattr(self._processor, "process", None)):
                raise UserCodeError(
                    f"PredictionOutputsProcessor in {module.path} has no method process",
                    fix="add `def process(self, predictions, worker_id)`",
                )

    @contextlib.contextmanager
    def task(self, shard: ShardLike) -> Iterator[Callable[[Any], None]]:
        """Gives a function that takes the predictions of one minibatch; the file appears when the context ends."""
        if self._processor is not None:
            yield self._process
            return
        parts: list[Any] = []
        yield lambda predictions: parts.append(_named(predictions))
        if parts:
            self._write(shard, parts)

    def files(self) -> list[dict[str, Any]]:
        """The files written so far: ``{"name", "path", "sha256", "size"}``."""
        found = []
        for path in self._written.values():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found.append(
                {"name": path.name, "path": str(path.resolve()), "sha256": digest, "size": path.stat().st_size}
            )
        return found

    def _process(self, predictions: Any) -> None:
        arrays = {name: value.view(Outputs) for name, value in _named(predictions).items()}
        value = arrays["predictions"] if arrays.keys() == {"predictions"} else arrays
        with self._module.guard("PredictionOutputsProcessor.process"):
            self._processor.process(value, self._worker_index)

    def _write(self, shard: ShardLike, parts: list[dict[str, Any]]) -> None:
        self._output.mkdir(parents=True, exist_ok=True)
        stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(shard.name).name) or "shard"
        unique = hashlib.sha256(shard.name.encode()).hexdigest()[:8]
        path = self._output / f"{stem}-{unique}-{shard.start:012d}-{shard.end:012d}.npz"
        staged = path.with_name(f".{path.name}.{os.getpid()}")
        with staged.open("wb") as file:
            arrays: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
        self._written[path.name] = path


def _named(predictions: Any) -> dict[str, Any]:
    """A model's outputs as arrays by name."""
    if isinstance(predictions, Mapping):
        return {str(name): np.asarray(value) for name, value in predictions.items()}
    if isinstance(predictions, list | tuple):
        return {f"output_{number}": np.asarray(value) for number, value in enumerate(predictions)}
    return {"predictions": np.asarray(predictions)}
