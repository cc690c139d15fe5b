from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from elasticdl_core.errors import InvalidInputError, PermissionDeniedError, UnauthenticatedError
from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import Role
from elasticdl_core.task import TaskId
from elasticdl_master.state.limits import Limits
from elasticdl_proto.v1 import master_pb2
from elasticdl_runtime import tokens
from elasticdl_runtime.lifecycle import EXIT_FENCED, end_all, within
from elasticdl_runtime.rpc.client import RpcClient
from elasticdl_runtime.rpc.service import Server
from tests.fakes.job_processes import MASTER_SERVICE
from tests.fakes.redis_server import RedisServer
from tests.integration.master.conftest import SECRET, Job

pytestmark = pytest.mark.integration
MakeJob = Callable[..., Awaitable[Job]]


def all_once(job: Job) -> None:
    for counts in job.counts():
        assert set(counts) == job.records()
        assert set(counts.values()) == {1}


def nothing_missing(job: Job) -> None:
    for counts in job.counts():
        assert set(counts) == job.records()


async def test_a_new_master_takes_over_without_restarting_anybody(make_job: MakeJob) -> None:
    job = await make_job()
    job.api.target = 2
    job.processes.step_s = 0.02
    job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.traces) > 6)
    before = job.processes.living(Role.WORKER), job.processes.living(Role.PS)
    await job.kill_master()
    await job.api.pulse.until(lambda: len(job.processes.traces) > 7)
    job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.traces) > 12)
    assert (job.processes.living(Role.WORKER), job.processes.living(Role.PS)) == before
    assert await job.finish() == 0
    assert job.api.transitions == ["RUNNING", "SUCCEEDED"]
    all_once(job)
    assert job.api.epoch == 2


async def test_the_old_master_is_fenced_off_and_exits(make_job: MakeJob) -> None:
    job = await make_job()
    job.processes.step_s = 0.02
    old = job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.traces) > 3)
    job.processes.gate.clear()
    job.start_master()
    assert await within(old, 60) == EXIT_FENCED
    # A process would be gone at once; a task of this process takes the socket, which has a new owner, with it.
    await job.kill_master()
    job.start_master()
    job.processes.gate.set()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    nothing_missing(job)


@pytest.mark.parametrize("end", ["stopped", "cancelled"])
async def test_a_master_can_be_ended_while_it_begins(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    job = await make_job()

    class Ending(Server):
        async def start(self) -> None:
            # The end comes now, and nothing that is awaited after this is cancelled by it.
            await super().start()
            if end == "stopped":
                job.stops[-1].set()
                await job.runners[-1]._over.wait()
            else:
                job.masters[-1].cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    monkeypatch.setattr("elasticdl_runtime.rpc.service.Server", Ending)
    master = job.start_master()
    if end == "stopped":
        assert await within(master, 60) == 0
    else:
        with pytest.raises(asyncio.CancelledError):
            await within(asyncio.shield(master), 60)


async def test_a_cancellation_that_is_lost_does_not_keep_a_master(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticdl_master.runner._CANCEL_AGAIN_S", 0.05)
    job = await make_job()
    heard: list[asyncio.CancelledError] = []

    async def deaf() -> None:
        while len(heard) < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                heard.append(error)

    job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.traces) > 3)
    job.runners[-1]._spawn("deaf", deaf())
    assert await job.finish() == 0
    assert (job.api.state, len(heard)) == (JobState.SUCCEEDED, 3)


async def test_a_killed_worker_is_replaced_and_its_task_done_again(make_job: MakeJob) -> None:
    job = await make_job()
    job.processes.step_s = 0.02
    job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.traces) > 3)
    (worker,) = job.processes.living(Role.WORKER)
    job.processes.kill(worker)
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    nothing_missing(job)
    assert any(event["kind"] == "worker_lost" for event in job.api.events)
    assert max(process.incarnation for process in job.processes.specs if process.role is Role.WORKER) == 1


async def test_a_killed_ps_takes_all_back_to_the_last_checkpoint(make_job: MakeJob) -> None:
    job = await make_job(checkpoint_steps=4)
    job.api.target = 2
    job.processes.step_s = 0.02
    job.start_master()
    await job.api.pulse.until(
        lambda: job.api.checkpoints and max(s.version for s in job.processes.servers.values()) > 10
    )
    generation = job.runners[-1].machine.servers.generation
    job.processes.kill(job.processes.living(Role.PS)[1])
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    nothing_missing(job)
    assert job.runners[-1].machine.servers.generation > generation
    assert {event["kind"] for event in job.api.events} >= {"ps_lost"}


