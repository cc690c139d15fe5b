"""Parts around the sides of training benchmarks: options, data, a cluster, a folder that goes away."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import Report, Sample
from benchmarks.training.cluster import Cluster, JobSide, job_fields
from benchmarks.training.data import LEARNING_RATE, Clicks, frappe, generated
from benchmarks.training.sides import Side, take_turns


@dataclass
class Setting:
    """A benchmark's surroundings.

    Attributes:
        options: of the command line.
        folder: for data and logs.
        cluster: of this benchmark alone; up once it is used.
        rounds: measurements of each side.
        seconds: of a measurement.
    """

    options: argparse.Namespace
    folder: Path
    cluster: Cluster
    rounds: int
    seconds: float
    _written: dict[str, Path] = field(default_factory=dict)

    def about(self, text: str, clicks: Clicks, **more: object) -> str:
        """The introduction of a report, with the numbers of this run in it."""
        common = {"data": clicks.name, "batch": self.options.batch, "dim": self.options.dim}
        return text.format(**common | {"rounds": self.rounds, "seconds": self.seconds} | more)

    def clicks(self) -> Clicks:
        """The data that the options ask for."""
        return frappe(self.options.data) if self.options.data else generated()

    def arrays(self, clicks: Clicks) -> Path:
        """The file of the data for other processes."""
        return self._made(clicks, "arrays.npz", clicks.save)

    def records(self, clicks: Clicks, least: int = 1_000_000) -> Path:
        """The folder of the data for jobs, repeated to ``least`` records an epoch."""
        return self._made(clicks, f"records-{least}", lambda path: clicks.write_records(path, least=least))

    def job(self, name: str, label: str, clicks: Clicks, workers: int, servers: int, **fields: Any) -> JobSide:
        """A side of ours."""
        options = {"dim": self.options.dim, "batch": self.options.batch, "servers": servers}
        common = {"optimizer_params": {"kind": "SGD", "lr": LEARNING_RATE}, **options, **fields}
        return JobSide(name, label, self.cluster, workers, job_fields(clicks, self.records(clicks), **common))

    def compare(self, report: Report, sides: Sequence[Side]) -> dict[str, Sample]:
        """Measures the sides that the options ask for, in turns; adds a table to the report.

        Raises:
            SystemExit: the options name an unknown side.
        """
        labels = {side.name: side.label for side in sides}
        wrong = sorted(set(self.options.sides) - set(labels))
        if wrong:
            raise SystemExit(f"there are no sides {wrong}; there are: {', '.join(labels)}")
        chosen = [side for side in sides if not self.options.sides or side.name in self.options.sides]
        found = take_turns(chosen, self.rounds, self.seconds, report.say)
        order = sorted(found, key=lambda name: -found[name].median)
        rows = [(labels[name], found[name].median, f"{found[name].spread:.0%}") for name in order]
        report.table(["side", "samples/s", "spread"], rows)
        return found

    def _made(self, clicks: Clicks, what: str, make: Any) -> Path:
        key = f"{clicks.vocabulary}-{what}"
        if key not in self._written:
            self._written[key] = self.folder / key
            make(self._written[key])
        return self._written[key]


@contextlib.contextmanager
def setting(options: argparse.Namespace, slots: int, cpus: Sequence[int] | None = None) -> Iterator[Setting]:
    """Everything that a benchmark needs, and nothing of it afterwards.

    Args:
        options: of the command line, from ``parser``.
        slots: workers that may run at once.
        cpus: cores that the cluster and its jobs may use.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    folder = Path(tempfile.mkdtemp(prefix="elasticdl-bench-"))
    rounds, seconds = (1, 4.0) if options.quick else (options.rounds, 6.0)
    try:
        with Cluster(folder / "cluster", slots, cpus) as cluster:
            yield Setting(options, folder, cluster, rounds, seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def parser(description: str | None, *, dim: int = 64, batch: int = 512) -> argparse.ArgumentParser:
    """The options that all training benchmarks have."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=Path, help="folder of frappe in libfm format (default: generated clicks)")
    made.add_argument("--quick", action="store_true", help="measure once, briefly")
    made.add_argument("--rounds", type=int, default=3, help="measurements of each side (default: 3)")
    made.add_argument("--sides", type=lambda text: text.split(","), default=[], help="measure these only")
    made.add_argument("--dim", type=int, default=dim, help=f"numbers in a vector (default: {dim})")
    made.add_argument("--batch", type=int, default=batch, help=f"records in a minibatch (default: {batch})")
    return made
