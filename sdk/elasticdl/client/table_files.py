"""Tables of Python's memory as files that jobs read: told apart from paths, named by their content, written once."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elasticdl_core.errors import DataError, InvalidInputError
from elasticdl_core.path_policy import DATA_FIELDS
from elasticdl_runtime import durable

_PLAIN = re.compile(r"[\w./-]+")
BELOW_A_ROOT = "_tables"
"""A name that readers pass over in folders: a root that a job reads whole does not hold the tables of others."""


def tables_of(spec: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of data that are no names but tables: DataFrames, Arrow tables, dictionaries of columns."""
    given = {**(spec if isinstance(spec, Mapping) else {}), **fields}
    return {name: given[name] for name in DATA_FIELDS if _is_table(given.get(name))}


def _is_table(value: Any) -> bool:
    marks = ("__arrow_c_stream__", "__arrow_c_array__", "__dataframe__")
    return isinstance(value, Mapping) or any(hasattr(value, mark) for mark in marks)


def stand_ins(tables: Mapping[str, Any]) -> dict[str, str]:
    """Names with which a specification can be checked before anything is written."""
    return dict.fromkeys(tables, "/table.parquet")


def given_folder(folder: str | os.PathLike[str], tables: Mapping[str, Any]) -> Path:
    """The folder that a user chose for tables.

    Raises:
        InvalidInputError: there are no tables, or it is no folder of this machine.
    """
    if not tables:
        raise InvalidInputError(
            f"data_folder {os.fspath(folder)} is where tables are written, and no data is a table",
            fix="leave data_folder out, or give a DataFrame or an Arrow table as training_data",
        )
    path = Path(os.path.abspath(Path(folder).expanduser()))  # noqa: PTH100 (without `..`, links as they are named)
    if not path.is_dir():
        raise InvalidInputError(
            f"data_folder: there is no folder {os.fspath(folder)} on this machine",
            fix="make it, or mount it, where this machine and those of the cluster see it under one path",
        )
    return path


def refuse_elsewhere(tables: Mapping[str, Any], url: str) -> None:
    """Refuses to guess a folder that another machine's cluster would see.

    Raises:
        InvalidInputError: always.
    """
    raise InvalidInputError(
        f"{_told(tables)} would be a file of this machine, which the cluster at {url} may not see",
        fix="give data_folder=, a folder that this machine and those of the cluster have under one path, or write it "
        "where they read it with elasticdl.data.write and give that name",
    )


def cache_folder() -> Path:
    """The folder of tables for a cluster of this machine that reads anything.

    Raises:
        InvalidInputError: this user has no home.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 (may lack a home)
    if not Path(base).is_absolute():
        raise InvalidInputError("there is no home directory for tables", fix="set HOME, or give data_folder=")
    return Path(base) / "elasticdl" / "tables"


def folder_below(tables: Mapping[str, Any], namespace: str, roots: list[str]) -> Path:
    """The folder of tables below the data roots of a namespace.

    Raises:
        InvalidInputError: none of them is a folder that this user may write to.
    """
    for root in roots:
        if root.startswith("/") and Path(root).is_dir() and os.access(root, os.W_OK | os.X_OK):
            return Path(root) / BELOW_A_ROOT
    known = ", ".join(roots) or "none"
    raise InvalidInputError(
        f"{_told(tables)} can be written to no data root of the namespace {namespace!r} (it has {known}), and "
        "its jobs read nothing else",
        fix=f"ask for a root that is a folder and yours to write (`elasticdl namespaces set {namespace} "
        "--data-root DIR`), or give data_folder= below a data root of the cluster",
    )


def _told(tables: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} (a {type(table).__name__})" for name, table in tables.items())


def write_tables(tables: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Writes tables as Parquet, each under the name of its content, and not again if it is there.

    Args:
        tables: by the field that they are the data of.
        folder: where; made if it is not there.

    Returns:
        The name of each field's data.

    Raises:
        DataError: one is no table that Parquet can hold, or cannot be written; names its field.
        InvalidInputError: pyarrow is not installed.
    """
    from elasticdl.extras import require

    require(_told(tables), "parquet")
    names = {}
    for name, table in tables.items():
        try:
            names[name] = _place(_write_once(table, folder))
        except DataError as error:
            raise DataError(f"{name}: {error.message}", fix=error.fix) from error
    return names


def _write_once(data: Any, folder: Path) -> Path:
    from elasticdl.data.tables import arrow_of, write

    table = arrow_of(data)
    path = folder / f"table-{_digest(table)}.parquet"
    if path.exists():
        return path
    try:
        durable.make_folder(folder)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as temporary:
            written = Path(temporary) / path.name
            write(table, written)
            durable.place_new(written, path)  # a job that reads the file already would see it change
    except FileExistsError:  # somebody wrote the same meanwhile
        pass
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written: {error.strerror or error}",
            fix="check the folder, its rights and its space, or give data_folder=",
        ) from error
    return path


def _digest(table: Any) -> str:
    """The SHA-256 of a table's types and rows, however they lie in memory."""
    import pyarrow as pa

    from elasticdl.data.table_writer import ROW_GROUP

    digest = hashlib.sha256()

    class Sink:
        closed = False

        def write(self, piece: Any) -> int:
            digest.update(piece)
            return len(piece)

        def flush(self) -> None: ...

        def close(self) -> None: ...

    with pa.ipc.new_stream(pa.PythonFile(Sink(), mode="w"), table.schema) as stream:
        stream.write_table(table.combine_chunks(), max_chunksize=ROW_GROUP)
    return digest.hexdigest()[:32]


def _place(path: Path) -> str:
    """A path as data are named; letters that mean something there (commas, wildcards) are written as in a URL."""
    text = str(path)
    return text if _PLAIN.fullmatch(text) else path.as_uri()
