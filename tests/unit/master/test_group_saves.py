"""What a checkpoint of a group says is in it: the records in the members' model when they wrote it, each once.

A member trains, tells and takes tasks in any order beside checkpoints that are ordered, wait their turn, fail and are
written.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from elasticdl_core.errors import ConflictError, DataError
from elasticdl_core.group.member import ReplicaMetadata, TaskEnd
from elasticdl_core.group.steps import HeldTask, StepSchedule
from elasticdl_core.task import TaskId
from elasticdl_master.group_calls import EndedTask, MemberCall, Share
from elasticdl_master.group_control import GroupControl
from elasticdl_master.state import instructions as do
from elasticdl_master.state.accounts import RecordAccount
from elasticdl_master.state.ledger import EpochLedger
from elasticdl_runtime.lifecycle import end_all
from tests.fakes.sim_processes import JOB, finish
from tests.unit.master.test_group_tasks import OWNER, OneMember

pytestmark = pytest.mark.unit


class SavingMember(OneMember):
    """A member that also stands in the midst of a task, and writes checkpoints."""

    def __init__(self, seed: int, **changes: Any) -> None:
        self.trained: list[TaskId] = []
        self.position = -1
        self.random = random.Random(seed)
        self.orders: list[do.Save] = []
        super().__init__(**changes)
        # A few tasks ahead, as a group has whose speed is not known.
        self.rate = 0.0
        self.control = GroupControl(self.machine, self.group_service, self.dispatcher.tell, JOB)

    def train_some(self) -> None:
        """Goes on in the task in hand, to its end or not."""
        if not self.held:
            return
        task = self.held[0].task
        start = task.start if self.position < 0 else self.position
        end = self.random.randint(start + 1, task.end)
        self.trained.append(TaskId(task.type, task.epoch, task.index, start, end))
        self.version += 1
        self.position = end
        if end == task.end:
            self._end(end)

    def give_all_back(self) -> None:
        """Gives back what it holds, from where it stands."""
        while self.held:
            self._end(self.held[0].task.start if self.position < 0 else self.position)

    def _end(self, position: int) -> None:
        lease = self.held.pop(0)
        self.last = str(lease.token)
        self.ended.append(EndedTask(lease.task, lease.token, position, RecordAccount(), self.version))
        self.position = -1

    def order(self) -> None:
        """A checkpoint is ordered."""
        epochs = self.machine.epochs
        self.orders.append(do.Save("periodic", epochs.snapshot(), epochs.epochs_done, epochs.records_done))
        self.control.note_save()

    async def write(self, trouble: str = "") -> None:
        """The oldest order is carried out; what the checkpoint says is compared with what was trained."""
        saving = asyncio.create_task(self.control.save("/checkpoints/one"))
        await asyncio.sleep(0)
        assert self.group_service.save is not None
        last = str(self.held[-1].token) if self.held else self.last
        start = self.held[0].task.start if self.held else 0
        metadata = ReplicaMetadata(StepSchedule(1, 1))
        metadata.schedule.add([HeldTask(str(one.token), one.task) for one in self.held])
        metadata.schedule.last = last
        metadata.schedule.position = start if self.position < 0 else self.position
        ends = [TaskEnd(str(one.token), one.task, one.position, {}, self.version) for one in self.ended]
        metadata.ended = {end.token: end for end in ends}
        share = Share(self.group_service.save["order"], 0, 1, self.version, "share", 0, "", "{}", metadata, trouble)
        truth = list(self.trained)
        call = MemberCall(OWNER, b"here", 0, self.generation, holds=True, leaving=False, shares=[share])
        finish(self.group_service.meet(call))
        # What happens before the answer is looked at is not in the checkpoint.
        self.act()
        save = self.orders.pop(0)
        if trouble:
            with pytest.raises(ConflictError):
                await saving
        else:
            self.compare(self.machine.epochs.advanced(save, (await saving).ended), truth)
        self.control.end_save()

    def compare(self, save: do.Save, truth: list[TaskId]) -> None:
        assert save.records_done == sum(task.records for task in truth)
        number = int(save.done["round"])
        main = self.machine.plans.main
        ledger = EpochLedger(main, number)
        for task in truth:
            if task.epoch == number:
                ledger.mark(task)
        found = EpochLedger.from_mapping(main, save.done)
        assert (found.to_mapping(), found.records) == (ledger.to_mapping(), ledger.records)

    def act(self) -> None:
        """Anything but a checkpoint."""
        match self.random.choice(["train", "train", "train", "speak", "look"]):
            case "train":
                self.train_some()
            case "speak":
                self.speak()
            case "look":
                finish(self.group_service.look())
                self.speak()


async def simulate(seed: int, *, gives_back: bool, **changes: Any) -> int:
    job = SavingMember(seed, **changes)
    job.last = ""
    written = 0
    for _ in range(10_000):
        if job.machine.epochs.trained:
            break
        chance = job.random.random()
        if chance < 0.06 and len(job.orders) < 3:
            job.order()
        elif chance < 0.12 and job.orders:
            await job.write("no space" if job.random.random() < 0.3 else "")
            written += 1
        elif chance < 0.15 and gives_back:
            job.give_all_back()
        else:
            job.act()
    assert job.machine.epochs.trained
    while job.orders:
        await job.write()
    assert not job.group_service.noted, "nothing is kept for checkpoints that are over"
    return written


@pytest.mark.parametrize("gives_back", [False, True])
def test_checkpoints_say_what_is_in_them_whenever_they_are_ordered_and_written(gives_back: bool) -> None:
    changes: dict[str, Any] = {"tasks": 12, "num_epochs": 1} if gives_back else {"tasks": 4, "num_epochs": 4}
    written = sum(asyncio.run(simulate(seed, gives_back=gives_back, **changes)) for seed in range(60))
    assert written > 60, "the simulation has few checkpoints"


def test_what_a_group_gets_is_noted_for_no_checkpoint_when_none_was_ordered(tmp_path: Path) -> None:
    job = OneMember(tasks=20)
    job.look()
    assert len(job.machine.workers.group_leases) > 4
    assert not job.group_service.noted


def test_a_checkpoint_that_no_snapshot_can_describe_is_refused() -> None:
    machine = OneMember(tasks=2, num_epochs=3).machine
    main, epochs = machine.plans.main, machine.epochs
    order = do.Save("periodic", epochs.snapshot(), epochs.epochs_done, epochs.records_done)
    first = [main.task(0, index) for index in range(2)]
    done = epochs.advanced(order, [*first, main.task(1, 0)])
    assert (done.done["round"], done.training_epoch) == (1, 1)
    with pytest.raises(ConflictError, match="records of epoch 1, but not all of epoch 0"):
        epochs.advanced(order, [first[0], main.task(1, 0)])
    with pytest.raises(ConflictError, match="records of epoch 2, but not all of epoch 1"):
        epochs.advanced(order, [*first, main.task(2, 0)])


async def test_a_checkpoint_that_members_refuse_is_refused_with_their_advice() -> None:
    job = SavingMember(1)
    restoring = asyncio.create_task(job.control.restore({"directory": "/checkpoints/one", "files": [], "version": 3}))
    await asyncio.sleep(0)
    call = MemberCall(OWNER, b"here", 0, job.generation, holds=False, leaving=False, refused="why", refused_fix="how")
    meeting = asyncio.create_task(job.group_service.meet(call))  # which is answered when there is news
    try:
        with pytest.raises(DataError) as caught:
            await restoring
    finally:
        await end_all(meeting)
    assert (caught.value.message, caught.value.fix) == ("why", "how")
