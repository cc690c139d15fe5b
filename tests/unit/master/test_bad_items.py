"""One item that is refused, planted in each loop of a master: the others are carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elasticdl_core.errors import ConflictError, InvalidInputError, PermissionDeniedError
from elasticdl_core.job import JobSpec
from elasticdl_core.ports.launcher import ProcessId
from elasticdl_master import outbox as module
from elasticdl_master.api import ApiFailedError
from elasticdl_master.checkpointing import ServerOperations
from elasticdl_master.outbox import Outbox
from elasticdl_master.processes import Processes
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_runtime.checkpoint_directory import CheckpointDirectory, commit_manifest
from elasticdl_runtime.stored_checkpoints import MANIFEST
from tests.fakes.launcher import FakeLauncher

pytestmark = pytest.mark.unit
JOB = {"model_zoo": "/zoo", "model_def": "m.f", "framework": "tensorflow", "training_data": "/data"}


async def until(work: Awaitable[None], done: asyncio.Event) -> None:
    """Runs a loop until something has happened."""
    running = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(done.wait())
    await asyncio.wait({running, waiting}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert done.is_set(), "the loop stands, or has ended"
    running.cancel()
    await asyncio.wait({running})


class Posts:
    """What the api is told; it fails at what it does not like."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.events: list[Any] = []
        self.all_told = asyncio.Event()

    async def post_events(self, events: list[Any]) -> None:
        self.events += events
        self.all_told.set()

    def tell(self, name: str, error: Exception | None = None) -> Callable[[], Awaitable[None]]:
        async def call() -> None:
            self.told.append(name)
            if error is not None:
                raise error

        return call


@pytest.mark.parametrize("error", [ApiFailedError("bug", fix=""), OSError("disk"), InvalidInputError("no", fix="")])
async def test_a_post_that_the_api_fails_at_does_not_keep_the_state_from_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_FAILED", 2)
    posts = Posts()
    outbox = Outbox(posts)  # type: ignore[arg-type]  # all that is asked of it here
    for name, wrong in (("evaluation", error), ("state", None)):
        outbox.post(name, posts.tell(name, wrong))
    await until(outbox.run(), posts.all_told)
    assert posts.told[-1] == "state"
    assert [event["detail"] for event in posts.events] == [{"of": "evaluation"}]


async def test_a_process_that_may_not_be_ended_does_not_keep_the_next_from_its_launch() -> None:
    launched = asyncio.Event()

    class Stubborn(FakeLauncher):
        async def terminate(self, process: ProcessId, *, grace_s: float) -> None:
            raise PermissionDeniedError("not you", fix="")

        async def launch(self, spec: Any) -> None:
            launched.set()

    told: list[ev.Event] = []

    async def tell(event: ev.Event) -> None:
        told.append(event)

    settings: Any = SimpleNamespace(job_id="a-aaaaaa", job_secret="s" * 32)
    spec = JobSpec.from_mapping({**JOB, "num_ps": 1})
    processes = Processes(settings, spec, Stubborn(), tell)
    processes.carry_out(do.TerminateWorker(0, 0, 1.0))
    processes.carry_out(do.LaunchWorker(1, 0, 0))
    await until(processes.run(), launched)
    assert told == []


async def test_a_checkpoint_that_cannot_be_removed_does_not_keep_older_ones_for_ever(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path, "a-aaaaaa")

    def committed(version: int) -> dict[str, Any]:
        made = {"version": version, "directory": str(directory.prepare(version)), "job_id": "a-aaaaaa", "files": []}
        commit_manifest(made)
        return made

    refused, stuck, *good = [committed(version) for version in range(4)]
    (Path(stuck["directory"]) / MANIFEST).unlink()
    (Path(stuck["directory"]) / MANIFEST / "in the way").mkdir(parents=True)

    class Entries:
        async def forget_checkpoint(self, version: int, directory: str) -> None:
            if version == refused["version"]:
                raise ApiFailedError("bug", fix="")

    nobody: Any = None
    operations = ServerOperations(nobody, nobody, directory, Entries(), nobody, nobody)  # type: ignore[arg-type]
    for manifest in (refused, stuck, *good):
        await operations.prune(manifest)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        Path(one["directory"]).name for one in (refused, stuck)
    )


async def test_servers_are_launched_before_workers_that_were_ordered_sooner() -> None:
    """Where there is room for some of them only, workers alone could do nothing; the rest stays in its order."""
    done: list[str] = []
    all_done = asyncio.Event()

    class Noting(FakeLauncher):
        async def terminate(self, process: ProcessId, *, grace_s: float) -> None:
            done.append(f"end {process.role} {process.index}")

        async def launch(self, spec: Any) -> None:
            done.append(f"{spec.id.role} {spec.id.index}")
            if len(done) == 5:
                all_done.set()

    settings: Any = SimpleNamespace(job_id="a-aaaaaa", job_secret="s" * 32)
    spec = JobSpec.from_mapping({**JOB, "num_ps": 2})
    nobody: Any = None
    processes = Processes(settings, spec, Noting(), nobody)
    for order in (
        do.TerminateServer(0, 0, 1.0),
        do.LaunchWorker(0, 0, 0),
        do.LaunchServer(0, 1, 0),
        do.LaunchServer(1, 0, 0),
        do.LaunchWorker(1, 0, 0),
    ):
        processes.carry_out(order)
    await until(processes.run(), all_done)
    assert done == ["ps 0", "ps 1", "end ps 0", "worker 0", "worker 1"]


async def test_an_order_that_the_servers_refuse_keeps_no_other_waiting_and_comes_again() -> None:
    orders: list[int] = []
    pinned = asyncio.Event()

    class Control:
        addresses = ("a",)

        async def pin(self, number: int, *, one_version: bool) -> int:
            orders.append(number)
            if number != 3 and orders.count(number) < 3:
                raise ConflictError("at different versions", fix="")
            if number == 1:
                pinned.set()
            return 7

        async def unpin(self, number: int) -> None:
            orders.append(-number)

    async def tell(_: ev.Event) -> None:
        return

    machine: Any = SimpleNamespace(servers=SimpleNamespace(generation=0), spec=SimpleNamespace(use_async=True))
    nobody: Any = None
    operations = ServerOperations(machine, Control(), nobody, nobody, tell, nobody)  # type: ignore[arg-type]
    for order in (do.Pin(1), do.Pin(2), do.Pin(3), do.Unpin(2)):
        operations.carry_out(order)
    await until(operations.run(), pinned)
    assert orders[:4] == [1, 2, 3, -2]
    assert orders.count(2) == 1  # nobody wants it any more
