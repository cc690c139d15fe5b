"""The packages that extras of pyproject.toml need, without the project itself: ``requirements.py api,scheduler``.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main() -> int:
    """Prints a package a line; returns the exit code."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    known = project["optional-dependencies"]
    asked = [extra for extra in sys.argv[1].split(",") if extra]
    if unknown := [extra for extra in asked if extra not in known]:
        print(f"error: pyproject.toml has no extras {', '.join(unknown)}", file=sys.stderr)
        print(f"  fix: --build-arg EXTRAS= some of {', '.join(known)}", file=sys.stderr)
        return 64
    print(*sorted({*project["dependencies"], *(one for extra in asked for one in known[extra])}), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
