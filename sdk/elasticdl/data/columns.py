"""Columns of tables as numpy arrays, whatever they were stored as: types, nested ones, and what is missing.

``pyarrow`` is imported by those who call this with its objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from elasticdl.data.errors import DataError, ReaderParamsError

Columns: TypeAlias = dict[str, npt.NDArray[Any]]
"""Name -> values ``[rows, ...]``; text, bytes and lists of any length are arrays of objects."""
NULLS = ("fail", "default")
_EXACT_DIGITS = 15
"""Whole numbers of no more are all exact as float64."""
_INDEX = re.compile(r"__index_level_\d+__")
_DEFAULTS = {"i": 0, "u": 0, "b": False, "f": float("nan"), "U": "", "S": b""}


@dataclass(frozen=True)
class ColumnSpec:
    """The form of a column's values.

    Attributes:
        dtype: ``int64``, ``float32``, ``bool``, ...; ``str`` or ``bytes`` for text and bytes.
        shape: of one value; ``(None,)`` for lists of any length.
    """

    dtype: str
    shape: tuple[int | None, ...] = ()

    @property
    def ragged(self) -> bool:
        """Whether values are lists of any length."""
        return None in self.shape


def is_index(name: str) -> bool:
    """Whether a column holds the numbers of the rows that a DataFrame had without a name, which are no data."""
    return _INDEX.fullmatch(name) is not None


def rows_of(columns: Columns) -> int:
    """The number of rows of columns."""
    return len(next(iter(columns.values())))


def records_of(columns: Columns) -> Iterator[dict[str, Any]]:
    """The rows of columns as records: dictionaries by the column's name."""
    names = list(columns)
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(names, values, strict=True))


def columns_of_records(records: Sequence[Mapping[str, Any]], specs: Mapping[str, ColumnSpec]) -> Columns:
    """Columns of some records; those of text, bytes and lists of any length are arrays of objects."""
    return {name: _column([one[name] for one in records], spec) for name, spec in specs.items()}


def _column(values: list[Any], spec: ColumnSpec) -> npt.NDArray[Any]:
    if not spec.ragged and spec.dtype not in ("str", "bytes"):
        return np.asarray(values, spec.dtype).reshape(len(values), *(size or 0 for size in spec.shape))
    return objects(values)


def python_column(
    where: str, name: str, values: list[Any], spec: ColumnSpec, nulls: Any, first: int, kinds: Any = object
) -> npt.NDArray[Any]:
    """A column of a database from the values that its library gives.

    Args:
        where: the source, in words, for errors.
        name: of the column.
        values: one a row; those that are missing are None, and are filled in place.
        spec: the form that they are to have.
        nulls: what missing values become: ``fail``, ``default``, or the value itself.
        first: the number of the first row in the source.
        kinds: the types that a value may have.

    Raises:
        DataError: a value is missing and may not be, or is of another type.
    """
    for at, value in enumerate(values):
        if value is None:
            if nulls == "fail":
                raise DataError(
                    f"{where} {first + at}: column {name!r} has no value (NULL)",
                    fix=f'say what nulls become: nulls={{"{name}": 0}}, or nulls=default for 0, "", NaN, empty lists',
                )
            values[at] = value = nulls if nulls != "default" else [] if spec.shape else _default(spec.dtype)
        if not isinstance(value, kinds) or (
            spec.shape and any(one is None or isinstance(one, list) for one in value)
        ):
            raise DataError(
                f"{where} {first + at}: column {name!r} holds {value!r}, and is declared as {spec.dtype}",
                fix="mend the value, or leave the column out with the reader parameter columns",
            )
    if spec.dtype in ("str", "bytes"):
        return objects(values)
    try:
        return objects([np.array(one, spec.dtype) for one in values]) if spec.shape else np.array(values, spec.dtype)
    except OverflowError as error:  # the value that missing ones become
        raise DataError(f"{where} {first}: column {name!r} is {spec.dtype}: {error}", fix="mend nulls=") from None


def objects(values: Sequence[Any]) -> npt.NDArray[Any]:
    """An array of objects: of bytes numpy would drop zeros at the end, and of lists make a matrix."""
    found = np.empty(len(values), object)
    found[:] = values
    return found


def flat_fields(schema: Any, where: str) -> dict[str, tuple[str, ...]]:
    """The columns of an Arrow schema, those of structs as ``outer.inner``: name -> the path to it.

    Raises:
        DataError: two have one name; names ``where`` they are.
    """
    import pyarrow as pa

    found: dict[str, tuple[str, ...]] = {}

    def add(fields: Any, path: tuple[str, ...]) -> None:
        for field in fields:
            here = (*path, field.name)
            if pa.types.is_struct(field.type):
                add(field.type, here)
                continue
            name = ".".join(here)
            if name in found:
                raise DataError(f"{where}: two columns are called {name!r}", fix="give them names of their own")
            found[name] = here

    add(schema, ())
    return found


