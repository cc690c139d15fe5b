"""Statements by the API: rows from a source of the namespace, the plan, the job, its result, and what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from elasticdl_api.background.searches import SearchRounds
from elasticdl_runtime.bundles import digest_hex
from elasticdl_runtime.database import tables as t
from tests import rotation
from tests.integration.api.conftest import Api
from tests.integration.conftest import PASSWORD, PostgresServer

pytestmark = pytest.mark.integration
TRAIN = (
    "SELECT age, city, paid FROM buyers TO TRAIN DNNClassifier WITH epoch = 2, num_workers = 2 LABEL paid INTO Pays_1"
)
EVALUATE = "SELECT * FROM buyers TO EVALUATE Pays_1 LABEL paid"
EXPLAIN = "SELECT * FROM buyers TO EXPLAIN Pays_1"
PREDICT = "SELECT city, age FROM buyers TO PREDICT new.paid USING Pays_1"
ROWS = [(20 + i, ["oslo", "rome"][i % 2], "ny"[i % 3 > 0]) for i in range(9)]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE buyers (age INTEGER, city TEXT, paid TEXT)")
        connection.executemany("INSERT INTO buyers VALUES (?, ?, ?)", ROWS)
        connection.execute("CREATE TABLE visits AS SELECT * FROM buyers WHERE 0")
        many = [(20.5 + i % 60, ["oslo", "rome", "lima"][i % 7 % 3], "ny"[i % 3 > 0]) for i in range(400)]
        connection.executemany("INSERT INTO visits VALUES (?, ?, ?)", many)
    return path


class Team:
    """A namespace with a source, and somebody of it who may submit."""

    def __init__(self, api: Api, headers: Mapping[str, str]) -> None:
        self.api = api
        self.headers = headers

    async def send(self, statement: str, *, key: str = "", source: str = "shop", **more: Any) -> httpx.Response:
        headers = {**self.headers, **({"Idempotency-Key": key} if key else {})}
        body = {"statement": statement, "source": source, **more}
        return await self.api.http.post("/v1/sql", json=body, headers=headers)

    async def result(self, job_id: str) -> dict[str, Any]:
        answer = await self.api.http.get(f"/v1/sql/{job_id}", headers=self.headers)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def finish(self, job_id: str, **report: Any) -> None:
        """What its master does until the job has succeeded."""
        await self.api.admit(job_id)
        master = self.api.master(job_id)
        await master.lease()
        assert (await master.post("/state", to="RUNNING", reason="runs")).status_code == 200
        for path, body in report.items():
            answer = await master.post(f"/{path}", **body)
            assert answer.status_code in (200, 201, 204), answer.text
        assert (await master.post("/state", to="SUCCEEDED", reason="over")).status_code == 200

    def folders(self) -> set[str]:
        jobs = self.api.services.settings.data_dir / "jobs"
        return {one.name for one in jobs.iterdir()} if jobs.is_dir() else set()


@pytest.fixture
async def team(api: Api, shop: Path) -> Team:
    answer = await api.http.put("/namespaces/team-a", json={"sources": {"shop": f"sqlite:///{shop}"}})
    assert answer.status_code == 201, answer.text
    return Team(api, await api.token("team-a"))


async def trained(team: Team) -> str:
    answer = await team.send(TRAIN)
    assert answer.status_code == 201, answer.text
    job_id = str(answer.json()["job_id"])
    directory = str(team.api.services.settings.data_dir.resolve() / "jobs" / job_id / "checkpoints" / "4")
    manifest = {"directory": directory, "created_at": 1.0, "version": 4}
    async with team.api.services.database.transaction() as connection:
        await connection.execute(t.checkpoints.insert().values(job_id=job_id, version=4, manifest=manifest))
    await team.finish(job_id)
    return job_id


async def test_a_training_becomes_a_job_once_with_rows_in_its_folder(team: Team) -> None:
    answer = await team.send(TRAIN, key="first")
    assert answer.status_code == 201, answer.text
    told = answer.json()
    assert (told["verb"], told["model"], told["source"], told["rows"]) == ("TRAIN", "Pays_1", "shop", 9)
    assert (told["columns"], told["classes"]) == (["age", "city", "paid"], ["n", "y"])
    assert answer.headers["location"] == f"/v1/jobs/{told['job_id']}"
    job = (await team.api.http.get(f"/jobs/{told['job_id']}", headers=team.headers)).json()
    spec = job["spec"]
    assert (job["name"], job["namespace"], spec["num_epochs"]) == ("pays-1", "team-a", 2)
    assert (spec["min_workers"], spec["max_workers"]) == (1, 2)
    rows = Path(spec["training_data"])
    assert rows.parent == team.api.services.settings.job_dir(job["id"]) / "rows"
    assert rows.name == f"{hashlib.sha256(rows.read_bytes()).hexdigest()[:32]}.csv"
    assert rows.read_text().splitlines()[:2] == ["20,oslo,n", "21,rome,y"]
    assert rows.stat().st_mode & 0o044 == 0o044  # workers may be of another user
    reach = await team.api.services.reaches.of_job(job["id"])
    assert reach is not None and reach.allows(str(rows.resolve()))
    bundle = team.api.services.settings.bundles_dir / f"{digest_hex(spec['model_bundle'])}.zip"
    assert bundle.is_file()
    again = await team.send(TRAIN, key="first")
    assert (again.status_code, again.json()) == (200, told)
    other = await team.send(TRAIN.replace("epoch = 2", "epoch = 3"), key="first")
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    assert team.folders() == {job["id"]}
    async with team.api.services.database.transaction() as connection:
        query = select(t.audit_log.c.detail).where(t.audit_log.c.action == "job.submit")
        (detail,) = (await connection.execute(query)).scalars()
    assert detail == {"type": "training", "verb": "TRAIN", "model": "Pays_1", "source": "shop"}


async def test_a_dry_run_shows_the_plan_and_leaves_nothing(team: Team) -> None:
    answer = await team.send(TRAIN, dry_run=True, key="dry")
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["job_id"] is None and "CLASSES = ['n', 'y']" in told["module"] and told["spec"]["num_epochs"] == 2
    assert not team.folders()
    assert (await team.api.http.get("/jobs")).json()["jobs"] == []
    assert (await team.send(TRAIN, key="dry")).status_code == 201


async def test_a_model_is_evaluated_explained_and_predicts_and_results_are_tables(team: Team) -> None:
    first = await team.send(EVALUATE)
    assert (first.status_code, first.json()["code"]) == (404, "not_found")
    running = (await team.send(TRAIN)).json()["job_id"]
    early = await team.send(EVALUATE)
    assert (early.status_code, running in early.json()["detail"]) == (409, True)
    assert (await team.api.http.post(f"/jobs/{running}/cancel")).status_code == 202
    training = await trained(team)
    shown = await team.send("SHOW TRAIN Pays_1", source="")
    assert (shown.status_code, shown.json()["job_id"], shown.json()["statement"]) == (200, training, TRAIN)

    evaluated = (await team.send(EVALUATE)).json()["job_id"]
    spec = (await team.api.job(evaluated))["spec"]
    assert spec["type"] == "evaluation" and training in spec["checkpoint_dir_for_init"]
    assert (await team.result(evaluated))["rows"] == []
    told = {"number": 0, "model_version": 4, "training_epoch": 2, "metrics": {"accuracy": 0.75, "loss": "NaN"}}
    await team.finish(evaluated, evaluations=told)
    result = await team.result(evaluated)
    assert (result["state"], result["columns"]) == ("SUCCEEDED", ["metric", "value"])
    assert result["rows"] == [["accuracy", 0.75], ["loss", "NaN"]]

    explained = (await team.send(EXPLAIN)).json()
    assert explained["rows"] == 27 and "OfRows" in explained["module"]
    metrics = {"accuracy": 0.75, "accuracy_shuffled_age": 0.5, "accuracy_shuffled_city": 0.75}
    await team.finish(explained["job_id"], evaluations={**told, "metrics": metrics})
    result = await team.result(explained["job_id"])
    assert result["columns"] == ["metric", "column", "value", "shuffled", "change"]
    assert result["rows"][0] == ["accuracy", "age", 0.75, 0.5, -0.25]

    predicted = (await team.send(PREDICT)).json()["job_id"]
    spec = (await team.api.job(predicted))["spec"]
    assert Path(spec["prediction_data"]).read_text().splitlines()[0] == "20,oslo"
    folder = team.api.services.settings.job_dir(predicted) / "artifacts" / "predictions"
    folder.mkdir(parents=True)
    part = "file,row,output.0,output.1\n" + "".join(f"x,{row},{row % 2},0.5\n" for row in range(9))
    (folder / "rows-0-9.csv").write_text(part)
    artifact = {
        "name": "predictions/rows-0-9.csv",
        "path": "predictions/rows-0-9.csv",
        "size": len(part),
        "sha256": hashlib.sha256(part.encode()).hexdigest(),
    }
    await team.finish(predicted, artifacts=artifact)
    result = await team.result(predicted)
    assert (result["columns"], result["more"]) == (["paid", "age", "city"], False)
    assert result["rows"][:2] == [["y", "20", "oslo"], ["n", "21", "rome"]]


SEARCH = "SELECT * FROM visits WITH export_formats = 'keras', priority = 3 LABEL paid INTO Pays_2"


async def end_trials(team: Team, scores: Mapping[str, float | None]) -> list[str]:
    """What the masters of a search's trials do: each reaches what is said of its model, or fails; their ids."""
    ended = []
    for job in (await team.api.http.get("/jobs", headers=team.headers, params={"state": "QUEUED"})).json()["jobs"]:
        spec = (await team.api.job(job["id"]))["spec"]
        module = spec["model_def"].removesuffix(".forward")
        if module not in scores:
            continue
        ended.append(job["id"])
        await team.api.admit(job["id"])
        master = team.api.master(job["id"])
        await master.lease()
        assert (await master.post("/state", to="RUNNING", reason="runs")).status_code == 200
        if (score := scores[module]) is None:
            failed = await master.post("/state", to="FAILED", reason="it ran away", error={"message": "it ran away"})
            assert failed.status_code == 200, failed.text
            continue
        told = {"number": 0, "model_version": 4, "training_epoch": 2, "metrics": {"auc": score, "loss": 1.0}}
        assert (await master.post("/evaluations", **told)).status_code in (200, 201, 204)
        directory = str(team.api.services.settings.data_dir.resolve() / "jobs" / job["id"] / "checkpoints" / "4")
        manifest = {"directory": directory, "created_at": 1.0, "version": 4}
        async with team.api.services.database.transaction() as connection:
            await connection.execute(t.checkpoints.insert().values(job_id=job["id"], version=4, manifest=manifest))
        assert (await master.post("/state", to="SUCCEEDED", reason="over")).status_code == 200
    return ended


