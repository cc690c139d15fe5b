"""Each rule of the grammar, and what is written wrong."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer

from elasticdl.cli.sql import sql
from elasticdl.sql.grammar import Call, Statement, parse_statement, split_statements
from elasticdl.sql.jobs import compile_statement
from elasticdl.sql.source import take_snapshot
from elasticdl_core.errors import ElasticDLError

TRAIN = "SELECT * FROM people TO TRAIN DNNClassifier"


def parse(text: str) -> Statement:
    return parse_statement(text)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("sql") / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute('CREATE TABLE people (age REAL, city TEXT, hours INTEGER, gap REAL, one TEXT, "a b" REAL, '
                           "high TEXT)")  # fmt: skip
        rows = [(20.5 + i, ["oslo", "rome", "lima"][i % 3], i, None if i == 3 else 1.0, "x", 0.5, "ny"[i % 2])
                for i in range(12)]  # fmt: skip
        connection.executemany("INSERT INTO people VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    yield f"sqlite:///{path}"


@pytest.mark.parametrize("to", ["TO ", "to ", ""], ids=["published", "lower", "article"])
def test_a_training_has_all_its_clauses(to: str) -> None:
    found = parse(
        f"WITH t AS (SELECT 1 AS train) SELECT a, 'TO TRAIN x' FROM t -- TO TRAIN y\nWHERE b > 1 {to}TRAIN DNNClassifier\n"
        "WITH model.hidden_units=[10, -2.5], train.batch_size = 5, note='it''s', on=TRUE\n"
        'COLUMN a, EMBEDDING(CONCAT(HASH("b c", 10), BUCKETIZE(d, num_buckets=5)) AS g, 8) FOR deep\n'
        "COLUMN CROSS([a, d], 100) FOR wide LABEL c INTO m;"
    )
    assert (found.verb, found.subject, found.label, found.into) == ("TRAIN", "DNNClassifier", "c", "m")
    assert found.select.endswith("WHERE b > 1")
    assert {name: value for name, (value, _) in found.attributes.items()} == {
        "model.hidden_units": [10, -2.5], "train.batch_size": 5, "note": "it's", "on": True,
    }  # fmt: skip
    embedding = found.columns["deep"][1]
    concat = embedding.args[0]
    assert (embedding.name, embedding.args[1], concat.alias) == ("EMBEDDING", 8, "g")
    assert concat.args[0].args[0].column == "b c"
    assert concat.args[1].options == {"num_buckets": 5}
    assert isinstance(found.columns["wide"][0], Call) and found.columns["wide"][0].args == (["a", "d"], 100)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SELECT * FROM t TO PREDICT t.y WITH a=1 USING m", {"verb": "PREDICT", "subject": "t.y", "using": "m"}),
        ("SELECT * FROM t PREDICT t.y USING m;", {"verb": "PREDICT", "using": "m"}),
        ("SELECT * FROM t TO EVALUATE m LABEL y", {"verb": "EVALUATE", "subject": "m", "label": "y"}),
        ("SELECT * FROM t TO EXPLAIN m WITH a=1 INTO r", {"verb": "EXPLAIN", "subject": "m", "into": "r"}),
        ("SELECT * FROM t TO EXPLAIN m;", {"verb": "EXPLAIN", "into": ""}),
        ("SHOW TRAIN m", {"verb": "SHOW", "subject": "m", "select": ""}),
        ("show train m;", {"verb": "SHOW", "subject": "m"}),
        ("SELECT a FROM t LABEL y INTO m;", {"verb": "TRAIN", "subject": "", "select": "SELECT a FROM t"}),
        (
            'SELECT label FROM t label WHERE (a) LABEL "label" INTO m',
            {"select": "SELECT label FROM t label WHERE (a)"},
        ),
        (
            "WITH s AS (SELECT 1) SELECT a FROM t WITH num_workers = 2, x.y = [1] LABEL y INTO m",
            {"subject": "", "select": "WITH s AS (SELECT 1) SELECT a FROM t"},
        ),
        (
            "SELECT train FROM predict evaluate TO TRAIN M LABEL y INTO m",
            {"select": "SELECT train FROM predict evaluate"},
        ),
    ],
)
def test_other_statements(text: str, wanted: dict[str, Any]) -> None:
    found = parse(text)
    assert {name: getattr(found, name) for name in wanted} == wanted


def test_a_file_is_cut_at_semicolons_outside_of_texts() -> None:
    assert split_statements("-- first\nSELECT ';' ; \n;SHOW TRAIN m;\n-- end") == [
        "-- first\nSELECT ';'", "\n\n SHOW TRAIN m",
    ]  # fmt: skip


def test_places_are_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "shop.sql").write_text("SHOW TRAIN m;\n-- second\n SHOW TRAIN m; SHOW TABLES;")
    with pytest.raises(ElasticDLError, match="line 3, column 21: TRAIN is missing"):
        sql(file=tmp_path / "shop.sql")


END = "LABEL high INTO m"
WRONG = [
    # what is no statement
    ("", "there is no statement"), ("   ", "there is no statement"), ("-- nothing", "there is no statement"),
    ("SELCT * FROM people", "did you mean SELECT"), ("DROP TABLE people", "begins with SELECT"),
    ("INSERT INTO people VALUES (1)", "begins with SELECT"), ("TRAIN DNNClassifier", "begins with SELECT"),
    ("SHOW TABLES", "TRAIN is missing"), ("SHOW TRAIN", "name of a model is missing"),
    ("SHOW TRAIN a b", "stands behind the statement"), ("SHOW TRAIN '../x'", "name of a model is missing"),
    ('SHOW TRAIN "../x"', "is no plain name"), ("SELECT 'open FROM people", "cannot be read"),
    ("SELECT * FROM people", "nothing says what to do"), ("SELECT (1 TO TRAIN x", "nothing says what to do"),
    ("SELECT * FROM people LABEL high", "nothing says what to do"), ("LABEL high INTO m", "begins with SELECT"),
    ("SELECT * FROM people COLUMN age LABEL high INTO m", "COLUMN is for a model"),
    ("SELECT * FROM people WITH a=1, LABEL high INTO m", "nothing says what to do"),
    ("SELECT * FROM people TO LABEL high INTO m", "TO is followed by"),
    # verbs
    ("SELECT * FROM people TO", "TO is followed by"), ("SELECT * FROM people TO TRIAN DNNClassifier", "did you mean TRAIN"),
    ("SELECT * FROM people TO PREDCT t.y USING m", "did you mean PREDICT"),
    ("SELECT * FROM people TO EVALUTE m LABEL y", "did you mean EVALUATE"),
    ("SELECT * FROM people TO RUN img CMD 'x'", "TO RUN is not done"),
    ("SELECT * FROM people TO MAXIMIZE a", "TO MAXIMIZE is not done"),
    ("SELECT * FROM people TO MINIMIZE a", "TO MINIMIZE is not done"),
    ("SELECT * FROM people TO EXPLAIN", "a model is missing"), ("SELECT * FROM people TO EXPLAIN m LABEL y", "is no clause of TO EXPLAIN"),
    ("SELECT * FROM people TO EXPLAIN m USING TreeExplainer", "is no clause"), ('SELECT 1 TO EXPLAIN m INTO "../x"', "is no plain name"),
    # clauses
    ("SELECT * FROM people TO TRAIN", "a model is missing"), ("SELECT * FROM people TO TRAIN 5", "a model is missing"),
    (f"{TRAIN}", "lacks LABEL"), (f"{TRAIN} LABEL high", "lacks INTO"), (f"{TRAIN} INTO m", "lacks LABEL"),
    (f"{TRAIN} LABEL INTO m", "a name behind LABEL is missing"), (f"{TRAIN} LABEL high INTO", "a name behind INTO"),
    (f"{TRAIN} LABEL 5 INTO m", "a name behind LABEL"), (f"{TRAIN} LABEL 'high' INTO m", "a name behind LABEL"),
    (f'{TRAIN} LABEL high INTO "../m"', "is no plain name"), (f'{TRAIN} LABEL high INTO "a/b"', "is no plain name"),
    (f"{TRAIN} LABEL high INTO m INTO n", "INTO is there twice"), (f"{TRAIN} {END}; SELECT 1", "stands behind the statement"),
    (f"{TRAIN} {END} extra", "is no clause"), (f"{TRAIN} LABLE high INTO m", "did you mean LABEL"),
    (f"{TRAIN} COLUMNS age {END}", "did you mean COLUMN"), (f"{TRAIN} USING m {END}", "is no clause of TO TRAIN"),
    (f"{TRAIN} LABEL high COLUMN age INTO m", "COLUMN is too late"), (f"{TRAIN} COLUMN age WITH a=1 {END}", "WITH is too late"),
    (f"{TRAIN} WITH a=1 WITH b=1 {END}", "WITH is there twice"),
    ("SELECT * FROM people TO PREDICT y USING m", "predictions go to a column"),
    ("SELECT * FROM people TO PREDICT t.y", "lacks USING"), ("SELECT * FROM people TO PREDICT t.y LABEL a", "is no clause"),
    ('SELECT * FROM people TO PREDICT "../t".y USING m', "is no plain name"),
    ("SELECT * FROM people TO EVALUATE m", "lacks LABEL"), ("SELECT * FROM people TO EVALUATE m USING n", "is no clause"),
    ("SELECT * FROM people TO EVALUATE m LABEL y INTO r", "INTO is not done for TO EVALUATE"),
    # WITH
    (f"{TRAIN} WITH {END}", "an attribute is missing"), (f"{TRAIN} WITH a {END}", "= is missing"),
    (f"{TRAIN} WITH a= {END}", "a value is missing"), (f"{TRAIN} WITH a=[1, {END}", "a value is missing"),
    (f"{TRAIN} WITH a=[1 2] {END}", ", is missing"), (f"{TRAIN} WITH a=1,, b=2 {END}", "an attribute is missing"),
    (f"{TRAIN} WITH a=1, a=2 {END}", "a is given twice"), (f"{TRAIN} WITH a=- {END}", "a number is missing"),
    (f"{TRAIN} WITH a=(1) {END}", "a value is missing"), (f"{TRAIN} WITH a={'[' * 30}1{']' * 30} {END}", "too deep"),
    (f"{TRAIN} WITH 5=1 {END}", "an attribute is missing"), (f"{TRAIN} WITH a.=1 {END}", "an attribute is missing"),
    # COLUMN
    (f"{TRAIN} COLUMN {END}", "a column is missing"), (f"{TRAIN} COLUMN age, {END}", "a column is missing"),
    (f"{TRAIN} COLUMN age FOR {END}", "the name of an input is missing"), (f"{TRAIN} COLUMN 5 {END}", "a column is missing"),
    (f"{TRAIN} COLUMN age COLUMN city {END}", "COLUMN for the model is there twice"),
    (f"{TRAIN} COLUMN HASH(city {END}", ", is missing"), (f"{TRAIN} COLUMN HASH(city,) {END}", "a column is missing"),
    (f"{TRAIN} COLUMN {'A(' * 30}x{')' * 30} {END}", "too deep"), (f"{TRAIN} COLUMN HASH(city) AS {END}", "a name behind AS"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), WRONG, ids=range(len(WRONG)))
def test_what_is_written_wrong_is_told_with_its_place_and_what_to_write(text: str, said: str) -> None:
    with pytest.raises(ElasticDLError) as caught:
        parse(text)
    assert said in f"{caught.value.message} {caught.value.fix}"
    assert caught.value.fix
    assert "line 1, column" in caught.value.message or "cannot be read" in said


C = f"{TRAIN} COLUMN"
UNFIT = [
    # models, attributes
    (f"SELECT * FROM people TO TRAIN DNNClasifier {END}", "did you mean DNNClassifier"),
    (f"SELECT * FROM people TO TRAIN my_zoo.Net {END}", "there is no model my_zoo.Net"),
    (f"{TRAIN} WITH hiden_units=[3] {END}", "did you mean hidden_units"), (f"{TRAIN} WITH hidden_units=3 {END}", "is no hidden_units"),
    (f"{TRAIN} WITH hidden_units=[] {END}", "is no hidden_units"), (f"{TRAIN} WITH hidden_units=[0] {END}", "is no hidden_units"),
    (f"{TRAIN} WITH hidden_units=['1); import os #'] {END}", "is no hidden_units"),
    (f"{TRAIN} WITH learning_rate='0.1' {END}", "is no learning_rate"), (f"{TRAIN} WITH learning_rate=-1 {END}", "is no learning_rate"),
    (f"{TRAIN} WITH learning_rate=TRUE {END}", "is no learning_rate"), (f"{TRAIN} WITH n_classes=1 {END}", "is no n_classes"),
    (f"{TRAIN} WITH n_classes=3 {END}", "has 2 classes, not 3"), (f"{TRAIN} WITH train.model_def='os.system' {END}", "no attribute"),
    (f"{TRAIN} WITH train.envs='A=1' {END}", "no attribute"), (f"{TRAIN} WITH output='/etc' {END}", "no attribute"),
    (f"{TRAIN} WITH validation.select='x' {END}", "no attribute"), (f"{TRAIN} WITH train.nmu_epochs=2 {END}", "did you mean num_epochs"),
    # the rows
    (f"SELECT * FROM peple TO TRAIN DNNClassifier {END}", "no such table"),
    (f"SELECT agee FROM people TO TRAIN DNNClassifier {END}", "no such column"),
    (f"SELECT * FROM people WHERE age > 99 TO TRAIN DNNClassifier {END}", "has no rows"),
    (f"SELECT age, age FROM people TO TRAIN DNNClassifier {END}", "two columns 'age'"),
    (f"SELECT * FRM people TO TRAIN DNNClassifier {END}", "does not parse"),
    (f"SELECT * FROM people WHERE TO TRAIN DNNClassifier {END}", "syntax error"),
    (f"SELECT 1; DROP TABLE people TO TRAIN DNNClassifier {END}", "2 statements"),
    (f"WITH t AS (SELECT 1) DELETE FROM people TO TRAIN DNNClassifier {END}", "would change something"),
    # labels
    (f"{TRAIN} LABEL hihg INTO m", "did you mean high"), (f"{TRAIN} LABEL one INTO m", "all rows have the label 'x'"),
    (f"{TRAIN} LABEL gap INTO m", "1 NULLs"), ("SELECT * FROM people TO TRAIN DNNRegressor LABEL city INTO m", "train a classifier"),
    ("SELECT * FROM people TO TRAIN DNNRegressor LABEL gap INTO m", "train a classifier"),
    # columns
    (f"{C} aeg {END}", "did you mean age"), (f"{C} high {END}", "high is the label"), (f"{C} NUMERIC(city) {END}", "holds text"),
    (f"{C} BUCKET(city, [1, 2]) {END}", "holds text"), (f"{C} gap {END}", "COALESCE(gap, 0)"), (f'{C} "a b" {END}', "AS a plain name"),
    (f"{C} EMBEDING(city, 8) {END}", "did you mean EMBEDDING"), (f"{C} EMBEDDING(city, 0) {END}", "no 0 numbers"),
    (f"{C} EMBEDDING(city, 'x') {END}", "no whole number"), (f"{C} EMBEDDING(5) {END}", "no column"), (f"{C} HASH() {END}", "no column"),
    (f"{C} HASH(city, 0) {END}", "needs a number of ids"), (f"{C} HASH(city, -3) {END}", "needs a number of ids"),
    (f"{C} CATEGORY_ID(hours) {END}", "needs a number of ids"), (f"{C} CATEGORY_ID(city, 5) {END}", "holds text"),
    (f"{C} BUCKET(age, [2, 1]) {END}", "numbers that grow"), (f"{C} BUCKET(age, ['a']) {END}", "numbers that grow"),
    (f"{C} BUCKET(age) {END}", "need boundaries"), (f"{C} BUCKETIZE(age, num_buckets=1) {END}", "need boundaries"),
    (f"{C} BUCKETIZE(city, num_buckets=3) {END}", "has no numbers"), (f"{C} CONCAT(city) {END}", "at least two"),
    (f"{C} CONCAT(city, 5) {END}", "at least two"), (f"{C} EMBEDDING(NUMERIC(age), 2) {END}", "gives numbers, not ids"),
    (f"{C} CROSS(city, 10) {END}", "a list of columns"), (f"{C} CROSS([city], 10) {END}", "a list of columns"),
    (f"{C} CROSS([city, hours]) {END}", "needs a number of ids"), (f"{C} CROSS([city, houses], 9) {END}", "did you mean hours"),
    (f"{C} HASH(HASH(city)) {END}", "where a column is needed"), (f"{C} age FOR deep_embedings {END}", "did you mean deep_embeddings"),
    (f"{C} age FOR wide_embeddings {END}", "has no input wide_embeddings"),
    (f"{C} age FOR deep_embeddings COLUMN hours FOR wide_embeddings {END}", "has no input wide_embeddings"),
    (f"SELECT * FROM people TO TRAIN WideAndDeepClassifier COLUMN age FOR deep_embeddings {END}", "a part without columns"),
    # what nothing would be done with
    (f"{C} EMBEDDING(city, 8, sum) {END}", "takes up to 2 arguments"), (f"{C} NUMERIC(age, 10) {END}", "takes up to 1 arg"),
    (f"{C} NUMERIC(gap, missing='x') {END}", "NULLs could count as"), (f"{C} NUMERIC(gap, missing=1), NUMERIC(gap, missing=2) {END}", "1 already"),
    (f"{C} HASH(gap, 9, missing=1) {END}", "only hash_bucket_size"),
    (f"{C} HASH(city, 9, seed=3) {END}", "takes up to 2 arguments"), (f"{C} HASH(city, seed=3) {END}", "only hash_bucket_size"),
    (f"{C} EMBEDDING(HASH(city, 9, 9), 8) {END}", "takes up to 2 arguments"), (f"{C} CATEGORY_ID(hours, 99999999) {END}", "float32"),
    (f"SELECT * FROM people TO TRAIN LinearClassifier WITH hidden_units=[3] {END}", "no attribute hidden_units"),
    ("SELECT * FROM people TO TRAIN DNNRegressor WITH n_classes=3 LABEL age INTO m", "no attribute n_classes"),
    (f"{TRAIN} WITH learning_rate=1e999 {END}", "is no learning_rate"),
    (f"SELECT * FROM people TO TRAIN DeepFMClassifier COLUMN age {END}", "name 2 or more"),
    (f"SELECT * FROM people TO TRAIN DCNClassifier COLUMN age FOR wide_embeddings {END}", "has no input wide_embeddings"),
    (f"SELECT * FROM people TO TRAIN DCNClassifier WITH cross_layers=0 {END}", "is no cross_layers"),
    (f"SELECT * FROM people TO TRAIN DeepFMClassifier WITH vector_size=[8] {END}", "is no vector_size"),
    (f"SELECT * FROM people TO TRAIN DeepFMClassifier WITH cross_layers=3 {END}", "no attribute cross_layers"),
    # models that are not there
    ("SELECT * FROM people TO PREDICT t.y USING m", "there is no model m"),
    ("SELECT * FROM people TO EVALUATE m LABEL high", "there is no model m"),
    ("SELECT * FROM people TO EXPLAIN m", "there is no model m"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), UNFIT, ids=range(len(UNFIT)))
def test_what_fits_neither_rows_nor_models_is_refused(text: str, said: str, source: str, tmp_path: Path) -> None:
    with pytest.raises(ElasticDLError) as caught:
        compile_statement(parse(text), source, tmp_path / "models")
    assert said in f"{caught.value.message} {caught.value.fix}"
    assert caught.value.fix
    assert not list(tmp_path.rglob(".partial-*"))
    assert take_snapshot(source, "SELECT * FROM people", tmp_path).rows == 12


def test_other_sources_and_missing_databases_are_refused(tmp_path: Path) -> None:
    for url, said in (("mysql://x/y", "is not known"), (f"sqlite:///{tmp_path}/no.db", "there is no database")):
        with pytest.raises(ElasticDLError, match=said):
            take_snapshot(url, "SELECT 1", tmp_path)
    assert not (tmp_path / "no.db").exists()


def test_a_training_becomes_a_specification_and_a_module(source: str, tmp_path: Path) -> None:
    text = "SELECT * FROM people TO TRAIN DNNClassifier WITH train.epoch=3, batch_size=4, num_workers=2 COLUMN hours, age"
    plan = compile_statement(parse(f"{text} {END}"), source, tmp_path)
    assert (plan.spec["num_epochs"], plan.spec["minibatch_size"], plan.spec["max_workers"]) == (3, 4, 2)
    assert plan.columns == ["hours", "age", "high"]
    assert Path(plan.spec["training_data"]).read_text().splitlines()[:2] == ["0,20.5,n", "1,21.5,y"]
    again = compile_statement(parse(f"{text} {END}"), source, tmp_path)
    assert again == plan
    assert [path.name for path in (tmp_path / "m" / "data").iterdir()] == [plan.snapshot.path.name]
    plan.keep(parse(f"{text} {END}"))
    evaluation = compile_statement(
        parse("SELECT high, age, hours FROM people TO EVALUATE m LABEL high"), source, tmp_path
    )
    assert evaluation.spec["validation_data"] == plan.spec["training_data"]
    assert evaluation.spec["checkpoint_dir_for_init"] == plan.spec["checkpoint_dir"]
    for label, said in (("'maybe'", "'maybe', which m was not trained on"), ("NULL", "12 NULLs")):
        with pytest.raises(ElasticDLError, match=said):  # they would be counted as those of the first class
            compile_statement(
                parse(f"SELECT {label} AS high, age, hours FROM people TO EVALUATE m LABEL high"), source, tmp_path
            )
    with pytest.raises(ElasticDLError, match="trained on the label high"):
        compile_statement(parse("SELECT * FROM people TO EVALUATE m LABEL age"), source, tmp_path)
    explained = compile_statement(parse("SELECT * FROM people TO EXPLAIN m"), source, tmp_path)
    rows = [re.split("[,:]", line) for line in Path(explained.spec["validation_data"]).read_text().splitlines()]
    whole, hours, age = ([[*row[:2], row[3]] for row in rows if row[2] == str(at)] for at in range(3))
    assert whole == [line.split(",") for line in Path(plan.spec["training_data"]).read_text().splitlines()]
    assert hours != whole and [row[1:] for row in hours] == [row[1:] for row in whole]
    assert sorted(row[0] for row in hours) == sorted(row[0] for row in whole)
    assert age != whole and [[row[0], row[2]] for row in age] == [[row[0], row[2]] for row in whole]
    predicted = [
        compile_statement(parse(f"SELECT * FROM people LIMIT {n} TO PREDICT t.y USING m"), source, tmp_path).spec[
            "output"
        ]
        for n in (7, 3, 3)
    ]
    assert predicted[0] != predicted[1] == predicted[2], "rows of other statements would lie among them"
    with pytest.raises(ElasticDLError, match="lacks the columns age"):
        compile_statement(parse("SELECT hours FROM people TO PREDICT t.y USING m"), source, tmp_path)


def test_another_training_leaves_the_rows_of_the_first_where_they_are(source: str, tmp_path: Path) -> None:
    train = "SELECT age, hours, high FROM people TO TRAIN DNNClassifier COLUMN {} LABEL high INTO m"
    first, second = (
        compile_statement(parse(train.format(columns)), source, tmp_path) for columns in ("age, hours", "hours, age")
    )
    kept = {path.name for path in (tmp_path / "m" / "data").iterdir()}
    assert kept == {first.snapshot.path.name, second.snapshot.path.name}


def test_values_that_are_written_differently_are_different_classes(source: str, tmp_path: Path) -> None:
    text = (
        "SELECT age, CASE WHEN hours > 5 THEN 1 ELSE 1.0 END AS y FROM people TO TRAIN DNNClassifier LABEL y INTO m"
    )
    assert compile_statement(parse(text), source, tmp_path).classes == ["1", "1.0"]


def test_a_dry_run_writes_nothing_and_only_trainings_are_saved(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models"
    with pytest.raises(typer.Exit) as ended:
        sql(f"{TRAIN} COLUMN age {END}", source=source, models=models, dry_run=True)
    assert ended.value.exit_code == 0
    shown = json.JSONDecoder().raw_decode(capsys.readouterr().out)[0]
    assert Path(shown["training_data"]).parent == models / "m" / "data"
    with pytest.raises(ElasticDLError, match="EVALUATE makes none"):
        sql("SELECT * FROM people TO EVALUATE m LABEL high", source=source, save=tmp_path / "saved")
    assert not list(tmp_path.iterdir())
