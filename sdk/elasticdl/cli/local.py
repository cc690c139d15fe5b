"""``--local``: the job runs in one process on this machine, and its reports are shown as they come."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, Self

from elasticdl.cli.formats import OutputFormat, print_data
from elasticdl.cli.output import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    console_on,
    count,
    duration,
    loss_words,
    metric_words,
    print_bold,
    show_error,
    skipped_words,
    training_words,
    write_line,
)
from elasticdl.data.validation import UnlikeRecord, Validation
from elasticdl.extras import require
from elasticdl.recognition import resolve_framework
from elasticdl_core.errors import ElasticDLError, UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_core.json_numbers import from_json
from elasticdl_core.path_policy import check_places
from elasticdl_runtime.hashing import HASHING
from elasticdl_runtime.waiting_threads import waiting_variables

STOP_WITHIN_S = 20.0
LINE_EVERY_S, RARE_LINE_S = 5.0, 30.0
_NATIVE_LOG = re.compile(r"WARNING: All log messages before absl|[IWE]\d{4} [\d:.]+ +\d+ [\w./]+:\d+\] ")
"""What TensorFlow's native code prints while it is imported, before its own log level counts."""


def run_local(
    prepared: Mapping[str, Any],
    output_format: OutputFormat = OutputFormat.TABLE,
    *,
    lists_files: bool = True,
    take: Callable[[Mapping[str, Any]], None] | None = None,
) -> int:
    """Runs a job in a process of its own on this machine; returns the exit code.

    Args:
        prepared: a checked specification with absolute paths; without ``output``, the results go to ``./output``.
        output_format: as JSON or YAML the final report is printed on standard output, and all else on standard error.
        lists_files: whether the files that it made are there for whoever reads the end.
        take: is given the final report of a run that succeeded.
    """
    stream = sys.stderr if output_format.of_data else sys.stdout
    last, code = _run(prepared, PanelLocalView(stream) if stream.isatty() else LineLocalView(stream))
    code = _conclude(last if lists_files else {**last, "artifacts": []}, code, output_format)
    if take is not None and code == EXIT_OK:
        take(last)
    return code