async def test_a_model_is_found_by_trials_and_replicas_that_die_in_between_cost_nothing(team: Team) -> None:
    shown = (await team.send(SEARCH, dry_run=True)).json()
    assert shown["job_id"] is None and len(shown["search"]["statements"]) == 8 and not team.folders()
    answer = await team.send(SEARCH, key="once")
    assert answer.status_code == 201, answer.text
    told = answer.json()
    search_id = told["job_id"]
    assert answer.headers["location"] == f"/v1/sql/{search_id}"
    assert (told["rows"], told["columns"], told["classes"]) == (400, ["age", "city", "paid"], ["n", "y"])
    again = await team.send(SEARCH, key="once")
    assert (again.status_code, again.json()["job_id"]) == (200, search_id)
    assert (await team.send(SEARCH.replace("visits", "buyers"), key="once")).status_code == 409

    async def go_on() -> dict[str, Any]:
        """Takes the steps of two replicas, of which none knows what the other did."""
        await asyncio.gather(*(SearchRounds(team.api.services).step() for _ in range(2)))
        await SearchRounds(team.api.services).step()
        return await team.result(search_id)

    found = await go_on()
    assert (found["state"], found["search"]["state"], found["search"]["round"]) == ("RUNNING", "COMPARING", 1)
    jobs = (await team.api.http.get("/jobs", headers=team.headers, params={"label": f"search={search_id}"})).json()[
        "jobs"
    ]
    assert {job["id"] for job in jobs} == {ids[0] for ids in found["search"]["jobs"]} and len(jobs) == 8
    spec = (await team.api.job(jobs[0]["id"]))["spec"]
    assert (spec["priority"], spec["export_formats"]) == (-1000, "")
    trained, held = Path(spec["training_data"]), Path(spec["validation_data"])
    assert trained.parent.parent.name == jobs[0]["id"] and trained.read_text() and held.read_text()
    early = await team.send("SELECT * FROM visits TO EVALUATE Pays_2 LABEL paid")
    assert (early.status_code, search_id in early.text) == (409, True)

    scores = {f"trial_{at}": 0.5 + at / 50 for at in range(8)}
    assert len(await end_trials(team, {**scores, "trial_7": None, "trial_6": 0.99})) == 8
    found = await go_on()
    assert [len(ids) for ids in found["search"]["jobs"]] == [1, 1, 1, 1, 2, 2, 2, 1]
    second = await end_trials(team, {**scores, "trial_6": 0.98})
    spec = (await team.api.job(second[0]))["spec"]
    assert len(second) == 3 and "/checkpoints/4" in spec["checkpoint_dir_for_init"]
    found = await go_on()
    assert (found["state"], found["search"]["state"]) == ("QUEUED", "DONE")
    assert found["columns"] == ["model", "with", "features", "epochs", "auc", "ended"] and len(found["rows"]) == 8
    assert found["rows"][0][0] == "DCNClassifier" and found["rows"][0][-1] == "the best one"
    assert "it ran away" in found["rows"][-1][-1]
    spec = (await team.api.job(search_id))["spec"]
    assert (spec["priority"], spec["model_def"], spec["export_formats"]) == (3, "model.forward", "keras")
    assert (spec["num_epochs"], spec["labels"]) == (found["search"]["epochs"][0], {})
    assert len(Path(spec["training_data"]).read_text().splitlines()) == 400
    kept = await team.send("SHOW TRAIN Pays_2", source="")
    assert kept.status_code == 409  # it is being trained
    await team.finish(search_id)


