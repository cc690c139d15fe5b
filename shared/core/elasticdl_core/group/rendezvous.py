"""The master's part: generations of the group, and who is in them.

A *generation* is a number and its members, ranked by age. It never changes: who joins, leaves or is lost makes the
next one. A member is *out* of a generation once it says that it is done with it; from then on that generation can
make no step, because a step needs all of its members. So the next one is formed when every member of the present one
is out or lost, and no step counts in two of them.

The model lives in the members alone. A member holds it if it held it when the last generation ended; others get it
from one that does. When nobody does, the model is lost: the master goes back to the last checkpoint, and allows the
group to be *founded* on that, or on initial values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SILENT_S = 0.9
"""A member of which nothing was heard for so long is taken for lost; it says something several times in that time."""
LAST_SILENT_S = 15.0
"""The same where nobody else holds the model: without it the job goes back to its last checkpoint, and a pause costs
less."""
NEWCOMER_SILENT_S = 5.0
STALLED_S = 0.4
"""A pause between two looks at the clock that says that the master itself stood still."""
FORMING_S = 15.0
"""Members that are out of a generation, and do not come to the next one, are lost after that."""
PATIENCE_S = 0.3
"""After the first member is out of a generation that is to change, the others get so long to come by themselves."""
BLAMED_S = 0.3
"""A member that others saw go is lost after so long without a word."""
TAKEOVER_S = 10.0
"""How long a new master waits for the members that the one before knew."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """The message of a member, several times a second.

    Attributes:
        owner: its name.
        finished: the last generation that it is done with; 0 for none.
        holds: whether it holds the model.
        leaving: whether it wants to leave.
        suspects: members that seem to have ended the generation that it is done with; itself if it holds another
            model than the others.
    """

    owner: str
    finished: int = 0
    holds: bool = False
    leaving: bool = False
    suspects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Orders:
    """The orders of a member.

    Attributes:
        generation: the present one.
        members: by rank.
        base: the generation at whose end a member must have held the model for that to be worth anything; 0: nobody
            holds it, the first member founds it.
        is_over: whether the generation is over: stop what you do in it.
        regroup: whether its members shall end it between two steps.
    """

    generation: int
    members: tuple[str, ...]
    base: int
    is_over: bool
    regroup: bool


@dataclass
class _Participant:
    """Somebody who is, or wants to be, in the group."""

    age: int
    heard: float
    finished: int = 0
    holds: bool = False
    leaving: bool = False
    out_since: float | None = None


@dataclass(frozen=True)
class RendezvousRecord:
    """The facts that the next master needs.

    Attributes:
        generation: the present one.
        members: those of it that were not lost, by rank.
        is_over: whether it is over.
        base: as in ``Orders``.
        established: whether a member ever held the model.
        may_found: whether the group may be founded.
        ages: of members and those who wait.
    """

    generation: int = 0
    members: tuple[str, ...] = ()
    is_over: bool = False
    base: int = 0
    established: bool = False
    may_found: bool = False
    ages: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "generation": self.generation,
            "members": list(self.members),
            "is_over": self.is_over,
            "base": self.base,
            "established": self.established,
            "may_found": self.may_found,
            "ages": dict(self.ages),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RendezvousRecord:
        """Reads what ``to_json`` wrote."""
        ages = {str(owner): int(age) for owner, age in data["ages"].items()}
        members = tuple(str(one) for one in data["members"])
        return cls(
            generation=int(data["generation"]),
            members=members,
            is_over=bool(data["is_over"]),
            base=int(data["base"]),
            established=bool(data["established"]),
            may_found=bool(data["may_found"]),
            ages=ages,
        )


class Rendezvous:
    """Forms one generation after the other.

    Args:
        first: generations of this master are at least this, so that no two masters give one number twice.

    Attributes:
        generation: the present one; 0 before the first.
        members: its members by rank.
        lost_model: whether nobody holds the model any more that the group once held.
        news: why the generations changed, for people; whoever tells them empties it.
    """

    def __init__(self, first: int = 1) -> None:
        self.generation = 0
        self.members: tuple[str, ...] = ()
        self.lost_model = False
        self.news: list[str] = []
        self._next = first
        self._base = 0
        self._established = False
        self._may_found = False
        self._is_over = False
        self._attendants: dict[str, _Participant] = {}
        self._gone: set[str] = set()
        self._ages = 0
        self._first_out: float | None = None
        self._looked: float | None = None
        self._blamed: set[str] = set()
        self._dropped: set[str] = set()

    # -- what is left to the next master ---------------------------------------------------------------------------

    def record(self) -> RendezvousRecord:
        """The facts that the next master needs; it must have them before a member hears of a new generation."""
        return RendezvousRecord(
            generation=self.generation,
            members=tuple(self._present),
            is_over=self._is_over,
            base=self._base,
            established=self._established,
            may_found=self._may_found,
            ages={owner: self._attendants[owner].age for owner in self._present},
        )

    def restore(self, record: RendezvousRecord, now: float) -> None:
        """Goes on where an earlier master was: its members have a while to be heard of."""
        self.generation, self.members, self._is_over = record.generation, record.members, record.is_over
        self._base, self._established, self._may_found = record.base, record.established, record.may_found
        self._next = max(self._next, record.generation + 1)
        self._ages = max(record.ages.values(), default=0)
        self._attendants = {
            owner: _Participant(record.ages.get(owner, 0), now + TAKEOVER_S - SILENT_S) for owner in record.members
        }

    # -- what is heard ---------------------------------------------------------------------------------------------

    def meet(self, meeting: Meeting, now: float) -> None:
        """Takes in what a member says."""
        if meeting.owner in self._gone:
            return
        one = self._attendants.get(meeting.owner)
        if one is None:
            self._ages += 1
            one = self._attendants[meeting.owner] = _Participant(self._ages, now)
        one.heard = now
        one.leaving = one.leaving or meeting.leaving
        one.holds = meeting.holds
        if meeting.finished > one.finished:
            one.finished = meeting.finished
        is_member = self._belongs(meeting.owner)
        if is_member and meeting.holds and one.finished < self.generation:
            self._established = True
        if is_member and self._is_out(meeting.owner) and one.out_since is None:
            one.out_since = now
            if self._first_out is None:
                self._first_out = now
            if meeting.suspects:
                self._blamed |= set(meeting.suspects)
                others = [one for one in meeting.suspects if one != meeting.owner]
                if len(others) < len(meeting.suspects):
                    self.news.append(f"{meeting.owner} differs from the others, and fetches their model")
                self._end(f"{meeting.owner} lost {', '.join(others)}" if others else "")
        self._advance(now)

    def lost(self, owner: str, why: str, now: float) -> None:
        """A member's process has ended, or it is being replaced: it is never heard of again."""
        self._gone.add(owner)
        self._drop(owner, why)
        self._advance(now)

    def look(self, now: float) -> None:
        """Looks who fell silent; to be called several times a second."""
        stood_still = self._looked is not None and now - self._looked > STALLED_S
        if stood_still and self._looked is not None:
            for one in self._attendants.values():
                one.heard += now - self._looked
        self._looked = now
        for owner, one in list(self._attendants.items()):
            if now - one.heard > self._patience(owner, now):
                self._drop(owner, f"{owner} was not heard of for {now - one.heard:.1f} s")
        if self._first_out is not None and now - self._first_out > PATIENCE_S and not self._is_over:
            self._end("")
        if self._first_out is not None and now - self._first_out > FORMING_S:
            for owner in self._present:
                if not self._is_out(owner):
                    self._drop(owner, f"{owner} did not come to the next generation")
        self._advance(now)

    def found(self, now: float) -> None:
        """Allows the group to be founded: on what, the runner tells the first member."""
        self._may_found, self.lost_model, self._established = True, False, False
        self._base = 0
        self._advance(now)

    def forbid(self) -> None:
        """Makes what the members hold void: nobody forms a group until it may be founded."""
        self._may_found = self._established = False
        self.lost_model = True
        self._end("what the group holds is void")

    # -- questions -------------------------------------------------------------------------------------------------

    @property
    def established(self) -> bool:
        """Whether a member of the group holds the model."""
        return self._established and not self.lost_model

    def dismisses(self, owner: str) -> bool:
        """Whether a member that wants to leave may go now."""
        one = self._attendants.get(owner)
        if one is None or not self._belongs(owner):
            return True
        staying = [other for other in self._present if not self._attendants[other].leaving]
        return one.leaving and self._is_out(owner) and not staying and not self.waiting

    def holds(self, owner: str) -> bool:
        """Whether a member of the present generation speaks and holds the model."""
        return owner in self._attendants and self._belongs(owner) and self._attendants[owner].holds

    def orders(self) -> Orders:
        """The orders for every member."""
        return Orders(self.generation, self.members, self._base, self._is_over, self._regroup)

    @property
    def waiting(self) -> list[str]:
        """The members that wait to be let in, by age."""
        found = [owner for owner, one in self._attendants.items() if not self._belongs(owner) and not one.leaving]
        return sorted(found, key=lambda owner: self._attendants[owner].age)

    # -- inside ----------------------------------------------------------------------------------------------------

    @property
    def _present(self) -> list[str]:
        return [owner for owner in self.members if owner in self._attendants and owner not in self._dropped]

    def _belongs(self, owner: str) -> bool:
        """Whether somebody is in the present generation, and was not lost since it was formed."""
        return owner in self.members and owner not in self._dropped

    @property
    def _regroup(self) -> bool:
        if not self.generation or self._is_over or not self._present:
            return False
        return bool(self.waiting) or any(self._attendants[owner].leaving for owner in self._present)

    def _patience(self, owner: str, now: float) -> float:
        """The time that a member may be silent."""
        if not self._belongs(owner):
            return NEWCOMER_SILENT_S
        if self._established and self._attendants[owner].holds:
            others = [self._attendants[other] for other in self._present if other != owner]
            if not any(one.holds and now - one.heard <= SILENT_S for one in others):
                return LAST_SILENT_S
        return BLAMED_S if owner in self._blamed and not self._is_out(owner) else SILENT_S

    def _is_out(self, owner: str) -> bool:
        return self._attendants[owner].finished >= self.generation

    def _end(self, why: str) -> None:
        if self.generation and not self._is_over:
            self._is_over = True
            if why:
                self.news.append(why)

    def _drop(self, owner: str, why: str) -> None:
        if self._attendants.pop(owner, None) is not None and self._belongs(owner):
            # It may come back as a newcomer; what it holds is not what counts any more.
            self._dropped.add(owner)
            self._end("")
            self.news.append(why)

    def _advance(self, now: float) -> None:
        present = self._present
        if any(not self._is_out(owner) for owner in present):
            return
        if self.generation and present and not self._is_over and not self._regroup and self._first_out is None:
            return
        # All members that live are out of the present generation, or there never was one.
        staying = [owner for owner in present if not self._attendants[owner].leaving]
        held = self._established and any(self._attendants[owner].holds for owner in present)
        if self._established and not held:
            self.lost_model, self._established = True, False
        if self.lost_model:
            return
        if not held and not self._may_found:
            return
        if held and not any(self._attendants[owner].holds for owner in staying):
            # Those who hold the model all leave: they hand it on first, if there is anybody.
            if not self.waiting and not staying:
                return
            staying = present
        chosen = sorted({*staying, *self.waiting}, key=lambda owner: self._attendants[owner].age)
        if not chosen:
            return
        self._form(tuple(chosen), base=self.generation if held else 0)

    def _form(self, members: tuple[str, ...], base: int) -> None:
        before = set(self.members)
        self.generation, self._next = max(self._next, self.generation + 1), max(self._next, self.generation + 1) + 1
        self.members, self._base = members, base
        self._is_over, self._first_out = False, None
        self._blamed.clear()
        self._dropped.clear()
        for owner in members:
            self._attendants[owner].out_since = None
        came, went = sorted(set(members) - before), sorted(before - set(members))
        words = f"generation {self.generation}: {len(members)} member{'s' if len(members) != 1 else ''}"
        if came:
            words += f"; joined: {', '.join(came)}"
        if went:
            words += f"; left: {', '.join(went)}"
        self.news.append(words)
