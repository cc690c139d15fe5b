"""Measures a worker's time to its first step, forked from a zygote and in an interpreter of its own.

Two local clusters run the same job, one with zygotes, one without. In turns, the only worker of one of them is
killed; the master has the agent launch another, and the time runs from the agent's record of that launch to the
worker's own record of its first step. The other cluster's worker is stopped meanwhile, so that nothing else computes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.harness import Report

ROOT = Path(__file__).resolve().parents[1]
ZOOS = {
    name: ROOT / "examples" / folder / "zoo" for name, folder in (("tensorflow", "digits"), ("torch", "digits_torch"))
}
WAYS = ("zygote", "exec")
GOALS = {"zygote": 0.5, "exec": 6.0}
_WAIT_S = 600.0
_Found = TypeVar("_Found")


@dataclass
class Way:
    """A cluster, its job, and what was measured on it.

    Attributes:
        name: ``zygote`` or ``exec``.
        directory: of the cluster.
        job: id of its job.
        starts: one a measurement: seconds by part, in order; they add up to the whole.
    """

    name: str
    directory: Path
    job: str = ""
    starts: list[dict[str, float]] = field(default_factory=list)

    def cli(self, *arguments: str) -> str:
        """Runs ``elasticdl`` for this cluster; returns what it printed."""
        environment = {
            **os.environ,
            "ELASTICDL_DATA_DIR": str(self.directory),
            "ELASTICDL_ZYGOTE": "on" if self.name == "zygote" else "off",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "ELASTICDL_LOG_FORMAT": "json",
        }
        done = subprocess.run(
            [sys.executable, "-m", "elasticdl", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"elasticdl {' '.join(arguments)} failed:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def launches(self) -> list[dict[str, Any]]:
        """The agent's records of the job's worker, oldest first; not those of one that only looked at the model."""
        lines = (self.directory / "agent" / "processes.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines if line.endswith("}")]
        return [r for r in records if (r["job"], r["role"], r["index"]) == (self.job, "worker", 0)]

    def launched_at(self, incarnation: int) -> float | None:
        """When that incarnation was launched."""
        found = [r["at"] for r in self.launches() if r["incarnation"] == incarnation and r["state"] == "pending"]
        return found[0] if found else None

    def newest(self) -> dict[str, Any]:
        """The newest record of the newest incarnation."""
        return max(enumerate(self.launches()), key=lambda pair: (pair[1]["incarnation"], pair[0]))[1]

    def first_step(self, incarnation: int) -> dict[str, Any] | None:
        """The log of that incarnation's first step."""
        path = self.directory / "jobs" / self.job / "logs" / f"worker-0.{incarnation}.log"
        for line in path.read_text().splitlines() if path.is_file() else []:
            if '"event": "first step"' in line and line.endswith("}"):
                found: dict[str, Any] = json.loads(line)
                return found
        return None

    def measure(self) -> None:
        """Kills the worker and measures the start of the next."""
        incarnation = self.newest()["incarnation"] + 1
        os.kill(self.pid(), signal.SIGKILL)
        log = until(
            lambda: self.first_step(incarnation), f"the first step of {self.name}'s incarnation {incarnation}"
        )
        launched = until(lambda: self.launched_at(incarnation), "the record of the launch")
        whole = datetime.fromisoformat(log["timestamp"]).timestamp() - launched
        parts: dict[str, float] = log["parts"]
        self.starts.append({"launch": max(0.0, whole - sum(parts.values())), **parts})

    def settle(self) -> None:
        """Waits until the newest worker has reported a task, so that a kill does not count against the job."""
        records = self.progress()
        until(lambda: self.progress() > records or None, f"progress of {self.name}'s job")

    def progress(self) -> int:
        """Records that are done."""
        job = json.loads(self.cli("jobs", "get", self.job, "--json"))
        if job["state"] not in ("PENDING", "ADMITTED", "STARTING", "RUNNING"):
            raise SystemExit(f"the job of {self.name} is {job['state']}: {json.dumps(job.get('error'))}")
        return int(((job.get("status") or {}).get("progress") or {}).get("records_done") or 0)

    def pid(self) -> int:
        """The process of the newest worker.

        Raises:
            SystemExit: it has ended by itself.
        """
        newest = self.newest()
        if not newest["pid"]:  # a signal to 0 would be one to this very benchmark
            raise SystemExit(f"the worker of {self.name} has ended: {json.dumps(newest)}")
        return int(newest["pid"])

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Stops this cluster's worker meanwhile."""
        pid = self.pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


