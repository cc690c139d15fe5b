"""Files that a job reported, opened where it may write and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from elasticdl_api.files import access as files
from elasticdl_api.places.stored_artifacts import StoredArtifact
from elasticdl_api.services import Services
from elasticdl_api.store.records import JobRecord
from elasticdl_core.path_policy import PathPolicy, is_url
from elasticdl_runtime.path_checks import OutOfReachError, require_place, require_reach


class ArtifactOpener:
    """Opens what a job reported, following no link below its artifacts directory or its output.

    Args:
        artifacts: the job's artifacts directory.
        output: the output that its user named; empty for none.
        real_output: where that leads; None where the job may not write there.
        stored: that output if it is a URL at which the job may write; else empty.
    """

    def __init__(self, artifacts: Path, output: str, real_output: Path | None, stored: str = "") -> None:
        self._stored = stored.rstrip("/")
        self._artifacts = artifacts
        self._output = output
        self._real_output = real_output

    @classmethod
    async def of(cls, api: Services, job: JobRecord) -> ArtifactOpener:
        """For one job, by what it may touch now."""
        output = str(job.spec.get("output") or "")
        real = None
        if output:
            reach = await api.reaches.of_job(job.id)
            with contextlib.suppress(OutOfReachError):
                if is_url(output):
                    stored = require_place(output, reach, writing=True)
                    return cls(api.settings.job_dir(job.id) / "artifacts", output, None, stored)
                real = await asyncio.to_thread(_real_output, output, reach)
        return cls(api.settings.job_dir(job.id) / "artifacts", output, real)

    def open(self, path: str) -> int:
        """Opens a file by the path that was reported.

        Raises:
            NotFoundError: it is not there, or it is not where the job may write.
        """
        pure = PurePosixPath(path)
        if not pure.is_absolute():
            return files.open_regular(self._artifacts, path)
        for root in (str(self._real_output), self._output):
            if self._real_output is not None and pure.is_relative_to(root):
                return files.open_regular(self._real_output, str(pure.relative_to(root)))
        raise files.missing(path)

    def stored(self, row: Mapping[str, Any]) -> StoredArtifact:
        """An artifact in a store, by the URL that was reported.

        Raises:
            NotFoundError: it is not where the job may write.
        """
        if not self._stored or not str(row["path"]).startswith(f"{self._stored}/"):
            raise files.missing(row["name"])
        return StoredArtifact(row["path"], row["name"], row["size"], row["sha256"])


def _real_output(output: str, reach: PathPolicy | None) -> Path:
    return require_reach(os.path.realpath(output), reach, writing=True)
