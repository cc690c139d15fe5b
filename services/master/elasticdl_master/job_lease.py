"""The job that the api leases to a master: all that is durable of it, typed and checked where it comes in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticdl_core.checkpoint_manifest import Manifest, newness
from elasticdl_core.job import JobSpec, JobState
from elasticdl_core.path_policy import PathPolicy
from elasticdl_core.task import TaskId


@dataclass(frozen=True)
class DesiredState:
    """The wanted state of a job.

    Attributes:
        desired: ``run``, ``suspend``, ``evict`` or ``cancel``.
        target_workers: how many workers it shall have.
        refused: what of the report could not be taken, and why, by kind.
    """

    desired: str
    target_workers: int
    refused: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def from_answer(cls, answer: Mapping[str, Any]) -> DesiredState:
        """Reads the answer to a lease or a heartbeat."""
        return cls(str(answer["desired"]), int(answer["target_workers"]), answer.get("refused") or {})


@dataclass(frozen=True)
class JobLease:
    """The right to be a job's master, and what is durable of the job.

    Attributes:
        epoch: the master's epoch.
        spec: what the user asked for.
        state: where the job stands.
        desired_state: what is wanted of it.
        plan: the durable plan, if an earlier master completed it.
        done: durable done-marks.
        accounts: what became of the records of some of them, by task.
        manifests: committed checkpoints, oldest first.
        evaluations: number of the last evaluation that was published.
        evaluated_epochs: numbers of complete epochs of which there is an evaluation.
        reach: what the job may touch; None for everything.
        measured: speeds, cost of a change and service received that earlier masters reported.
        strategy: that an earlier master chose, and why; empty if none did.
    """

    epoch: int
    spec: JobSpec
    state: JobState
    desired_state: DesiredState
    plan: Mapping[str, Any] | None = None
    done: Sequence[TaskId] = ()
    accounts: Mapping[str, Any] = field(default_factory=dict)
    manifests: Sequence[Manifest] = ()
    evaluations: int = 0
    evaluated_epochs: frozenset[int] = frozenset()
    measured: Mapping[str, Any] = field(default_factory=dict)
    reach: PathPolicy | None = None
    strategy: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_answer(cls, answer: Mapping[str, Any]) -> JobLease:
        """Reads the api's answer."""
        ledger = answer.get("ledger") or {}
        evaluations = answer.get("evaluations") or ()
        return cls(
            epoch=int(answer["epoch"]),
            spec=JobSpec.from_mapping(answer["spec"]),
            state=JobState(answer["state"]),
            desired_state=DesiredState.from_answer(answer),
            plan=ledger.get("plan"),
            done=[TaskId.parse(text) for text in ledger.get("done") or ()],
            accounts=ledger.get("accounts") or {},
            manifests=sorted(answer.get("checkpoints") or (), key=newness),
            evaluations=max((int(one["number"]) for one in evaluations), default=0),
            evaluated_epochs=frozenset(int(one["training_epoch"]) for one in evaluations),
            measured=answer.get("measured") or {},
            reach=PathPolicy.from_mapping(answer["reach"]) if answer.get("reach") is not None else None,
            strategy=answer.get("strategy") or {},
        )
