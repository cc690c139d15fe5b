"""The original project's reader of MaxCompute tables at its import path: records are lists of text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from elasticdl.data.columns import records_of
from elasticdl.data.errors import ReaderParamsError
from elasticdl.data.odps_access import Access
from elasticdl.data.odps_reader import PAGE, SCHEME, OdpsDataReader
from elasticdl.data.reader import DataReader, Feed, Metadata, Record, RecordSpec, Shard, ShardLike
from elasticdl.modes import Mode

__all__ = ["ODPSDataReader"]


class ODPSDataReader(DataReader):
    """Reads a table of MaxCompute; each record is a list of its columns as text.

    Args:
        project: the project; that of ``project.table`` goes first.
        access_id: id of the access key.
        access_key: the access key.
        table: the table.
        endpoint: address of the service.
        tunnel_endpoint: address of its tunnel.
        partition: ``a=1/b=2`` or ``a=1,b=2``; by default all partitions.
        columns: the columns of a record; by default those of the table.
        records_per_task: cut shards to at most this many rows.
        num_processes: pages of rows that are asked for side by side.
        label_col: the column of the label, for modules without ``feed``.
        nulls: what missing values become, as for other tables.

    Raises:
        ReaderParamsError: an argument has an impossible value.
        DataError: the table cannot be read, or a column is no tensor.
    """

    def __init__(
        self,
        project: str,
        access_id: str,
        access_key: str,
        table: str,
        endpoint: str | None = None,
        tunnel_endpoint: str | None = None,
        partition: str | None = None,
        columns: Sequence[str] | None = None,
        records_per_task: int | None = None,
        num_processes: int = 1,
        label_col: str | None = None,
        nulls: Any = "fail",
    ) -> None:
        if num_processes < 1:
            raise ReaderParamsError(f"num_processes={num_processes}", fix="give a number over 0")
        home, dot, name = table.rpartition(".")
        access = Access(project, access_id, access_key, endpoint or "", tunnel_endpoint or "")
        params = {"columns": list(columns) if columns else None, "partition": partition, "nulls": nulls}
        self._rows = OdpsDataReader(
            f"{SCHEME}{home if dot else project}/{name}",
            records_per_task,
            {key: value for key, value in params.items() if value is not None},
            access=access,
        )
        self._asked_at_once, self._label = num_processes, label_col

    def create_shards(self) -> Iterator[Shard]:
        """A shard a partition, or several of ``records_per_task`` rows."""
        return self._rows.create_shards()

    def read_records(self, shard: ShardLike) -> Iterator[list[str]]:
        """The rows of a shard as lists of text."""
        name = getattr(shard, "name", None) or shard.shard_name  # type: ignore[attr-defined]  # an older task
        pages = [Shard(name, at, min(at + PAGE, shard.end)) for at in range(shard.start, shard.end, PAGE)]
        if self._asked_at_once == 1 or len(pages) < 2:
            yield from itertools.chain.from_iterable(map(self._texts, pages))
            return
        with ThreadPoolExecutor(self._asked_at_once) as pool:
            yield from itertools.chain.from_iterable(pool.map(self._texts, pages))

    def _texts(self, shard: Shard) -> list[list[str]]:
        return [_text(record) for record in self._rows.read_records(shard)]

    def read_places(self, places: Sequence[tuple[str, Sequence[int]]]) -> list[Record]:
        """Single rows of several sources."""
        return list(map(_text, records_of(self._rows.read_columns(places)))) if places else []

    def read_numbers(self, name: str, numbers: Sequence[int]) -> list[Record]:
        """Single rows of a source."""
        return self.read_places([(name, numbers)]) if len(numbers) else []

    @property
    def reads_by_index(self) -> bool:
        """Rows are taken out of pages that are kept."""
        return True

    @property
    def gathers(self) -> bool:
        """It does, by the pages."""
        return True

    @property
    def grain(self) -> tuple[int, int] | None:
        """The rows of a page, and the pages among which rows are mixed."""
        return self._rows.grain

    def fingerprint(self, name: str) -> str:
        """The number of rows, when they were written, and a digest of a few."""
        return self._rows.fingerprint(name)

    @property
    def metadata(self) -> Metadata:
        """The columns and their types."""
        return self._rows.metadata

    @property
    def records_kind(self) -> RecordSpec:
        """Lists of text."""
        return RecordSpec("columns", width=len(self._rows.columns))

    def default_feed(self) -> Feed | None:
        """With ``label_col``: the other columns as numbers ``[columns, 1]``, and the label as ``[1]``.

        Raises:
            ReaderParamsError: there is no such column.
        """
        if self._label is None:
            return None
        names = self._rows.columns
        label = names.index(self._label) if self._label in names else None

        def feed(dataset: Any, mode: str, metadata: Metadata) -> Any:
            import tensorflow as tf

            if label is None and mode != Mode.PREDICTION:
                raise ReaderParamsError(
                    f"the label {self._label!r} is not among the columns", fix=f"use one of {', '.join(names)}"
                )

            def parse(record: Any) -> Any:
                numbers = tf.strings.to_number(record, tf.float32)
                if label is None:
                    return tf.reshape(numbers, (len(names), 1))
                others = tf.concat([numbers[:label], numbers[label + 1 :]], -1)
                features = tf.reshape(others, (len(names) - 1, 1))
                return features if mode == Mode.PREDICTION else (features, tf.reshape(numbers[label], (1,)))

            return dataset.map(parse)

        return feed


def _text(record: Record) -> list[str]:
    """A row as text, lists within it as JSON writes them."""
    return [str(value.tolist() if isinstance(value, np.ndarray) else value) for value in record.values()]
