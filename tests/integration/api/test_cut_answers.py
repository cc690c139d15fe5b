"""Answers that are cut, before, at and after their first byte: nothing stays open."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
from pathlib import Path
from typing import Any

import psutil
import pytest

from elasticdl_api.feeds import jobs, overview
from elasticdl_api.routes import activity
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, Role
from tests.fakes.cut_streams import MORE_BYTES
from tests.integration.api.conftest import ADMIN, Api

pytestmark = pytest.mark.integration
TIMES = [3, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
LOOKS = 10_000
"""Of a millisecond each, for what ends by itself."""
MESSAGES = {"followed": 2, "followed and quiet": 0, "events": 2, "events of a job": 2}
"""How many messages there are at least, with the head, of answers that may have no more than that for long."""


async def streaming_paths(api: Api) -> dict[str, tuple[str, str]]:
    """One path of each route that streams, with the token that may read it."""
    job_id, master = await api.running()
    folder = api.services.settings.job_dir(job_id) / "artifacts"
    for name in ("model.keras", "saved/a", "saved/b"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        content = name.encode() * 100_000
        (folder / name).write_bytes(content)
        report = {"name": name, "path": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        assert (await master.post("/artifacts", **report)).status_code == 204
    worker, quiet = (ProcessId(job_id, Role.WORKER, index, 0) for index in (0, 1))
    for process in (worker, quiet):
        await api.launcher.launch(ProcessSpec(process))
    api.launcher.print(worker, b"a line\n" * 40_000)
    digest = (await api.job(job_id))["spec"]["model_bundle"]
    job = f"/v1/jobs/{job_id}"
    public = {
        "bundle": f"/v1/bundles/{digest}",
        "artifact": f"{job}/artifacts/model.keras",
        "folder": f"{job}/artifacts/saved",
        "logs": f"{job}/logs?index=0&grep=line&offset=7",
        "last lines": f"{job}/logs?index=0&tail=3",
        "followed": f"{job}/logs?index=0&tail=3&follow=true",
        "followed and quiet": f"{job}/logs?index=1&follow=true",
        "events of a job": f"{job}/events",
        "events": "/v1/events",
    }
    internal = master.headers["Authorization"]
    return {name: (path, f"Bearer {ADMIN}") for name, path in public.items()} | {
        "internal bundle": (f"{master.base}/bundle", internal)
    }


class Visit:
    """One request, from a client that goes away at some moment.

    Args:
        after: messages of the answer after which it has gone; -1 for before the application has begun.
        cancelled: the server ends the application then, too.
    """

    def __init__(self, path: str, authorization: str, after: int, *, cancelled: bool) -> None:
        place, _, query = path.partition("?")
        accept = [(b"accept", b"text/event-stream")] if "events" in place else []
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": place,
            "raw_path": place.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(b"host", b"api"), (b"authorization", authorization.encode()), *accept],
            "client": ("127.0.0.1", 1),
            "server": ("api", 80),
            "state": {},
        }
        self.after = after
        self.cancelled = cancelled
        self.told: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self._asked = False
        if after < 0:
            self.gone.set()

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.told.append(message)
        if len(self.told) > self.after >= 0:
            self.gone.set()
            if self.cancelled:
                await asyncio.Event().wait()
        await asyncio.sleep(0)

    async def make(self, app: Any) -> None:
        answering = asyncio.ensure_future(app(self.scope, self.receive, self.send))
        if self.cancelled:
            await asyncio.wait(
                {answering, asyncio.ensure_future(self.gone.wait())}, return_when=asyncio.FIRST_COMPLETED
            )
            answering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await answering


def held() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("cancelled", [False, True], ids=["gone", "cancelled"])
async def test_answers_that_are_cut_leave_nothing_open(
    api: Api, monkeypatch: pytest.MonkeyPatch, cancelled: bool, times: int
) -> None:
    monkeypatch.setattr(activity, "FIRST_LOOK_S", 0.01)
    for feeds in (jobs, overview):  # a feed that lost its only reader rests before the next one begins it anew
        monkeypatch.setattr(feeds, "SETTLE_S", 0.001)
    left = {}
    for name, (path, authorization) in (await streaming_paths(api)).items():
        for after in (-1, 0, 1, 2):
            if after >= MESSAGES.get(name, 3):
                continue
            for number in range(times):
                if number == times // 2:  # allocators have what they keep
                    half = psutil.Process().memory_info().rss
                if number == 1:  # what is opened once for all is open now
                    descriptors, tasks = held(), len(asyncio.all_tasks())
                visit = Visit(path, authorization, after, cancelled=cancelled)
                gc.disable()  # what only the collector would close is still open
                try:
                    await visit.make(api.app)
                finally:
                    gc.enable()
                assert not visit.told or visit.told[0]["status"] == 200, (name, visit.told)
            gc.disable()
            try:
                for _ in range(LOOKS):  # a feed without readers rests when its timer says so
                    if held() <= descriptors and len(asyncio.all_tasks()) <= tasks:
                        break
                    await asyncio.sleep(0.001)
            finally:
                gc.enable()
            more = (held() - descriptors, len(asyncio.all_tasks()) - tasks)
            if times > 100:
                assert psutil.Process().memory_info().rss - half < MORE_BYTES, (name, after)
            slots = (api.services.log_slots.open, api.services.stream_slots.open)
            if more[0] > 0 or more[1] > 0 or slots != (0, 0):
                left[name, after] = (*more, slots)
    assert not left
