"""Runs a script with a training loop of its own in one process: the same minibatches and sums as in a group."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from elasticdl.data import Shard
from elasticdl.own_loop import LeaveScript, set_feed
from elasticdl_core.job import JobSpec
from elasticdl_core.shuffling import Reading, RecordOrder, cut
from elasticdl_core.skips import SkipReason, Skips, doublings
from elasticdl_core.training_rules import check_trained, success_reason
from elasticdl_worker.collectives.tree import Stub, StubLeaves, aligned
from elasticdl_worker.group.replica import Flat, MicrobatchData
from elasticdl_worker.group.state_files import read_state
from elasticdl_worker.own_loop.exchange import ScriptExchange
from elasticdl_worker.own_loop.member import NO_RECORDS
from elasticdl_worker.own_loop.records import ScriptRecords
from elasticdl_worker.own_loop.replica import ScriptReplica
from elasticdl_worker.reporting.local_progress import Emit, LocalProgress
from elasticdl_worker.trainers.export_request import locate_checkpoint
from elasticdl_worker.trainers.output_files import describe_folder
from elasticdl_worker.user_code import run_script


def run_local_script(spec: JobSpec, output: Path, emit: Emit) -> None:
    """Runs the script of a job in this process.

    Args:
        spec: the job.
        output: where the files that the script makes go.
        emit: gets the events of a local run.

    Raises:
        ElasticDLError: the script or the data failed.
    """
    zoo = Path(spec.model_zoo)
    course = _LocalCourse(spec, zoo, output, emit)
    set_feed(course.exchange)
    with contextlib.suppress(LeaveScript):
        course.exchange.run(lambda: run_script(spec, zoo))
    course.conclude()


class _LocalCourse:
    """Drives the script: epoch after epoch, update after update."""

    def __init__(self, spec: JobSpec, zoo: Path, output: Path, emit: Emit) -> None:
        self.exchange = ScriptExchange(spec, self._start)
        self._spec = spec
        self._zoo = zoo
        self._output = output
        self._emit = emit
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._total = self._updates = self._begun = 0
        self._progress = LocalProgress(emit, 0)
        self._skips = Skips()
        self._stopped = ""

    def conclude(self) -> None:
        """Waits until the course is over, and says what came of it.

        Raises:
            ElasticDLError: it failed.
        """
        if self._thread is None:
            raise NO_RECORDS
        self._thread.join()
        if self._error is not None:
            raise self._error
        skipped: list[dict[str, object]] = [{"of": "main", **entry} for entry in self._skips.to_json()]
        processed = self._progress.records + self._skips.count(SkipReason.CORRUPT)
        check_trained(processed, self._updates)
        self._emit(
            {
                "event": "done",
                "reason": success_reason(self._stopped, processed, self._total, skipped),
                "artifacts": describe_folder(self._output) if self._output.is_dir() else [],
                "metrics": {},
                "training_metrics": {},
                "records": self._progress.records,
                "steps": self._updates,
                "skipped": skipped,
            }
        )

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._drive, name="steps", daemon=True)
        self._thread.start()

    def _drive(self) -> None:
        try:
            self._train()
            self._output.mkdir(parents=True, exist_ok=True)
            self._progress.show()
            self.exchange.finish(self._output)
        except BaseException as error:
            self._error = error
        finally:
            self.exchange.leave()

    def _train(self) -> None:
        spec = self._spec
        records = ScriptRecords(spec, self._zoo, self.exchange.size)
        replica = ScriptReplica(spec, self.exchange, records)
        if spec.checkpoint_dir_for_init:
            directory, files, _ = locate_checkpoint(Path(spec.checkpoint_dir_for_init))
            replica.load(read_state(str(directory), files, replica.layout)[0])
        self._begun = replica.version
        shards = cut(records.shards(), spec.records_per_task)
        self._total = spec.num_epochs * sum(shard.records for shard in shards)
        self._progress = LocalProgress(self._emit, self._total, spec.log_loss_steps)
        order = RecordOrder(spec.seed, spec.shuffle_block)
        order.extend(shards)
        for epoch in range(spec.num_epochs):
            for index, shard in enumerate(shards):
                reading = order.reading(epoch, index, shard.start, shard.end) if spec.shuffle else None
                for step in _steps(shard, spec.minibatch_size):
                    if spec.max_steps and self._updates >= spec.max_steps:
                        self._stopped = f"max_steps reached: {spec.max_steps} updates"
                        return
                    self._step(replica, records, step, reading, epoch)

    def _step(
        self, replica: ScriptReplica, records: ScriptRecords, step: Shard, reading: Reading | None, epoch: int
    ) -> None:
        spec = self._spec
        lengths = replica.lengths
        sums = [
            StubLeaves(Stub(0, spec.microbatches_per_step, 0), aligned(length, "float32"), []) for length in lengths
        ]
        rows, loss, skipped = 0, 0.0, Skips()
        for number in range(spec.microbatches_per_step):
            start = min(step.start + number * spec.microbatch_size, step.end)
            end = min(start + spec.microbatch_size, step.end)
            found, skips = records.read(Shard(step.name, start, end), reading) if start < end else ([], Skips())
            skipped += skips
            arrays: Sequence[Flat] = ()
            if found:
                data = MicrobatchData(len(found), skips, (found, end - start == spec.microbatch_size))
                given = replica.compute(replica.version, number, data, epoch)
                arrays, rows, loss = given.arrays, rows + given.rows, loss + given.loss * given.rows
            for at, leaves in enumerate(sums):
                leaves.leaf(number)[:] = arrays[at] if arrays else 0.0
                leaves.merge(number)
        self._skip(skipped)
        if rows:
            replica.apply([leaves.whole for leaves in sums], rows, epoch)
            self._updates = replica.version - self._begun
        self._progress.begin(step.records)
        self._progress.advance(rows, epoch, self._updates, None if math.isnan(loss) or not rows else loss / rows)
        self._progress.end(skipped)

    def _skip(self, skips: Skips) -> None:
        before, self._skips = self._skips, self._skips + skips
        for news in doublings(before, self._skips):
            self._emit({"event": "skipped", "message": news})


def _steps(shard: Shard, size: int) -> Iterator[Shard]:
    """The records of each update of a task."""
    for start in range(shard.start, shard.end, size):
        yield Shard(shard.name, start, min(start + size, shard.end))
