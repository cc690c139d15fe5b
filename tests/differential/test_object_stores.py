"""Jobs whose checkpoints and outputs lie in a store: exact though all their processes are killed, in every way.

In the process of a test ``memory://`` is a store like others; S3 is moto's server, which fails now and then.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from elasticdl_core.backoff import Backoff
from elasticdl_core.job import JobSpec, JobState
from elasticdl_core.job.fields import default_of
from elasticdl_core.ports.launcher import Role
from elasticdl_runtime.object_store import ObjectStore
from elasticdl_runtime.stored_checkpoints import MANIFEST, find_checkpoint
from elasticdl_worker.local import run_local
from tests.differential.driver import BASE, COMPARE, Bench, differences
from tests.differential.processes import RealProcesses
from tests.differential.test_warm_starts import KERAS, LOCAL_CHECKPOINTS, TORCH, agree, begun, heads
from tests.fakes.internal_api import InternalApi
from tests.fakes.s3_server import serving_s3

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
EPOCHS = 12
MINIBATCH = BASE["minibatch_size"]


@pytest.fixture(scope="module", params=["memory", pytest.param("s3", marks=pytest.mark.slow)])
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("elasticdl_runtime.object_store._PAUSES", Backoff(first_s=0.001, longest_s=0.01))
        if request.param == "memory":
            yield "memory://jobs"
            return
        pytest.importorskip("s3fs", reason="needs the extra s3-dev")
        pytest.importorskip("moto", reason="needs the extra s3-dev")
        with serving_s3("jobs") as server, server.spoiling(0.05, "GET", "PUT", "HEAD"):
            yield "s3://jobs"
            assert server.faults


async def lose_everything(api: InternalApi, processes: RealProcesses) -> None:
    """Kills all parameter servers and workers of a running job that has a checkpoint."""
    await api.pulse.until(lambda: bool(api.checkpoints), 120.0)
    assert api.state is JobState.RUNNING
    for role in (Role.PS, Role.WORKER):
        for process in processes.living(role):
            processes.kill(process)


@pytest.mark.rotates(turns=4)
@pytest.mark.parametrize("framework", [KERAS, TORCH])
@pytest.mark.parametrize("way", ["parameter servers", "a group"])
def test_a_job_that_loses_everything_goes_on_from_a_store(
    bench: Bench, bucket: str, way: str, framework: str
) -> None:
    place = f"{bucket}/{uuid.uuid4().hex}"
    row = heads(framework, extra=True)
    fields: dict[str, Any] = {
        "num_epochs": EPOCHS, "checkpoint_dir": f"{place}/checkpoints", "output": f"{place}/out",
        "checkpoint_steps": 2, "during": lose_everything,
    }  # fmt: skip
    if way == "a group":
        made = bench.group(row, **fields)
        compare = differences
    else:  # what is done again comes in another order
        made = bench.cluster(row, workers=1, **fields)
        compare = COMPARE["form"]
    assert compare(row, bench.local(row, num_epochs=EPOCHS), made) == []
    (audited,) = (message for kind, message in made.told if kind == "audit")
    exact = "audit passed: 576 records planned, 576 in the model, 0 passed over"
    found = re.fullmatch(rf"{exact}(?:, (\d+) of them more than once)?", audited)
    assert found, audited
    again = int(found[1] or 0)
    # Servers are cut after the order to save, while tasks are in work: what a checkpoint has beyond it is done again.
    assert again == 0 or way == "parameter servers"
    assert made.steps * MINIBATCH == 576 + again
    assert any(kind in ("ps_lost", "worker_lost") for kind, _ in made.told), made.told
    last = find_checkpoint(f"{place}/checkpoints")
    assert (last["version"], last["kind"]) == (made.steps, "final")
    # The old ones are gone, and nothing of what was begun and lost has a manifest.
    manifests = [name for name in ObjectStore(f"{place}/checkpoints").sizes() if name.endswith(MANIFEST)]
    assert 1 <= len(manifests) <= default_of("keep_checkpoint_max") + 1


@pytest.mark.rotates(turns=2)
@pytest.mark.parametrize("framework", [KERAS, TORCH])
def test_every_way_begins_with_what_a_local_run_put_into_a_store(bench: Bench, bucket: str, framework: str) -> None:
    place = f"{bucket}/{uuid.uuid4().hex}"
    row = heads(framework, extra=True)
    first = bench.local(row, num_epochs=1, checkpoint_dir=place, output=f"{place}-out", **LOCAL_CHECKPOINTS)
    assert first.error == ("", "")
    local = bench.local(row, num_epochs=1)
    assert differences(row, local, first, records=False) == []
    ways = begun(bench, row, first, place)
    agree(row, ways)
    assert differences(row, bench.local(row, num_epochs=2), ways["--local"], records=False) == []


@pytest.mark.rotates(turns=2)
@pytest.mark.parametrize("framework", [KERAS, TORCH])
def test_predictions_are_put_into_a_store(bench: Bench, bucket: str, framework: str) -> None:
    place = f"{bucket}/{uuid.uuid4().hex}"
    row = heads(framework, extra=True)
    first = bench.local(row, num_epochs=1, checkpoint_dir=f"{place}/checkpoints", **LOCAL_CHECKPOINTS)
    assert first.error == ("", "")
    trained = first.output.parent
    spec: dict[str, Any] = {
        "type": "prediction", "model_def": f"{row.name}.{row.model}", "model_zoo": str(trained / "zoo"),
        "prediction_data": str(trained / "train.csv"), "minibatch_size": 8,
        "checkpoint_dir_for_init": f"{place}/checkpoints",
    }  # fmt: skip
    events: list[dict[str, Any]] = []
    run_local(JobSpec.from_mapping(spec), f"{place}/out", events.append)
    run_local(JobSpec.from_mapping(spec), trained / "predicted", events.append)
    stored, plain = (event["artifacts"] for event in events if event["event"] == "done")
    assert [one["sha256"] for one in stored] == [one["sha256"] for one in plain]
    assert ObjectStore(f"{place}/out").sizes() == {one["name"]: one["size"] for one in stored}
    assert stored[0]["path"] == f"{place}/out/{stored[0]['name']}"


def test_a_local_run_tries_its_store_before_it_trains(bench: Bench, bucket: str) -> None:
    outcome = bench.local(heads(KERAS, extra=True), output="nothing://here/x")
    assert "cannot be opened" in outcome.error[0], outcome.error
    assert not outcome.steps
