"""The listing of a job's shards, and the names of its artifacts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elasticdl.data import columns_of, create_data_reader
from elasticdl_core.errors import DataError
from elasticdl_core.job import JobSpec
from elasticdl_core.task import TaskType
from elasticdl_master.artifacts import locate
from elasticdl_master.listing import has_own_reader, list_shards, open_readers
from elasticdl_master.state.plan import JobPlans

pytestmark = pytest.mark.unit


def _spec_of(reader_params: dict[str, Any]) -> JobSpec:
    return JobSpec.from_mapping(
        {"model_def": "m.f", "model_zoo": "/zoo", "training_data": "/d", "data_reader_params": reader_params}
    )


class TestListing:
    @pytest.mark.parametrize(
        ("text", "own"),
        [
            ("def custom_data_reader(o): ...", True),
            ("from readers import make as custom_data_reader", True),
            ("custom_data_reader = 1", True),
            ("custom_data_reader: object = 1", True),
            ("from readers import *", True),
            ("from math import *", False),
            ("if True:\n    def custom_data_reader(o): ...", True),
            ("try:\n    from fast import custom_data_reader\nexcept ImportError:\n    pass", True),
            ("globals().update(make())", True),
            ("def f():\n    custom_data_reader = 1", False),
            ("# custom_data_reader", False),
            ("syntax error here", False),
        ],
    )
    def test_a_module_with_its_own_reader_is_known_without_running_it(
        self, tmp_path: Path, text: str, own: bool
    ) -> None:
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "m.py").write_text(text)
        (tmp_path / "readers.py").write_text("from sub.more import *")
        (tmp_path / "sub" / "more.py").write_text("from readers import *\ndef custom_data_reader(o): ...")
        spec = JobSpec.from_mapping({"model_def": "sub.m.f", "model_zoo": str(tmp_path), "training_data": "/d"})
        assert has_own_reader(spec, tmp_path) is own

    async def test_shards_come_in_pieces_and_the_last_one_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "d.csv").write_text("a\n" + "1\n" * 5001)
        reader = create_data_reader(str(tmp_path / "d.csv"), 4)
        pieces = [(piece.shards, piece.last) async for piece in list_shards(reader)]
        assert [last for _, last in pieces] == [False] * (len(pieces) - 1) + [True]
        assert len(pieces) > 1
        assert sum(shard.records for shards, _ in pieces for shard in shards) == 5001

    def test_the_columns_are_in_the_durable_plan(self) -> None:
        plans, again = JobPlans(_spec_of({})), JobPlans(_spec_of({}))
        plans.columns = ["a", "b"]
        again.adopt(json.loads(json.dumps(plans.to_mapping())))
        assert again.columns == ["a", "b"]

    async def test_missing_data_is_named(self) -> None:
        with pytest.raises(DataError, match="/nowhere"):
            await open_readers(_spec_of({}), {TaskType.TRAINING: "/nowhere/x.csv"})

    async def test_all_data_of_a_job_has_the_columns_of_the_main_data(self, tmp_path: Path) -> None:
        """A validation file with a column too many failed after the first epoch, as a fault of the model."""
        (tmp_path / "t.csv").write_text("a,b,y\n1,2,3\n")
        (tmp_path / "v.csv").write_text("y,b,a\n3,2,1\n")
        origins = {TaskType.TRAINING: str(tmp_path / "t.csv"), TaskType.EVALUATION: str(tmp_path / "v.csv")}
        readers = await open_readers(_spec_of({}), origins)
        assert [columns_of(reader) for reader in readers.values()] == [["a", "b", "y"]] * 2
        (tmp_path / "v.csv").write_text("a,b,y,z\n1,2,3,4\n")
        with pytest.raises(DataError, match=r"v\.csv: has the column 'z' too many"):
            await open_readers(_spec_of({}), origins)
        # What was trained on a checkpoint's columns is told by its manifest.
        with pytest.raises(DataError, match=r"t\.csv: lacks the column 'x'"):
            await open_readers(_spec_of({"trained_columns": ["x", "b", "y"]}), origins)


@pytest.mark.parametrize(
    ("name", "path", "output", "wanted"),
    [
        ("", "/job/artifacts/model/a.keras", "", ("model/a.keras", "model/a.keras")),
        ("a.keras", "/job/artifacts/model/a.keras", "", ("a.keras", "model/a.keras")),
        ("", "/out/v/a.keras", "/out", ("v/a.keras", "/out/v/a.keras")),
        ("", "model/a.keras", "/out", ("model/a.keras", "model/a.keras")),
    ],
)
def test_artifacts_are_named_by_where_they_are(name: str, path: str, output: str, wanted: tuple[str, str]) -> None:
    assert locate(name, path, Path("/job/artifacts"), output) == wanted
