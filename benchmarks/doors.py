"""Ten thousand idle event streams on one api process, and what others wait for beside them.

./dev bench doors [--quick] [--streams 10000] [--rate 500] [--seconds 8] [--windows 5]
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import psutil

from benchmarks.harness import Report, parse
from benchmarks.harness.http_load import Ask, Tally, load, open_streams, raise_file_limit, request_bytes
from elasticdl_agent.cluster.postgres import EmbeddedPostgres
from elasticdl_runtime.bundles import pack_bundle

TOKEN = "a-token-for-the-benchmark"
GOAL_S = 0.25
GOAL_STREAMS = 10_000
GOAL_COST_S = 1.8e-3
"""Processor time of a request of the mix."""
JOBS = 200
TOKENS = 4
"""Of a namespace: half of the requests come with one of them, the others with the administrator's."""
ALONE = 150
"""Requests of a kind, one after the other, by which its cost is told."""
CONNECTIONS = 128
MODULE = """
import keras

def custom_model(): return keras.Sequential()
def loss(labels, predictions): return 0.0
def optimizer(lr=0.1): return keras.optimizers.SGD(lr)
def feed(dataset, mode, metadata): return dataset
"""
ABOUT = """\
One api process with an embedded Postgres that syncs its commits, {jobs} jobs in it, and a client in a process of its
own, all on the same machine. {streams:,} event streams are opened and left idle, nine of ten of single jobs, the rest
of all jobs. Then {rate} requests a second, each due at its own time on a fixed beat, are sent over {connections}
connections; what a request waits for a free connection counts. Windows of {seconds} s in turns: a mix of what
dashboards and scripts ask (looking at jobs, lists, events, the cluster, 304s, HEAD, some changes), and as many of
`GET /healthz`, which asks nobody. Half of the requests come with tokens of a namespace, which are looked up in the
database with each. Database and client take their share of the same cores: on two cores the client has one of them.
The machine's own share of a delay is in both: the ratio is what carries over."""


@dataclass(frozen=True)
class Api:
    """An api process that runs."""

    host: str
    port: int
    process: int
    database_url: str

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@contextlib.contextmanager
def running(argv: list[str], log: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended with the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output, **options)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.asynccontextmanager
async def cluster() -> AsyncIterator[Api]:
    """Postgres and an api process."""
    with tempfile.TemporaryDirectory(prefix="edl-bench-", dir="/tmp") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        postgres = await started_postgres(folder, stack)
        data = folder / "data"
        data.mkdir()
        (data / "token").write_text(TOKEN)
        environment = {
            **os.environ,
            "ELASTICDL_DATABASE_URL": postgres.url,
            "ELASTICDL_CLUSTER_SECRET": "a-secret-for-the-benchmark",
            "ELASTICDL_DATA_DIR": str(data),
            "ELASTICDL_API_PORT": "0",
            "ELASTICDL_LOG_FORMAT": "json",
        }
        log = folder / "api.log"
        process = stack.enter_context(running([sys.executable, "-m", "elasticdl_api"], log, env=environment))
        host, port = await _address(log, process)
        yield Api(host, port, process.pid, postgres.url)


async def started_postgres(folder: Path, stack: contextlib.ExitStack) -> EmbeddedPostgres:
    """An embedded Postgres in a folder, which ends with the stack."""
    postgres = EmbeddedPostgres(folder / "postgres", folder / "s", "password-of-the-benchmark", folder / "pg.log")
    spec = await asyncio.to_thread(postgres.prepare)
    user = {"user": spec.user[0], "group": spec.user[1], "extra_groups": []} if spec.user else {}
    stack.enter_context(running(list(spec.argv), folder / "postgres.log", env=dict(spec.environment), **user))
    await _until_there(postgres)
    return postgres


async def _until_there(postgres: EmbeddedPostgres) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await postgres.make_ready()
                return
            await asyncio.sleep(0.2)


async def _address(log: Path, process: subprocess.Popen[bytes]) -> tuple[str, int]:
    async with asyncio.timeout(90):
        while process.poll() is None:
            for line in log.read_text().splitlines():
                with contextlib.suppress(ValueError):
                    entry = json.loads(line)
                    if entry.get("event") == "listening":
                        return entry["host"], entry["port"]
            await asyncio.sleep(0.2)
    raise RuntimeError(f"the api ended early:\n{log.read_text()[-3000:]}")


async def submit(api: Api, count: int) -> list[str]:
    """Submits jobs; nothing admits them, so that they stay as they are."""
    with tempfile.TemporaryDirectory() as zoo:
        (Path(zoo) / "model.py").write_text(MODULE)
        data, digest = pack_bundle(zoo)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=api.url, headers=headers, timeout=60, trust_env=False) as http:
        (await http.put(f"/v1/bundles/{digest}", content=data)).raise_for_status()
        spec = {"model_def": "model.custom_model", "model_bundle": digest, "training_data": "/data"}
        found = []
        for number in range(count):
            answer = await http.post("/v1/jobs", json={**spec, "name": f"job{number}", "max_workers": 4})
            found.append(str(answer.raise_for_status().json()["id"]))
        return found


