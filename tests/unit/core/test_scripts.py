"""Jobs that run a script: what makes no sense for them is refused, and what they need is chosen."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl_core.errors import SpecError
from elasticdl_core.job import JobSpec

SCRIPT = {"model_def": "train.__main__", "model_zoo": "/zoo"}


def test_a_script_is_trained_by_a_group_and_lists_its_own_records() -> None:
    spec = JobSpec.from_mapping({**SCRIPT, "max_workers": 3, "minibatch_size": 32, "script_args": "--lr 0.1 'a b'"})
    assert spec.runs_script
    assert spec.by_group
    assert spec.framework == "torch"
    assert spec.microbatches == 4
    assert JobSpec.from_mapping(spec.to_mapping()) == spec


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"type": "evaluation", "validation_data": "/v", "checkpoint_dir_for_init": "/c"}, "type"),
        ({"validation_data": "/v"}, "validation_data"),
        ({"loss": "other"}, "loss"),
        ({"model_params": {"units": 3}}, "model_params"),
        ({"optimizer_params": {"lr": 3}}, "optimizer_params"),
        ({"distribution_strategy": "ParameterServerStrategy"}, "distribution_strategy"),
        ({"framework": "tensorflow"}, "framework"),
        ({"script_args": "'a"}, "script_args"),
        ({"on_nan": "skip"}, "on_nan"),
        ({"num_ps": 2}, "num_ps"),
        ({"export_formats": "pt2"}, "export_formats"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec.from_mapping({**SCRIPT, **fields})
    assert name in {problem.field for problem in caught.value.problems}


def test_arguments_are_those_of_a_script() -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec.from_mapping(
            {"model_def": "digits.forward", "model_zoo": "/zoo", "training_data": "/d", "script_args": "--x"}
        )
    assert [problem.field for problem in caught.value.problems] == ["script_args"]
