"""A real local cluster for an experiment: brought up as a user does it, in a directory that goes with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl import Client
from elasticdl.client import Job

ZOO = Path(__file__).with_name("zoo")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "experiments"
_UP_S = 300.0
_DOWN_S = 180.0


class ExperimentError(Exception):
    """An experiment could not be carried out."""


@dataclass(frozen=True)
class LocalCluster:
    """A cluster's directory and the way to its processes.

    Attributes:
        directory: holds the cluster's data directory and the experiment's files.
    """

    directory: Path

    @property
    def data_dir(self) -> Path:
        """The cluster's data directory."""
        return self.directory / "cluster"

    @property
    def journal(self) -> Path:
        """The agent's record of what became of every process."""
        return self.data_dir / "agent" / "processes.jsonl"

    def cli(self, *arguments: str, timeout_s: float = 300.0, settings: Mapping[str, str] | None = None) -> str:
        """Runs ``elasticdl``; returns what it printed.

        Raises:
            ExperimentError: it failed.
        """
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ELASTICDL_")}
        environment |= {"ELASTICDL_DATA_DIR": str(self.data_dir), "TF_CPP_MIN_LOG_LEVEL": "2", **(settings or {})}
        command = [sys.executable, "-m", "elasticdl", *arguments]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode != 0:
            output = done.stdout + done.stderr
            raise ExperimentError(f"{' '.join(command[2:])} ended with {done.returncode}:\n{output}")
        return done.stdout

    def client(self) -> Client:
        """A client with the administrator's token."""
        state = json.loads((self.data_dir / "cluster.json").read_text())
        return Client(api_url=state["api_url"], token=(self.data_dir / "token").read_text().strip())

    @contextmanager
    def up(self, slots: int, policy: str, settings: Mapping[str, str] | None = None) -> Iterator[Client]:
        """Brings the cluster up, and down at the end of the block; data stay.

        Args:
            slots: worker slots.
            policy: the scheduler's policy.
            settings: environment variables of the scheduler and the agent.
        """
        self.cli(
            *("up", "--detach", "--port", "0", "--slots", str(slots), "--policy", policy),
            timeout_s=_UP_S,
            settings=settings,
        )
        try:
            with self.client() as client:
                yield client
        finally:
            self.cli("down", timeout_s=_DOWN_S)


@contextmanager
def temporary_cluster(keep: bool = False) -> Iterator[LocalCluster]:
    """A cluster that is not up yet, in a directory of its own that is removed afterwards.

    Args:
        keep: whether the directory stays, to look into.
    """
    directory = Path(tempfile.mkdtemp(prefix="elasticdl-experiment-"))
    try:
        yield LocalCluster(directory)
    finally:
        if keep:
            print(f"kept: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)


def simulated_job(name: str, steps: Path, **fields: Any) -> dict[str, Any]:
    """The specification of a job whose workers wait instead of computing (see ``zoo/simulated.py``).

    Args:
        name: of the job.
        steps: directory into which workers write the times of their minibatches.
        fields: of the specification.
    """
    steps.mkdir(parents=True, exist_ok=True)
    return {
        "name": name,
        "model_zoo": str(ZOO),
        "model_def": "simulated.forward",
        "custom_data_reader": "custom_data_reader",
        "distribution_strategy": "ParameterServerStrategy",
        "num_ps": 1,
        "shuffle": False,
        "xla": "off",
        "log_loss_steps": 100_000,
        "export_formats": "keras",
        "envs": {"EXPERIMENT_STEPS": str(steps)},
        **fields,
    }


def finished(job: Job) -> Job:
    """The job, if it succeeded.

    Raises:
        ExperimentError: it ended otherwise; with its reason.
    """
    if job.state != "SUCCEEDED":
        raise ExperimentError(f"{job.id} ended as {job.state}: {job.error.message if job.error else job.reason}")
    return job


def results_of(quick: bool) -> Path:
    """The folder of a report: with the others, or, of a quick look, the temporary directory."""
    if not quick:
        return RESULTS
    return Path(tempfile.gettempdir()) / "elasticdl-experiments"


def command(name: str) -> str:
    """The command line, for the report."""
    return " ".join(["./dev experiment", name, *sys.argv[1:]])
