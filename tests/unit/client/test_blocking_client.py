"""The blocking client against an API on loopback."""

from __future__ import annotations

import copy
import hashlib
import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from elasticdl.client import Client, RetryPolicy
from elasticdl.client.messages import Request
from elasticdl_core.errors import (
    ConflictError,
    ElasticDLError,
    InvalidInputError,
    NotFoundError,
    SpecError,
    UnauthenticatedError,
    UnavailableError,
)
from elasticdl_core.job import JobSpec, JobState
from tests.fakes.api import NOW, TOKEN, FakeApi, Fault, make_job, make_status, sse

pytestmark = pytest.mark.unit

FIELDS = {"model_def": "digits.custom_model", "training_data": "/data/digits"}
BUNDLE = "sha256:" + "0" * 64


def test_submitting_sends_what_was_given_and_nothing_else(api: FakeApi, client: Client) -> None:
    job = client.submit(**FIELDS, model_bundle=BUNDLE, name="digits")
    assert job.id == "digits-1"
    assert job.state is JobState.QUEUED
    (request,) = api.requests("POST", "/jobs")
    assert request.json() == {**FIELDS, "model_bundle": BUNDLE, "name": "digits"}
    assert request.headers["authorization"] == f"Bearer {TOKEN}"


def test_paths_and_numbers_of_numpy_are_taken_everywhere(api: FakeApi, client: Client, tmp_path: Path) -> None:
    """They were taken in one place and refused in another."""
    params = {"lr": np.float32(0.5), "units": np.array([3, 4]), "vocabulary": tmp_path / "words"}
    counted = {"num_epochs": np.int64(2), "shuffle": np.bool_(False), "min_workers": 1.0}
    job = client.submit(
        model_def="m.f",
        model_bundle=BUNDLE,
        training_data=tmp_path,
        model_params=params,
        labels={"run": "ü"},
        **counted,
    )
    sent = api.requests("POST", "/jobs")[0].json()
    assert sent["model_params"] == {"lr": 0.5, "units": [3, 4], "vocabulary": str(tmp_path / "words")}
    assert (sent["num_epochs"], sent["shuffle"], sent["training_data"]) == (2, False, str(tmp_path))
    client.scale(job.id, max_workers=np.int64(3))
    assert api.requests("PATCH", f"/jobs/{job.id}")[0].json() == {"max_workers": 3}


def test_a_label_that_is_no_text_is_named(client: Client) -> None:
    with pytest.raises(SpecError, match=r"labels: .*an object of texts, with quotes around the value of 'run'"):
        client.submit(**FIELDS, model_bundle=BUNDLE, labels={"run": 1})


def test_a_client_travels_to_another_process(api: FakeApi, client: Client) -> None:
    api.jobs["a-1"] = make_job("a-1")
    with pickle.loads(pickle.dumps(client)) as sent, copy.deepcopy(client) as copied:  # noqa: S301 - our own bytes
        assert sent.get("a-1").id == copied.get("a-1").id == "a-1"


def test_what_is_no_id_and_a_client_that_is_closed_are_told(api: FakeApi, client: Client) -> None:
    api.jobs["a-1"] = make_job("a-1")
    job = client.get("a-1")
    for odd in (job, 5):
        with pytest.raises(InvalidInputError, match="is no job id"):
            client.cancel(odd)  # type: ignore[arg-type]
    client.close()
    client.close()
    with pytest.raises(InvalidInputError, match="this client is closed"):
        client.get("a-1")


