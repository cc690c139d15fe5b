"""Renders explanations, comparisons and plans on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from elasticdl.cli.live import colour
from elasticdl.cli.output import count, duration, table
from elasticdl_core.job import JobState

_BASIS = {
    "measured": "measured",
    "similar": "from similar jobs",
    "estimated": "estimated from other sizes",
    "assumed": "not measured yet",
}
MOST_SPEEDS = 12
_ROOMY = 120
"""Columns from which a job's reason stands beside it, rather than below."""
_GAP = 2
_LEAST_NAME = 14
_DROPPED_FIRST = ("PRIO", "RANGE", "RECORDS/S", "WORKERS")
"""Columns that a terminal has no room for, in this order; `jobs get` tells what they would say."""


def explanation(found: Mapping[str, Any]) -> RenderableType:
    """Renders the output of ``elasticdl explain``.

    Args:
        found: the API's answer.
    """
    workers, reason = found["workers"], found["reason"]
    parts: list[RenderableType] = [
        Text.assemble((found["job_id"], "bold"), "  ", _state(found["state"]), f"  priority {found['priority']}"),
        _line("workers", f"{workers['present']} present, {workers['target']} granted, {_range(workers)} wanted"),
        Text.assemble(_label("why"), (reason["code"], "bold"), f": {reason['text']}"),
    ]
    for number, one in enumerate(found["blockers"]):
        ends = f", expected to end {_in(one['ends_at'])}" if one["ends_at"] else ""
        text = (
            f"{one['job_id']}: {_workers(one['workers'])} (minimum {one['min_workers']}), priority {one['priority']}"
        )
        parts.append(_line("held by" if number == 0 else "", text + ends))
    hidden = found["hidden_blockers"]
    if hidden["jobs"]:
        text = f"{_number(hidden['jobs'], 'job')} of other namespaces: {_workers(hidden['workers'])}"
        parts.append(_line("" if found["blockers"] else "held by", text))
    if found["next"] is not None:
        parts.append(_line("next", f"{found['next']['code']}: {found['next']['text']}"))
    for number, one in enumerate(found["remedies"]):
        text = one["text"] + (f"\n{'':<10}{one['command']}" if one["command"] else "")
        parts.append(_line("helps" if number == 0 else "", text))
    slots = found["slots"]
    parts.append(_line("slots", f"{slots['used']} of {slots['total']} taken, {slots['free']} free"))
    if found["quota"] is not None:
        parts.append(_line("quota", _quota(found["quota"])))
    parts.append(_line("expected", _expected(found["expected"], found["state"])))
    parts.extend(_speeds(found["speed"], workers["target"]))
    for number, one in enumerate(found["decisions"]):
        text = f"{_clock(one['at'])}  {one['before']} -> {one['after']}  {one['text']}"
        parts.append(_line("decided" if number == 0 else "", text))
    return Group(*parts)


def _speeds(speeds: Sequence[Mapping[str, Any]], target: int) -> list[RenderableType]:
    if not speeds:
        return []
    known = any(one["records_per_second"] is not None for one in speeds)
    if not known:
        return [_line("speed", "not measured yet, and no similar job ended before")]
    rows = []
    for one in speeds[:MOST_SPEEDS]:
        mark = "now" if one["workers"] == target else ""
        rate = count(one["records_per_second"]) if one["records_per_second"] is not None else "-"
        rows.append((str(one["workers"]), rate, f"{one['relative']:.2f}x", _BASIS[one["basis"]], mark))
    return [Text(), table(("WORKERS", "RECORDS/S", "SPEED-UP", "KNOWN", ""), rows), Text()]


def _quota(quota: Mapping[str, Any]) -> str:
    words = [f"team {quota['team']} uses {_number(quota['used'], 'slot')}", f"weight {quota['weight']:g}"]
    words += [f"{name} {quota[name]:g}" for name in ("guaranteed", "limit") if quota[name] is not None]
    return ", ".join(words)


def _expected(expected: Mapping[str, Any], state: str) -> str:
    if JobState(state).terminal:
        return "it is over"
    words = []
    if expected["starts_at"] and state == JobState.QUEUED:
        words.append(f"starts {_in(expected['starts_at'])}")
    if expected["seconds"] is None:
        return ", ".join([*words, f"its end is not known: {expected['why_unknown']}"])
    low, high = duration(expected["seconds_low"]), duration(expected["seconds_high"])
    words.append(f"ends in {duration(expected['seconds'])} ({low} to {high}), speed {_BASIS[expected['basis']]}")
    return ", ".join(words)


