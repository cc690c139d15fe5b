"""One CSV file of all predictions, in the order of the records, made of the files of a job's tasks."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterable
from pathlib import Path

from elasticdl_core.errors import DataError, InvalidInputError
from elasticdl_runtime import durable

ENDING = ".csv"


def target_of(output: str, *, detached: bool) -> Path | None:
    """The file that ``--output`` of ``predict`` names; None where it names a folder.

    Args:
        output: as it was given, absolute.
        detached: whether the command does not wait for the job.

    Raises:
        InvalidInputError: there is a folder of that name, or nobody would be there to make the file.
    """
    if not output.lower().endswith(ENDING):
        return None
    path = Path(output)
    if path.is_dir():
        raise InvalidInputError(
            f"{path} is a folder, and a file of predictions was asked for", fix="give another name"
        )
    if detached:
        raise InvalidInputError(
            f"{path.name} is made of the job's predictions when it has ended, which --detach does not wait for",
            fix="leave --detach out, or give a folder and --output_format csv",
        )
    return path


def join_predictions(parts: Iterable[Path], target: Path) -> int:
    """Joins the files of tasks into one, which is there as a whole or not at all.

    Args:
        parts: CSV files of predictions with the columns ``file`` and ``row``, whose names end with the records.
        target: the file.

    Returns:
        The number of parts.

    Raises:
        DataError: they have different columns.
    """
    ordered = sorted((one for one in parts if one.suffix == ENDING), key=_place)
    durable.make_folder(target.parent)
    header: bytes | None = None
    with durable.writing(target) as joined:
        for part in ordered:
            with part.open("rb") as file:
                own = file.readline()
                if header is None:
                    header = own
                    joined.write(own)
                elif own != header:
                    raise DataError(
                        f"{part.name} has the columns {own.decode().strip()}, others {header.decode().strip()}",
                        fix="let the model give the same outputs for all records",
                    )
                shutil.copyfileobj(file, joined)
    return len(ordered)


def _place(part: Path) -> tuple[str, str]:
    """The source file of a part, and the range of its records, which has as many digits everywhere."""
    with part.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = csv.reader(file)
        next(rows, None)
        first = next(rows, None)
    return first[0] if first else "", part.stem[-25:]
