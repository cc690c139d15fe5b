"""``elasticdl simulate``: what a scheduling policy would do with a recorded workload."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elasticdl.cli.formats import FormatOption, JsonOption, choose_format, print_data
from elasticdl.cli.output import console_on, write_line
from elasticdl_core.errors import InvalidInputError

if TYPE_CHECKING:
    from elasticdl_core.scheduling.simulator import Report, SimulationResult, SimulationSettings

COMPARED = (
    "goodput",
    "fair",
    "fifo",
    "gang",
    "gang-backfill",
    "tiresias",
    "optimus",
    "equal-share",
    "simple-marginal",
)


def simulate(
    workload: Annotated[
        Path,
        typer.Option(
            help="CSV: name,time,application,num_replicas,batch_size or job_id,submission_time,duration,num_gpu."
        ),
    ],
    policy: Annotated[str, typer.Option(help="goodput, fair, fifo, gang, or a rule to compare with.")] = "goodput",
    traces: Annotated[
        Path | None,
        typer.Option(help="Folder of measured applications; by default `traces` beside the workload's folder."),
    ] = None,
    nodes: Annotated[str, typer.Option(help="Machines x workers on each.")] = "16x4",
    interval: Annotated[float, typer.Option(help="Seconds between decisions; 0 decides at every event.")] = 60.0,
    rescale_cost: Annotated[float, typer.Option(help="Seconds without progress after each change.")] = 30.0,
    knowledge: Annotated[
        str, typer.Option(help="The policies' knowledge of speeds: learned, history or true.")
    ] = "learned",
    oracle: Annotated[
        bool, typer.Option("--oracle", help="Tell policies the true work of jobs that never ran; the service cannot.")
    ] = False,
    error: Annotated[float, typer.Option(help="Error of told speeds and remaining work, e.g. 0.5 for ±50 %.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of these errors.")] = 0,
    limit: Annotated[int, typer.Option(help="Only the first so many jobs; 0 for all.")] = 0,
    compare: Annotated[bool, typer.Option("--compare", help="Run every policy and rule.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write an SVG: utilisation and workers per job over time.")
    ] = None,
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a scheduling policy on a recorded workload in simulated time.

    It is the code that the scheduler service runs. Completion times, start delay, utilisation, churn (changes of a
    job after its start) and fairness (completion over that with an equal share) are reported together.
    """
    from elasticdl_core.scheduling.simulator import read_applications, read_workload, summarise

    chosen = choose_format(output, as_json)
    settings = replace(
        _settings(nodes, interval, rescale_cost, knowledge, error, seed, timeline=plot is not None), oracle=oracle
    )
    folder = traces or _traces_beside(workload)
    applications = read_applications(folder) if folder is not None else {}
    jobs = read_workload(workload, applications, per_node=settings.per_node, limit=limit or None)
    reports: list[Report] = []
    for name in COMPARED if compare else (policy,):
        result = _run(jobs, name, settings, quiet=chosen.of_data)
        reports.append(summarise(result))
        if plot is not None and (name == policy or not compare):
            from elasticdl.cli.timeline import draw

            plot.write_text(draw(result), encoding="utf-8")
    if chosen.of_data:
        told = [report.to_mapping() for report in reports]
        print_data({"workload": str(workload), "jobs": len(jobs), "reports": told}, chosen)
    else:
        _print_table(reports)
        if plot is not None:
            write_line(f"plot: {plot}")


def register(app: typer.Typer) -> None:
    """Adds ``elasticdl simulate``."""
    app.command(
        "simulate", epilog="Example: elasticdl simulate --workload examples/scheduling/jobs.csv --nodes 2x4 --compare"
    )(simulate)


def parse_nodes(text: str) -> tuple[int, int]:
    """Reads ``16x4`` as 16 machines of 4 workers.

    Raises:
        InvalidInputError: it is not of that form.
    """
    left, _, right = text.lower().partition("x")
    if not (left.isdigit() and right.isdigit() and int(left) and int(right)):
        raise InvalidInputError(f"--nodes {text!r} is not machines x workers", fix="write e.g. --nodes 16x4")
    return int(left), int(right)


def _settings(
    nodes: str, interval: float, rescale_cost: float, knowledge: str, error: float, seed: int, *, timeline: bool
) -> SimulationSettings:
    from elasticdl_core.scheduling.simulator import SimulationSettings

    count, per_node = parse_nodes(nodes)
    if knowledge not in ("learned", "history", "true"):
        raise InvalidInputError(f"--knowledge {knowledge!r} is unknown", fix="give learned, history or true")
    if interval < 0 or rescale_cost < 0 or not 0 <= error < 1:
        raise InvalidInputError(
            "--interval and --rescale-cost are at least 0, --error is from 0 to 1", fix="correct them"
        )
    return SimulationSettings(
        nodes=count,
        per_node=per_node,
        interval_s=interval,
        rescale_s=rescale_cost,
        knowledge=knowledge,  # type: ignore[arg-type]
        error=error,
        seed=seed,
        timeline=timeline,
    )


def _traces_beside(workload: Path) -> Path | None:
    for folder in (workload.parent / "traces", workload.parent.parent / "traces"):
        if folder.is_dir():
            return folder
    return None


def _run(jobs: list[Any], policy: str, settings: SimulationSettings, *, quiet: bool) -> SimulationResult:
    from elasticdl_core.scheduling.simulator import simulate as run

    console = console_on(sys.stderr, quiet=quiet)
    started = time.monotonic()
    with console.status(f"{policy}: starting") as status:

        def show(now: float, ended: int, total: int) -> None:
            status.update(f"{policy}: {ended} of {total} jobs, {now / 3600:.1f} simulated hours")

        result = run(jobs, policy, settings, show)
    console.print(f"{policy}: {result.decisions} decisions in {time.monotonic() - started:.1f} s")
    return result


def _print_table(reports: list[Report]) -> None:
    from rich.table import Table

    from elasticdl.cli.output import stdout

    table = Table(box=None, pad_edge=False)
    table.add_column("policy")
    for heading in (
        "average",
        "p50",
        "p99",
        "makespan",
        "start delay",
        "utilisation",
        "churn",
        "unfair",
        "fairness p99",
    ):
        table.add_column(heading, justify="right")
    for r in reports:
        table.add_row(
            r.policy,
            f"{r.average_s:.0f} s",
            f"{r.median_s:.0f} s",
            f"{r.p99_s / 3600:.1f} h",
            f"{r.makespan_s / 3600:.1f} h",
            f"{r.start_delay_s:.0f} s",
            f"{r.utilisation:.0%}",
            f"{r.churn:.2f}",
            f"{r.unfair:.0%}",
            f"{r.worst_fairness:.2f}",
        )
    stdout().print(table)