async def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_used(make_job: MakeJob) -> None:
    job = await make_job(checkpoint_steps=3)
    job.processes.step_s = 0.02
    job.start_master()
    await job.api.pulse.until(lambda: len(job.api.checkpoints) >= 2)
    job.processes.gate.clear()
    await job.api.pulse.until(lambda: not job.runners[-1].machine.checkpoints.book.saving)
    newest = Path(job.api.checkpoints[max(job.api.checkpoints)]["directory"])
    (newest / "ps-0.bin").write_bytes(b"flipped")
    job.processes.kill(job.processes.living(Role.PS)[0])
    await job.api.pulse.until(lambda: any(event["kind"] == "checkpoint_refused" for event in job.api.events))
    job.processes.gate.set()
    assert await job.finish() == 0
    refused = next(event for event in job.api.events if event["kind"] == "checkpoint_refused")
    assert str(newest) in refused["message"]
    assert job.api.state is JobState.SUCCEEDED
    nothing_missing(job)


async def test_a_ps_lost_before_any_checkpoint_starts_training_over(make_job: MakeJob) -> None:
    job = await make_job()
    job.processes.step_s = 0.02
    job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.traces) > 5)
    job.processes.kill(job.processes.living(Role.PS)[0])
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    nothing_missing(job)
    assert any(event["kind"] == "start_over" for event in job.api.events)


async def test_a_checkpoint_is_not_committed_once_a_ps_was_lost(make_job: MakeJob) -> None:
    job = await make_job(checkpoint_steps=4)
    job.api.checkpoints_away = True
    job.processes.step_s = 0.02
    job.start_master()
    await job.api.pulse.until(lambda: job.api.offered)
    late = job.api.offered[0]["directory"]
    job.processes.kill(job.processes.living(Role.PS)[0])
    await job.api.pulse.until(lambda: any(event["kind"] == "ps_lost" for event in job.api.events))
    job.api.checkpoints_away = False
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    # Nobody knows whether all PS had written it before; what it says is done was meanwhile queued again.
    assert late not in job.api.committed
    assert job.api.committed
    nothing_missing(job)


async def test_a_task_whose_lease_answer_was_lost_is_handed_out_again(make_job: MakeJob) -> None:
    job = await make_job(Limits(heartbeat_s=0.1, recovery_s=0.0, lease_s=1.0))
    job.processes.step_s = 0.02
    job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.traces) > 2)
    (worker,) = job.processes.workers.values()
    await worker.call("Lease", master_pb2.LeaseRequest(max_tasks=1))  # and the answer never arrives
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    assert not [event for event in job.api.events if event["kind"] in ("worker_lost", "worker_stuck")]
    all_once(job)


async def test_redis_killed_and_started_again(make_job: MakeJob) -> None:
    job = await make_job()
    job.processes.step_s = 0.02
    job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.traces) > 5)
    job.redis.kill()
    await job.api.pulse.until(lambda: "queue is away" in str(job.api.status.get("degraded")))
    job.redis.start()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    all_once(job)


async def test_a_job_that_cannot_reach_its_queue_says_so_from_the_first_second(
    make_job: MakeJob, no_redis: RedisServer
) -> None:
    job = await make_job()
    job.redis = no_redis
    job.start_master()
    await job.api.pulse.until(lambda: job.api.status and any(e["kind"] == "queue_away" for e in job.api.events))
    assert job.api.status["degraded"].startswith("waiting for the task queue: Redis does not answer")
    no_redis.start()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    assert [e["kind"] for e in job.api.events if e["kind"].startswith("queue")] == ["queue_away", "queue_back"]
    all_once(job)


async def test_redis_that_forgot_everything_is_filled_again(make_job: MakeJob) -> None:
    import redis

    job = await make_job()
    job.processes.step_s = 0.02
    job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.traces) > 5)
    client = redis.Redis.from_url(job.redis.url)
    client.flushall()
    client.close()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    all_once(job)


async def test_training_goes_on_while_the_api_is_away(make_job: MakeJob) -> None:
    job = await make_job()
    job.processes.step_s = 0.02
    job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.traces) > 3)
    job.api.away = True
    await job.api.pulse.until(lambda: len(job.processes.traces) >= 24)
    assert not job.masters[-1].done()
    job.api.away = False
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    assert len({TaskId.parse(text) for text in job.api.done}) == 12
    all_once(job)


