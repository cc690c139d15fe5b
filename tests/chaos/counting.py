"""The oracle: a job whose parameters say how often each record was trained on, and what must be true of that.

Neither a trace nor the ledger can see a gradient that is in the parameters twice, or that went away with a parameter
server and was not computed again. This can.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from elasticdl_runtime.checkpoint_files import CheckpointFile, read_checkpoint
from tests.e2e.local_cluster import Cluster
from tests.e2e.traces import applied_records, read_traces

ZOO = Path(__file__).parent / "zoo"
MODULES = {"tensorflow": "counting", "torch": "counting_torch"}
MINIBATCH, TASK_MINIBATCHES = 10, 5
TASK = MINIBATCH * TASK_MINIBATCHES
SLOW, FAST = 0.02, 0.0
"""Seconds a record. A job is slow until its faults have hit it, and then ends soon."""
LEASES = 2
"""Tasks that a worker may hold: the one that it trains on and the one that it reads."""


def until(condition: Callable[[], Any], what: str, timeout_s: float = 300.0) -> Any:
    """Waits until something is true, and returns it."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s"
        time.sleep(0.05)


@dataclass
class CountingJob:
    """A counting job on a cluster.

    Attributes:
        cluster: where it runs.
        id: of the job.
        records: in the data.
        epochs: passes.
        workers: at most.
        pace: the file that holds its pace.
    """

    cluster: Cluster
    id: str
    records: int
    epochs: int
    workers: int
    pace: Path

    def applied(self) -> int:
        """Records that workers said that they applied, so far."""
        return applied_records(read_traces(self.cluster.job_dir(self.id)))

    def trains(self) -> None:
        """Waits until records of another task and a half for each worker are applied: the job is running."""
        begun = self.applied()
        goal = begun + self.workers * TASK + TASK // 2
        until(lambda: self.applied() >= goal, f"job {self.id} applies records beyond the {begun} of now")

    def running(self) -> bool:
        """Whether it still has most of its last pass before it."""
        return self.applied() < self.records * self.epochs - self.records // 2

    def finish(self, timeout_s: float = 240.0) -> dict[str, Any]:
        """Lets it run as fast as it can; returns the job, which succeeded."""
        self.pace.write_text(str(FAST))
        job = self.cluster.wait(self.id, timeout=timeout_s)
        assert job["state"] == "SUCCEEDED", json.dumps(job.get("error"), indent=1)
        progress = job["status"]["progress"]
        assert progress["records_done"] == progress["records_total"] == self.records * self.epochs
        return job

    def events(self, kind: str) -> list[str]:
        """What was said of that kind of event."""
        with self.cluster.client() as client:
            return [event.message for event in client.events(self.id) if event.kind == kind]

    def checkpoints(self) -> list[dict[str, Any]]:
        """Manifests of the checkpoints that lie there, the last one last."""
        found = []
        for path in self.cluster.job_dir(self.id).glob("checkpoints/*/manifest.json"):
            with contextlib.suppress(FileNotFoundError):  # it was pruned meanwhile
                found.append(json.loads(path.read_text()))
        return sorted(found, key=lambda one: one["created_at"])

    def trains_on_after_a_checkpoint(self) -> None:
        """Waits for a new checkpoint, and then until more tasks are done, which it does not contain."""
        before = {one["directory"] for one in self.checkpoints()}
        until(lambda: {one["directory"] for one in self.checkpoints()} - before, "a new checkpoint is written")
        self.trains()

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """The final value of each record's parameters, and what was exported of the table."""
        last = self.checkpoints()[-1]
        files = [CheckpointFile(one["name"], one["size"], one["sha256"]) for one in last["files"]]
        folder = self.cluster.job_dir(self.id) / "checkpoints" / Path(last["directory"]).name
        content = read_checkpoint(str(folder), files)
        (ids, rows), (entries,) = *content.tables.values(), [*content.dense.values()]
        assert list(ids) == list(range(self.records)), "a record without a row was never trained on"
        with np.load(self.cluster.job_dir(self.id) / "artifacts" / "model" / "table-0.npz") as table:
            exported = table["vectors"][np.argsort(table["ids"])]
        return {"rows": rows.reshape(-1), "entries": entries.reshape(-1), "exported rows": exported.reshape(-1)}

    def counts(self) -> dict[str, NDArray[np.int64]]:
        """How often each record is in the final parameters, by parameter."""
        found = {}
        for name, values in self.parameters().items():
            found[name] = np.rint(values).astype(np.int64)
            assert np.array_equal(values, found[name]), f"{name}: a gradient is in it in part"
        return found

    def nothing_lost(self, *, most_again: int) -> None:
        """Every record is in the parameters once for each pass; at most so many are there once more often.

        Args:
            most_again: 0 without faults; else the records of all leases that were in flight at the faults.
        """
        for name, counts in self.counts().items():
            lost = {int(record): int(counts[record]) for record in np.flatnonzero(counts < self.epochs)}
            assert not lost, f"{name}: of {self.epochs} passes over {len(lost)} records too few are in it: {lost}"
            again = int(np.sum(counts - self.epochs))
            assert again <= most_again, f"{name}: {again} gradients more than there should be, {most_again} may be"

    def in_flight(self, faults: int = 1) -> int:
        """Records of the leases that can be in flight at so many faults."""
        return faults * self.workers * LEASES * TASK


