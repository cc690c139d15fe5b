"""The parameter servers of a job: who lives, what they hold, and when all must go back to one checkpoint."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from elasticdl_core.ports.launcher import ProcessState, ProcessStatus, Role
from elasticdl_core.process_life import EndCause, cause_of_exit
from elasticdl_master.state.events import ServerSeen
from elasticdl_master.state.instructions import Instruction, LaunchServer, TerminateServer
from elasticdl_master.state.limits import Limits
from elasticdl_master.state.lives import ProcessLives


class Phase(enum.StrEnum):
    """Phases of the PS together."""

    STARTING = "starting"
    RESTORING = "restoring"
    READY = "ready"
    STOPPED = "stopped"


@dataclass
class ServerInstance:
    """One PS."""

    index: int
    incarnation: int
    alive: bool = False
    answers: bool = False
    initialized: bool = False
    version: int = 0
    rows: int = 0
    bytes: int = 0
    records: int = 0
    load: float = 0.0
    launch_at: float = 0.0
    reached: bool = False
    running_since: float | None = None
    silent_since: float | None = None
    stuck: str = ""
    told_to_leave: bool = False

    @property
    def state(self) -> str:
        """For the job's status."""
        if self.answers:
            return "ready" if self.initialized else "empty"
        if self.alive or self.incarnation < 0:
            return "starting"
        return "stopped" if self.told_to_leave else "lost"


