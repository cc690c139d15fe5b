"""The port of a policy."""

from __future__ import annotations

from typing import Protocol

from elasticdl_core.scheduling.plan import Plan
from elasticdl_core.scheduling.snapshot import Snapshot


class Policy(Protocol):
    """Turns a snapshot into a plan.

    ``plan`` is pure: it reads no clock, keeps nothing between calls that its answer depends on, and gives equal plans
    for equal snapshots. Every plan stays within the capacity and the teams' limits, gives each job an allowed size
    or nothing, and never lets a job wait for capacity that a less important one keeps.
    """

    @property
    def name(self) -> str:
        """The name of the policy in settings and decision logs."""
        ...

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decides on a target for every job of the snapshot."""
        ...
