"""Follows a job from the command line until it ends, and prints the result."""

from __future__ import annotations

import collections
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import IO, TYPE_CHECKING, Protocol, Self

from elasticdl.cli.formats import OutputFormat, print_data
from elasticdl.cli.live import plain_event, plain_line, render
from elasticdl.cli.output import (
    EXIT_CANCELLED,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    console_on,
    duration,
    metric_words,
    size,
    skipped_words,
    stderr,
    table,
    training_words,
    write_line,
)
from elasticdl.client.views import Artifact, Event, Job, Update
from elasticdl_core.errors import ElasticDLError
from elasticdl_core.job import JobState, JobType

if TYPE_CHECKING:
    from rich.console import Console

    from elasticdl.client import Client

EVENTS_SHOWN = 6
SPEEDS_KEPT = 120
LINE_EVERY_S = 5.0
ARTIFACT_COLUMNS = ("ARTIFACT", "SIZE", "SHA-256")


class View(Protocol):
    """Shows a job while it runs."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, update: Update) -> None:
        """Shows an update."""
        ...


class PanelView:
    """A panel on a terminal that is redrawn in place.

    Args:
        console: where it is drawn.
        clock: gives the time.
        speeds: samples/s until now, the oldest first.
    """

    def __init__(
        self,
        console: Console,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        speeds: Sequence[float] = (),
    ) -> None:
        from rich.live import Live

        # What the terminal cannot show is not drawn.
        draws = (console.encoding or "").lower().startswith("utf")
        self._speeds = collections.deque(speeds, maxlen=SPEEDS_KEPT) if draws else None
        self._clock = clock
        self._job: Job | None = None
        self._events: collections.deque[Event] = collections.deque(maxlen=EVENTS_SHOWN)
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="ellipsis")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, update: Update) -> None:
        """Redraws the panel."""
        if update.event is not None:
            self._events.append(update.event)
        self._job = update.job or self._job
        if self._speeds is not None and update.job is not None and update.job.state is JobState.RUNNING:
            self._speeds.append(update.job.status.samples_per_second)
        if self._job is not None:
            shown = render(self._job, list(self._events), self._clock(), list(self._speeds or ()))
            self._live.update(shown, refresh=True)


class LineView:
    """Lines for a log or a pipe: every event, every change of state, and progress at intervals.

    Args:
        stream: where they are written.
        clock: gives seconds.
    """

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._state: JobState | None = None
        self._next = 0.0
        self._last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.flush()

    def show(self, update: Update) -> None:
        """Writes the lines that are due."""
        if update.event is not None:
            self._write(plain_event(update.event))
        job = update.job
        if job is None:
            return
        now = self._clock()
        if job.state is not self._state or now >= self._next or update.ended:
            line = plain_line(job)
            if line != self._last:
                self._write(line)
            self._last, self._state, self._next = line, job.state, now + LINE_EVERY_S

    def _write(self, line: str) -> None:
        write_line(line, to=self._stream)


def follow_to_end(client: Client, job_id: str, output: OutputFormat = OutputFormat.TABLE) -> int:
    """Shows a job until it ends; returns the exit code.

    Ctrl-C leaves the job alone and says how to come back to it and how to cancel it.

    Args:
        client: the client.
        job_id: the job.
        output: as JSON or YAML the job is printed at its end, and all else goes to standard error.
    """
    try:
        job = watch(client.updates(job_id), make_view(client, job_id, of_data=output.of_data))
    except KeyboardInterrupt:
        stderr().print(
            f"\ndetached; job {job_id} goes on\n"
            f"  watch it again:  elasticdl jobs get {job_id} --watch\n"
            f"  cancel it:       elasticdl jobs cancel {job_id}",
            markup=False,
        )
        return EXIT_INTERRUPTED
    if output.of_data:
        print_data(job.raw, output)
    else:
        conclude(job)
    return code_of(job)


def make_view(client: Client, job_id: str, *, of_data: bool = False) -> View:
    """Chooses a view for the output: data, a terminal, or a pipe."""
    stream = sys.stderr if of_data else sys.stdout
    if not stream.isatty():
        return LineView(stream)
    return PanelView(console_on(stream), speeds=_speeds_until_now(client, job_id))


def _speeds_until_now(client: Client, job_id: str) -> list[float]:
    """Samples/s of the last minutes; none where they cannot be had, which what follows shows anyway."""
    try:
        since = datetime.now(UTC) - timedelta(minutes=5)
        found = client.series(job_id, names=["samples_per_second"], since=since, points=SPEEDS_KEPT)
    except ElasticDLError:
        return []
    return [point[1] for one in found["series"] for point in one["points"]]


def watch(updates: Iterable[Update], view: View) -> Job:
    """Shows all updates; returns the job of the last one.

    Raises:
        RuntimeError: there was no view of the job at all.
    """
    job: Job | None = None
    with view:
        for update in updates:
            view.show(update)
            job = update.job or job
    if job is None:
        raise RuntimeError("the stream had no view of the job")
    return job


def code_of(job: Job) -> int:
    """The exit code for how a job ended."""
    if job.state.succeeded:
        return EXIT_OK
    return EXIT_CANCELLED if job.state is JobState.CANCELLED else EXIT_FAILED


def conclude(job: Job) -> None:
    """Prints how a job ended: what it made, or why it failed and what to do."""
    from rich.text import Text

    from elasticdl.cli.output import stdout

    if job.state is JobState.FAILED:
        _failed(job)
        return
    console = stdout()
    took = ""
    if job.started_at is not None and job.finished_at is not None:
        took = f" in {duration((job.finished_at - job.started_at).total_seconds())}"
    console.print(Text(f"job {job.id} {str(job.state).lower().replace('_', ' ')}{took}", style="bold"))
    if job.state is JobState.CANCELLED:
        if job.reason:
            console.print(Text(f"reason: {job.reason}"))
        return
    console.print(Text(_sums(job)))
    for entry in job.status.skipped:
        console.print(Text(skipped_words(entry), style="bold yellow"))
    if job.artifacts:
        console.print(table(ARTIFACT_COLUMNS, artifact_rows(job.artifacts)))
        console.print(Text(f"fetch with: elasticdl jobs artifacts {job.id} --download DIR", style="dim"))


def artifact_rows(artifacts: Iterable[Artifact]) -> list[tuple[str, str, str]]:
    """Name, size and digest of artifacts."""
    return [(item.name, size(item.size), item.sha256[:12]) for item in artifacts]


def _sums(job: Job) -> str:
    done = {JobType.TRAINING: "trained on", JobType.EVALUATION: "evaluated", JobType.PREDICTION: "predicted"}
    words = [f"{done[job.type]} {job.status.progress.records_done:,} records"]
    if job.type is JobType.TRAINING:
        words.append(f"{max(job.status.model_version - job.status.start_version, 0):,} updates")
    if job.status.loss is not None:
        words.append(f"loss {job.status.loss:.4g}")
    parts = [", ".join(words), training_words(job.status.training_metrics)]
    if job.status.metrics:
        parts.append(f"evaluation: {', '.join(metric_words(job.status.metrics))}")
    return "; ".join(part for part in parts if part)


def _failed(job: Job) -> None:
    from rich.text import Text

    console = stderr()
    if job.error is not None and job.error.traceback:
        console.print(Text(job.error.traceback.rstrip()))
    message = job.error.message if job.error is not None else job.reason or "no reason was recorded"
    console.print(Text.assemble((f"job {job.id} failed: ", "bold red"), message))
    if job.error is not None and job.error.fix:
        console.print(Text.assemble(("  fix: ", "bold"), job.error.fix))
    console.print(Text(f"  logs: elasticdl jobs logs {job.id}", style="dim"))
