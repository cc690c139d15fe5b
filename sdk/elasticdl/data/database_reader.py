"""The base of readers of a database's table: its parameters, and the columns that are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from elasticdl.data.columns import ColumnSpec, chosen_columns, nulls_policy
from elasticdl.data.grouped_reader import GroupedReader
from elasticdl.data.params import TRAINED_COLUMNS, refuse_unknown, take, take_names
from elasticdl.data.reader import Feed
from elasticdl.data.table_feed import table_feed

_Declared = TypeVar("_Declared")


class DatabaseReader(GroupedReader):
    """Reads one table.

    Args:
        reader_params: ``columns``, ``label``, ``nulls`` and ``trained_columns``, as for Parquet.

    Raises:
        ReaderParamsError: a parameter is unknown.
    """

    kind: ClassVar[str]
    params: ClassVar[tuple[str, ...]] = ("kind", "columns", "label", "nulls", TRAINED_COLUMNS)

    def __init__(self, reader_params: Mapping[str, Any] | None) -> None:
        super().__init__()
        self._params = dict(reader_params or {})
        refuse_unknown(self._params, self.params, reader=self.kind)
        self._specs: dict[str, ColumnSpec] = {}
        self._nulls: dict[str, Any] = {}

    def _choose(
        self,
        where: str,
        declared: Mapping[str, _Declared],
        spec_of: Callable[[str, _Declared], ColumnSpec],
        *,
        predicting: bool,
    ) -> None:
        """Chooses the columns that are read, their forms, and what becomes of their missing values.

        Args:
            where: the source, in words, for errors.
            declared: the table's columns, as the database declares them.
            spec_of: the form of a column's values, by its name and declaration.
            predicting: the column of the label may be missing.

        Raises:
            ReaderParamsError: a parameter has an impossible value.
            DataError: a column is no tensor.
        """
        self.label = take(self._params, "label", str, None)
        wanted, trained = (take_names(self._params, name) for name in ("columns", TRAINED_COLUMNS))
        chosen = chosen_columns(where, list(declared), wanted, trained, label=self.label, predicting=predicting)
        self._specs = {name: spec_of(name, declared[name]) for name in chosen}
        self._nulls = nulls_policy(self._params.get("nulls", "fail"), self._specs)
        if predicting and self.label in self._nulls:
            self._nulls[self.label] = "default"  # nobody reads it

    @property
    def column_specs(self) -> Mapping[str, ColumnSpec]:
        """The columns of a record, in their order."""
        return self._specs

    def default_feed(self) -> Feed | None:
        """With the parameter ``label``: the other columns as a float32 vector, and the label as a number."""
        return table_feed(self._specs, self.vector_label())


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'
