"""Checkpoints: when to take one, which exist, which to remove, and which to go back to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PERIODIC = "periodic"
RECOVERY = "recovery"
FINAL = "final"
SUSPEND = "suspend"

Manifest = Mapping[str, Any]


class CheckpointBook:
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
        self.manifests = list(manifests)
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
        for manifest in reversed(self.manifests):
            if manifest["directory"] not in self._refused:
                return manifest
        return None

    @property
    def to_restore(self) -> Manifest | None:
        """What the PS shall hold when they are empty: the newest of this job, or what it starts from."""
        return self.latest or self.initial

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
        own = [m for m in self.manifests if m.get("kind") != RECOVERY]
        extra = own[: -self.keep] if self.keep and len(own) > self.keep else []
        extra += [m for m in self.manifests if m.get("kind") == RECOVERY and m is not manifest]
        for old in extra:
            self.manifests.remove(old)
        return extra + [m for m in replaced if m["directory"] != manifest["directory"]]

    def refuse(self, directory: str) -> None:
        """A checkpoint cannot be read: never go back to it again."""
        self._refused.add(directory)
        if self.initial is not None and self.initial["directory"] == directory:
            self.initial = None
