"""The columns of CSV files: whether a first row names them, their names, and where a file has those of the job."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from elasticdl.data.errors import DataError, ReaderParamsError

NUMBER = re.compile(
    r"[ \t]*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|nan|inf|infinity)[ \t]*", re.IGNORECASE | re.ASCII
)
INTEGER = re.compile(r"[ \t]*[+-]?\d+[ \t]*", re.ASCII)
#: Words that stand where a value is missing: they say nothing of a column.
_MISSING = frozenset({"", "-", "?", ".", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "missing", "unknown"})
#: From here on a float64 need not be the whole number that its text says.
EXACT_FLOAT64 = 2.0**53

_MOST_SHOWN = 100
"""Characters of a value in an error."""
_YEARS = range(1800, 2200)

Sign = Literal["header", "record", "number", "text", ""]


@dataclass(frozen=True)
class Layout:
    """Positions of a job's columns in a file.

    Attributes:
        width: number of columns of the file.
        selected: of each column of the job the place in the file; None where they are all, in the file's order.
    """

    width: int
    selected: list[int] | None = None

    def select(self, row: list[str]) -> list[str]:
        """A row of the file as a record of the job."""
        return row if self.selected is None else [row[i] for i in self.selected]


def is_header(rows: Sequence[list[str]]) -> bool | None:
    """Whether the first row names the columns, judged by the rows below it; None where that stays open.

    A text over a column of numbers is a name. A text that its column has again below is a value, and so is a fraction
    over other fractions. A row of integers alone is a record, but not if it alone counts upwards, as years do.
    """
    first, below = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    signs = [_sign(first[at], [row[at] for row in below]) for at in range(len(first))]
    names, values = "header" in signs, "record" in signs
    if names != values:
        return names
    if names:
        return None
    if not any(NUMBER.fullmatch(field) for field in first):
        return True if any(NUMBER.fullmatch(field) for row in below for field in row) else None
    if not below:
        return False
    return None if "text" in signs or (_counts(first) and not all(map(_counts, below))) else False


def _sign(field: str, below: Sequence[str]) -> Sign:
    """Of what a first field is a sign, by the fields below it."""
    word = field.strip()
    known = [one.strip() for one in below if one.strip().lower() not in _MISSING]
    of_numbers = bool(known) and all(map(NUMBER.fullmatch, known))
    if word.lower() in _MISSING:
        return ""
    if not NUMBER.fullmatch(word):
        return "header" if of_numbers else "record" if word in known else "text"
    fractions = not INTEGER.fullmatch(word) and not all(map(INTEGER.fullmatch, known))
    return "record" if of_numbers and fractions else "number"


def _counts(row: Sequence[str]) -> bool:
    """Whether the fields of a row count upwards by one, as years and numbered columns do."""
    fields = [field.strip() for field in row if field.strip()]
    if len(fields) < 2 or not all(map(INTEGER.fullmatch, fields)):
        return False
    numbers = list(map(int, fields))
    counts = all(after == before + 1 for before, after in itertools.pairwise(numbers))
    return counts and (len(numbers) > 2 or numbers[0] in _YEARS)


def misfit(value: str, kind: str) -> str:
    """The fault of a value of a column of numbers; empty if there is none, or the column is one of texts.

    Args:
        value: the field.
        kind: the type of the column: ``int64``, ``float`` or ``string``; ``exact`` for whole numbers that shall
            become float32.
    """
    if kind == "string":
        return ""
    if not NUMBER.fullmatch(value):
        return "is no number"
    if kind == "exact":
        return "is a whole number that float32 does not have" if is_inexact(value) else ""
    if kind == "int64" and not INTEGER.fullmatch(value):
        return "is no whole number, as those of the first records are"
    return "is more than 64 bits hold" if kind == "int64" and not -(2**63) <= int(value) < 2**63 else ""


def is_inexact(value: str) -> bool:
    """Whether a whole number becomes another one as float32, so that two ids may become one."""
    number = float(value)
    return number.is_integer() and (abs(number) >= EXACT_FLOAT64 or float(np.float32(number)) != number)


def numbered(names: Sequence[str]) -> list[str]:
    """Names that differ: of several equal ones the second becomes ``name.1``, the third ``name.2``, and so on."""
    taken = set(names)
    found: list[str] = []
    seen: set[str] = set()
    for name in names:
        new, number = name, 0
        while new in seen or (number and new in taken):
            number += 1
            new = f"{name}.{number}"
        seen.add(new)
        found.append(new)
    return found


def find(path: str, header: Sequence[str], wanted: Sequence[str], *, all_of_them: bool, label: str | None) -> Layout:
    """Finds the positions of a job's columns in a file, by their names.

    Args:
        path: the file, for errors.
        header: the names of its columns, which differ.
        wanted: those of the job, in its order.
        all_of_them: the file may have no others.
        label: one that it may have nevertheless.

    Raises:
        DataError: the file lacks one, or has one that the job does not know.
    """
    missing = [name for name in wanted if name not in header]
    surplus = [name for name in header if name not in wanted and name != label] if all_of_them else []
    if missing or surplus:
        problem = [f"lacks the column{_s(missing)} {', '.join(map(repr, missing))}"] if missing else []
        problem += [f"has the column{_s(surplus)} {', '.join(map(repr, surplus))} too many"] if surplus else []
        raise DataError(
            f"{path}: {' and '.join(problem)}; its header differs from the columns of the job, {list(wanted)}",
            fix="give files with the same columns, in any order; name those to read with the reader parameter "
            "columns, or set with_header=false and column_names, if they are to be taken by their places",
        )
    selected = [header.index(name) for name in wanted]
    return Layout(len(header), None if selected == list(range(len(header))) else selected)


def _s(names: Sequence[str]) -> str:
    return "s" if len(names) > 1 else ""


def refuse_open(path: str, first: list[str]) -> ReaderParamsError:
    """The error of a file that does not tell whether its first row names the columns."""
    return ReaderParamsError(
        f"{path}: the rows below do not tell whether the first one, {shown_row(first)}, names the columns or is a "
        "record",
        fix="say so with the reader parameter with_header=true or with_header=false",
    )


def shown(value: str) -> str:
    """A value as errors quote it: of a long one the beginning."""
    return repr(value) if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]!r}..."


def shown_row(row: Sequence[str]) -> str:
    """The first fields of a row as errors quote it."""
    return f"[{', '.join(map(shown, row[:20]))}]"
