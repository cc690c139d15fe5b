"""The parts of the client that know nothing of sockets: streams, retries, errors, where the API is."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.client.endpoint import Endpoint, find_endpoint
from elasticdl.client.messages import NoResponse, Request, Response
from elasticdl.client.problems import error_of
from elasticdl.client.retry import Patience, RetryPolicy
from elasticdl.client.sse import Message, SseDecoder
from elasticdl.client.transport import no_response_of, trusts_environment
from elasticdl.client.views import Job
from elasticdl_core.errors import (
    ConflictError,
    ElasticDLError,
    InvalidInputError,
    SpecError,
    UnavailableError,
    UserCodeError,
)

pytestmark = pytest.mark.unit

STREAM = (
    "\ufeff: hi\nid: 1\nevent: status\ndata: {}\n\n"
    "data:a\r\ndata: b\r\r\n"
    "retry: 1500\nid\ndata: grün\n\n"
    "event: x\n\ndata"
)
MESSAGES = [Message("status", "{}", "1"), Message("message", "a\nb", "1"), Message("message", "grün", "")]


@given(st.lists(st.integers(0, len(STREAM.encode()))))
def test_a_stream_means_the_same_however_it_is_cut(cuts: list[int]) -> None:
    data = STREAM.encode()
    edges = [0, *sorted(cuts), len(data)]
    decoder = SseDecoder()
    found = [message for a, b in itertools.pairwise(edges) for message in decoder.feed(data[a:b])]
    assert found == MESSAGES
    assert decoder.retry_s == 1.5


def test_a_resumed_stream_keeps_the_last_id() -> None:
    assert list(SseDecoder("7").feed(b"data: x\n\n")) == [Message("message", "x", "7")]


def test_pauses_grow_to_a_bound_and_are_never_nothing() -> None:
    policy = RetryPolicy(attempts=10, first_s=0.5, longest_s=4.0, uniform=lambda: 1.0)
    assert [policy.backoff(attempt) for attempt in range(5)] == [0.5, 1.0, 2.0, 4.0, 4.0]
    assert RetryPolicy(first_s=1.0, uniform=lambda: 0.0).backoff(0) == 0.5
    assert policy.backoff(10_000) == 4.0


@pytest.mark.parametrize(
    ("outcome", "idempotent", "again"),
    [
        (Response(503, {}), True, True),
        (Response(503, {}), False, False),
        (Response(429, {}), True, True),
        (Response(500, {}), True, False),
        (Response(404, {}), True, False),
        (Response(200, {}), True, False),
        (NoResponse("reset", sent=True), True, True),
        (NoResponse("reset", sent=True), False, False),
        (NoResponse("refused", sent=False), False, True),
    ],
)
def test_only_what_may_be_repeated_is(outcome: Response | NoResponse, idempotent: bool, again: bool) -> None:
    request = Request("GET", "/", idempotent=idempotent)
    policy = RetryPolicy(attempts=2)
    assert (policy.pause(request, outcome, 0) is not None) is again
    assert policy.pause(request, outcome, 1) is None


@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (httpx.ConnectError("refused"), False),
        (httpx.ConnectTimeout(""), False),
        (httpx.PoolTimeout("all are busy"), False),
        (httpx.ReadTimeout(""), True),
        (httpx.WriteError("broken pipe"), True),
        (httpx.RemoteProtocolError("hung up"), True),
    ],
)
def test_what_may_have_reached_the_server_counts_as_sent(error: httpx.HTTPError, sent: bool) -> None:
    found = no_response_of(error)
    assert found.sent is sent and found.message


def test_patience_is_whole_again_with_each_answer() -> None:
    patience = Patience(10.0)
    assert not patience.over(asked_at=0.0, now=9.0)
    patience.answered()
    assert not patience.over(asked_at=20.0, now=29.0)
    assert patience.over(asked_at=28.0, now=30.0), "it counts from the first question without an answer"


def test_this_machines_own_cluster_is_asked_past_all_proxies() -> None:
    assert not trusts_environment(Endpoint("http://127.0.0.1:8000", "token"))
    assert not trusts_environment(Endpoint("https://localhost:8000", "token"))
    assert trusts_environment(Endpoint("https://api.example.org", "token"))


def test_the_server_may_say_how_long_to_wait_within_reason() -> None:
    policy, request = RetryPolicy(), Request("GET", "/")
    assert policy.pause(request, Response(503, {"retry-after": "2"}), 0) == 2.0
    assert policy.pause(request, Response(503, {"retry-after": "99999"}), 0) == 60.0
    assert policy.pause(request, Response(503, {"retry-after": "-1"}), 0) == 0.0


def problem(status: int, **fields: object) -> ElasticDLError:
    response = Response(status, {"content-type": "application/problem+json"}, json.dumps(fields).encode())
    return error_of(response, Request("GET", "/jobs"))


def test_the_code_decides_and_else_the_status() -> None:
    assert type(problem(409, code="idempotency_conflict", detail="d")) is ConflictError
    assert type(problem(409, code="unavailable")) is UnavailableError
    assert type(problem(422, code="invalid_input", problems=[{"field": "limit"}], detail="d")) is InvalidInputError
    assert isinstance(
        problem(422, code="invalid_spec", problems=[{"field": "x", "message": "m", "fix": "f"}]), SpecError
    )
    assert type(problem(500, code="internal", detail="it broke")) is ElasticDLError
    error = problem(422, code="user_code", detail="m.py:1: bad", fix="mend", traceback="tb")
    assert isinstance(error, UserCodeError)
    assert (error.message, error.fix, error.traceback) == ("m.py:1: bad", "mend", "tb")


def test_an_answer_that_is_no_problem_is_told_as_it_is() -> None:
    error = error_of(Response(502, {"content-type": "text/html"}, b"<h1>Bad Gateway</h1>"), Request("GET", "/jobs"))
    assert isinstance(error, UnavailableError)
    assert "GET /jobs gave HTTP 502: <h1>Bad Gateway</h1>" in error.message
    assert (
        error_of(Response(404, {"content-type": "application/json"}, b"{"), Request("GET", "/x")).code == "not_found"
    )


def test_arguments_win_over_the_environment() -> None:
    variables = {"ELASTICDL_API_URL": "http://10.0.0.1:1/", "ELASTICDL_TOKEN": "t"}
    assert find_endpoint(None, None, variables) == Endpoint("http://10.0.0.1:1", "t")
    assert find_endpoint("https://a.example", "u", variables) == Endpoint("https://a.example", "u")
    with pytest.raises(InvalidInputError, match="is not the address"):
        find_endpoint("10.0.0.1:80", "t", {})


def test_without_an_address_and_a_cluster_the_way_to_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTICDL_DATA_DIR", str(tmp_path))
    with pytest.raises(UnavailableError, match="elasticdl up"):
        find_endpoint(None, None, {})


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(Endpoint("http://127.0.0.1", "secret"))
    assert Endpoint("http://127.0.0.1:80").local and Endpoint("http://[::1]:80").local
    assert not Endpoint("https://api.example.com").local


def test_a_job_of_an_older_api_has_defaults() -> None:
    job = Job.from_json({"id": "a-1", "state": "QUEUED"})
    assert (job.name, job.status.progress.fraction, job.artifacts, job.error) == ("a-1", 0.0, (), None)
