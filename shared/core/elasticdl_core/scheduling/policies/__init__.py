"""The policies, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.scheduling.policies.base import Policy
from elasticdl_core.scheduling.policies.fair import FairPolicy
from elasticdl_core.scheduling.policies.fifo import FifoPolicy
from elasticdl_core.scheduling.policies.gang import GangPolicy
from elasticdl_core.scheduling.policies.goodput import GoodputPolicy

POLICIES: Mapping[str, Callable[[], Policy]] = {
    "goodput": GoodputPolicy,
    "fair": FairPolicy,
    "fifo": FifoPolicy,
    "gang": GangPolicy,
}
"""What a cluster can be run with. The simulator knows more, to compare with."""

DEFAULT_POLICY = "goodput"


def policy_by_name(name: str) -> Policy:
    """Makes a policy.

    Raises:
        InvalidInputError: if there is none of that name.
    """
    if name not in POLICIES:
        raise InvalidInputError(f"there is no scheduling policy {name!r}", fix=f"choose one of {', '.join(POLICIES)}")
    return POLICIES[name]()


__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "FairPolicy",
    "FifoPolicy",
    "GangPolicy",
    "GoodputPolicy",
    "Policy",
    "policy_by_name",
]
