"""Finds the framework of a job; this imports it."""

from __future__ import annotations

from pathlib import Path

from elasticdl_core.job import JobSpec
from elasticdl_worker.trainers.framework import Framework


def load_framework(spec: JobSpec, zoo: Path) -> Framework:
    """Imports the framework that a job's model is written in.

    Args:
        spec: the job.
        zoo: the model zoo directory.
    """
    from elasticdl_worker.trainers.tensorflow.implementation import TensorFlowFramework

    return TensorFlowFramework()
