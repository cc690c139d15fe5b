"""Cell magic of notebooks: what it runs, returns and refuses."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from elasticdl.magic import Results

LOCAL = "--local --source sqlite:///shop.db"
TRAIN = "SELECT * FROM people TO TRAIN LinearClassifier LABEL high INTO tall"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InteractiveShell:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute("CREATE TABLE people (age REAL, high TEXT)")
        connection.executemany("INSERT INTO people VALUES (?, ?)", [(at, "ny"[at % 40 > 20]) for at in range(120)])
    made = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    assert made.run_cell("%load_ext elasticdl").success
    return made  # ends by itself, with the process


def run(shell: InteractiveShell, options: str, statements: str) -> Any:
    return shell.run_cell(f"%%elasticdl {options}\n{statements}")


WRONG = [
    # options, statements, what is said
    (LOCAL, TRAIN.replace("LinearC", "LinaerC"), "line 2, column 31: there is no model LinaerClassifier; did you mean LinearClassifier?"),
    (LOCAL, f"SHOW TRAIN a;\n\n  SHOW TRAIN b; {TRAIN} {TRAIN[22:]}", "line 4, column 85: 'O' is no clause of TO TRAIN; write one of"),
    (LOCAL, "SHOW TRAIN a;\n-- what follows\nSELCT 1", "line 4, column 1: a statement begins with SELECT, not 'SELCT'; did you mean SELECT?"),
    (LOCAL, "-- nothing", "there is no statement; write SELECT"),
    ("--local", TRAIN, "there is no --source; say where the rows are"),
    ("--local --source sqlite:///other.db", TRAIN, "other.db; check the path behind sqlite:///"),
    (LOCAL, TRAIN.replace("people", "strangers"), "no such table: strangers; correct the SELECT"),
    (LOCAL, TRAIN.replace("LABEL", "WITH num_workers='x' LABEL"), "max_workers: 'x' is not a whole number; give"),
    (LOCAL, "SHOW TRAIN tall", "there is no model tall in"),
    (f"{LOCAL} --dry-run --save kept", TRAIN, "--dry-run writes nothing, and --save does; leave one of them out"),
    (f"{LOCAL} --save kept", "SHOW TRAIN tall", "--save keeps models to train"),
    (f"{LOCAL} --file shop.sql", TRAIN, "unrecognized arguments: --file shop.sql"),
    (f"{LOCAL} --save shop.db", TRAIN, "shop.db"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "statements", "said"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_told_in_one_line_and_ends_the_cell(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], options: str, statements: str, said: str
) -> None:
    ended = run(shell, options, statements)
    printed = capsys.readouterr()
    assert not ended.success
    assert said in printed.err
    assert printed.err.startswith("UsageError: ") and printed.err.count("\n") == 1 and not printed.out


def test_a_dry_run_shows_job_and_module_and_what_is_saved_is_shown_again(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.user_ns["url"] = "sqlite:///shop.db"
    assert run(shell, "--dry-run --source $url", f"{TRAIN};").result is None
    shown = capsys.readouterr().out
    spec, length = json.JSONDecoder().raw_decode(shown)
    assert spec["name"] == "tall" and "def forward():" in shown[length:] and not Path("models").exists()
    assert run(shell, f"{LOCAL} --save models", f"\n{TRAIN};").success
    assert run(shell, "", "SHOW TRAIN tall").success
    assert f"\n{TRAIN}\n" in capsys.readouterr().out


def test_results_are_rows_and_shown_as_a_table(shell: InteractiveShell) -> None:
    found = Results([{"metric": "accuracy", "column": "<b>\x1b[2J", "value": 0.123456}])
    shown, _ = shell.display_formatter.format(found)
    assert "0.1235" in shown["text/plain"] and "\x1b[2J" not in shown["text/plain"]
    assert "&lt;b&gt;" in shown["text/html"]


@pytest.mark.slow
def test_a_cell_trains_evaluates_and_explains(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(
        shell,
        LOCAL,
        f"{TRAIN.replace('LABEL', 'WITH epoch=2 LABEL')};\nSELECT * FROM people TO EVALUATE tall LABEL high;\n"
        "SELECT * FROM people TO EXPLAIN tall;",
    )
    printed = capsys.readouterr()
    assert ended.success, printed.err
    assert {row["column"] for row in ended.result} == {"age"}
    evaluated = run(shell, LOCAL, "SELECT * FROM people TO EVALUATE tall LABEL high")
    accuracy = {row["metric"]: row["value"] for row in evaluated.result}["accuracy"]
    assert accuracy == {row["metric"]: row["value"] for row in ended.result}["accuracy"]
    assert f"accuracy {accuracy:.4g}" in " ".join(printed.out.split())  # of the evaluation, displayed before the last
    failed = run(shell, LOCAL, "SELECT age, 'z' AS high FROM people TO EVALUATE tall LABEL high")
    assert not failed.success and "was not trained on" in capsys.readouterr().err
