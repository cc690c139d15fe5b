"""What a job says of its updates: how large they are, how many an epoch has, and who can compute."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl_core.errors import SpecError
from elasticdl_core.job import JobSpec
from elasticdl_core.job.updates import (
    records_per_update,
    updates_per_epoch,
    words_at_submission,
    words_of_rows,
    words_of_spare,
    words_of_updates,
)
from elasticdl_core.shard import Shard

pytestmark = pytest.mark.unit
BASE = {"model_def": "a.b", "model_zoo": "/z", "training_data": "/d"}
GROUP, SERVERS = {"distribution_strategy": "AllReduceStrategy"}, {"distribution_strategy": "ParameterServerStrategy"}
TASKS = [Shard("a", 0, 512), Shard("a", 512, 700), Shard("b", 0, 64)]


@pytest.mark.parametrize(
    ("fields", "records", "updates", "words"),
    [
        ({**SERVERS, "max_workers": 3}, 64, 12, "64 records an update (minibatch_size), 12 updates"),
        (GROUP, 64, 12, "64 records an update (minibatch_size), 12 updates an epoch"),
        ({**GROUP, "max_workers": 2}, 64, 12, "64 records an update (minibatch_size) in 2 microbatches of 32, 12"),
        ({**SERVERS, "use_async": False, "grads_to_wait": 2}, 128, 6, "128 records an update (2 minibatches of 64)"),
        ({**SERVERS, "get_model_steps": 4}, 256, 4, "256 records an update (4 minibatches of 64), 4 updates"),
        ({**GROUP, "use_async": False, "grads_to_wait": 2}, 128, 7, "128 records an update (minibatch_size), 7"),
        (
            {**GROUP, "max_workers": 3, "microbatches": 2},
            64,
            12,
            "12 updates an epoch; of at most 3 workers 2 can compute, as an update is cut into 2 parts",
        ),
    ],
)
def test_a_job_says_how_its_updates_are(fields: dict[str, Any], records: int, updates: int, words: str) -> None:
    spec = JobSpec.from_mapping({**BASE, **fields})
    assert (records_per_update(spec), updates_per_epoch(spec, TASKS)) == (records, updates)
    assert words in words_of_updates(spec, updates)


def test_the_original_s_larger_update_is_a_larger_minibatch_of_a_group_and_said() -> None:
    given = {**BASE, **GROUP, "use_async": False, "grads_to_wait": 4, "minibatch_size": 32}
    spec = JobSpec.from_mapping(given)
    assert (spec.minibatch_size, spec.grads_to_wait, spec.use_async) == (128, 1, True)
    (said,) = words_at_submission(given, spec)
    assert said.endswith("an update has 4 x 32 = 128 records, as with --minibatch_size 128")
    assert JobSpec.from_mapping(spec.to_mapping()) == spec, "once"
    assert words_at_submission(spec.to_mapping(), spec) == []
    with pytest.raises(SpecError, match="grads_to_wait"):
        JobSpec.from_mapping({**given, "use_async": True})


def test_more_workers_than_can_compute_are_taken_with_a_word() -> None:
    given = {**BASE, **GROUP, "max_workers": 3, "microbatches": 2}
    (said,) = words_at_submission(given, JobSpec.from_mapping(given))
    assert "of at most 3 workers 2 can compute" in said
    assert words_at_submission(given | {"max_workers": 2}, JobSpec.from_mapping(given | {"max_workers": 2})) == []
    assert (words_of_spare(9, 0), words_of_spare(2, 2)) == ("", "")


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("adam", {"learning_rate": 0.1}, True),
        ("torch.adam", {}, True),
        ("rmsprop", {"momentum": 0.0}, True),
        ("sgd", {"momentum": 0.9}, True),
        ("torch.adagrad", {"weight_decay": 0.1}, True),
        ("sgd", {"momentum": 0.0, "nesterov": False}, False),
        ("torch.sparse_adam", {}, False),
        ("adagrad", {}, False),
        ("ftrl", {}, True),
    ],
)
def test_a_job_says_by_which_rule_rows_of_tables_move(name: str, params: dict[str, Any], said: bool) -> None:
    words = words_of_rows("abcde", name, [params])
    assert words.startswith(f"rows of a, b, c and 2 more: {name} moves those of a minibatch alone") is said
    words = words_of_rows("abcde", name, [{}, params], by_group=True)
    assert words.startswith(f"rows of a, b, c and 2 more: {name} moves all of them in each update") is said
    assert words_of_rows([], name, [params]) == ""
