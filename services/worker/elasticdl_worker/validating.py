"""Gives all records of some data to a module's ``feed``, and tells those that it cannot take.

``python -m elasticdl_worker validate --spec spec.json`` prints one JSON object a line on stdout:

- ``{"event": "progress", "records", "total"}``
- ``{"event": "problem", "message", "fix"}``
- ``{"event": "done", "kind", "records", "checked", "skipped", "complete"}``
- ``{"event": "error", ...}``, as of a local run: the module or the data could not be opened.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from elasticdl.data import Shard
from elasticdl_core.errors import DataError, UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_worker import framework_environment
from elasticdl_worker.local import report_run
from elasticdl_worker.reporting.local_progress import Emit
from elasticdl_worker.trainers.framework import MinibatchSource
from elasticdl_worker.trainers.job_sources import JobSources

_PIECE = 1024


def main(arguments: list[str]) -> int:
    """Runs ``elasticdl_worker validate``; returns the exit code."""
    parser = argparse.ArgumentParser(prog="elasticdl_worker validate", description=__doc__)
    parser.add_argument("--spec", required=True, help="file with the job specification as JSON")
    parser.add_argument("--most", type=int, default=20, help="end when so many problems were found")
    parsed = parser.parse_args(arguments)
    del sys.argv[1:]  # a module that parses its arguments when it is imported finds none of ours, as on a cluster
    framework_environment.prepare()
    return report_run(parsed.spec, lambda spec, emit: run_feed(spec, parsed.most, emit))


def run_feed(spec: JobSpec, most: int, emit: Emit) -> None:
    """Gives the training data of a job to its ``feed``.

    Args:
        spec: the job; ``model_zoo`` must be a directory.
        most: it ends when so many problems were found.
        emit: gets the events of the module's docstring.

    Raises:
        ElasticDLError: the module or the data cannot be opened.
    """
    from elasticdl_worker.trainers.choosing import load_framework  # which imports it

    zoo = Path(spec.model_zoo)
    framework = load_framework(spec, zoo)
    sources = JobSources(framework, spec, framework.load_module(spec, zoo))
    reader, feed = sources.reader(sources.main), _Feed(sources.source(sources.main))
    shards = list(reader.create_shards())
    total = sum(shard.records for shard in shards)
    done = bad = told = 0
    for shard in shards:
        for start in range(shard.start, shard.end, _PIECE):
            piece = Shard(shard.name, start, min(start + _PIECE, shard.end))
            for faulty, error in itertools.islice(feed.faults(piece), most - told):
                emit({"event": "problem", "message": _placed(error.message, faulty), "fix": error.fix})
                bad, told = bad + faulty.records, told + 1
            done += piece.records
            emit({"event": "progress", "records": done, "total": total})
            if told >= most:
                break
        if told >= most:
            break
    counts = {"records": total, "checked": done - bad - feed.skipped, "skipped": feed.skipped}
    emit({"event": "done", "kind": reader.metadata.kind, **counts, "complete": told < most})


class _Feed:
    """A pipeline of minibatches, and the records that it passed over so far."""

    def __init__(self, source: MinibatchSource) -> None:
        self._source = source
        self.skipped = 0

    def faults(self, piece: Shard) -> Iterator[tuple[Shard, UserCodeError | DataError]]:
        """The records that ``feed`` cannot take: a piece that fails is halved, down to single records."""
        try:
            for _ in self._source.minibatches(piece):
                pass
            self.skipped += self._source.intake.skips.records
            return
        except (UserCodeError, DataError) as error:
            fault = piece, error
        found = False
        middle = (piece.start + piece.end) // 2
        if piece.records > 1:
            for half in (Shard(piece.name, piece.start, middle), Shard(piece.name, middle, piece.end)):
                for one in self.faults(half):
                    found = True
                    yield one
        if not found:  # a single record, or several that fail together
            yield fault


def _placed(message: str, piece: Shard) -> str:
    """A message with the record that it is about."""
    if piece.records > 1:
        return f"{piece.name}: records {piece.start} to {piece.end - 1} together: {message}"
    return message if f"record {piece.start}" in message else f"{piece.name}: record {piece.start}: {message}"
