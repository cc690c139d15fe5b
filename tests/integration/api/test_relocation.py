"""Data directories that lie elsewhere than when they were used last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from elasticdl_agent.cluster.relocation import former_root, note_location, relocate
from elasticdl_core.errors import ConflictError
from elasticdl_runtime.cluster.paths import DataDirectory
from elasticdl_runtime.database import tables as t
from tests.integration.api.conftest import Api

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("before", "after"), [('old "dä', "new"), ("data", "data/below"), ("data/below", "data")])
async def test_what_jobs_name_by_the_former_path_follows(
    before: str, after: str, api: Api, database_url: str, tmp_path: Path
) -> None:
    old, new = tmp_path / before, tmp_path / after
    saved, other = str(old / "jobs/j-1/checkpoints/version-3"), f"{old}-besides/jobs"
    job_id, master = await api.running(
        checkpoint_dir_for_init=saved,
        training_data=f"/elsewhere,{old},{old}/jobs/rows,file://{old}/jobs/rows,{other}",
        output=str(tmp_path / "out"),
    )
    answer = await master.post("/checkpoints", manifest={"version": 3, "files": [], "directory": saved})
    assert answer.status_code in (200, 204), answer.text
    directory = DataDirectory(new)
    initial = new / "jobs" / job_id / "initial"
    initial.mkdir(parents=True)
    (initial / "named.json").write_text(json.dumps({"directory": saved, "version": 3}))
    note_location(directory, old)

    for expected in (3, 0):  # once more: the `up` before may have been ended before it noted the place
        note_location(directory, old)
        assert await relocate(directory, old, database_url) == expected
    moved = saved.replace(str(old), str(new), 1)
    spec = (await api.job(job_id))["spec"]
    assert spec["checkpoint_dir_for_init"] == moved
    assert spec["training_data"] == f"/elsewhere,{new},{new}/jobs/rows,file://{new}/jobs/rows,{other}"
    assert spec["output"] == str(tmp_path / "out")
    assert (await _manifest(api))["directory"] == moved
    assert json.loads((initial / "named.json").read_text()) == {"directory": moved, "version": 3}
    assert former_root(directory) is None


async def _manifest(api: Api) -> Any:
    async with api.services.database.transaction() as connection:
        return (await connection.execute(select(t.checkpoints.c.manifest))).scalar_one()


def test_a_copy_that_shares_the_folder_of_its_database_is_refused(tmp_path: Path) -> None:
    shared, original, copy = (tmp_path / name for name in ("shared", "original", "copy"))
    for folder in (shared, original, copy):
        folder.mkdir()
    for folder in (original, copy):
        (folder / "postgres").symlink_to(shared)
    note_location(DataDirectory(copy), original)
    with pytest.raises(ConflictError, match="is a copy of") as refused:
        former_root(DataDirectory(copy))
    assert "backup" in (refused.value.fix or "")
    (original / "postgres").unlink()
    assert former_root(DataDirectory(copy)) == original
