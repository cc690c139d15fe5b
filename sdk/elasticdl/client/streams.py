"""The operations of the client that read long answers piece by piece. No I/O happens here but through steps."""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import shutil
import tempfile
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from elasticdl.client.operations import Operations, job_path
from elasticdl.client.problems import error_of, unreachable
from elasticdl.client.sse import SseDecoder
from elasticdl.client.steps import Answer, Emit, Failure, Open, Operation, Pause, Read, Request, StreamOperation, Work
from elasticdl.client.views import Artifact, Event, Job, Update
from elasticdl_core.errors import ConflictError, ElasticDLError, NotFoundError, UnavailableError

SILENCE_S = 30.0
"""An event stream sends something, if only a comment, far more often than this; silence means a dead connection."""
RECONNECTS = 40
"""How often a stream is opened anew without a single message in between: about three minutes."""
DOWNLOAD_TIMEOUT_S = 60.0
_PASSING = frozenset({429, 500, 502, 503, 504})


def updates(operations: Operations, job_id: str, after: str) -> StreamOperation[Update]:
    """Emits what happens to a job until it ends, across lost connections and restarts of the API.

    Raises:
        ElasticDLError: the job cannot be seen, or the API stays away.
    """
    job: Job = yield from operations.get(job_id)
    yield Emit(Update(job=job))
    last, failures, stale = after, 0, False
    while True:
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
        request = Request("GET", job_path(job_id, "events"), headers=headers, read_timeout_s=SILENCE_S)
        outcome: Answer | Failure = yield Open(request)
        decoder = SseDecoder(last)
        trouble = _trouble(outcome, request, operations.url)
        while trouble is None:
            chunk = yield Read()
            if not isinstance(chunk, bytes):
                break
            for message in decoder.feed(chunk):
                last, failures = message.id, 0
                if message.type == "end":
                    job = yield from operations.get(job_id)
                    yield Emit(Update(job=job, ended=True))
                    return
                if message.type == "event":
                    stale = True
                    yield Emit(Update(event=Event.from_json(json.loads(message.data))))
                elif message.type == "status":
                    # Views lack checkpoints, evaluations and artifacts; an event tells that there may be new ones.
                    fresh = (yield from operations.get(job_id)) if stale else None
                    job = fresh or Job.from_json({**job.raw, **json.loads(message.data)})
                    stale = False
                    yield Emit(Update(job=job))
        failures += 1
        if failures > RECONNECTS:
            raise trouble or UnavailableError(
                f"the API at {operations.url} keeps closing the event stream of job {job_id}",
                fix="look at the API's log; `elasticdl jobs get` shows the job without a stream",
            )
        yield Pause(decoder.retry_s if decoder.retry_s is not None else operations.retry.backoff(failures - 1))


def _trouble(outcome: Answer | Failure, request: Request, url: str) -> ElasticDLError | None:
    """The error that a reconnect may mend, or None when the stream is open; raises one that it cannot mend."""
    if isinstance(outcome, Failure):
        return unreachable(outcome, url)
    if outcome.status < 400:
        return None
    if outcome.status in _PASSING:
        return error_of(outcome, request)
    raise error_of(outcome, request)


def follow_logs(operations: Operations, job_id: str, params: Mapping[str, str]) -> StreamOperation[str]:
    """Emits the lines of a job's logs, old and new, until the job has ended.

    Raises:
        ElasticDLError: the job cannot be seen, or the connection broke.
    """
    request = Request("GET", job_path(job_id, "logs"), params={**params, "follow": "true"}, read_timeout_s=3600.0)
    outcome: Answer | Failure = yield Open(request)
    trouble = _trouble(outcome, request, operations.url)
    if trouble is not None:
        raise trouble
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    while True:
        chunk: bytes | Failure | None = yield Read()
        if isinstance(chunk, Failure):
            raise UnavailableError(
                f"the log stream of job {job_id} broke: {chunk.message}", fix="run the command again"
            )
        *lines, rest = (rest + decoder.decode(chunk or b"", final=chunk is None)).split("\n")
        if chunk is None and rest:
            lines.append(rest)
        for line in lines:
            yield Emit(line)
        if chunk is None:
            return


def jobs(operations: Operations, job_id: str) -> StreamOperation[Job]:
    """The views of a job among its updates."""
    stream = updates(operations, job_id, "")
    given: Any = None
    while True:
        try:
            step = stream.send(given)
        except StopIteration:
            return
        given = None
        if not isinstance(step, Emit):
            given = yield step
        elif step.item.job is not None:
            yield Emit(step.item.job)


