"""A job on a real cluster, scaled, killed and resumed: what the page shows is what the API and the audit say."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from playwright.sync_api import Page, expect

from tests.browser.reading import column, written
from tests.browser.visits import Visit
from tests.e2e.local_cluster import EXAMPLES, Cluster, user_environment
from tests.fakes.recorded_cluster import RecordedCluster
from tests.fakes.trace_events import faults_of

pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]
PATIENCE_MS = 120_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A local cluster of its own."""
    directory = tmp_path_factory.mktemp("browser-e2e")
    with Cluster(directory, user_environment(directory)).running("--slots", "3", "--policy", "fair") as cluster:
        yield cluster


def worker_process(job: str) -> psutil.Process:
    """A worker of a job."""
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except psutil.Error:
            continue
        if environment.get("ELASTICDL_JOB_ID") == job and environment.get("ELASTICDL_ROLE") == "worker":
            return process
    raise AssertionError(f"{job} has no worker process")


def act(page: Page, action: str, confirm: str, **fields: str) -> None:
    """Uses one of the job's buttons."""
    page.get_by_role("group", name="Actions").get_by_role("button", name=action, exact=True).click()
    dialog = page.get_by_role("dialog")
    for label, value in fields.items():
        dialog.get_by_label(label.replace("_", " ")).fill(value)
    dialog.get_by_role("button", name=confirm, exact=True).click()
    expect(dialog).to_have_count(0)


def shown_equals_told(page: Page, http: httpx.Client, told: dict[str, Any], audit: dict[str, Any]) -> None:
    """Reads every view of a job that is over, and compares its numbers with the API's and the audit's."""
    job = told["id"]
    ledger = http.get(f"/jobs/{job}/ledger").json()
    parts = [ledger["total"][name] for name in ("committed", "leased", "todo", "skipped", "planned")]
    numbers = page.locator(".ledgers .legend b").all_inner_texts()
    assert numbers == [*written(page, "count", parts[:-1]), f"{parts[-1]:,} {ledger['unit']}"]
    assert column(page, "Who processed them", 1) == [one["owner"] for one in audit["workers"]]
    for number, name in ((2, "records"), (3, "tasks"), (4, "first_version"), (5, "last_version")):
        wanted = written(page, "count", [one[name] for one in audit["workers"]])
        assert column(page, "Who processed them", number) == wanted, name
    stats = page.locator(".stats")
    for value in written(page, "measure", [told["status"]["loss"]]) + written(
        page, "count", [told["status"]["model_version"]]
    ):
        expect(stats).to_contain_text(value)

    page.goto(f"/#/jobs/{job}/processes")
    lives = http.get(f"/jobs/{job}/processes", params={"limit": 1000}).json()["processes"]
    page.get_by_role("table", name="Lives of processes").locator("tbody tr").first.wait_for()
    wanted = [one["role"] if one["role"] == "master" else f"{one['role']} {one['index']}" for one in reversed(lives)]
    assert column(page, "Lives of processes", 1) == wanted
    assert column(page, "Lives of processes", 2) == written(
        page, "count", [one["incarnation"] for one in reversed(lives)]
    )
    assert column(page, "Lives of processes", 3) == written(page, "words", [one["cause"] for one in reversed(lives)])
    servers = [one["state"] for one in told["status"]["ps"]]
    assert servers == ["stopped"]
    assert column(page, "Parameter servers", 2) == written(page, "words", servers)
    series = {one["name"] for one in http.get(f"/jobs/{job}/series", params={"by": "time"}).json()["series"]}
    speeds = page.locator(".panel").filter(has_text="Speed of workers").locator(".legend li")
    assert {f"worker.{one.split()[1]}.samples_per_second" for one in speeds.all_inner_texts()} == {
        one for one in series if one.startswith("worker.")
    }

    page.goto(f"/#/jobs/{job}/events")
    events = http.get(f"/jobs/{job}/events", params={"limit": 500}).json()["events"]
    expect(page.locator(".timeline > li")).to_have_count(min(200, len(events)))
    page.goto(f"/#/jobs/{job}/files")
    page.get_by_role("table", name="Checkpoints").locator("tbody tr").first.wait_for()
    for table, name, given in (
        ("Artifacts", "name", told["artifacts"]),
        ("Checkpoints", "version", told["checkpoints"][::-1]),
    ):
        values = [one[name] for one in given]
        assert column(page, table, 1) == (values if name == "name" else written(page, "count", values))

    page.goto("/#/")
    page.get_by_role("table", name="Last decisions").locator("tbody tr").first.wait_for()
    decisions = http.get("/scheduler/decisions", params={"limit": 15}).json()["decisions"]
    changes = [change for one in decisions for change in one["changes"]][:20]
    assert column(page, "Last decisions", 3) == [f"{one['before']} → {one['after']}" for one in changes]
    assert column(page, "Last decisions", 4) == [one["text"] for one in changes]
    page.goto(f"/#/admin/audit?target={job}")
    page.get_by_role("table", name="Changes").locator("tbody tr").first.wait_for()
    entries = http.get("/audit", params={"target": job, "limit": 50}).json()["entries"]
    assert column(page, "Changes", 3) == [one["action"] for one in entries]
    assert {"job.change", "job.suspend", "job.resume"} <= {one["action"] for one in entries}
    page.goto("/#/jobs")
    row = page.get_by_role("table", name="Jobs").locator("tbody tr").filter(has_text=job)
    expect(row).to_contain_text("Succeeded")
    expect(row).to_contain_text("100 %")
    page.goto(f"/#/jobs/{job}")


