"""Results of statements as tables: metrics, importances of columns, the first predictions beside their rows."""

from __future__ import annotations

import asyncio
import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from elasticdl.sql.explanations import FIELDS, importances
from elasticdl_api.files import access as files
from elasticdl_api.files.artifacts import ArtifactOpener
from elasticdl_api.services import Services
from elasticdl_api.statements.trial_jobs import ROWS, trial_rows
from elasticdl_api.store.records import JobRecord
from elasticdl_api.store.searches import StoredSearch
from elasticdl_api.store.statements import StoredStatement
from elasticdl_api.web.streamed import opened_file
from elasticdl_core.json_numbers import from_json

MOST_ROWS = 100
_MOST_BYTES = 1 << 20
_FILE, _ROW = "file", "row"
_RANGE = 25
"""Characters at the end of the name of a file of predictions that say which records it has."""


async def read_result(api: Services, job: JobRecord, kept: StoredStatement) -> dict[str, Any]:
    """The result of a statement as far as it is there.

    Args:
        api: what the routes work with.
        job: its job.
        kept: the statement.

    Returns:
        ``columns``, ``rows`` and whether there are ``more`` rows than these.

    Raises:
        NotFoundError: a file is not there any more.
        ConflictError: it was changed since the job reported it.
    """
    if kept.verb == "PREDICT":
        return await _predictions(api, job, kept)
    metrics = await api.outputs.last_metrics(job.id)
    numbers = {name: from_json(metrics[name]) for name in sorted(metrics)}
    if kept.verb == "EXPLAIN":
        found = [[*one, one[3] - one[2]] for one in importances(numbers)]
        return _table([*FIELDS, "change"] if found else [], found)
    return _table(["metric", "value"] if numbers else [], [[name, value] for name, value in numbers.items()])


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, more: bool = False) -> dict[str, Any]:
    return {"columns": columns, "rows": rows[:MOST_ROWS], "more": more or len(rows) > MOST_ROWS}


def search_result(search: StoredSearch) -> dict[str, Any]:
    """The models that a search has tried, as a table."""
    return _table(*trial_rows(search))


async def _predictions(api: Services, job: JobRecord, kept: StoredStatement) -> dict[str, Any]:
    reported = await api.outputs.list_files(job.id)
    parts = sorted(
        (row for name, row in reported.items() if name.endswith(".csv")),
        key=lambda row: PurePosixPath(row["name"]).stem[-_RANGE:],
    )
    opener = await ArtifactOpener.of(api, job)
    outputs: list[dict[str, str]] = []
    for part in parts:
        if len(outputs) > MOST_ROWS:
            break
        async with opened_file(lambda part=part: opener.open(part["path"])) as descriptor:  # type: ignore[misc]
            await api.digests.require(descriptor, part["name"], part["size"], part["sha256"])
            titles, *found = await asyncio.to_thread(_first_rows, descriptor)
        outputs += [dict(zip(titles, one, strict=False)) for one in found]
    if not outputs:
        return _table([], [])
    place = PurePosixPath(str(job.spec["prediction_data"])).name
    async with opened_file(lambda: files.open_regular(api.settings.job_dir(job.id) / ROWS, place)) as descriptor:
        rows = await asyncio.to_thread(_first_rows, descriptor)
    columns = list(kept.plan["columns"])
    shown = []
    for output in outputs:
        at = output.get(_ROW, "")
        known = rows[int(at)] if at.isdecimal() and int(at) < len(rows) else [""] * len(columns)
        shown.append([_predicted(output, kept.plan["classes"]), *known])
    target = str(kept.plan["target"])
    name = target if target not in columns else f"{target} (predicted)"
    return _table([name, *columns], shown, more=len(shown) < int(kept.plan["rows"]))


def _predicted(output: Mapping[str, str], classes: Sequence[str]) -> Any:
    """The class with the largest logit, or the number; several numbers as they are."""
    values = [float(value) for name, value in output.items() if name not in (_FILE, _ROW)]
    if classes and len(values) == len(classes):
        return classes[max(range(len(values)), key=values.__getitem__)]
    return values[0] if len(values) == 1 else str(values)


def _first_rows(descriptor: int) -> list[list[str]]:
    """The first rows of a CSV file, no more than a table shows and than fit into a megabyte."""
    data = os.pread(descriptor, _MOST_BYTES, 0)
    text = data.decode("utf-8", "replace")
    found: list[list[str]] = []
    for row in csv.reader(io.StringIO(text, newline="")):
        if len(found) > MOST_ROWS + 1:
            break
        found.append(row)
    return found[:-1] if len(data) == _MOST_BYTES and len(found) <= MOST_ROWS + 1 else found
