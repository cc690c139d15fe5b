"""Runs tests again and again, each time in another order, every second time beside busy processes.

What failed in any of the runs is listed with the seed of its order and the log; the same seed gives the same order
(``--seed N --times 1``). Without paths it is all that ``./dev test`` runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 2 * 3600
"""For one run of all suites."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/[^\s\[]+(?:\[.*?\](?= - |$))?)", re.MULTILINE)
_NO_TESTS = 5
_BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"


def failed_tests(log: str) -> set[str]:
    """The tests that a log of pytest's says have failed."""
    return set(_FAILED.findall(log))


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that compute all the time."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(processes):
            started.append(subprocess.Popen([sys.executable, "-c", _BUSY]))
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def run_once(paths: Sequence[str], seed: str, load: int, log: Path) -> int:
    """Runs the tests once in the order of a seed; returns the exit code."""
    command = [sys.executable, str(ROOT / "tools" / "dev.py"), "test", *(["-m", "not slow", *paths] if paths else [])]
    environment = {**os.environ, "TESTS_ORDER": seed}
    with log.open("w") as output, busy(load):
        running = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            return running.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            running.terminate()  # which it hands on
            running.wait(60)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tests; returns 1 if anything failed in any run."""
    parser = argparse.ArgumentParser(prog="./dev steady", description=__doc__)
    parser.add_argument("paths", nargs="*", help="what to run (all suites)")
    parser.add_argument("--times", type=int, default=10, help="how often (10)")
    parser.add_argument("--load", type=int, default=2, help="busy processes beside every second run (2)")
    parser.add_argument("--seed", help="of the first run's order (drawn)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = Path(tempfile.mkdtemp(prefix="elasticdl-steady-"))
    bad: dict[str, list[str]] = {}
    for number in range(options.times):
        seed = options.seed if options.seed and not number else str(secrets.randbelow(10**6))
        load = options.load if number % 2 else 0
        log = folder / f"{number}.log"
        code = run_once(options.paths, seed, load, log)
        found = failed_tests(log.read_text(errors="replace"))
        if code not in {0, _NO_TESTS} and not found:
            found = {f"the run itself (exit code {code})"}
        print(f"run {number + 1}: seed {seed}, {load} busy: {len(found)} failed; {log}", flush=True)
        for test in found:
            bad.setdefault(test, []).append(f"seed {seed}, {load} busy, {log}")
    for test, runs in sorted(bad.items()):
        print(f"{test}: {len(runs)} of {options.times}\n" + "\n".join(f"  {one}" for one in runs))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
