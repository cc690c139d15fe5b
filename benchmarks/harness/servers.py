"""Real parameter-server processes, as a launcher starts them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl_core.ports.launcher import Role
from elasticdl_runtime.rpc import poller_variables
from elasticdl_runtime.tokens import issue
from elasticdl_worker.parameters import ParameterClient

_SECRET, _JOB = "b" * 64, "benchmark"
_STOP_S = 20.0


@dataclass(frozen=True)
class Servers:
    """Parameter servers that run.

    Attributes:
        addresses: of PS 0, 1, ...
        processes: ids of the processes.
    """

    addresses: list[str]
    processes: list[int]

    def token(self, worker: int = 0) -> str:
        """The token of a worker."""
        return issue(_SECRET, _JOB, Role.WORKER, worker, 0)

    def client(self, worker: int = 0, **options: Any) -> ParameterClient:
        """A client in the name of a worker; close it."""
        token = self.token(worker)
        return ParameterClient(self.addresses, lambda: token, f"worker-{worker}.0", patience_s=60.0, **options)


@contextlib.contextmanager
def parameter_servers(count: int) -> Iterator[Servers]:
    """Starts processes ``python -m elasticdl_ps`` on unix sockets, and ends them.

    They need a moment until they serve; a client waits for them.
    """
    folder = Path(tempfile.mkdtemp(prefix="edl-bench-", dir="/tmp"))
    processes = []
    try:
        addresses = [f"unix:{folder}/ps-{index}.sock" for index in range(count)]
        for index, address in enumerate(addresses):
            settings = {
                "ELASTICDL_JOB_ID": _JOB,
                "ELASTICDL_INDEX": str(index),
                "ELASTICDL_NUM_PS": str(count),
                "ELASTICDL_LISTEN": address,
                "ELASTICDL_JOB_SECRET": _SECRET,
            }
            with (folder / f"ps-{index}.log").open("wb") as log:
                command = [sys.executable, "-m", "elasticdl_ps"]
                processes.append(
                    subprocess.Popen(
                        command, env={**poller_variables(), **os.environ, **settings}, stdout=log, stderr=log
                    )
                )
        yield Servers(addresses, [process.pid for process in processes])
        for index, process in enumerate(processes):
            if process.poll() is not None:
                raise RuntimeError(f"PS {index} ended early:\n{(folder / f'ps-{index}.log').read_text()[-2000:]}")
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)
