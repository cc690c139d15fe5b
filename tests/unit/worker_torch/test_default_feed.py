"""The feed of CSV files for PyTorch reads the columns that it gives, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.data import create_data_reader
from tests.fakes.frameworks import NEEDS_TORCH

pytestmark = [pytest.mark.unit, NEEDS_TORCH]


@pytest.mark.parametrize("label", ["to_do", "\u2013", "\u672a\u77e5", "not known"])
def test_predictions_do_not_look_at_a_label(tmp_path: Path, label: str) -> None:
    from elasticdl_worker.trainers.torch.input.default_feed import default_feed

    (tmp_path / "rows.csv").write_text(f"a,y,b\n1,{label},0.5\n", encoding="utf-8")
    reader = create_data_reader(str(tmp_path), reader_params={"label": "y"}, predicting=True)
    feed = default_feed(reader)
    assert feed is not None
    (shard,) = reader.create_shards()
    names = reader.metadata.column_names
    records = [dict(zip(names, row, strict=True)) for row in reader.read_records(shard)]
    given = feed(records, "prediction", reader.metadata)
    assert [features.tolist() for features in given] == [[1.0, 0.5]]
    with pytest.raises(ValueError, match=r"no number|could not convert"):
        list(feed(records, "training", reader.metadata))


def test_whole_numbers_that_float32_does_not_have_are_no_features(tmp_path: Path) -> None:
    from elasticdl_worker.trainers.torch.input.default_feed import default_feed

    (tmp_path / "rows.csv").write_text("id,y\n16777216,1\n16777217,0\n")
    reader = create_data_reader(str(tmp_path), reader_params={"label": "y"})
    feed = default_feed(reader)
    assert feed is not None
    given = iter(feed([{"id": "16777216", "y": "1"}, {"id": "16777217", "y": "0"}], "training", reader.metadata))
    assert next(given)[0].tolist() == [16777216.0]
    with pytest.raises(ValueError, match="float32 does not have"):
        next(given)
