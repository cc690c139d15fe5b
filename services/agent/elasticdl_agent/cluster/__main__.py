"""The supervisor as a process of its own: ``python -m elasticdl_agent.cluster --progress-fd N ...``.

Writes one JSON line per step to the progress descriptor, which it closes when the cluster is up; then nothing holds
it to whoever started it.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
from pathlib import Path

from elasticdl_agent.cluster.options import DEFAULT_HOST, ClusterOptions
from elasticdl_agent.cluster.supervisor import ClusterStep, Supervisor
from elasticdl_agent.processes.devices import AUTO
from elasticdl_core.errors import ElasticDLError
from elasticdl_runtime.lifecycle import run_service
from elasticdl_runtime.telemetry.logs import configure_logs


class ProgressPipe:
    """Tells steps through a descriptor until the cluster is ready, failed, or nobody listens."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __call__(self, step: ClusterStep) -> None:
        """Reports one step."""
        self.write({"step": dataclasses.asdict(step)})
        if step.kind == "ready":
            self.close()

    def write(self, line: dict[str, object]) -> None:
        """Writes a line, or nothing when the other end is closed."""
        if self._fd >= 0:
            try:
                os.write(self._fd, json.dumps(line).encode() + b"\n")
            except OSError:
                self.close()

    def close(self) -> None:
        """Closes the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def main() -> int:
    """Runs the supervisor until it is told to stop; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m elasticdl_agent.cluster")
    parser.add_argument("--progress-fd", type=int, default=-1)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--policy", default="")
    parser.add_argument("--host", default=DEFAULT_HOST)
    parser.add_argument("--devices", default=AUTO)
    parser.add_argument("--tls-cert", type=Path)
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--tls-generate", action="store_true")
    parser.add_argument("--owner-pid", type=int, default=0)
    arguments = parser.parse_args()
    # URLs hold passwords, so they come through the environment, and go from it before anything is started.
    options = ClusterOptions(
        port=arguments.port,
        data_dir=arguments.data_dir,
        slots=arguments.slots,
        policy=arguments.policy,
        host=arguments.host,
        devices=arguments.devices,
        tls_cert=arguments.tls_cert,
        tls_key=arguments.tls_key,
        tls_generate=arguments.tls_generate,
        owner_pid=arguments.owner_pid,
        database_url=os.environ.pop("ELASTICDL_DATABASE_URL", ""),
        redis_url=os.environ.pop("ELASTICDL_REDIS_URL", ""),
    )
    configure_logs(role="supervisor")
    progress = ProgressPipe(arguments.progress_fd)

    async def serve(stop: asyncio.Event) -> int:
        try:
            await Supervisor(options, progress).run(stop)
        except ElasticDLError as error:
            progress.write({"error": {"code": error.code, "message": error.message, "fix": error.fix}})
            raise
        finally:
            progress.close()
        return 0

    return run_service(serve)


if __name__ == "__main__":
    raise SystemExit(main())
