"""Makes sdk/elasticdl/client/blocking from the asyncio client; with --check it only says whether it is current."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1] / "sdk" / "elasticdl" / "client"
SOURCE, TARGET = CLIENT / "aio", CLIENT / "blocking"
BY_HAND = frozenset({"waiting.py"})
"""What differs by nature: how a client sleeps, and how it runs what blocks."""
NOTE = "# Made from elasticdl/client/aio/{name} by tools/gen_blocking_client.py; change that file, not this one.\n"
WORDS = {
    r"\basync (?=def|with|for)": "",
    r"\bawait ": "",
    r"\bAsync(?=[A-Z])": "",
    r"\b__aenter__\b": "__enter__",
    r"\b__aexit__\b": "__exit__",
    r"\baclose\b": "close",
    r"\baclosing\b": "closing",
    r"\baiter_bytes\b": "iter_bytes",
    r"\banext\b": "next",
    r"\baread\b": "read",
    r"\belasticdl\.client\.aio\b": "elasticdl.client.blocking",
    r" from asyncio code\b": "",
}
LEFT_OVER = re.compile(r"\b(async|await|asyncio|Async\w+)\b")


def main() -> int:
    """Writes or checks the blocking client; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when a file would change")
    check = parser.parse_args().check
    wanted = {path.name: blocking(path) for path in sorted(SOURCE.glob("*.py")) if path.name not in BY_HAND}
    present = {path.name: path.read_text() for path in TARGET.glob("*.py") if path.name not in BY_HAND}
    changed = sorted(name for name in wanted | present if wanted.get(name) != present.get(name))
    if check:
        for name in changed:
            print(f"{TARGET / name} is not what elasticdl/client/aio makes; run ./dev client", file=sys.stderr)
        return 1 if changed else 0
    for name in changed:
        if name in wanted:
            (TARGET / name).write_text(wanted[name])
        else:
            (TARGET / name).unlink()
    return 0


def blocking(path: Path) -> str:
    """The blocking twin of a module.

    Raises:
        SystemExit: a word of asyncio is left, or what came out is no Python.
    """
    if path.name == "__init__.py":
        return '"""The client for ordinary code, generated from ``elasticdl.client.aio``."""\n'
    text = path.read_text()
    for word, plain in WORDS.items():
        text = re.sub(word, plain, text)
    left = LEFT_OVER.search(text)
    if left:
        raise SystemExit(f"{path}: no word for {left.group()!r} is known; add it to tools/gen_blocking_client.py")
    return formatted(NOTE.format(name=path.name) + text, path.name)


def formatted(text: str, name: str) -> str:
    """The text as `./dev format` leaves it."""
    for command in (
        ["check", "--select", "I,UP028", "--fix-only", "--unsafe-fixes", "--quiet"],
        ["format", "--quiet"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(TARGET / name), "-"],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"ruff refuses the blocking {name}: {done.stderr.strip()}")
        text = done.stdout
    return text


if __name__ == "__main__":
    sys.exit(main())
