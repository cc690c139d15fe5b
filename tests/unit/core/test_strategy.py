"""The strategy of a job that leaves it to us."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import pytest

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job import JobSpec
from elasticdl_core.job.fields import ALL_REDUCE, OF_SERVERS, PARAMETER_SERVERS
from elasticdl_core.job.strategy import (
    ModelProfile,
    StrategyChoice,
    choose_by_checkpoint,
    choose_strategy,
    settled_strategy,
)

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


def test_what_no_group_could_do_needs_no_look() -> None:
    for one in (spec(xla="on"), spec(max_workers=33)):
        choice = settled_strategy(one)
        assert choice is not None and choice.chosen == PARAMETER_SERVERS
    assert settled_strategy(spec()) is None


BOTH = pytest.mark.parametrize(("kind", "words"), [("evaluation", "an evaluation"), ("prediction", "a prediction")])


def untrained(kind: str, **fields: Any) -> JobSpec:
    """A job that does not train."""
    data = {"evaluation": "validation_data", "prediction": "prediction_data"}[kind]
    given = {"model_def": "a.b", "model_zoo": "/z", "type": kind, data: "/d", "checkpoint_dir_for_init": "/c"}
    return JobSpec.from_mapping({**given, **fields})


@BOTH
def test_the_checkpoint_says_what_suits_a_job_that_does_not_train(kind: str, words: str) -> None:
    auto = untrained(kind, distribution_strategy="auto", max_workers=40)
    assert settled_strategy(auto) is None, "it depends on the checkpoint"
    choice = choose_by_checkpoint(auto, has_tables=False)
    assert choice.chosen == ALL_REDUCE
    assert f"{words} job changes no parameters" in choice.reason
    applied = StrategyChoice.from_mapping(choice.to_mapping()).applied_to(auto)
    assert (applied.has_servers, applied.by_group, applied.microbatches) == (False, False, 0)
    assert choose_by_checkpoint(auto, has_tables=True).chosen == PARAMETER_SERVERS


@BOTH
def test_a_job_that_does_not_train_has_neither_servers_nor_a_group(kind: str, words: str) -> None:
    asked = untrained(kind, distribution_strategy=ALL_REDUCE)
    assert (asked.has_servers, asked.by_group) == (False, False)
    assert settled_strategy(asked) == StrategyChoice(ALL_REDUCE, "it was asked for")
    assert JobSpec.from_mapping(asked.to_mapping()) == asked
    by_servers = untrained(kind, distribution_strategy=PARAMETER_SERVERS)
    assert by_servers.has_servers
    assert asked.records_per_task == by_servers.records_per_task


@BOTH
@pytest.mark.parametrize(
    ("name", "value"),
    [("microbatches", 2), ("deterministic", False), ("xla", "on"), ("num_ps", 2), ("embedding_threshold_bytes", 5)],
)
def test_what_means_nothing_without_servers_and_training_is_refused(
    kind: str, words: str, name: str, value: object
) -> None:
    with pytest.raises(InvalidInputError, match=name) as refused:
        untrained(kind, distribution_strategy=ALL_REDUCE, **{name: value})
    assert "leave it out" in str(refused.value)


@BOTH
@pytest.mark.parametrize(("name", "value"), [("xla", "on"), ("num_ps", 2), ("embedding_threshold_bytes", 5)])
def test_options_of_servers_mean_servers_where_nothing_is_trained(
    kind: str, words: str, name: str, value: object
) -> None:
    choice = settled_strategy(untrained(kind, distribution_strategy="auto", **{name: value}))
    assert choice is not None and choice.chosen == PARAMETER_SERVERS


@pytest.mark.parametrize(
    ("profile", "chosen", "word"),
    [
        (ModelProfile(refusal="it draws"), PARAMETER_SERVERS, "no group can train it: it draws"),
        (ModelProfile(fault="no PyTorch"), PARAMETER_SERVERS, "the model could not be looked at: no PyTorch"),
        (ModelProfile(7 * MEBIBYTE), ALL_REDUCE, "no embedding tables (7.3 MB of parameters)"),
        (ModelProfile(700 * MEBIBYTE), ALL_REDUCE, "no embedding tables"),
        (ModelProfile(70_000, 20_000), ALL_REDUCE, "0.0 MB of embeddings, each too small for a table"),
        (
            ModelProfile(20_000, 170_000),
            PARAMETER_SERVERS,
            "most of it is embeddings (0.2 MB, and 0.0 MB of parameters)",
        ),
        (ModelProfile(1000, 20_000, 1), PARAMETER_SERVERS, "it has 1 embedding table (0.0 MB of parameters"),
        (ModelProfile(1000, 64 * MEBIBYTE, 2), PARAMETER_SERVERS, "2 embedding tables"),
        (ModelProfile(0, 64 * MEBIBYTE, unserved="it is odd"), ALL_REDUCE, "servers cannot train it: it is odd"),
    ],
)
def test_the_model_says_which_one_suits_it(profile: ModelProfile, chosen: str, word: str) -> None:
    choice = choose_strategy(spec(max_workers=4), profile)
    assert choice.chosen == chosen
    assert word in choice.reason


def test_nothing_that_a_clock_measures_is_looked_at() -> None:
    assert {one.name for one in fields(ModelProfile)} == {
        *("dense_bytes", "embedding_bytes", "tables", "refusal", "unserved", "fault")
    }


def test_a_choice_is_kept_with_its_microbatches_when_the_workers_change() -> None:
    choice = choose_strategy(spec(), ModelProfile(100, 0))
    kept = StrategyChoice.from_mapping(choice.to_mapping())
    assert kept == choice
    applied = kept.applied_to(spec(max_workers=9))
    assert (applied.distribution_strategy, applied.microbatches) == (ALL_REDUCE, 4)
    assert JobSpec.from_mapping(applied.to_mapping()) == applied


def test_a_sight_is_read_as_it_was_sent() -> None:
    profile = ModelProfile(3, 4, 1, "r", "u")
    assert ModelProfile.from_mapping(asdict(profile)) == profile
    assert ModelProfile.from_mapping({"tables": -1, "seconds": 3}) == ModelProfile()


def test_a_strange_sight_is_an_error() -> None:
    for strange in ({"dense_bytes": "many"}, {"embedding_bytes": None}, {"tables": []}):
        with pytest.raises((ValueError, TypeError)):
            ModelProfile.from_mapping(strange)
