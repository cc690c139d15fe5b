"""The policy ``goodput``: workers go where they shorten most waiting, and change hands only when that pays."""

from __future__ import annotations

from elasticdl_core.scheduling.plan import Plan
from elasticdl_core.scheduling.policies.candidate import GoodputSettings
from elasticdl_core.scheduling.policies.planner import GoodputPlanner
from elasticdl_core.scheduling.snapshot import Snapshot


class GoodputPolicy:
    """Minimums by tier and team, surplus by marginal value and rank in remaining time.

    Args:
        settings: its numbers; the defaults are measured on recorded workloads.
    """

    name = "goodput"

    def __init__(self, settings: GoodputSettings = GoodputSettings()) -> None:  # noqa: B008 - frozen
        self._settings = settings

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decides from nothing but the snapshot; see the module of each step for its rule."""
        return self.incremental().plan(snapshot)

    def incremental(self) -> GoodputPlanner:
        """A planner of the same plans that is fast where one snapshot differs little from the one before."""
        return GoodputPlanner(self._settings)