async def test_a_search_is_cancelled_with_its_trials_and_one_without_a_model_says_why(team: Team) -> None:
    rounds = SearchRounds(team.api.services)
    first = (await team.send(SEARCH)).json()["job_id"]
    await rounds.step()
    for _ in range(2):
        answer = await team.api.http.post(f"/sql/{first}/cancel", headers=team.headers)
        assert (answer.status_code, answer.json()["state"]) == (202, "CANCELLING"), answer.text
    await rounds.step()
    await rounds.step()
    assert (await team.result(first))["state"] == "CANCELLED" and first not in team.folders()
    assert (await team.api.http.get("/jobs", params={"state": "QUEUED"})).json()["jobs"] == []
    over = await team.api.http.post(f"/sql/{first}/cancel", headers=team.headers)
    assert (over.status_code, "is over" in over.text) == (409, True)

    second = (await team.send(SEARCH)).json()["job_id"]
    await rounds.step()
    await end_trials(team, {f"trial_{at}": None for at in range(8)})
    await rounds.step()
    await rounds.step()
    found = await team.result(second)
    assert found["state"] == "FAILED" and "it ran away" in found["search"]["error"]["fix"]
    gone = await team.send("SELECT * FROM visits TO EVALUATE Pays_2 LABEL paid")
    assert gone.status_code == 404
    strange = await team.api.token("team-b")
    for method, path in (("GET", f"/sql/{second}"), ("POST", f"/sql/{second}/cancel")):
        assert (await team.api.http.request(method, path, headers=strange)).status_code == 404


