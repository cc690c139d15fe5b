"""The answer of a policy: a target for each job, with one primary reason."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class ReasonCode(enum.StrEnum):
    """Why a job has the workers that it has."""

    AT_MAX = "at_max"
    """It has as many as it can use."""
    AT_USEFUL_SIZE = "at_useful_size"
    """One more would speed it up by too little to be worth taking."""
    CLUSTER_FULL = "cluster_full"
    """It runs with fewer than it could use; the rest is worth more elsewhere."""
    TEAM_SHARE = "team_share"
    """It runs with fewer than it could use because its team's share is spent."""
    NOT_WORTH_A_CHANGE = "not_worth_a_change"
    """Another size would be better, but by less than the change costs."""
    CHANGED_LATELY = "changed_lately"
    """Another size would be better; the job keeps for some time what it was given last."""
    MEASURING = "measuring"
    """Its speed at more workers is not known yet; it grows step by step."""
    WAITING_FOR_CAPACITY = "waiting_for_capacity"
    """Its minimum does not fit."""
    WAITING_BEHIND = "waiting_behind"
    """Its minimum would fit, but would delay the first job that does not fit, or one that is ahead of it."""
    WAITING_FOR_QUOTA = "waiting_for_quota"
    """Its minimum would take its team over its limit."""
    WAITING_FOR_DRAIN = "waiting_for_drain"
    """Its slots are assigned, but their former users are still leaving."""
    RAISE_WAITS = "raise_waits"
    """Its minimum was raised, and it goes on with what it has until the new one fits."""
    EVICTED = "evicted"
    """It ran, and gave its slots to a job that goes first."""
    IMPOSSIBLE = "impossible"
    """Its minimum is more than the whole cluster, or than its team's limit."""
    NOT_WANTED = "not_wanted"
    """Its owner suspended or cancelled it."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One primary reason.

    Attributes:
        code: the kind of reason.
        text: a sentence with the numbers, for people.
        blockers: ids of the jobs that hold what this one lacks, most important first.
        data: the numbers, for programs.
    """

    code: ReasonCode
    text: str
    blockers: tuple[str, ...] = ()
    data: Mapping[str, float | str] = field(default_factory=dict)

    def to_mapping(self) -> dict[str, Any]:
        """The reason as JSON data."""
        return {
            "code": str(self.code),
            "text": self.text,
            "blockers": list(self.blockers),
            "data": dict(self.data),
        }


@dataclass(frozen=True, slots=True)
class Allocation:
    """The allocation of one job.

    Attributes:
        workers: its target; 0 if it is not admitted.
        admitted: whether it runs (master, PS and at least its minimum of workers).
        reason: why.
    """

    workers: int
    admitted: bool
    reason: Reason


@dataclass(frozen=True, slots=True)
class BlockedJob:
    """The promise to the first job that does not fit.

    Attributes:
        job_id: whose minimum is being saved up.
        at: when it is expected to fit, on the snapshot's clock; None if that cannot be told.
    """

    job_id: str
    at: float | None


@dataclass(frozen=True)
class Plan:
    """The decision.

    Attributes:
        policy: name of the policy.
        allocations: by job id, for every job of the snapshot, in the order in which they go first.
        first_blocked: the first job that does not fit, if any.
    """

    policy: str
    allocations: Mapping[str, Allocation]
    first_blocked: BlockedJob | None = None

    def targets(self) -> dict[str, int]:
        """The number of workers by job id."""
        return {job_id: allocation.workers for job_id, allocation in self.allocations.items()}

    def to_mapping(self) -> dict[str, Any]:
        """The plan as JSON data, for the decision log."""
        # Many that wait share one reason; ``allocations`` keeps each alive, so that its identity stays its own.
        reasons = {id(one.reason): one.reason for one in self.allocations.values()}
        told = {ref: reason.to_mapping() for ref, reason in reasons.items()}
        return {
            "policy": self.policy,
            "allocations": {
                job_id: {
                    "workers": allocation.workers,
                    "admitted": allocation.admitted,
                    "reason": told[id(allocation.reason)],
                }
                for job_id, allocation in self.allocations.items()
            },
            "reservation": None
            if self.first_blocked is None
            else {"job_id": self.first_blocked.job_id, "at": self.first_blocked.at},
        }

    def as_json(self) -> str:
        """``to_mapping`` as text."""
        encode = json.dumps
        reasons = {id(one.reason): one.reason for one in self.allocations.values()}
        told = {ref: encode(reason.to_mapping()) for ref, reason in reasons.items()}
        rows = [
            f'{encode(job_id)}:{{"workers":{one.workers},"admitted":{"true" if one.admitted else "false"},'
            f'"reason":{told[id(one.reason)]}}}'
            for job_id, one in self.allocations.items()
        ]
        rest = Plan(self.policy, {}, self.first_blocked).to_mapping()
        del rest["allocations"]
        return f'{encode(rest)[:-1]},"allocations":{{{",".join(rows)}}}}}'

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Plan:
        """Reads ``to_mapping`` back."""
        reservation = mapping["reservation"]
        return cls(
            policy=mapping["policy"],
            allocations={
                job_id: Allocation(
                    item["workers"],
                    item["admitted"],
                    Reason(
                        ReasonCode(item["reason"]["code"]),
                        item["reason"]["text"],
                        tuple(item["reason"]["blockers"]),
                        item["reason"]["data"],
                    ),
                )
                for job_id, item in mapping["allocations"].items()
            },
            first_blocked=None if reservation is None else BlockedJob(reservation["job_id"], reservation["at"]),
        )
