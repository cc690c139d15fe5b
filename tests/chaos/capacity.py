"""How much of what the members could do that outlived each fault went into updates that counted.

Between two updates, the *surviving capacity* is the time that passed, times the members of the generation before that
are in the one after, too: they lived and were in the group all the while. What was *used* of it is all of it where
nothing happened. Where the generation changed, or a fault lasted, it is what an update of as many members takes when
nothing happens: the rest went away while the fault was not noticed yet, a step was computed again, the next
generation was formed, or a newcomer fetched the model.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

_FORMED = re.compile(
    r"(?P<at>\S+) \[.*?\] generation (?P<number>\d+): (?P<count>\d+) members?"
    r"(?:; joined: (?P<joined>[^;=]+?))?(?:; left: (?P<left>[^;=]+?))?\s+event_kind="
)


@dataclass(frozen=True)
class Update:
    """An update of a group's model.

    Attributes:
        at: when the first member had made it, in seconds since 1970.
        version: that it made.
        records: in it.
    """

    at: float
    version: int
    records: int


@dataclass(frozen=True)
class Generation:
    """A generation of a group.

    Attributes:
        at: when it was formed, in seconds since 1970.
        members: who is in it.
    """

    at: float
    members: frozenset[str]


@dataclass(frozen=True)
class Capacity:
    """Seconds of surviving members.

    Attributes:
        usual: what an update takes when nothing happens, in seconds, by how many members there are.
        had: seconds of members that survived.
        lost: seconds of those that went away.
        changes: how many updates were the first after a change, or came while a fault lasted.
    """

    usual: dict[int, float]
    had: float
    lost: float
    changes: int

    @property
    def share(self) -> float:
        """How much was used of what there was."""
        return 1.0 - self.lost / self.had if self.had else 0.0

    def told(self) -> str:
        """In words."""
        each = ", ".join(f"{seconds:.3f} s with {count}" for count, seconds in sorted(self.usual.items()))
        return (
            f"{self.lost:.1f} of {self.had:.1f} seconds of surviving members went away in {self.changes} updates; "
            f"an update takes {each}"
        )


def read_updates(job_dir: Path) -> list[Update]:
    """The updates that members wrote in their traces that they made, by time."""
    lines = defaultdict(list)
    for path in (job_dir / "traces").glob("*.jsonl"):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            # After every member was lost the version is made again, under another lease.
            lines[line["token"], line["version"]].append((line["at"], line["end"] - line["start"]))
    updates = [
        Update(min(told)[0], version, sum(records for _, records in told)) for (_, version), told in lines.items()
    ]
    return sorted(updates, key=lambda one: one.at)


def read_generations(job_dir: Path) -> list[Generation]:
    """The generations that masters wrote in their logs that they formed, by time."""
    found = []
    for path in (job_dir / "logs").glob("master-*.log"):
        found += [told for text in path.read_text().splitlines() if (told := _FORMED.match(text)) is not None]
    generations: list[Generation] = []
    for told in sorted(found, key=lambda one: int(one["number"])):
        joined, left = (frozenset((told[name] or "").split(", ")) - {""} for name in ("joined", "left"))
        before = generations[-1].members if generations else frozenset()
        # A master that found no group names all of its first one.
        members = joined if len(joined) == int(told["count"]) else (before - left) | joined
        assert len(members) == int(told["count"]), f"{told[0]}: before it were {sorted(before)}"
        generations.append(Generation(datetime.fromisoformat(told["at"]).timestamp(), members))
    return generations


def capacity(
    updates: Sequence[Update], generations: Sequence[Generation], faults: Sequence[tuple[float, float]] = ()
) -> Capacity:
    """What members that survived did of what they could have done.

    Args:
        updates: by time.
        generations: by time.
        faults: when each fault began and ended, in seconds since 1970.
    """
    quiet: dict[int, list[float]] = defaultdict(list)
    disturbed: list[tuple[int, int, float]] = []
    had = 0.0
    for before, after in pairwise(updates):
        passed = after.at - before.at
        here = [one for one in generations if one.at <= after.at]
        since = max((number for number, one in enumerate(here) if one.at <= before.at), default=0)
        if not here:
            continue
        survivors = len(frozenset.intersection(*(one.members for one in here[since:])))
        count = len(here[-1].members)
        had += survivors * passed
        if len(here) - 1 > since or any(begin <= after.at and before.at <= end for begin, end in faults):
            disturbed.append((survivors, count, passed))
        else:
            quiet[count].append(passed)
    usual = {count: statistics.mean(each) for count, each in quiet.items()}
    lost = sum(
        survivors * max(0.0, passed - usual.get(count, 0.0)) for survivors, count, passed in disturbed if survivors
    )
    return Capacity(usual, had, lost, len(disturbed))


def thrown_away(updates: Sequence[Update]) -> int:
    """Records of updates that were made again, since nobody was left who had the model."""
    newest = {one.version: one for one in updates}
    return sum(one.records for one in updates) - sum(one.records for one in newest.values())
