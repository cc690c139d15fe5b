"""The lives of the job's PS and workers, for whoever wants to know later: told as they happen, each stage once.

The pools say what they do and what they see; nothing is decided here. The times are those at which the instructions
are carried out. The api adds each to what it knows, so that a stage that a later master tells again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from elasticdl_core.ports.launcher import ProcessState, ProcessStatus, Role
from elasticdl_core.process_life import EndCause, LifeStage, cause_unseen, describe_exit
from elasticdl_master.state.instructions import Instruction, PostLife, PostLiving

Key = tuple[Role, int, int]
"""Role, index and incarnation of a process."""


class ProcessLives:
    """Tells of each process when it is launched, ready, told to leave, and how it ended.

    Args:
        roles: the processes that are told of.
    """

    def __init__(self, roles: Iterable[Role] = (Role.PS, Role.WORKER)) -> None:
        self._roles = frozenset(roles)
        self._reached: dict[Key, LifeStage] = {}
        self._told: list[Instruction] = []

    def take(self) -> list[Instruction]:
        """Returns the reports since the last time."""
        taken, self._told = self._told, []
        return taken

    def begin(self, found: Iterable[ProcessStatus]) -> None:
        """A master takes the job: whatever else was said to live than what it finds is gone.

        Of what it finds ended it is told how: so that is not counted as gone without a word.
        """
        there = [status for status in found if status.id.role in self._roles]
        self._told.append(PostLiving(tuple((one.id.role, one.id.index, one.id.incarnation) for one in there)))
        for status in there:
            key = (status.id.role, status.id.index, status.id.incarnation)
            if status.state is ProcessState.EXITED:
                self.ended(*key, cause_unseen(status), status, announce=True)
            else:
                self.launched(*key)

    def launched(self, role: Role, index: int, incarnation: int) -> None:
        """It is launched, or found."""
        self._tell((role, index, incarnation), LifeStage.LAUNCHED)

    def ready(self, role: Role, index: int, incarnation: int) -> None:
        """It answers, or has registered."""
        self._tell((role, index, incarnation), LifeStage.READY)

    def drained(self, role: Role, index: int, incarnation: int) -> None:
        """It is told to leave."""
        self._tell((role, index, incarnation), LifeStage.DRAINED)

    def ended(
        self,
        role: Role,
        index: int,
        incarnation: int,
        cause: EndCause,
        status: ProcessStatus,
        *,
        announce: bool,
        message: str = "",
    ) -> None:
        """It has ended.

        Args:
            role: master, PS or worker.
            index: which of its role.
            incarnation: which launch of it.
            cause: why.
            status: as its launcher tells it.
            announce: whether nothing else tells the user.
            message: more than its exit says.
        """
        words = message or ("" if cause in _AS_IT_SHOULD else describe_exit(status))
        self._tell((role, index, incarnation), LifeStage.ENDED, cause, status.exit_code, words, announce=announce)

    def _tell(
        self,
        key: Key,
        stage: LifeStage,
        cause: EndCause | None = None,
        exit_code: int | None = None,
        message: str = "",
        *,
        announce: bool = True,
    ) -> None:
        before = self._reached.get(key)
        if key[0] not in self._roles or (before is not None and _ORDER.index(stage) <= _ORDER.index(before)):
            return
        self._reached[key] = stage
        if stage is LifeStage.ENDED:
            self._forget_oldest()
        self._told.append(PostLife(*key, stage, cause, exit_code, message, announce))

    def _forget_oldest(self) -> None:
        """Keeps the book small in a job whose workers come and go for months."""
        if len(self._reached) > _MOST_KNOWN:
            over = [key for key, stage in self._reached.items() if stage is LifeStage.ENDED]
            for key in over[: len(over) // 2]:
                del self._reached[key]


_ORDER = tuple(LifeStage)
_MOST_KNOWN = 20_000
_AS_IT_SHOULD = (EndCause.FINISHED, EndCause.DRAINED, EndCause.STOPPED)
