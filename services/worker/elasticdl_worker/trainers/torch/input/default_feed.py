"""The ``feed`` of PyTorch models that bring none: rows of a table with a label."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from elasticdl.data import DataReader
from elasticdl.data.csv_columns import is_inexact
from elasticdl.data.csv_reader import CSVDataReader
from elasticdl.data.grouped_reader import GroupedReader
from elasticdl.data.reader import Feed, Metadata


def default_feed(reader: DataReader) -> Feed | None:
    """A feed for a reader's records, or None where it cannot know one."""
    text = isinstance(reader, CSVDataReader)
    label = reader.label if isinstance(reader, CSVDataReader) else None
    if isinstance(reader, GroupedReader):
        label = reader.vector_label()
    if label is None:
        return None

    def feed(records: Iterable[Mapping[str, Any]], mode: str, metadata: Metadata) -> Iterator[Any]:
        names = [name for name in metadata.column_names if name != label]
        read = names if mode == "prediction" else metadata.column_names
        kind = metadata.column_types.get(label, "")
        whole = kind == "int64" if text else not kind.startswith("float")
        exact = [name for name in names if metadata.column_types[name] == "int64"] if text else []
        for record in records:
            given = "".join(record[name] for name in read) if text else ""
            if not given.isascii() or "_" in given:
                raise ValueError("a field is no number")  # Python's float takes digits of any script
            if any(is_inexact(record[name]) for name in exact):
                raise ValueError("a whole number that float32 does not have")
            features = torch.tensor([float(record[name]) for name in names])
            if mode == "prediction":
                yield features
            else:
                yield features, torch.tensor(int(record[label]) if whole else float(record[label]))

    return feed
