"""The loop of a member: generation after generation, with real collectives and a real replica."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import structlog

from elasticdl_core.errors import DataError, UnavailableError
from elasticdl_core.group.member import (
    Apply,
    CatchUp,
    Compute,
    Consult,
    DiffersError,
    Follow,
    FoundGroup,
    Gather,
    GroupMember,
    Operation,
    Receive,
    Rest,
    Send,
    Total,
    WriteShare,
)
from elasticdl_core.group.steps import Step
from elasticdl_core.job import JobSpec
from elasticdl_core.skips import SkipReason, Skips
from elasticdl_runtime.checkpoint_files import CheckpointFile
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.telemetry import work
from elasticdl_runtime.telemetry.spans import span, traced
from elasticdl_worker.collectives import Collective, CollectiveError, GroupListener, GroupPlan, PendingSum
from elasticdl_worker.device import device_turn
from elasticdl_worker.group.entries import lease_of
from elasticdl_worker.group.master_session import MasterSession
from elasticdl_worker.group.replica import (
    AppliesWhileComputing,
    ComputesTogether,
    Contribution,
    Flat,
    LossFraction,
    Measure,
    MicrobatchData,
    Replica,
    copied,
    take_all,
)
from elasticdl_worker.group.shares import ShareWriter
from elasticdl_worker.group.state_files import CheckpointPart, pack_state, read_state, unpack_state
from elasticdl_worker.group.steps_ahead import StepsAhead
from elasticdl_worker.group.streams import IncomingState, OutgoingState
from elasticdl_worker.master.client import LeasedTask
from elasticdl_worker.master.group_client import GroupDirective
from elasticdl_worker.master.session import Session
from elasticdl_worker.reporting.accounts import TaskAccount
from elasticdl_worker.reporting.progress import StepParts
from elasticdl_worker.reporting.traces import TraceWriter

_FORM_S = 60.0
_LONG_S = 24 * 3600.0
"""How long others may take: who lives and hangs is the master's to notice."""
_STORE_S = 600.0
"""So long a member waits for a store that has the checkpoint."""
_REST_S = 0.05
_CHEAP_BYTES = 4 << 20
_DIGEST_EVERY = 16
_AT_ONCE_BYTES = 256 << 20
"""Of the gradients of all microbatches that are computed at once."""
_WORDS: Mapping[type[Operation], str] = {
    Gather: "gather",
    Total: "reduce",
    Apply: "apply",
    Send: "send state",
    Receive: "receive state",
    Follow: "follow without the state",
    CatchUp: "catch up",
    FoundGroup: "read the state to begin with",
    Consult: "consult",
    WriteShare: "copy a share of a checkpoint",
}
"""What recordings call the operations that are not taken apart."""
_log = structlog.get_logger(__name__)


class SoloOutcome(Protocol):
    """The result of a task that one member does alone."""

    @property
    def records(self) -> int:
        """Number of records of the task."""

    @property
    def result(self) -> Mapping[str, object] | None:
        """The result of this type of task for the master."""

    @property
    def account(self) -> TaskAccount | None:
        """The account of the records."""


@dataclass(frozen=True)
class Membership:
    """The parts that a member of a group needs.

    Attributes:
        owner: this member's name.
        group_listener: forms groups.
        master_session: the orders.
    """

    owner: str
    group_listener: GroupListener
    master_session: MasterSession


class _Refused(DataError):
    """The checkpoint to begin with cannot be used; the master was told."""


