"""The checkpoint that a job keeps for workers that read it themselves."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.errors import DataError, InvalidInputError
from elasticdl_master.kept_checkpoint import find_kept, keep, keep_in_mind, remove_kept, require_room

pytestmark = pytest.mark.unit
CONTENT = b"parameters"


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """A checkpoint of one file."""
    folder = tmp_path / "trained"
    folder.mkdir()
    (folder / "ps-0.ckpt").write_bytes(CONTENT)
    digest = hashlib.sha256(CONTENT).hexdigest()
    files = [{"name": "ps-0.ckpt", "size": len(CONTENT), "sha256": digest, "ps": 0}]
    return {"version": 7, "directory": str(folder), "files": files, "created_at": 1.0}  # type: ignore[typeddict-item]


def test_the_copy_stays_when_the_checkpoint_goes(tmp_path: Path, manifest: Manifest) -> None:
    job = tmp_path / "job"
    assert find_kept(job) is None
    kept = keep(manifest, job)
    (Path(manifest["directory"]) / "ps-0.ckpt").unlink()
    assert find_kept(job) == kept == {**manifest, "directory": str(job / "initial")}
    assert keep(kept, job) == kept, "the next master keeps what is kept"
    assert (job / "initial" / "ps-0.ckpt").read_bytes() == CONTENT
    remove_kept(job)
    assert find_kept(job) is None


def test_which_checkpoint_it_is_is_written_once_and_again_only_where_it_differs(
    tmp_path: Path, manifest: Manifest
) -> None:
    job = tmp_path / "job"
    file = job / "initial" / "named.json"
    keep_in_mind(manifest, job)
    first = file.stat().st_ino
    found = find_kept(job)
    assert found == manifest
    keep_in_mind(found, job)
    assert file.stat().st_ino == first, "each writing makes a new file"
    held = file.open("rb")  # so that its number is not given to another
    with held:
        other: Manifest = {**manifest, "version": 8}
        keep_in_mind(other, job)
        assert file.stat().st_ino != first
    assert find_kept(job) == other
    file.write_text("{")
    keep_in_mind(other, job)
    assert find_kept(job) == other


def test_what_an_earlier_master_began_is_begun_anew(tmp_path: Path, manifest: Manifest) -> None:
    job = tmp_path / "job"
    (job / "initial").mkdir(parents=True)
    (job / "initial" / "ps-0.ckpt").write_bytes(b"par")
    assert find_kept(job) is None
    keep(manifest, job)
    assert (job / "initial" / "ps-0.ckpt").read_bytes() == CONTENT


@pytest.mark.parametrize("name", ["../secret", "link"])
def test_no_name_leads_out_of_the_checkpoint(tmp_path: Path, manifest: Manifest, name: str) -> None:
    (tmp_path / "secret").write_bytes(CONTENT)
    (Path(manifest["directory"]) / "link").symlink_to(tmp_path / "secret")
    manifest["files"][0]["name"] = name
    with pytest.raises(DataError, match="is not whole"):
        keep(manifest, tmp_path / "job")
    assert find_kept(tmp_path / "job") is None


@pytest.mark.parametrize(("slots", "mib", "fits"), [(1, 512, True), (1, 511, False), (3, 256, True), (0, 0, True)])
def test_parameters_that_no_worker_may_hold_are_refused_with_what_to_do(
    manifest: Manifest, slots: int, mib: int, fits: bool
) -> None:
    manifest["files"][0]["size"] = 1 << 30
    manifest["model"] = json.dumps({"slots": ["m"] * slots})
    if fits:
        require_room(manifest, mib)
        return
    with pytest.raises(InvalidInputError, match="512 MiB, and a worker gets 511 MiB") as refused:
        require_room(manifest, mib)
    assert "ParameterServerStrategy" in refused.value.fix
