"""What verbs of the command line tell, read off the page: each number and text is the API's."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.reading import column, written
from tests.browser.views import settle
from tests.browser.visits import Visit
from tests.fakes.recorded_cluster import RecordedCluster
from tests.fakes.recorded_story import STORY

pytestmark = pytest.mark.browser
Client = Callable[[RecordedCluster], httpx.Client]
SCRIPT = "import elasticdl.torch\n\nif __name__ == '__main__':\n    print('one epoch')\n"


def test_events_are_those_of_the_api(visit: Callable[..., Visit], recorded: RecordedCluster, api: Client) -> None:
    page = visit(recorded, path=f"/#/jobs/{STORY}/events").page
    events = api(recorded).get(f"/jobs/{STORY}/events", params={"limit": 500}).json()["events"]
    lines = page.locator(".timeline > li")
    expect(lines).to_have_count(min(200, len(events)))
    assert page.locator(".timeline > li .what").first.inner_text().startswith(events[-1]["message"])
    assert page.locator(".timeline > li time").first.get_attribute("datetime") == events[-1]["at"]
    kind = events[-1]["kind"]
    page.get_by_label("Kind").select_option(kind)
    expect(lines).to_have_count(sum(one["kind"] == kind for one in events))


def test_losses_and_evaluations_are_those_of_the_api(
    visit: Callable[..., Visit], recorded: RecordedCluster, api: Client
) -> None:
    page = visit(recorded, path=f"/#/jobs/{STORY}/files").page
    told = api(recorded).get(f"/jobs/{STORY}/metrics", params={"limit": 10}).json()
    page.get_by_role("table", name="Evaluations").locator("tbody tr").first.wait_for()
    newest = list(reversed(told["evaluations"]))
    assert column(page, "Evaluations", 1) == written(page, "count", [one["model_version"] for one in newest])[:200]
    assert column(page, "Evaluations", 2) == written(page, "count", [one["training_epoch"] for one in newest])[:200]
    for value in written(page, "measure", newest[0]["metrics"].values()):
        expect(page.get_by_role("table", name="Evaluations").locator("tbody tr").first).to_contain_text(value)
    page.goto(f"/#/jobs/{STORY}?by=version")
    status = api(recorded).get(f"/jobs/{STORY}").json()["status"]
    (last,) = written(page, "measure", [status["loss"]])
    assert status["metrics_version"] != status["model_version"]
    shown = [f"version {one}" for one in written(page, "count", [status["metrics_version"], status["model_version"]])]
    for words in shown:
        expect(page.locator(".stats")).to_contain_text(words)
    image = page.get_by_role("figure", name="Loss", exact=True).get_by_role("img")
    expect(image).to_have_accessible_name(re.compile(f"training last {re.escape(last)}, "))
    for kind, begins in (("CSV", b"version,training,evaluated\n"), ("PNG", b"\x89PNG")):
        with page.expect_download() as saved:
            page.get_by_role("button", name=f"Loss as {kind}", exact=True).click()
        assert saved.value.suggested_filename == f"loss.{kind.lower()}"
        assert saved.value.path().read_bytes().startswith(begins)


def test_the_best_model_is_shown_with_that_by_which_it_is_the_best(
    visit: Callable[..., Visit], recorded: RecordedCluster, api: Client
) -> None:
    job = api(recorded).get(f"/jobs/{STORY}").json()
    evaluation, checkpoint = job["evaluations"][0], job["checkpoints"][0]
    mark = {"metric": "auc", "mode": "max", "value": 0.75, "evaluation": evaluation["number"]}
    checkpoint["manifest"]["best"] = {**mark, "version": checkpoint["version"]}
    page = visit(recorded, path="/#/jobs").page
    page.route(f"**/v1/jobs/{STORY}", lambda route: route.fulfill(json=job))
    page.goto(f"/#/jobs/{STORY}/files")
    for table, version in (("Checkpoints", checkpoint["version"]), ("Evaluations", evaluation["model_version"])):
        marked = page.get_by_role("table", name=table).locator("tbody tr").filter(has_text="Best")
        expect(marked).to_have_count(1)
        (number,), (value,) = written(page, "count", [version]), written(page, "measure", [mark["value"]])
        expect(marked.locator("td").first).to_have_text(re.compile(rf"{re.escape(number)}\s*Best: auc {value}"))


def test_a_job_is_explained_as_by_the_api(
    visit: Callable[..., Visit], recorded: RecordedCluster, api: Client
) -> None:
    client = api(recorded)
    waits = next(one for one in client.get("/scheduler/plan").json()["jobs"] if one["state"] == "QUEUED")
    page = visit(recorded, path=f"/#/jobs/{waits['job_id']}/why").page
    why = client.get(f"/jobs/{waits['job_id']}/explain").json()
    expect(page.locator(".said")).to_have_text(why["reason"]["text"])
    main, workers, slots = page.locator("main"), why["workers"], why["slots"]
    expect(main).to_contain_text(
        f"{workers['present']} of {workers['target']} ({workers['min']} to {workers['max']})"
    )
    expect(main).to_contain_text(f"{slots['used']:,} of {slots['total']:,} used, {slots['free']:,} free")
    for one in why["remedies"]:
        expect(page.locator(".remedies")).to_contain_text(one["text"])
    if why["blockers"]:
        assert column(page, "Who holds what it lacks", 1) == [one["job_id"] for one in why["blockers"]]


def test_the_cluster_is_shown_as_the_api_tells_it(
    visit: Callable[..., Visit], recorded: RecordedCluster, api: Client
) -> None:
    page, client = visit(recorded, path="/#/").page, api(recorded)
    page.get_by_role("table", name="Queue").locator("tbody tr").first.wait_for()
    settle(page)
    cluster, plan = client.get("/cluster").json(), client.get("/scheduler/plan").json()
    stats, slots, jobs = page.locator(".stats"), cluster["slots"], cluster["jobs"]
    expect(stats).to_contain_text(f"{slots['used']:,} / {slots['total']:,}")
    for name, states in (("Running", ("RUNNING", "STARTING")), ("Waiting", ("QUEUED",)), ("Failed", ("FAILED",))):
        stat = stats.locator(".stat").filter(has=page.locator("dt", has_text=name))
        expect(stat.locator("dd a")).to_have_text(f"{sum(jobs.get(state, 0) for state in states):,}")
    waiting = [one for one in plan["jobs"] if one["state"] == "QUEUED"]
    assert column(page, "Queue", 1) == [str(place) for place in range(1, len(waiting[:50]) + 1)]
    assert column(page, "Queue", 6) == [one["reason"]["text"] for one in waiting[:50]]
    at_work = [one for one in plan["jobs"] if one["workers"]["present"] or one["state"] in ("RUNNING", "STARTING")]
    shown = column(page, "Jobs at work", 4)
    assert shown == [
        f"{one['present']} / {one['target']} ({one['min']}–{one['max']})"
        for one in (job["workers"] for job in at_work[:50])
    ]
    parts = (
        page.locator("section.panel")
        .filter(has=page.get_by_role("heading", name="Components"))
        .get_by_role("listitem")
    )
    expect(parts).to_have_count(len(cluster["components"]) + 1)  # and the plan
    for name, state in cluster["components"].items():
        part = parts.filter(has_text=name.capitalize())
        expect(part.locator(".badge")).to_have_attribute("data-tone", "good" if state == "ok" else "bad")
        if state != "ok":
            expect(part).to_contain_text(state)


def test_a_script_with_a_loop_of_its_own_is_submitted(
    visit: Callable[..., Visit], fresh: RecordedCluster, api: Client
) -> None:
    page, client = visit(fresh, path="/#/submit").page, api(fresh)
    page.get_by_label("Model code").set_input_files(
        {"name": "own.py", "mimeType": "text/x-python", "buffer": SCRIPT.encode()}
    )
    expect(page.get_by_label("Model def")).to_have_value("own.__main__")
    page.get_by_label("Name", exact=True).fill("own-loop")
    page.get_by_label("Training data").fill("/data/train")
    page.get_by_role("searchbox", name="Find a setting").fill("script")
    page.get_by_label("Script args").fill("--lr 0.1 'a b'")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/#/jobs/own-loop-*")
    job = client.get("/jobs/" + page.url.rpartition("/")[2]).json()
    assert (job["spec"]["model_def"], job["spec"]["script_args"]) == ("own.__main__", "--lr 0.1 'a b'")
    page.goto("/#/jobs")  # a browser complains of each answer 404, and the job's view reads on
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    assert client.post(f"/jobs/{job['id']}/cancel").status_code == 202
    assert client.delete(f"/jobs/{job['id']}").status_code == 204


def test_the_page_says_who_is_logged_in(visit: Callable[..., Visit], recorded: RecordedCluster) -> None:
    token = recorded.make_token("submit", "default")
    headers = {"Authorization": f"Bearer {token}"}
    who = httpx.get(f"{recorded.url}/v1/whoami", headers=headers, timeout=30, trust_env=False).json()
    page = visit(recorded, path="/#/jobs", token=token).page
    expect(page.locator(".who")).to_have_text(f"{who['user']} {who['namespace']}")
    navigation = page.get_by_role("navigation", name="Views")
    expect(navigation.get_by_role("link", name="Submit")).to_be_visible()
    expect(navigation.get_by_role("link", name="Admin")).to_have_count(0)  # its scope is `submit`