async def test_growing_and_shrinking_changes_no_count(make_job: MakeJob) -> None:
    job = await make_job(num_epochs=3)
    job.processes.step_s = 0.03
    job.start_master()
    for target in (3, 1, 2):
        done = len(job.processes.traces)
        job.processes.gate.set()
        await job.api.pulse.until(lambda done=done: len(job.processes.traces) > done + 3)
        job.processes.gate.clear()
        job.api.target = target
        await job.api.pulse.until(lambda target=target: len(job.processes.living(Role.WORKER)) == target)
    job.processes.gate.set()
    assert await job.finish() == 0
    for counts in job.counts():
        assert set(counts) == job.records(epochs=3)
        assert set(counts.values()) == {1}
    assert sum(end - start for *_, start, end in job.processes.traces) == 180


async def test_suspend_and_resume_go_on_where_it_was(make_job: MakeJob) -> None:
    job = await make_job()
    job.processes.step_s = 0.02
    job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.traces) > 5)
    job.processes.gate.clear()
    job.api.desired = "suspend"
    assert await job.finish() == 0
    assert job.api.state is JobState.SUSPENDED
    assert job.processes.living(Role.WORKER) == job.processes.living(Role.PS) == []
    assert len(job.api.checkpoints) == 1
    job.api.desired, job.api.state = "run", JobState.STARTING
    job.processes.gate.set()
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    all_once(job)


async def test_cancel_leaves_nothing(make_job: MakeJob) -> None:
    job = await make_job()
    job.processes.step_s = 0.02
    job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.traces) > 5)
    job.processes.gate.clear()
    job.api.desired, job.api.state = "cancel", JobState.CANCELLING
    assert await job.finish(30) == 0
    assert job.api.state is JobState.CANCELLED
    assert job.processes.living(Role.WORKER) == job.processes.living(Role.PS) == []


async def test_a_failure_of_the_module_as_a_whole_fails_the_job_at_once(make_job: MakeJob) -> None:
    job = await make_job()
    job.processes.fail_at_start[0] = {
        "kind": "user_code",
        "message": "No module named 'nowhere'",
        "fix": "install it",
        "traceback": 'File "m.py", line 3',
    }
    job.start_master()
    assert await job.finish() == 0
    assert job.api.transitions == ["FAILED"]
    assert job.api.detail["message"] == "No module named 'nowhere'"
    assert job.api.detail["traceback"] == 'File "m.py", line 3'
    assert job.api.detail["fix"] == "install it"


async def test_a_task_that_fails_three_times_fails_the_job(make_job: MakeJob) -> None:
    job = await make_job()
    job.processes.fail_on = lambda task, position: (
        {"kind": "user_code", "message": "boom", "fix": "mend it", "traceback": "T"} if task.index == 3 else None
    )
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.FAILED
    assert job.api.detail["message"] == "boom"
    assert "t:0:3:30:40" in job.api.detail["where"]


async def test_workers_that_crash_fail_the_job_with_their_last_output(make_job: MakeJob) -> None:
    job = await make_job()
    job.processes.gate.clear()
    job.processes.output[0] = b"Fatal Python error: Segmentation fault"
    job.start_master()

    async def crash() -> None:
        while True:
            await job.api.pulse.until(lambda: job.processes.living(Role.WORKER))
            for worker in job.processes.living(Role.WORKER):
                job.processes.kill(worker, -11)

    crashing = asyncio.create_task(crash())
    assert await job.finish() == 0
    await end_all(crashing)
    assert job.api.state is JobState.FAILED
    assert "SIGSEGV" in job.api.detail["message"]
    assert "Segmentation fault" in job.api.detail["traceback"]


async def test_missing_data_fails_the_job_with_the_path(make_job: MakeJob) -> None:
    job = await make_job(training_data="/nowhere/at/all.csv")
    job.start_master()
    assert await job.finish() == 0
    assert job.api.transitions == ["FAILED"]
    assert "/nowhere/at/all.csv" in job.api.detail["message"]
    assert job.api.detail["fix"]


async def test_a_module_without_a_loss_fails_before_a_worker_is_needed(make_job: MakeJob) -> None:
    job = await make_job(module="def custom_model(): ...\ndef optimizer(): ...\n")
    job.start_master()
    assert await job.finish() == 0
    assert job.api.transitions == ["FAILED"]
    assert "loss" in job.api.detail["message"]


