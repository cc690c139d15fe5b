"""Rows with Keras 2, which takes a process of its own: ``python -m tests.differential.legacy FOLDER``.

The process reads names of rows on standard input, a line for each, and answers each with a line of JSON on standard
output: the list of what is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from tests.differential.driver import Bench, Row, clean, configure
from tests.differential.rows import LEGACY_ROWS
from tests.fakes.redis_server import RedisServer

ROOT = Path(__file__).resolve().parents[2]
ROW_S = 300.0


class LegacyBench:
    """A process with Keras 2 that runs rows, begun with the first of them.

    Attributes:
        rows: how many rows were compared.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._process: subprocess.Popen[str] | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="edl-d-", dir="/tmp"))

    def verdict(self, row: Row) -> list[str]:
        """What is wrong with a row; empty if everything is as it should be."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        deadline = threading.Timer(ROW_S, process.kill)
        deadline.start()
        try:
            process.stdin.write(f"{row.name}\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        finally:
            deadline.cancel()
        self.rows += 1
        if not answer:
            self._stop()
            return [f"the process with Keras 2 ended: {(self._folder / 'stderr').read_text()[-4000:]}"]
        return [str(problem) for problem in json.loads(answer)]

    def close(self) -> None:
        """Ends the process, and removes what it has left."""
        self._stop()
        clean(self._folder)

    def _start(self) -> subprocess.Popen[str]:
        with (self._folder / "stderr").open("w") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.differential.legacy", str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env={**os.environ, "TF_USE_LEGACY_KERAS": "1"},
            )

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def main() -> None:
    """Answers until standard input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what models print must not get between the answers
    configure()
    rows: dict[str, Row] = {row.name: row for row in LEGACY_ROWS}
    server = RedisServer()
    server.start()
    bench = Bench(Path(sys.argv[1]), server)
    try:
        for line in sys.stdin:
            print(json.dumps(bench.verdict(rows[line.strip()])), file=answers, flush=True)
    finally:
        server.close()


if __name__ == "__main__":
    main()
