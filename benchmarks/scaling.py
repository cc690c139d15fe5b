"""Samples a second over 1 to 4 workers and 1 to 4 parameter servers.

    ./dev bench scaling [--data FOLDER] [--quick] [--sides a,b]

More workers than cores cannot be faster; what can be asked is that going from one worker to two brings as much as it
brings processes that do not talk at all.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from benchmarks.harness import Report, Sample
from benchmarks.training.processes import Team
from benchmarks.training.setting import parser, setting
from benchmarks.training.sides import Side

COUNTS, GOAL = (1, 2, 3, 4), 0.9
ABOUT = """DeepFM by asynchronous SGD on {data}, {batch} records in a minibatch, vectors of {dim}: jobs with one
to four workers and one parameter server, and with four workers and one to four servers. *No communication* are
as many processes that each train a model of their own. Medians of {rounds} measurements, in turns, of
{seconds:g} s. The target is the gain of a second worker over the gain of a second process without
communication."""


def plot(report: Report, slug: str, what: str, curves: Mapping[str, Sequence[tuple[int, Sample]]]) -> None:
    """A line for each curve, with the spread of its measurements."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for label, points in curves.items():
        if points:
            counts = [count for count, _ in points]
            axes.plot(counts, [sample.median for _, sample in points], marker="o", label=label)
            low, high = ([limit(sample.values) for _, sample in points] for limit in (min, max))
            axes.fill_between(counts, low, high, alpha=0.15)
    axes.set_xticks(COUNTS)
    axes.set_xlabel(what)
    axes.set_ylabel("samples a second")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    report.plot(slug, figure, f"samples a second over {what}")


def main() -> int:
    """Runs the command line; returns the exit code."""
    options = parser(__doc__).parse_args()
    with setting(options, max(COUNTS)) as here:
        clicks = here.clicks()
        each = {"data": str(here.arrays(clicks)), "dim": options.dim, "batch": options.batch, "xla": False}
        sides: list[Side] = []
        for count in COUNTS:
            label = f"ours, {count} worker{'s' * (count > 1)}, 1 PS"
            sides.append(here.job(f"workers_{count}", label, clicks, count, 1))
            members = [{**each, "seed": seed} for seed in range(count)]
            alone = f"no communication, {count} process{'es' * (count > 1)}"
            sides.append(Team(f"alone_{count}", alone, "benchmarks.peers.no_communication", members, here.folder))
        for count in COUNTS[1:]:
            sides.append(here.job(f"ps_{count}", f"ours, 4 workers, {count} PS", clicks, 4, count))
        about = here.about(ABOUT, clicks)
        report = Report("scaling", "Scaling over workers and parameter servers", about)
        found = here.compare(report, sides)
        workers = [(count, found[f"workers_{count}"]) for count in COUNTS if f"workers_{count}" in found]
        alone_points = [(count, found[f"alone_{count}"]) for count in COUNTS if f"alone_{count}" in found]
        names = {1: "workers_4", **{count: f"ps_{count}" for count in COUNTS[1:]}}
        servers = [(count, found[name]) for count, name in names.items() if name in found]
        plot(report, "workers", "workers", {"ours, 1 PS": workers, "no communication": alone_points})
        plot(report, "ps", "parameter servers", {"ours, 4 workers": servers})
        if {"workers_1", "workers_2", "alone_1", "alone_2"} <= set(found):
            gain, limit = (found[f"{name}_2"].median / found[f"{name}_1"].median for name in ("workers", "alone"))
            report.target("scaling", gain / limit, GOAL)
        report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
