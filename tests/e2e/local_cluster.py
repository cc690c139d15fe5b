"""A local cluster that is brought up and driven the way a user does it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


@dataclass
class Cluster:
    """A running local cluster and the command line that talks to it.

    Attributes:
        directory: holds the cluster's data directory and the data of the tests.
        environment: variables for commands.
    """

    directory: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def data_dir(self) -> Path:
        return Path(self.environment["ELASTICDL_DATA_DIR"])

    def move_to(self, name: str) -> None:
        """Has the data directory lie under another name; the cluster is down."""
        moved = self.directory / name
        self.data_dir.rename(moved)
        self.environment["ELASTICDL_DATA_DIR"] = str(moved)

    @property
    def token(self) -> str:
        return (self.data_dir / "token").read_text().strip()

    @contextlib.contextmanager
    def running(self, *flags: str) -> Iterator[Cluster]:
        """Brings it up, with flags of ``up``, and down at the end."""
        self.cli("up", "--port", "0", *flags, "--detach", timeout=240)
        try:
            yield self
        finally:
            self.cli("down", timeout=120)

    def job_dir(self, job_id: str) -> Path:
        return self.data_dir / "jobs" / job_id

    def seen(self, path: Path) -> str:
        """A path below its directory, as jobs see it."""
        return str(path)

    def run(self, *command: str, timeout: float = 300, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Runs any command in the cluster's environment."""
        return subprocess.run(
            command,
            env=self.environment,
            cwd=cwd or self.directory,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def cli(self, *arguments: str, timeout: float = 300, expect: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Runs ``elasticdl`` and, unless ``expect`` is None, checks its exit code."""
        done = self.run(sys.executable, "-m", "elasticdl", *arguments, timeout=timeout)
        if expect is not None and done.returncode != expect:
            raise AssertionError(
                f"elasticdl {' '.join(arguments)} ended with {done.returncode}, not {expect}\n"
                f"--- stdout\n{done.stdout[-6000:]}\n--- stderr\n{done.stderr[-6000:]}"
            )
        return done

    def job(self, job_id: str) -> dict:
        """The job as the API shows it."""
        return json.loads(self.cli("jobs", "get", job_id, "--json").stdout)

    def submit(self, *flags: str) -> str:
        """Submits a training job, with parameter servers where the flags name no strategy; returns its id."""
        strategy = (
            () if "--distribution_strategy" in flags else ("--distribution_strategy", "ParameterServerStrategy")
        )
        return self.cli("train", "--detach", *flags, *strategy).stdout.split()[-1]

    def wait(self, job_id: str, timeout: float = 300) -> dict:
        """Waits until the job has ended, by its stream of events; returns it."""
        from elasticdl import Client

        with self.client() as client:
            assert isinstance(client, Client)
            client.wait(job_id, timeout_s=timeout)
        return self.job(job_id)

    def launches(self, job_id: str) -> list[dict]:
        """All that the agent ever launched for a job, by its own record."""
        lines = (self.data_dir / "agent" / "processes.jsonl").read_text().splitlines()
        entries = [entry for entry in map(json.loads, lines) if entry["job"] == job_id]
        newest = {(one["role"], one["index"], one["incarnation"]): one for one in entries}
        return list(newest.values())

    def client(self):
        from elasticdl import Client
        from elasticdl.client.retry import RetryPolicy

        state = json.loads((self.data_dir / "cluster.json").read_text())
        # On a machine that is busy with a job's processes, an API that was killed takes its time to come back.
        return Client(api_url=state["api_url"], token=self.token, retry=RetryPolicy(attempts=20))


def user_environment(directory: Path) -> dict[str, str]:
    """The environment of a user who has just installed the product."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("ELASTICDL_", "PYTEST_"))}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    environment["ELASTICDL_DATA_DIR"] = str(directory / "cluster")
    environment["TF_CPP_MIN_LOG_LEVEL"] = "2"
    environment["COLUMNS"] = "120"
    return environment
