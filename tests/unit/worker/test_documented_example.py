"""The first example of the documents, on the data that they name for it."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest
import tensorflow as tf

from elasticdl.data import Shard, create_data_reader
from elasticdl.data.generate import write_digits

pytestmark = pytest.mark.unit
PAGE = Path(__file__).parents[3] / "docs" / "model-api.md"


def test_the_label_of_the_first_example_is_the_digit(tmp_path: Path) -> None:
    """It took the first column, a pixel that is always 0, and learned it with an accuracy of 1."""
    text = PAGE.read_text()
    assert "`elasticdl data generate digits data --format csv`" in text
    (source,) = re.findall(r"```python\n(import tensorflow as tf\n.*?)```", text, re.DOTALL)[:1]
    module = types.ModuleType("example")
    exec(source, module.__dict__)
    write_digits(tmp_path, "csv")
    reader = create_data_reader(str(tmp_path / "train"))
    (shard, *_) = reader.create_shards()
    rows = [row for row, _ in zip(reader.read_records(Shard(shard.name, 0, 50)), range(50), strict=True)]
    features, labels = next(iter(module.feed(tf.data.Dataset.from_tensor_slices(rows), "training", None).batch(50)))
    assert features.shape == (50, 8, 8)
    assert set(labels.numpy().tolist()) == set(range(10))
