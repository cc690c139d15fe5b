"""Writes trained models so that plain PyTorch loads them, in a process without ElasticDL.

``model.safetensors`` is the model's ``state_dict``, with the whole matrix of each ``nn.Embedding`` and
``nn.EmbeddingBag``. ``model.pt2`` is the program of ``forward`` in inference mode. A table whose id space is open is
exported as ids and vectors beside them, and inside the program.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from safetensors.torch import save, save_file
from torch import nn

from elasticdl.torch.lookup import FoundRows, finding_rows
from elasticdl_core.errors import UserCodeError
from elasticdl_core.model import TableSpec
from elasticdl_runtime import durable
from elasticdl_worker.parameters import Rows
from elasticdl_worker.trainers.exported_files import wanted_formats, write_note, write_tables
from elasticdl_worker.trainers.minibatch import Tensors
from elasticdl_worker.trainers.output_files import OutputFile, describe_file
from elasticdl_worker.trainers.torch.export.initial_rows import TorchInitialRows
from elasticdl_worker.trainers.torch.model.build import BuiltModel
from elasticdl_worker.trainers.torch.model.calling import TorchModelCall
from elasticdl_worker.trainers.torch.model.trials import trial_of
from elasticdl_worker.trainers.torch.nested import map_tensors

WEIGHTS, PROGRAM = "model.safetensors", "model.pt2"
_FORMATS = ("safetensors", "pt2")
_log = structlog.get_logger(__name__)


def check_exportable(model: BuiltModel, sample: Tensors, formats: Sequence[str]) -> None:
    """Refuses before training what could not be written after it; a program only where it was asked for by name.

    Args:
        model: the model; it must be able to run.
        sample: features of a few records.
        formats: as the job has them.

    Raises:
        UserCodeError: the state cannot be written, or a program is asked for and the model is none.
    """
    if "safetensors" in wanted_formats(formats, _FORMATS):
        try:
            # Empty ones on the host: weights of tables have no numbers here.
            save({name: torch.empty(0, dtype=value.dtype) for name, value in _state(model)})
        except Exception as error:
            raise UserCodeError(
                f"the model's state_dict cannot be written (safetensors): {_first_line(error)}",
                fix="keep in state_dict only tensors of plain types, or leave safetensors out of --export_formats",
            ) from error
    elsewhere = any(spec.input_dim is not None for spec in model.tables.values())
    if "pt2" not in formats or sample is None or elsewhere:
        return  # a model whose matrices are elsewhere cannot be tried
    try:
        trial, twin = trial_of(model.net, model.placeholders.values()), copy.copy(model)
        if trial is not None:
            twin.net = trial  # PyTorch leaves its symbols in what a model keeps
        _program(twin, sample, {name: _empty_table(spec) for name, spec in model.tables.items()})
    except Exception as error:
        raise UserCodeError(
            f"the model cannot be written as a program (pt2): {_first_line(error)}",
            fix="take what depends on the values of tensors out of forward, or leave pt2 out of --export_formats",
        ) from error


def export_model(
    model: BuiltModel,
    sample: Tensors,
    output: Path,
    formats: Sequence[str],
    open_tables: Mapping[str, Rows],
    specs: Mapping[str, TableSpec],
) -> list[OutputFile]:
    """Writes the model into a directory, replacing what an earlier export left there.

    Args:
        model: the model with its final values, the weights of its closed embeddings in it.
        sample: features of a few records; None where there are none, which leaves the program out.
        output: the directory; made if missing.
        formats: ``safetensors``, ``pt2`` or ``auto``.
        open_tables: ids and rows of tables of ``elasticdl.torch.Embedding`` layers.
        specs: these tables.

    Returns:
        The files: ``{"name", "path", "sha256", "size"}``; names relative to ``output``, paths absolute.
    """
    output.mkdir(parents=True, exist_ok=True)
    written: dict[str, str] = {}
    wanted = wanted_formats(formats, _FORMATS)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=output) as folder:
        staging = Path(folder)
        if "safetensors" in wanted:
            save_file(_state_dict(model, open_tables), staging / WEIGHTS)
            (staging / WEIGHTS).chmod(0o644)  # it is written for its owner alone
            written["safetensors"] = f"{WEIGHTS}: net.load_state_dict(safetensors.torch.load_file('{WEIGHTS}'))"
        if "pt2" in wanted:
            tables = {name: _OpenTable(*rows, specs[name]) for name, rows in open_tables.items()}
            try:
                if sample is None:
                    raise ValueError("there was no record to run the model on")
                torch.export.save(_program(model, sample, tables), staging / PROGRAM)
                call = TorchModelCall(model.net).written(sample)
                written["pt2"] = f"{PROGRAM}: torch.export.load('{PROGRAM}').module()({call})"
            except Exception as error:
                if "auto" not in formats:
                    raise
                _log.warning("the model is exported without a program", reason=_first_line(error))
                written["pt2"] = f"left out: {_first_line(error)}"
        write_note(staging, {"torch": torch.__version__}, written, write_tables(staging, open_tables, specs))
        names = sorted(item.name for item in staging.iterdir())
        for name in names:
            durable.swap(staging / name, output / name)
    return [describe_file(output / name, name) for name in names]


def _state_dict(model: BuiltModel, open_tables: Mapping[str, Rows]) -> dict[str, torch.Tensor]:
    """The state, each entry with memory of its own; the weights of open embeddings are empty in it."""
    open_weights = {id(model.placeholders[name]) for name in open_tables}
    return {
        name: (value.detach()[:0] if id(value) in open_weights else value.detach()).clone().contiguous()
        for name, value in _state(model)
    }


def _state(model: BuiltModel) -> Iterator[tuple[str, torch.Tensor]]:
    state = model.net.state_dict(keep_vars=True)
    return ((name, value) for name, value in state.items() if isinstance(value, torch.Tensor))


def _program(model: BuiltModel, sample: Tensors, tables: Mapping[str, _OpenTable]) -> Any:
    sample = map_tensors(_at_least_two, sample)
    args, kwargs = TorchModelCall(model.net).arguments(sample)
    training = model.net.training
    model.net.eval()
    weights = {name: model.placeholders[name] for name in tables}
    held = {name: weight.data for name, weight in weights.items()}
    try:
        for weight in weights.values():
            weight.grad = None
            weight.data = weight.data[:0]  # the rows are in the tables
        with finding_rows(_ExportScope(tables)), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(
                model.net, args, kwargs, dynamic_shapes=_open_shapes(args, kwargs), strict=False
            )
    finally:
        for name, weight in weights.items():
            weight.data = held[name]
        model.net.train(training)
    return program


def _open_shapes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """For each tensor, that its first dimension may have any length."""

    def opened(tensor: torch.Tensor) -> dict[int, Any]:
        return {0: torch.export.Dim.AUTO} if tensor.ndim else {}

    shapes = tuple(map_tensors(opened, one) for one in args)
    return {**{name: map_tensors(opened, one) for name, one in kwargs.items()}} if kwargs else shapes


def _at_least_two(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of two records or more: with one, an exported program would take no other number."""
    return torch.cat([tensor, tensor]) if tensor.ndim and len(tensor) == 1 else tensor


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"


