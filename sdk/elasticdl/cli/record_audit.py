"""``elasticdl audit JOB``: whether every record of a job was processed, and by whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticdl.cli.connection import connect
from elasticdl.cli.formats import OutputFormat, print_data
from elasticdl.cli.job_names import find_job
from elasticdl.cli.output import EXIT_FAILED, EXIT_OK, print_table, skipped_words, write_line
from elasticdl.cli.plain_text import neutralise

_COUNTS = ("planned", "committed", "leased", "todo", "skipped")
_VERDICTS = {
    "held": "every record that is marked as done was processed",
    "broken": "not everything that is marked as done was processed",
    "running": "the job is not over; nothing is wrong so far",
}


def audit_job(job: str, chosen: OutputFormat) -> int:
    """Prints the audit of a job's records; returns the exit code."""
    with connect() as client:
        found = client.audit_records(find_job(client, job).id)
    if chosen.of_data:
        print_data(found, chosen)
    else:
        _show(found)
    return EXIT_FAILED if found["verdict"] == "broken" else EXIT_OK


def _show(found: Mapping[str, Any]) -> None:
    write_line(f"{found['verdict']}: {_VERDICTS[found['verdict']]}")
    for finding in found["findings"]:
        write_line(f"  {neutralise(finding)}")
    rows = [(str(one["epoch"]), *(f"{one[name]:,}" for name in _COUNTS)) for one in found["epochs"]]
    rows.append(("all", *(f"{found['total'][name]:,}" for name in _COUNTS)))
    print_table(("epoch", *_COUNTS), rows, empty="")
    workers = [
        (neutralise(one["owner"]), f"{one['records']:,}", f"{one['tasks']:,}", _versions(one))
        for one in found["workers"]
    ]
    print_table(("worker", "records", "tasks", "model versions"), workers, empty="no worker wrote what it did")
    write_line(f"{found['redone']:,} records processed again, {found['duplicates']:,} in the model too often")
    for entry in found["skipped"]:
        write_line(neutralise(skipped_words(entry)))


def _versions(worker: Mapping[str, Any]) -> str:
    if worker["first_version"] is None:
        return "-"
    return f"{worker['first_version']:,} to {worker['last_version']:,}"