class MemberLoop:
    """Works as a member until the job ends or the member is told to leave.

    Args:
        membership: what it takes to be in a group.
        spec: the job.
        replica: the model.
        session: the standing with the master.
        run_task: runs a task that is no training.
        traces: what was processed.
        on_first_step: called when the first step was made.
    """

    def __init__(
        self,
        membership: Membership,
        spec: JobSpec,
        replica: Replica,
        session: Session,
        run_task: Callable[[LeasedTask], SoloOutcome],
        traces: TraceWriter,
        on_first_step: Callable[[], None] = lambda: None,
    ) -> None:
        self._fuses = spec.fuses
        self._replica = replica
        self._session = session
        owner = membership.owner
        self._master_session = membership.master_session
        self._group_listener = membership.group_listener
        self._run_task = run_task
        self._traces = traces
        self._on_first_step: Callable[[], None] | None = on_first_step
        self._owner = owner
        self._initial = copied(replica.state())
        self._size = 4 * sum(replica.lengths)
        self._member = GroupMember(owner, spec.microbatches_per_step, spec.minibatch_size)
        self._ahead = StepsAhead(replica.read, self._member, fused=spec.fuses)
        self._shares = ShareWriter(membership.master_session.add_share)
        self._outgoing: OutgoingState | None = None
        self._incoming: IncomingState | None = None
        self._kept = [replica.memory.zeros(length) for length in replica.lengths]
        self._kept_note: dict[str, int] = {}
        self._pending: PendingSum | None = None
        self._sums: Sequence[Any] = ()
        self._speed = 0.0
        self._pin = 0
        self._began: float | None = None
        self._elapsed_s = math.inf
        self._parts = StepParts()
        self._measures: list[Measure] = []
        session.progress.set_loss_interval(spec.log_loss_steps)

    def run(self) -> bool:
        """Works; returns whether the job has ended, rather than this member been told to leave.

        Raises:
            ElasticDLError: the user's code or the data failed.
        """
        self._master_session.start()
        try:
            while (told := self._master_session.next_orders(self._member.finished)) is not None:
                if told.orders.is_over:
                    self._member.skip(told.orders)
                    self._master_session.get_out(self._member.finished, holds=self._member.holds, suspects=())
                else:
                    self._take_part(told)
            return self._session.finished.is_set()
        finally:
            self._ahead.close()
            self._shares.wait(_FORM_S)

    def _take_part(self, told: GroupDirective) -> None:
        orders = told.orders
        with contextlib.ExitStack() as stack:
            suspects = self._go_through(told, stack)
            self._member.finished = orders.generation
            names = [orders.members[other] for other in suspects]
            # All may wait for this word, and nobody for the end of the group's connections, which comes after it.
            self._master_session.get_out(orders.generation, holds=self._member.holds, suspects=names)

    def _go_through(self, told: GroupDirective, stack: contextlib.ExitStack) -> list[int]:
        """Does a member's part in a generation; returns the ranks that it suspects. The stack closes the group."""
        orders = told.orders
        rank = orders.members.index(self._owner)
        member, suspects = self._member, list[int]()
        running = member.enter(orders)
        self._master_session.enter(orders.generation, holds=member.holds_for(orders))
        self._ahead.begin(orders, rank)
        try:
            adapter = self._replica.memory.adapter
            plan = GroupPlan(orders.generation, told.endpoints, told.secret, adapter=adapter)
            told_beside = {"generation": orders.generation, "members": len(orders.members)}
            with span("form the group", "group", details=told_beside):
                collective = self._group_listener.form(plan, rank, timeout_s=_FORM_S)
            stack.callback(self._end_streams)
            stack.callback(collective.close)
            operation: Operation | None = None
            result: Any = None
            while True:
                received = isinstance(operation, Receive)
                operation = running.send(result)
                if received:  # and taken over
                    self._ahead.begin(orders, rank)
                name = _WORDS.get(type(operation))
                if name is None:
                    result = self._carry_out(operation, collective, told)
                else:
                    with traced(name, "group", generation=orders.generation, version=self._replica.version):
                        result = self._carry_out(operation, collective, told)
        except StopIteration:
            self._hand_over()
        except DiffersError as error:
            _log.error("parameters differ", error=str(error))
            suspects = list(member.suspects)
        except _Refused as error:
            self._master_session.refuse(error)
        except CollectiveError as error:
            suspects = [other for other in error.suspects if other != rank]
            # Where nobody is suspected, somebody came or left, or the job has ended.
            say = _log.warning if suspects else _log.info
            say("a generation ended", generation=orders.generation, reason=error.message)
        finally:
            running.close()
            self._pending = self._began = None
            self._master_session.set_busy(busy=False)
        return suspects

    # -- operations ------------------------------------------------------------------------------------------------

    def _carry_out(self, operation: Operation, collective: Collective, told: GroupDirective) -> Any:
        rank = collective.rank
        match operation:
            case Gather(data):
                if collective.size == 1:  # nobody else has to read this
                    if self._began is None:
                        collective.gather(b"", timeout_s=_LONG_S)  # it may have ended
                    return [data]
                given = collective.gather(json.dumps(data).encode(), timeout_s=_LONG_S)
                return [json.loads(one) for one in given]
            case Compute():
                self._master_session.set_busy(busy=True)
                try:
                    return self._compute(operation, collective)
                finally:
                    self._master_session.set_busy(busy=False)
            case Follow(step):
                return self._follow(step, collective)
            case CatchUp():
                assert self._incoming is not None
                self._incoming.take_all()
                self._arrive()
            case Total():
                if self._pending is not None:
                    self._sums = self._pending.finish()
                    self._pending = None
            case Apply():
                self._apply(operation, rank)
            case Send(needs, metadata):
                for target, need in needs.items():
                    note, buffers = self._packed(need)
                    collective.send(
                        target, json.dumps({**note, "book": metadata}).encode(), buffers, timeout_s=_LONG_S
                    )
                if streams := [target for target, need in needs.items() if need == "stream"]:
                    self._outgoing = OutgoingState(collective, streams, self._replica, _LONG_S)
            case Receive(source, need):
                return self._receive(collective, source, need)
            case FoundGroup():
                return self._found(told)
            case Consult():
                return self._consult(told.orders.generation)
            case WriteShare(order, metadata):
                self._write_share(order, metadata, rank, collective.size)
            case Rest(pin, solo):
                self._pin = pin
                if rank == 0:
                    self._speak()
                if solo is None:
                    self._session.progress.set_phase("waiting")
                    with traced("wait for the master", "wait"):
                        self._master_session.wait(_REST_S)
                else:
                    self._work_alone(lease_of(solo))
        return None

    def _compute(self, operation: Compute, collective: Collective) -> dict[str, Any]:
        step, rank = operation.step, collective.rank
        if collective.size == 1:
            # It may have ended. From here on the step counts: the update may be made along with what is computed.
            collective.gather(b"", timeout_s=_LONG_S)
        work.begin(str(step.entry.task), step.entry.token)
        self._pin = 0
        self._session.progress.set_phase("compiling" if self._on_first_step is not None else "training")
        passes = self._ahead.go_on(step, rank, self._elapsed_s)
        self._began = time.monotonic()
        # One leaf is its own sum, and nobody waits for it.
        sums = collective.size > 1 or len(passes) > 1
        owners = None if self._fuses else step.dealt
        lengths = self._replica.lengths
        pending = self._pending = collective.begin_sum(lengths, owners, timeout_s=_LONG_S) if sums else None
        fed = rows = 0
        loss, seconds, skips = LossFraction(), 0.0, Skips()
        reading = computing = 0.0
        self._measures = []
        at_once = self._most_at_once(collective.size)
        for some in (passes[first : first + at_once] for first in range(0, len(passes), at_once)):
            asked = time.monotonic()
            with traced("reading data", "step"):
                taken = [(one.microbatch, self._ahead.take(step, one)) for one in some]
            reading += time.monotonic() - asked
            began = time.monotonic()
            given = self._compute_some(step, [one for one in taken if one[1].fed], pending)
            computing += time.monotonic() - began
            for number, data in taken:
                arrays: Sequence[Flat] = ()
                fed, skips = fed + data.fed, skips + data.skips
                if (one := given.get(number)) is not None:
                    arrays = one.arrays if one.rows else ()
                    rows, skips = rows + one.rows, skips + one.skips
                    fed -= one.skips.count(SkipReason.FEED)  # only a script tells after it had them
                    loss += one.fraction
                    self._measures += [one.measure] if one.measure is not None else []
                if pending is None:
                    self._sums = arrays
                else:
                    self._bring(pending, rank if self._fuses else number, arrays)
            seconds += time.monotonic() - began
        if pending is not None and self._fuses and not passes:
            self._bring(pending, rank, ())
        self._parts = StepParts(data=reading, compute=computing)
        failpoint("worker.after_compute")
        dealt = len(operation.microbatches)
        return {
            "fed": fed,
            "rows": rows,
            "skips": skips.to_json(),
            "loss": [loss.numerator, loss.denominator],
            "seconds": seconds / dealt if dealt else 0.0,
            "digest": self._digest(step.number) if collective.size > 1 else "",
        }

    def _follow(self, step: Step, collective: Collective) -> dict[str, Any]:
        """Takes part in a step without a microbatch of it."""
        assert self._incoming is not None
        self._began, self._parts, self._measure = time.monotonic(), StepParts(), None
        owners = None if self._fuses else step.dealt
        pending = self._pending = collective.begin_sum(self._replica.lengths, owners, timeout_s=_LONG_S)
        if self._fuses:
            self._bring(pending, collective.rank, ())
        behind = not self._incoming.take_some()
        if not behind:
            self._arrive()
        none = {"fed": 0, "rows": 0, "skips": Skips().to_json(), "loss": [0.0, 0.0], "seconds": 0.0}
        return {**none, "digest": "" if behind else self._digest(step.number), "behind": behind}

    def _most_at_once(self, members: int) -> int:
        if self._fuses or not isinstance(self._replica, ComputesTogether):
            return 1
        # Each has a copy of all gradients.
        return max(1, min(self._replica.most_at_once(members), _AT_ONCE_BYTES // max(1, self._size)))

    def _compute_some(
        self, step: Step, microbatches: Sequence[tuple[int, MicrobatchData]], pending: PendingSum | None
    ) -> dict[int, Contribution]:
        """The contributions of one microbatch, or of several that are computed at once, by number."""
        if not microbatches:
            return {}
        # What is random follows from the version: a group that is founded on a checkpoint counts steps anew.
        replica, version, epoch = self._replica, self._replica.version, step.entry.task.epoch
        first, data = microbatches[0]
        with device_turn(), traced("compute", "step", step=step.number, microbatch=first, version=version):
            if len(microbatches) > 1:
                assert isinstance(replica, ComputesTogether)
                found = replica.compute_at_once(version, microbatches, epoch)
                return {number: one for (number, _), one in zip(microbatches, found, strict=True)}
            if pending is None and isinstance(replica, AppliesWhileComputing):
                if replica.about_to_compile:
                    self._session.progress.set_phase("compiling")
                return {first: replica.update(version, first, data, epoch)}
            return {first: replica.compute(version, first, data, epoch)}

    def _bring(self, pending: PendingSum, leaf: int, arrays: Sequence[Flat]) -> None:
        """Brings a leaf of each bucket: nothing is 0."""
        for bucket in range(len(self._replica.lengths)):
            if arrays:
                pending.add(leaf, bucket, arrays[bucket])
            else:
                pending.leaf(leaf, bucket)[:] = 0.0
                pending.add(leaf, bucket)

    def _digest(self, step: int) -> str:
        """Of the parameters that a step begins with; of large ones not each time."""
        cheap = self._size <= _CHEAP_BYTES or step % _DIGEST_EVERY == 0
        return self._replica.digest().hex() if cheap else ""

    def _apply(self, operation: Apply, rank: int) -> None:
        step, rows = operation.step, operation.rows
        sums, self._sums = self._sums, ()
        if len(operation.told) > 1:  # else there is nobody to hand it on to
            for kept, total in zip(self._kept, sums, strict=True):
                self._replica.memory.copy(kept, total)
            self._kept_note = {"rows": rows, "epoch": step.entry.task.epoch}
            sums = self._kept
        if self._incoming is not None:
            self._incoming.keep(sums, rows, step.entry.task.epoch)
            return
        if rows:
            self._replica.apply(sums, rows, step.entry.task.epoch)
        if self._on_first_step is not None:
            self._on_first_step()
            self._on_first_step = None
        assert self._began is not None, "each step is computed or followed"
        elapsed = self._elapsed_s = time.monotonic() - self._began
        self._began = None
        own = int(operation.told[rank]["rows"])
        progress = self._session.progress
        parts = replace(self._parts, push=max(elapsed - self._parts.data - self._parts.compute, 0.0))
        progress.record_step(own, elapsed, self._replica.version, max(1, len(step.of(rank))), parts)
        self._speed = 0.9 * self._speed + 0.1 * (step.end - step.start) / max(elapsed, 1e-6)
        loss = sum((LossFraction(*map(float, one["loss"])) for one in operation.told), LossFraction()).value
        if rows and rank == 0 and not math.isnan(loss):  # a script may tell none
            progress.record_loss(self._replica.version, loss, self._replica.learning_rate())
            if (values := take_all(self._measures, progress.metrics_due)) and progress.metrics_due:
                progress.record_metrics(values)
        for one in step.passes(rank, fused=True):
            if one.start < one.end:
                task, version = self._ahead.task(step), self._replica.version
                records = self._ahead.describe(step, one.start, one.end)
                self._traces.append(task, step.entry.token, one.start, one.end, version, records)
        failpoint("worker.after_group_step")

    # -- state -----------------------------------------------------------------------------------------------------

    def _packed(self, need: str) -> tuple[dict[str, Any], list[Any]]:
        if need == "state":
            note, buffers = pack_state(self._replica.state())
            return {"state": note}, buffers
        if need == "update":
            return {"update": self._kept_note}, [self._replica.memory.on_host(one) for one in self._kept]
        return {}, []

    def _receive(self, collective: Collective, source: int, need: str) -> Any:
        text, buffers = collective.receive(source, timeout_s=_LONG_S)
        note = json.loads(text)
        if need == "stream":
            self._incoming = IncomingState(collective, source, self._replica, _LONG_S)
            return note["book"]
        if need == "state":
            self._replica.load(unpack_state(note["state"], buffers))
        elif need == "update":
            self._kept_note = note["update"]
            for kept, given in zip(self._kept, buffers, strict=True):
                self._replica.memory.copy(kept, given.view(np.float32))
            if self._kept_note["rows"]:
                self._replica.apply(self._kept, self._kept_note["rows"], self._kept_note["epoch"])
        self._master_session.hold()
        return note["book"]

    def _arrive(self) -> None:
        """The state is here, and all that became of it since."""
        self._incoming = None
        self._master_session.hold()

    def _hand_over(self) -> None:
        """A generation that ends as planned does not end before those who are sent the state have it."""
        if self._outgoing is not None:
            self._outgoing.finish()

    def _end_streams(self) -> None:
        """Ends streams: what is not through when the group has ended is void."""
        outgoing, self._outgoing = self._outgoing, None
        incoming, self._incoming = self._incoming, None
        for one in (outgoing, incoming):
            if one is not None:
                one.finish()

    def _found(self, told: GroupDirective) -> tuple[int, Mapping[tuple[int, int], int]]:
        foundation = told.foundation
        if foundation is None:
            self._replica.load(self._initial)
            self._master_session.hold()
            return self._replica.version, {}
        files = [CheckpointFile(str(f["name"]), int(f["size"]), str(f["sha256"])) for f in foundation["files"]]
        patient_until = time.monotonic() + _STORE_S
        while True:
            try:
                state, tally = read_state(foundation["directory"], files, self._replica.layout)
                break
            except UnavailableError as error:  # the store was asked a few times
                if time.monotonic() > patient_until:
                    raise
                _log.warning("the checkpoint cannot be read yet", reason=error.message)
            except DataError as error:
                raise _Refused(error.message, fix=error.fix) from error
        try:
            self._replica.load(state)
        except DataError as error:
            raise _Refused(error.message, fix=error.fix) from error
        self._master_session.hold()
        return state.version, {} if foundation["other_job"] else tally

    def _write_share(self, order: Mapping[str, Any], metadata: Mapping[str, Any], rank: int, size: int) -> None:
        """Copies this member's share, and has it written while training goes on."""
        part = CheckpointPart(self._replica.layout, self._replica.state(), rank, size, self._member.metadata.tally)
        self._shares.begin(int(order["order"]), part, str(order["directory"]), json.dumps(metadata))

    # -- the master ------------------------------------------------------------------------------------------------

    def _speak(self) -> None:
        self._master_session.speak(self._member.metadata, self._size, self._speed, pinned=self._pin)

    def _consult(self, generation: int) -> Any:
        self._speak()
        return self._master_session.commands(self._member.metadata, generation)

    def _work_alone(self, lease: LeasedTask) -> None:
        self._master_session.set_busy(busy=True)
        work.begin(str(lease.task.id), lease.token)
        try:
            with traced(f"task: {lease.task.id.type}", "task"):
                outcome = self._run_task(lease)
        except Exception as error:
            self._session.fail(lease, error)
            return
        finally:
            self._master_session.set_busy(busy=False)
        if outcome.records:
            shard = lease.task.shard
            self._traces.append(lease.task, lease.token, shard.start, shard.end, self._replica.version)
        self._session.report(
            lease, outcome.records, outcome.result, self._replica.version, outcome.account, self._traces.trouble
        )
