"""A benchmark's report: Markdown with tables, plots and targets, printed as it grows."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Iterable, Sequence
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path(__file__).resolve().parents[1] / "results"
_VERSIONS = ("numpy", "numba", "grpcio", "tensorflow")
_Point = tuple[float, float]
_POINT = re.compile(r"[ML] (\S+) (\S+)")


class Report:
    """Collects what a benchmark finds.

    Args:
        name: of the benchmark; the report becomes ``<results>/<name>.md``.
        title: its heading.
        about: a paragraph on what is compared with what, and how.
        command: shows the reader how to repeat it.
        results: directory; ``benchmarks/results`` by default.
    """

    def __init__(self, name: str, title: str, about: str, command: str = "", results: Path | None = None) -> None:
        self.name = name
        self.results = results or RESULTS
        self._started = time.monotonic()
        self._targets: list[tuple[str, str, str, bool]] = []
        # Where data lie on this machine says nothing to others.
        given = ["DIR" if before == "--data" else argument for before, argument in pairwise(sys.argv)]
        command = command or " ".join(["./dev bench", name, *given])
        self._head = [f"# {title}", about, f"Repeat it with `{command}`."]
        self._parts: list[str] = []

    def say(self, text: str) -> None:
        """Shows progress."""
        print(f"[{time.monotonic() - self._started:6.1f} s] {text}", file=sys.stderr, flush=True)

    def text(self, paragraph: str) -> None:
        """Adds a paragraph, or a heading."""
        self._parts.append(paragraph)
        print(paragraph, flush=True)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Adds a table; floats are shown with three significant digits."""
        shown = [[_cell(value) for value in row] for row in rows]
        widths = [max(len(row[i]) for row in [list(header), *shown]) for i in range(len(header))]
        lines = [_line(header, widths), _line(["-" * width for width in widths], widths)]
        self.text("\n".join([*lines, *(_line(row, widths) for row in shown)]))

    def target(self, name: str, value: float, goal: float, *, at_least: bool = True) -> bool:
        """Prints and keeps whether a target is met, as ``TARGET <name> <value> <goal> met|missed``.

        Args:
            name: one word.
            value: what was measured.
            goal: the bound.
            at_least: whether the goal is a lower bound.
        """
        met = value >= goal if at_least else value <= goal
        entry = (name, _plain(value), f"{'>=' if at_least else '<='}{_plain(goal)}", met)
        self._targets.append(entry)
        print(_target_line(*entry), flush=True)
        return met

    def plot(self, slug: str, figure: Figure, caption: str) -> None:
        """Saves a figure beside the report and shows it there."""
        self.results.mkdir(parents=True, exist_ok=True)
        path = self.results / f"{self.name}-{slug}.svg"
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
        # Matplotlib leaves blanks at the ends of lines.
        lines = [line.rstrip() for line in path.read_text().splitlines()]
        path.write_text("\n".join(drop_points_on_lines(lines)) + "\n")
        self._parts.append(f"![{caption}]({path.name})")

    def write(self) -> Path:
        """Writes the report.

        Returns:
            Its path.
        """
        parts = [*self._head]
        if self._targets:
            lines = "\n".join(_target_line(*entry) for entry in self._targets)
            parts.append(f"## Targets\n\n```\n{lines}\n```")
        parts += [*self._parts, "## The machine", machine()]
        self.results.mkdir(parents=True, exist_ok=True)
        path = self.results / f"{self.name}.md"
        path.write_text("\n\n".join(parts) + "\n")
        self.say(f"report: {path}")
        return path


def drop_points_on_lines(lines: Iterable[str]) -> list[str]:
    """Drops points of an SVG's paths that lie on the straight line between their neighbours: the picture is the same.

    Matplotlib keeps all of a filled area's points, which for steps of an hour by seconds is a megabyte.
    """
    kept: list[str] = []
    points: list[_Point | None] = []
    for line in lines:
        found = _POINT.fullmatch(line)
        point = None if found is None else (float(found[1]), float(found[2]))
        # The last point begins no path, and lies between the one before it and this one.
        while point and line[0] == kept[-1][:1] == "L" and _between(points[-2], points[-1], point):
            kept.pop()
            points.pop()
        kept.append(line)
        points.append(point)
    return kept


def _between(start: _Point | None, middle: _Point | None, end: _Point) -> bool:
    if start is None or middle is None:
        return False
    (ax, ay), (bx, by), (cx, cy) = start, middle, end
    on_line = abs((bx - ax) * (cy - ay) - (by - ay) * (cx - ax)) < 1e-9
    return on_line and (bx - ax) * (bx - cx) <= 0 and (by - ay) * (by - cy) <= 0


def machine() -> str:
    """The machine and the versions that matter, in one paragraph."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in _VERSIONS)
    load = os.getloadavg()[1]
    return (
        f"{len(os.sched_getaffinity(0))} cores of {model}, {memory:.0f} GiB, Python {platform.python_version()}, "
        f"{versions}; load average of the last five minutes at the end: {load:.1f}. Only ratios within one run carry "
        "over to another machine or day."
    )


def _target_line(name: str, value: str, goal: str, met: bool) -> str:
    return f"TARGET {name} {value} {goal} {'met' if met else 'missed'}"


def _plain(value: float) -> str:
    """A number as programs read it."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