def compared(page: Page, jobs: list[dict[str, Any]]) -> None:
    """Compares the jobs in the page, and the page with what the API said of them."""
    page.goto("/#/compare?" + "&".join(f"job={one['id']}" for one in jobs))
    page.get_by_role("table", name="Jobs").locator("tbody tr").nth(len(jobs) - 1).wait_for()
    states = [one["status"] for one in jobs]
    assert column(page, "Jobs", 4) == written(page, "measure", [one.get("loss") for one in states])
    assert column(page, "Jobs", 7) == written(page, "count", [one.get("model_version") for one in states])
    page.get_by_label("Only what differs").uncheck()
    fields = column(page, "Settings", 1)
    assert set(fields) == set(jobs[0]["spec"]) | set(jobs[1]["spec"])
    shown = column(page, "Settings", 2)[fields.index("num_epochs")]
    assert shown == str(jobs[0]["spec"]["num_epochs"])


def evaluated_and_fetched(page: Page, job: str, data: str) -> str:
    """Looks into a log, keeps what the job made, and evaluates the model with its last checkpoint: that job."""
    page.goto(f"/#/jobs/{job}/logs?role=master")
    expect(page.locator(".log div").first).to_be_visible(timeout=PATIENCE_MS)
    page.goto(f"/#/jobs/{job}/files")
    with page.expect_download(timeout=PATIENCE_MS) as download:
        page.get_by_role("link", name="model.keras").first.click()
    assert Path(download.value.path()).stat().st_size > 10_000
    page.get_by_role("link", name=re.compile("^Evaluate with version")).first.click()
    page.get_by_label("Validation data").fill(data)
    page.get_by_label("Name", exact=True).fill("judged")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/#/jobs/judged-*")
    expect(page.locator(".head")).to_contain_text("Succeeded", timeout=PATIENCE_MS)
    expect(page.locator(".stats")).to_contain_text("Accuracy")
    return page.url.rpartition("/")[2]


def test_the_page_of_a_job_that_was_scaled_killed_and_resumed(
    cluster: Cluster, visit: Callable[..., Visit], tmp_path: Path
) -> None:
    digits = tmp_path / "digits"
    cluster.cli("data", "generate", "digits", str(digits))
    job = cluster.submit(
        *("--job_name", "watched", "--model_zoo", str(EXAMPLES / "digits" / "zoo")),
        *("--model_def", "digits.forward", "--training_data", str(digits / "train")),
        *("--num_epochs", "40", "--minibatch_size", "32", "--min_workers", "1", "--max_workers", "1"),
    )
    url = json.loads((cluster.data_dir / "cluster.json").read_text())["api_url"]
    shown = RecordedCluster(url, "", cluster.data_dir, None, cluster.token)
    page = visit(shown, path=f"/#/jobs/{job}").page
    head = page.locator(".head")
    expect(head).to_contain_text("Running", timeout=PATIENCE_MS)

    act(page, "Scale", "Scale", Most_workers="2", Least_workers="2")
    expect(page.locator(".stats")).to_contain_text("2 / 2", timeout=PATIENCE_MS)
    worker_process(job).send_signal(signal.SIGKILL)
    act(page, "Suspend", "Suspend")
    expect(head).to_contain_text("Suspended", timeout=PATIENCE_MS)
    act(page, "Resume", "Resume")
    expect(head).to_contain_text("Running", timeout=PATIENCE_MS)
    page.goto(f"/#/jobs/{job}/stacks")
    standing = page.locator(".head .note")
    expect(standing).to_contain_text(re.compile("processes in"), timeout=PATIENCE_MS)
    assert int(standing.inner_text().split()[0]) >= 3  # the master, a parameter server, a worker
    page.goto(f"/#/jobs/{job}/processes")
    page.get_by_label("How long to record").select_option("1")
    with page.expect_download(timeout=PATIENCE_MS) as download:
        page.get_by_role("button", name="Record a trace").click()
    assert download.value.suggested_filename == f"{job}.trace.json"
    trace = json.loads(Path(download.value.path()).read_text())
    assert trace["otherData"]["job"] == job
    assert faults_of(trace) == []
    page.goto(f"/#/jobs/{job}")
    expect(head).to_contain_text("Succeeded", timeout=PATIENCE_MS)
    page.get_by_role("button", name="Audit", exact=True).click()
    expect(page.locator(".audited")).to_contain_text("Every committed record was processed", timeout=PATIENCE_MS)

    headers = {"Authorization": f"Bearer {cluster.token}"}
    with httpx.Client(base_url=f"{url}/v1", headers=headers, timeout=30, trust_env=False) as http:
        told: dict[str, Any] = http.get(f"/jobs/{job}").json()
        ledger = http.get(f"/jobs/{job}/ledger").json()
        audit = http.get(f"/jobs/{job}/audit").json()
        lives = http.get(f"/jobs/{job}/processes", params={"limit": 1000}).json()["processes"]
        shown_equals_told(page, http, told, audit)
        judged = evaluated_and_fetched(page, job, str(digits / "validation"))
        compared(page, [told, http.get(f"/jobs/{judged}").json()])
    progress = told["status"]["progress"]
    total = ledger["total"]
    assert audit["verdict"] == "held", audit
    assert total["committed"] + total["leased"] + total["todo"] + total["skipped"] == total["planned"]
    assert [one["committed"] for one in audit["epochs"]] == [one["committed"] for one in ledger["epochs"]]
    assert progress["records_done"] == total["committed"] == sum(one["committed"] for one in audit["epochs"])
    page.goto(f"/#/jobs/{job}")
    expect(page.locator(".stats")).to_contain_text("100 %")
    page.reload()
    expect(page.locator("main")).to_contain_text(f"{total['planned']:,} records")
    assert {one["cause"] for one in lives if one["role"] == "worker"} >= {"killed"}
