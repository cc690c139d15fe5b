"""Renders a running job: as a panel on a terminal, else as single lines."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from elasticdl.cli.output import count, duration, loss_words, metric_words, skipped_words, training_words
from elasticdl.client.views import Event, Job
from elasticdl_core.job import JobState

if TYPE_CHECKING:
    from rich.console import RenderableType

_COLOURS = {
    JobState.QUEUED: "yellow",
    JobState.STARTING: "cyan",
    JobState.RUNNING: "green",
    JobState.SUSPENDED: "yellow",
    JobState.CANCELLING: "magenta",
    JobState.SUCCEEDED: "bold green",
    JobState.SUCCEEDED_WITH_SKIPS: "bold yellow",
    JobState.FAILED: "bold red",
    JobState.CANCELLED: "magenta",
}
_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARKS = 40
_WAITING = frozenset({JobState.QUEUED, JobState.SUSPENDED, JobState.CANCELLING})


def colour(state: JobState) -> str:
    """The colour of a state."""
    return _COLOURS[state]


def render(job: Job, events: Sequence[Event], now: datetime, speeds: Sequence[float] = ()) -> RenderableType:
    """The live view of a job.

    Args:
        job: the job as it is now.
        events: its last events, oldest first.
        now: the time, for how long it has run.
        speeds: samples/s so far, the oldest first; a curve is drawn of two and more.
    """
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [_headline(job, now), _bar(job)]
    if _speed(job):
        parts.append(_numbers(job))
    if len(speeds) > 1 and not job.state.terminal:
        parts.append(_labelled("samples/s", f"{sparkline(speeds)}  up to {count(max(speeds))}"))
    if job.status.training_metrics:
        parts.append(_labelled("training", "   ".join(metric_words(job.status.training_metrics))))
    if job.status.metrics:
        parts.append(_labelled("evaluated", "   ".join(metric_words(job.status.metrics))))
    elif job.status.evaluation:
        parts.append(_labelled("evaluated", job.status.evaluation, "bold yellow"))
    if not job.state.terminal and (job.status.workers or job.target_workers):
        parts.append(_labelled("workers", _workers(job)))
    if job.status.ps and not job.state.terminal:
        parts.append(_labelled("ps", _servers(job)))
    parts.extend(Text(skipped_words(entry), style="bold yellow") for entry in job.status.skipped)
    if _in_trouble(job):
        parts.append(_labelled("degraded", job.status.degraded, "bold yellow"))
    parts.extend(_event(event) for event in events)
    return Group(*parts)


def _headline(job: Job, now: datetime) -> Any:
    from rich.text import Text

    text = Text.assemble((job.id, "bold"), "  ", (str(job.state), colour(job.state)))
    if job.why and job.state is not JobState.RUNNING:
        text.append(f"  {job.why}")
    if job.started_at is not None:
        text.append(f"  {duration(((job.finished_at or now) - job.started_at).total_seconds())}", style="dim")
    return text


def _bar(job: Job) -> Any:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    progress = job.status.progress
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(ratio=1, min_width=10)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_row(ProgressBar(total=max(progress.records_total, 1), completed=progress.records_done), _records(job))
    return grid


def _records(job: Job) -> str:
    progress = job.status.progress
    if not progress.records_total:
        if job.state.terminal:
            return "no records"
        return "listing records" if job.state not in _WAITING else "not started"
    done = f"{progress.records_done:,}/{progress.records_total:,} records {progress.fraction:.0%}"
    return f"{done}  {_epoch(job)}" if progress.num_epochs > 1 else done


def _epoch(job: Job) -> str:
    progress = job.status.progress
    return f"epoch {min(max(progress.epoch, 1), progress.num_epochs)}/{progress.num_epochs}"


def _numbers(job: Job) -> Any:
    from rich.text import Text

    return Text("   ".join(_speed(job)))


def _speed(job: Job) -> list[str]:
    status = job.status
    words = [] if job.state.terminal else [f"{count(status.samples_per_second)} samples/s"]
    if status.loss is not None:
        words += loss_words(status.loss, status.last_loss, None if job.state.terminal else status.learning_rate)
    if status.model_version:
        words.append(f"version {status.model_version:,}")
    if status.eta_seconds is not None and not job.state.terminal:
        words.append(f"eta {duration(status.eta_seconds)}{_band(status.eta_low_seconds, status.eta_high_seconds)}")
    return words


def _band(low: float | None, high: float | None) -> str:
    """The uncertainty of the expected end; empty where it is not told, or as good as exact."""
    if low is None or high is None or duration(low) == duration(high):
        return ""
    return f" ({duration(low)} to {duration(high)})"


def sparkline(values: Sequence[float], width: int = _SPARKS) -> str:
    """A curve in one line, from nothing to the largest value; of many values each place shows the mean of some."""
    places = min(width, len(values))
    if not places:
        return ""
    bounds = [len(values) * place // places for place in range(places + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(bounds)]
    top = max(means, default=0.0)
    last = len(_BLOCKS) - 1
    return "".join(
        _BLOCKS[min(last, round(last * max(mean, 0.0) / top))] if top > 0 else _BLOCKS[0] for mean in means
    )


def _workers(job: Job) -> str:
    named = [
        f"{worker.get('index')}:{worker.get('phase') or str(worker.get('state', '?')).lower()}"
        for worker in job.status.workers
    ]
    return f"{len(named)}/{job.target_workers}   {' '.join(named)}".rstrip()


def _servers(job: Job) -> str:
    named = [f"{server.get('index')}:{str(server.get('state', '?')).lower()}" for server in job.status.ps]
    return f"{len(named)}   {' '.join(named)}"


def _labelled(label: str, words: str, style: str = "") -> Any:
    from rich.text import Text

    return Text.assemble((f"{label:<10}", "dim"), (words, style))


def _event(event: Event) -> Any:
    from rich.text import Text

    at = event.at.astimezone().strftime("%H:%M:%S") if event.at else "--:--:--"
    return Text.assemble((f"{at} ", "dim"), event.message, no_wrap=True, overflow="ellipsis")


def plain_line(job: Job) -> str:
    """The same in one line, for logs and pipes."""
    words = [job.id, str(job.state)]
    if job.state is not JobState.RUNNING and job.why and not _in_trouble(job):
        words.append(f"({job.why})")
    if job.state not in _WAITING or job.status.progress.records_done:
        words.append(_records(job))
        words.extend(_speed(job))
        if not job.state.terminal:
            words.append(f"workers {len(job.status.workers)}/{job.target_workers}")
            if job.status.ps:
                words.append(f"ps {len(job.status.ps)}")
        if job.status.training_metrics:
            words.append(training_words(job.status.training_metrics))
        if job.status.metrics:
            words.append(f"evaluation: {', '.join(metric_words(job.status.metrics))}")
        elif job.status.evaluation:
            words.append(f"evaluation: {job.status.evaluation}")
        words.extend(skipped_words(entry) for entry in job.status.skipped)
    if _in_trouble(job):
        words.append(f"degraded: {job.status.degraded}")
    return "  ".join(words)


def _in_trouble(job: Job) -> bool:
    """Whether something is in the way of a job that has not ended; what it has of the scheduler is no reason then."""
    return bool(job.status.degraded) and not job.state.terminal


def plain_event(event: Event) -> str:
    """An event in one line."""
    at = event.at.astimezone().strftime("%H:%M:%S") if event.at else "--:--:--"
    return f"{at}  {event.message}"
