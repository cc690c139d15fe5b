"""Tasks that one master leases and takes reports of per second, over its real door and a real Redis.

./dev bench dispatch [--quick] [--clients 8] [--seconds 3] [--windows 7]
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.harness import Report, Sample, parse
from benchmarks.harness.master import JOB, SECRET
from benchmarks.harness.plots import bars
from benchmarks.transport import echo
from elasticdl_core.ports.launcher import Role
from elasticdl_core.task import TaskId, TaskType
from elasticdl_master.queue.port import Contents
from elasticdl_master.queue.redis import RedisQueue
from elasticdl_proto.v1 import master_pb2, ps_pb2
from elasticdl_runtime.rpc.client import RpcClient
from elasticdl_runtime.rpc.framing import encode_frame
from elasticdl_runtime.tokens import issue

GOAL = 1000.0
TOGETHER = 8
DEADLINE_S = 20.0
ABOUT = """\
One master in a process of its own (state machine, dispatcher, queue in a real `redis-server` with an append-only file
synced every second, gRPC door on a unix socket) and {clients} asynchronous clients in another, each with its own
channel and token. A cycle leases one task and reports it. "One call": the `Report` of a task asks for the next one,
as workers do while their tasks are short (under a tenth of a second each). "Two calls": a `Lease` and a `Report`, as
workers with longer tasks do. For comparison, in turns with them: the same cycles on the queue in Redis alone, without
door and master, from one client, lease and report apart; and single empty calls through the RPC layer alone, with as
many clients. Rates are medians over windows of {seconds} s."""
ONE_CALL, TWO_CALLS = "master, one call", "master, two calls"


@dataclass(frozen=True)
class Master:
    """A master that runs: its folder, its Redis, its process."""

    folder: Path
    redis_url: str
    process: int


@contextlib.contextmanager
def master(tasks: int, workers: int) -> Iterator[Master]:
    """Starts ``benchmarks.harness.master``."""
    with tempfile.TemporaryDirectory(prefix="edl-bench-", dir="/tmp") as name:
        command = [sys.executable, "-m", "benchmarks.harness.master", name, str(tasks), str(workers)]
        log = Path(name) / "master.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=Path(__file__).resolve().parents[1],
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            url = ""
            while not url.startswith("unix:"):
                line = process.stdout.readline()
                if not line:
                    raise RuntimeError(f"the master ended early:\n{log.read_text()[-3000:]}")
                url = line.split(" ")[0]
            yield Master(Path(name), url, process.pid)
        finally:
            process.stdin.close()
            try:
                # It ends its Redis as well; killed it could not.
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


class Clients:
    """Clients of the master's door that lease and report in turns."""

    def __init__(self, address: str, count: int) -> None:
        service = master_pb2.DESCRIPTOR.services_by_name["Master"]
        self._clients = [
            RpcClient(address, service, issue(SECRET, JOB, Role.WORKER, index, 0)) for index in range(count)
        ]

    async def cycles(self, seconds: float, tasks: int = 1) -> float:
        """Cycles per second over a time, with a number of tasks in each lease."""
        stop = time.perf_counter() + seconds
        counts = await asyncio.gather(*(self._work(client, stop, tasks) for client in self._clients))
        return sum(counts) / seconds

    async def merged(self, seconds: float) -> float:
        """Cycles per second over a time, where each report asks for the next task."""
        stop = time.perf_counter() + seconds
        return sum(await asyncio.gather(*(self._work_merged(client, stop) for client in self._clients))) / seconds

    async def _work_merged(self, client: RpcClient, stop: float) -> int:
        done = 0
        answer = await client.call("Lease", master_pb2.LeaseRequest(max_tasks=1), deadline_s=DEADLINE_S)
        while answer.tasks:
            (task,) = answer.tasks
            wanted = int(time.perf_counter() < stop)
            report = master_pb2.ReportRequest(task_id=task.id, token=task.token, records=1, max_tasks=wanted)
            answer = await client.call("Report", report, deadline_s=DEADLINE_S)
            done += answer.accepted and not answer.replay
            if not wanted:
                return done
        raise RuntimeError("the master has no more tasks: give it more, or shorter windows")

    async def _work(self, client: RpcClient, stop: float, tasks: int) -> int:
        done = 0
        while time.perf_counter() < stop:
            leased = await client.call("Lease", master_pb2.LeaseRequest(max_tasks=tasks), deadline_s=DEADLINE_S)
            if not leased.tasks:
                raise RuntimeError("the master has no more tasks: give it more, or shorter windows")
            for task in leased.tasks:
                report = master_pb2.ReportRequest(task_id=task.id, token=task.token, records=1)
                answer = await client.call("Report", report, deadline_s=DEADLINE_S)
                done += answer.accepted and not answer.replay
        return done

    async def close(self) -> None:
        """Closes the channels."""
        await asyncio.gather(*(client.close() for client in self._clients))


