"""Simulates clusters: the policies of the service, and rules of others, on recorded workloads."""

from elasticdl_core.scheduling.simulator.baselines import CONTENDERS
from elasticdl_core.scheduling.simulator.curves import read_applications
from elasticdl_core.scheduling.simulator.engine import SimulationResult, SimulationSettings, simulate
from elasticdl_core.scheduling.simulator.report import Report, summarise
from elasticdl_core.scheduling.simulator.workload import SimulatedJob, read_workload

__all__ = [
    "CONTENDERS",
    "Report",
    "SimulatedJob",
    "SimulationResult",
    "SimulationSettings",
    "read_applications",
    "read_workload",
    "simulate",
    "summarise",
]