def download(
    operations: Operations, job_id: str, directory: Path, names: Sequence[str] | None
) -> Operation[list[Path]]:
    """Downloads artifacts into a directory: a file appears at once and whole, its digest checked.

    Raises:
        NotFoundError: the job has no artifact of a name.
        ConflictError: what came is not what the job made, or the place is taken.
        ElasticDLError: the API refused, or did not answer.
    """
    listed = {item.name: item for item in (yield from operations.artifacts(job_id))}
    missing = [name for name in names or () if name not in listed]
    if missing:
        raise NotFoundError(
            f"job {job_id} has no artifact {', '.join(missing)}",
            fix=f"it has: {', '.join(listed)}" if listed else "it has none; see whether it succeeded",
        )
    places = {name: _place(directory, name) for name in (names if names is not None else listed)}
    kept = []
    for name, place in places.items():
        kept.append((yield from _fetch(operations, job_id, listed[name], place)))
    return kept


def _place(directory: Path, name: str) -> Path:
    """Where an artifact goes; its name cannot lead out of the directory."""
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts:
        raise ConflictError(f"the artifact's name {name!r} leads out of {directory}", fix="fetch it by its URL")
    return directory.joinpath(*parts)


def _fetch(operations: Operations, job_id: str, artifact: Artifact, place: Path) -> Operation[Path]:
    request = Request("GET", job_path(job_id, "artifacts", artifact.name), read_timeout_s=DOWNLOAD_TIMEOUT_S)
    attempt = 0
    while True:
        outcome: Answer | Failure = yield Open(request)
        if isinstance(outcome, Answer) and outcome.status < 400:
            sink: _Sink = yield Work(lambda: _Sink(place))
            try:
                broken = yield from _receive(sink)
                if broken is None:
                    kept: Path = yield Work(partial(sink.keep, artifact, outcome.headers))
                    return kept
            finally:
                sink.discard()
            outcome = broken
        pause = operations.retry.pause(request, outcome, attempt)
        if pause is None:
            raise unreachable(outcome, operations.url) if isinstance(outcome, Failure) else error_of(outcome, request)
        yield Pause(pause)
        attempt += 1


def _receive(sink: _Sink) -> Operation[Failure | None]:
    """Writes the open response to the sink; gives the failure that cut it short, if any."""
    while True:
        chunk: bytes | Failure | None = yield Read()
        if chunk is None or isinstance(chunk, Failure):
            return chunk
        yield Work(partial(sink.write, chunk))


class _Sink:
    """A file beside its final place, moved there when whole."""

    def __init__(self, destination: Path) -> None:
        destination.parent.mkdir(parents=True, exist_ok=True)
        self._destination = destination
        self._digest = hashlib.sha256()
        self._path = destination.parent / f".{destination.name}.{uuid.uuid4().hex}.part"
        self._file: IO[bytes] = self._path.open("xb")

    def write(self, piece: bytes) -> None:
        """Adds bytes."""
        self._file.write(piece)
        self._digest.update(piece)

    def keep(self, artifact: Artifact, headers: Mapping[str, str]) -> Path:
        """Checks what came and moves it to its place; a packed directory is unpacked there."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        packed = headers.get("content-type", "").startswith("application/zip") and not artifact.name.endswith(".zip")
        if packed:
            _unpack(self._path, self._destination)
            return self._destination
        if artifact.sha256 and self._digest.hexdigest() != artifact.sha256:
            raise ConflictError(
                f"{artifact.name} came with the SHA-256 {self._digest.hexdigest()}, not {artifact.sha256}",
                fix="download it again; if that does not help, the file on the cluster has been changed",
            )
        self._path.replace(self._destination)
        return self._destination

    def discard(self) -> None:
        """Removes what is still lying about."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def _unpack(packed: Path, destination: Path) -> None:
    """Unpacks a directory beside its place and moves it there; no member leads out of it, and no link is made."""
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=f".{destination.name}.") as folder:
        fresh = Path(folder) / "content"
        fresh.mkdir()
        try:
            with zipfile.ZipFile(packed) as archive:
                archive.extractall(fresh)
        except zipfile.BadZipFile as error:
            raise ConflictError(f"{destination.name} came damaged: {error}", fix="download it again") from None
        if destination.is_dir() and not any(destination.iterdir()):
            destination.rmdir()
        if destination.exists():
            raise ConflictError(f"{destination} is there already", fix="give another place, or remove it first")
        shutil.move(fresh, destination)


def pages(operations: Operations, filters: Mapping[str, Sequence[str]], page_size: int) -> StreamOperation[Job]:
    """Emits all jobs, page by page."""
    token = ""
    while True:
        page = yield from operations.page(filters, page_size, token)
        for job in page.jobs:
            yield Emit(job)
        token = page.next_page_token
        if not token:
            return


def log_params(role: str, index: int, tail: int | None) -> dict[str, str]:
    """The query parameters that choose a log."""
    return {"role": role, "index": str(index), **({} if tail is None else {"tail": str(tail)})}
