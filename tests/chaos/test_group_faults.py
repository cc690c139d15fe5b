"""Members of a group are killed, stopped, drained and joined: each record counts once, and no bit differs."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from elasticdl_runtime.checkpoint_files import CheckpointFile, read_checkpoint
from tests.chaos.capacity import capacity, read_generations, read_updates, thrown_away
from tests.chaos.counting import FAST, MINIBATCH, SLOW, CountingJob, submitted, until
from tests.chaos.faults import component, nothing_left
from tests.e2e.local_cluster import Cluster

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900), pytest.mark.rotates(turns=5, family="group")]
RECORDS, MICROBATCHES = 1000, 4
MEMBERS = 3
CAPACITY_GOAL = 0.98


class GroupJob(CountingJob):
    """A counting job that is trained by a group."""

    def dense(self) -> dict[str, NDArray[Any]]:
        """All parameters in the last checkpoint."""
        last = self.checkpoints()[-1]
        files = [CheckpointFile(one["name"], one["size"], one["sha256"]) for one in last["files"]]
        return {name: np.asarray(value) for name, value in read_checkpoint(last["directory"], files).dense.items()}

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """The final value of each record's entry."""
        return {name: value.reshape(-1) for name, value in self.dense().items() if "entries" in name}

    def members(self) -> list[psutil.Process]:
        """The processes of its workers that run now."""
        found = []
        for one in self.cluster.launches(self.id):
            if one["role"] == "worker" and one["state"] == "running" and one["pid"]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    found.append(psutil.Process(one["pid"]))
        return found

    def scale(self, **bounds: int) -> None:
        """Changes how many members it may have."""
        with self.cluster.client() as client:
            client.scale(self.id, **bounds)

    def exact(self, quiet: GroupJob) -> None:
        """Each record is in the model once a pass, and the model is that of an undisturbed run, to the last bit."""
        self.nothing_lost(most_again=0)
        audit = self.cluster.job(self.id)["status"]["audit"]
        assert (audit["state"], audit["duplicates"]) == ("passed", 0), audit
        mine, others = self.dense(), quiet.dense()
        assert mine.keys() == others.keys()
        for name, value in others.items():
            np.testing.assert_array_equal(mine[name].view(np.uint8), value.view(np.uint8), err_msg=name)


def group_job(
    cluster: Cluster,
    name: str,
    *,
    epochs: int,
    members: int,
    pace: float = SLOW,
    steps_apart: int = 25,
    records: int = RECORDS,
) -> contextlib.AbstractContextManager[GroupJob]:
    """A counting job of a group that was submitted; cancelled if the test leaves it before it ends."""
    options = (
        *("--distribution_strategy", "AllReduceStrategy", "--microbatches", str(MICROBATCHES)),
        *("--minibatch_size", str(MICROBATCHES * MINIBATCH), "--num_minibatches_per_task", "1"),
        *("--checkpoint_steps", str(steps_apart)),
    )
    module = "counting_in_group"
    return submitted(
        GroupJob, cluster, name, module, *options, records=records, epochs=epochs, workers=members, pace=pace
    )


def quiet_job(cluster: Cluster, name: str, epochs: int, records: int = RECORDS) -> GroupJob:
    """An undisturbed run by one member, to its end."""
    with group_job(cluster, name, epochs=epochs, members=1, pace=FAST, records=records) as job:
        job.finish()
        job.nothing_lost(most_again=0)
    return job


