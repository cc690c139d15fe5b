"""Listing shards with built-in readers, and finding out whether the user's own reader must do it in a worker."""

from __future__ import annotations

import ast
import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from elasticdl.data import DataReader, create_data_reader, params_like
from elasticdl.model_check import defined_names
from elasticdl.recognition import starred_files
from elasticdl_core.errors import DataError, ElasticDLError
from elasticdl_core.job import JobSpec
from elasticdl_core.shard import Shard
from elasticdl_core.task import TaskType

_PIECE = 500
_READER = "custom_data_reader"


@dataclass(frozen=True)
class Piece:
    """A piece of a list of shards.

    Attributes:
        shards: the shards.
        last: whether that is all.
        damaged: with the last piece: files whose rest cannot be read and is left out, and what is wrong with them.
        fingerprints: what the sources of the shards are like.
        grain: as the reader tells it.
    """

    shards: list[Shard]
    last: bool
    damaged: Mapping[str, str] = field(default_factory=dict)
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    grain: tuple[int, int] | None = None


async def open_readers(spec: JobSpec, origins: Mapping[TaskType, str]) -> dict[TaskType, DataReader]:
    """The readers of a job's data; the columns of all others are those of the first.

    Raises:
        DataError: the data of one is missing, unreadable or of other columns.
    """
    found: dict[TaskType, DataReader] = {}
    params = dict(spec.data_reader_params)
    for purpose, origin in origins.items():
        found[purpose] = await asyncio.to_thread(
            create_data_reader, origin, spec.records_per_task, params, predicting=purpose is TaskType.PREDICTION
        )
        params = params_like(found[purpose], params)
    return found


async def list_shards(reader: DataReader) -> AsyncIterator[Piece]:
    """Lists the shards of a reader in pieces, in a thread.

    Raises:
        DataError: the data is missing or unreadable.
    """
    shards = reader.create_shards()
    piece = await asyncio.to_thread(_take, shards)
    grain = await asyncio.to_thread(lambda: reader.grain)
    while True:
        following = await asyncio.to_thread(_take, shards) if piece else []
        if not following:
            yield Piece(piece, True, reader.damaged_files, _fingerprints(reader, piece), grain)
            return
        yield Piece(piece, False, fingerprints=_fingerprints(reader, piece), grain=grain)
        piece = following


def _fingerprints(reader: DataReader, shards: Sequence[Shard]) -> dict[str, str]:
    known = {name: reader.fingerprint(name) for name in {shard.name for shard in shards}}
    return {name: fingerprint for name, fingerprint in known.items() if fingerprint}


def _take(shards: Iterator[Shard]) -> list[Shard]:
    try:
        return list(itertools.islice(shards, _PIECE))
    except ElasticDLError:
        raise
    except OSError as error:
        raise DataError(f"cannot list the data: {error}", fix="check the path and its permissions") from error


def has_own_reader(spec: JobSpec, zoo: Path) -> bool:
    """Whether the model module brings its own data reader, or may; the module is parsed, never run."""
    if spec.custom_data_reader:
        return True
    if spec.runs_script:  # which knows how many records it has, where the job names none
        return not spec.training_data
    home = zoo.joinpath(*spec.model_def.split(".")[:-1]).with_suffix(".py")
    waiting, seen = [home], set[Path]()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        try:
            names = defined_names(ast.parse(file.read_bytes()), past_stars=True)
        except (OSError, SyntaxError, ValueError):
            continue  # the worker, which must import it, says what is wrong
        # A worker that finds none after all lists by the built-in readers, as this process would.
        if names is None or _READER in names:
            return True
        waiting += starred_files(file, zoo)
    return False
