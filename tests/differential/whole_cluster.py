"""Runs rows through the command line: one process with ``--local``, or a cluster that was brought up."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.differential.driver import Bench, Outcome, Row, halve, read_weights, readable, skipped, trained_records
from tests.e2e.local_cluster import Cluster
from tests.fakes.redis_server import RedisServer

RUN_S = 240.0
_ERROR = re.compile(r"^(?:elasticdl: )?error: (.*?)(?:\n  fix: (.*?))?\Z", re.DOTALL | re.MULTILINE)


class WholeClusterBench(Bench):
    """Runs rows as a user does.

    Args:
        folder: for data and results.
        cluster: that is up.
    """

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        super().__init__(folder, RedisServer())
        self._cluster = cluster

    def local(self, row: Row, *, alike: bool = False, halved: bool = False, **fields: Any) -> Outcome:
        place = self._place()
        spec = self._spec(row, place, alike=alike, **fields)
        if halved:
            halve(spec)
        output = place / "out"
        run = self._cluster.cli(
            "train", "--local", "--json", *flags({**spec, "output": str(output)}), timeout=RUN_S, expect=None
        )
        done = json.loads(run.stdout) if run.stdout else {}
        if done.get("event") == "error":
            return Outcome(error=(readable(done["message"], place), readable(done["fix"], place)))
        if run.returncode:
            return Outcome(error=shown_error(run.stderr, place))
        return Outcome(
            weights=read_weights(output),
            evaluations=(done["metrics"],) if done["metrics"] else (),
            records=done["records"],
            skipped=skipped(done["skipped"]),
            steps=done["steps"],
            output=output,
        )

    def cluster(self, row: Row, *, workers: int, alike: bool = False, **fields: Any) -> Outcome:
        place = self._place()
        spec = self._spec(
            row,
            place,
            alike=alike,
            min_workers=workers,
            max_workers=workers,
            num_ps=workers,
            **fields,
        )
        run = self._cluster.cli("train", "--detach", *flags(spec), timeout=RUN_S, expect=None)
        if run.returncode:
            return Outcome(error=shown_error(run.stderr, place))
        job = self._cluster.wait(run.stdout.split()[-1], timeout=RUN_S)
        status = job["status"] or {}
        if not job["state"].startswith("SUCCEEDED"):
            error = job["error"] or {}
            return Outcome(
                error=(
                    readable(error.get("message", job["state"]), place),
                    readable(error.get("fix") or "", place),
                )
            )
        output = place / "out"
        self._cluster.cli("jobs", "artifacts", job["id"], "--download", str(output))
        return Outcome(
            weights=read_weights(output),
            evaluations=(status["metrics"],) if status.get("metrics") else (),
            records=trained_records(status),
            skipped=skipped(status.get("skipped", [])),
            steps=status["model_version"],
            output=output,
        )


def flags(spec: Mapping[str, Any]) -> list[str]:
    """A specification as a user writes it."""
    words = []
    for name, value in spec.items():
        text = json.dumps(value) if isinstance(value, dict | bool) else str(value)
        words += [f"--{name}", text]
    return words


def shown_error(text: str, place: Path) -> tuple[str, str]:
    """The error at the end of what a command printed, and what to do."""
    found = _ERROR.search(text.rstrip())
    assert found is not None, f"no error is shown: {text[-2000:]}"
    return readable(found[1], place), readable(found[2] or "", place)
