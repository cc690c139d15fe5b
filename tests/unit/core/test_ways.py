"""Each option in each way of running a job does what the table says: it is refused by a door, or taken by all."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl_api.schemas.jobs import JobChanges
from elasticdl_core.contract import Verdict
from elasticdl_core.errors import SpecError
from elasticdl_core.job import JobSpec
from elasticdl_core.job.field_groups import FIELD_GROUPS, OF_THE_MODEL
from elasticdl_core.job.fields import ALL_REDUCE, PARAMETER_SERVERS, default_of
from elasticdl_core.job.rules import OF_GROUPS
from elasticdl_core.job.ways import Way, become, refuse_locally, refuse_meaningless

pytestmark = pytest.mark.unit
CODE = {"model_zoo": "/zoo", "model_def": "net.forward"}
TRAINS = {**CODE, "training_data": "/d"}
INIT = {"checkpoint_dir_for_init": "/c"}
WAYS: dict[Way, dict[str, Any]] = {
    Way.LOCAL: TRAINS,
    Way.SERVERS: {**TRAINS, "distribution_strategy": PARAMETER_SERVERS},
    Way.GROUP: {**TRAINS, "distribution_strategy": ALL_REDUCE},
    Way.EVALUATION: {**CODE, **INIT, "type": "evaluation", "validation_data": "/v"},
    Way.PREDICTION: {**CODE, **INIT, "type": "prediction", "prediction_data": "/p"},
    Way.SCRIPT: {**TRAINS, "model_def": "net.__main__"},
}
WAYS |= {
    Way.LOCAL_EVALUATION: WAYS[Way.EVALUATION],
    Way.LOCAL_PREDICTION: WAYS[Way.PREDICTION],
    Way.LOCAL_SCRIPT: WAYS[Way.SCRIPT],
}
SYNCHRONOUS = {"use_async": False}
OTHER: dict[str, dict[str, Any]] = {
    "model_def": {},
    "model_zoo": {},
    "model_bundle": {"model_bundle": "sha256:" + "0" * 64, "model_zoo": ""},
    "grads_to_wait": {"grads_to_wait": 2, **SYNCHRONOUS},
    "sync_version_tolerance": {"sync_version_tolerance": 2, **SYNCHRONOUS},
    "table_max_rows": {"table_max_rows": 1000},
    "evaluation_steps": {"evaluation_steps": 5, "validation_data": "/v"},
    "keep_best": {"keep_best": "auc:max", "validation_data": "/v"},
    "max_staleness": {"max_staleness": 2},
    "microbatches": {"microbatches": 2},
    "max_workers": {"max_workers": 2},
    "min_workers": {"min_workers": 2, "max_workers": 2},
    "envs": {"envs": {"A": "b"}},
    "labels": {"labels": {"a": "b"}},
    "framework": {"framework": "tensorflow"},
    "xla": {"xla": "on"},
    "keras": {"keras": "legacy"},
    "torch_compile": {"torch_compile": "on"},
    "autocast": {"autocast": "bfloat16"},
    "on_nan": {"on_nan": "skip"},
    "wire_dtype": {"wire_dtype": "bfloat16"},
    "output_format": {"output_format": "csv"},
    "export_formats": {"export_formats": "keras"},
    "worker_resource_request": {"worker_resource_request": "gpu=1"},
    "ps_resource_request": {"ps_resource_request": "cpu=1"},
    "master_resource_request": {"master_resource_request": "cpu=1"},
    "image": {"image": "registry.example/own:1"},
    "image_pull_policy": {"image_pull_policy": "Always"},
    "volume": {"volume": "claim_name=data,mount_path=/mnt/data"},
    "node_selector": {"node_selector": {"pool": "train"}},
    "name": {"name": "other"},
    "distribution_strategy": {"distribution_strategy": PARAMETER_SERVERS},
}
"""What is given of a field that is not simply a larger number, the opposite or another word."""
NOT_TRIED = {("collective", way) for way in Way} | {
    ("distribution_strategy", way) for way in (Way.GROUP, Way.SCRIPT, Way.LOCAL_SCRIPT)
}
"""NCCL asks for a device and more; a strategy is a way."""


def given(name: str) -> dict[str, Any]:
    """A value that is not the default."""
    if name in OTHER:
        return OTHER[name]
    plain = default_of(name)
    if isinstance(plain, bool):
        return {name: not plain}
    return {name: plain + 1 if isinstance(plain, int | float) else {"a": 1} if isinstance(plain, dict) else "other"}


def refused(way: Way, fields: dict[str, Any]) -> set[str]:
    """The fields that a door refuses."""
    try:
        cut = {"distribution_strategy": ALL_REDUCE} if fields.keys() & set(OF_GROUPS) and way is Way.LOCAL else {}
        spec = JobSpec.from_mapping({**WAYS[way], **cut, **fields})
        if way.is_local:
            refuse_locally(spec)
        refuse_meaningless(spec)
    except SpecError as error:
        assert all(problem.fix for problem in error.problems)
        return {problem.field for problem in error.problems}
    return set()


@pytest.mark.parametrize("way", Way)
def test_the_table_says_what_the_doors_do(way: Way) -> None:
    """--local passed over a dozen options without a word, and the API took what the command line refused."""
    assert refused(way, {}) == set()
    wrong = {}
    for name in (name for names in FIELD_GROUPS.values() for name in names):
        if (name, way) in NOT_TRIED:
            continue
        verdict, how = become(name, way)
        found = name in refused(way, given(name))
        # What describes the model travels with it through jobs of all types, by the API.
        shared = verdict is Verdict.REFUSED and name in OF_THE_MODEL and not found
        if found != (verdict is Verdict.REFUSED) and not shared:
            wrong[name] = (verdict, how, refused(way, given(name)))
        assert bool(how) == (verdict is not Verdict.HONOURED), name
    assert wrong == {}


def test_what_can_be_changed_of_a_job_is_done_in_every_way_of_the_cluster() -> None:
    """Or ``PATCH /jobs/{id}`` would have to ask the table."""
    changed = {(name, way, become(name, way)) for name in JobChanges.model_fields for way in Way if not way.is_local}
    assert {one for one in changed if one[2] != (Verdict.HONOURED, "")} == set()


def test_a_local_script_leaves_checkpoints_to_the_script() -> None:
    fields = {**WAYS[Way.SCRIPT], "checkpoint_steps": 5}
    with pytest.raises(SpecError, match="checkpoint_steps: --local does not do it: the state of a script is left"):
        refuse_locally(JobSpec.from_mapping(fields))
    refuse_locally(JobSpec.from_mapping({**TRAINS, "checkpoint_steps": 5, "xla": "off"}))
