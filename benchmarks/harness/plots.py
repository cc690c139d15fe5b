"""Plots that look alike in all reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_SIZE = (7.0, 3.6)


def bars(
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    ylabel: str,
    *,
    goal: float | None = None,
    log: bool = False,
) -> Figure:
    """Groups of bars, one of each series.

    Args:
        groups: labels below the groups.
        series: a height for each group, by the name that the legend shows; None leaves a gap.
        ylabel: what the heights are.
        goal: draws a line at this height.
        log: whether heights are on a logarithmic scale.
    """
    figure, axes = _figure(ylabel, log)
    width = 0.8 / len(series)
    for at, (name, heights) in enumerate(series.items()):
        places = [group + (at - (len(series) - 1) / 2) * width for group in range(len(groups))]
        axes.bar(places, [height or 0.0 for height in heights], width, label=name)
    if goal is not None:
        axes.axhline(goal, color="0.3", linestyle="--", linewidth=1, label=f"goal {goal:g}")
    axes.set_xticks(range(len(groups)), groups)
    # Below, since bars of any height may stand anywhere.
    figure.legend(fontsize=8, loc="outside lower center", ncols=4)
    return figure


def lines(
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    xlabel: str,
    ylabel: str,
    *,
    log_x: bool = False,
    log: bool = False,
) -> Figure:
    """One line for each series over common places on the x axis.

    Args:
        x: places.
        series: values at the places, by the name that the legend shows.
        xlabel: what the places are.
        ylabel: what the values are.
        log_x: whether places are on a logarithmic scale.
        log: whether values are on a logarithmic scale.
    """
    figure, axes = _figure(ylabel, log)
    for name, values in series.items():
        axes.plot(x, values, marker="o", markersize=4, label=name)
    if log_x:
        axes.set_xscale("log")
    axes.set_xlabel(xlabel)
    axes.legend(fontsize=8)
    return figure


def _figure(ylabel: str, log: bool) -> tuple[Figure, Axes]:
    figure = Figure(figsize=_SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_ylabel(ylabel)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    if log:
        axes.set_yscale("log")
    return figure, axes
