"""The numbers that the state machine goes by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds, budgets in counts.

    Attributes:
        lease_s: how long a lease lasts unless a heartbeat extends it.
        heartbeat_s: how often workers send heartbeats.
        drain_s: how long a worker told to leave has for its minibatch.
        leave_s: how long a process told to stop has before it is killed.
        start_s: how long a worker may take from its start to its first step.
        silent_s: how long a worker's heartbeats may be missing before it is replaced.
        stuck_s: least time without a record of a task in hand after which a worker is replaced; the job's
            ``progress_timeout_s`` where it is run.
        stuck_steps: the same in multiples of its slowest usual step (95th percentile).
        stuck_workers: workers that one task has held up that condemn it.
        export_s: how long a task that is no pass over records may take.
        user_failures: failures of user code on one task that condemn it.
        infrastructure_failures: failures of one task for other reasons than user code that condemn it.
        crashes: crashes of a worker in a row, without any task done by anybody, that condemn the job.
        kills: the same for kills from outside; what is lost with its machine, or sent away in order, counts nowhere.
        server_silent_s: how long a PS that has answered before may miss its status calls before it is replaced.
        server_start_s: how long a PS may take from its start to its first answer.
        server_crashes: losses of PS, without a record more than ever before, that condemn the job.
        memory_growth: by how much memory grows after a process was killed for it.
        memory_limit: how many times the asked memory a process may get that way.
        recovery_s: how often to checkpoint at least, for the job's own recovery; 0 for never.
        depart_s: how long workers have for their minibatch when the launcher goes down.
        finish_s: how long workers have to leave once all is done.
    """

    lease_s: float = 15.0
    heartbeat_s: float = 2.0
    drain_s: float = 25.0
    leave_s: float = 5.0
    start_s: float = 600.0
    silent_s: float = 60.0
    stuck_s: float = 60.0
    stuck_steps: float = 10.0
    stuck_workers: int = 3
    export_s: float = 1800.0
    user_failures: int = 3
    infrastructure_failures: int = 10
    crashes: int = 3
    kills: int = 20
    server_silent_s: float = 30.0
    server_start_s: float = 600.0
    server_crashes: int = 5
    memory_growth: float = 1.5
    memory_limit: float = 4.0
    recovery_s: float = 30.0
    depart_s: float = 8.0
    finish_s: float = 10.0