def type_at(schema: Any, path: Sequence[str]) -> Any:
    """The Arrow type of the column at a path."""
    found = schema.field(path[0]).type
    for name in path[1:]:
        found = found.field(name).type
    return found


def spec_of(name: str, kind: Any, where: str) -> ColumnSpec:
    """The form of the values of an Arrow column.

    Raises:
        DataError: it has a type that is no tensor; names ``where`` it is.
    """
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return spec_of(name, kind.value_type, where)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return ColumnSpec("str")
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return ColumnSpec("bytes")
    if types.is_decimal(kind):
        return ColumnSpec("float64")
    if types.is_temporal(kind) and not types.is_interval(kind):
        return ColumnSpec("int64")
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return ColumnSpec(np.dtype(kind.to_pandas_dtype()).name)
    if types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
        inner = spec_of(name, kind.value_type, where)
        size = kind.list_size if types.is_fixed_size_list(kind) else None
        if not inner.ragged and inner.dtype != "bytes":
            return ColumnSpec(inner.dtype, (size, *inner.shape))
    raise DataError(
        f"{where}: column {name!r} is {kind}, which is no tensor",
        fix="name the columns to read with the reader parameter columns, or write numbers, text or lists of them",
    )


def time_words(kind: Any) -> str:
    """Words for the unit of an Arrow type of moments or durations; empty for other types."""
    import pyarrow as pa

    while hasattr(kind, "value_type"):
        kind = kind.value_type
    if pa.types.is_timestamp(kind):
        return f"timestamp in {kind.unit}, {'UTC' if kind.tz else 'no zone'}"
    return str(kind) if pa.types.is_temporal(kind) else ""


def pick(table: Any, path: Sequence[str]) -> Any:
    """A column of an Arrow table; a row of a struct that is null has null in all its columns."""
    import pyarrow.compute as pc

    found = table.column(path[0])
    for name in path[1:]:
        found = pc.struct_field(found, name)
    return found


def to_numpy(name: str, column: Any, spec: ColumnSpec, nulls: Any, where: str, first: int) -> npt.NDArray[Any]:
    """The values of an Arrow column.

    Args:
        name: of the column.
        column: a chunked array.
        spec: the form that its values are to have.
        nulls: what missing values become: ``fail``, ``default``, or the value itself.
        where: the source, in words, for errors.
        first: the number of the first row in it.

    Raises:
        DataError: a value is missing and may not be, or does not fit.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        if nulls == "fail":
            raise DataError(
                f"{where}: row {first + row}: column {name!r} has no value (null)",
                fix=f'say what nulls become: nulls={{"{name}": 0}}, or nulls=default for 0, "", NaN and empty lists',
            )
        if spec.shape:
            column = _fill_lists(name, column, spec, nulls, where, first + row)
        else:
            value = _fill_value(name, spec, nulls)
            column = _cast(name, column, spec, where, first).fill_null(value)
    if spec.shape:
        return _lists(name, column, spec, where, first)
    column = _cast(name, column, spec, where, first)
    values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values if spec.dtype in ("str", "bytes") else values.astype(spec.dtype, copy=False)


def _fill_value(name: str, spec: ColumnSpec, nulls: Any) -> Any:
    if nulls != "default":
        return nulls
    return _default(spec.dtype)


def _default(dtype: str) -> Any:
    """The value that stands for a missing one under ``nulls=default``."""
    if dtype in ("str", "bytes"):
        return "" if dtype == "str" else b""
    return _DEFAULTS[np.dtype(dtype).kind]


def _cast(name: str, column: Any, spec: ColumnSpec, where: str, first: int) -> Any:
    """A column of the very type that its form says; exact, or an error."""
    import pyarrow as pa

    wanted = {"str": pa.string(), "bytes": pa.binary()}.get(spec.dtype) or pa.from_numpy_dtype(np.dtype(spec.dtype))
    if pa.types.is_temporal(column.type):
        if pa.types.is_date32(column.type) or pa.types.is_time32(column.type):
            column = column.cast(pa.int32())
        return column.cast(pa.int64())
    if column.type == wanted or (pa.types.is_large_string(column.type) and spec.dtype == "str"):
        return column
    if pa.types.is_decimal(column.type):
        _require_floats(name, column, where, first)
        return column.cast(wanted, safe=False)
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{where}: column {name!r} is {column.type} here and {spec.dtype} in the first file: {error}",
            fix="write all files with the same types",
        ) from error


def _require_floats(name: str, column: Any, where: str, first: int) -> None:
    """Refuses whole numbers, stored as decimals, that become others as float64: two ids would be one."""
    import pyarrow.compute as pc

    if column.type.scale > 0 or column.type.precision <= _EXACT_DIGITS:
        return
    bounds = pc.min_max(column).as_py()
    if max(abs(one or 0) for one in bounds.values()) <= 10**_EXACT_DIGITS:
        return
    for at, value in enumerate(column.to_pylist()):
        if value is not None and int(float(value)) != value:
            raise DataError(
                f"{where}: row {first + at}: column {name!r} holds {value}, a whole number that float64 "
                "does not have",
                fix="store it as a whole number of 64 bits, or as text",
            )


def _fill_lists(name: str, column: Any, spec: ColumnSpec, nulls: Any, where: str, row: int) -> Any:
    import pyarrow as pa

    if nulls != "default" or not spec.ragged:
        raise DataError(
            f"{where}: row {row}: column {name!r} has no list (null)",
            fix="nulls=default makes empty lists of it where lists have any length; of others write values",
        )
    return pa.chunked_array([pa.array([[] if one is None else one for one in column.to_pylist()], column.type)])


def _lists(name: str, column: Any, spec: ColumnSpec, where: str, first: int) -> npt.NDArray[Any]:
    """Lists: a matrix where all have one length, else an array of arrays."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    inner = pa.chunked_array([column.flatten()])
    if inner.null_count:
        raise DataError(
            f"{where}: rows {first} to {first + len(column)}: a list in column {name!r} has an element without value",
            fix="write lists without nulls",
        )
    flat = to_numpy(name, inner, ColumnSpec(spec.dtype, spec.shape[1:]), "fail", where, first)
    if not spec.ragged:
        return flat.reshape(len(column), *(size or 0 for size in spec.shape))
    ends = np.cumsum(pc.list_value_length(column).to_numpy(zero_copy_only=False))
    return objects(np.split(flat, ends[:-1])) if len(column) else objects([])


