"""The dtype of embedding rows on the wire, as a job's specification says it."""

from __future__ import annotations

import pytest

from elasticdl_core.errors import SpecError
from elasticdl_core.job import JobSpec
from elasticdl_core.job.fields import WIRE_DTYPES
from elasticdl_runtime.convert.parameters import check_wire_dtype

pytestmark = pytest.mark.unit
BASE = {"model_def": "zoo.model", "model_zoo": "/zoo", "training_data": "/data"}


@pytest.mark.parametrize("dtype", WIRE_DTYPES)
def test_what_a_specification_allows_can_travel(dtype: str) -> None:
    spec = JobSpec.from_mapping(BASE | {"wire_dtype": dtype})
    assert check_wire_dtype(spec.wire_dtype) == dtype


def test_another_dtype_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec.from_mapping(BASE | {"wire_dtype": "float16"})
    assert [problem.field for problem in caught.value.problems] == ["wire_dtype"]
