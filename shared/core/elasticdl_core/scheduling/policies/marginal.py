"""Divides surplus slots among jobs by marginal value, against the cost of changing.

Each job's value is concave in its workers, so the ideal division has one price per slot: every job takes workers
as long as the next is worth more than the price. A job keeps the size that it has unless the ideal one, at that
price, is better by more than a change costs. What then does not add up is settled at the cheapest places, and
the outcome replaces the present division only if it is worth its changes as a whole.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from elasticdl_core.scheduling.policies.candidate import Candidate

_SEARCH_STEPS = 24


def divide(candidates: Sequence[Candidate], budget: float) -> tuple[dict[str, int], dict[str, int], float]:
    """Divides ``budget`` slots above the minimums.

    Args:
        candidates: the jobs that share the budget; each has its minimum already.
        budget: slots to give out; negative amounts count as none.

    Returns:
        Sizes by job id; the ideal sizes, costs of change ignored; and the price of a slot (0 if none is scarce).
    """
    budget = max(budget, 0.0)
    ideal, price = water_fill(candidates, budget)
    moved = _with_moves(candidates, ideal, price, budget)
    kept = _with_no_moves(candidates, ideal, budget)
    sizes = moved if _worth(candidates, moved) > _worth(candidates, kept) + 1e-15 else kept
    return sizes, ideal, price


def water_fill(candidates: Sequence[Candidate], budget: float) -> tuple[dict[str, int], float]:
    """The best division if changes were free, and its price per slot."""
    price, indices = _find_price(candidates, budget)
    sizes = {c.job.id: c.curve.corners[i] for c, i in zip(candidates, indices, strict=True)}
    left = budget - sum(c.surplus(sizes[c.job.id]) for c in candidates)
    _fill(candidates, sizes, set(sizes), left, grow_others=False)
    return sizes, price


def _find_price(candidates: Sequence[Candidate], budget: float) -> tuple[float, list[int]]:
    """The lowest price at which demand stays within the budget, by interpolation over its logarithm."""
    rows = [(c.curve.falls, c.cost / c.unit, c.top, c.curve.corners, c.cost) for c in candidates]

    def demand(price: float) -> tuple[list[int], float]:
        indices = []
        spent = 0.0
        for falls, scale, top, corners, cost in rows:
            index = bisect_left(falls, -price * scale)
            index = index if index < top else top
            indices.append(index)
            spent += cost * (corners[index] - corners[0])
        return indices, spent

    indices, most = demand(0.0)
    if most <= budget:
        return 0.0, indices
    high = max(c.unit * c.curve.gains[0] / c.cost for c in candidates if c.top > 0) * 1.0000001
    low, least = high * 1e-9, 0.0
    best = [0] * len(candidates)
    for step in range(_SEARCH_STEPS):
        share = (most - budget) / (most - least) if most > least and step % 3 else 0.5
        middle = low * (high / low) ** min(max(share, 0.1), 0.9)
        indices, spent = demand(middle)
        if spent <= budget:
            high, least, best = middle, spent, indices
            if budget - spent <= 0.001 * budget:
                break
        else:
            low, most = middle, spent
    return high, best


def _with_moves(
    candidates: Sequence[Candidate], ideal: dict[str, int], price: float, budget: float
) -> dict[str, int]:
    """Moves the jobs for which it pays at that price, then makes the sum fit."""
    sizes: dict[str, int] = {}
    touched: set[str] = set()
    for c in candidates:
        best = ideal[c.job.id]
        sizes[c.job.id] = best
        if c.current == 0:
            touched.add(c.job.id)
        elif best != c.current:
            gain = c.value(best) - c.value(c.current) - price * c.cost * (best - c.current)
            if gain > c.penalty and not c.frozen:
                touched.add(c.job.id)
            else:
                sizes[c.job.id] = c.current
    return _settle(candidates, sizes, touched, budget, grow_others=True)


def _with_no_moves(candidates: Sequence[Candidate], ideal: dict[str, int], budget: float) -> dict[str, int]:
    """Leaves the running jobs alone as far as the budget allows; the new ones share what is left."""
    sizes = {c.job.id: c.current or c.curve.corners[0] for c in candidates}
    touched = {c.job.id for c in candidates if c.current == 0}
    return _settle(candidates, sizes, touched, budget, grow_others=False)


def _settle(
    candidates: Sequence[Candidate],
    sizes: dict[str, int],
    touched: set[str],
    budget: float,
    *,
    grow_others: bool,
) -> dict[str, int]:
    left = budget - sum(c.surplus(sizes[c.job.id]) for c in candidates)
    if left < -1e-9:
        left = _shed(candidates, sizes, touched, left)
    if left > 1e-9:
        _fill(candidates, sizes, touched, left, grow_others=grow_others)
    return sizes


def _shed(candidates: Sequence[Candidate], sizes: dict[str, int], touched: set[str], left: float) -> float:
    """Takes slots where they are worth least until nothing is missing; the first change of a job costs extra."""

    def entry(position: int, missing: float) -> tuple[float, float, str, int] | None:
        c = candidates[position]
        have = sizes[c.job.id]
        smaller = c.smaller(have)
        if smaller is None:
            return None
        loss = c.density(smaller, have)
        if c.job.id not in touched:
            loss += c.penalty / max(min(missing, c.surplus(have)), 1e-9)
        return (loss, -c.job.submitted_at, c.job.id, position)

    heap = [e for position in range(len(candidates)) if (e := entry(position, -left)) is not None]
    heapq.heapify(heap)
    while heap and left < -1e-9:
        *_, position = heapq.heappop(heap)
        c = candidates[position]
        have = sizes[c.job.id]
        smaller = c.smaller(have)
        if smaller is None:
            continue
        left += c.surplus(have) - c.surplus(smaller)
        sizes[c.job.id] = smaller
        touched.add(c.job.id)
        again = entry(position, -left)
        if again is not None:
            heapq.heappush(heap, again)
    return left


def _fill(
    candidates: Sequence[Candidate],
    sizes: dict[str, int],
    touched: set[str],
    left: float,
    *,
    grow_others: bool,
) -> None:
    """Gives slots where they are worth most; an untouched job must gain more than its change costs."""

    def entry(position: int, room: float) -> tuple[float, float, str, int, int] | None:
        c = candidates[position]
        have = sizes[c.job.id]
        is_touched = c.job.id in touched
        if not is_touched and (not grow_others or c.frozen):
            return None
        want = _step_up(c, have, room) if is_touched else _most(c, have, room)
        if want is None:
            return None
        worth = c.density(have, want)
        if not is_touched:
            worth -= c.penalty / (c.cost * (want - have))
        return (-worth, c.job.submitted_at, c.job.id, position, want) if worth > 0 else None

    heap = [e for position in range(len(candidates)) if (e := entry(position, left)) is not None]
    heapq.heapify(heap)
    while heap and left > 1e-9:
        *_, position, want = heapq.heappop(heap)
        c = candidates[position]
        need = c.surplus(want) - c.surplus(sizes[c.job.id])
        if need <= left + 1e-9:
            left -= need
            sizes[c.job.id] = want
            touched.add(c.job.id)
        again = entry(position, left)
        if again is not None and (need <= left + 1e-9 or again[-1] < want):
            heapq.heappush(heap, again)


def _step_up(candidate: Candidate, have: int, room: float) -> int | None:
    """The next corner if it fits, else the best size that does."""
    larger = candidate.larger(have)
    if larger is None or candidate.cost * (larger - have) <= room + 1e-9:
        return larger
    return _most(candidate, have, room)


def _most(candidate: Candidate, have: int, room: float) -> int | None:
    """The most valuable size up to the top that fits the room, if it is worth more than ``have``."""
    curve = candidate.curve
    bound = min(have + room / candidate.cost + 1e-9, curve.corners[candidate.top])
    corner = curve.corners[bisect_right(curve.corners, bound) - 1]
    best = max(corner, have)
    for size in curve.sizes[bisect_right(curve.sizes, best) : bisect_right(curve.sizes, bound)]:
        if curve.worth(size) > curve.worth(best):
            best = size
    return best if best > have and curve.worth(best) > curve.worth(have) else None


def _worth(candidates: Sequence[Candidate], sizes: dict[str, int]) -> float:
    """Value per second of a division, less the cost of the changes that it takes."""
    total = 0.0
    for c in candidates:
        size = sizes[c.job.id]
        total += c.value(size)
        if c.current and size != c.current:
            total -= c.penalty
    return total