BAD: list[tuple[str, str, int, str]] = [
    ("", "shop", 422, "there is no statement"),
    ("   ;", "shop", 422, "statement"),
    ("SELCT * FROM buyers", "shop", 422, "line 1, column 1"),
    (f"{TRAIN}; {EVALUATE}", "shop", 422, "stands behind the statement"),
    (f"SELECT 1 AS a; DROP TABLE buyers; {TRAIN}", "shop", 422, "statements where one SELECT"),
    ("DROP TABLE buyers", "shop", 422, "begins with SELECT"),
    (TRAIN.replace("buyers", "payers"), "shop", 422, "no such table: payers"),
    (TRAIN.replace("buyers", "sqlite_master, buyers WHERE 1 = load_extension('x')"), "shop", 422, "refuses"),
    (TRAIN.replace("SELECT age", "SELECT aeg"), "shop", 422, "no such column: aeg"),
    (TRAIN.replace("age, city, paid FROM buyers", "a b c FROM"), "shop", 422, "does not parse"),
    (TRAIN.replace("age, city", "age, age, city"), "shop", 422, "two columns 'age'"),
    (TRAIN.replace("FROM buyers", "FROM buyers WHERE age > 99"), "shop", 422, "no rows"),
    (TRAIN.replace("FROM buyers", "FROM buyers WHERE paid = 'y'"), "shop", 422, "all rows have the label"),
    (TRAIN.replace("LABEL paid", "LABEL pays"), "shop", 422, "the SELECT has no column pays"),
    (TRAIN.replace("DNNClassifier", "DNNRegressor"), "shop", 422, "train a classifier"),
    (TRAIN.replace("DNNClassifier", "DNNClasifier"), "shop", 422, "did you mean DNNClassifier"),
    (TRAIN.replace("epoch = 2", "epochs = 'x'; DROP TABLE buyers --"), "shop", 422, "stands behind"),
    (TRAIN.replace("epoch = 2", "epoch = '2; DROP TABLE buyers'"), "shop", 422, "num_epochs"),
    (TRAIN.replace("epoch = 2", "envs = 'A=1'"), "shop", 422, "no attribute envs"),
    (TRAIN.replace("epoch = 2", "model_zoo = '/etc'"), "shop", 422, "no attribute model_zoo"),
    (TRAIN.replace("epoch = 2", "output = '/etc'"), "shop", 422, "no attribute output"),
    (TRAIN.replace("epoch = 2", "checkpoint_dir_for_init = '/etc'"), "shop", 422, "no attribute"),
    (TRAIN.replace("epoch = 2", "training_data = '/etc/passwd'"), "shop", 422, "no attribute"),
    (TRAIN.replace("epoch = 2", "hidden_units = [__import__('os')]"), "shop", 422, "line 1"),
    (TRAIN.replace("epoch = 2", "hidden_units = ['1); import os']"), "shop", 422, "no hidden_units"),
    (TRAIN.replace("epoch = 2", "priority = 2000"), "shop", 422, "priority"),
    ("SELECT * FROM buyers LABEL paid INTO m", "shop", 422, "9 rows are too few to compare models"),
    (SEARCH.replace("LABEL paid", "LABEL pays"), "shop", 422, "the SELECT has no column pays"),
    (SEARCH.replace("visits", "visits WHERE paid = 'y'"), "shop", 422, "all rows have the label"),
    (SEARCH.replace("* FROM", "paid FROM"), "shop", 422, "no column can be learned from"),
    (SEARCH.replace("priority = 3", "epoch = 3"), "shop", 422, "the trials find out for how many epochs"),
    (SEARCH.replace("priority = 3", "priority = 2000"), "shop", 422, "priority"),
    (SEARCH.replace("priority = 3", "hidden_units = [4]"), "shop", 422, "no attribute hidden_units"),
    (TRAIN.replace("Pays_1", "'../x'"), "shop", 422, "name behind INTO"),
    (TRAIN.replace("Pays_1", '"../x"'), "shop", 422, "no plain name"),
    (TRAIN.replace("LABEL", "COLUMN HASH(citty, 10) LABEL"), "shop", 422, "did you mean city"),
    (TRAIN.replace("LABEL", "COLUMN BUCKET(city, [1]) LABEL"), "shop", 422, "holds text"),
    (TRAIN + " WITH a = 1", "shop", 422, "WITH is there twice"),
    ("SELECT * FROM buyers TO RUN x", "shop", 422, "not done by ElasticDL"),
    ("SHOW TRAIN nothing", "", 404, "there is no model nothing"),
    (EVALUATE, "shop", 404, "there is no model Pays_1"),
    (TRAIN, "", 422, "there is no source"),
    (TRAIN, "theirs", 422, "there is no source 'theirs'"),
    (TRAIN, "sqlite:///etc/passwd", 422, "source"),
    (TRAIN, "gone", 422, "cannot be reached"),
]


