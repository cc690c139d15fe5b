"""Gives predictions to the user's processor, or writes them into files."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from elasticdl.data import ShardLike
from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.output_files import OutputFile, describe_file
from elasticdl_worker.user_code import ModelModule


class OutputArray(NDArray[np.generic]):
    """An array with the method ``numpy`` of a tensor, for processors that were written for tensors."""

    def numpy(self) -> NDArray[np.generic]:
        """The plain array."""
        return np.asarray(self)


class _Processor(Protocol):
    def process(self, predictions: object, worker_id: int, /) -> object: ...


class PredictionWriter:
    """Writes the predictions of tasks.

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
        self._processor: _Processor | None = None
        if module.prediction_outputs_processor is not None:
            with module.guard("PredictionOutputsProcessor"):
                processor = module.prediction_outputs_processor()
            if not callable(getattr(processor, "process", None)):
                raise UserCodeError(
                    f"PredictionOutputsProcessor in {module.path} has no method process",
                    fix="add `def process(self, predictions, worker_id)`",
                )
            self._processor = cast(_Processor, processor)

    @contextlib.contextmanager
    def write_task(self, shard: ShardLike) -> Iterator[Callable[[object], None]]:
        """A context for one task: gives a function for predictions of minibatches, and writes the file at its end."""
        if self._processor is not None:
            yield functools.partial(self._process, self._processor)
            return
        parts: list[dict[str, NDArray[np.generic]]] = []
        yield lambda predictions: parts.append(_named(predictions))
        if parts:
            self._write(shard, parts)

    def list_files(self) -> list[OutputFile]:
        """The files written so far: ``{"name", "path", "sha256", "size"}``."""
        return [describe_file(path, path.name) for path in self._written.values()]

    def _process(self, processor: _Processor, predictions: object) -> None:
        arrays = {name: value.view(OutputArray) for name, value in _named(predictions).items()}
        value = arrays["predictions"] if arrays.keys() == {"predictions"} else arrays
        with self._module.guard("PredictionOutputsProcessor.process"):
            processor.process(value, self._worker_index)

    def _write(self, shard: ShardLike, parts: list[dict[str, NDArray[np.generic]]]) -> None:
        self._output.mkdir(parents=True, exist_ok=True)
        stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(shard.name).name) or "shard"
        unique = hashlib.sha256(shard.name.encode()).hexdigest()[:8]
        path = self._output / f"{stem}-{unique}-{shard.start:012d}-{shard.end:012d}.npz"
        staged = path.with_name(f".{path.name}.{os.getpid()}")
        with staged.open("wb") as file:
            arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
        self._written[path.name] = path


def _named(predictions: object) -> dict[str, NDArray[np.generic]]:
    """A model's outputs as arrays by name."""
    if isinstance(predictions, Mapping):
        return {str(name): np.asarray(value) for name, value in predictions.items()}
    if isinstance(predictions, list | tuple):
        return {f"output_{number}": np.asarray(value) for number, value in enumerate(predictions)}
    return {"predictions": np.asarray(predictions)}
