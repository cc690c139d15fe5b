"""Checkpoints in S3 while answers are refused, cut or lost: exact, or refused in words; never half."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl_core.errors import ConflictError, DataError, InvalidInputError, UnavailableError
from elasticdl_ps.checkpoint import save_partition
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.store.partition import Partition
from elasticdl_runtime.checkpoint_directory import CheckpointDirectory
from elasticdl_runtime.object_store import ObjectStore, try_out
from elasticdl_runtime.stored_checkpoints import MANIFEST, find_checkpoint
from tests.contract.stores.test_checkpoints import HEADER, JOB, SIZE, names_in, parts_of, saved, values_of
from tests.fakes.s3_server import FaultyS3, serving_s3rver

pytestmark = [pytest.mark.contract, pytest.mark.timeout(120)]
ALL = ("GET", "HEAD", "PUT", "DELETE", "POST")


@pytest.fixture(autouse=True)
def more_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many that chance alone ends nothing."""
    init = ObjectStore.__init__

    def patient(self: ObjectStore, url: str, **_: object) -> None:
        init(self, url, tries=30, deadline_s=60.0)

    monkeypatch.setattr(ObjectStore, "__init__", patient)


@pytest.mark.parametrize("number", range(3))
def test_checkpoints_are_exact_though_requests_fail(s3: FaultyS3, number: int) -> None:
    place = f"s3://jobs/faults-{number}"
    with s3.spoiling(0.3, *ALL, kinds=("refused", "lost")):
        kept = [saved(place, version, value=version) for version in (7, 9)]
        CheckpointDirectory(place, JOB).prune(kept[0])
    with s3.spoiling(0.3, kinds=("refused", "cut")):
        found = find_checkpoint(place)
        assert found == kept[1]
        assert np.array_equal(values_of(found), np.repeat(np.float32([9, 10]), SIZE // 2))
    assert s3.faults
    assert len(names_in(place)) == 3


def test_a_manifest_whose_answer_was_lost_is_put_once(s3: FaultyS3) -> None:
    store = ObjectStore("s3://jobs/lost")
    with s3.spoiling(1.0, "PUT", kinds=("lost",)):
        store.put_new(MANIFEST, b"mine")
    assert s3.faults
    assert store.read(MANIFEST) == b"mine"
    with pytest.raises(ConflictError, match="is there already, and another one"):
        store.put_new(MANIFEST, b"others")


def test_manifests_are_put_under_the_condition_that_there_is_none(s3: FaultyS3) -> None:
    s3.headers.clear()
    ObjectStore("s3://jobs/conditional").put_new(MANIFEST, b"x")
    assert [headers.get("HTTP_IF_NONE_MATCH") for method, headers in s3.headers if method == "PUT"] == ["*"]


@pytest.mark.slow
def test_a_store_that_puts_over_what_is_there_is_refused(tmp_path: Path) -> None:
    """By s3rver, which does not know the condition."""
    pytest.importorskip("s3fs", reason="needs the extra s3-dev")
    with serving_s3rver("jobs", tmp_path), pytest.raises(InvalidInputError, match="puts an object over one that is"):
        try_out(["s3://jobs/x"])


def test_a_bucket_that_is_not_there_is_said_at_the_door(s3: FaultyS3) -> None:
    with pytest.raises(DataError, match="cannot be written") as error:
        try_out(["s3://nobody/x"])
    assert "make the bucket" in error.value.fix


def test_a_store_that_is_away_is_said_with_what_to_do(s3: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with s3.spoiling(1.0, *ALL, kinds=("refused",)):
        with pytest.raises(UnavailableError, match="s3://jobs/away/") as error:
            ObjectStore("s3://jobs/away", tries=2).read("x")
        assert "credentials in the environment" in error.value.fix
        with pytest.raises(UnavailableError):
            find_checkpoint("s3://jobs/away")


KILLED = """
import os, signal, sys
from elasticdl_runtime.object_store import ObjectStore
store = ObjectStore(sys.argv[1])
part = store._fs._call_s3
async def dies(method, *args, **kwargs):
    if method == "upload_part" and kwargs["PartNumber"] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return await part(method, *args, **kwargs)
store._fs._call_s3 = dies
from pathlib import Path
store.put("ps-0", Path(sys.argv[2]))
"""


def test_an_upload_whose_process_is_killed_leaves_nothing_that_counts(s3: FaultyS3, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(120 << 20))
    place = "s3://jobs/killed"
    command = [sys.executable, "-c", KILLED, f"{place}/version-1", str(tmp_path / "large")]
    died = subprocess.run(command, env=dict(os.environ), timeout=90, check=False, capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert not names_in(place)
    with pytest.raises(DataError, match="there is no checkpoint"):
        find_checkpoint(place)


def test_a_parameter_server_says_why_it_could_not_save(s3: FaultyS3) -> None:
    partition = Partition(load_kernels())
    partition.push_model([], [], HEADER.optimizer, HEADER.mode)
    with pytest.raises(ConflictError, match="cannot be written") as error:
        save_partition(partition, "s3://nobody/version-1", 0, 1)
    assert "bucket" in error.value.fix


def test_parts_of_a_lost_save_are_abandoned(s3: FaultyS3) -> None:
    directory = CheckpointDirectory("s3://jobs/abandoned", JOB)
    begun = directory.prepare(1)
    parts_of(begun, 1.0)
    directory.abandon(begun)
    assert not names_in("s3://jobs/abandoned")