def until(look: Callable[[], _Found | None], what: str) -> _Found:
    """Waits until there is something to be found."""
    deadline = time.monotonic() + _WAIT_S
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {_WAIT_S:.0f} s for {what}")
        time.sleep(0.05)
    return found


def bring_up(way: Way, data: Path, report: Report, framework: str) -> None:
    """Brings the cluster up and its job to work."""
    report.say(f"{way.name}: a cluster and a job")
    way.cli("up", "--port", "0", "--slots", "1", "--detach")
    if not data.exists():
        way.cli("data", "generate", "digits", str(data))
    flags = ("--model_zoo", str(ZOOS[framework]), "--model_def", "digits.forward", "--minibatch_size", "32")
    way.job = way.cli(
        *("train", "--detach", "--job_name", f"start-{way.name}", "--num_epochs", "100000", "--max_workers", "1"),
        *(*flags, "--training_data", str(data / "train"), "--distribution_strategy", "ParameterServerStrategy"),
    ).split()[-1]
    until(lambda: way.progress() or None, f"the first records of {way.name}")
    if way.name == "zygote":
        log = way.directory / "logs" / "agent.log"
        until(lambda: "the zygote is ready" in log.read_text() or None, "the zygote")


def measure_starts(report: Report, framework: str, repeats: int) -> list[Way]:
    """Measures both ways in turns, with a job of a framework.

    Args:
        report: says how it goes.
        framework: ``tensorflow`` or ``torch``.
        repeats: starts of each way.
    """
    with tempfile.TemporaryDirectory(prefix="start-") as folder:
        ways = [Way(name, Path(folder) / name) for name in WAYS]
        try:
            for way in ways:
                bring_up(way, Path(folder) / "digits", report, framework)
            for turn in range(repeats):
                for way, other in ((ways[0], ways[1]), (ways[1], ways[0])):
                    way.settle()
                    with other.quiet():
                        way.measure()
                    report.say(f"{turn + 1}/{repeats} {way.name}: {sum(way.starts[-1].values()):.2f} s")
        finally:
            for way in ways:
                if (way.directory / "cluster.json").exists():
                    way.cli("down")
    return ways


def medians(way: Way) -> dict[str, float]:
    """The median of each part."""
    return {part: statistics.median(start[part] for start in way.starts) for part in way.starts[0]}


def whole(way: Way) -> float:
    """The median of the whole."""
    return statistics.median(sum(start.values()) for start in way.starts)


def plot(report: Report, ways: list[Way]) -> None:
    """A bar for each way, stacked by part."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 2.4))
    left = [0.0] * len(ways)
    for part in medians(ways[0]):
        widths = [medians(way)[part] for way in ways]
        axes.barh([way.name for way in ways], widths, left=left, label=part)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_xlabel("seconds from the launch of a worker (medians)")
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.3), frameon=False)
    report.plot("parts", figure, "From the launch of a worker to its first step, by part")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time from a worker's launch to its first step.")
    parser.add_argument("--repeats", type=int, default=7, help="starts of each way (default: 7)")
    repeats = parser.parse_args().repeats
    report = Report(
        "start",
        "Start of a worker",
        "From the agent's record of a worker's launch to the worker's own record of its first trained minibatch: the "
        "digits example (a small convolutional network, 1 PS) with TensorFlow. `zygote` forks the worker from a "
        "process that has imported TensorFlow; `exec` starts an interpreter. The worker of a running job is killed "
        f"and the start of the one that replaces it is timed, {repeats} times each in turns.",
    )
    tell(report, measure_starts(report, "tensorflow", repeats))


def tell(report: Report, ways: list[Way]) -> None:
    """Fills the report."""
    add_table(report, ways)
    for way in ways:
        report.target(f"start_{way.name}", whole(way), GOALS[way.name], at_least=False)
    plot(report, ways)
    report.write()


def add_table(report: Report, ways: list[Way]) -> None:
    """Adds the parts of both ways to a report."""
    parts = medians(ways[0])
    rows: list[list[Any]] = [[part, *(medians(way)[part] for way in ways)] for part in parts]
    rows.append(["whole", *(whole(way) for way in ways)])
    rows.append(["slowest", *(max(sum(start.values()) for start in way.starts) for way in ways)])
    report.text("## Seconds by part (medians)")
    report.table(["part", *(way.name for way in ways)], rows)
    report.text(
        "`launch`: the agent, the shim and the fork or exec; `process`: interpreter and imports up to the worker's "
        "main function; `register`: the master's welcome; `model module`: the user's file and what it imports; "
        "`framework`: our part for the framework; `prepare`: data, model, parameters on the PS, description; "
        "`first step`: lease, read, pull, trace, train, push."
    )


if __name__ == "__main__":
    main()
