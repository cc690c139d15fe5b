"""The model version that the job has reached, as far as the master knows, and the one that it began at."""

from __future__ import annotations

from elasticdl_master.state import events as ev
from elasticdl_master.state.context import JobContext
from elasticdl_master.state.instructions import Instruction
from elasticdl_master.state.setup import Setup


class ModelVersion:
    """Follows what workers and PS say of the model's version.

    Args:
        job: what all parts share.

    Attributes:
        present: the highest version heard of since the PS last went back.
        start: the version that the job began at: that of the checkpoint that it started from.
    """

    def __init__(self, job: JobContext) -> None:
        self._job = job
        self.start = _start_of(job.setup)
        # Where there are none that could go back, the model is the checkpoint.
        self.present = 0 if job.servers.servers else self.start
        self._quiet_until = 0.0

    def handle(self, event: ev.Event, now: float) -> list[Instruction]:
        """Takes in a version that came with an event."""
        match event:
            case ev.TaskReported(model_version=version) | ev.TaskReturned(model_version=version):
                self._hear(version, now)
            case ev.WorkerHeartbeat() if self._job.workers.knows(event.index, event.incarnation):
                self._hear(event.model_version, now)
            case ev.ServerSeen(index=0) if self._job.servers.servers[0].incarnation == event.incarnation:
                self._hear(event.version, now)
            case ev.GroupPaused(version=version):
                self._hear(version, now)
            case ev.Pinned(version=version):
                self._know(version)
            case ev.Saved(manifest=manifest):
                self._know(int(manifest["version"]))
        return []

    def go_back(self, version: int, now: float) -> None:
        """The PS went back to an earlier version; what workers say of it is not true for a while."""
        self.present = version
        self._quiet_until = now + 2.0 * self._job.limits.heartbeat_s

    def _hear(self, version: int, now: float) -> None:
        if now >= self._quiet_until:
            self._know(version)

    def _know(self, version: int) -> None:
        """The model itself was seen at a version, or nobody can say any more what was true before it went back."""
        if self._job.servers.ready:
            self.present = max(self.present, version)


def _start_of(setup: Setup) -> int:
    for manifest in setup.manifests:
        if "start_version" in manifest:
            return int(manifest["start_version"])
    return int(setup.initial["version"]) if setup.initial is not None else 0