async def test_a_custom_reader_is_listed_by_a_worker(make_job: MakeJob) -> None:
    module = (
        "def custom_model(): ...\ndef loss(l, p): ...\ndef optimizer(): ...\ndef feed(d, m, x): ...\n"
        "def eval_metrics_fn(): ...\ndef custom_data_reader(data_origin, records_per_task=None): ...\n"
    )
    job = await make_job(module=module, validation_data="yes")
    path = str(job.folder / "data.csv")
    job.processes.custom_shards = {"training": [(path, 0, 33), (path, 33, 60)], "evaluation": [("v", 0, 25)]}
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    assert job.api.plan["shards"] == [[path, 0, 33], [path, 33, 60]]
    all_once(job)
    assert [e["metrics"]["n"] for e in job.api.evaluations] == [25, 25]


async def test_early_stopping_by_an_evaluation(make_job: MakeJob) -> None:
    job = await make_job(num_epochs=50, validation_data="yes")
    job.processes.description["callbacks"]["early_stopping"] = {
        "monitor": "accuracy",
        "patience": 2,
        "mode": "max",
        "min_delta": 0.0,
    }
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    # The first evaluation is the best, two more do not improve on it, and nothing is trained meanwhile.
    assert [evaluation["training_epoch"] for evaluation in job.api.evaluations] == [1, 2, 3]
    assert any("did not improve" in event["message"] for event in job.api.events)


async def test_the_next_master_keeps_the_best_model_that_its_predecessor_had_only_published(
    make_job: MakeJob,
) -> None:
    job = await make_job(num_epochs=3, validation_data="yes", keep_best="accuracy:max", keep_checkpoint_max=1)
    job.processes.metrics = lambda number: {"accuracy": 0.9 - 0.1 * number}
    job.api.checkpoints_away = True
    job.start_master()
    await job.api.pulse.until(lambda: job.api.offered)
    await job.kill_master()
    assert (len(job.api.evaluations), job.api.committed) == (1, [])
    job.api.checkpoints_away = False
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    # Not evaluated again, and nothing was trained before the model of the first evaluation was kept.
    assert [one["training_epoch"] for one in job.api.evaluations] == [1, 2, 3]
    version = job.api.evaluations[0]["model_version"]
    marks = [(one["version"], one["best"]) for one in job.api.checkpoints.values() if one.get("best")]
    mark = {"metric": "accuracy", "mode": "max", "value": 0.8, "version": version, "evaluation": 1}
    assert marks == [(version, mark)]
    assert sorted(one["manifest"]["version"] for one in job.processes.exports)[0] == version
    assert [event["message"] for event in job.api.events if event["kind"] == "best_model"] == [
        f"accuracy 0.8 is the best so far: version {version} is kept"
    ]
    for counts in job.counts():
        assert set(counts) == job.records(epochs=3)
        assert set(counts.values()) == {1}


async def test_when_all_goes_down_the_master_saves_and_the_next_one_goes_on_from_there(
    make_job: MakeJob,
) -> None:
    job = await make_job(limits=Limits(heartbeat_s=0.1, recovery_s=0.0))
    job.api.target = 2
    job.processes.step_s = 0.02
    job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.traces) > 6)
    job.processes.closing = True
    job.stops[-1].set()
    assert await job.finish() == 0
    assert [manifest["kind"] for manifest in job.api.checkpoints.values()] == ["suspend"]
    assert not job.processes.living(Role.WORKER)
    assert job.api.transitions == ["RUNNING"]
    for process in job.processes.living(Role.PS):
        job.processes.kill(process, -9, "launcher_lost")
    job.processes.closing = False
    job.start_master()
    assert await job.finish() == 0
    assert job.api.transitions == ["RUNNING", "SUCCEEDED"]
    all_once(job)
    kinds = [event["kind"] for event in job.api.events]
    assert "restored" in kinds
    assert "rolled_back" not in kinds


async def test_a_master_that_is_told_to_stop_alone_leaves_everybody_as_they_are(make_job: MakeJob) -> None:
    job = await make_job(limits=Limits(heartbeat_s=0.1, recovery_s=0.0))
    job.processes.step_s = 0.02
    job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.traces) > 3)
    before = job.processes.living(Role.WORKER), job.processes.living(Role.PS)
    job.stops[-1].set()
    assert await job.finish() == 0
    assert not job.api.checkpoints
    assert (job.processes.living(Role.WORKER), job.processes.living(Role.PS)) == before
    job.start_master()
    assert await job.finish() == 0
    all_once(job)


