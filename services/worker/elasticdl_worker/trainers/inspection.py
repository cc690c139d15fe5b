"""Looks at a model before its job's strategy is chosen: builds it as members of a group have it, and times steps."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from elasticdl_core.errors import ElasticDLError
from elasticdl_core.job import JobSpec
from elasticdl_core.job.strategy import ModelSight, StrategyChoice
from elasticdl_worker.reporting.failures import classify
from elasticdl_worker.trainers.framework import Framework, TrainedReplica
from elasticdl_worker.trainers.in_group import first_records, make_replica
from elasticdl_worker.trainers.job_sources import JobSources
from elasticdl_worker.user_code import ModelModule

_REPEATS = 3


def sized_for_group(spec: JobSpec) -> JobSpec:
    """The job as it would be by AllReduce."""
    return StrategyChoice.of_group(spec, "").applied_to(spec)


def inspect_model(framework: Framework, spec: JobSpec, zoo: Path) -> ModelSight:
    """Builds the model, and times a few steps on the first records where its size alone does not decide.

    Args:
        framework: of the model, configured.
        spec: the job, as it would be by AllReduce.
        zoo: the model zoo directory.

    Returns:
        What was seen; what cannot be trained so has the reason as ``refusal``.
    """
    try:
        module = framework.load_module(spec, zoo)
        sources = JobSources(framework, spec, module)
        replica = make_replica(framework, spec, module, sources)
        sight = _sizes_of(replica)
        return sight if sight.is_clear else _timed(sight, spec, replica, sources, module)
    except ElasticDLError as error:
        return ModelSight(refusal=error.message)
    except Exception as raised:  # whatever the user's code raises is told by the worker that trains it
        return ModelSight(refusal=classify(raised)[1].message)


def _sizes_of(replica: TrainedReplica) -> ModelSight:
    layout = replica.layout
    sizes = {one.name: math.prod(one.shape) * np.dtype(one.dtype).itemsize for one in layout.dense}
    tables = sum(size for name, size in sizes.items() if name in layout.looked_up)
    return ModelSight(dense_bytes=sum(sizes.values()) - tables, table_bytes=tables)


def _timed(
    sight: ModelSight, spec: JobSpec, replica: TrainedReplica, sources: JobSources, module: ModelModule
) -> ModelSight:
    task = first_records(spec, module, sources)
    if task is None:
        return sight
    data = replica.read(task, task.shard.start, task.shard.end)
    if not data.fed:
        return sight
    given = replica.compute(1, 0, data, 0)
    if not given.rows:
        return sight
    sums = [np.array(array) for array in given.arrays]
    replica.apply(sums, given.rows, 0)
    return dataclasses.replace(
        sight,
        rows=data.fed,
        compute_s=_fastest(lambda: replica.compute(2, 0, data, 0)),
        apply_s=_fastest(lambda: replica.apply(sums, given.rows, 0)),
    )


def _fastest(action: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs: the others were kept waiting by something."""
    found = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        action()
        found.append(time.perf_counter() - began)
    return min(found)