def comparison(found: Mapping[str, Any]) -> RenderableType:
    """Renders the output of ``elasticdl what-if``.

    Args:
        found: the API's answer.
    """
    head = f"policy {found['policy']}, {_number(found['slots_before'], 'slot')}"
    if found["slots_after"] != found["slots_before"]:
        head += f" -> {found['slots_after']}"
    at = datetime.fromisoformat(found["at"])
    rows = [
        (
            one["job_id"],
            str(one["priority"]),
            f"{_of(one['before'], 'workers')} -> {_of(one['after'], 'workers')}",
            f"{_start(one['before'], at)} -> {_start(one['after'], at)}",
            f"{_end(one['before'], at)} -> {_end(one['after'], at)}{_band(one['after'], at)}",
            _delay(one["delay_s"]),
            one["after"]["reason"]["text"] if one["after"] else "left out",
        )
        for one in found["jobs"]
    ]
    columns = ("JOB", "PRIORITY", "WORKERS", "STARTS IN", "ENDS IN", "DELAY", "THEN")
    parts: list[RenderableType] = [Text(head), table(columns, rows) if rows else Text("no jobs")]
    others = found["others"]
    if others["jobs"]:
        parts.append(
            Text(
                f"{_number(others['jobs'], 'job')} of other namespaces: workers {others['workers_before']} -> "
                f"{others['workers_after']}; {others['sooner']} end sooner, {others['later']} later"
            )
        )
    return Group(*parts)


def _of(course: Mapping[str, Any] | None, name: str) -> str:
    return "-" if course is None else str(course[name])


def _start(course: Mapping[str, Any] | None, now: datetime) -> str:
    if course is None:
        return "-"
    if course["starts_at"] is None:
        return "?"
    seconds = (datetime.fromisoformat(course["starts_at"]) - now).total_seconds()
    return "runs" if seconds < 0 else duration(seconds)


def _end(course: Mapping[str, Any] | None, now: datetime) -> str:
    if course is None:
        return "-"
    if course["ends_at"] is None:
        return "?"
    return duration((datetime.fromisoformat(course["ends_at"]) - now).total_seconds())


def _band(course: Mapping[str, Any] | None, now: datetime) -> str:
    """The bounds of an end; nothing where there are none, as of an api of before."""
    if course is None or course.get("earliest") is None or course.get("latest") is None:
        return ""
    low, high = ((datetime.fromisoformat(course[name]) - now).total_seconds() for name in ("earliest", "latest"))
    return f" ({duration(low)} to {duration(high)})"


def _delay(seconds: float | None) -> str:
    if seconds is None or abs(seconds) < 1:
        return "" if seconds is None else "none"
    return ("+" if seconds > 0 else "-") + duration(abs(seconds))


def cluster(plan: Mapping[str, Any], *, wide: bool = False) -> RenderableType:
    """Renders the output of ``elasticdl top``.

    Args:
        plan: the API's answer.
        wide: with the namespace of each job, and the jobs that hold what it lacks.
    """
    slots = plan["slots"]
    head = Text.assemble(
        ("slots ", "dim"),
        f"{slots['used']}/{slots['total']}",
        (f"  free {slots['free']}", "dim"),
        (f"  leaving {slots['leaving']}" if slots["leaving"] else "", "yellow"),
        ("   policy ", "dim"),
        plan["policy"],
    )
    if plan["age_s"] is not None:
        head.append(f"   plan {plan['sequence'] or '-'}, looked {plan['age_s']:.0f} s ago", style="dim")
    parts: list[RenderableType] = [head]
    if not plan["alive"]:
        parts.append(Text("no scheduler leads: nothing changes until one does", style="bold yellow"))
    if plan["others"]["jobs"]:
        others = plan["others"]
        parts.append(
            Text(f"{_number(others['jobs'], 'job')} of other namespaces: {_workers(others['workers'])}", style="dim")
        )
    parts.append(_Jobs(plan["jobs"], wide) if plan["jobs"] else Text("no jobs"))
    return Group(*parts)