async def make_tokens(api: Api) -> list[str]:
    """Tokens of a namespace, and the administrator's as often."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=api.url, headers=headers, timeout=60, trust_env=False) as http:
        found = [TOKEN] * TOKENS
        for number in range(TOKENS):
            wanted = {"name": f"token{number}", "scope": "submit", "namespace": "default"}
            answer = await http.post("/v1/tokens", json=wanted)
            found.append(str(answer.raise_for_status().json()["token"]))
        return found


def mixed(api: Api, jobs: list[str], tokens: list[str], number: int, chance: random.Random) -> list[Ask]:
    """Requests as dashboards and scripts send them."""
    ok, unchanged = frozenset({200}), frozenset({304})

    def plain(name: str, method: str, path: str, statuses: frozenset[int] = ok, **more: str) -> Ask:
        headers = {"Authorization": f"Bearer {chance.choice(tokens)}"}
        return Ask(name, request_bytes(method, path, api.host, {**headers, **more}), statuses)

    def draw() -> Ask:
        job = chance.choice(jobs)
        what = chance.random()
        if what < 0.30:
            return plain("a job", "GET", f"/v1/jobs/{job}")
        if what < 0.40:
            return plain("a job, unchanged", "GET", f"/v1/jobs/{job}", unchanged, **{"If-None-Match": "*"})
        if what < 0.50:
            return plain("a job, HEAD", "HEAD", f"/v1/jobs/{job}")
        if what < 0.60:
            return plain("20 jobs", "GET", "/v1/jobs?limit=20")
        if what < 0.80:
            return plain("events", "GET", f"/v1/jobs/{job}/events?limit=50")
        if what < 0.90:
            return plain("the cluster", "GET", "/v1/cluster")
        if what < 0.95:
            return plain("losses", "GET", f"/v1/jobs/{job}/metrics")
        body = json.dumps({"priority": chance.randrange(100)}).encode()
        headers = {"Authorization": f"Bearer {chance.choice(tokens)}", "Content-Type": "application/json"}
        data = request_bytes("PATCH", f"/v1/jobs/{job}", api.host, headers, body)
        return Ask("a change", data, ok)

    return [draw() for _ in range(number)]


def health(api: Api, number: int) -> list[Ask]:
    """As many requests that ask nobody."""
    return [Ask("healthz", request_bytes("GET", "/healthz", api.host, {}), frozenset({200}))] * number


def p99(seconds: list[float]) -> float:
    """The 99th of a hundred."""
    return statistics.quantiles(seconds, n=100)[98]


async def transactions(url: str) -> int:
    """Transactions that the database has done."""
    connection = await asyncpg.connect(url, timeout=10)
    try:
        return int(
            await connection.fetchval("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
        )
    finally:
        await connection.close()


def memory(process: int) -> float:
    """Bytes of its own memory that a process holds."""
    return float(psutil.Process(process).memory_full_info().uss)


def processor_time(process: int) -> float:
    """Seconds that a process has used."""
    times = psutil.Process(process).cpu_times()
    return float(times.user + times.system)


async def run(report: Report, streams: int, rate: int, seconds: float, windows: int) -> None:
    """Measures."""
    files = raise_file_limit(streams + 1000)
    if files < streams + 500:
        raise SystemExit(f"only {files} files may be open here: raise the hard limit, or give fewer --streams")
    async with cluster() as api:
        report.say(f"an api at {api.url}; submitting {JOBS} jobs")
        jobs, tokens = await submit(api, JOBS), await make_tokens(api)
        before = memory(api.process)
        headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/event-stream"}
        paths = [
            "/v1/events" if number % 10 == 0 else f"/v1/jobs/{jobs[number % len(jobs)]}/events"
            for number in range(streams)
        ]
        asks = [request_bytes("GET", path, api.host, headers) for path in paths]
        began = time.perf_counter()
        opened = await open_streams(api.host, api.port, asks, say=lambda n: report.say(f"{n} streams"))
        opening = time.perf_counter() - began
        await idle(report, api, streams, opening, before)
        await costs(report, api, jobs, tokens)
        await compare(report, api, jobs, tokens, rate, seconds, windows)
        lost = sum(stream.ended for stream in opened)
        report.target("streams", len(opened) - lost, GOAL_STREAMS)
        for stream in opened:
            stream.close()


async def idle(report: Report, api: Api, streams: int, opening: float, before: float) -> None:
    """Measures the cost of the streams while nothing happens."""
    kilobytes = (memory(api.process) - before) / streams / 1000
    report.say("watching them do nothing")
    span = 10.0
    used, done = processor_time(api.process), await transactions(api.database_url)
    await asyncio.sleep(span)
    done = await transactions(api.database_url) - done
    used = processor_time(api.process) - used
    report.text(
        f"{streams:,} streams were opened in {opening:.0f} s. Each holds {kilobytes:.0f} kB of the api's memory."
        f" While nothing happens, all of them together cost {used / span:.1%} of a core (comments every 12 s) and"
        f" {done / span:.1f} transactions a second."
    )


async def costs(report: Report, api: Api, jobs: list[str], tokens: list[str]) -> None:
    """Measures the cost of a request of each kind to the api alone, with the streams open."""
    report.say("one kind of request after the other")
    asks: dict[str, list[Ask]] = {}
    for ask in mixed(api, jobs, tokens, 40 * ALONE, random.Random(5)) + health(api, ALONE):
        asks.setdefault(ask.name, []).append(ask)
    rows: list[list[Any]] = []
    for kind, some in sorted(asks.items()):
        times = []
        for _ in range(3):
            used = processor_time(api.process)
            await load(api.host, api.port, some[:ALONE], 1e9, 1)
            times.append((processor_time(api.process) - used) / min(len(some), ALONE))
        rows.append([kind, statistics.median(times) * 1e3])
    report.table(["request, one after the other", "ms of the api's processor time"], rows)


async def compare(
    report: Report, api: Api, jobs: list[str], tokens: list[str], rate: int, seconds: float, windows: int
) -> None:
    """The mix and /healthz, in turns."""
    chance = random.Random(7)
    number = int(rate * seconds)
    both: dict[str, list[Tally]] = {"mixed": [], "healthz": []}
    busy: list[float] = []
    for window in range(windows + 1):
        report.say(f"window {window} of {windows}" if window else "warming up")
        used = processor_time(api.process)
        one = await load(api.host, api.port, mixed(api, jobs, tokens, number, chance), rate, CONNECTIONS)
        used = processor_time(api.process) - used
        other = await load(api.host, api.port, health(api, number), rate, CONNECTIONS)
        if window:
            both["mixed"].append(one)
            both["healthz"].append(other)
            busy.append(used / number)
    wrong: Counter[str] = Counter()
    for tally in both["mixed"] + both["healthz"]:
        wrong.update(tally.wrong)
    ends = {side: [p99(_all(tally)) for tally in tallies] for side, tallies in both.items()}
    kinds = sorted({kind for tally in both["mixed"] for kind in tally.seconds})
    rows: list[list[Any]] = [_row("all of the mix", [_all(tally) for tally in both["mixed"]])]
    rows += [_row(kind, [tally.seconds.get(kind, []) for tally in both["mixed"]]) for kind in kinds]
    rows.append(_row("healthz alone", [_all(tally) for tally in both["healthz"]]))
    report.table(["request", "number", "median ms", "p99 ms"], rows)
    ratio = statistics.median(one / other for one, other in zip(ends["mixed"], ends["healthz"], strict=True))
    report.text(
        f"The p99 of the mix is {ratio:.1f} times that of `/healthz` (median of the windows' ratios). A request of"
        f" the mix takes {statistics.median(busy) * 1e3:.2f} ms of the api's processor time: a core of its own"
        f" bounds it at {1 / statistics.median(busy):,.0f} a second."
    )
    if wrong:
        report.text(
            "Answers that were not right: " + ", ".join(f"{kind} ({wrong[kind]})" for kind in sorted(wrong)) + "."
        )
    report.target("wrong_answers", wrong.total(), 0, at_least=False)
    report.target("processor_s_a_request", statistics.median(busy), GOAL_COST_S, at_least=False)
    report.target("p99_mixed_s", statistics.median(ends["mixed"]), GOAL_S, at_least=False)


def _all(tally: Tally) -> list[float]:
    return [second for seconds in tally.seconds.values() for second in seconds]


def _row(name: str, windows: list[list[float]]) -> list[Any]:
    seconds = [second for window in windows for second in window]
    return [name, len(seconds), statistics.median(seconds) * 1e3, p99(seconds) * 1e3]


def main() -> int:
    """Runs the benchmark."""
    options = parse(__doc__, streams=GOAL_STREAMS, rate=500, seconds=8, windows=5)
    if options.quick:
        options.streams, options.seconds, options.windows = 1000, 3, 2
    about = ABOUT.format(
        jobs=JOBS,
        streams=options.streams,
        rate=options.rate,
        connections=CONNECTIONS,
        seconds=options.seconds,
    )
    report = Report("doors", "Doors", about)
    asyncio.run(run(report, options.streams, options.rate, float(options.seconds), options.windows))
    report.write()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
