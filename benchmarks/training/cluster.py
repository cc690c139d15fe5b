"""Our side: jobs on a local cluster of their own, measured by what their workers say they have processed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from benchmarks.training.data import ZOO, Clicks

if TYPE_CHECKING:
    from elasticdl import Client

_COMMAND_S = 120.0
_FIRST_S = 180.0
_END_S = 120.0
_LATE_S = 30.0
_LEAST_TASKS = 5
_MOMENT_S = 0.02
_ENDED = {"SUCCEEDED", "FAILED", "CANCELLED"}
MANY_EPOCHS = 1_000_000


class Cluster:
    """``elasticdl up`` in a folder of its own, from its first use to the end of ``with``.

    Args:
        folder: where it keeps everything; made.
        slots: workers that may run at once.
        cpus: cores that it and its jobs may use; all by default.
    """

    def __init__(self, folder: Path, slots: int, cpus: Sequence[int] | None = None) -> None:
        self.folder, self._slots, self._cpus = folder, slots, cpus
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """Talks to it."""
        if self._client is None:
            slots = str(self._slots)
            up = ("up", "--port", "0", "--slots", slots, "--policy", "fair", "--detach")
            _elasticdl(self.folder, *up, cpus=self._cpus)
            os.environ["ELASTICDL_DATA_DIR"] = str(self.folder)
            from elasticdl import Client

            self._client = Client()
        return self._client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()
            _elasticdl(self.folder, "down")

    def run(self, say: Any, **fields: Any) -> Mapping[str, Any]:
        """Runs a job to its end; returns the API's view of it.

        Raises:
            RuntimeError: it did not succeed.
        """
        job = self.client.submit(model_zoo=ZOO, **fields)
        done = self.client.wait(job.id, 600)
        if done.state != "SUCCEEDED":
            raise RuntimeError(f"job {job.id} ended as {done.state}: {done.reason}; see {self.folder}/jobs/{job.id}")
        say(f"{job.id}: {dict(done.status.metrics)}")
        return done.raw


class JobSide:
    """A training job; see ``benchmarks.training.sides.Side``.

    Each measurement is a job of its own: submitted, left alone until all its workers train steadily, counted, and
    cancelled.

    Args:
        name: of the side.
        label: for people.
        cluster: runs it.
        workers: number of workers.
        fields: of the job's specification.
        warm_up: seconds that all workers train before counting.
    """

    def __init__(
        self, name: str, label: str, cluster: Cluster, workers: int, fields: Mapping[str, Any], warm_up: float = 2.0
    ) -> None:
        self.name, self.label = name, label
        self._cluster, self._workers, self._fields, self._warm_up = cluster, workers, dict(fields), warm_up
        self._running = ""

    def prepare(self) -> None:
        """Nothing: every measurement starts a job."""

    def ready(self) -> None:
        """Nothing."""

    def measure(self, seconds: float) -> float:
        """Starts the job, counts, cancels it; samples a second of all workers.

        Raises:
            RuntimeError: the job ended, or its workers do not train.
        """
        client, workers = self._cluster.client, self._workers
        job = client.submit(**{"model_zoo": ZOO, "min_workers": workers, "max_workers": workers, **self._fields})
        self._running = job.id
        try:
            meter = TraceMeter(self._cluster.folder / "jobs" / job.id / "traces")
            self._until_all_train(meter)
            meter.watch(self._warm_up)
            meter.forget()
            meter.watch(seconds)
            late = time.monotonic() + _LATE_S
            while meter.fewest() < _LEAST_TASKS and time.monotonic() < late:
                meter.watch(0.2)
            return meter.rate()
        finally:
            self.close()

    def close(self) -> None:
        """Cancels the job, and waits until its processes are gone."""
        if not self._running:
            return
        client, job_id, self._running = self._cluster.client, self._running, ""
        if str(client.get(job_id).state) not in _ENDED:
            client.cancel(job_id)
            client.wait(job_id, _END_S)
        until = time.monotonic() + _END_S
        while _processes_of(job_id) and time.monotonic() < until:
            time.sleep(0.1)

    def _until_all_train(self, meter: TraceMeter) -> None:
        until = time.monotonic() + _FIRST_S
        asked = 0.0
        while meter.owners() < self._workers:
            meter.watch(0.2)
            if time.monotonic() - asked < 2:
                continue
            asked = time.monotonic()
            job = self._cluster.client.get(self._running)
            if str(job.state) in _ENDED or asked > until:
                raise RuntimeError(
                    f"job {job.id} is {job.state} with {meter.owners()} of {self._workers} workers training: "
                    f"{job.reason} {job.error or ''}"
                )


class TraceMeter:
    """Counts records by the traces that workers write as their tasks' last pushes are accepted.

    The speed of a worker is that between its first and its last line, so that tasks half done at either end of the
    time do not matter. Lines say themselves when they were written: they are read when the time is over, so that
    reading them takes nothing from those who are measured.

    Args:
        folder: of the job's traces.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._moments: dict[str, list[tuple[float, int]]] = {}

    def owners(self) -> int:
        """Number of workers that have processed a task."""
        return len(self._moments)

    def fewest(self) -> int:
        """Moments with lines of the worker that has the fewest since counting began."""
        return min(map(len, self._moments.values()), default=0)

    def forget(self) -> None:
        """Counts anew from now."""
        for moments in self._moments.values():
            moments.clear()

    def watch(self, seconds: float) -> None:
        """Lets so much time pass, and reads the lines that were written."""
        time.sleep(seconds)
        self._look()

    def rate(self) -> float:
        """Samples a second of all workers.

        Raises:
            RuntimeError: a worker did too little to tell.
        """
        total = 0.0
        for owner, moments in self._moments.items():
            if len(moments) < _LEAST_TASKS:
                raise RuntimeError(f"{owner} finished {len(moments)} tasks only while it was measured")
            records = sum(count for _, count in moments[1:])
            total += records / (moments[-1][0] - moments[0][0])
        return total

    def _look(self) -> None:
        if not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            moments = self._moments.setdefault(path.stem, []) if whole else []
            for line in map(json.loads, whole.splitlines()):
                at, records = float(line["at"]), line["end"] - line["start"]
                if moments and at // _MOMENT_S == moments[-1][0] // _MOMENT_S:  # tasks that end together
                    moments[-1] = (at, moments[-1][1] + records)
                else:
                    moments.append((at, records))


