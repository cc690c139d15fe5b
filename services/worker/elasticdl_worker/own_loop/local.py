"""Runs a script with a training loop of its own in one process: the same minibatches and sums as in a group."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Mapping
from pathlib import Path

from elasticdl.own_loop import LeaveScript, set_feed
from elasticdl_core.group.steps import Step
from elasticdl_core.job import JobSpec
from elasticdl_core.job.fields import ALL_REDUCE
from elasticdl_core.job.updates import updates_per_epoch, words_of_updates
from elasticdl_core.shuffling import RecordOrder, cut, joined_parts
from elasticdl_core.skips import Skips, doublings, rests_left_out
from elasticdl_core.task import Task, TaskId, TaskType
from elasticdl_core.training_rules import check_trained, success_reason
from elasticdl_worker.group.alone import make_update, steps_of
from elasticdl_worker.group.replica import take_all
from elasticdl_worker.group.state_files import read_state
from elasticdl_worker.own_loop.bridge import LoopBridge
from elasticdl_worker.own_loop.member import NO_RECORDS
from elasticdl_worker.own_loop.records import ScriptRecords
from elasticdl_worker.own_loop.replica import ScriptReplica
from elasticdl_worker.reporting.local_progress import Emit, LocalProgress
from elasticdl_worker.trainers.export_request import locate_checkpoint
from elasticdl_worker.trainers.output_files import delivered, describe_folder, output_folder
from elasticdl_worker.user_code import run_script


def run_local_script(spec: JobSpec, output: str, emit: Emit) -> None:
    """Runs the script of a job in this process.

    Args:
        spec: the job.
        output: where the files that the script makes go: a folder, or a URL.
        emit: gets the events of a local run.

    Raises:
        ElasticDLError: the script or the data failed.
    """
    zoo = Path(spec.model_zoo)
    with output_folder(output) as folder:
        course = _LocalDriver(spec, zoo, folder, emit)
        set_feed(course.bridge)
        with contextlib.suppress(LeaveScript):
            course.bridge.run(lambda: run_script(spec, zoo))
        course.conclude(output)


class _LocalDriver:
    """Drives the script: epoch after epoch, update after update."""

    def __init__(self, spec: JobSpec, zoo: Path, output: Path, emit: Emit) -> None:
        self.bridge = LoopBridge(spec, self._start)
        self._spec = spec
        self._zoo = zoo
        self._output = output
        self._emit = emit
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._total = self._updates = self._begun = 0
        self._progress = LocalProgress(emit, 0)
        self._skips = Skips()
        self._damaged: Mapping[str, str] = {}
        self._stopped = ""

    def conclude(self, output: str) -> None:
        """Waits until the course is over, and says what came of it.

        Args:
            output: where its files shall be.

        Raises:
            ElasticDLError: it failed.
        """
        if self._thread is None:
            raise NO_RECORDS
        self._thread.join()
        if self._error is not None:
            raise self._error
        skipped: list[dict[str, object]] = [{"of": "main", **entry} for entry in self._skips.to_json()]
        skipped += rests_left_out("main", self._damaged)
        processed = self._progress.records + self._skips.records
        check_trained(processed, self._updates)
        self._emit(
            {
                "event": "done",
                "reason": success_reason(self._stopped, processed, self._total, skipped),
                "artifacts": delivered(describe_folder(self._output) if self._output.is_dir() else [], output),
                "metrics": {},
                "training_metrics": self._progress.training_metrics,
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
            self.bridge.finish(self._output)
        except BaseException as error:
            self._error = error
        finally:
            self.bridge.leave()

    def _train(self) -> None:
        spec = self._spec
        records = ScriptRecords(spec, self._zoo, self.bridge.size)
        replica = ScriptReplica(spec, self.bridge, records)
        if spec.checkpoint_dir_for_init:
            directory, files, _ = locate_checkpoint(spec.checkpoint_dir_for_init)
            replica.load(read_state(directory, files, replica.layout)[0])
        self._begun = replica.version
        sources = records.shards()
        self._damaged = records.damaged
        shards = (joined_parts if spec.shuffle else cut)(sources, spec.records_per_task)
        self._total = spec.num_epochs * sum(shard.records for shard in shards)
        self._progress = LocalProgress(self._emit, self._total, spec.log_loss_steps)
        told = words_of_updates(spec, updates_per_epoch(spec, shards), f"in this process, as by {ALL_REDUCE}")
        self._emit({"event": "started", "message": told})
        order = RecordOrder(spec.seed, spec.shuffle_block, grain=records.grain)
        order.extend(shards, sources)
        for epoch in range(spec.num_epochs):
            for index, shard in enumerate(shards):
                reading = order.reading(epoch, index, shard.start, shard.end) if spec.shuffle else None
                task = Task(TaskId(TaskType.TRAINING, epoch, index, shard.start, shard.end), shard, reading=reading)
                for step in steps_of(task, spec.microbatches_per_step, spec.minibatch_size):
                    if spec.max_steps and self._updates >= spec.max_steps:
                        self._stopped = f"max_steps reached: {spec.max_steps} updates"
                        return
                    self._step(replica, task, step)

    def _step(self, replica: ScriptReplica, task: Task, step: Step) -> None:
        made = make_update(replica, task, step)
        self._skip(made.passed_over + made.left_out)
        self._updates = replica.version - self._begun
        self._progress.begin(step.end - step.start)
        self._progress.advance(made.rows, task.id.epoch, self._updates, None if math.isnan(made.loss) else made.loss)
        due = self._progress.metrics_due
        if not math.isnan(made.loss) and (values := take_all(made.measures, due)) and due:
            self._progress.set_metrics(values)
        self._progress.end(made.passed_over + made.left_out)

    def _skip(self, skips: Skips) -> None:
        before, self._skips = self._skips, self._skips + skips
        for news in doublings(before, self._skips):
            self._emit({"event": "skipped", "message": news})
