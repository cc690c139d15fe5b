"""Gives predictions to the user's processor, or writes them into files."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from elasticdl.data import ShardLike
from elasticdl.prediction import PredictedTask
from elasticdl_core.errors import UserCodeError
from elasticdl_runtime import durable
from elasticdl_worker.trainers.output_files import OutputFile, delivered, describe_file, output_folder
from elasticdl_worker.trainers.prediction_files import UNKNOWN_ROW, check_names, require_format, write_predictions
from elasticdl_worker.trainers.prediction_shapes import check_rows, named_outputs
from elasticdl_worker.user_code import ModelModule

_STEM_CHARS = 120
"""Of a shard's name in that of its file: with all that stands beside it a file's name has 255 bytes at most."""


class OutputArray(NDArray[np.generic]):
    """An array with the method ``numpy`` of a tensor, for processors that were written for tensors."""

    def numpy(self) -> NDArray[np.generic]:
        """The plain array."""
        return np.asarray(self)


WritePredictions = Callable[[object, int | None, int], None]
"""Takes the predictions of a minibatch, the number of its first record if that is known, and how many records it has.
"""


class _Processor(Protocol):
    def process(self, predictions: object, worker_id: int, /) -> object: ...

    def process_task(self, predictions: object, task: PredictedTask, /) -> object: ...


class PredictionWriter:
    """Writes the predictions of tasks.

    With a ``PredictionOutputsProcessor`` in the module each minibatch goes to its ``process``, or, if it has one, a
    whole task to its ``process_task``. Otherwise each task
    becomes one file named by its shard, written under another name first, so that a task that is done twice leaves
    the same single file. Each prediction stands beside its record: the file and the number of the record in it. A
    single output is the column ``predictions``, several keep their names.

    Args:
        module: the user's module.
        output: directory of the files, or its URL.
        worker_index: handed to the processor.
        kind: the format, ``npz``, ``csv`` or ``parquet``; empty for ``npz``.

    Raises:
        ElasticDLError: that format cannot be written, or the module's processor takes the predictions.
    """

    def __init__(self, module: ModelModule, output: str | Path, worker_index: int, kind: str = "") -> None:
        self._module = module
        self._output = output
        self._worker_index = worker_index
        self._written: dict[str, OutputFile] = {}
        self._new: dict[str, OutputFile] = {}
        self._processor: _Processor | None = None
        self._by_task = False
        self._kind = kind or "npz"
        require_format(self._kind)
        if kind and module.prediction_outputs_processor is not None:
            raise UserCodeError(
                f"PredictionOutputsProcessor in {module.path} takes the predictions, so no file in {kind} is made",
                fix="leave --output_format out, or give --prediction_outputs_processor='' to have files",
            )
        if module.prediction_outputs_processor is not None:
            with module.guard("PredictionOutputsProcessor"):
                processor = module.prediction_outputs_processor()
            self._by_task = callable(getattr(processor, "process_task", None))
            if not self._by_task and not callable(getattr(processor, "process", None)):
                raise UserCodeError(
                    f"PredictionOutputsProcessor in {module.path} has no method process",
                    fix="add `def process(self, predictions, worker_id)` or `process_task(self, predictions, task)`",
                )
            self._processor = cast(_Processor, processor)

    @contextlib.contextmanager
    def write_task(self, shard: ShardLike) -> Iterator[WritePredictions]:
        """A context for one task: gives a function for predictions of minibatches, and delivers them at its end.

        The function takes the predictions, the number of the first record that they are of, or None where ``feed`` or
        damaged data let nobody know it, and how many records these are.
        """
        processor = self._processor
        if processor is not None and not self._by_task:
            yield lambda predictions, first, records: self._process(processor, predictions)
            return
        parts: list[dict[str, NDArray[np.generic]]] = []
        rows: list[NDArray[np.int64]] = []

        def add(predictions: object, first: int | None, records: int) -> None:
            columns = named_outputs(predictions)
            if processor is None:
                check_names(columns)
            check_rows(columns, records, parts[0] if parts else None)
            parts.append(columns)
            rows.append(np.full(records, UNKNOWN_ROW) if first is None else np.arange(first, first + records))

        yield add
        if not parts:
            return
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if processor is None:
            self._write(shard, np.concatenate(rows), arrays)
            return
        with self._module.guard("PredictionOutputsProcessor.process_task"):
            task = PredictedTask(shard.name, shard.start, shard.end, np.concatenate(rows))
            processor.process_task(_for_processor(arrays), task)

    def list_files(self) -> list[OutputFile]:
        """The files written so far: ``{"name", "path", "sha256", "size"}``, each as it was when it was written."""
        return list(self._written.values())

    @property
    def makes_files(self) -> bool:
        """Whether predictions become files, rather than a processor of the user's takes them."""
        return self._processor is None

    def take_new(self) -> list[OutputFile]:
        """The files written since they were last taken; one that was written again is among them."""
        taken, self._new = list(self._new.values()), {}
        return taken

    def _process(self, processor: _Processor, predictions: object) -> None:
        with self._module.guard("PredictionOutputsProcessor.process"):
            processor.process(_for_processor(named_outputs(predictions)), self._worker_index)

    def _write(self, shard: ShardLike, rows: NDArray[np.int64], arrays: dict[str, NDArray[np.generic]]) -> None:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(shard.name).name)[:_STEM_CHARS] or "shard"
        unique = hashlib.sha256(shard.name.encode()).hexdigest()[:8]
        name = f"{stem}-{unique}-{shard.start:012d}-{shard.end:012d}.{self._kind}"
        with output_folder(self._output) as folder:
            durable.make_folder(folder)
            with durable.writing(folder / name) as file:
                write_predictions(self._kind, file, shard.name, rows, arrays)
            (made,) = delivered([describe_file(folder / name, name)], self._output)
        self._written[name] = self._new[name] = made


def _for_processor(outputs: dict[str, NDArray[np.generic]]) -> object:
    """The array of a single output, or those of several by name."""
    arrays = {name: value.view(OutputArray) for name, value in outputs.items()}
    return arrays["predictions"] if arrays.keys() == {"predictions"} else arrays
