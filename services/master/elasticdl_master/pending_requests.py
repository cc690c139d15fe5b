"""Requests of workers that wait for the queue, and what comes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from elasticdl_core.task import Lease, Task
from elasticdl_master.queue.port import Outcome, TaskRequest
from elasticdl_master.state.lifecycle import Directive


@dataclass(frozen=True, slots=True)
class DispatchedTask:
    """A task, and the lease under which a worker has it."""

    task: Task
    lease: Lease


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """The answer to a worker's request.

    Attributes:
        leases: what was leased to it.
        leased: the tasks of these; none for the group, whose service tells them.
        directive: what it shall do if there are none.
        outcome: of its report; None if it made none.
    """

    leases: Sequence[Lease] = ()
    leased: Sequence[DispatchedTask] = ()
    directive: Directive = Directive.WAIT
    outcome: Outcome | None = None


@dataclass(eq=False, slots=True)
class PendingRequest:
    """A request that waits for its reply.

    Attributes:
        request: what the queue is asked.
        answer: what its caller waits for.
        model_version: that the worker has seen.
        reply: once there is one.
        error: in the place of a reply.
    """

    request: TaskRequest
    answer: asyncio.Future[WorkerReply]
    model_version: int = 0
    reply: WorkerReply | None = None
    error: Exception | None = None

    def tell(self) -> None:
        """Tells whoever still waits for it."""
        if self.answer.done():
            return
        if self.error is not None:
            self.answer.set_exception(self.error)
        elif self.reply is not None:
            self.answer.set_result(self.reply)
        else:
            self.answer.cancel()