IN_THE_GATE = 13
"""Cases that are tried with each commit: each is a process."""


async def test_what_is_wrong_is_refused_with_its_place_and_leaves_nothing(team: Team, shop: Path) -> None:
    cases = rotation.share("bad statements", BAD, IN_THE_GATE)
    assert len(BAD) >= 38
    await team.api.http.put("/namespaces/team-a", json={"sources": {"gone": "sqlite:////no/such/shop.db"}})
    await team.api.http.put("/namespaces/team-b", json={"sources": {"theirs": f"sqlite:///{shop}"}})
    wrong = []

    async def look(statement: str, source: str, status: int, said: str) -> None:
        answer = await team.send(statement, source=source)
        told = answer.json()
        text = json.dumps(told)
        if answer.status_code != status or said not in text or not told.get("fix") or str(shop.parent) in text:
            wrong.append(f"{statement!r} from {source!r}: {answer.status_code} {text[:300]}")
        elif ("line " in said or "did you mean" in said) and "position" not in told:
            wrong.append(f"{statement!r}: no position")

    before = shop.read_bytes()
    for at in range(0, len(cases), 2):  # as many as may be planned at once
        await asyncio.gather(*(look(*case) for case in cases[at : at + 2]))
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong)
    assert not team.folders() and shop.read_bytes() == before
    assert (await team.api.http.get("/jobs")).json()["jobs"] == []


