"""Statements in the page: refused at their place, planned, run, their results as tables, without any Python."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.visits import PHONE, Visit
from tests.fakes.recorded_cluster import RecordedCluster

pytestmark = pytest.mark.browser
Client = Callable[[RecordedCluster], httpx.Client]
TRAIN = "SELECT age, city, paid\nFROM buyers\nTO TRAIN DNNClassifier\nLABEL paid INTO pays"


@pytest.fixture
def client(fresh: RecordedCluster, api: Client, tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of a cluster with a source; jobs go at the end."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE buyers (age INTEGER, city TEXT, paid TEXT)")
        rows = [(20 + i, ["oslo", "rome"][i % 2], "ny"[i % 3 > 0]) for i in range(9)]
        connection.executemany("INSERT INTO buyers VALUES (?, ?, ?)", rows)
    client = api(fresh)
    client.put("/namespaces/default", json={"sources": {"shop": f"sqlite:///{tmp_path}/shop.db"}}).raise_for_status()
    yield client
    client.put("/namespaces/default", json={"sources": {"shop": None}}).raise_for_status()
    fresh.sql("DELETE FROM jobs")


def run(page: Page, statement: str) -> str:
    """Runs a statement in the page; returns its job."""
    before = page.url
    page.get_by_label("Statement", exact=True).fill(statement)
    page.get_by_role("button", name="Run").click()
    page.wait_for_function("before => location.href !== before", arg=before)
    expect(page.get_by_text("The job is not over yet.")).to_be_visible()
    return page.url.rpartition("=")[2]


def over(cluster: RecordedCluster, job_id: str) -> None:
    """What its master would tell at the end."""
    told = "INSERT INTO launch_intents (id, job_id, incarnation, delivered_at) VALUES ($1, $1, 0, now())"
    cluster.sql(told, job_id)
    for state in ("STARTING", "RUNNING", "SUCCEEDED"):
        cluster.sql("UPDATE jobs SET state = $2 WHERE id = $1", job_id, state)


def test_somebody_trains_evaluates_and_predicts_by_sql_alone(
    visit: Callable[..., Visit], fresh: RecordedCluster, client: httpx.Client
) -> None:
    seen = visit(fresh, path="/#/sql", expected="422")
    page = seen.page
    expect(page.get_by_label("Database")).to_have_value("shop")
    statement = page.get_by_label("Statement", exact=True)
    page.get_by_role("button", name="Train").click()  # a form to fill in, by the keyboard from here on
    expect(statement).to_be_focused()
    page.keyboard.press("Control+A")
    page.keyboard.type(TRAIN.replace("LABEL", "LABLE"))
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("did you mean LABEL?")
    expect(statement).to_be_focused()
    assert page.evaluate("getSelection().toString()") == "LABLE"
    page.keyboard.type("LABEL")
    page.get_by_role("button", name="Show the plan").click()
    page.get_by_text("The model's module").click()
    expect(page.get_by_text("CLASSES = ['n', 'y']")).to_be_visible()
    assert client.get("/jobs").json()["jobs"] == []
    assert seen.findings() == []

    trained = run(page, TRAIN)
    assert client.get(f"/jobs/{trained}").json()["spec"]["type"] == "training"
    folder = f"{fresh.data}/jobs/{trained}/checkpoints/4"
    manifest = json.dumps({"directory": folder, "version": 4})
    fresh.sql("INSERT INTO checkpoints (job_id, version, manifest) VALUES ($1, 4, $2)", trained, manifest)
    over(fresh, trained)
    expect(page.get_by_text("The model pays is trained.")).to_be_visible()

    evaluated = run(page, "SELECT * FROM buyers TO EVALUATE pays LABEL paid")
    fresh.sql(
        "INSERT INTO evaluations (job_id, number, model_version, training_epoch, metrics) "
        "VALUES ($1, 0, 4, 1, '{\"accuracy\": 0.75}')",
        evaluated,
    )
    over(fresh, evaluated)
    table = page.get_by_role("table", name="Result of EVALUATE pays")
    expect(table.get_by_role("row")).to_have_text(["metricvalue", "accuracy0.75"])
    page.reload()  # the statement and its result are in the address
    expect(table).to_be_visible()
    expect(statement).to_have_value("SELECT * FROM buyers TO EVALUATE pays LABEL paid")

    predicted = run(page, "SELECT * FROM buyers TO PREDICT new.paid USING pays")
    over(fresh, predicted)
    expect(page.get_by_text("There is no result.")).to_be_visible()
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    assert seen.findings() == []


def test_a_model_is_found_and_the_search_is_stopped_from_the_page(
    visit: Callable[..., Visit], fresh: RecordedCluster, client: httpx.Client, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE visits (age REAL, city TEXT, paid TEXT)")
        rows = [(20.5 + i % 60, ["oslo", "rome"][i % 2], "ny"[i % 3 > 0]) for i in range(200)]
        connection.executemany("INSERT INTO visits VALUES (?, ?, ?)", rows)
    seen = visit(fresh, path="/#/sql")
    page = seen.page
    page.get_by_role("button", name="Find a model").click()
    page.get_by_label("Statement", exact=True).fill("SELECT * FROM visits LABEL paid INTO pays")
    page.get_by_role("button", name="Show the plan").click()
    page.get_by_text("Models that are tried").click()
    expect(page.get_by_text("TO TRAIN LinearClassifier").first).to_be_visible()
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("Models are being compared: round 1 of 3, by auc")).to_be_visible()
    table = page.get_by_role("table", name="Result of TRAIN pays")
    expect(table.get_by_role("row")).to_have_count(9)
    assert seen.findings() == []
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    expect(page.get_by_text("Cancelled", exact=True)).to_be_visible()
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    assert seen.findings() == []
