"""Checkpoints: when to take one, which exist, which to remove, and which to go back to."""

from __future__ import annotations

from collections.abc import Sequence

from elasticdl_core.best_evaluation import BEST, mark_of, marked_best
from elasticdl_core.checkpoint_manifest import BestMark, Manifest
from elasticdl_core.job import JobType
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.context import JobContext
from elasticdl_master.state.epochs import Epochs
from elasticdl_master.state.version import ModelVersion

PERIODIC = "periodic"
RECOVERY = "recovery"
FINAL = "final"
SUSPEND = "suspend"

_RETRY_S = 5.0
_TOLD_FIRST_S = 60.0
_TOLD_LATEST_S = 3600.0


class CheckpointCatalog:
    """The checkpoints of a job.

    Args:
        every: take one each so many updates; 0 for the end only.
        keep: keep that many; 0 keeps all.
        recovery_s: how often to take one at least, for recovery alone; 0 for never.
        manifests: those that exist, oldest first.
        initial: the checkpoint of another job that this one starts from, if any.
    """

    def __init__(
        self,
        every: int,
        keep: int,
        recovery_s: float,
        manifests: Sequence[Manifest] = (),
        initial: Manifest | None = None,
    ) -> None:
        self.every = every
        self.keep = keep
        self.recovery_s = recovery_s
        self.manifests: list[Manifest] = list(manifests)
        self.initial = initial
        self.saving = ""
        self.saving_since = 0.0
        self.last_saved_s = 0.0
        self._asked_at = 0
        self._before = 0
        self._last_at: float | None = None
        self._refused: set[str] = set()

    @property
    def latest(self) -> Manifest | None:
        """The newest checkpoint of this job that was not refused."""
        return next((one for one in reversed(self.manifests) if one["directory"] not in self._refused), None)

    @property
    def to_restore(self) -> Manifest | None:
        """The checkpoint for PS that are empty: the newest of this job, or what it starts from."""
        return self.latest or self.initial

    @property
    def best(self) -> Manifest | None:
        """The checkpoint of the best evaluation so far."""
        return marked_best([one for one in self.manifests if one["directory"] not in self._refused])

    def marked_as(self, save: do.Save, version: int) -> tuple[str, BestMark | None]:
        """The kind of a checkpoint that is of a version, and its mark if it holds the best evaluation's model."""
        kept = self.best
        if save.best is not None and save.best["version"] == version:
            mark: BestMark | None = save.best
        else:
            # Nothing has moved since: it is the same model, and takes the place of the one that was kept.
            mark = mark_of(kept) if kept is not None and kept["version"] == version else None
        if save.kind != BEST:
            return save.kind, mark
        # It takes the place of one of that version, which may have been asked for.
        there = next((str(m.get("kind")) for m in self.manifests if m["version"] == version), RECOVERY)
        return (there if there != RECOVERY else BEST if mark is not None else RECOVERY), mark

    def due(self, version: int, now: float) -> str:
        """The kind of checkpoint that is due, or nothing."""
        if self.saving:
            return ""
        newest = int(self.latest["version"]) if self.latest else 0
        # A save is of a version a little before or after the one that asked for it: one for each multiple.
        asked = [m for m in self.manifests if m.get("kind") != RECOVERY and m["directory"] not in self._refused]
        kept = max((int(m["version"]) for m in asked), default=0)
        if self.every and version // self.every > max(kept, self._asked_at) // self.every:
            return PERIODIC
        if not self.recovery_s or (self.latest is not None and version <= newest):
            return ""
        # A save that takes long is repeated less often, so that it costs at most a twentieth of the time.
        pause = max(self.recovery_s, 20.0 * self.last_saved_s)
        return RECOVERY if self._last_at is None or now - self._last_at >= pause else ""

    def begin(self, kind: str, version: int, now: float) -> None:
        """A save was asked for at a version."""
        self.saving, self.saving_since = kind, now
        self._before = self._asked_at
        if kind != RECOVERY:
            self._asked_at = version

    def went_back(self, version: int) -> None:
        """The PS went back to a version."""
        self._asked_at = version

    def failed(self, now: float) -> None:
        """A save failed; it is still due."""
        self.saving, self._last_at = "", now
        self._asked_at = min(self._asked_at, self._before)

    def committed(self, manifest: Manifest, now: float) -> list[Manifest]:
        """A checkpoint exists. Returns those to remove."""
        self.last_saved_s = now - self.saving_since if self.saving else 0.0
        self.saving, self._last_at = "", now
        replaced = [m for m in self.manifests if m["version"] == manifest["version"]]
        self.manifests = [m for m in self.manifests if m["version"] != manifest["version"]] + [manifest]
        self._refused.discard(manifest["directory"])
        own = [m for m in self.manifests if m.get("kind") not in (RECOVERY, BEST)]
        extra = own[: -self.keep] if self.keep and len(own) > self.keep else []
        extra += [m for m in self.manifests if m.get("kind") in (RECOVERY, BEST) and m is not manifest]
        best = self.best
        extra = [m for m in extra if m is not best]
        for old in extra:
            self.manifests.remove(old)
        return extra + [m for m in replaced if m["directory"] != manifest["directory"]]

    def refuse(self, directory: str) -> None:
        """A checkpoint cannot be read: never go back to it again."""
        self._refused.add(directory)
        if self.initial is not None and self.initial["directory"] == directory:
            self.initial = None