async def test_places_are_those_of_the_statement(team: Team) -> None:
    answer = await team.send(TRAIN.replace(" TO TRAIN", "\n  TO TRAIN").replace("LABEL paid", "LABLE paid"))
    assert answer.json()["position"] == {"line": 2, "column": 58}, answer.text


async def test_too_many_at_once_wait_for_their_turn_outside(team: Team) -> None:
    async with team.api.services.planner.begin("team-a", TRAIN), team.api.services.planner.begin("team-a", TRAIN):
        answer = await team.send(TRAIN)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert (await team.send(TRAIN)).status_code == 201


async def test_sources_are_named_by_administrators_and_their_addresses_told_to_nobody(team: Team) -> None:
    url = "postgresql://reader:secret-word@db.example/shop"
    put = await team.api.http.put("/namespaces/team-a", json={"sources": {"big": url}})
    assert (put.status_code, put.json()["sources"]) == (200, ["big", "shop"])
    listed = await team.api.http.get("/namespaces", headers=team.headers)
    assert listed.json()["namespaces"][0]["sources"] == ["big", "shop"]
    refused = await team.api.http.put("/namespaces/team-a", json={"sources": {"x": url}}, headers=team.headers)
    assert refused.status_code == 403
    passed = f"{url}?password=secret-word"
    for bad in ("mysql://reader:secret-word@db/x", "postgresql://db", "sqlite://shop.db", passed, "secret-word", ""):
        told = await team.api.http.put("/namespaces/team-a", json={"sources": {"x": bad}})
        assert (told.status_code, "secret-word" in told.text) == (422, False), told.text
    assert (await team.api.http.put("/namespaces/team-a", json={"sources": {"a://b": url}})).status_code == 422
    gone = await team.api.http.put("/namespaces/team-a", json={"sources": {"big": None}})
    assert gone.json()["sources"] == ["shop"]
    async with team.api.services.database.transaction() as connection:
        audited = (await connection.execute(select(t.audit_log.c.detail))).scalars().all()
        kept = (await connection.execute(select(t.namespaces.c.sources))).scalars().all()
    assert {"sources": {"big": "set"}} in audited and {"sources": {"big": "removed"}} in audited
    assert "secret-word" not in json.dumps([audited, kept]) and "sqlite" not in json.dumps([audited, kept])