def kill_all(processes: list[psutil.Process]) -> None:
    """Kills processes at once and without a word: none outlives the others for long enough to hand anything on."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGSTOP)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert alive == []


@pytest.mark.slow
def test_a_group_that_dies_whole_goes_on_from_its_last_checkpoint(cluster: Cluster) -> None:
    epochs = 8
    with group_job(cluster, "whole-group", epochs=epochs, members=2) as job:
        until(lambda: len(job.members()) == 2, "two members run")
        job.trains_on_after_a_checkpoint()
        assert job.running(), "void: the job was nearly over when its members were to be killed"
        kill_all(job.members())
        until(lambda: job.events("restored"), "the job goes back to its last checkpoint", 300.0)
        job.trains()
        job.finish()
        job.exact(quiet_job(cluster, "whole-group-quiet", epochs))
        nothing_left(job)


def test_a_group_goes_on_through_ends_of_epochs_without_a_master(cluster: Cluster) -> None:
    epochs, records = 24, 200
    with group_job(cluster, "no-master", epochs=epochs, members=2, pace=SLOW / 4, records=records) as job:
        until(lambda: len(job.members()) == 2, "two members run")
        until(lambda: job.applied() >= 2 * records, "some epochs are over, and the group knows its speed")
        agent = until(lambda: component(cluster, "agent"), "the agent runs").process
        agent.suspend()  # it would start the next master
        try:
            _kill_the_master(job, random.Random())
            alone = job.applied()
            until(lambda: job.applied() >= alone + 4 * records, "the group goes on through the ends of four epochs")
        finally:
            agent.resume()
        until(lambda: len(_masters(job)) == 2, "another master takes over")
        job.trains()
        assert job.running(), "void: the job was nearly over before the next master came"
        job.finish()
        job.exact(quiet_job(cluster, "no-master-quiet", epochs, records))
        nothing_left(job)


def test_a_member_whose_parameters_differ_is_put_out_and_fetches_the_model(cluster: Cluster) -> None:
    epochs, records = 20, 200
    with group_job(cluster, "differs", epochs=epochs, members=3, pace=SLOW / 4, records=records) as job:
        # A change of the only member would be that of the model.
        until(lambda: any(": 3 members" in one for one in job.events("group")), "three members are in the group")
        until(lambda: job.applied() >= 2 * records, "the group trains")
        before = len(job.events("group"))
        flip = job.pace.with_suffix(".flip")
        flip.write_text("")
        until(lambda: not flip.exists(), "a member has changed a weight")
        until(lambda: len(job.events("group")) > before, "the others notice")
        assert len(job.members()) == 3, "it was not restarted"
        job.trains()
        assert job.running(), "void: the job was nearly over before the member was back"
        job.finish()
        assert job.events("worker_lost") == []
        told = job.events("group")[before:]
        assert any("differs" in one for one in told), told
        job.exact(quiet_job(cluster, "differs-quiet", epochs, records))
        nothing_left(job)


@pytest.mark.timeout(6000)
@pytest.mark.parametrize(
    ("seconds", "faults"),
    [pytest.param(180, 6, id="3 minutes"), pytest.param(1800, 62, id="30 minutes", marks=pytest.mark.slow)],
)
def test_faults_at_random_lose_nothing_and_change_no_bit(
    cluster: Cluster, seconds: int, faults: int, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(seconds)
    # A step takes as long as the records of whoever computes most of it: so many epochs are not over before the end.
    step_s = -(-MICROBATCHES // MEMBERS) * MINIBATCH * SLOW
    epochs = int(seconds / step_s * MICROBATCHES * MINIBATCH / RECORDS * 1.2)
    with (
        group_job(cluster, f"quiet-{seconds}", epochs=epochs, members=1, pace=FAST) as quiet,
        group_job(cluster, f"chaos-{seconds}", epochs=epochs, members=MEMBERS, steps_apart=100) as job,
    ):
        until(lambda: len(job.members()) == MEMBERS, "all members run")
        began = time.monotonic()
        kinds, lasted = [], []
        for number in range(faults):
            job.trains()
            assert job.running(), f"void: the job was nearly over at fault {number}"
            kind = FAULTS[chance.choice(sorted(FAULTS))] if number else _kill_one
            kinds.append(kind.__name__)
            struck = time.time()
            kind(job, chance)
            lasted.append((struck, time.time()))
            time.sleep(max(0.0, began + (number + 1) * seconds / faults - time.monotonic()))  # how long it lasts
        print(f"faults: {' '.join(kinds)}")
        job.trains()
        folder = cluster.job_dir(job.id)
        updates = read_updates(folder)
        used = capacity(updates, read_generations(folder), lasted)
        print(used.told())
        print(f"of {job.applied()} records {thrown_away(updates)} went away with every member, since a checkpoint")
        met = "met" if used.share >= CAPACITY_GOAL else "missed"
        record_property("TARGET", f"group_capacity_used_{seconds}_s {used.share:.4f} >={CAPACITY_GOAL} {met}")
        job.finish(timeout_s=900)
        quiet.finish(timeout_s=240.0 + seconds)
        quiet.nothing_lost(most_again=0)
        job.exact(quiet)
        nothing_left(job)


def _one_of(job: GroupJob, chance: random.Random) -> psutil.Process:
    found: list[psutil.Process] = until(job.members, "a member runs")
    return chance.choice(found)


def _kill_one(job: GroupJob, chance: random.Random) -> None:
    kill_all([_one_of(job, chance)])


def _kill_two(job: GroupJob, chance: random.Random) -> None:
    found = until(job.members, "a member runs")
    kill_all(chance.sample(found, min(2, len(found))))


def _kill_every_one(job: GroupJob, chance: random.Random) -> None:
    kill_all(job.members())


def _stop_one(job: GroupJob, chance: random.Random) -> None:
    process = _one_of(job, chance)
    with contextlib.suppress(psutil.NoSuchProcess):
        process.suspend()
        time.sleep(chance.choice((0.2, 1.0, 3.0)))  # how long the fault lasts
        process.resume()


def _drain_and_join(job: GroupJob, chance: random.Random) -> None:
    job.scale(min_workers=1, max_workers=MEMBERS - 1)
    until(lambda: len(job.members()) < MEMBERS, "a member leaves")
    job.scale(min_workers=MEMBERS, max_workers=MEMBERS)


def _masters(job: GroupJob) -> list[dict[str, Any]]:
    return [one for one in job.cluster.launches(job.id) if one["role"] == "master"]


def _kill_the_master(job: GroupJob, chance: random.Random) -> None:
    for one in _masters(job):
        if one["state"] == "running" and one["pid"]:
            kill_all([psutil.Process(one["pid"])])


FAULTS: dict[str, Callable[[GroupJob, random.Random], None]] = {
    "kill": _kill_one,
    "kill again": _kill_one,
    "two": _kill_two,
    "all": _kill_every_one,
    "stop": _stop_one,
    "drain": _drain_and_join,
    "master": _kill_the_master,
}
