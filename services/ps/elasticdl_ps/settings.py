"""The settings of a parameter server."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.settings import ProcessSettings


class PsSettings(ProcessSettings):
    """The settings of a parameter server.

    Attributes:
        job_id: ``ELASTICDL_JOB_ID``, the job.
        index: ``ELASTICDL_INDEX``, which parameter server of the job this is.
        incarnation: ``ELASTICDL_INCARNATION``, how often this index was launched before.
        num_ps: ``ELASTICDL_NUM_PS``, how many it has.
        job_secret: ``ELASTICDL_JOB_SECRET``, verifies the tokens of the job's processes.
        listen: ``ELASTICDL_LISTEN``, the address to serve on.
        ps_kernels: ``ELASTICDL_PS_KERNELS``, ``numba`` or ``numpy``.
        own_folder: ``ELASTICDL_OWN_FOLDER``, of a server that belongs to the program that started it: it ends when
            its standard input does, and removes this folder then. Empty for those of jobs.
    """

    job_id: str
    index: int
    incarnation: int = 0
    num_ps: int
    job_secret: str
    listen: str
    ps_kernels: str = "numba"
    own_folder: str = ""

    @model_validator(mode="after")
    def _one_of_all(self) -> Self:
        if not 0 <= self.index < self.num_ps:
            raise InvalidInputError(
                f"there is no PS {self.index} of {self.num_ps}", fix="set ELASTICDL_INDEX and ELASTICDL_NUM_PS"
            )
        return self
