"""Draws a simulated cluster over time as an SVG: utilisation on top, workers per job below."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticdl_core.scheduling.simulator import SimulationResult

_WIDTH, _HEIGHT, _LEFT, _TOP = 1000, 320, 60, 40
_COLOURS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#bbbbbb",
    "#332288",
    "#999933",
    "#882255",
)


def draw(result: SimulationResult) -> str:
    """The SVG's text. The simulation must have kept its timeline."""
    end = max((r.finished_at or 0.0 for r in result.records), default=1.0)
    points = _with_ends(result)
    slots = result.settings.slots
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + 2 * _LEFT} {2 * _HEIGHT + 3 * _TOP}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        _title(_TOP - 12, f"{result.policy}: share of the {slots} workers in use"),
        _title(_HEIGHT + 2 * _TOP - 12, "workers per job"),
    ]
    parts += _stack([(at, {"used": sum(sizes.values())}) for at, sizes in points], end, slots, _TOP)
    parts += _stack(points, end, slots, _HEIGHT + 2 * _TOP)
    for top in (_TOP, _HEIGHT + 2 * _TOP):
        parts += _axes(top, end, slots)
    parts.append("</svg>")
    return "\n".join(parts)


def _with_ends(result: SimulationResult) -> list[tuple[float, dict[str, int]]]:
    """The timeline with a point for each job's end, where its workers drop to 0 before the next decision."""
    ends = sorted((r.finished_at, r.job.name) for r in result.records if r.finished_at is not None)
    merged: list[tuple[float, dict[str, int]]] = []
    sizes: dict[str, int] = {}
    events = [(at, 1, "", new) for at, new in result.timeline] + [(at, 0, name, {}) for at, name in ends]
    for at, kind, name, new in sorted(events, key=lambda event: event[:2]):
        sizes = dict(new) if kind else {job: n for job, n in sizes.items() if job != name}
        merged.append((at, sizes))
    return merged


def _stack(points: list[tuple[float, dict[str, int]]], end: float, slots: int, top: int) -> list[str]:
    """One rectangle for each interval in which a job's share did not change."""
    spans: dict[tuple[str, int, int], list[float]] = {}
    shapes: list[str] = []
    colour: dict[str, str] = {}
    moments = [*points, (end, {})]
    for at, sizes in moments:
        now: dict[tuple[str, int, int], None] = {}
        base = 0
        for job, workers in sizes.items():
            now[job, base, workers] = None
            base += workers
        for key in [key for key in spans if key not in now]:
            shapes.append(_block(key, spans.pop(key)[0], at, end, slots, top, colour))
        for key in now:
            spans.setdefault(key, [at])
    return shapes


def _block(
    key: tuple[str, int, int], start: float, stop: float, end: float, slots: int, top: int, colour: dict[str, str]
) -> str:
    job, base, workers = key
    fill = colour.setdefault(job, _COLOURS[len(colour) % len(_COLOURS)])
    x, width = _LEFT + _WIDTH * start / end, _WIDTH * (stop - start) / end
    y, height = top + _HEIGHT * (1 - (base + workers) / slots), _HEIGHT * workers / slots
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.2):.1f}" height="{height:.1f}" fill="{fill}">'
        f"<title>{escape(job)}: {workers}</title></rect>"
    )


def _title(y: int, text: str) -> str:
    return f'<text x="{_LEFT}" y="{y}">{escape(text)}</text>'


def _axes(top: int, end: float, slots: int) -> list[str]:
    bottom = top + _HEIGHT
    lines = [
        f'<path d="M{_LEFT} {top}V{bottom}H{_LEFT + _WIDTH}" fill="none" stroke="black"/>',
        f'<text x="{_LEFT - 8}" y="{top + 10}" text-anchor="end">{slots}</text>',
        f'<text x="{_LEFT - 8}" y="{bottom}" text-anchor="end">0</text>',
    ]
    hours = end / 3600
    for i in range(6):
        x = _LEFT + _WIDTH * i / 5
        lines.append(f'<text x="{x:.0f}" y="{bottom + 16}" text-anchor="middle">{hours * i / 5:.1f} h</text>')
    return lines
