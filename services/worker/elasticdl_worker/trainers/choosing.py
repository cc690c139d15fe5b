"""Finds the framework of a job; this imports it."""

from __future__ import annotations

from pathlib import Path

from elasticdl.extras import require
from elasticdl.recognition import TORCH, resolve_framework
from elasticdl_core.errors import InvalidInputError, UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_worker.trainers.framework import Framework


def load_framework(spec: JobSpec, zoo: Path) -> Framework:
    """Imports the framework that a job's model is written in.

    Args:
        spec: the job.
        zoo: the model zoo directory.

    Raises:
        UserCodeError: the module does not tell its framework, the job asks for something of another one, or the
            framework is not installed here.
    """
    name = resolve_framework(zoo, spec)
    try:
        require(f"a model in {name}", name)
    except InvalidInputError as error:  # nothing of the user's is in its traceback
        raise UserCodeError(error.message, fix=error.fix) from None
    if name == TORCH:
        from elasticdl_worker.trainers.torch.implementation import TorchFramework

        return TorchFramework()
    from elasticdl_worker.trainers.tensorflow.implementation import TensorFlowFramework

    return TensorFlowFramework()
