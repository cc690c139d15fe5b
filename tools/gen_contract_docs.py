"""Writes docs/honoured.md from the table of the core; with --check it only tells whether the file is up to date."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from elasticdl_core.contract import TABLE, Row, Subject, Verdict
from elasticdl_core.job.field_groups import FIELD_GROUPS
from elasticdl_core.job.ways import Way, become

TARGET = Path(__file__).resolve().parents[1] / "docs" / "honoured.md"
INTRODUCTION = """# What of a module is honoured, translated, refused

This page is made by `tools/gen_contract_docs.py` from the table that the checks use (`elasticdl_core.contract`);
change the table, not the page.

Whatever a module brings is **honoured** (it does what it does in Keras), **translated** (something of ours does the
same, or what the table says) or **refused** by name before the job trains. Nothing is ignored. `--local` and a
cluster refuse the same, with the same words; what can be seen in the source is refused when the job is submitted.
"""


OPTIONS = """
# What of a job's options is done, translated, refused

Each option in each way of running a job: **done**, **translated** (numbered: what it becomes) or **refused** by name
where it is given (numbered: why) by the command line, by Python and by the API alike, before anything runs. `xla`
stands for `--xla on`. A job that evaluates or predicts with what another one trained shares the options that describe
the model with it, and the API takes these where the command line has no flag for them: they change nothing there.
"""


def render() -> str:
    """The page."""
    return "\n".join([*_contract(), *_options()]) + "\n"


def _options() -> list[str]:
    """The table of options and ways, and its notes."""
    notes: dict[str, int] = {}
    lines = []
    for name in (name for names in FIELD_GROUPS.values() for name in names):
        cells = []
        for way in Way:
            verdict, how = become(name, way)
            number = f" {notes.setdefault(how, len(notes) + 1)}" if how else ""
            cells.append(f"{'done' if verdict is Verdict.HONOURED else verdict}{number}")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    head = f"| | {' | '.join(Way)} |\n|{'---|' * (len(Way) + 1)}"
    return [OPTIONS, head, *lines, "", *(f"{number}. {how}" for how, number in notes.items())]


def _contract() -> list[str]:
    """The parts of a module that are honoured, section by section."""
    parts = [INTRODUCTION]
    for subject in Subject:
        parts.append(f"\n## {subject}\n\n| | | |\n|---|---|---|")
        parts.extend(_line(row) for row in TABLE if row.subject is subject)
    return parts


def _line(row: Row) -> str:
    names = ", ".join(f"`{name}`" for name in row.names)
    text = f"{row.how}. Instead: {row.fix}" if row.fix else row.how
    return f"| {names} | {row.verdict} | {text} |"


def main() -> int:
    """Writes or compares the page; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    page = render()
    if not check:
        TARGET.write_text(page)
        return 0
    present = TARGET.read_text() if TARGET.is_file() else ""
    if present == page:
        return 0
    sys.stdout.writelines(difflib.unified_diff(present.splitlines(True), page.splitlines(True), "docs", "table"))
    print("docs/honoured.md is not up to date: run ./dev docs")
    return 1


if __name__ == "__main__":
    sys.exit(main())
