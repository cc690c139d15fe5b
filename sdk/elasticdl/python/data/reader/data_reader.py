"""The base class of custom readers and the metadata at their original import path."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from elasticdl.data.reader import Metadata

__all__ = ["AbstractDataReader", "Metadata"]


class AbstractDataReader(abc.ABC):
    """Base class of custom readers in older model modules; ``elasticdl.data.CustomDataReader`` wraps them.

    Args:
        kwargs: ignored; a subclass keeps what it needs.

    Attributes:
        shards_hold_counts: tuples of ``create_shards`` end with a number of records, as the original's do.
    """

    shards_hold_counts = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()

    @abc.abstractmethod
    def read_records(self, task: Any) -> Iterator[Any]:
        """Reads records ``task.start`` to ``task.end`` of ``task.shard_name`` (or ``task.shard.name``)."""

    @abc.abstractmethod
    def create_shards(self) -> Mapping[str, tuple[int, int]] | Iterable[Any]:
        """A dict of name -> (start, record count), or an iterable of (name, start, record count)."""

    @property
    def records_output_types(self) -> Any:
        """The TensorFlow types of a record, where it is not one string."""
        return None

    @property
    def metadata(self) -> Metadata:
        """The facts that are known of the records."""
        return Metadata()