async def test_a_parameter_server_that_hangs_is_replaced(make_job: MakeJob) -> None:
    job = await make_job(num_epochs=20, limits=Limits(heartbeat_s=0.1, recovery_s=0.2, server_silent_s=0.5))
    job.processes.step_s = 0.02
    job.start_master()
    await job.api.pulse.until(lambda: job.api.checkpoints)
    job.processes.servers[0].hangs = True
    await job.api.pulse.until(lambda: any(event["kind"] == "ps_stuck" for event in job.api.events))
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    for counts in job.counts():
        assert set(counts) == job.records(epochs=20)
    lost = next(event for event in job.api.events if event["kind"] == "ps_lost")
    assert "ps-0.0 did not answer for" in lost["message"]


@pytest.mark.parametrize(
    ("monitor", "validation", "message"), [("auc", "yes", "watches 'auc'"), ("x", "", "no validation data")]
)
async def test_early_stopping_that_would_never_stop_fails_the_job(
    make_job: MakeJob, monitor: str, validation: str, message: str
) -> None:
    job = await make_job(num_epochs=3, validation_data=validation)
    job.processes.description["callbacks"]["early_stopping"] = {
        "monitor": monitor,
        "patience": 2,
        "mode": "max",
        "min_delta": 0.0,
    }
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.FAILED
    assert message in job.api.detail["message"]


async def test_old_checkpoints_go_and_the_newest_stay(make_job: MakeJob) -> None:
    job = await make_job(checkpoint_steps=3, keep_checkpoint_max=2)
    job.processes.step_s = 0.05
    job.start_master()
    assert await job.finish() == 0
    assert len(job.api.checkpoints) == 2
    kept = {Path(manifest["directory"]) for manifest in job.api.checkpoints.values()}
    assert set((job.folder / "job" / "checkpoints").iterdir()) == kept
    for path in kept:
        assert json.loads((path / "manifest.json").read_text())["job_id"] == job.api.job_id


async def test_a_full_disk_is_said_and_training_goes_on(make_job: MakeJob) -> None:
    job = await make_job(checkpoint_steps=3, limits=Limits(heartbeat_s=0.1, recovery_s=0.0))
    job.processes.step_s = 0.02
    job.start_master()
    await job.api.pulse.until(lambda: len(job.processes.servers) == 2)
    for server in job.processes.servers.values():
        server.refuse_saves = "no space left on device"
    await job.api.pulse.until(lambda: "no space left" in str(job.api.status.get("degraded")))
    for server in job.processes.servers.values():
        server.refuse_saves = ""
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    nothing_missing(job)


async def test_only_workers_of_the_job_with_their_own_name_are_served(make_job: MakeJob) -> None:
    job = await make_job()
    job.processes.gate.clear()
    job.start_master()
    await job.api.pulse.until(lambda: job.processes.workers)
    address = job.processes.address(job.api.job_id, Role.MASTER, 0)

    async def attempt(token: str, index: int = 0) -> None:
        client = RpcClient(address, MASTER_SERVICE, token)
        try:
            await client.call("Register", master_pb2.RegisterRequest(index=index, incarnation=0), deadline_s=20.0)
        finally:
            await client.close()

    mine = tokens.issue(SECRET, job.api.job_id, Role.WORKER, 0, 0)
    await attempt(mine)
    with pytest.raises(InvalidInputError, match="only register itself"):
        await attempt(mine, index=1)
    with pytest.raises(UnauthenticatedError):
        await attempt(tokens.issue("6" * 64, job.api.job_id, Role.WORKER, 0, 0))
    with pytest.raises(PermissionDeniedError):
        await attempt(tokens.issue(SECRET, "another-job", Role.WORKER, 0, 0))
    with pytest.raises(PermissionDeniedError):
        await attempt(tokens.issue(SECRET, job.api.job_id, Role.PS, 0, 0))


async def test_a_master_that_ends_while_the_api_takes_a_checkpoint_leaves_its_files(make_job: MakeJob) -> None:
    """The api has it and says so to the next master, which may need it."""
    job = await make_job(checkpoint_steps=4)
    job.start_master()
    await job.api.pulse.until(lambda: bool(job.api.checkpoints), 60.0)
    await job.kill_master()
    (manifest,) = job.api.checkpoints.values()
    kept = {path.name for path in Path(manifest["directory"]).iterdir()}
    assert kept == {"manifest.json", *(file["name"] for file in manifest["files"])}
    for server in job.processes.living(Role.PS):
        job.processes.kill(server)
    job.start_master()
    assert await job.finish() == 0
    assert job.api.state is JobState.SUCCEEDED
    restored = [event["message"] for event in job.api.events if event["kind"] == "restored"]
    assert restored == [f"the parameter servers hold the checkpoint of version {manifest['version']}"]