def run_each(prepared: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Runs jobs of one kind of environment, one after the other, as ``run_local`` does, and shows little.

    They are forked from one process that has imported TensorFlow, which takes more than a short job itself.

    Yields:
        The final report of each, empty if it came to none.
    """
    with _worker(prepared) as process:
        assert process.stdout is not None
        incoming = reports(process.stdout)
        for _ in prepared:
            yield show(incoming, RareLocalView(sys.stdout), whole=False)


def run_feed(prepared: Mapping[str, Any], most: int, on_progress: Callable[[int, int], None]) -> Validation:
    """Gives the training data of a job to its ``feed``, in a process of its own.

    Args:
        prepared: a checked specification with absolute paths.
        most: it ends when so many problems were found.
        on_progress: called with the records done and the number of all.

    Raises:
        UserCodeError: the module or the data cannot be opened.
    """
    view = _ProblemView(on_progress)
    with _worker([prepared], "validate", "--most", str(most)) as process:
        assert process.stdout is not None
        last = show(reports(process.stdout), view)
    if last.get("event") != "done":
        message = last.get("message", "the process that ran the feed ended before it was done")
        raise UserCodeError(message, fix=last.get("fix", "see its output above"), traceback=last.get("traceback", ""))
    counts = {name: last[name] for name in ("kind", "records", "checked", "skipped", "complete")}
    return Validation(**counts, problems=view.problems)


class _ProblemView:
    """Problems that were found, and progress."""

    def __init__(self, on_progress: Callable[[int, int], None]) -> None:
        self._on_progress = on_progress
        self.problems: list[UnlikeRecord] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def show(self, report: Mapping[str, Any]) -> None:
        """Takes a report."""
        if report["event"] == "progress":
            self._on_progress(report["records"], report["total"])
        elif report["event"] == "problem":
            self.problems.append(UnlikeRecord(report["message"], report["fix"]))


def _run(prepared: Mapping[str, Any], view: LocalView) -> tuple[dict[str, Any], int]:
    """Runs a job in a process of its own; returns its final report and the exit code."""
    with _worker([prepared]) as process:
        assert process.stdout is not None
        return show(reports(process.stdout), view), process.wait()


@contextlib.contextmanager
def _worker(
    prepared: Sequence[Mapping[str, Any]], verb: str = "local", *more: str
) -> Iterator[subprocess.Popen[str]]:
    """The process that runs jobs, or does something else with them."""
    specs = [JobSpec.from_mapping(one) for one in prepared]
    with tempfile.TemporaryDirectory(prefix="elasticdl-local-") as folder:
        # Without -P the present directory would come first where modules are imported from.
        command = [sys.executable, "-P", "-m", "elasticdl_worker", verb, *more]
        for at, spec in enumerate(specs):
            check_places(spec, None)
            parquet = ("parquet",) if spec.prediction_format == "parquet" else ()
            require("`--local`", "worker", resolve_framework(Path(spec.model_zoo), spec), *parquet)
            file = Path(folder) / f"spec-{at}.json"
            file.write_text(json.dumps(spec.to_mapping()))
            command += ["--spec", str(file)]
            if verb == "local":
                command += ["--output", spec.output or str(Path("output").absolute())]
        keras = {"TF_USE_LEGACY_KERAS": str(int(specs[0].keras == "legacy"))}
        environment = {**os.environ, **HASHING, **keras, **specs[0].envs}
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        environment |= waiting_variables(environment)
        with _process(command, environment) as process:
            yield process


@contextlib.contextmanager
def _process(command: list[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Starts a process, and ensures that it has ended when the context is left; Ctrl-C reaches it by itself."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", env=dict(environment)
    )
    assert process.stderr is not None
    errors = threading.Thread(target=_pass_on, args=(process.stderr, sys.stderr), daemon=True)
    errors.start()
    try:
        yield process
    except KeyboardInterrupt:
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(STOP_WITHIN_S)
        raise SystemExit(EXIT_INTERRUPTED) from None
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        errors.join(STOP_WITHIN_S)
        if process.stdout is not None:
            process.stdout.close()


def _pass_on(lines: IO[str], to: IO[str]) -> None:
    """Copies lines, leaving out log lines of TensorFlow's native code that cannot be disabled."""
    with lines:
        for line in lines:
            if not _NATIVE_LOG.match(line):
                to.write(line)
                to.flush()


def reports(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON reports among lines of output; anything else goes to standard error as it is."""
    for line in lines:
        try:
            report = json.loads(line)
        except ValueError:
            report = None
        if isinstance(report, dict) and "event" in report:
            yield report
        else:
            sys.stderr.write(line)


class LocalView(Protocol):
    """Shows the reports of a local run."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def show(self, report: Mapping[str, Any]) -> None:
        """Shows a report."""
        ...


def show(incoming: Iterable[dict[str, Any]], view: LocalView, *, whole: bool = True) -> dict[str, Any]:
    """Shows reports; returns the last one, or an empty one if there was none that ended the run.

    Args:
        incoming: the reports.
        view: shows them.
        whole: whether there are those of one run alone.
    """
    last: dict[str, Any] = {}
    with view:
        for report in incoming:
            view.show(report)
            if report["event"] in {"done", "error"}:
                last = report
                if not whole:
                    break
    return last


class RareLocalView:
    """Lines for one of many runs: progress of what takes long."""

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next = clock() + RARE_LINE_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is pending: who reads the end says it."""

    def show(self, report: Mapping[str, Any]) -> None:
        """Writes a line if one is due."""
        if report["event"] == "progress" and self._clock() >= self._next:
            write_line(f"  {progress_words(report)}", to=self._stream)
            self._next = self._clock() + RARE_LINE_S


class PanelLocalView:
    """A progress bar on a terminal, with evaluations above it."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (BarColumn(bar_width=None), TextColumn("{task.description}"))
        self._console = console_on(stream)
        self._progress = Progress(*columns, console=self._console, expand=True)
        self._task = self._progress.add_task("starting", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, report: Mapping[str, Any]) -> None:
        """Updates the bar."""
        if report["event"] == "progress":
            total = report.get("total") or None
            self._progress.update(
                self._task, completed=report.get("records", 0), total=total, description=progress_words(report)
            )
        elif report["event"] == "evaluation":
            self._console.print(evaluation_words(report), markup=False)
        elif report["event"] == "skipped":
            self._console.print(f"skipped: {report['message']}", markup=False, style="bold yellow")
        elif report["event"] == "started":
            self._console.print(report["message"], markup=False)


class LineLocalView:
    """Lines for a log or a pipe: evaluations, and progress at intervals."""

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next = 0.0
        self._pending: Mapping[str, Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pending is not None:
            self._write(progress_words(self._pending))

    def show(self, report: Mapping[str, Any]) -> None:
        """Writes the lines that are due."""
        if report["event"] == "progress":
            now = self._clock()
            self._pending = report
            if now >= self._next:
                self._write(progress_words(report))
                self._next, self._pending = now + LINE_EVERY_S, None
        elif report["event"] == "evaluation":
            self._write(evaluation_words(report))
        elif report["event"] == "skipped":
            self._write(f"skipped: {report['message']}")
        elif report["event"] == "started":
            self._write(report["message"])

    def _write(self, line: str) -> None:
        write_line(line, to=self._stream)


def progress_words(report: Mapping[str, Any]) -> str:
    """A progress report in one line."""
    done, total, rate = report.get("records", 0), report.get("total", 0), report.get("samples_per_second", 0.0)
    words = [f"{done:,}/{total:,} records {done / total:.0%}" if total else f"{done:,} records"]
    words.append(f"epoch {report.get('epoch', 0) + 1}")
    words.append(f"{count(rate)} samples/s")
    if report.get("loss") is not None:
        last, learning_rate = (from_json(report.get(name)) for name in ("last_loss", "learning_rate"))
        words += loss_words(from_json(report["loss"]), last, learning_rate)
    if report.get("training_metrics"):
        words.append(training_words(report["training_metrics"]))
    if rate and total > done:
        words.append(f"eta {duration((total - done) / rate)}")
    return "  ".join(words)


def evaluation_words(report: Mapping[str, Any]) -> str:
    """An evaluation in one line."""
    values = "  ".join(metric_words(report.get("metrics", {})))
    at = f"epoch {report.get('epoch', 0) + 1}, step {report.get('step', 0):,}"
    return f"evaluation after {at}: {values or 'no records'}"


def _conclude(last: Mapping[str, Any], code: int, output_format: OutputFormat) -> int:
    if output_format.of_data and last:
        print_data(last, output_format)
    if last.get("event") == "error":
        if not output_format.of_data:
            show_error(UserCodeError(last["message"], fix=last.get("fix", ""), traceback=last.get("traceback", "")))
        return code or EXIT_FAILED
    if last.get("event") != "done" or code != EXIT_OK:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        fix = "give it more memory, or a smaller --minibatch_size" if code == -9 else "see its output above"
        show_error(ElasticDLError(f"the local run {how} before it was done", fix=fix))
        return code if code > 0 else EXIT_FAILED
    if not output_format.of_data:
        _print_done(last)
    return EXIT_OK


def _print_done(last: Mapping[str, Any]) -> None:
    words = [f"{last.get('records', 0):,} records", f"{last.get('steps', 0):,} steps"]
    words += metric_words(last.get("metrics", {}))
    training = training_words(last.get("training_metrics", {}))
    write_line(f"done: {', '.join(words)}" + (f"; {training}" if training else ""))
    if last.get("reason"):
        write_line(f"  {last['reason']}")
    for skip in last.get("skipped", []):
        print_bold(skipped_words(skip))
    for artifact in last.get("artifacts", []):
        write_line(f"  {artifact['path'] if isinstance(artifact, dict) else artifact}")
