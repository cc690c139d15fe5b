"""The policy ``fifo``: the original project's rule. Start at once, top up in order of arrival."""

from __future__ import annotations

from elasticdl_core.scheduling.admission import (
    AdmissionRules,
    admit,
    by_arrival,
    split_unwanted,
    tiers_of,
    unknown_eta,
)
from elasticdl_core.scheduling.plan import Plan
from elasticdl_core.scheduling.policies.surplus import explained, grow_as_far_as_possible
from elasticdl_core.scheduling.raises import plan_with_raises
from elasticdl_core.scheduling.snapshot import Snapshot


class FifoPolicy:
    """Every job that fits starts with its minimum; what is left goes to the earliest, up to its maximum."""

    name = "fifo"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decides on a target for every job of the snapshot."""
        return plan_with_raises(snapshot, self._decide, lambda job: job.smallest)

    def _decide(self, snapshot: Snapshot) -> Plan:
        """Admits by arrival, then tops up by arrival, each within its priority tier."""
        runnable, unwanted = split_unwanted(snapshot)
        rules = AdmissionRules(
            size=lambda job: job.smallest, queue_key=by_arrival, eta=unknown_eta, protect_first=False
        )
        admission, tracker = admit(snapshot, tiers_of(runnable, rules), rules)
        sizes = {job.id: job.smallest for job in admission.admitted}
        for job in sorted(admission.admitted, key=lambda job: (-job.priority, *by_arrival(job))):
            grow_as_far_as_possible(job, sizes, tracker)
        granted = explained(admission.admitted, sizes, tracker)
        return Plan(self.name, granted | admission.refused | unwanted, admission.first_blocked)
