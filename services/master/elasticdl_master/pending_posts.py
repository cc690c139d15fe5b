"""Posts that the api has not taken yet: kept in the queue's store until then, for the next master to send.

A takeover record says what was decided, and what was decided may wait here for as long as the api is away. Telling
again changes nothing: evaluations have numbers, artifacts names, lives stages, losses versions and rows
of series spans. (An event is told
twice if its master died in the moment between.) Done-marks are not kept: the queue's done tasks say the same.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import structlog

from elasticdl_core.ports.launcher import Role
from elasticdl_core.process_life import EndCause, LifeStage
from elasticdl_core.series import SeriesRow
from elasticdl_master.state import instructions as do

Told: TypeAlias = do.PostEvaluation | do.PostArtifact | do.PostEvent | do.PostLife | do.PostLosses | do.PostSeries
_KINDS: Mapping[str, type[Any]] = {
    "evaluation": do.PostEvaluation,
    "artifact": do.PostArtifact,
    "event": do.PostEvent,
    "life": do.PostLife,
    "losses": do.PostLosses,
    "series": do.PostSeries,
}
KEPT = tuple(_KINDS.values())
"""The instructions that are kept until they are carried out."""
_MOST: Mapping[type[Any], int] = {do.PostLosses: 5_000, do.PostEvent: 10_000, do.PostSeries: 1_000}
"""Posts of a kind that are kept while the api is away; the oldest go first. Of the others there are few."""
_NAMES = {kind: name for name, kind in _KINDS.items()}
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Post:
    """Something to tell.

    Attributes:
        number: under which it is kept.
        at: when it came up, in seconds since the epoch.
        what: it.
    """

    number: int
    at: float
    what: Told

    def to_text(self) -> str:
        """The post as it is kept."""
        data = dataclasses.asdict(self.what)
        return json.dumps({"kind": _NAMES[type(self.what)], "at": self.at, "data": data}, default=str)


class PendingPosts:
    """The posts of one job that the api has not taken.

    Args:
        found: what earlier masters left, by number; what cannot be read, of another version, is left out.
        clock: seconds since the epoch.
    """

    def __init__(self, found: Mapping[int, str], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._posts: dict[int, Post] = {}
        self._last = max(found, default=0)
        for number in sorted(found):
            try:
                self._posts[number] = _read(number, found[number])
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                _log.warning("what the last master left to be told cannot be read", error=repr(error))
        self._counts = Counter(type(post.what) for post in self._posts.values())

    def add(self, what: Told) -> Post:
        """Gives something to tell its number."""
        self._last += 1
        post = self._posts[self._last] = Post(self._last, self._clock(), what)
        self._counts[type(what)] += 1
        return post

    def surplus(self) -> list[int]:
        """Forgets the oldest posts of kinds that are beyond their bounds; returns their numbers."""
        over = {kind: self._counts[kind] - most for kind, most in _MOST.items() if self._counts[kind] > most}
        found: list[int] = []
        for number, post in self._posts.items() if over else ():
            if over.get(type(post.what), 0) > 0:
                over[type(post.what)] -= 1
                found.append(number)
        self.drop(found)
        return found

    def drop(self, numbers: Iterable[int]) -> None:
        """These were told."""
        for number in numbers:
            post = self._posts.pop(number, None)
            if post is not None:
                self._counts[type(post.what)] -= 1

    def left(self) -> list[Post]:
        """All of them, oldest first."""
        return list(self._posts.values())

    def texts(self) -> dict[int, str]:
        """All of them, as they are kept."""
        return {number: post.to_text() for number, post in self._posts.items()}

    def evaluations(self) -> list[do.PostEvaluation]:
        """The evaluations among them: they are as good as published."""
        return [post.what for post in self._posts.values() if isinstance(post.what, do.PostEvaluation)]


def _read(number: int, text: str) -> Post:
    told = json.loads(text)
    data = dict(told["data"])
    kind = _KINDS[told["kind"]]
    if kind is do.PostLife:
        data["role"], data["stage"] = Role(data["role"]), LifeStage(data["stage"])
        data["cause"] = EndCause(data["cause"]) if data["cause"] else None
    if kind is do.PostLosses:
        data["losses"] = tuple((int(version), float(loss)) for version, loss in data["losses"])
    if kind is do.PostSeries:
        data["rows"] = tuple(SeriesRow(**row) for row in data["rows"])
    return Post(number, float(told["at"]), kind(**data))
