"""Measures the cost of open pages to a job: windows on one DeepFM job, in turns with and without pages."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from benchmarks.harness import Sample
from benchmarks.training.cluster import Cluster, TraceMeter, job_fields
from benchmarks.training.data import ZOO, generated

WORKERS, TURNS = 2, 6
WARM_UP_S = 5.0
_TRAIN_S = 180.0


@contextlib.contextmanager
def open_pages(cluster: Cluster, job: str, count: int) -> Iterator[None]:
    """So many pages of a job, in a process of their own."""
    address = urlsplit(json.loads((cluster.folder / "cluster.json").read_text())["api_url"])
    token = (cluster.folder / "token").read_text().strip()
    command = [sys.executable, "-m", "benchmarks.dashboard_parts.open_pages", str(address.hostname)]
    with subprocess.Popen(
        [*command, str(address.port), token, job, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            if process.stdout.readline().strip() != "open":
                raise RuntimeError("the pages were not opened")
            yield
            if process.poll() is not None:
                raise RuntimeError(f"the pages ended early with {process.returncode}")
        finally:
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


@dataclass(frozen=True)
class Load:
    """Windows without or with open pages.

    Attributes:
        samples_per_second: of the job.
        api_share: CPU seconds of the api's process in a second.
    """

    samples_per_second: Sample
    api_share: Sample


def _api_process(folder: Path) -> psutil.Process:
    """The api of the cluster in a folder."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("ELASTICDL_DATA_DIR") == str(folder) and "elasticdl_api" in process.cmdline():
                return process
    raise RuntimeError("the cluster has no api")


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measured_load(pages: int, seconds: float, say: Callable[[str], None]) -> tuple[Load, Load]:
    """A job and the api without and with open pages, in windows that take turns."""
    with tempfile.TemporaryDirectory(prefix="edl-bench-", dir="/tmp") as name:
        clicks, data = generated(), Path(name) / "records"
        clicks.write_records(data, least=1_000_000)
        with Cluster(Path(name) / "cluster", WORKERS) as cluster:
            fields = job_fields(clicks, data, dim=16, batch=512, servers=1)
            job = cluster.client.submit(model_zoo=ZOO, min_workers=WORKERS, max_workers=WORKERS, **fields)
            meter = TraceMeter(cluster.folder / "jobs" / job.id / "traces")
            for _ in range(int(_TRAIN_S)):
                meter.watch(1.0)
                if meter.owners() == WORKERS:
                    break
            meter.watch(WARM_UP_S)
            api = _api_process(cluster.folder)
            found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
            for turn in range(2 * TURNS):
                # The first of a pair takes turns as well, so that a drift favours neither.
                with_pages = (turn + turn // 2) % 2 == 1
                with open_pages(cluster, job.id, pages) if with_pages else contextlib.nullcontext():
                    meter.watch(1.0)
                    meter.forget()
                    began, used = time.monotonic(), _cpu_s(api)
                    meter.watch(seconds)
                    share = (_cpu_s(api) - used) / (time.monotonic() - began)
                    rate = meter.rate()
                    found[with_pages].append((rate, share))
                say(f"{pages if with_pages else 0} pages: {rate:,.0f} samples/s, api {share:.1%} of a core")
            cluster.client.cancel(job.id)
            cluster.client.wait(job.id, 120)
    return _load(found[False]), _load(found[True])


def _load(windows: list[tuple[float, float]]) -> Load:
    return Load(*(Sample(values) for values in zip(*windows, strict=True)))
