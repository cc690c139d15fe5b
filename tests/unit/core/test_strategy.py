"""The strategy of a job that leaves it to us."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job import JobSpec
from elasticdl_core.job.fields import ALL_REDUCE, OF_SERVERS, PARAMETER_SERVERS
from elasticdl_core.job.strategy import (
    ModelSight,
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


def timed(dense_bytes: int, table_bytes: int, **more: Any) -> ModelSight:
    """A model of which a minibatch of 64 rows was timed both ways."""
    given = {"compute_s": 0.01, "apply_s": 0.001, "served_s": 0.01, "served_bytes": 1000, "cores": 8, **more}
    return ModelSight(dense_bytes, table_bytes, rows=64, **given)


@pytest.mark.parametrize(
    ("sight", "chosen", "word"),
    [
        (ModelSight(refusal="it draws"), PARAMETER_SERVERS, "no group can train it: it draws"),
        (ModelSight(fault="no PyTorch"), PARAMETER_SERVERS, "the model could not be looked at: no PyTorch"),
        (ModelSight(7 * MEBIBYTE, 0), ALL_REDUCE, "small"),
        (ModelSight(0, 64 * MEBIBYTE), PARAMETER_SERVERS, "tables are large"),
        (ModelSight(10 * MEBIBYTE, 20 * MEBIBYTE), PARAMETER_SERVERS, "most of it is tables"),
        (ModelSight(20 * MEBIBYTE, 10 * MEBIBYTE), ALL_REDUCE, "no tables"),
        (ModelSight(0, 64 * MEBIBYTE, unserved="it is odd"), ALL_REDUCE, "servers cannot train it: it is odd"),
        # A convolution: much computing for its bytes, all of which servers would send for each minibatch.
        (timed(20 * MEBIBYTE, 0, compute_s=0.1, served_s=0.1, served_bytes=40 * MEBIBYTE), ALL_REDUCE, "timed"),
        # A table of which a minibatch touches little.
        (timed(1 * MEBIBYTE, 60 * MEBIBYTE, compute_s=0.14, apply_s=0.1), PARAMETER_SERVERS, "timed"),
        # A small one: it is less to sum, and more to compute with a gradient of all rows than with those touched.
        (timed(1000, 1 * MEBIBYTE, compute_s=0.008), PARAMETER_SERVERS, "timed"),
        (timed(1000, 1 * MEBIBYTE, compute_s=0.001), ALL_REDUCE, "timed"),
    ],
)
def test_the_model_says_which_one_suits_it(sight: ModelSight, chosen: str, word: str) -> None:
    choice = choose_strategy(spec(max_workers=4), sight)
    assert choice.chosen == chosen
    assert word in choice.reason
    assert bool(choice.predicted) == (sight.compute_s > 0)


def test_only_what_is_not_clear_is_timed() -> None:
    assert ModelSight(refusal="x").is_clear and ModelSight(1, 0).is_clear and ModelSight(0, 1 << 30).is_clear
    assert not ModelSight(20 * MEBIBYTE, 0).is_clear
    assert not ModelSight(1, 1).is_clear


def predicted(sight: ModelSight, **fields: Any) -> tuple[float, float]:
    """Samples a second by a group and by servers."""
    rates = choose_strategy(spec(**fields), sight).predicted
    return rates[ALL_REDUCE]["samples_per_second"], rates[PARAMETER_SERVERS]["samples_per_second"]


def test_what_is_predicted_follows_from_what_was_timed() -> None:
    sight = timed(0, 16_000_000, compute_s=0.020, apply_s=0.003, served_s=0.008, served_bytes=600_000)
    by_group, by_servers = predicted(sight, max_workers=4)
    # 20 ms of computing, 7 ms of waiting, 16 MB at 1.6 GB/s of summing, 3 ms of applying for 4 minibatches.
    assert by_group == pytest.approx(4 * 64 / 0.040, rel=1e-3)
    # 8 ms of computing, 3 ms and 0.6 MB at 0.6 GB/s of exchange, in each of 4 workers.
    assert by_servers == pytest.approx(4 * 64 / 0.012, rel=1e-3)


def test_workers_and_servers_that_share_few_cores_are_predicted_to_be_as_slow_as_those() -> None:
    sight = timed(0, 16_000_000, compute_s=0.020, apply_s=0.003, served_s=0.008, served_bytes=600_000)
    sight = replace(sight, cores=2, read_s=0.003, served_read_s=0.002)
    by_group, by_servers = predicted(sight, max_workers=4)
    assert by_group == pytest.approx(2 * 64 / (0.020 + 0.003 + 0.010 + 0.003), rel=1e-3)
    assert by_servers == pytest.approx(2 * 64 / (0.008 + 0.002 + 0.004), rel=1e-3)


def test_who_is_alone_waits_for_nobody_and_sums_nothing() -> None:
    assert predicted(timed(0, 16_000_000), max_workers=1)[0] == pytest.approx(64 / 0.011, rel=1e-3)


def test_servers_are_no_faster_than_they_answer() -> None:
    sight = timed(10_000_000, 0, served_s=0.001, served_bytes=60_000_000, cores=1000)
    assert predicted(sight, max_workers=32)[1] == pytest.approx(64 / 0.0515, rel=1e-3)


def test_a_choice_is_kept_with_its_microbatches_when_the_workers_change() -> None:
    choice = choose_strategy(spec(), ModelSight(100, 0))
    kept = StrategyChoice.from_mapping(choice.to_mapping())
    assert kept == choice
    applied = kept.applied_to(spec(max_workers=9))
    assert (applied.distribution_strategy, applied.microbatches) == (ALL_REDUCE, 4)
    assert JobSpec.from_mapping(applied.to_mapping()) == applied


def test_a_sight_is_read_as_it_was_sent() -> None:
    sight = timed(3, 4, read_s=0.5, served_read_s=0.25, refusal="r", unserved="u")
    assert ModelSight.from_mapping(asdict(sight)) == sight
    assert ModelSight.from_mapping({"served_s": -1, "cores": -1}) == ModelSight()


def test_a_strange_sight_is_an_error() -> None:
    for strange in ({"dense_bytes": "many"}, {"table_bytes": None}, {"compute_s": []}):
        with pytest.raises((ValueError, TypeError)):
            ModelSight.from_mapping(strange)
