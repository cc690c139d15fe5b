"""Fields of a job under other names: understood at every door, and refused where two names differ."""

from __future__ import annotations

import pytest

from elasticdl.client.requests import submission
from elasticdl.submission import prepare
from elasticdl_core.errors import SpecError
from elasticdl_core.job import ALIASES, JobSpec, resolve_aliases

pytestmark = pytest.mark.unit

PLAIN = {"model_def": "digits.forward", "model_bundle": "sha256:" + "0f" * 32, "training_data": "/data"}
VALUES = {"name": "ads", "max_workers": 4, "num_ps": 3, "max_steps": 9, "feed": "read", "image": "own:1"}


@pytest.mark.parametrize(("alias", "name"), list(ALIASES.items()))
def test_an_alias_means_the_field_at_every_door(alias: str, name: str) -> None:
    given = {**PLAIN, alias: VALUES[name]}
    assert getattr(JobSpec.from_mapping(given), name) == VALUES[name]
    for body in (submission(given, {}), submission(PLAIN, {alias: VALUES[name]}), prepare(given, check=False)):
        assert body[name] == VALUES[name]
        assert alias not in body


def test_no_alias_is_a_field_itself() -> None:
    assert not ALIASES.keys() & set(JobSpec.__dataclass_fields__)
    assert set(ALIASES.values()) <= set(JobSpec.__dataclass_fields__)


def test_two_names_of_a_field_must_agree() -> None:
    assert resolve_aliases({"num_workers": 2, "max_workers": 2}) == {"max_workers": 2}
    assert resolve_aliases({"num_workers": 2.0, "max_workers": 2}) == {"max_workers": 2}
    for first, second in ((2, 3), (1, True), (1, 1.5)):
        with pytest.raises(SpecError) as caught:
            resolve_aliases({"max_workers": first, "num_workers": second, "num_ps": 1, "num_ps_pods": 2})
        assert [problem.field for problem in caught.value.problems] == ["max_workers", "num_ps"]
        assert "'max_workers' (" in caught.value.problems[0].message
        assert caught.value.problems[0].fix == "give 'max_workers' alone"


def test_a_field_given_to_submit_replaces_the_one_of_the_specification_under_either_name() -> None:
    assert submission({**PLAIN, "num_workers": 2}, {"max_workers": 3})["max_workers"] == 3
    assert submission({**PLAIN, "max_workers": 2}, {"num_workers": 3})["max_workers"] == 3
