"""Writes docs/honoured.md from the table of the core; with --check it only tells whether the file is up to date."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from elasticdl_core.contract import TABLE, Row, Subject

TARGET = Path(__file__).resolve().parents[1] / "docs" / "honoured.md"
INTRODUCTION = """# What of a module is honoured, translated, refused

This page is made by `tools/gen_contract_docs.py` from the table that the checks use (`elasticdl_core.contract`);
change the table, not the page.

Whatever a module brings is **honoured** (it does what it does in Keras), **translated** (something of ours does the
same, or what the table says) or **refused** by name before the job trains. Nothing is ignored. `--local` and a
cluster refuse the same, with the same words; what can be seen in the source is refused when the job is submitted.
"""


def render() -> str:
    """The page."""
    parts = [INTRODUCTION]
    for subject in Subject:
        parts.append(f"\n## {subject}\n\n| | | |\n|---|---|---|")
        parts.extend(_line(row) for row in TABLE if row.subject is subject)
    return "\n".join(parts) + "\n"


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
