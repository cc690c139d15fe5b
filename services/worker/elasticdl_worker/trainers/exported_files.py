"""Parts common to exports of all frameworks: names of formats, tables beside the model, the note on both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from elasticdl_core.model import TableSpec
from elasticdl_runtime.initializers import CONSTANT, NORMAL, TRUNCATED_NORMAL, make_initializer
from elasticdl_worker.parameters import Rows

README = "README.json"
_RULES = {CONSTANT: "constant", NORMAL: "normal", TRUNCATED_NORMAL: "truncated_normal"}


class TableNote(TypedDict):
    """The note on a table.

    Attributes:
        file: of its ids and vectors.
        ids: how many there are.
        dim: length of each vector.
        other_ids: the rule by which vectors of other ids begin, in words and numbers.
    """

    file: str
    ids: int
    dim: int
    other_ids: dict[str, str | float]


def wanted_formats(formats: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The formats by name; ``auto`` is all that are known."""
    return tuple(dict.fromkeys(one for name in formats for one in (known if name == "auto" else (name,))))


def write_tables(
    folder: Path, open_tables: Mapping[str, Rows], specs: Mapping[str, TableSpec]
) -> dict[str, TableNote]:
    """Writes tables whose ids have no bound, each as ``table-N.npz`` with ``ids`` and ``vectors``.

    Args:
        folder: where to.
        open_tables: ids and rows by table.
        specs: these tables.
    """
    notes: dict[str, TableNote] = {}
    for number, (name, (ids, rows)) in enumerate(sorted(open_tables.items())):
        file = f"table-{number}.npz"
        np.savez(folder / file, ids=ids, vectors=rows)
        made = make_initializer(specs[name])
        rule: dict[str, str | float] = {
            "kind": _RULES.get(made.kind, "uniform"),
            "a": made.a,
            "b": made.b,
            "seed": made.seed,
        }
        notes[name] = {"file": file, "ids": len(ids), "dim": int(rows.shape[1]), "other_ids": rule}
    return notes


def write_note(
    folder: Path, versions: Mapping[str, str], written: Mapping[str, str], tables: Mapping[str, TableNote]
) -> None:
    """Writes what an export has: ``README.json``.

    Args:
        folder: where to.
        versions: of what made it, by package.
        written: for each format, its file and how to load it, or why it was left out.
        tables: beside it.
    """
    note = {**versions, "formats": written, "tables": tables}
    (folder / README).write_text(json.dumps(note, indent=2, sort_keys=True) + "\n")
