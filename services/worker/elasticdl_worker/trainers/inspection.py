"""Looks at a model before its job's strategy is chosen: builds it as a group has it, and as servers do."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np

from elasticdl_core.job import JobSpec
from elasticdl_core.job.fields import PARAMETER_SERVERS
from elasticdl_core.job.strategy import ModelProfile, StrategyChoice
from elasticdl_worker.reporting.failures import classify
from elasticdl_worker.trainers.framework import Framework, Preparation, PreparedJob, TrainedReplica
from elasticdl_worker.trainers.in_group import make_replica
from elasticdl_worker.trainers.job_sources import JobSources
from elasticdl_worker.user_code import ModelModule


def sized_for_group(spec: JobSpec) -> JobSpec:
    """The job as it would be by AllReduce."""
    return StrategyChoice.of_group(spec, "").applied_to(spec)


def inspect_model(framework: Framework, spec: JobSpec, zoo: Path) -> ModelProfile:
    """Builds the model; where it has embeddings, once more as parameter servers have it.

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
        return ModelProfile(fault=classify(raised)[1].message)
    try:
        profile = _sizes_of(make_replica(framework, spec, module, sources))
    except Exception as raised:  # whatever the user's code raises is told by the worker that trains it
        refusal, fault = classify(raised)[1].message, _fault_of(framework, spec, module, sources)
        return ModelProfile(fault=fault) if fault == refusal else ModelProfile(refusal=refusal)
    if not profile.embedding_bytes:
        return profile
    try:
        tables = len(_prepared_for_servers(framework, spec, module, sources).tables)
    except Exception as raised:  # a group can train it
        return dataclasses.replace(profile, unserved=classify(raised)[1].message)
    return dataclasses.replace(profile, tables=tables)


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


def _sizes_of(replica: TrainedReplica) -> ModelProfile:
    layout = replica.layout
    sizes = {one.name: math.prod(one.shape) * np.dtype(one.dtype).itemsize for one in layout.dense}
    embeddings = sum(size for name, size in sizes.items() if name in layout.looked_up)
    return ModelProfile(dense_bytes=sum(sizes.values()) - embeddings, embedding_bytes=embeddings)
