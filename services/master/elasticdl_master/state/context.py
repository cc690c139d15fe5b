"""The context of all parts of the machine: the job, its bounds, and mirrors of the world around it."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl_core.job import JobSpec
from elasticdl_core.ports.launcher import Role
from elasticdl_master.state.failures import FailureCounts
from elasticdl_master.state.lifecycle import Lifecycle
from elasticdl_master.state.limits import Limits
from elasticdl_master.state.lives import ProcessLives
from elasticdl_master.state.plan import JobPlans
from elasticdl_master.state.servers import ServerPool
from elasticdl_master.state.setup import Setup
from elasticdl_master.state.single_tasks import SingleTasks
from elasticdl_master.state.workers import WorkerPool

_EPOCH_STRIDE = 1_000
"""First incarnations of a master that does not know what earlier ones launched; keeps names of workers unique."""


@dataclass(frozen=True)
class JobContext:
    """One job, as its parts see it. Pools and books change by their own verbs alone.

    Attributes:
        setup: what was found.
        limits: times and budgets.
        lifecycle: where the job stands; takes the decision to end it.
        plans: what there is to do.
        single_tasks: what there is to do besides.
        workers: the workers, with what they hold.
        servers: the parameter servers; none of a job whose workers hold the model and do not train.
        failures: what went wrong, by task.
        lives: what becomes of workers and servers, to be told.
    """

    setup: Setup
    limits: Limits
    lifecycle: Lifecycle
    plans: JobPlans
    single_tasks: SingleTasks
    workers: WorkerPool
    servers: ServerPool
    failures: FailureCounts
    lives: ProcessLives

    @classmethod
    def of(cls, setup: Setup, limits: Limits) -> JobContext:
        """The context at the beginning."""
        spec = setup.spec
        first = 0 if setup.epoch <= 1 or setup.contents is not None else setup.epoch * _EPOCH_STRIDE
        generation = max(1, setup.epoch) * _EPOCH_STRIDE
        # The PS that a group goes as is no process.
        lives = ProcessLives((Role.PS, Role.WORKER) if spec.has_servers else (Role.WORKER,))
        # The members of a group hold the model together: to all other parts they are one PS.
        servers = spec.num_ps if spec.has_servers else int(spec.by_group)
        return cls(
            setup,
            limits,
            Lifecycle(setup.state),
            JobPlans(spec),
            SingleTasks(),
            WorkerPool(limits, spec.worker_memory_mib, first, lives),
            ServerPool(servers, limits, spec.ps_memory_mib, first, generation, lives),
            FailureCounts(limits),
            lives,
        )

    @property
    def spec(self) -> JobSpec:
        """The specification that the user gave."""
        return self.setup.spec