def nulls_policy(value: Any, specs: Mapping[str, ColumnSpec]) -> dict[str, Any]:
    """The treatment of missing values of each column, from the reader parameter ``nulls``.

    Raises:
        ReaderParamsError: it says something else, names a column that is not there, or a value that cannot be in it.
    """
    if isinstance(value, Mapping):
        for name, one in value.items():
            if name not in specs:
                raise ReaderParamsError(
                    f"nulls: there is no column {name!r}", fix=f"the columns are {', '.join(specs)}"
                )
            if one not in NULLS and not specs[name].shape and not _fits(one, specs[name].dtype):
                raise ReaderParamsError(
                    f"nulls: column {name!r} is {specs[name].dtype}, and {one!r} is not",
                    fix="give a value of that type, fail, or default",
                )
        return {name: value.get(name, "fail") for name in specs}
    if value not in NULLS:
        raise ReaderParamsError(
            f"reader parameter nulls={value!r}", fix='use fail, default, or a value for each column: {"age": 0}'
        )
    return dict.fromkeys(specs, value)


def _fits(value: Any, dtype: str) -> bool:
    """Whether a value of a parameter can be one of a column."""
    if dtype in ("str", "bytes", "bool"):
        return isinstance(value, {"str": str, "bytes": bytes, "bool": bool}[dtype])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if np.dtype(dtype).kind == "f":
        return True
    bounds = np.iinfo(dtype)
    return isinstance(value, int) and bounds.min <= value <= bounds.max


def chosen_columns(
    where: str,
    names: Sequence[str],
    wanted: Sequence[str] | None,
    trained: Sequence[str] | None,
    *,
    label: str | None,
    predicting: bool,
) -> list[str]:
    """The columns of a table to read, in their order.

    Args:
        where: the source, in words, for errors.
        names: all columns.
        wanted: those that the user named; by default all but the index of a DataFrame.
        trained: those that the model was trained on.
        label: the column of the label.
        predicting: that may be missing.

    Raises:
        ReaderParamsError: one is not there.
    """
    chosen = list(wanted or trained or [name for name in names if not is_index(name)])
    lacking = [name for name in chosen if name not in names]
    if predicting and (label in lacking or (label is None and not wanted and len(lacking) == 1)):
        missing = label or lacking[0]
        lacking.remove(missing)
        chosen.remove(missing)
    if lacking:
        raise ReaderParamsError(
            f"{where}: there is no column {lacking[0]!r}", fix=f"the columns are {', '.join(names)}"
        )
    if label is not None and label not in chosen and not predicting:
        raise ReaderParamsError(
            f"{where}: the label {label!r} is not among the columns", fix=f"use one of {', '.join(chosen)}"
        )
    if not chosen:
        raise DataError(f"{where}: there are no columns", fix="check how the data was written")
    return chosen


def type_words(specs: Mapping[str, ColumnSpec]) -> dict[str, str]:
    """The types of columns as metadata says them: ``string``, ``int64``, ``float32[3]``, ``int64[]``."""
    return {
        name: ("string" if spec.dtype == "str" else spec.dtype)
        + "".join(f"[{'' if size is None else size}]" for size in spec.shape)
        for name, spec in specs.items()
    }


def weigh(columns: Columns) -> int:
    """About how many bytes of memory columns take."""
    total = 0
    for values in columns.values():
        total += values.nbytes
        if values.dtype == object and len(values):
            some = values[:: max(1, len(values) // 32)]
            total += sum(getattr(one, "nbytes", len(one)) + 64 for one in some) * len(values) // len(some)
    return total