async def queue_cycles(queue: RedisQueue, seconds: float) -> float:
    """Cycles per second on the queue alone."""
    stop, done = time.perf_counter() + seconds, 0
    while time.perf_counter() < stop:
        for lease in await queue.lease("worker-0.0", 1, 60.0):
            await queue.report(lease.task, lease.token)
            done += 1
    return done / seconds


async def calls(clients: list[RpcClient], seconds: float) -> float:
    """Empty calls per second through the RPC layer alone."""
    stop, frame = time.perf_counter() + seconds, encode_frame(b"")

    async def work(client: RpcClient) -> int:
        done = 0
        while time.perf_counter() < stop:
            await client.call("PushGradients", frame, deadline_s=DEADLINE_S)
            done += 1
        return done

    return sum(await asyncio.gather(*(work(client) for client in clients))) / seconds


def processor_time(process: int) -> float:
    """Seconds that a process has used."""
    times = psutil.Process(process).cpu_times()
    return float(times.user + times.system)


@contextlib.asynccontextmanager
async def queue_alone(url: str, tasks: int) -> AsyncIterator[RedisQueue]:
    """A queue of another job in the same Redis."""
    queue = RedisQueue(url, "queue-alone", 1)
    todo = tuple(TaskId(TaskType.TRAINING, 0, index, 0, 1) for index in range(tasks))
    await queue.rebuild(Contents(todo, (), {}, frozenset(), {}, ""), 60.0)
    yield queue
    await queue.close()


async def run(report: Report, clients: int, seconds: float, windows: int) -> None:
    """Measures in turns."""
    tasks = int((windows + 1) * seconds * 8000)
    async with contextlib.AsyncExitStack() as stack:
        report.say(f"starting a master with {tasks:,} tasks")
        running = stack.enter_context(master(tasks, clients))
        door = Clients(f"unix:{running.folder}/master-0.sock", clients)
        stack.push_async_callback(door.close)
        queue = await stack.enter_async_context(queue_alone(running.redis_url, tasks))
        address = stack.enter_context(echo("rpc", f"unix:{running.folder}/echo.sock"))
        service = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]
        callers = [RpcClient(address, service, "token") for _ in range(clients)]
        for caller in callers:
            stack.push_async_callback(caller.close)
        sides = {
            ONE_CALL: door.merged,
            TWO_CALLS: door.cycles,
            f"master, {TOGETHER} tasks in a lease": lambda span: door.cycles(span, TOGETHER),
            "queue in Redis alone": lambda span: queue_cycles(queue, span),
            "RPC layer alone": lambda span: calls(callers, span),
        }
        rates: dict[str, list[float]] = {name: [] for name in sides}
        busy: dict[str, list[float]] = {ONE_CALL: [], TWO_CALLS: []}
        for side in sides.values():
            await side(seconds / 3)
        for window in range(windows):
            report.say(f"window {window + 1} of {windows}")
            for name, side in sides.items():
                before = processor_time(running.process)
                rates[name].append(await side(seconds))
                if name in busy:
                    busy[name].append((processor_time(running.process) - before) / (rates[name][-1] * seconds))
    samples = {name: Sample(tuple(values)) for name, values in rates.items()}
    report.table(
        ["side", "cycles/s", "one call's share", "spread"],
        [
            [name, sample.median, samples[ONE_CALL].over(sample), f"{sample.spread:.0%}"]
            for name, sample in samples.items()
        ],
    )
    one, two = (Sample(tuple(busy[name])).median for name in (ONE_CALL, TWO_CALLS))
    report.text(
        f"The master's process spends {one * 1e3:.2f} ms of processor time on a cycle of one call and"
        f" {two * 1e3:.2f} ms on one of two, which bounds it at {1 / one:,.0f} and {1 / two:,.0f} cycles/s on a core"
        " of its own."
    )
    report.target("dispatch", samples[ONE_CALL].median, GOAL)
    figure = bars(
        [name.replace(", ", ",\n") for name in samples],
        {"cycles/s": [sample.median for sample in samples.values()]},
        "cycles/s",
        goal=GOAL,
    )
    report.plot("rates", figure, "Lease and report cycles per second")


def main() -> int:
    """Runs the benchmark."""
    options = parse(__doc__, clients=8, seconds=3, windows=7)
    if options.quick:
        options.seconds, options.windows = 1, 3
    report = Report("dispatch", "Dispatch", ABOUT.format(clients=options.clients, seconds=options.seconds))
    asyncio.run(run(report, options.clients, float(options.seconds), options.windows))
    report.write()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