class Checkpoints:
    """Takes checkpoints when they are due, and when others ask for one.

    Args:
        job: what all parts share.
        epochs: what is done of the main work.
        version: the model version.

    Attributes:
        book: the checkpoints that exist.
        trouble: why the last one could not be written; empty if it could.
        candidate: the mark of an evaluation that is the best, while its model is still to be saved.
    """

    def __init__(self, job: JobContext, epochs: Epochs, version: ModelVersion) -> None:
        self._job = job
        self._epochs = epochs
        self._version = version
        setup = job.setup
        trains = setup.spec.type is JobType.TRAINING
        self.book = CheckpointCatalog(
            setup.spec.checkpoint_steps,
            setup.spec.keep_checkpoint_max,
            job.limits.recovery_s if trains else 0.0,
            setup.manifests if trains else (),
            setup.initial,
        )
        self.trouble = ""
        self.candidate: BestMark | None = None
        self._not_before = 0.0
        self._failures = 0
        self._tell_at = 0.0
        self._told_every_s = _TOLD_FIRST_S

    def handle(self, event: ev.Event, now: float) -> list[do.Instruction]:
        """Takes in how a save ended."""
        match event:
            case ev.Saved(manifest=manifest):
                self.trouble, self._failures = "", 0
                return [do.Prune(old) for old in self.book.committed(manifest, now)]
            case ev.SaveFailed(message=message):
                self.book.failed(now)
                self.trouble = message
                self._not_before = now + _RETRY_S
                return self._tell_failure(message, now)
        return []

    def _tell_failure(self, message: str, now: float) -> list[do.Instruction]:
        """Tells the first failure at once, and what goes on failing at growing intervals."""
        self._failures += 1
        if self._failures == 1:
            self._told_every_s = _TOLD_FIRST_S
        elif now < self._tell_at:
            return []
        else:
            self._told_every_s = min(_TOLD_LATEST_S, 2.0 * self._told_every_s)
        self._tell_at = now + self._told_every_s
        tries = f" ({self._failures} failures since the last checkpoint)" if self._failures > 1 else ""
        return [do.tell("checkpoint_failed", f"no checkpoint: {message}{tries}")]

    def save_due(self, now: float) -> list[do.Instruction]:
        """Takes a checkpoint if one is due."""
        ready = self._job.servers.initialized and self._job.plans.main.listed and not self.must_wait(now)
        if self._job.spec.type is not JobType.TRAINING or not ready or self._epochs.trained:
            return []
        kind = self.book.due(self._version.present, now)
        return self.save(kind, now) if kind else []

    def save(self, kind: str, now: float) -> list[do.Instruction]:
        """Takes a checkpoint that contains at least what is done now."""
        self.book.begin(kind, self._version.present, now)
        epochs = self._epochs
        return [do.Save(kind, epochs.snapshot(), epochs.epochs_done, epochs.records_done, self.candidate)]

    def must_wait(self, now: float) -> bool:
        """Whether it is too early for a checkpoint."""
        return now < self._not_before

    def wait_until(self, time: float) -> None:
        """Takes no checkpoint before a time."""
        self._not_before = time

    def is_own(self, manifest: Manifest) -> bool:
        """Whether a checkpoint is this job's: only then does it say what this job has done."""
        own = any(one["directory"] == manifest["directory"] for one in self.book.manifests)
        return own and self._job.spec.type is JobType.TRAINING
