"""Lists the logs of a job's processes."""

from __future__ import annotations

import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elasticdl_core.ports.launcher import INSPECTOR, Role
from elasticdl_runtime.safe_files import open_below

MOST_FILES = 20_000
_NAME = re.compile(r"(master|ps|worker)-(\d{1,5})\.(\d{1,6})\.log(\.1)?")


def list_logs(jobs: Path, job_id: str) -> list[dict[str, Any]]:
    """The logs of a job, one for each incarnation of a process, with their sizes; what a job put there is left out.

    So is that of the worker that looked at the model: it is none of the job's.

    Args:
        jobs: the folder of all jobs' files.
        job_id: the job.
    """
    try:
        folder = open_below(jobs, f"{job_id}/logs")
    except FileNotFoundError:
        return []
    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                state = entry.stat(follow_symlinks=False) if match else None
                if match is None or state is None or not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
                    continue
                key = (match[1], int(match[2]), int(match[3]))
                if key[:2] == (Role.WORKER, INSPECTOR):
                    continue
                if key not in found and len(found) >= MOST_FILES:
                    continue
                one = found.setdefault(key, {"size": 0, "modified_at": datetime.fromtimestamp(0, UTC)})
                one["size"] += state.st_size
                one["modified_at"] = max(one["modified_at"], datetime.fromtimestamp(state.st_mtime, UTC))
    finally:
        os.close(folder)
    return [
        {"role": role, "index": index, "incarnation": incarnation, **found[role, index, incarnation]}
        for role, index, incarnation in sorted(found)
    ]
