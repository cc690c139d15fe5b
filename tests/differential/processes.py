"""A launcher whose processes live in the test's process: the product's own parameter servers and workers.

TensorFlow is imported once for all rows. A worker is the coroutine that its process runs, with its training thread;
a parameter server is the real servicer on a real socket. What is not as in a cluster: they share one interpreter.
The second worker begins when the first has built the model, because Keras draws initial values from one generator.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from elasticdl_core.ports.launcher import ProcessSpec
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.servicer import ParameterServer
from elasticdl_ps.store.partition import Partition
from elasticdl_runtime.lifecycle import end_all
from elasticdl_worker.main import _serve
from elasticdl_worker.reporting.startup_timer import StartupTimer
from elasticdl_worker.settings import WorkerSettings
from tests.fakes.job_processes import JobProcesses
from tests.fakes.pulse import Pulse


class RealProcesses(JobProcesses):
    """Implements the launcher port with the product's own servers and workers.

    Args:
        folder: for sockets; short.
        job_id: the job.
        num_ps: number of its PS.
        secret: the job's secret.
        pulse: beats when anything happens.
        module: name of the model's module, which each process imports for itself.
    """

    def __init__(self, folder: Path, job_id: str, num_ps: int, secret: str, pulse: Pulse, module: str) -> None:
        super().__init__(folder, job_id, num_ps, secret, pulse)
        self._module = module
        self._turn = asyncio.Lock()

    def _make_servicer(self, index: int) -> ParameterServer:
        return ParameterServer(Partition(load_kernels()), index, self.num_ps)

    async def _work(self, spec: ProcessSpec) -> None:
        await self.pulse.until(lambda: len(self.servers) == self.num_ps, 60.0)
        stop = asyncio.Event()
        self.workers[spec.id] = SimpleNamespace(drain=stop)  # type: ignore[assignment]  # all that the base asks for
        variables = dict(spec.environment) | {
            "ELASTICDL_JOB_ID": self.job_id,
            "ELASTICDL_INDEX": str(spec.id.index),
            "ELASTICDL_INCARNATION": str(spec.id.incarnation),
        }
        start_up = _Beginning()
        begun: list[asyncio.Task[Any]] = []
        try:
            async with self._turn:
                forget(self._module)
                work = asyncio.create_task(_serve(WorkerSettings.read(variables), stop, start_up), name=str(spec.id))
                begun += [work, asyncio.create_task(start_up.prepared.wait())]
                await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
            code = await work
        finally:
            await end_all(*begun)
        self._end(spec.id, code, "")


class _Beginning(StartupTimer):
    """Says when a worker has built its model."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def record(self, part: str) -> None:
        super().record(part)
        if part == "prepare":
            self._loop.call_soon_threadsafe(self.prepared.set)


def forget(module: str) -> None:
    """Lets the next import of a model module run it anew, as the import of another process would."""
    for name in [name for name in sys.modules if name in (module, f"model_zoo_file.{module}")]:
        del sys.modules[name]
