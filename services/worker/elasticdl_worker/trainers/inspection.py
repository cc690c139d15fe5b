"""Looks at a model before its job's strategy is chosen: builds it as members of a group have it, and times steps."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from elasticdl_core.job import JobSpec
from elasticdl_core.job.fields import PARAMETER_SERVERS
from elasticdl_core.job.strategy import ModelSight, StrategyChoice
from elasticdl_core.task import Task
from elasticdl_worker.group.replica import copies
from elasticdl_worker.reporting.failures import classify
from elasticdl_worker.trainers.framework import Framework, Preparation, PreparedJob, TrainedReplica
from elasticdl_worker.trainers.in_group import first_records, make_replica
from elasticdl_worker.trainers.job_sources import JobSources
from elasticdl_worker.trainers.minibatch import Minibatch
from elasticdl_worker.user_code import ModelModule

_REPEATS = 5
_MINIBATCHES_READ = 8


def sized_for_group(spec: JobSpec) -> JobSpec:
    """The job as it would be by AllReduce."""
    return StrategyChoice.of_group(spec, "").applied_to(spec)


def inspect_model(framework: Framework, spec: JobSpec, zoo: Path) -> ModelSight:
    """Builds the model, and times a few steps on the first records where its size alone does not decide.

    Both strategies' steps are timed: they are different programs. One has whole tables, and gradients of all of
    their rows; the other has the rows that the minibatch touches.

    Args:
        framework: of the model, configured.
        spec: the job, as it would be by AllReduce.
        zoo: the model zoo directory.

    Returns:
        What was seen; what cannot be trained so has the reason as ``refusal``, and as ``unserved`` what cannot be
        trained by parameter servers. What neither can train has it as ``fault``.
    """
    try:
        module = framework.load_module(spec, zoo)
        sources = JobSources(framework, spec, module)
    except Exception as raised:
        return ModelSight(fault=classify(raised)[1].message)
    try:
        replica = make_replica(framework, spec, module, sources)
        sight = _sizes_of(replica)
        if not sight.is_clear:
            sight = _timed_in_group(sight, replica, first_records(spec, module, sources))
    except Exception as raised:  # whatever the user's code raises is told by the worker that trains it
        refusal, fault = classify(raised)[1].message, _fault_of(framework, spec, module, sources)
        return ModelSight(fault=fault) if fault == refusal else ModelSight(refusal=refusal)
    if sight.is_clear and not sight.table_bytes:
        return sight
    try:
        job = _prepared_for_servers(framework, spec, module, sources)
        return _timed_on_servers(sight, job, spec, module, sources) if sight.rows else sight
    except Exception as raised:  # a group can train it
        return dataclasses.replace(sight, unserved=classify(raised)[1].message)


def _prepared_for_servers(
    framework: Framework, spec: JobSpec, module: ModelModule, sources: JobSources
) -> PreparedJob:
    served = dataclasses.replace(StrategyChoice(PARAMETER_SERVERS, "").applied_to(spec), xla="off")
    callbacks = framework.callbacks_of(module, served)
    return framework.prepare(Preparation(served, module, sources.source(sources.main), callbacks))


def _fault_of(framework: Framework, spec: JobSpec, module: ModelModule, sources: JobSources) -> str:
    """Why parameter servers cannot train it either; empty if they can."""
    try:
        _prepared_for_servers(framework, spec, module, sources)
    except Exception as raised:  # as above
        return classify(raised)[1].message
    return ""


def _sizes_of(replica: TrainedReplica) -> ModelSight:
    layout = replica.layout
    sizes = {one.name: math.prod(one.shape) * np.dtype(one.dtype).itemsize for one in layout.dense}
    tables = sum(size for name, size in sizes.items() if name in layout.looked_up)
    return ModelSight(dense_bytes=sum(sizes.values()) - tables, table_bytes=tables)


def _timed_in_group(sight: ModelSight, replica: TrainedReplica, task: Task | None) -> ModelSight:
    """A member's step; nothing where there are no records, or nothing came of them."""
    if task is None:
        return sight
    data = replica.read(task, task.shard.start, task.shard.end)
    if not data.fed:
        return sight
    given = replica.compute(1, 0, data, 0)
    if not given.rows:
        return sight
    sums = copies(replica.memory, given.arrays)
    replica.apply(sums, given.rows, 0)
    return dataclasses.replace(
        sight,
        rows=data.fed,
        read_s=_fastest(lambda: replica.read(task, task.shard.start, task.shard.end)),
        compute_s=_fastest(lambda: replica.compute(2, 0, data, 0)),
        apply_s=_fastest(lambda: replica.apply(sums, given.rows, 0)),
        cores=len(os.sched_getaffinity(0)),
    )


def _timed_on_servers(
    sight: ModelSight, job: PreparedJob, spec: JobSpec, module: ModelModule, sources: JobSources
) -> ModelSight:
    """The step of a worker whose tables lie with parameter servers, with rows that nobody sent.

    Without XLA, which is tried in long jobs only, and has to be faster there.
    """
    task = first_records(spec, module, sources, _MINIBATCHES_READ)
    assert task is not None, "a member has read some"
    source, model, programs = sources.source(sources.main), job.model, job.programs

    def read() -> list[Minibatch]:
        return list(source.minibatches(task.shard))

    def collect_all() -> None:
        for one in read():
            programs.collect(one.features, training=True)

    batches = read()
    batch = batches[0]
    lookups = programs.collect(batch.features, training=True)
    values = model.values()
    dense = {name: values[name] for name in model.trainable}
    rows = {table: np.zeros((len(ids), model.tables[table].dim), np.float32) for table, ids in lookups.unique.items()}

    def step() -> int:
        found = programs.steps([(batch.features, batch.labels)], dense, rows, lookups)
        changes = itertools.chain(found.dense.values(), found.rows.values())
        return sum(array.nbytes for array in changes)

    pushed = step()
    pulled = sum(array.nbytes for array in itertools.chain(dense.values(), rows.values()))
    ids = 2 * sum(found.nbytes for found in lookups.unique.values())
    return dataclasses.replace(
        sight,
        served_s=_fastest(step) * sight.rows / batch.records,
        served_read_s=_fastest(collect_all) / len(batches),
        served_bytes=pulled + pushed + ids,
    )


def _fastest(action: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs: the others were kept waiting by something."""
    found = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        action()
        found.append(time.perf_counter() - began)
    return min(found)