async def test_a_stranger_sees_neither_statement_nor_result(team: Team) -> None:
    job_id = (await team.send(TRAIN)).json()["job_id"]
    other = await team.api.token("team-b")
    assert (await team.api.http.get(f"/sql/{job_id}", headers=other)).status_code == 404
    reader = await team.api.token("team-a", "read")
    assert (await team.api.http.get(f"/sql/{job_id}", headers=reader)).status_code == 200
    sent = await team.api.http.post("/sql", json={"statement": TRAIN, "source": "shop"}, headers=reader)
    assert sent.status_code == 403
    plain = await team.api.submit()
    assert (await team.api.http.get(f"/sql/{plain}")).status_code == 404


async def test_a_postgres_is_read_as_a_user_who_may_only_read(api: Api, postgres_server: PostgresServer) -> None:
    postgres_server.sql("CREATE DATABASE statements")
    postgres_server.sql(
        f"CREATE ROLE buyers_reader LOGIN PASSWORD '{PASSWORD}'; CREATE SEQUENCE visits;"
        "CREATE TABLE buyers (age int, city text, paid text);"
        f"INSERT INTO buyers VALUES {', '.join(map(str, ROWS))}; CREATE TABLE secrets (word text);"
        "GRANT SELECT ON buyers TO buyers_reader; GRANT ALL ON SEQUENCE visits TO buyers_reader",
        "statements",
    )
    try:
        for name, password in (("shop", PASSWORD), ("wrong", "other-word")):
            url = f"postgresql://buyers_reader:{password}@/statements?host={postgres_server.folder}"
            put = await api.http.put("/namespaces/team-a", json={"sources": {name: url}})
            assert put.status_code in (200, 201), put.text
        team = Team(api, await api.token("team-a"))
        assert (await team.send(TRAIN, dry_run=True)).json()["classes"] == ["n", "y"]
        for text, source, said, place in (
            ("word FROM secrets", "shop", "permission denied for table secrets", None),
            ("age, city, paid\nFROM payers", "shop", "does not exist", {"line": 2, "column": 6}),
            ("age, city, paid, nextval('visits') AS v FROM buyers", "shop", "read-only transaction", None),
            ("age, city, paid FROM buyers", "wrong", "cannot be reached", None),
        ):
            answer = await team.send(TRAIN.replace("age, city, paid FROM buyers", text), source=source)
            assert (answer.status_code, said in answer.text) == (422, True), answer.text
            assert answer.json().get("position") == place
            assert "buyers_reader" not in answer.text and "word@" not in answer.text
    finally:
        postgres_server.sql("DROP DATABASE statements WITH (FORCE)")
        postgres_server.sql("DROP ROLE buyers_reader")