class _OpenTable(nn.Module):
    """Ids and vectors inside a program; an id without a row reads as it does in training: as its first value."""

    def __init__(self, ids: NDArray[np.int64], rows: NDArray[np.float32], spec: TableSpec) -> None:
        super().__init__()
        order = np.argsort(ids, kind="stable")
        # One more than there are, so that each place that is found is one of a row.
        self.ids = torch.from_numpy(np.append(ids[order], np.iinfo(np.int64).max))
        self.rows = torch.from_numpy(np.concatenate([rows[order], np.zeros((1, spec.dim), np.float32)]))
        self._first = TorchInitialRows(spec)

    def find(self, ids: torch.Tensor) -> torch.Tensor:
        """Vectors of ids ``[n]``."""
        places = torch.searchsorted(self.ids, ids)
        known = (self.ids[places] == ids) & (places < len(self.ids) - 1)
        return torch.where(known[:, None], self.rows[places], self._first(ids))


def _empty_table(spec: TableSpec) -> _OpenTable:
    return _OpenTable(np.zeros(0, np.int64), np.zeros((0, spec.dim), np.float32), spec)


class _ExportScope:
    def __init__(self, tables: Mapping[str, _OpenTable]) -> None:
        self._tables = tables

    def find(self, table: str, ids: torch.Tensor, dim: int, padding_idx: int | None) -> FoundRows:
        """Vectors from the table inside the program: one for each place of an id, equal ids or not."""
        flat = ids.reshape(-1)
        rows = self._tables[table].find(flat)
        places = torch.arange(flat.shape[0], dtype=torch.int64)
        if padding_idx is None:
            return FoundRows(rows, places.reshape(ids.shape), None)
        rows = torch.cat([torch.zeros(1, dim), rows])
        places = torch.where(flat == padding_idx, torch.zeros_like(places), places + 1)
        return FoundRows(rows, places.reshape(ids.shape), 0)
