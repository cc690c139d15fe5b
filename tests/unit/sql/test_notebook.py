"""A notebook with statements, run as documents are: by nbclient, in a kernel of its own."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.fakes import public_tools

pytestmark = [pytest.mark.unit, pytest.mark.slow, pytest.mark.timeout(1200)]
CELLS = [
    "%load_ext elasticdl",
    "%%elasticdl --local --source sqlite:///shop.db\n"
    "SELECT * FROM people TO TRAIN LinearClassifier LABEL high INTO tall;",
    "%%elasticdl --local --source sqlite:///shop.db\nSELECT * FROM people TO EVALUATE tall LABEL high",
    "print([row['metric'] for row in _])",
    "%%elasticdl --local --source sqlite:///shop.db\nSELCT 1",
]
EXECUTE = """
import nbformat
from nbclient import NotebookClient
book = nbformat.read("book.ipynb", as_version=4)
NotebookClient(book, timeout=300, kernel_name="python3", allow_errors=True).execute()
nbformat.write(book, "done.ipynb")
"""


def test_cells_train_evaluate_and_say_what_is_wrong(tmp_path: Path) -> None:
    environment = public_tools.install(tmp_path / "tools", "nbclient>=0.10", "ipykernel>=6")
    environment["IPYTHONDIR"] = environment["JUPYTER_CONFIG_DIR"] = str(tmp_path / "ipython")
    environment["JUPYTER_PATH"] = str(tmp_path / "tools/share/jupyter")  # where the kernel's description lies
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE people (age REAL, high TEXT)")
        connection.executemany("INSERT INTO people VALUES (?, ?)", [(at, "ny"[at % 40 > 20]) for at in range(120)])
    cells = [
        {
            "id": f"c{at}",
            "cell_type": "code",
            "source": source,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
        for at, source in enumerate(CELLS)
    ]
    book = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "book.ipynb").write_text(json.dumps(book))
    public_tools.run(environment, tmp_path, "-c", EXECUTE)

    loaded, trained, evaluated, listed, wrong = (
        one["outputs"] for one in json.loads((tmp_path / "done.ipynb").read_text())["cells"]
    )
    assert not loaded and not [one for one in trained if one["output_type"] == "error"], trained
    (shown,) = [one for one in evaluated if one["output_type"] in ("execute_result", "display_data")]
    assert "accuracy" in "".join(shown["data"]["text/html"]) and "accuracy" in "".join(listed[0]["text"])
    said = "".join(line for one in wrong for line in one.get("text", []))
    assert "line 2, column 1: a statement begins with SELECT, not 'SELCT'" in said, wrong
