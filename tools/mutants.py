"""Puts known faults into a copy of the source, one at a time, and runs the tests that should notice.

The list is ``tools/mutants.toml``: each entry names a file, the text that is there, the text that stands for the
fault, and the tests. A fault that no test notices is a hole in the tests; so is an entry whose text is no longer
there, or tests that fail without it. The working tree itself is never touched.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tools" / "mutants.toml"
TIMEOUT_S = 600
"""For the tests of one fault; without a fault, all tests together have as often as much as there are faults."""
_PASSED, _FAILED, _BROKEN = 0, 1, 3
"""Exit codes of pytest; the last is that of a test that could only be ended together with pytest."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault that the tests must notice.

    Attributes:
        name: for the command line.
        breaks: what would happen to a user.
        file: relative to the root.
        old: text that occurs once in the file.
        new: what takes its place.
        tests: arguments for pytest.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, source: str) -> str:
        """The source with the fault.

        Raises:
            ValueError: the text to replace does not occur exactly once.
        """
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"its text occurs {count} times in {self.file}")
        return source.replace(self.old, self.new)


def read_table(path: Path = TABLE) -> list[Mutant]:
    """The list of faults, in its order."""
    entries = tomllib.loads(path.read_text())["mutant"]
    return [
        Mutant(
            one["name"], one["breaks"], one["file"], one["old"].strip("\n"), one["new"].strip("\n"), (*one["tests"],)
        )
        for one in entries
    ]


def why_not(mutant: Mutant) -> str:
    """Why a fault cannot be planted; nothing if it can."""
    try:
        mutant.apply((ROOT / mutant.file).read_text())
    except (OSError, ValueError) as error:
        return f"{mutant.name}: {error}"
    return ""


def copy_tree(target: Path) -> None:
    """Copies what belongs to the project: tracked files, and new ones that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        source = ROOT / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


def environment(tree: Path) -> dict[str, str]:
    """An environment in which the packages come from a copy instead of from where they are installed.

    Of cases that take turns none runs: what finds a fault is to find it at each commit.
    """
    settings = tomllib.loads((tree / "pyproject.toml").read_text())
    folders = [tree / folder for folder in settings["tool"]["hatch"]["build"]["dev-mode-dirs"]]
    return {**os.environ, "TESTS_ROTATION": "none", "PYTHONPATH": os.pathsep.join(map(str, [*folders, tree]))}


def run_tests(tree: Path, tests: Iterable[str], timeout_s: float = TIMEOUT_S) -> tuple[int, str]:
    """Runs tests in a copy.

    Returns:
        pytest's exit code, or that of a failure if they do not end; and the last lines of the output.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    running = subprocess.Popen(
        command,
        cwd=tree,
        env=environment(tree),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = running.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return _FAILED, f"no end after {timeout_s:.0f} s"
    finally:
        # Servers that the tests started outlive a pytest that was ended, or that broke.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    return running.returncode, "\n".join(output.splitlines()[-12:])


@contextlib.contextmanager
def planted(tree: Path, mutant: Mutant) -> Iterator[None]:
    """A copy with the fault; without it again afterwards."""
    path = tree / mutant.file
    source = path.read_text()
    path.write_text(mutant.apply(source))
    try:
        yield
    finally:
        path.write_text(source)


def try_one(mutant: Mutant, trees: queue.SimpleQueue[Path]) -> tuple[Mutant, bool, str]:
    """Plants one fault and runs its tests. Returns whether they noticed it, and what they said."""
    tree = trees.get()
    started = time.monotonic()
    try:
        with planted(tree, mutant):
            code, output = run_tests(tree, mutant.tests)
    finally:
        trees.put(tree)
    caught = code in {_FAILED, _BROKEN}
    last = next((line for line in output.splitlines() if line.startswith("FAILED")), output.splitlines()[-1])
    said = last if code in {_PASSED, _FAILED, _BROKEN} else f"pytest ended with {code}:\n{output}"
    print(
        f"{'caught' if caught else 'MISSED':<7} {mutant.name} ({time.monotonic() - started:.0f} s): {said}",
        flush=True,
    )
    return mutant, caught, said


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries the faults; returns the exit code."""
    parser = argparse.ArgumentParser(prog="./dev mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="which faults (all)")
    parser.add_argument("--list", action="store_true", help="list the faults and run nothing")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once (2)")
    options = parser.parse_args(arguments)
    table = read_table()
    unknown = set(options.names) - {mutant.name for mutant in table}
    if unknown:
        parser.error(f"there is no fault {', '.join(sorted(unknown))}; --list shows all")
    chosen = [mutant for mutant in table if not options.names or mutant.name in options.names]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:<34} {mutant.breaks}")
        return 0
    if problems := [words for mutant in chosen if (words := why_not(mutant))]:
        print("\n".join(problems))
        return 2
    with tempfile.TemporaryDirectory(prefix="elasticdl-mutants-") as scratch:
        trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(max(1, options.jobs)):
            copy_tree(Path(scratch, str(number)))
            trees.put(Path(scratch, str(number)))
        tests = list(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
        print(f"{len(chosen)} faults; first their tests without any: {len(tests)} selections", flush=True)
        tree = trees.get()
        code, output = run_tests(tree, tests, TIMEOUT_S * len(chosen))
        if code != _PASSED:
            print(f"the tests fail without a fault:\n{output}")
            return 2
        trees.put(tree)
        with ThreadPoolExecutor(max(1, options.jobs)) as pool:
            results = list(pool.map(lambda mutant: try_one(mutant, trees), chosen))
    missed = [mutant for mutant, caught, _ in results if not caught]
    print(f"{len(results) - len(missed)} of {len(results)} faults are caught")
    for mutant in missed:
        print(f"  missed: {mutant.name}: {mutant.breaks}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