class _Jobs:
    """The jobs: with their reasons in a column, or, where the terminal is narrow, each in lines of its own."""

    def __init__(self, jobs: Sequence[Mapping[str, Any]], wide: bool) -> None:
        self._jobs = jobs
        self._wide = wide

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width >= _ROOMY:
            yield _roomy(self._jobs, self._wide)
            return
        rows = [_columns(job) for job in self._jobs]
        shown = _fitting(rows, options.max_width)
        yield from console.render(_aligned({name: Text(name, style="bold") for name in shown}, shown), options)
        for row, job in zip(rows, self._jobs, strict=True):
            yield from console.render(_aligned(row, shown), options)
            yield Padding(_why(job, wide=self._wide), (0, 0, 0, 2))


def _columns(job: Mapping[str, Any]) -> dict[str, Text]:
    workers = job["workers"]
    present = f"{workers['present']}/{workers['target']}"
    return {
        "JOB": Text(job["job_id"]),
        "STATE": _state(job["state"]),
        "PRIO": Text(str(job["priority"])),
        "WORKERS": Text(present, style="" if workers["present"] == workers["target"] else "yellow"),
        "RANGE": Text(_range(workers)),
        "RECORDS/S": Text(count(job["records_per_second"]) if job["records_per_second"] else "-"),
        "DONE": Text("-" if job["progress"] is None else f"{job['progress']:.0%}"),
        "ENDS IN": Text(_remaining(job["expected"])),
    }


def _why(job: Mapping[str, Any], *, wide: bool = False) -> Text:
    why = Text.assemble((job["reason"]["code"], "dim"), " ", job["reason"]["text"])
    if wide:
        why.append(f"  namespace {job['namespace']}", style="dim")
        why.append(f"  held by {', '.join(job['blockers'])}" if job["blockers"] else "", style="dim")
    return why


def _roomy(jobs: Sequence[Mapping[str, Any]], wide: bool) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    more = ("NAMESPACE", "HELD BY") if wide else ()
    for title in (*_columns(jobs[0]), *more, "WHY"):
        made.add_column(title, overflow="fold", no_wrap=title in ("STATE", "WORKERS", "RANGE", "ENDS IN"))
    for job in jobs:
        beside = (Text(job["namespace"]), Text(", ".join(job["blockers"]) or "-")) if wide else ()
        made.add_row(*_columns(job).values(), *beside, _why(job))
    return made


def _fitting(rows: Sequence[Mapping[str, Text]], width: int) -> dict[str, int]:
    """The columns that have room, and how wide they are; the name of a job gets what the others leave it."""
    widths = {name: max(len(name), *(row[name].cell_len for row in rows)) for name in rows[0]}
    for dropped in ("", *_DROPPED_FIRST):
        widths.pop(dropped, None)
        others = sum(wide + _GAP for name, wide in widths.items() if name != "JOB")
        if width - others >= _LEAST_NAME:
            break
    return {**widths, "JOB": max(1, min(widths["JOB"], width - others))}


def _aligned(row: Mapping[str, Text], shown: Mapping[str, int]) -> Text:
    cells = []
    for name, wide in shown.items():
        cell = row[name].copy()
        cell.truncate(wide, overflow="ellipsis", pad=True)
        cells.append(cell)
    line = Text(" " * _GAP).join(cells)
    line.no_wrap, line.overflow = True, "ellipsis"
    line.rstrip()
    return line


def _remaining(expected: Mapping[str, Any]) -> str:
    if expected["seconds"] is None:
        return "?"
    return f"{duration(expected['seconds'])} +{duration(expected['seconds_high'] - expected['seconds'])}"


def _state(state: str) -> Text:
    return Text(state, style=colour(JobState(state)))


def _label(name: str) -> tuple[str, str]:
    return (f"{name:<10}", "dim")


def _line(name: str, text: str) -> Text:
    return Text.assemble(_label(name), text)


def _range(workers: Mapping[str, Any]) -> str:
    return f"{workers['min']}-{workers['max']}"


def _number(number: float, what: str) -> str:
    return f"{number:g} {what}{'' if number == 1 else 's'}"


def _workers(number: int) -> str:
    return _number(number, "worker")


def _in(at: str) -> str:
    seconds = (datetime.fromisoformat(at) - datetime.now(UTC)).total_seconds()
    return "now" if seconds < 1 else f"in {duration(seconds)}"


def _clock(at: str) -> str:
    return datetime.fromisoformat(at).astimezone().strftime("%H:%M:%S")
