"""The rows of a SELECT: checked, read only where the data are, and kept as files whose names say what is in them."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elasticdl.sql.databases import dialect_of, open_selection, plain_value
from elasticdl.sql.lexing import refusal
from elasticdl_core.errors import DataError, InvalidInputError
from elasticdl_runtime import durable

_MOST_VALUES = 10_000


@dataclass
class Column:
    """Facts about a column of a snapshot.

    Attributes:
        name: its name.
        numeric: whether all values are numbers.
        nulls: how many values are missing.
        count: how many there are.
        total: the sum of numbers.
        squares: the sum of their squares.
        values: distinct values by their text in the file, no more than 10,001.
    """

    name: str
    numeric: bool = True
    nulls: int = 0
    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    values: dict[str, Any] = field(default_factory=dict)

    def add(self, value: Any) -> None:
        """Counts a value."""
        if value is None:
            self.nulls += 1
            return
        self.count += 1
        if len(self.values) <= _MOST_VALUES:
            self.values.setdefault(str(value), value)
        if isinstance(value, int | float) and math.isfinite(value):
            self.total += value
            self.squares += float(value) ** 2
        else:
            self.numeric = False

    @property
    def mean(self) -> float:
        """The mean of the numbers."""
        return self.total / max(1, self.count)

    @property
    def deviation(self) -> float:
        """The standard deviation of the numbers; 1 if they are all alike."""
        variance = self.squares / max(1, self.count) - self.mean**2
        return math.sqrt(variance) if variance > 1e-12 * max(1.0, self.mean**2) else 1.0

    @property
    def vocabulary(self) -> list[str]:
        """The distinct values as text, in order."""
        return sorted(self.values)

    @property
    def known_whole(self) -> bool:
        """Whether all distinct values are in ``values``."""
        return len(self.values) <= _MOST_VALUES


@dataclass(frozen=True)
class SelectedRows:
    """The rows of a SELECT.

    Attributes:
        path: the CSV file, without a header; its name is the digest of its bytes.
        columns: by name, in the order of the file.
        rows: how many.
    """

    path: Path
    columns: dict[str, Column]
    rows: int


def check_select(select: str, dialect: str = "sqlite") -> None:
    """Checks that a SELECT is one statement that reads.

    Args:
        select: the SELECT.
        dialect: whose SQL it is, by sqlglot's name.

    Raises:
        InvalidInputError: it does not parse, or it would write.
    """
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        parsed = [one for one in sqlglot.parse(select, read=dialect) if one is not None]
    except SqlglotError as error:
        told = (getattr(error, "errors", None) or [{}])[0]
        what = f"the SELECT does not parse: {told.get('description') or str(error)}"
        before = sum(map(len, select.splitlines(keepends=True)[: told.get("line", 1) - 1]))
        end = before + told.get("col", 0)  # of what is wrong
        raise refusal(select, max(0, end - len(told.get("highlight") or "")), what, "correct the SELECT") from None
    if len(parsed) != 1:
        raise InvalidInputError(f"there are {len(parsed)} statements where one SELECT is meant", fix="give one")
    writes = (exp.Insert, exp.Update, exp.Delete, exp.Create, exp.Drop, exp.Command, exp.Into, exp.Lock)
    if not isinstance(parsed[0], exp.Query) or parsed[0].find(*writes) is not None:
        raise InvalidInputError("the SELECT would change something", fix="write a SELECT that only reads")


def take_snapshot(
    url: str, select: str, folder: Path, *, order: Sequence[str] = (), timeout_s: float = 300.0
) -> SelectedRows:
    """Writes the rows of a SELECT to a file.

    Args:
        url: ``sqlite:///FILE`` or ``postgresql://USER@HOST/DATABASE``.
        select: the SELECT.
        folder: where the file goes.
        order: the columns that are needed, in the order that they are to have; all, as they come, if empty.
        timeout_s: how long the database may take.

    Raises:
        InvalidInputError: the SELECT cannot be run, or lacks a column.
        DataError: there are no rows, or the database cannot be reached.
    """
    check_select(select, dialect_of(url))
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".partial-{os.getpid()}.csv"
    with contextlib.ExitStack() as undo:
        undo.callback(partial.unlink, missing_ok=True)
        columns, rows = _write_rows(url, select, partial, order, timeout_s)
        if not rows:
            raise DataError("the SELECT has no rows", fix="check its WHERE")
        return SelectedRows(placed_by_digest(partial), columns, rows)


def _write_rows(
    url: str, select: str, path: Path, order: Sequence[str], timeout_s: float
) -> tuple[dict[str, Column], int]:
    """Writes the rows; what is known of their columns, and how many there are."""
    with (
        open_selection(url, select, timeout_s) as (names, found),
        path.open("w", newline="", encoding="utf-8") as file,
    ):
        wanted = list(order or names)
        _check_names(names, wanted)
        places = [names.index(name) for name in wanted]
        columns = {name: Column(name) for name in wanted}
        writer, rows = csv.writer(file, lineterminator="\n"), 0
        for row in found:
            chosen = [plain_value(names[place], row[place]) for place in places]
            for column, value in zip(columns.values(), chosen, strict=True):
                column.add(value)
            writer.writerow(["" if value is None else value for value in chosen])
            rows += 1
    return columns, rows


def reorder(snapshot: SelectedRows, order: Sequence[str], folder: Path) -> SelectedRows:
    """The same rows with some of the columns, in an order, as a file of a folder."""
    places = [list(snapshot.columns).index(name) for name in order]
    partial = folder / f".partial-{os.getpid()}.csv"
    with (
        snapshot.path.open(newline="", encoding="utf-8") as old,
        partial.open("w", newline="", encoding="utf-8") as new,
    ):
        csv.writer(new, lineterminator="\n").writerows([row[place] for place in places] for row in csv.reader(old))
    return SelectedRows(placed_by_digest(partial), {name: snapshot.columns[name] for name in order}, snapshot.rows)


@contextlib.contextmanager
def rows_for_a_while(url: str, select: str, folder: Path, *, order: Sequence[str] = ()) -> Iterator[SelectedRows]:
    """The rows of a SELECT in a file that is gone afterwards; it is never one that the folder keeps for a job."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".rows-", dir=folder) as passing:
        yield take_snapshot(url, select, Path(passing), order=order)


def placed_by_digest(partial: Path) -> Path:
    """The place of a finished file of rows, whose name is the digest of its bytes."""
    with partial.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    path = partial.with_name(f"{digest[:32]}.csv")
    durable.place(partial, path)
    return path


def _check_names(names: Sequence[str], wanted: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInputError(f"the SELECT has two columns {twice[0]!r}", fix="name one of them with AS")
    lacking = [name for name in wanted if name not in names]
    if lacking:
        raise InvalidInputError(f"the SELECT lacks the columns {', '.join(lacking)}", fix="select them")
