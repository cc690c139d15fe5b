"""The goodput policy's reasons for what a running job gets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from elasticdl_core.scheduling.plan import Allocation, Reason, ReasonCode
from elasticdl_core.scheduling.policies.candidate import Candidate
from elasticdl_core.scheduling.policies.surplus import MAX_BLOCKERS
from elasticdl_core.scheduling.words import slots_of, workers_of

_NOTHING = 0.005
"""A gain or loss of speed below that is none."""
_TOO_LITTLE = {
    "slots": "the cluster has too few free slots for that",
    "cpu": "the cluster has too few free cores for that",
    "memory": "the cluster has too little free memory for that",
    "gpu": "the cluster has too few free GPUs for that",
    "": "that is too little for a change",
}


def allocation_of(
    candidate: Candidate,
    workers: int,
    ideal: int,
    *,
    short: float | None,
    limited: bool,
    holders: tuple[str, ...],
    lack: tuple[str, tuple[str, ...]] | None = None,
    short_of: str = "slots",
) -> Allocation:
    """The allocation of an admitted job with its reason; told again as it is while nothing in it changed.

    Args:
        candidate: the job.
        workers: what it gets.
        ideal: what it would get if changes were free.
        short: the slots above minimums that its team may take, if that is less than the team could use.
        limited: whether one more size would take its team over its limit.
        holders: the jobs with the most workers above their minimums.
        lack: what one more size lacks of the devices, and who has it; None if they are not what it lacks.
        short_of: the resource of which too little is free for more; empty if there is enough of each.
    """
    key = (workers, ideal, short, limited, holders, lack, short_of)
    if candidate.explained is None or candidate.explained[0] != key:
        reason = _reason(
            candidate, workers, ideal, short=short, limited=limited, holders=holders, lack=lack, short_of=short_of
        )
        candidate.explained = (key, Allocation(workers, True, reason))
    return candidate.explained[1]


def _reason(
    c: Candidate,
    workers: int,
    ideal: int,
    *,
    short: float | None,
    limited: bool,
    holders: tuple[str, ...],
    lack: tuple[str, tuple[str, ...]] | None,
    short_of: str,
) -> Reason:
    job, curve = c.job, c.curve
    sizes, rates = curve.sizes, curve.rates
    index = bisect_right(sizes, workers)
    largest = sizes[-1]
    if index >= len(sizes):
        text = f"it has {workers_of(workers)}, {job.why_no_more}"
        return Reason(ReasonCode.AT_MAX, text, (), {"workers": workers, "max_workers": largest})
    more, rate, next_rate = sizes[index], rates[index - 1], rates[index]
    data: Mapping[str, float | str] = {
        "workers": workers,
        "max_workers": largest,
        "records_per_second": round(rate, 3),
        "with_more": round(next_rate, 3),
    }
    head = f"it has {workers} of at most {workers_of(largest)}"
    if c.capped and c.larger(workers) is None:
        if c.capped == "useful":
            text = f"{head}; {_worth(more - workers, _gain(c, workers, more))}"
            return Reason(ReasonCode.AT_USEFUL_SIZE, text, (), data)
        text = f"{head}; its speed is known up to {workers_of(curve.measured_up_to)} only, so it grows step by step"
        return Reason(ReasonCode.MEASURING, text, (), data)
    if limited:  # Named first, whatever another size would be worth.
        return Reason(ReasonCode.TEAM_SHARE, f"{head}; team {job.team} is at its limit", (), data)
    if lack is not None:
        return Reason(ReasonCode.CLUSTER_FULL, f"{head}; another {lack[0]}", lack[1], data)
    others = tuple([holder for holder in holders if holder != job.id][:MAX_BLOCKERS])
    useful = c.larger(workers) or more  # A size between may be worse than both.
    if short_of not in ("slots", ""):
        text = f"{head}; {_would_help(c, workers, useful)}, and {_TOO_LITTLE[short_of]}"
        return Reason(ReasonCode.CLUSTER_FULL, text, others, data)
    if c.current and ideal > workers >= c.current:
        better = f"{head}; {ideal} would speed it up by {_gain(c, workers, ideal):.0%}"
        if c.frozen and job.last_rescale_at is not None:
            kept = f"it keeps a number of workers for {c.thaws_at - job.last_rescale_at:.0f} s"
            return Reason(
                ReasonCode.CHANGED_LATELY, f"{better}, but {kept}, and got this number less than that ago", (), data
            )
        cost = f"the {job.rescale_cost_s:.0f} s of work that a change costs"
        if others and short_of:
            cost = f"what other jobs would lose and {cost}"
        when = " in the time that it still needs" if c.burden >= curve.fastest else ""
        text = f"{better}, too little{when} for {cost}"
        return Reason(ReasonCode.NOT_WORTH_A_CHANGE, text, (), data)
    if short is not None:
        above = f"{slots_of(short)} above minimums" if short else "none above minimums"
        text = f"{head}; the share of team {job.team} in the free slots is {above}"
        return Reason(ReasonCode.TEAM_SHARE, text, (), data)
    why = "the slots do more for other jobs" if others and short_of else _TOO_LITTLE[short_of]
    text = f"{head}; {_would_help(c, workers, useful)}, and {why}"
    return Reason(ReasonCode.CLUSTER_FULL, text, others, data)


def _would_help(c: Candidate, have: int, want: int) -> str:
    """The effect of a larger size on a job that lacks what it takes."""
    gain = _gain(c, have, want)
    return f"{want - have} more would speed it up by {gain:.0%}" if gain >= _NOTHING else _worth(want - have, gain)


def _gain(c: Candidate, have: int, want: int) -> float:
    """The gain of speed from one size to another: as the job measured both, else by its curve."""
    measured = c.job.throughput
    rates = (measured[have], measured[want]) if have in measured and want in measured else ()
    before, after = rates or (c.curve.rate(have), c.curve.rate(want))
    return after / before - 1.0 if before > 0 else 0.0


def _worth(more: int, gain: float) -> str:
    """The effect of so many more workers on a job that has reached its useful size."""
    if gain >= _NOTHING:
        return f"{more} more would speed it up by only {gain:.1%}"
    if gain > -_NOTHING:
        return f"{more} more would not make it faster"
    return f"{more} more would make it slower by {-gain:.0%}"
