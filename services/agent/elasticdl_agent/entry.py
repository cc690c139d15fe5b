"""One process in the agent's table."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from elasticdl_agent.processes.child import Child
from elasticdl_agent.processes.journal import Record
from elasticdl_core.devices import Place
from elasticdl_core.ports.launcher import ProcessSpec, ProcessState, ProcessStatus


@dataclass(slots=True)
class ProcessEntry:
    """A process, what is done with it, and why it is to end."""

    spec: ProcessSpec
    status: ProcessStatus
    child: Child | None = None
    run: asyncio.Task[int] | None = field(default=None, repr=False)
    stop_reason: str = ""
    stop_at: float | None = None
    stopping: asyncio.TimerHandle | None = field(default=None, repr=False)
    record: Record | None = None
    place: Place = ()

    @property
    def ended(self) -> bool:
        """Whether it is no more."""
        return self.status.state is ProcessState.EXITED

    @property
    def waiting(self) -> bool:
        """Whether it was never started: it waits for a slot, a device or another one's end."""
        return self.run is None and not self.ended

    @property
    def holds_slots(self) -> bool:
        """Slots and devices are held for as long as the task lives that starts, awaits and ends the process."""
        return (self.spec.slots > 0 or self.spec.device_share > 0) and self.run is not None and not self.run.done()

    def kill(self, reason: str) -> None:
        """Ends a process that is over a limit, at once."""
        if self.child is not None and not self.ended:
            self.stop_reason = reason
            self.child.kill()
