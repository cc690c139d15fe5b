"""A file of statements from training to predictions, and again after a failure."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.local_cluster import Cluster
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
    assert float(done.stdout.partition("done: ")[2].partition("accuracy ")[2].split()[0].strip(",")) > 0.8, (
        done.stdout
    )
    with (tmp_path / "models" / "rich" / "explanations" / "columns.csv").open() as file:
        needed = {row["column"]: float(row["change"]) for row in csv.DictReader(file)}
    assert set(needed) == {"age", "city", "hours"} and max(needed.values()) < -0.05, needed
    assert "with its values shuffled" in done.stdout
    files = list((tmp_path / "models" / "rich" / "predictions" / "visitors.rich").glob("*/*.csv"))
    assert sum(len(file.read_text().splitlines()) for file in files) >= 5


def test_a_model_is_found_on_a_cluster_and_predicts(cluster: Cluster, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE people (age REAL, city TEXT, hours INTEGER, income TEXT)")
        connection.executemany("INSERT INTO people VALUES (?, ?, ?, ?)", people())
    given = ("--source", f"sqlite:///{tmp_path}/shop.db", "--models", str(tmp_path / "models"))
    text = "SELECT * FROM people LABEL income INTO rich"
    shown = cluster.cli("sql", *given, "--dry-run", text).stdout
    assert shown.count("TO TRAIN") == 8 and not (tmp_path / "models").exists()
    done = cluster.cli("sql", *given, text, timeout=500)
    with (tmp_path / "models" / "rich" / "trials.csv").open() as file:
        trials = list(csv.DictReader(file))
    assert [row["ended"] for row in trials].count("the best one") == 1 and len(trials) == 8
    best = next(float(row["auc"].split()[-1]) for row in trials if row["ended"] == "the best one")
    assert best > 0.9, done.stdout
    assert done.stdout.count(": DNNClassifier") >= 2
    listed = json.loads(cluster.cli("jobs", "list", "--json").stdout)
    priorities = {(one["name"], one["spec"]["priority"]) for one in listed}
    assert priorities == {("rich", 0), ("rich-trial", -1000)}
    assert sorted(path.name for path in (tmp_path / "models" / "rich").iterdir()) == [
        "checkpoints", "data", "export", "model.py", "plan.json", "trials.csv",
    ]  # fmt: skip
    evaluated = cluster.cli("sql", *given, "SELECT * FROM people TO EVALUATE rich LABEL income", timeout=300).stdout
    assert float(evaluated.rpartition("auc ")[2].split()[0].strip(",")) > 0.9, evaluated
    assert "TO TRAIN" in cluster.cli("sql", *given, "SHOW TRAIN rich").stdout


def test_the_cluster_finds_a_model_for_a_named_source_by_itself(cluster: Cluster, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE people (age REAL, city TEXT, hours INTEGER, income TEXT)")
        connection.executemany("INSERT INTO people VALUES (?, ?, ?, ?)", people())
    cluster.cli("namespaces", "set", "default", "--source", f"found=sqlite:///{tmp_path}/shop.db")
    text = "SELECT * FROM people LABEL income INTO rich_of_ours"
    assert cluster.cli("sql", "--source", "found", "--dry-run", text).stdout.count("TO TRAIN") == 8
    done = cluster.cli("sql", "--source", "found", text, timeout=550)
    assert done.stdout.count("the best one") == 1 and "after round 3:" in done.stdout, done.stdout
    shown = cluster.cli("sql", "--source", "found", "SHOW TRAIN rich_of_ours").stdout
    assert "TO TRAIN" in shown and "COLUMN" in shown
    asked = "SELECT * FROM people TO EVALUATE rich_of_ours LABEL income"
    evaluated = cluster.cli("sql", "--source", "found", asked, timeout=300).stdout
    assert float(evaluated.rpartition("auc ")[2].split()[0].strip(",")) > 0.9, evaluated


def test_columns_are_explained_on_a_cluster_as_in_one_process(cluster: Cluster, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE people (age REAL, city TEXT, hours INTEGER, income TEXT)")
        connection.executemany("INSERT INTO people VALUES (?, ?, ?, ?)", people())
    given = ("--source", f"sqlite:///{tmp_path}/shop.db", "--models", str(tmp_path / "models"))
    train = "SELECT * FROM people TO TRAIN DCNClassifier WITH learning_rate = 0.01, epoch = 2 LABEL income INTO rich"
    cluster.cli("sql", *given, train, timeout=300)
    for name, where in (("cluster", ()), ("local", ("--local",))):
        cluster.cli("sql", *given, *where, f"SELECT * FROM people TO EXPLAIN rich INTO {name}", timeout=300)
    explained = tmp_path / "models" / "rich" / "explanations"
    assert (explained / "cluster.csv").read_text() == (explained / "local.csv").read_text()