class ServerPool:
    """All PS of a job.

    Args:
        count: how many.
        limits: times and budgets.
        memory_mib: memory limit of each; 0 for none.
        first_incarnation: incarnation of a PS that was never seen.
        generation: the first generation that workers are told.
        lives: hears what becomes of each.
    """

    def __init__(
        self,
        count: int,
        limits: Limits,
        memory_mib: int,
        first_incarnation: int = 0,
        generation: int = 1,
        lives: ProcessLives | None = None,
    ) -> None:
        self.limits = limits
        self._lives = lives or ProcessLives()
        self.memory_mib = memory_mib
        self._asked_memory_mib = memory_mib
        self.generation = generation
        self.phase = Phase.STARTING
        self.servers = [ServerInstance(index, -1) for index in range(count)]
        self.crashes = 0
        self._losses = 0
        self._first_incarnation = first_incarnation
        self.ever_lost = False

    @property
    def ready(self) -> bool:
        """Whether workers may use them."""
        return self.phase is Phase.READY

    @property
    def initialized(self) -> bool:
        """Whether all hold a model."""
        return self.ready and all(server.initialized for server in self.servers)

    @property
    def version(self) -> int:
        """The model version: that of the first PS."""
        return self.servers[0].version

    @property
    def all_answer(self) -> bool:
        """Whether every PS answers its status call."""
        return all(server.answers for server in self.servers)

    @property
    def all_gone(self) -> bool:
        """Whether no PS process is left."""
        return not any(server.alive for server in self.servers)

    def adopt(self, incarnations: Mapping[int, int]) -> bool:
        """Whether exactly the PS that an earlier master had ready are alive; if so they are ready again."""
        same = all(server.alive and incarnations.get(server.index) == server.incarnation for server in self.servers)
        if same:
            self.phase = Phase.READY
            for server in self.servers:
                server.reached = True
        return same

    def process(self, status: ProcessStatus, now: float) -> ServerInstance | None:
        """Takes in how a process stands; returns the PS if it just died."""
        server = self.servers[status.id.index] if status.id.index < len(self.servers) else None
        if server is None or status.id.incarnation < server.incarnation:
            return None
        if status.id.incarnation > server.incarnation:
            server.incarnation = status.id.incarnation
            self._forget(server)
        was_alive = server.alive
        server.alive = status.state is not ProcessState.EXITED
        if status.state is ProcessState.RUNNING and server.running_since is None:
            server.running_since = now
        if server.alive:
            return None
        self._tell_end(server, status)
        server.answers = server.initialized = False
        return server if was_alive else None

    def _tell_end(self, server: ServerInstance, status: ProcessStatus) -> None:
        if server.told_to_leave:
            cause = EndCause.FINISHED if status.exit_code == 0 else EndCause.STOPPED
        else:
            cause = EndCause.KILLED if server.stuck else cause_of_exit(status)
        key = (Role.PS, server.index, server.incarnation)
        self._lives.ended(*key, cause, status, announce=server.told_to_leave, message=server.stuck)

    def lost(self, server: ServerInstance, status: ProcessStatus, now: float, *, of_itself: bool) -> str:
        """Notes a death, and counts it if the process died of itself. Returns why the job must fail, or nothing."""
        self.crashes += of_itself
        self._losses += 1
        self.ever_lost = True
        server.launch_at = now + min(10.0, 0.25 * 2.0 ** min(self._losses - 1, 10))
        if status.reason == "oom_killed" and self.memory_mib:
            most = int(self._asked_memory_mib * self.limits.memory_limit)
            if self.memory_mib >= most:
                return f"a parameter server runs out of memory, even with {self.memory_mib} MiB"
            self.memory_mib = min(most, int(self.memory_mib * self.limits.memory_growth))
        if self.crashes > self.limits.server_crashes:
            return f"parameter servers were lost {self.crashes} times without any progress"
        return ""

    def forgive(self) -> None:
        """Forgets the deaths until now."""
        self.crashes = self._losses = 0

    def restart(self) -> None:
        """Declares the model on the PS void: they come back, together, in a new generation."""
        self.phase = Phase.STARTING
        self.generation += 1

    def reconcile(self, now: float) -> list[Instruction]:
        """Launches the PS that are not there."""
        out: list[Instruction] = []
        for server in self.servers:
            if not server.alive and now >= server.launch_at and self.phase is not Phase.STOPPED:
                server.incarnation = max(server.incarnation + 1, self._first_incarnation)
                self._forget(server)
                server.alive = True
                self._lives.launched(Role.PS, server.index, server.incarnation)
                out.append(LaunchServer(server.index, server.incarnation, self.memory_mib))
        return out

    def wipe(self) -> list[Instruction]:
        """Stops every PS so that all come back empty."""
        out: list[Instruction] = []
        for server in self.servers:
            if server.alive:
                out.append(self._terminate(server, 0.0))
            server.alive = server.answers = server.initialized = False
            server.version = 0
        return out

    def stop(self, grace_s: float) -> list[Instruction]:
        """Stops every PS for good."""
        self.phase = Phase.STOPPED
        return [self._terminate(server, grace_s) for server in self.servers if server.alive]

    def _terminate(self, server: ServerInstance, grace_s: float) -> Instruction:
        server.told_to_leave = True
        self._lives.drained(Role.PS, server.index, server.incarnation)
        return TerminateServer(server.index, server.incarnation, grace_s)

    def seen(self, answer: ServerSeen) -> bool:
        """Takes in an answer to a status call; returns whether the PS was silent before."""
        server = self.servers[answer.index]
        if server.incarnation != answer.incarnation or not server.alive:
            return False
        was_silent, server.silent_since = server.silent_since is not None and server.reached, None
        server.answers, server.initialized, server.reached = True, answer.initialized, True
        self._lives.ready(Role.PS, server.index, server.incarnation)
        server.version, server.rows, server.bytes = answer.version, answer.rows, answer.bytes
        server.records, server.load = answer.records, answer.load
        return was_silent

    def hold(self, version: int) -> None:
        """All hold a checkpoint of a version."""
        for server in self.servers:
            server.initialized, server.version = True, version

    def unanswered(self, index: int, incarnation: int, now: float) -> ServerInstance | None:
        """A status call had no answer. Returns the PS if that is so for too long; ``stuck`` says for how long.

        Only calls that failed count as silence: a master that was itself stopped for a while has made none.
        """
        server = self.servers[index]
        if server.incarnation != incarnation or not server.alive or server.stuck or server.running_since is None:
            return None
        if server.silent_since is None:
            server.silent_since = now
        if server.reached:
            since, allowed, what = server.silent_since, self.limits.server_silent_s, ""
        else:
            since, allowed, what = server.running_since, self.limits.server_start_s, " after its start"
        if now - since <= allowed:
            return None
        server.stuck = f"did not answer for {now - since:.0f} s{what}"
        return server

    @property
    def silent(self) -> bool:
        """Whether a PS that answered before does not answer now."""
        return any(server.alive and server.reached and server.silent_since is not None for server in self.servers)

    @staticmethod
    def _forget(server: ServerInstance) -> None:
        """Another process takes the place of a PS: nothing is known of it yet."""
        server.alive = server.answers = server.initialized = server.reached = False
        server.running_since = server.silent_since = None
        server.stuck, server.told_to_leave = "", False
