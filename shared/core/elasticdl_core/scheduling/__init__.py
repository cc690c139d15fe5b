"""Cluster-wide scheduling as pure functions: a snapshot goes in, a plan comes out."""

from elasticdl_core.scheduling.plan import Allocation, BlockedJob, Plan, Reason, ReasonCode
from elasticdl_core.scheduling.policies import DEFAULT_POLICY, POLICIES, Policy, policy_by_name
from elasticdl_core.scheduling.snapshot import (
    Capacity,
    JobView,
    NodeView,
    Quota,
    Resources,
    Snapshot,
)

__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "Allocation",
    "Capacity",
    "JobView",
    "NodeView",
    "Plan",
    "Policy",
    "Quota",
    "Reason",
    "ReasonCode",
    "BlockedJob",
    "Resources",
    "Snapshot",
    "policy_by_name",
]