_Job = TypeVar("_Job", bound=CountingJob)


@contextlib.contextmanager
def counting_job(
    cluster: Cluster,
    name: str,
    *flags: str,
    records: int = 1000,
    epochs: int = 6,
    workers: int = 2,
    num_ps: int = 2,
    framework: str = "tensorflow",
    rate: int = 1,
) -> Iterator[CountingJob]:
    """A counting job that was submitted and trains slowly; cancelled if the test leaves it before it ends."""
    options = (
        *("--num_minibatches_per_task", str(TASK_MINIBATCHES), "--num_ps_pods", str(num_ps)),
        *("--checkpoint_steps", "100", *flags),
    )
    with submitted(
        CountingJob,
        cluster,
        name,
        MODULES[framework],
        *options,
        records=records,
        epochs=epochs,
        workers=workers,
        rate=rate,
    ) as job:
        yield job


@contextlib.contextmanager
def submitted(
    kind: type[_Job],
    cluster: Cluster,
    name: str,
    module: str,
    *flags: str,
    records: int,
    epochs: int,
    workers: int,
    pace: float = SLOW,
    rate: int = 1,
) -> Iterator[_Job]:
    """A job of a module of the zoo here; cancelled if the test leaves it before it ends.

    Args:
        kind: the class that looks at it.
        cluster: where it runs.
        name: of the job.
        module: of its model.
        flags: further options.
        records: in its data.
        epochs: passes over them.
        workers: how many it has.
        pace: seconds a record, to begin with.
        rate: what each gradient counts as, where the module asks for it.
    """
    data = cluster.directory / f"counting-{records}.csv"
    if not data.exists():
        data.write_text("record,label\n" + "".join(f"{record},0\n" for record in range(records)))
    paced = cluster.directory / f"{name}.pace"
    paced.write_text(str(pace))
    job_id = cluster.submit(
        *("--job_name", name, "--model_zoo", str(ZOO), "--model_def", f"{module}.custom_model"),
        *("--training_data", cluster.seen(data), "--num_epochs", str(epochs), "--minibatch_size", str(MINIBATCH)),
        *("--min_workers", str(workers), "--max_workers", str(workers)),
        *("--envs", f"COUNTING_RECORDS={records};COUNTING_PACE={cluster.seen(paced)};COUNTING_RATE={rate}", *flags),
    )
    try:
        yield kind(cluster, job_id, records, epochs, workers, paced)
    finally:
        with cluster.client() as client:
            if client.get(job_id)["state"] not in {"SUCCEEDED", "FAILED", "CANCELLED"}:
                client.cancel(job_id)
