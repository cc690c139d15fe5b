"""Divides surplus slots among the jobs of one team and tier by marginal value, against the cost of changing.

Each job's value is concave in its workers, so the ideal division has one price per slot: every job takes workers
as long as the next is worth more than the price. A job keeps the size that it has unless the ideal one, at that
price, is better by more than a change costs. What then does not add up is settled at the cheapest places, and
the outcome replaces the present division only if it is worth its changes as a whole.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from elasticdl_core.scheduling.policies.candidate import Candidate, GoodputSettings, rank

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class MarketDivision:
    """An outcome.

    Attributes:
        sizes: of the market's members, in their order.
        ideal: what they would be if changes were free.
        surplus: slots above the minimums that the sizes take.
    """

    sizes: list[int]
    ideal: list[int]
    surplus: float


class Market:
    """Jobs that share a number of slots. What depends on the jobs alone is worked out once, when it is needed.

    Args:
        members: the jobs, each with its minimum already. Ranks and weights are given to them here.
        settings: the policy's numbers.
        drain_s: in which the whole cluster could do all work present.
    """

    def __init__(self, members: Sequence[Candidate], settings: GoodputSettings, drain_s: float = math.inf) -> None:
        self.members = members
        rank(members, settings, drain_s)
        # Down to this time no member is on the critical path.
        self._calm_s = max(c.fastest_s for c in members) if settings.critical else 0.0
        self._drain_s = drain_s
        self.demand = sum([c.room for c in members])
        self._steps: list[tuple[float, int, int]] | None = None
        self._spent: list[float] = []
        self._budget: float | None = None
        self._division = MarketDivision([], [], 0.0)

    def holds(self, members: Sequence[Candidate], drain_s: float) -> bool:
        """Whether a new market of these members would be like this one."""
        if self.members is not members and self.members != members:
            return False
        return drain_s == self._drain_s or min(drain_s, self._drain_s) >= self._calm_s

    def divide(self, budget: float) -> MarketDivision:
        """Divides ``budget`` slots above the minimums; negative amounts count as none."""
        budget = max(budget, 0.0)
        if budget != self._budget:
            ideal, price = self._ideal(budget)
            sizes = ideal
            if any(c.current for c in self.members):
                moved = self._with_moves(ideal, price, budget)
                kept = self._with_no_moves(budget)
                sizes = moved if self._gain(kept, moved) > 1e-15 else kept
            self._division = MarketDivision(sizes, ideal, self._surplus(sizes))
            self._budget = budget
        return self._division

    def _prepare(self) -> list[tuple[float, int, int]]:
        """All steps from one corner of a job's curve to the next, the most valuable slot first."""
        if self._steps is None:
            # Columns, and their order by worth, are cheaper than that many rows.
            worths: list[float] = []
            positions: list[int] = []
            corners: list[int] = []
            widths: list[float] = []
            for position, c in enumerate(self.members):
                top = c.top
                if not top:
                    continue
                worths += map((-c.unit / c.cost).__mul__, c.curve.gains[:top])
                positions += (position,) * top
                corners += range(1, top + 1)
                widths += map(c.cost.__mul__, c.curve.widths[:top])
            order = sorted(range(len(worths)), key=worths.__getitem__)
            self._steps = [(worths[i], positions[i], corners[i]) for i in order]
            self._spent = list(itertools.accumulate([widths[i] for i in order]))
        return self._steps

    def _ideal(self, budget: float) -> tuple[list[int], float]:
        """The best division if changes were free, and the price per slot: 0 if none is scarce."""
        if self.demand <= budget + _ROUNDING:
            return [c.curve.corners[c.top] for c in self.members], 0.0
        steps = self._prepare()
        taken = bisect_right(self._spent, budget + _ROUNDING)
        index = [0] * len(self.members)
        for _, position, corner in steps[:taken]:
            index[position] = corner
        sizes = [c.curve.corners[i] for c, i in zip(self.members, index, strict=True)]
        left = budget - (self._spent[taken - 1] if taken else 0.0)
        self._fill(sizes, None, left, start=taken)
        return sizes, -steps[min(taken, len(steps) - 1)][0]

    def _with_moves(self, ideal: list[int], price: float, budget: float) -> list[int]:
        """Moves the jobs for which it pays at that price, then makes the sum fit."""
        sizes = list(ideal)
        touched: set[int] = set()
        for position, c in enumerate(self.members):
            best, current = ideal[position], c.current
            if best == current:
                continue
            if current:
                gain = 0.0 if c.frozen else c.value(best) - c.value(current) - price * c.cost * (best - current)
                if gain <= c.penalty:
                    sizes[position] = current
                    continue
            touched.add(position)
        return self._settle(sizes, touched, budget, grow_others=True)

    def _with_no_moves(self, budget: float) -> list[int]:
        """Leaves the running jobs alone as far as the budget allows; the new ones share what is left."""
        sizes = [c.current or c.curve.corners[0] for c in self.members]
        touched = {position for position, c in enumerate(self.members) if not c.current}
        return self._settle(sizes, touched, budget, grow_others=False)

    def _surplus(self, sizes: list[int]) -> float:
        return sum([c.cost * (size - c.curve.sizes[0]) for c, size in zip(self.members, sizes, strict=True)])

    def _settle(self, sizes: list[int], touched: set[int], budget: float, *, grow_others: bool) -> list[int]:
        left = budget - self._surplus(sizes)
        if left < -_ROUNDING:
            left = self._shed(sizes, touched, left)
        if left > _ROUNDING and grow_others:
            self._fill_by_net_worth(sizes, touched, left)
        elif left > _ROUNDING and touched:
            self._fill(sizes, touched, left)
        return sizes

    def _shed(self, sizes: list[int], touched: set[int], left: float) -> float:
        """Takes slots where they are worth least until nothing is missing; the first change of a job costs extra."""
        members = self.members

        def entry(position: int, missing: float) -> tuple[float, float, str, int] | None:
            c, have = members[position], sizes[position]
            smaller = c.smaller(have)
            if smaller is None:
                return None
            loss = c.density(smaller, have)
            if position not in touched:
                loss += c.penalty / max(min(missing, c.surplus(have)), 1e-9)
            return (loss, -c.job.submitted_at, c.job.id, position)

        heap = [e for position in range(len(members)) if (e := entry(position, -left)) is not None]
        heapq.heapify(heap)
        while heap and left < -_ROUNDING:
            *_, position = heapq.heappop(heap)
            c, have = members[position], sizes[position]
            smaller = c.smaller(have)
            if smaller is None:
                continue
            left += c.surplus(have) - c.surplus(smaller)
            sizes[position] = smaller
            touched.add(position)
            again = entry(position, -left)
            if again is not None:
                heapq.heappush(heap, again)
        return left

    def _fill(self, sizes: list[int], touched: set[int] | None, left: float, *, start: int = 0) -> None:
        """Gives slots to the most valuable steps that fit, of those that change anyway.

        Args:
            sizes: to be raised.
            touched: positions of those that change anyway; None for all.
            left: slots to give.
            start: the first step to look at.
        """
        least = min(c.cost for c in self.members)
        for _, position, corner in itertools.islice(self._prepare(), start, None):
            if left < least - _ROUNDING:
                return
            if touched is not None and position not in touched:
                continue
            c, have = self.members[position], sizes[position]
            if c.curve.corners[corner] <= have:
                continue
            want: int | None = c.curve.corners[corner]
            room = _room(c, have, left)
            if c.cost * (c.curve.corners[corner] - have) > room + _ROUNDING:
                want = _most(c, have, room)
            if want is not None:
                left -= c.cost * (want - have)
                sizes[position] = want

    def _fill_by_net_worth(self, sizes: list[int], touched: set[int], left: float) -> None:
        """Gives slots where they are worth most; an untouched job must gain more than its change costs."""
        members = self.members

        def entry(position: int, room: float) -> tuple[float, float, str, int, int] | None:
            c, have = members[position], sizes[position]
            if position in touched:
                want, cost = _step_up(c, have, _room(c, have, room)), 0.0
            elif c.frozen or have >= c.curve.corners[c.top]:
                return None
            else:
                want, cost = _most(c, have, room), c.penalty
            if want is None:
                return None
            worth = c.density(have, want) - cost / (c.cost * (want - have))
            return (-worth, c.job.submitted_at, c.job.id, position, want) if worth > 0 else None

        heap = [e for position in range(len(members)) if (e := entry(position, left)) is not None]
        heapq.heapify(heap)
        while heap and left > _ROUNDING:
            *_, position, want = heapq.heappop(heap)
            c = members[position]
            need = c.cost * (want - sizes[position])
            fits = need <= left + _ROUNDING
            if fits:
                left -= need
                sizes[position] = want
                touched.add(position)
            again = entry(position, left)
            if again is not None and (fits or again[-1] < want):
                heapq.heappush(heap, again)

    def _gain(self, before: list[int], after: list[int]) -> float:
        """Value per second that one division has over another, the cost of the changes that they take included."""
        total = 0.0
        for c, old, new in zip(self.members, before, after, strict=True):
            if old != new:
                total += c.value(new) - c.value(old)
                if c.current:
                    total += c.penalty * ((old != c.current) - (new != c.current))
        return total


def _room(candidate: Candidate, have: int, left: float) -> float:
    """The slots of those left that a job may take: who changed lately grows no further than it was."""
    if not (candidate.frozen and candidate.current):
        return left
    return min(left, max(candidate.current - have, 0) * candidate.cost)


def _step_up(candidate: Candidate, have: int, room: float) -> int | None:
    """The next corner if it fits, else the best size that does."""
    larger = candidate.larger(have)
    if larger is None or candidate.cost * (larger - have) <= room + _ROUNDING:
        return larger
    return _most(candidate, have, room)


def _most(candidate: Candidate, have: int, room: float) -> int | None:
    """The most valuable size up to the top that fits the room, if it is worth more than ``have``."""
    curve = candidate.curve
    bound = min(have + room / candidate.cost + _ROUNDING, curve.corners[candidate.top])
    corner = curve.corners[bisect_right(curve.corners, bound) - 1]
    best = max(corner, have)
    for size in curve.sizes[bisect_right(curve.sizes, best) : bisect_right(curve.sizes, bound)]:
        if curve.worth(size) > curve.worth(best):
            best = size
    return best if best > have and curve.worth(best) > curve.worth(have) else None
