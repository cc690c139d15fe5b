"""Published models train on servers as in one process, tables and all: only rules of optimizers make a difference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from elasticdl.data.generate import write_clicks
from tests.differential.driver import Bench, Row, differences

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),
]
XDEEPFM = Path(__file__).parents[2] / "examples/xdeepfm/zoo/xdeepfm.py"
TABLES = {"embedding_threshold_bytes": 0}


def clicks(place: Path, alike: bool) -> Mapping[str, Any]:
    """Clicks of 500 ids."""
    write_clicks(place / "clicks", records=2000, ids=500)
    return {"training_data": str(place / "clicks/train"), "validation_data": str(place / "clicks/validation")}


def test_xdeepfm_is_the_same_model_on_servers(bench: Bench) -> None:
    """Its tables had other first rows on servers. SGD changes the rows that were touched, wherever they are.

    Adam moves all rows of a matrix in each update, and of a table those that were touched.
    """
    source = XDEEPFM.read_text().replace("keras.optimizers.Adam(lr)", "keras.optimizers.SGD(50 * lr)")
    assert "SGD" in source
    spec = {"minibatch_size": 64, "num_minibatches_per_task": 2, "num_epochs": 2}
    row = Row("xdeepfm", source, "published", spec, data=clicks)
    local = bench.local(row)
    assert differences(row, local, bench.cluster(row, workers=1)) == []
    local = bench.local(row, **TABLES)
    assert differences(row, local, bench.cluster(row, workers=1, **TABLES)) == []
