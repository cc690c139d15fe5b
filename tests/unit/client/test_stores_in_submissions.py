"""Places of jobs in stores, as the command line sends them."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.cli.local import run_local
from elasticdl.submission import absolute_paths, prepare
from elasticdl_core.errors import DataError, SpecError

pytestmark = pytest.mark.unit


def test_urls_stay_and_files_become_paths(tmp_path: Path) -> None:
    given = {
        "output": "s3://bucket/x",
        "checkpoint_dir": f"file://{tmp_path}/m%C3%A4rz",
        "checkpoint_dir_for_init": "gs://b/c",
    }
    assert absolute_paths(given, any_word=False) == {**given, "checkpoint_dir": f"{tmp_path}/märz"}


@pytest.mark.parametrize("place", ["memory://x/y", "ftp://host/x", "s3://key:word@bucket/x"])
def test_a_local_run_refuses_places_where_nothing_would_stay(place: str, tmp_path: Path) -> None:
    spec = {"model_def": "m.f", "model_zoo": str(tmp_path), "training_data": str(tmp_path), "output": place}
    with pytest.raises(SpecError, match=r"output: .* (scheme|password)"):
        run_local(spec)


def test_names_of_tables_of_maxcompute_are_left_as_they_are(tmp_path: Path) -> None:
    given = {
        "model_def": "m.f",
        "model_zoo": str(tmp_path),
        "training_data": "shop.clicks",
        "data_reader_params": {"kind": "odps"},
    }
    assert prepare(given, check=False)["training_data"] == "shop.clicks"
    with pytest.raises(DataError, match=r"there is no shop\.clicks"):
        prepare({**given, "data_reader_params": {}}, check=False)
