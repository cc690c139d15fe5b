"""What every launcher keeps, run against the in-memory one and the process launcher."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from signal import SIGKILL, SIGTERM

import pytest

from elasticdl_core.errors import ConflictError, InvalidInputError, NotFoundError
from elasticdl_core.pods import PodRequest
from elasticdl_core.ports.launcher import CapacityInfo, ProcessId, ProcessState, Role
from tests.contract.launcher.conftest import SLOTS, Harness, until

pytestmark = pytest.mark.contract

JOB = "digits-x7k2p9"


def process(role: Role = Role.WORKER, index: int = 0, incarnation: int = 1, job: str = JOB) -> ProcessId:
    return ProcessId(job, role, index, incarnation)


def test_the_address_is_the_same_for_each_incarnation_and_differs_by_process(harness: Harness) -> None:
    addresses = {
        harness.launcher.address(job, role, index) for job in ("a", "b") for role in Role for index in range(2)
    }
    assert len(addresses) == 12
    assert harness.launcher.address(JOB, Role.PS, 1) == harness.launcher.address(JOB, Role.PS, 1)


async def test_a_process_runs_and_its_exit_code_is_told(harness: Harness) -> None:
    await harness.launcher.launch(harness.spec(process(), "exit:3"))
    status = await until(harness.launcher, process(), ProcessState.EXITED)
    assert (status.exit_code, status.reason, status.pid) == (3, "", 0)


async def test_success_is_told_from_nothing_known(harness: Harness) -> None:
    await harness.launcher.launch(harness.spec(process(), "exit:0"))
    assert (await until(harness.launcher, process(), ProcessState.EXITED)).exit_code == 0


async def test_a_signal_is_told_as_a_negative_code(harness: Harness) -> None:
    await harness.launcher.launch(harness.spec(process(), f"signal:{SIGKILL}"))
    status = await until(harness.launcher, process(), ProcessState.EXITED)
    assert (status.exit_code, status.reason) == (-SIGKILL, "")


async def test_launching_twice_launches_once(harness: Harness) -> None:
    spec = harness.spec(process())
    await harness.launcher.launch(spec)
    first = await harness.ready(process())
    await harness.launcher.launch(spec)
    assert await harness.launcher.list(JOB) == [first]


async def test_launching_again_after_the_end_does_nothing(harness: Harness) -> None:
    spec = harness.spec(process(), "exit:0")
    await harness.launcher.launch(spec)
    ended = await until(harness.launcher, process(), ProcessState.EXITED)
    await harness.launcher.launch(spec)
    assert await harness.launcher.list(JOB) == [ended]


async def test_what_only_a_pod_has_is_refused_by_name_where_it_cannot_be(harness: Harness) -> None:
    """By a launcher that makes no pods, and by one whose administrator allows no images but his own."""
    spec = replace(harness.spec(process()), pod=PodRequest(image="registry.example/own:1"))
    with pytest.raises(InvalidInputError):
        await harness.launcher.launch(spec)
    assert await harness.launcher.list(JOB) == []


async def test_a_terminated_process_says_so(harness: Harness) -> None:
    await harness.launcher.launch(harness.spec(process()))
    running = await harness.ready(process())
    assert running.pid > 0 and running.exit_code is None
    await harness.launcher.terminate(process(), grace_s=20.0)
    status = await until(harness.launcher, process(), ProcessState.EXITED)
    assert (status.exit_code, status.reason) == (-SIGTERM, "terminated")


async def test_terminating_what_has_ended_or_never_was_does_nothing(harness: Harness) -> None:
    await harness.launcher.terminate(process(index=5), grace_s=1.0)
    await harness.launcher.launch(harness.spec(process(), "exit:0"))
    ended = await until(harness.launcher, process(), ProcessState.EXITED)
    await harness.launcher.terminate(process(), grace_s=1.0)
    assert await harness.launcher.list() == [ended]


async def test_workers_wait_for_a_slot_in_the_order_of_their_launch(harness: Harness) -> None:
    for index in range(SLOTS + 2):
        await harness.launcher.launch(harness.spec(process(index=index), slots=1))
    for index in range(SLOTS):
        await harness.ready(process(index=index))
    states = [status.state for status in await harness.launcher.list(JOB)]
    assert states == [ProcessState.RUNNING] * SLOTS + [ProcessState.PENDING] * 2
    assert replace(await harness.launcher.capacity(), isolation="", pods=None, memory_mib=0) == CapacityInfo(
        SLOTS, {JOB: SLOTS + 2}
    )
    await harness.launcher.terminate(process(index=0), grace_s=20.0)
    await harness.ready(process(index=SLOTS))
    assert (await harness.launcher.list(JOB))[-1].state is ProcessState.PENDING


async def test_masters_and_ps_take_no_slot(harness: Harness) -> None:
    for index in range(SLOTS):
        await harness.launcher.launch(harness.spec(process(index=index), slots=1))
    await harness.launcher.launch(harness.spec(process(Role.PS, 7)))
    await harness.ready(process(Role.PS, 7))
    assert (await harness.launcher.capacity()).used == {JOB: SLOTS}


async def test_a_slot_is_given_back_at_the_end(harness: Harness) -> None:
    await harness.launcher.launch(harness.spec(process(), "exit:1", slots=1))
    await until(harness.launcher, process(), ProcessState.EXITED)
    assert replace(await harness.launcher.capacity(), isolation="", pods=None, memory_mib=0) == CapacityInfo(
        SLOTS, {}
    )


async def test_more_slots_than_there_are_is_refused(harness: Harness) -> None:
    with pytest.raises(InvalidInputError):
        await harness.launcher.launch(harness.spec(process(), slots=SLOTS + 1))
    assert await harness.launcher.list() == []


@pytest.mark.parametrize("job", ["", "../up", "a/b", "a..", "A", "a\n"])
async def test_a_job_id_that_is_none_is_refused(harness: Harness, job: str) -> None:
    with pytest.raises(InvalidInputError):
        await harness.launcher.launch(harness.spec(process(job=job)))


async def test_a_pending_process_that_is_terminated_never_runs(harness: Harness) -> None:
    for index in range(SLOTS + 1):
        await harness.launcher.launch(harness.spec(process(index=index), slots=1))
    waiting = process(index=SLOTS)
    await harness.launcher.terminate(waiting, grace_s=20.0)
    status = await until(harness.launcher, waiting, ProcessState.EXITED)
    assert (status.exit_code, status.reason) == (-SIGTERM, "terminated")
    await harness.launcher.terminate(process(index=0), grace_s=20.0)
    await until(harness.launcher, process(index=0), ProcessState.EXITED)
    assert (await harness.launcher.list())[-1] == status


async def test_terminate_job_ends_its_processes_and_no_others(harness: Harness) -> None:
    for index in range(SLOTS + 1):
        await harness.launcher.launch(harness.spec(process(index=index), slots=1))
    other = process(Role.PS, job="other-1")
    await harness.launcher.launch(harness.spec(other))
    await harness.ready(other)
    await harness.launcher.terminate_job(JOB, grace_s=20.0)
    for index in range(SLOTS + 1):
        assert (await until(harness.launcher, process(index=index), ProcessState.EXITED)).reason == "terminated"
    assert [status.state for status in await harness.launcher.list("other-1")] == [ProcessState.RUNNING]
    assert (await harness.launcher.capacity()).used == {}


async def test_a_newer_incarnation_replaces_a_living_older_one(harness: Harness) -> None:
    await harness.launcher.launch(harness.spec(process(Role.MASTER)))
    await harness.ready(process(Role.MASTER))
    newer = process(Role.MASTER, incarnation=2)
    await harness.launcher.launch(harness.spec(newer))
    await until(harness.launcher, newer, ProcessState.RUNNING)
    older = (await harness.launcher.list(JOB))[0]
    assert (older.id.incarnation, older.state, older.reason) == (1, ProcessState.EXITED, "terminated")


async def test_an_older_incarnation_comes_too_late(harness: Harness) -> None:
    await harness.launcher.launch(harness.spec(process(incarnation=2)))
    with pytest.raises(ConflictError):
        await harness.launcher.launch(harness.spec(process(incarnation=1)))


async def test_the_list_is_by_age_and_by_job(harness: Harness) -> None:
    ids = [process(Role.MASTER), process(Role.PS, 1), process(Role.MASTER, job="other-1"), process(Role.PS, 0)]
    for each in ids:
        await harness.launcher.launch(harness.spec(each))
    assert [status.id for status in await harness.launcher.list()] == ids
    assert [status.id for status in await harness.launcher.list("other-1")] == [ids[2]]
    assert await harness.launcher.list("unknown-1") == []


async def test_a_watch_begins_with_what_is_and_goes_on_with_each_change(harness: Harness) -> None:
    await harness.launcher.launch(harness.spec(process()))
    await harness.ready(process())
    seen: list[ProcessState] = []
    async with asyncio.timeout(60):
        async for status in harness.launcher.watch(JOB):
            seen.append(status.state)
            if len(seen) == 1:
                await harness.launcher.terminate(process(), grace_s=20.0)
            if status.state is ProcessState.EXITED:
                break
    assert seen == [ProcessState.RUNNING, ProcessState.EXITED]


async def collect(
    harness: Harness,
    *,
    tail: int | None = None,
    follow: bool = False,
    index: int = 0,
    since: float | None = None,
    lines: int | None = None,
) -> bytes:
    pieces = harness.launcher.logs(JOB, Role.WORKER, index, tail=tail, follow=follow, since=since, lines=lines)
    return b"".join([piece async for piece in pieces])


async def test_logs_hold_what_all_incarnations_printed(harness: Harness) -> None:
    for incarnation in (1, 2):
        await harness.launcher.launch(harness.spec(process(incarnation=incarnation), f"print:run {incarnation}"))
        await until(harness.launcher, process(incarnation=incarnation), ProcessState.EXITED)
    assert await collect(harness) == b"run 1\nrun 2\n"
    assert await collect(harness, tail=9) == b" 1\nrun 2\n"
    assert await collect(harness, tail=0) == b""
    assert await collect(harness, tail=1000) == b"run 1\nrun 2\n"
    found = [await collect(harness, lines=lines) for lines in range(4)]
    assert found == [b"", b"run 2\n", b"run 1\nrun 2\n", b"run 1\nrun 2\n"]


async def test_logs_since_a_time_leave_out_what_was_printed_before(harness: Harness) -> None:
    before = time.time()
    await harness.launcher.launch(harness.spec(process(), "print:hello"))
    await until(harness.launcher, process(), ProcessState.EXITED)
    assert await collect(harness, since=before) == b"hello\n"
    assert await collect(harness, since=time.time() + 60) == b""


async def test_a_log_is_followed_over_all_incarnations(harness: Harness) -> None:
    """Whoever follows is told when one has ended, and goes on with the next."""
    await harness.launcher.launch(harness.spec(process(), "print:hello"))
    pieces = harness.launcher.logs(JOB, Role.WORKER, 0, tail=None, follow=True)
    async with asyncio.timeout(90), contextlib.aclosing(pieces):
        assert await _until_quiet(pieces) == b"hello\n"
        await harness.launcher.launch(harness.spec(process(incarnation=2), "print:again"))
        found = b""
        while not found:
            found = await _until_quiet(pieces)
        assert found == b"again\n"


async def _until_quiet(pieces: AsyncGenerator[bytes]) -> bytes:
    found = b""
    while piece := await anext(pieces):
        found += piece
    return found


async def test_the_log_of_an_unknown_process_is_not_found(harness: Harness) -> None:
    with pytest.raises(NotFoundError):
        await collect(harness, index=9)
