"""Checkpoints of a local run: those of a job, that a job on a cluster or another local run goes on from."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

import structlog

from elasticdl_core.best_evaluation import BEST, marked_best
from elasticdl_core.checkpoint_manifest import BestMark, Manifest, ManifestFile, Provenance
from elasticdl_core.job import JobSpec
from elasticdl_core.job.fields import default_of
from elasticdl_core.path_policy import join_place
from elasticdl_runtime.checkpoint_directory import CheckpointDirectory, commit_manifest
from elasticdl_worker.group.state_files import CheckpointPart

_log = structlog.get_logger(__name__)
_ASKED_BY = ("checkpoint_steps", "checkpoint_dir", "keep_checkpoint_max", "keep_best")
_LEFT_FREE = "checkpoints"
"""Where they go that nobody gave a directory, within that of the output."""


class LocalCheckpoints:
    """Takes checkpoints when they are due, and removes the old ones of this run.

    Args:
        spec: the job.
        output: directory of the exported model.
        take: gives a copy of all that training goes on from.
        version: of the model when training begins.
        columns: of the training data; None where its records have none.
    """

    def __init__(
        self,
        spec: JobSpec,
        output: str,
        take: Callable[[], CheckpointPart],
        version: int,
        columns: Sequence[str] | None,
    ) -> None:
        self._spec = spec
        self._take = take
        provenance = Provenance(
            job_id=f"local-{time.time_ns():x}",
            model_def=spec.model_def,
            model_params=spec.model_params,
            code=spec.model_zoo,
        )
        self._provenance = provenance
        root = spec.checkpoint_dir or join_place(output, _LEFT_FREE)
        self._directory = CheckpointDirectory(root, provenance["job_id"])
        self._kept: list[Manifest] = []
        self._begun_at = version
        self._columns = list(columns or ())

    @staticmethod
    def are_wanted(spec: JobSpec) -> bool:
        """Whether a local run writes any: one that says nothing of them leaves its exported model alone."""
        return any(getattr(spec, name) != default_of(name) for name in _ASKED_BY)

    def save_due(self, version: int, epochs: int, records: int) -> None:
        """Takes one if ``checkpoint_steps`` asks for it at this version."""
        every = self._spec.checkpoint_steps
        if every and version > self._begun_at and not version % every:
            self.save("periodic", version, epochs, records)

    @property
    def best(self) -> Manifest | None:
        """The checkpoint of the best evaluation."""
        return marked_best(self._kept)

    def save(self, kind: str, version: int, epochs: int, records: int, best: BestMark | None = None) -> None:
        """Takes one, unless there is one of this version.

        Args:
            kind: ``periodic``, ``best`` or ``final``.
            version: of the model.
            epochs: that are complete.
            records: that are in it, of this run.
            best: its mark, if its model has the best evaluation so far.

        Raises:
            OSError: the disk does not allow it.
            ElasticDLError: the store does not.
        """
        if self._kept and self._kept[-1]["version"] == version:
            there = self._kept[-1]
            there["kind"] = kind if kind != BEST else there["kind"]
            if best is not None:
                there["best"] = best
            commit_manifest(there, again=True)
            self._thin()
            return
        directory = self._directory.prepare(version)
        try:
            part = self._take()
            file = part.write(directory)
            manifest: Manifest = {
                **self._provenance,
                "version": version,
                "directory": directory,
                "kind": kind,
                "created_at": time.time(),
                "num_ps": 1,
                "files": [ManifestFile(name=file.name, size=file.size, sha256=file.sha256, ps=0)],
                "model": json.loads(part.describe()),
                "training_epoch": epochs,
                "records_done": records,
                "done": {},
                "start_version": self._begun_at,
                "columns": self._columns,
                "layers": part.layers,
                "best": best,
            }
            commit_manifest(manifest)
        except BaseException:
            self._directory.abandon(directory)
            raise
        _log.info("checkpoint", version=version, directory=directory)
        self._kept.append(manifest)
        self._thin()

    def _thin(self) -> None:
        """Removes those that are too many, but for that of the best evaluation."""
        keep, best = self._spec.keep_checkpoint_max, self.best
        own = [one for one in self._kept if one["kind"] != BEST]
        extra = own[:-keep] if keep else []
        extra += [one for one in self._kept if one["kind"] == BEST]
        for old in extra:
            if old is not best:
                self._directory.prune(old)
                self._kept.remove(old)
