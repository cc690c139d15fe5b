"""A file of statements from training to predictions, and again after a failure."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.conftest import PASSWORD, PostgresServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TRAIN = """SELECT age, city, hours, income FROM people
TO TRAIN WideAndDeepClassifier
WITH model.hidden_units = [16, 8], learning_rate = 0.01, train.epoch = 8
COLUMN age, INDICATOR(CROSS([city, hours], 50)),
       EMBEDDING(CONCAT(VOCABULARIZE(city), BUCKETIZE(hours, num_buckets=5)) AS g, 4) FOR deep_embeddings
COLUMN EMBEDDING(g, 1) FOR wide_embeddings
LABEL income INTO rich;
SELECT * FROM people TO EVALUATE rich LABEL income;
"""
DOCUMENT = Path(__file__).parents[2] / "docs" / "sql.md"
PREDICT = "SELECT age, city, hours FROM people LIMIT 7 TO PREDICT people.rich USING rich;\nSHOW TRAIN rich;"


def run(folder: Path, text: str, source: str = "sqlite:///shop.db") -> subprocess.CompletedProcess[str]:
    (folder / "shop.sql").write_text(text)
    command = [
        sys.executable,
        "-m",
        "elasticdl",
        "sql",
        "--local",
        "--source",
        source,
        "--file",
        "shop.sql",
    ]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=400, check=False, env=environment
    )


def people() -> Iterator[tuple[int, str, int, str]]:
    for at in range(600):
        age, city, hours = 18 + at * 7 % 53, ["oslo", "rome", "lima"][at * 5 % 3], 10 + at * 11 % 47
        yield age, city, hours, "high" if (age > 40) + (city == "oslo") + (hours > 35) >= 2 else "low"


def test_a_file_of_statements_trains_evaluates_and_predicts_and_goes_on_after_a_failure(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE people (age REAL, city TEXT, hours INTEGER, income TEXT)")
        connection.executemany("INSERT INTO people VALUES (?, ?, ?, ?)", people())
    failed = run(tmp_path, f"{TRAIN}SELECT hours FROM people TO PREDICT people.rich USING rich;")
    assert failed.returncode == 2, failed.stderr
    assert "lacks the columns" in failed.stderr
    assert "no input" not in failed.stdout + failed.stderr
    accuracy = float(failed.stdout.rpartition("accuracy ")[2].split()[0])
    assert accuracy > 0.8, failed.stdout
    done = run(tmp_path, TRAIN + PREDICT)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("done before: SELECT") == 2
    files = list((tmp_path / "models" / "rich" / "predictions" / "people.rich").glob("*/*.csv"))
    assert sum(len(file.read_text().splitlines()) for file in files) >= 7
    assert '"model_def": "model.forward"' in done.stdout


def test_the_documented_statements_run_on_a_postgres(
    tmp_path: Path, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    postgres_server.sql("CREATE DATABASE shop")
    postgres_server.sql(
        "CREATE TABLE people (age int, city text, hours numeric(9, 1), income text);"
        f"INSERT INTO people VALUES {', '.join(map(str, people()))};"
        "CREATE TABLE visitors AS SELECT age, city, hours FROM people LIMIT 5",
        "shop",
    )
    statements = DOCUMENT.read_text().partition("```sql\n")[2].partition("```")[0]
    done = run(tmp_path, statements, f"postgresql://elasticdl@/shop?host={postgres_server.folder}")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.rpartition("accuracy ")[2].split()[0]) > 0.8, done.stdout
    files = list((tmp_path / "models" / "rich" / "predictions" / "visitors.rich").glob("*/*.csv"))
    assert sum(len(file.read_text().splitlines()) for file in files) >= 5