def test_relative_local_paths_are_made_absolute(
    api: FakeApi, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train").mkdir()
    monkeypatch.chdir(tmp_path)
    client.submit(model_def="m.f", model_bundle=BUNDLE, training_data="train", validation_data="table", output="out")
    sent = api.requests("POST", "/jobs")[0].json()
    assert sent["training_data"] == str(tmp_path / "train")
    assert sent["output"] == str(tmp_path / "out")
    assert sent["validation_data"] == "table", "what is no path here may be known there"


def test_a_spec_object_and_keyword_arguments_make_one_body(api: FakeApi, client: Client) -> None:
    client.submit(JobSpec(**FIELDS, model_bundle=BUNDLE, minibatch_size=32, num_ps=2), num_ps=3)
    (request,) = api.requests("POST", "/jobs")
    assert request.json() == {**FIELDS, "model_bundle": BUNDLE, "minibatch_size": 32, "num_ps": 3}


def test_a_spec_that_cannot_work_is_refused_before_anything_is_sent(api: FakeApi, client: Client) -> None:
    with pytest.raises(SpecError, match="minibatch_size"):
        client.submit(**FIELDS, model_bundle=BUNDLE, minibatch_size=0)
    assert api.seen == []


def test_a_lost_answer_to_submit_is_asked_for_again_with_the_same_key(api: FakeApi, client: Client) -> None:
    api.faults.append(Fault("POST", "/jobs", status=0, times=2))
    job = client.submit(**FIELDS, model_bundle=BUNDLE)
    assert list(api.jobs) == [job.id]
    keys = {request.headers["idempotency-key"] for request in api.requests("POST", "/jobs")}
    assert len(api.requests("POST", "/jobs")) == 3
    assert len(keys) == 1


def test_two_submissions_have_two_keys_unless_told_otherwise(api: FakeApi, client: Client) -> None:
    first, second = (client.submit(**FIELDS, model_bundle=BUNDLE) for _ in range(2))
    assert first.id != second.id
    third, fourth = (client.submit(**FIELDS, model_bundle=BUNDLE, idempotency_key="mine") for _ in range(2))
    assert third.id == fourth.id


def test_problems_of_the_api_become_a_spec_error_with_all_of_them(api: FakeApi, client: Client) -> None:
    problems = [
        {"field": "num_ps", "message": "too many", "fix": "give fewer"},
        {"field": "name", "message": "taken"},
    ]
    api.refusal = {"status": 422, "code": "invalid_spec", "detail": "two problems", "problems": problems}
    with pytest.raises(SpecError) as caught:
        client.submit(**FIELDS, model_bundle=BUNDLE)
    assert [problem.field for problem in caught.value.problems] == ["num_ps", "name"]
    assert "give fewer" in caught.value.fix


def test_problem_codes_become_exceptions_with_their_fix(api: FakeApi, client: Client) -> None:
    with pytest.raises(NotFoundError, match="no job 'missing'") as caught:
        client.get("missing")
    assert caught.value.fix == "see the list of jobs"
    api.jobs["a-1"] = make_job("a-1", state="RUNNING")
    with pytest.raises(ConflictError, match="cancel it first"):
        client.delete("a-1")
    with Client(api.url, "wrong") as stranger, pytest.raises(UnauthenticatedError, match="no valid token"):
        stranger.get("a-1")


def test_an_api_that_is_away_for_a_moment_is_waited_for(api: FakeApi, client: Client) -> None:
    api.jobs["a-1"] = make_job("a-1")
    api.faults += [Fault("GET", "/jobs/a-1", 503, headers={"Retry-After": "0"}), Fault("GET", "/jobs/a-1", 0)]
    assert client.get("a-1").id == "a-1"
    assert len(api.requests("GET", "/jobs/a-1")) == 3


def test_an_api_that_stays_away_is_given_up(api: FakeApi, client: Client) -> None:
    api.faults.append(Fault("GET", "/jobs", 503, times=100))
    with pytest.raises(UnavailableError):
        client.list()
    assert len(api.requests("GET", "/jobs")) == 4


def test_asking_twice_is_asking_once_so_a_lost_answer_is_asked_for_again(api: FakeApi, client: Client) -> None:
    api.jobs["a-1"] = make_job("a-1")
    api.faults.append(Fault("POST", "/jobs/a-1/cancel", 0))
    assert client.cancel("a-1").state is JobState.CANCELLED
    assert len(api.requests("POST", "/jobs/a-1/cancel")) == 2


def test_a_job_is_also_a_mapping_of_what_the_api_told(api: FakeApi, client: Client) -> None:
    api.jobs["a-1"] = make_job("a-1", status=make_status(5, 10), brand_new=1)
    job = client.get("a-1")
    assert job["status"]["progress"]["records_done"] == job.status.progress.records_done == 5
    assert job.get("brand_new") == 1 and job.get("absent") is None
    assert dict(job) == api.jobs["a-1"]


def test_nobody_at_the_address_tells_what_to_do(api: FakeApi) -> None:
    url = api.url
    with FakeApi() as gone:
        nobody = gone.url
    assert nobody != url
    with (
        Client(nobody, TOKEN, retry=RetryPolicy(attempts=1)) as client,
        pytest.raises(UnavailableError, match="elasticdl up"),
    ):
        client.cluster()


def test_another_web_server_at_the_address_is_recognised(api: FakeApi, client: Client) -> None:
    api.jobs["a-1"] = make_job("a-1")
    api.logs["a-1"] = "<html>"
    with pytest.raises(ElasticDLError, match="not JSON"):
        client._api.fetch(Request("GET", "/jobs/a-1/logs"))


def test_states_are_changed_and_bounds_are_patched(api: FakeApi, client: Client) -> None:
    api.jobs["a-1"] = make_job("a-1", state="RUNNING")
    assert client.suspend("a-1").state is JobState.SUSPENDED
    assert client.resume("a-1").state is JobState.QUEUED
    assert client.scale("a-1", 2, 5).max_workers == 5
    assert api.requests("PATCH")[0].json() == {"min_workers": 2, "max_workers": 5}
    assert client.scale("a-1", priority=0).priority == 0
    assert api.requests("PATCH")[1].json() == {"priority": 0}
    with pytest.raises(InvalidInputError, match="nothing to change"):
        client.scale("a-1")
    client.cancel("a-1")
    client.delete("a-1")
    assert api.jobs == {}


def test_an_id_cannot_reach_another_path(api: FakeApi, client: Client) -> None:
    with pytest.raises(NotFoundError):
        client.get("../cluster")
    assert api.seen == []
    with pytest.raises(InvalidInputError, match="empty"):
        client.delete("")


def test_lists_come_in_pages_and_can_be_filtered(api: FakeApi, client: Client) -> None:
    for number in range(5):
        job_id = f"a-{number}"
        api.jobs[job_id] = make_job(job_id, state="RUNNING" if number % 2 else "QUEUED")
    page = client.list(limit=2)
    assert [job.id for job in page.jobs] == ["a-0", "a-1"]
    assert [job.id for job in client.list(limit=9, page_token=page.next_page_token).jobs] == ["a-2", "a-3", "a-4"]
    assert client.list().next_page_token == ""
    assert [job.id for job in client.iterate(page_size=2)] == [f"a-{number}" for number in range(5)]
    assert [job.id for job in client.iterate(state=JobState.RUNNING)] == ["a-1", "a-3"]


def test_events_logs_metrics_and_cluster(api: FakeApi, client: Client) -> None:
    api.jobs["a-1"] = make_job("a-1")
    api.events["a-1"] = [
        {"id": 4, "kind": "state", "message": "QUEUED", "detail": {"x": 1}, "at": "2026-01-02T03:04:05Z"}
    ]
    (event,) = client.events("a-1")
    assert (event.id, event.kind, event.detail) == (4, "state", {"x": 1})
    assert event.at is not None and event.at.year == 2026
    api.logs["a-1"] = "erste Zeile: grün\nsecond\nthird"
    assert client.logs("a-1", role="worker", index=0, tail=2) == "second\nthird"
    assert api.requests("GET", "/jobs/a-1/logs")[0].query == {"role": "worker", "index": "0", "tail": "2"}
    assert list(client.follow_logs("a-1")) == ["erste Zeile: grün", "second", "third"]
    assert client.metrics("a-1")["losses"][0]["loss"] == 0.5
    assert client.cluster()["slots"] == {"total": 4, "used": 1}


def test_following_gives_events_and_views_until_the_end(api: FakeApi, client: Client) -> None:
    api.jobs["a-1"] = make_job("a-1")
    running = make_job("a-1", state="RUNNING", status=make_status(100, 400))
    api.streams["a-1"] = [
        [
            b": hello\n\n",
            sse("status", running),
            sse("event", {"kind": "state", "message": "it runs"}, 1),
            sse("end", {"state": "SUCCEEDED"}),
        ]
    ]
    api.on_end["a-1"] = make_job("a-1", state="SUCCEEDED")
    updates = list(client.updates("a-1"))
    assert [job.state for job in client.follow("a-1")] == ["SUCCEEDED", "RUNNING", "SUCCEEDED"]
    assert [update.job.state for update in updates if update.job] == ["QUEUED", "RUNNING", "SUCCEEDED"]
    assert [(update.event.id, update.event.message) for update in updates if update.event] == [(1, "it runs")]
    assert updates[1].job is not None and updates[1].job.status.progress.fraction == 0.25
    assert [update.ended for update in updates] == [False, False, False, True]


def test_a_view_after_an_event_has_what_the_stream_leaves_out(api: FakeApi, client: Client) -> None:
    api.jobs["a-1"] = make_job("a-1", state="RUNNING")
    view = {key: value for key, value in make_job("a-1", state="RUNNING").items() if key != "checkpoints"}
    api.on_end["a-1"] = make_job("a-1", state="RUNNING", checkpoints=[{"version": 9}])
    api.streams["a-1"] = [
        [
            sse("status", view),
            sse("event", {"kind": "checkpoint", "message": "9"}, 1),
            sse("status", view),
            sse("end", {}),
        ]
    ]
    assert [len(job["checkpoints"]) for job in client.follow("a-1")] == [0, 0, 1, 1]


def test_events_are_fetched_page_by_page(api: FakeApi, client: Client) -> None:
    api.jobs["a-1"] = make_job("a-1")
    api.events["a-1"] = [
        {"id": 3 * n, "kind": "k", "message": str(n), "detail": {}, "at": NOW} for n in range(1, 2051)
    ]
    assert [event.message for event in client.events("a-1")] == [str(n) for n in range(1, 2051)]
    assert len(api.requests("GET", "/jobs/a-1/events")) == 3


def test_a_directory_comes_unpacked_and_cannot_leave_its_place(api: FakeApi, client: Client, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("variables/part", b"12")
        archive.writestr("../../evil", b"3")
    api.jobs["a-1"] = make_job("a-1", artifacts=[{"name": "saved_model", "size": 2, "sha256": "of the tree"}])
    api.files["a-1", "saved_model"] = (packed.getvalue(), "application/zip")
    target = tmp_path / "here" / "deep"
    assert client.download("a-1", target) == [target / "saved_model"]
    assert (target / "saved_model" / "variables" / "part").read_bytes() == b"12"
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"part", "evil"}
    assert list((target / "saved_model").rglob("evil")) != []
    with pytest.raises(ConflictError, match="is there already"):
        client.download("a-1", target)
    api.files["a-1", "saved_model"] = (b"no zip", "application/zip")
    with pytest.raises(ConflictError, match="damaged"):
        client.download("a-1", tmp_path / "other")
    assert list((tmp_path / "other").iterdir()) == []


def test_a_download_that_breaks_is_begun_anew(api: FakeApi, client: Client, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"x" * 1000).hexdigest()
    api.jobs["a-1"] = make_job("a-1", artifacts=[{"name": "m", "size": 1000, "sha256": digest}])
    api.files["a-1", "m"] = (b"x" * 1000, "application/octet-stream")
    api.faults.append(Fault("GET", "/jobs/a-1/artifacts/m", 503))
    api.cut_downloads = 1
    assert client.download("a-1", tmp_path)[0].read_bytes() == b"x" * 1000
    assert len(api.requests("GET", "/jobs/a-1/artifacts/m")) == 3


def test_a_broken_stream_is_resumed_after_the_last_event(api: FakeApi, client: Client) -> None:
    api.jobs["a-1"] = make_job("a-1", state="RUNNING")
    whole = sse("event", {"kind": "k", "message": "three"}, 3)
    api.streams["a-1"] = [
        [
            sse("event", {"kind": "k", "message": "one"}, 1),
            sse("event", {"kind": "k", "message": "two"}, 2),
            whole[:9],
            None,
        ],
        [],
        [whole, sse("end", {})],
    ]
    api.faults.append(Fault("GET", "/jobs/a-1/events", 503))
    messages = [update.event.message for update in client.updates("a-1") if update.event]
    assert messages == ["one", "two", "three"]
    asked = [request.headers.get("last-event-id") for request in api.requests("GET", "/jobs/a-1/events")]
    assert asked[0] is None
    assert asked[-2:] == ["2", "2"]


def test_following_an_unknown_job_fails_at_once(client: Client) -> None:
    with pytest.raises(NotFoundError):
        next(client.updates("missing"))


def test_leaving_a_stream_early_closes_it(api: FakeApi, client: Client) -> None:
    api.jobs["a-1"] = make_job("a-1", state="RUNNING")
    api.streams["a-1"] = [[sse("event", {"kind": "k", "message": "one"}, 1), sse("end", {})]]
    stream = client.updates("a-1")
    next(stream)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert client.get("a-1").id == "a-1"


def test_waiting_ends_with_the_job_or_with_the_time(api: FakeApi, client: Client) -> None:
    api.jobs["a-1"] = make_job("a-1", state="FAILED", error={"message": "boom", "fix": "mend it", "traceback": "tb"})
    job = client.wait("a-1")
    assert job.error is not None and (job.error.message, job.error.fix, job.error.traceback) == (
        "boom",
        "mend it",
        "tb",
    )
    api.jobs["b-1"] = make_job("b-1", state="RUNNING")
    with pytest.raises(TimeoutError, match="still RUNNING"):
        client.wait("b-1", timeout_s=0.05, poll_s=0.01)


def test_waiting_looks_pauses_and_looks_again(api: FakeApi, client: Client) -> None:
    api.jobs["a-1"] = make_job("a-1", state="RUNNING")
    pauses: list[float] = []
    client._api.sleep = pauses.append
    client._api.now = lambda: sum(pauses)
    with pytest.raises(TimeoutError, match="after 10 s"):
        client.wait("a-1", timeout_s=10.0, poll_s=4.0)
    assert pauses == [4.0, 4.0, 2.0]
    assert len(api.requests("GET", "/jobs/a-1")) == 4
