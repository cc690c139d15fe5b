"""The process that reads the traces of a job's workers, which may be large and are a tenant's, under limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elasticdl_api.examination import confined
from elasticdl_core.errors import UnavailableError
from elasticdl_core.record_audit import AuditedJob, RecordTraces, audit_records
from elasticdl_runtime.lifecycle import within
from elasticdl_runtime.safe_files import open_below, open_plain

MEMORY_BYTES = 2 << 30
CPU_S = 60
WALL_S = 90.0
MOST_FILES = 4096
MOST_BYTES = 4 << 30
_LONGEST_LINE = 1 << 20
_NAME = re.compile(r"(worker-\d{1,5}\.\d{1,6})(\.before)?\.jsonl")
_at_once = asyncio.Semaphore(2)


async def audit_job(jobs: Path, job_id: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Audits a job in a process of its own.

    Args:
        jobs: the folder of all jobs' files.
        job_id: the job.
        job: the fields of ``AuditedJob``.

    Raises:
        UnavailableError: it took too long, or too much.
    """
    request = json.dumps({"jobs": str(jobs), "job_id": job_id, "job": job}).encode()
    async with _at_once:
        process = await asyncio.create_subprocess_exec(
            *confined.command_of("elasticdl_api.examination.audit"), **confined.options()
        )
        try:
            answer, _ = await within(process.communicate(request), WALL_S)
        except TimeoutError:
            answer = b""
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if not answer:
        raise UnavailableError(
            "the traces of the job's workers are too large to be audited in time",
            fix="see the ledger (GET /jobs/{id}/ledger) and the audit at the job's end in its events",
        )
    found: dict[str, Any] = json.loads(answer)
    return found


def read_traces(jobs: Path, job_id: str, type_: str) -> RecordTraces:
    """All lines of the workers of a job that are there."""
    traces = RecordTraces(type_)
    try:
        folder = open_below(jobs, f"{job_id}/traces")
    except FileNotFoundError:
        traces.trouble = "no worker wrote a trace, or it was removed"
        return traces
    room = MOST_BYTES
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if _NAME.fullmatch(entry.name))
        if len(names) > MOST_FILES:
            traces.trouble = f"there are more than {MOST_FILES:,} traces"
        for name in names[:MOST_FILES]:
            match = _NAME.fullmatch(name)
            assert match is not None
            if match[2]:
                traces.trouble = traces.trouble or f"the trace of {match[1]} was too long to be kept whole"
            room = _read(traces, name, match[1], folder, room)
    finally:
        os.close(folder)
    return traces


def _read(traces: RecordTraces, name: str, owner: str, folder: int, room: int) -> int:
    try:
        descriptor = open_plain(name, folder)
    except FileNotFoundError:
        traces.trouble = traces.trouble or f"the trace of {owner} is no plain file"
        return room
    with os.fdopen(descriptor, "rb") as file:
        while line := file.readline(_LONGEST_LINE):
            room -= len(line)
            if room < 0:
                traces.trouble = f"there are more than {MOST_BYTES >> 30} GiB of traces"
                return 0
            if not line.endswith(b"\n"):
                break  # it is being written, or was when its worker died; the master has not heard of it
            try:
                parsed = json.loads(line)
            except (ValueError, RecursionError):
                parsed = None
            traces.add(owner, parsed)
    return room


def main() -> None:
    """Answers the one request on its standard input."""
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    request = json.load(sys.stdin)
    job = AuditedJob(**request["job"])
    traces = read_traces(Path(request["jobs"]), request["job_id"], job.type)
    print(json.dumps(audit_records(job, traces)), flush=True)


if __name__ == "__main__":
    main()