def job_fields(clicks: Clicks, data: Path, *, dim: int, batch: int, servers: int, **others: Any) -> dict[str, Any]:
    """The specification of a job on clicks whose tables live on the parameter servers.

    Args:
        clicks: what it trains on.
        data: folder with ``train/``.
        dim: of the vectors.
        batch: records in a minibatch.
        servers: number of parameter servers.
        **others: further fields, or other values of those set here.
    """
    return {
        "name": "deepfm",
        "model_def": "deepfm.forward",
        "model_params": {"ids": clicks.vocabulary, "dim": dim},
        "training_data": str(data / "train"),
        "minibatch_size": batch,
        "num_minibatches_per_task": 16,
        "num_epochs": MANY_EPOCHS,
        "num_ps": servers,
        "embedding_threshold_bytes": 0,
        "xla": "off",
        **others,
    }


def _elasticdl(folder: Path, *arguments: str, cpus: Sequence[int] | None = None) -> None:
    prefix = ["taskset", "-c", ",".join(map(str, cpus))] if cpus is not None else []
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "elasticdl", *arguments],
        env=os.environ | {"ELASTICDL_DATA_DIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_COMMAND_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"elasticdl {arguments[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}")


def _processes_of(job_id: str) -> list[int]:
    """Processes that still have the job's id in their environment."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ELASTICDL_JOB_ID") == job_id:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
