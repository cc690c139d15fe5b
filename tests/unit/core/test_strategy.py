"""The strategy of a job that leaves it to us."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job import JobSpec
from elasticdl_core.job.fields import ALL_REDUCE, OF_SERVERS, PARAMETER_SERVERS
from elasticdl_core.job.strategy import ModelSight, StrategyChoice, choose_strategy, settled_strategy

GIVEN = {"model_def": "a.b", "model_zoo": "/z", "training_data": "/d", "max_workers": 3}
OTHERS: dict[str, Any] = {
    "num_ps": 2,
    "embedding_threshold_bytes": 5,
    "use_async": False,
    "lr_staleness_modulation": True,
    "delay_compensation": 1.0,
    "get_model_steps": 2,
    "max_staleness": 1,
    "wire_dtype": "bfloat16",
    "table_admission": 2,
    "table_eviction": 9,
    "table_max_rows": 1000,
    "hot_rows_staleness": 3,
    "ps_memory_mib": 100,
}
MEBIBYTE = 1 << 20


def spec(**fields: Any) -> JobSpec:
    return JobSpec.from_mapping({**GIVEN, **fields})


@pytest.mark.parametrize("name", OTHERS)
def test_options_of_parameter_servers_mean_parameter_servers(name: str) -> None:
    assert spec(**{name: OTHERS[name]}).distribution_strategy == PARAMETER_SERVERS
    choice = settled_strategy(spec(**{name: OTHERS[name], "distribution_strategy": "auto"}))
    assert choice is not None and choice.chosen == PARAMETER_SERVERS and name in choice.reason


def test_an_option_that_is_given_as_it_is_anyway_means_parameter_servers_too() -> None:
    assert spec(num_ps=1).distribution_strategy == PARAMETER_SERVERS
    assert set(OTHERS) <= set(OF_SERVERS)
    stored = spec().to_mapping()
    assert "num_ps" in stored
    assert JobSpec.from_mapping(stored).distribution_strategy == "auto"


def test_what_is_asked_for_is_chosen() -> None:
    for asked in (PARAMETER_SERVERS, ALL_REDUCE):
        choice = settled_strategy(spec(distribution_strategy=asked))
        assert choice == StrategyChoice(asked, "it was asked for")


def test_what_sums_no_gradients_needs_no_look() -> None:
    evaluation = spec(type="evaluation", validation_data="/d", checkpoint_dir_for_init="/c")
    for one in (evaluation, spec(xla="on"), spec(max_workers=33)):
        choice = settled_strategy(one)
        assert choice is not None and choice.chosen == PARAMETER_SERVERS
    assert settled_strategy(spec()) is None


@pytest.mark.parametrize(("kind", "words"), [("evaluation", "an evaluation job"), ("prediction", "a prediction job")])
def test_a_job_that_sums_no_gradients_is_no_groups_and_says_so(kind: str, words: str) -> None:
    data = {"evaluation": "validation_data", "prediction": "prediction_data"}[kind]
    given = {"model_def": "a.b", "model_zoo": "/z", "type": kind, data: "/d", "checkpoint_dir_for_init": "/c"}
    choice = settled_strategy(JobSpec.from_mapping({**given, "distribution_strategy": "auto"}))
    assert choice == StrategyChoice(PARAMETER_SERVERS, f"{words} sums no gradients")
    with pytest.raises(InvalidInputError, match=f"{words} sums no gradients"):
        JobSpec.from_mapping({**given, "distribution_strategy": ALL_REDUCE})


@pytest.mark.parametrize(
    ("sight", "chosen", "word"),
    [
        (ModelSight(refusal="it draws"), PARAMETER_SERVERS, "it draws"),
        (ModelSight(4 * MEBIBYTE, 3 * MEBIBYTE), ALL_REDUCE, "small"),
        (ModelSight(0, 64 * MEBIBYTE), PARAMETER_SERVERS, "tables are large"),
        (ModelSight(10 * MEBIBYTE, 20 * MEBIBYTE), PARAMETER_SERVERS, "most of it is tables"),
        (ModelSight(20 * MEBIBYTE, 10 * MEBIBYTE), ALL_REDUCE, "no tables"),
        # A convolution: much computing for its bytes. A table: little.
        (ModelSight(20 * MEBIBYTE, 0, "", 0.1, 0.02, 64), ALL_REDUCE, "timed"),
        (ModelSight(1 * MEBIBYTE, 60 * MEBIBYTE, "", 0.14, 0.1, 64), PARAMETER_SERVERS, "timed"),
    ],
)
def test_the_model_says_which_one_suits_it(sight: ModelSight, chosen: str, word: str) -> None:
    choice = choose_strategy(spec(max_workers=4), sight)
    assert choice.chosen == chosen
    assert word in choice.reason
    assert bool(choice.predicted) == (sight.compute_s > 0)


def test_only_what_is_not_clear_is_timed() -> None:
    assert ModelSight(refusal="x").is_clear and ModelSight(1, 1).is_clear and ModelSight(0, 1 << 30).is_clear
    assert not ModelSight(20 * MEBIBYTE, 0).is_clear


def test_a_choice_is_kept_with_its_microbatches_when_the_workers_change() -> None:
    choice = choose_strategy(spec(), ModelSight(100, 0))
    kept = StrategyChoice.from_mapping(choice.to_mapping())
    assert kept == choice
    applied = kept.applied_to(spec(max_workers=9))
    assert (applied.distribution_strategy, applied.microbatches) == (ALL_REDUCE, 4)
    assert JobSpec.from_mapping(applied.to_mapping()) == applied


def test_a_strange_sight_is_an_error() -> None:
    for strange in ({"dense_bytes": "many"}, {"table_bytes": None}, {"compute_s": []}):
        with pytest.raises((ValueError, TypeError)):
            ModelSight.from_mapping(strange)
