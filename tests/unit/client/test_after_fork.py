"""Clients that were made before a fork: connections belong to a process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from elasticdl.client import AsyncClient, Client, RetryPolicy
from elasticdl.client.messages import Request
from elasticdl.client.requests import checked
from elasticdl_core.errors import ConflictError, UnavailableError
from elasticdl_worker.server_client.client import ParameterServerClient
from elasticdl_worker.server_client.loop_thread import LoopThread
from tests.fakes.api import TOKEN, FakeApi, make_job, sse

pytestmark = pytest.mark.unit
_DEADLINE_S = 60


def _forked(work: Callable[[], None]) -> None:
    """Runs something in a forked process, which must end without an error."""
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(_DEADLINE_S)
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _ports(api: FakeApi, job: str) -> set[int]:
    return {seen.port for seen in api.requests("GET", f"/jobs/{job}")}


def test_each_process_has_connections_of_its_own(api: FakeApi, client: Client) -> None:
    """Six processes of a pool read each other's answers from one connection."""
    api.jobs = {job: make_job(job) for job in ("a", "b", "c")}
    assert client.get("a").id == "a"

    def ask() -> None:
        assert client.get("b").id == "b"
        client.close()

    _forked(ask)
    assert client.get("c").id == "c"
    assert _ports(api, "a") == _ports(api, "c")
    assert not _ports(api, "a") & _ports(api, "b")


def test_the_asyncio_client_too(api: FakeApi) -> None:
    api.jobs = {job: make_job(job) for job in ("a", "b", "c")}
    client = AsyncClient(api.url, TOKEN, retry=RetryPolicy(attempts=1))

    def ask(job: str) -> None:
        assert loop.run_until_complete(client.get(job)).id == job

    def ask_anew() -> None:
        asyncio.run(client.get("b"))

    loop = asyncio.new_event_loop()
    try:
        ask("a")
        _forked(ask_anew)
        ask("c")
        loop.run_until_complete(client.close())
    finally:
        loop.close()
    assert _ports(api, "a") == _ports(api, "c")
    assert not _ports(api, "a") & _ports(api, "b")


def test_a_stream_is_opened_anew(api: FakeApi, client: Client) -> None:
    job = make_job("a")
    api.jobs = {"a": job}
    api.streams["a"] = [[sse("status", job), sse("status", job), sse("end", {})]] * 2
    updates = client.updates("a")
    next(updates)
    next(updates)
    _forked(lambda: list(updates)[-1].ended or os._exit(1))
    assert api.streams_served == {"a": 2}, "the child has one of its own"
    assert list(updates)[-1].ended
    assert api.streams_served == {"a": 2}, "and the parent goes on with its own"


@pytest.mark.parametrize(
    ("request_", "answer", "ours"),
    [
        (Request("GET", "/jobs/a"), {"id": "b"}, False),
        (Request("PATCH", "/jobs/a"), {"id": "b"}, False),
        (Request("POST", "/jobs/a/cancel"), {"id": "b"}, False),
        (Request("GET", "/jobs/a/explain"), {"job_id": "b"}, False),
        (Request("GET", "/jobs/a/stacks"), {"id": "b"}, True),
        (Request("GET", "/jobs/a"), {"id": "a"}, True),
        (Request("POST", "/jobs"), {"id": "b"}, True),
        (Request("GET", "/jobs/a/events"), [{"id": 3}], True),
    ],
)
def test_an_answer_is_compared_with_the_id_that_was_asked_for(request_: Request, answer: Any, ours: bool) -> None:
    if ours:
        assert checked(request_, answer) is answer
        return
    with pytest.raises(UnavailableError, match="answered with the job b"):
        checked(request_, answer)


def test_a_client_of_parameter_servers_is_refused_in_another_process() -> None:
    """Its thread is not there: each call waited for ever."""
    from elasticdl_core.ports.launcher import Role
    from elasticdl_runtime.tokens import issue

    token = issue("0" * 64, "job", Role.WORKER, 0, 0)
    client = ParameterServerClient(["unix:/tmp/nobody.sock"], token, patience_s=0.0)
    thread = LoopThread()

    def use() -> None:
        for call in (client.count_rows, lambda: client.model, client.pull):
            with pytest.raises(ConflictError, match="made in another process"):
                call()
        client.close()
        with pytest.raises(ConflictError, match="another process"):
            thread.run(asyncio.sleep(0))

    _forked(use)
    client.close()
    thread.close()
