"""Reads all records of some data and lists those that are unlike the first ones, for ``elasticdl data validate``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from elasticdl.data.csv_reader import CSVDataReader
from elasticdl.data.errors import DataError
from elasticdl.data.example import decode_example
from elasticdl.data.factory import create_data_reader
from elasticdl.data.grouped_reader import GroupedReader
from elasticdl.data.image_reader import ImageDataReader, require_sound
from elasticdl.data.reader import DataReader, Record, Shard

_PIECE = 1024
MOST_PROBLEMS = 20


@dataclass(frozen=True)
class UnlikeRecord:
    """A record, or a group of rows, that no job could train on.

    Attributes:
        message: what is wrong, with the source, the record and the column.
        fix: what to do.
    """

    message: str
    fix: str


@dataclass
class Validation:
    """The result of reading some data.

    Attributes:
        kind: of the data.
        records: how many there are.
        checked: how many could be read and were looked at.
        skipped: corrupt records that were passed over, with ``on_corrupt=skip``.
        problems: what was found.
        complete: whether all was looked at; else there may be further problems.
    """

    kind: str
    records: int = 0
    checked: int = 0
    skipped: int = 0
    problems: list[UnlikeRecord] = field(default_factory=list)
    complete: bool = True

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return asdict(self)


def validate_data(
    origin: str,
    *,
    reader_params: Mapping[str, Any] | str | None = None,
    most_problems: int = MOST_PROBLEMS,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Validation:
    """Reads all records as a job does, and compares them with the columns, types or features of the first ones.

    With the reader parameter ``label`` it is looked whether the ``feed`` that this makes could take them.

    Args:
        origin: the data, as for ``create_data_reader``.
        reader_params: parameters of the reader.
        most_problems: it ends when so many were found.
        on_progress: called now and then with the records done and the number of all.

    Raises:
        DataError: the data is missing, holds no record, or cannot be opened.
    """
    reader = create_data_reader(origin, reader_params=reader_params)
    shards = list(reader.create_shards())
    reader.default_feed()  # refuses columns that it could not take, and has values looked at that it would change
    found = Validation(reader.metadata.kind, sum(shard.records for shard in shards))
    features = _features(_first(reader, shards[0]))
    done = 0
    for shard in shards:
        for start in range(shard.start, shard.end, _PIECE):
            piece = Shard(shard.name, start, min(start + _PIECE, shard.end))
            for problem in _problems(reader, piece, features, found):
                if problem not in found.problems:  # a group of rows is larger than a piece
                    found.problems.append(problem)
                if len(found.problems) >= most_problems:
                    found.complete = False
                    return found
            done += piece.records
            on_progress(done, found.records)
    found.skipped = reader.skipped_records
    return found


def _problems(
    reader: DataReader, piece: Shard, features: dict[str, str], found: Validation
) -> Iterator[UnlikeRecord]:
    """The faults of some records; of a piece that cannot be read its halves are, down to single records."""
    try:
        records = list(itertools.chain.from_iterable(reader.read_batches(piece, piece.records)))
        if isinstance(reader, ImageDataReader):
            require_sound(records)
    except DataError as error:
        if piece.records == 1 or isinstance(reader, GroupedReader):
            yield UnlikeRecord(error.message, error.fix)
            return
        middle = (piece.start + piece.end) // 2
        for start, end in ((piece.start, middle), (middle, piece.end)):
            yield from _problems(reader, Shard(piece.name, start, end), features, found)
        return
    found.checked += len(records)
    if isinstance(reader, CSVDataReader):
        yield from (UnlikeRecord(error.message, error.fix) for error in reader.misfits(piece))
    elif features:
        yield from _strangers(piece, records, features)


def _strangers(piece: Shard, records: Sequence[Record], features: dict[str, str]) -> Iterator[UnlikeRecord]:
    """Examples whose features are not those of the first one."""
    for number, record in enumerate(records, piece.start):
        here = _features(record)
        for name in sorted(features.keys() | here.keys()):
            has, first = here.get(name, "missing"), features.get(name, "missing")
            if has != first:
                yield UnlikeRecord(
                    f"{piece.name}: record {number}: feature {name!r} is {has}, and {first} in the first record",
                    "write all records with the same features",
                )


def _first(reader: DataReader, shard: Shard) -> Record:
    """The first record that can be read; None if it cannot."""
    try:
        return next(iter(reader.read_records(Shard(shard.name, shard.start, shard.start + 1))), None)
    except DataError:
        return None


def _features(record: Record) -> dict[str, str]:
    """The features of a ``tf.train.Example`` and their types; of other records none."""
    try:
        decoded = decode_example(record) if isinstance(record, bytes) else {}
    except DataError:
        return {}
    kinds = {bytes: "bytes", float: "float", int: "int64"}
    return {name: kinds[type(values[0])] for name, values in decoded.items() if len(values)}
