"""The feed of tables for PyTorch reads the columns that it gives, and no others."""

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


def test_rows_of_parquet_become_a_vector_and_a_label_in_both_frameworks(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    import tensorflow as tf

    from elasticdl_worker.trainers.torch.input.default_feed import default_feed

    pq.write_table(pa.table({"a": [1, 2], "y": [0, None], "b": [0.5, 1.5]}), tmp_path / "a.parquet")
    for predicting in (False, True):
        reader = create_data_reader(str(tmp_path), None, {"label": "y", "nulls": {"y": 7}}, predicting=predicting)
        feed, other = default_feed(reader), reader.default_feed()
        assert feed is not None and other is not None
        (shard,) = reader.create_shards()
        records = list(reader.read_records(shard))
        dataset = tf.data.Dataset.from_tensor_slices({key: [one[key] for one in records] for key in records[0]})
        mode = "prediction" if predicting else "training"
        rows = [[1.0, 0.5], [2.0, 1.5]]
        wanted = rows if predicting else list(zip(rows, [0, 7], strict=True))
        for given in (feed(records, mode, reader.metadata), other(dataset, mode, reader.metadata)):
            as_lists = [
                one.numpy().tolist() if predicting else (one[0].numpy().tolist(), int(one[1])) for one in given
            ]
            assert as_lists == wanted
