"""Submitting by the page: the form is the API's schema, an upload is a bundle, problems stand at their fields."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from elasticdl.submission import continue_from
from elasticdl_api.schemas.jobs import spec_schema
from tests.browser.visits import Visit, module_address
from tests.fakes.recorded_cluster import RecordedCluster
from tests.fakes.recorded_story import STORY
from tests.integration.api.conftest import MODULE

pytestmark = pytest.mark.browser
Client = Callable[[RecordedCluster], httpx.Client]


def test_changes_wait_for_the_proof_that_the_session_brings(
    visit: Callable[..., Visit], fresh: RecordedCluster
) -> None:
    page = visit(fresh, path="/#/submit").page
    address = page.url
    page.goto("about:blank")  # or the first page may ask below, with the proof that it has
    held: list[Any] = []
    asked: list[str] = []
    page.route("**/v1/session", lambda route: held.append(route))
    page.on("request", lambda request: asked.append(request.url) if "/what-if" in request.url else None)
    page.clock.install()
    page.goto(address)
    expect(page.get_by_role("button", name="Submit")).to_be_visible()
    page.clock.run_for(2000)
    assert held and not asked
    with page.expect_request("**/what-if") as found:
        held[0].continue_()
    assert found.value.headers["x-csrf-token"]


def test_every_field_of_the_schema_is_in_the_form(visit: Callable[..., Visit], fresh: RecordedCluster) -> None:
    page = visit(fresh, path="/#/submit").page
    page.get_by_label("Name", exact=True).wait_for()
    wanted = {name for name, about in spec_schema()["properties"].items() if about["type"] and name != "type"}
    seen: set[str] = set()
    for kind in ("Train", "Evaluate", "Predict"):
        page.get_by_role("button", name=kind).click()
        seen |= set(page.locator("form [name]").evaluate_all("all => all.map((one) => one.name)"))
    assert wanted - seen == set()


def test_a_module_is_uploaded_and_submitted_with_its_settings(
    visit: Callable[..., Visit], fresh: RecordedCluster, api: Client
) -> None:
    page, client = visit(fresh, path="/#/submit").page, api(fresh)
    page.get_by_label("Model code").set_input_files(
        {"name": "digits.py", "mimeType": "text/x-python", "buffer": MODULE.encode()}
    )
    expect(page.get_by_text("is uploaded")).to_be_visible()
    expect(page.get_by_label("Model def")).to_have_value("digits.custom_model")
    page.get_by_label("Name", exact=True).fill("from-the-page")
    page.get_by_label("Training data").fill("/data/train")
    page.get_by_label("Max workers").fill("3")
    page.get_by_role("searchbox", name="Find a setting").fill("optimizer")
    page.get_by_label("Optimizer params").fill("lr=0.01\nkind=SGD")
    page.get_by_role("searchbox", name="Find a setting").fill("")
    page.get_by_text("Job 3 settings").or_(page.get_by_text("Job 2 settings")).click()
    page.get_by_label("Labels").fill("team=ads")
    expect(page.get_by_text("What would happen")).to_be_visible()
    expect(page.get_by_text("No other job would wait for it.")).to_be_visible()
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/#/jobs/from-the-page-*")
    job = client.get("/jobs/" + page.url.rpartition("/")[2]).json()
    spec = job["spec"]
    assert spec["optimizer_params"] == {"lr": 0.01, "kind": "SGD"} and spec["labels"] == {"team": "ads"}
    assert (spec["max_workers"], spec["min_workers"], spec["training_data"]) == (3, 1, "/data/train")
    stored = client.get(f"/bundles/{spec['model_bundle']}")
    with zipfile.ZipFile(io.BytesIO(stored.content)) as bundle:
        assert bundle.testzip() is None
        assert bundle.read("digits.py").decode() == MODULE
    page.goto("/#/jobs")  # a browser complains of each answer 404, and the job's view reads on
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    assert client.post(f"/jobs/{job['id']}/cancel").status_code == 202
    assert client.delete(f"/jobs/{job['id']}").status_code == 204


def test_problems_stand_at_their_fields(visit: Callable[..., Visit], fresh: RecordedCluster) -> None:
    here = visit(fresh, path="/#/submit", expected="422")
    page = here.page
    page.get_by_label("Name", exact=True).fill("Not A Name")
    page.get_by_label("Model def").fill("digits.custom_model")
    page.get_by_label("Minibatch size").fill("many")
    page.get_by_role("button", name="Submit").click()
    wrong = page.locator(".field[data-wrong]")
    expect(wrong.filter(has_text="Minibatch size").get_by_role("alert")).to_contain_text("whole number")
    expect(page.get_by_label("Minibatch size")).to_be_focused()
    assert page.get_by_label("Minibatch size").get_attribute("aria-invalid") == "true"
    page.get_by_label("Minibatch size").fill("64")
    expect(wrong).to_have_count(0)
    page.get_by_role("button", name="Submit").click()
    expect(wrong.filter(has_text="lower-case").get_by_role("alert")).to_be_visible()
    assert here.findings() == []


def test_a_job_is_submitted_again_with_changes(
    visit: Callable[..., Visit], recorded: RecordedCluster, api: Client
) -> None:
    page = visit(recorded, path=f"/#/submit?like={STORY}").page
    spec = api(recorded).get(f"/jobs/{STORY}").json()["spec"]
    expect(page.get_by_label("Max workers")).to_have_value("6")
    page.get_by_text("What is sent").click()
    sent = json.loads(page.locator("pre.sent").inner_text())
    defaults = {name: about.get("default") for name, about in spec_schema()["properties"].items()}
    assert sent == {name: value for name, value in spec.items() if defaults.get(name) != value}
    page.get_by_label("Num epochs").fill("7")
    assert json.loads(page.locator("pre.sent").inner_text())["num_epochs"] == 7


@pytest.mark.parametrize(("label", "kind"), [("Evaluate", "evaluation"), ("Predict", "prediction")])
def test_a_checkpoint_is_gone_on_with_as_by_the_command_line(
    visit: Callable[..., Visit], recorded: RecordedCluster, api: Client, label: str, kind: str
) -> None:
    page = visit(recorded, path=f"/#/jobs/{STORY}/files").page
    job = api(recorded).get(f"/jobs/{STORY}").json()
    page.get_by_role("link", name=f"{label} with version 18000").click()
    page.get_by_text("What is sent").click()
    sent = json.loads(page.locator("pre.sent").inner_text())
    for one in job["checkpoints"]:
        one["manifest"]["directory"] = one["manifest"].get("directory", "")
    defaults = {name: about.get("default") for name, about in spec_schema()["properties"].items()}
    wanted = {"type": kind, **continue_from(job, 18_000)}
    assert sent == {name: value for name, value in wanted.items() if defaults.get(name) != value}


def test_the_forecast_names_whom_a_job_would_slow(visit: Callable[..., Visit], recorded: RecordedCluster) -> None:
    page = visit(recorded, path=f"/#/submit?like={STORY}").page
    page.get_by_label("Max workers").fill("1200")
    page.get_by_label("Min workers").fill("1000")
    page.get_by_label("Priority").fill("900")
    expect(page.get_by_role("table", name="Forecast")).to_be_visible()
    page.get_by_label("Max workers").fill("few")
    expect(page.get_by_text("Give a number of workers")).to_be_visible()


@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_the_page_writes_zips_that_others_read(
    visit: Callable[..., Visit], fresh: RecordedCluster, size: int
) -> None:
    page = visit(fresh, path="/#/submit").page
    content = bytes(number * 31 % 251 for number in range(size))
    script = """async ([address, content]) =>
        Array.from((await import(address)).zipOf("modell-ü.py", new Uint8Array(content)))"""
    made = bytes(page.evaluate(script, [module_address(page, "views/submit/zip.js"), list(content)]))
    with zipfile.ZipFile(io.BytesIO(made)) as bundle:
        assert bundle.testzip() is None and bundle.read("modell-ü.py") == content
