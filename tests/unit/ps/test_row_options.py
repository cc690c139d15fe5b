"""The job's options on rows: what is refused, and that the rest arrives."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl_core.errors import SpecError
from elasticdl_core.job import JobSpec
from elasticdl_core.model import RowPolicy
from elasticdl_worker.trainers.on_servers.trainer import update_mode

pytestmark = pytest.mark.unit

TRAINING = {"model_def": "m.model", "model_zoo": "/zoo", "training_data": "/data"}
EVALUATION = {
    "model_def": "m.model",
    "model_zoo": "/zoo",
    "validation_data": "/data",
    "checkpoint_dir_for_init": "/c",
    "type": "evaluation",
}


def test_the_options_make_the_update_modes_policy() -> None:
    spec = JobSpec.from_mapping(
        {**TRAINING, "table_admission": 3, "table_eviction": 1000, "table_max_rows": 10_000, "hot_rows_staleness": 4}
    )
    assert update_mode(spec).rows == RowPolicy(3, 1000, 10_000)
    assert not update_mode(JobSpec.from_mapping(TRAINING)).rows.active


@pytest.mark.parametrize(
    ("base", "field", "value", "word"),
    [
        (TRAINING, "table_admission", 0, "too small"),
        (TRAINING, "table_admission", 256, "too large"),
        (TRAINING, "table_eviction", -1, "too small"),
        (TRAINING, "table_max_rows", 63, "minibatch"),
        (TRAINING, "hot_rows_staleness", -1, "too small"),
        ({**TRAINING, "use_async": False}, "hot_rows_staleness", 2, "synchronous"),
        (EVALUATION, "table_admission", 2, "changes no rows"),
        (EVALUATION, "table_eviction", 2, "changes no rows"),
        (EVALUATION, "table_max_rows", 1000, "changes no rows"),
        (EVALUATION, "hot_rows_staleness", 1, "changes no rows"),
    ],
)
def test_options_that_make_no_sense_are_refused(base: dict[str, Any], field: str, value: int, word: str) -> None:
    with pytest.raises(SpecError, match=word) as caught:
        JobSpec.from_mapping({**base, field: value})
    assert [problem.field for problem in caught.value.problems] == [field]
    JobSpec.from_mapping(base)
