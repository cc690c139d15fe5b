from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from elasticdl.data import tfrecord
from elasticdl_core.job import JobSpec, JobType
from elasticdl_master.queue.redis import RedisQueue
from elasticdl_master.runner import JobRunner
from elasticdl_master.settings import MasterSettings
from elasticdl_master.state.limits import Limits
from elasticdl_runtime.lifecycle import within
from tests.fakes.internal_api import InternalApi
from tests.fakes.job_processes import JobProcesses
from tests.fakes.redis_server import RedisServer

SECRET = "5" * 64
MODULE = """
def custom_model(): ...
def loss(labels, predictions): ...
def optimizer(): ...
def feed(dataset, mode, metadata): ...
def eval_metrics_fn(): ...
"""
_numbers = itertools.count()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.close()


@dataclass
class Job:
    """One job: its api, its processes, and as many masters as a test starts."""

    api: InternalApi
    processes: JobProcesses
    redis: RedisServer
    folder: Path
    limits: Limits
    masters: list[asyncio.Task[int]] = field(default_factory=list)
    runners: list[JobRunner] = field(default_factory=list)
    stops: list[asyncio.Event] = field(default_factory=list)

    def start_master(self) -> asyncio.Task[int]:
        incarnation = len(self.masters)
        settings = MasterSettings(
            job_id=self.api.job_id,
            incarnation=incarnation,
            listen=f"unix:{self.folder}/master-0.sock",
            job_dir=self.folder / "job",
            api_url=self.api.url,
            redis_url=self.redis.url,
            agent="unix:/nowhere",
            job_secret=SECRET,
        )
        stop = asyncio.Event()
        runner = JobRunner(
            settings,
            self.processes,
            lambda epoch: RedisQueue(self.redis.url, self.api.job_id, epoch, timeout_s=2.0),
            stop,
            limits=self.limits,
            quit_at_once=lambda code: None,
        )
        self.runners.append(runner)
        self.stops.append(stop)
        self.masters.append(asyncio.create_task(runner.run(), name=f"master {incarnation}"))
        return self.masters[-1]

    async def kill_master(self) -> None:
        """Cancels the newest master, as abruptly as a task can die."""
        self.masters[-1].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.masters[-1]

    async def finish(self, timeout: float = 60.0) -> int:
        return await within(asyncio.shield(self.masters[-1]), timeout)

    def counts(self) -> list[dict[str, int]]:
        """How often each record was applied, by PS, as the newest checkpoint has it."""
        import json

        newest = max(self.api.checkpoints.values(), key=lambda m: m["version"])
        files = [Path(newest["directory"]) / file["name"] for file in newest["files"]]
        return [json.loads(file.read_text())["applied"] for file in files]

    def records(self, epochs: int = 2, records: int = 60) -> set[str]:
        """Every record of every epoch."""
        path = str(self.folder / "data.csv")
        return {f"{epoch}/{path}/{at}" for epoch in range(epochs) for at in range(records)}

    async def close(self) -> None:
        for master in self.masters:
            master.cancel()
        await asyncio.gather(*self.masters, return_exceptions=True)
        await self.processes.close()


@pytest.fixture
def no_redis() -> Iterator[RedisServer]:
    """A server that does not run yet."""
    server = RedisServer()
    yield server
    server.close()


def write_damaged(path: Path) -> None:
    """A TFRecord file that is cut off in its last record."""
    with tfrecord.TFRecordWriter(str(path)) as writer:
        for number in range(21):
            writer.write(b"record %d" % number)
    path.write_bytes(path.read_bytes()[:-3])


@pytest.fixture
async def make_job(redis_server: RedisServer) -> AsyncIterator[Any]:
    async with contextlib.AsyncExitStack() as stack:

        async def make(limits: Limits | None = None, **changes: Any) -> Job:
            folder = Path(tempfile.mkdtemp(prefix="edl-m-", dir="/tmp"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            (folder / "zoo").mkdir()
            (folder / "zoo" / "m.py").write_text(changes.pop("module", MODULE))
            (folder / "data.csv").write_text("a,b\n" + "1,2\n" * 60)
            if changes.pop("data", "") == "damaged":
                write_damaged(folder / "data.csv")
            (folder / "val.csv").write_text("a,b\n" + "1,2\n" * 25)
            (folder / "job").mkdir()
            spec = {
                "model_def": "m.custom_model",
                "model_zoo": str(folder / "zoo"),
                "training_data": str(folder / "data.csv"),
                "minibatch_size": 5,
                "num_minibatches_per_task": 2,
                "num_epochs": 2,
                "num_ps": 2,
                "max_workers": 4,
                **changes,
            }
            if spec.get("validation_data"):
                spec["validation_data"] = str(folder / "val.csv")
            checked = JobSpec.from_mapping(spec)
            job_id = f"job-{next(_numbers)}"
            api = await stack.enter_async_context(InternalApi(job_id, spec))
            chosen = spec.get("distribution_strategy", "ParameterServerStrategy")
            by_itself = chosen != "ParameterServerStrategy" and checked.type is not JobType.TRAINING
            processes = JobProcesses(folder, job_id, 0 if by_itself else int(spec["num_ps"]), SECRET, api.pulse)
            job = Job(
                api, processes, redis_server, folder, limits or Limits(heartbeat_s=0.1, recovery_s=0.0, drain_s=5.0)
            )
            stack.push_async_callback(job.close)
            return job

        yield make
