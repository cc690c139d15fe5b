"""A real master over a real Redis, for one job of many small tasks whose workers only wait.

    python -m benchmarks.harness.master FOLDER TASKS WORKERS

The api and the processes of the job are played in memory: the master's own work, its queue and its door are measured.
Workers are registered and hold a task each, so that clients in their names may lease and report. Prints a line once
all of them wait and the data is listed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from elasticdl_core.ports.launcher import Role
from elasticdl_master.queue.redis import RedisQueue
from elasticdl_master.runner import JobRunner
from elasticdl_master.settings import MasterSettings
from elasticdl_master.state.limits import Limits
from tests.fakes.internal_api import InternalApi
from tests.fakes.job_processes import JobProcesses
from tests.fakes.redis_server import RedisServer

JOB, SECRET = "benchmark", "d" * 64
_MODULE = """
def custom_model(): ...
def loss(labels, predictions): ...
def optimizer(): ...
def feed(dataset, mode, metadata): ...
def eval_metrics_fn(): ...
"""


async def main(folder: Path, tasks: int, workers: int) -> None:
    """Runs until it is killed or its standard input ends."""
    (folder / "zoo").mkdir()
    (folder / "job").mkdir()
    (folder / "zoo" / "m.py").write_text(_MODULE)
    (folder / "data.csv").write_text("a,b\n" + "1,2\n" * tasks)
    spec = {
        "model_def": "m.custom_model",
        "model_zoo": str(folder / "zoo"),
        "training_data": str(folder / "data.csv"),
        "minibatch_size": 1,
        "num_minibatches_per_task": 1,
        "num_epochs": 1,
        "num_ps": 1,
        "max_workers": workers,
    }
    redis = RedisServer()
    redis.start()
    try:
        async with InternalApi(JOB, spec) as api:
            api.target = workers
            processes = JobProcesses(folder, JOB, 1, SECRET, api.pulse, slots=workers + 2)
            processes.gate.clear()
            settings = MasterSettings(
                job_id=JOB,
                incarnation=0,
                listen=f"unix:{folder}/master-0.sock",
                job_dir=folder / "job",
                api_url=api.url,
                redis_url=redis.url,
                agent="unix:/nowhere",
                job_secret=SECRET,
            )
            runner = JobRunner(
                settings,
                processes,
                lambda epoch: RedisQueue(redis.url, JOB, epoch, timeout_s=5.0),
                asyncio.Event(),
                limits=Limits(heartbeat_s=1.0, stuck_s=3600.0),
                quit_at_once=lambda code: None,
            )
            master = asyncio.create_task(runner.run())

            def ready() -> bool:
                # Listing the data is work of the job's beginning, too.
                listed = runner.machine is not None and runner.machine.plans.listed
                return listed and sum(bool(worker.held) for worker in processes.workers.values()) >= workers

            await processes.pulse.until(lambda: master.done() or ready(), 60.0)
            print(redis.url, [p.owner for p in processes.living(Role.WORKER)], flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
            master.cancel()
            await asyncio.gather(master, return_exceptions=True)
            await processes.close()
    finally:
        redis.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
    os._exit(0)
