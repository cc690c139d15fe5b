"""The policy ``goodput``: workers go where they shorten most waiting, and change hands only when that pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elasticdl_core.scheduling.admission import AdmissionRules, admit, split_unwanted
from elasticdl_core.scheduling.ledger import Ledger
from elasticdl_core.scheduling.plan import Plan, Reason, ReasonCode
from elasticdl_core.scheduling.policies.candidate import Candidate, GoodputSettings, weigh, weigh_critical
from elasticdl_core.scheduling.policies.marginal import divide
from elasticdl_core.scheduling.policies.surplus import (
    MAX_BLOCKERS,
    allowed_at_most,
    explained,
    grow_as_far_as_possible,
    largest_holders,
    next_size,
)
from elasticdl_core.scheduling.quota import team_budgets
from elasticdl_core.scheduling.snapshot import JobView, Snapshot


class GoodputPolicy:
    """Minimums by tier and team, surplus by marginal value over remaining time.

    Args:
        settings: its numbers; the defaults are measured on recorded workloads.
    """

    name = "goodput"

    def __init__(self, settings: GoodputSettings = GoodputSettings()) -> None:  # noqa: B008 - frozen
        self._settings = settings

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decides; see the module of each step for its rule."""
        runnable, unwanted = split_unwanted(snapshot)
        ledger = Ledger(snapshot)
        candidates = {job.id: weigh(job, ledger.worker_cost(job), self._settings, snapshot.now) for job in runnable}
        weigh_critical(candidates.values(), snapshot.capacity.total.slots, self._settings)
        rules = AdmissionRules(
            size=lambda job: job.smallest,
            queue_key=lambda job: _response_ratio(candidates[job.id], snapshot.now),
            eta=lambda job, workers: _eta(candidates[job.id], workers),
            min_runtime_s=self._settings.min_runtime_s,
        )
        admission, ledger = admit(snapshot, runnable, rules)
        division = _Division(ledger)
        tiers: dict[int, list[Candidate]] = {}
        for job in admission.admitted:
            tiers.setdefault(job.priority, []).append(candidates[job.id])
        for priority in sorted(tiers, reverse=True):
            division.divide_tier(tiers[priority])
        division.explore([candidates[job.id] for job in admission.admitted])
        granted = explained(
            admission.admitted,
            division.sizes,
            ledger,
            lambda job, workers: division.reason(candidates[job.id], workers),
        )
        return Plan(self.name, granted | admission.refused | unwanted, admission.reservation)


def _response_ratio(candidate: Candidate, now: float) -> tuple[float | str, ...]:
    """Waiting jobs go by (waiting + running time) / running time: short ones first, but nobody waits for ever."""
    job = candidate.job
    run = candidate.remaining_s / max(candidate.curve.rates[0] / max(candidate.curve.base, 1e-12), 1e-9)
    waited = max(now - job.submitted_at, 0.0)
    return (-(1.0 + waited / run), job.submitted_at, job.id)


def _eta(candidate: Candidate, workers: int) -> float:
    """Seconds to the end; unknown unless both speed and remaining work are."""
    if candidate.job.remaining_records is None or not candidate.curve.measured_up_to:
        return float("inf")
    rate = candidate.curve.rate(workers)
    return candidate.job.remaining_records / rate if rate > 0 else float("inf")


class _Division:
    """The surplus, tier by tier."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.sizes: dict[str, int] = {}
        self._ideal: dict[str, int] = {}
        self._short_teams: dict[str, float] = {}
        self._holders: tuple[str, ...] | None = None
        self._jobs: list[JobView] = []

    def divide_tier(self, candidates: Sequence[Candidate]) -> None:
        """Gives each team its budget, and each team's jobs what serves them best."""
        teams: dict[str, list[Candidate]] = {}
        for c in candidates:
            teams.setdefault(c.job.team, []).append(c)
            self._jobs.append(c.job)
            self.sizes[c.job.id] = c.curve.corners[0]
        demands = {team: sum(c.surplus(c.curve.corners[c.top]) for c in members) for team, members in teams.items()}
        budgets = team_budgets(self._ledger, demands)
        for team in sorted(teams):
            sizes, ideal, _ = divide(teams[team], budgets[team])
            self._ideal |= ideal
            if len(teams) > 1 and budgets[team] < demands[team]:
                self._short_teams[team] = budgets[team]
            for c in teams[team]:
                self._book(c, sizes[c.job.id])

    def explore(self, candidates: Sequence[Candidate]) -> None:
        """Lets jobs try more workers on slots that would stand idle, where their speed was never measured.

        An estimate that says that a job gains nothing from growing is never put right while it does not grow. Each
        size is tried once, and a job at most doubles at a time; the longest job first.
        """
        if self._ledger.free_cost() < 1.0:
            return
        for c in sorted(candidates, key=lambda c: (-c.remaining_s, c.job.id)):
            have = self.sizes[c.job.id]
            if c.frozen or have not in c.job.throughput or max(c.job.throughput) > have:
                continue
            if c.current and c.penalty < c.value(c.current):
                self._book(c, allowed_at_most(c.job, 2 * have))

    def _book(self, candidate: Candidate, wanted: int) -> None:
        job, have = candidate.job, self.sizes[candidate.job.id]
        if wanted <= have:
            return
        if self._ledger.obstacle(job, have, wanted) is None:
            self._ledger.take(job, have, wanted)
            self.sizes[job.id] = wanted
        else:  # Another resource than slots, or the team's limit, ends first.
            grow_as_far_as_possible(job, self.sizes, self._ledger, wanted)

    def reason(self, candidate: Candidate, workers: int) -> Reason | None:
        """The goodput policy's own reasons for a job that has less than its maximum."""
        job = candidate.job
        more = next_size(job, workers)
        if more is None:
            return None
        rate = candidate.curve.rate(workers)
        next_rate = candidate.curve.rate(more)
        gain = (next_rate / rate - 1.0) if rate > 0 else 0.0
        data: Mapping[str, float | str] = {
            "workers": workers,
            "max_workers": job.largest,
            "records_per_second": round(rate, 3),
            "with_more": round(next_rate, 3),
        }
        at_top = candidate.larger(workers) is None
        head = f"it has {workers} of at most {job.largest} workers"
        if at_top and candidate.capped == "useful":
            text = f"{head}; {more - workers} more would speed it up by only {gain:.1%}"
            return Reason(ReasonCode.AT_USEFUL_SIZE, text, (), data)
        if at_top and candidate.capped == "measuring":
            known = candidate.curve.measured_up_to
            text = f"{head}; its speed is known up to {known} workers only, so it grows step by step"
            return Reason(ReasonCode.MEASURING, text, (), data)
        if candidate.current and self._ideal[job.id] > workers >= candidate.current:
            best = self._ideal[job.id]
            text = f"{head}; {best} would be a little better, but a change costs {job.rescale_cost_s:.0f} s of work"
            return Reason(ReasonCode.NOT_WORTH_A_CHANGE, text, (), data)
        if job.team in self._short_teams:
            text = f"{head}; team {job.team} has its share of {self._short_teams[job.team]:.1f} slots above minimums"
            return Reason(ReasonCode.TEAM_SHARE, text, (), data)
        if self._holders is None:
            self._holders = largest_holders(self._jobs, self.sizes)
        others = tuple(holder for holder in self._holders if holder != job.id)[:MAX_BLOCKERS]
        text = f"{head}; {more - workers} more would speed it up by {gain:.0%}, and the slots do more for other jobs"
        return Reason(ReasonCode.CLUSTER_FULL, text, others, data)
