"""Flags of the job commands: one source, aliases, refusals, suggestions, values."""

from __future__ import annotations

import dataclasses

import pytest

from elasticdl.cli.flags import VERBS, fields_without_flag, flags_of, mapping_of, rewrite
from elasticdl.cli.pairs import parse_pairs, parse_strings
from elasticdl.cli.removed_flags import removed_flag
from elasticdl_core.errors import InvalidInputError, SpecError
from elasticdl_core.job import ALIASES, JobSpec, JobType

pytestmark = pytest.mark.unit

OWN = {"local": False, "idempotency-key": True}


def parse(*args: str, kind: JobType = JobType.TRAINING) -> dict[str, object]:
    """From words to a specification's data."""
    given = dict(word[2:].split("=", 1) for word in rewrite(kind, args, OWN))
    return mapping_of(kind, given)


def test_every_field_is_a_flag_of_some_command_and_every_flag_a_field() -> None:
    assert fields_without_flag() == {"type"}
    names = {name for kind in JobType for name in flags_of(kind)}
    assert names == {field.name for field in dataclasses.fields(JobSpec)} - {"type"}
    assert set(ALIASES.values()) <= names
    assert not set(ALIASES) & names


def test_every_flag_has_a_sentence_of_help() -> None:
    for kind in JobType:
        for flag in flags_of(kind).values():
            assert flag.help.endswith("."), flag.name
            assert len(flag.help) > 10, flag.name


def test_names_are_taken_with_underscores_and_with_dashes_and_both_forms_of_values() -> None:
    wanted = {"model_zoo": "zoo", "num_epochs": 3}
    assert parse("--model_zoo", "zoo", "--num_epochs=3") == wanted
    assert parse("--model-zoo=zoo", "--num-epochs", "3") == wanted


@pytest.mark.parametrize(
    ("alias", "field"),
    [("job_name", "name"), ("num_workers", "max_workers"), ("num-ps-pods", "num_ps"), ("max_step", "max_steps")],
)
def test_names_of_the_original_mean_what_they_meant(alias: str, field: str) -> None:
    assert parse(f"--{alias}", "5")[field] == ("5" if field == "name" else 5)


def test_the_number_of_workers_leaves_the_minimum_alone() -> None:
    assert parse("--num_workers", "4") == {"max_workers": 4}
    assert parse("--num_workers", "4", "--min_workers", "2") == {"max_workers": 4, "min_workers": 2}


def test_two_names_of_a_flag_must_agree() -> None:
    assert parse("--num_workers=4", "--max-workers", "4") == {"max_workers": 4}
    with pytest.raises(InvalidInputError, match="--num_workers=4 and --max_workers=3 are two names of one flag"):
        parse("--num_workers=4", "--max_workers", "3")
    with pytest.raises(InvalidInputError, match="give --num_ps alone"):
        parse("--num_ps=1", "--num-ps-pods=2")


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--use_async"], True),
        (["--use_async=true"], True),
        (["--use_async", "True"], True),
        (["--use_async=false"], False),
        (["--use_async", "false"], False),
        (["--no-use_async"], False),
        (["--no_use_async"], False),
        (["--no-use-async"], False),
        (["--use_async", "--no-use_async"], False),
    ],
)
def test_truth_has_many_spellings(words: list[str], value: bool) -> None:
    assert parse(*words) == {"use_async": value}


def test_a_bare_flag_of_truth_does_not_eat_the_next_flag() -> None:
    assert parse("--lr_staleness_modulation", "--num_epochs", "2") == {
        "lr_staleness_modulation": True,
        "num_epochs": 2,
    }


@pytest.mark.parametrize(
    ("words", "message", "fix"),
    [
        (["--num_epoch", "3"], "no flag --num_epoch", "did you mean --num_epochs?"),
        (["--mini-batch-size=3"], "no flag --mini-batch-size", "did you mean --minibatch_size?"),
        (["--zzzzzz"], "no flag --zzzzzz", "elasticdl train --help"),
        (["digits"], "'digits' is not a flag", "--name value"),
        (["-n", "3"], "'-n' is not a flag", "--name value"),
        (["--num_epochs"], "--num_epochs lacks its value", "--num_epochs VALUE"),
        (["--num_epochs", "--num_ps", "2"], "--num_epochs lacks its value", "--num_epochs=VALUE"),
        (["--use_async=maybe"], "neither true nor false", "give true or false"),
        (["--no-use_async=true"], "takes no value", "--use_async=false"),
        (["--no-num_epochs"], "no flag --no-num_epochs", "did you mean"),
        (["--prediction_data", "x"], "means nothing to `elasticdl train`", "elasticdl predict"),
        (["--type=training"], "--type is no flag", "elasticdl train"),
        (["--docker_image_repository", "x"], "no longer a flag: no image", "--image names the one"),
        (["--worker-pod-priority=high"], "no longer a flag", "--priority"),
        (["--restart_policy=Always"], "no longer a flag", "--restart_policy Never"),
        (["--restart_policy", "OnFailure"], "no longer a flag", "--restart_policy Never"),
        (["--worker_resource_limit=cpu=1"], "no longer a flag", "--worker_resource_request"),
        (["--cpu"], "--cpu lacks its value", "--cpu VALUE"),
    ],
)
def test_what_is_wrong_is_refused_with_what_to_do(words: list[str], message: str, fix: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        rewrite(JobType.TRAINING, words, OWN)
    assert message in caught.value.message
    assert fix in caught.value.fix


GONE = (
    "image_base namespace cluster_spec yaml master_pod_priority ps_pod_priority worker_pod_priority "
    "restart_policy docker_image_repository docker_base_url docker_tlscert ps_resource_limit "
    "worker_resource_limit image_pull_secrets tensorboard_log_dir use_go_ps relaunch_pod_max_num"
)


@pytest.mark.parametrize("name", GONE.split(" "))
def test_flags_of_the_original_that_are_gone_say_why(name: str) -> None:
    gone = removed_flag(name)
    assert gone is not None
    assert gone.reason and gone.instead


def test_the_request_for_a_device_is_taken_again() -> None:
    assert removed_flag("worker_resource_request") is None
    for role in ("worker", "ps", "master"):
        assert removed_flag(f"{role}_resource_request") is None
        assert removed_flag(f"{role}_resource_limit") is not None


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["--cpu", "2", "--memory=4Gi", "--gpu", "1"], "cpu=2,memory=4Gi,gpu=1"),
        (["--worker_resource_request", "gpu=1,cpu=1", "--cpu", "2"], "gpu=1,cpu=2"),
        (["--cpu=1", "--cpu=2"], "cpu=2"),
        (["--restart_policy", "Never", "--gpu=1"], "gpu=1"),
    ],
)
def test_parts_of_what_workers_ask_for_have_flags_of_their_own(words: list[str], asked: str) -> None:
    found = rewrite(JobType.TRAINING, [*words, "--image_name", "registry.example/own:1"], OWN)
    assert found[-2:] == [f"--worker_resource_request={asked}", "--image=registry.example/own:1"]


def test_no_flag_of_today_counts_as_gone() -> None:
    for kind in VERBS.values():
        assert [name for name in flags_of(kind) if removed_flag(name)] == []


def test_training_flags_are_refused_where_they_mean_nothing() -> None:
    with pytest.raises(InvalidInputError, match="means nothing to `elasticdl evaluate`"):
        rewrite(JobType.EVALUATION, ["--num_epochs", "3"], OWN)
    assert parse("--validation_data", "d", kind=JobType.EVALUATION) == {"type": "evaluation", "validation_data": "d"}


def test_own_options_pass_through_in_either_spelling() -> None:
    words = ["--local", "--idempotency_key", "k", "--idempotency-key=l", "-h"]
    assert rewrite(JobType.TRAINING, words, OWN) == [
        "--local",
        "--idempotency-key=k",
        "--idempotency-key=l",
        "--help",
    ]


def test_a_value_may_look_like_anything() -> None:
    assert parse("--priority", "-5", "--model_params", "a=b=c", "--output=--odd") == {
        "priority": -5,
        "model_params": {"a": "b=c"},
        "output": "--odd",
    }


def test_all_wrong_values_are_told_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        parse("--num_epochs", "many", "--seed=1.5", "--envs=x", "--num_ps", "2")
    assert [problem.field for problem in caught.value.problems] == ["num_epochs", "seed", "envs"]


def test_a_value_out_of_bounds_is_told_with_one_that_is_no_value() -> None:
    with pytest.raises(SpecError) as caught:
        parse("--num_epochs", "many", "--minibatch_size=0")
    assert [problem.field for problem in caught.value.problems] == ["num_epochs", "minibatch_size"]


def test_a_line_of_the_original_is_refused_all_at_once() -> None:
    line = (
        "--image_base=gcr.io/mnist --model_zoo=model_zoo --model_def=mnist.mnist_functional_api.custom_model "
        "--volume host_path=/data,mount_path=/data --master_resource_request=tpu=0.2,memory=1024Mi "
        "--worker_image=elasticdl:mnist --extra_pypi_index=http://x --need_task_manager=true --need_pod_manager true "
        "--num_epochs=many --minibatch_size=0 --nmu_workers=2 stray"
    )
    with pytest.raises(SpecError) as caught:
        rewrite(JobType.TRAINING, line.split(), OWN)
    told = {problem.field: problem for problem in caught.value.problems}
    of_values = ["minibatch_size", "master_resource_request", "volume"]
    flags = "image_base worker_image extra_pypi_index need_task_manager need_pod_manager"
    assert list(told) == [*flags.split(), "nmu_workers", "stray", "num_epochs", *of_values]
    assert told["volume"].message == "a folder of a node is nothing that a job may mount"
    assert all(problem.fix for problem in told.values())


WHOLE = {"model_def": "a.b", "model_zoo": "zoo", "training_data": "data"}


@pytest.mark.parametrize(
    ("line", "strategy", "servers"),
    [
        ("--distribution_strategy=AllreduceStrategy", "AllReduceStrategy", None),
        ("--distribution_strategy=parameterserverstrategy --num_ps_pods=2", "ParameterServerStrategy", 2),
        ("--distribution_strategy=AllreduceStrategy --num_ps_pods=0", "AllReduceStrategy", None),
        ("--num_ps_pods=0", "AllReduceStrategy", None),
    ],
)
def test_strategies_are_understood_as_the_original_spells_them(line: str, strategy: str, servers: int | None) -> None:
    spec = JobSpec.from_mapping({**WHOLE, **parse(*line.split())})
    assert spec.distribution_strategy == strategy
    assert servers is None or spec.num_ps == servers


def test_servers_that_are_none_do_not_go_with_their_strategy() -> None:
    with pytest.raises(SpecError, match="num_ps"):
        JobSpec.from_mapping({**WHOLE, "num_ps": 0, "distribution_strategy": "ParameterServerStrategy"})


def test_pairs_are_json_or_words_and_nothing_is_evaluated() -> None:
    text = 'lr=0.01;layers=[64, 32];on=true;name=adam;old=True;text="a;b";call=__import__("os").getcwd()'
    assert parse_pairs("model_params", text) == {
        "lr": 0.01,
        "layers": [64, 32],
        "on": True,
        "name": "adam",
        "old": True,
        "text": "a;b",
        "call": '__import__("os").getcwd()',
    }
    assert parse_pairs("model_params", '{"lr": 0.5, "deep": {"a": null}}') == {"lr": 0.5, "deep": {"a": None}}
    assert parse_pairs("model_params", "") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "'lr' is not key=value"),
        ("a=1;a=2", "given twice"),
        ("{", "is not JSON"),
        ("a=[1", "missing"),
        ('{"a":' * 99_999, "too deeply"),
    ],
)
def test_broken_pairs_name_their_flag(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_pairs("optimizer_params", text)
    assert caught.value.message.startswith("--optimizer_params: ")
    assert message in caught.value.message


def test_variables_are_texts_as_they_stand() -> None:
    assert parse_strings("envs", "A=1;B= two words ;C=x=y") == {"A": "1", "B": "two words", "C": "x=y"}
    assert parse_strings("envs", "A=1,B=0.10") == {"A": "1", "B": "0.10"}
    assert parse_strings("envs", "A=1,B=2;") == {"A": "1,B=2"}
    assert parse_strings("envs", "NO_PROXY=a,b") == {"NO_PROXY": "a,b"}
    assert parse_strings("envs", '{"A": "1"}') == {"A": "1"}
    for wrong, message in (
        ("A", "not key=value"),
        ("A=1;A=2", "twice"),
        ('{"A": 1}', "not strings"),
        ("=1", "not key"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            parse_strings("envs", wrong)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--frist", "3"], "there is no flag --frist"),
        (["--lr", "3"], "there is no flag --lr"),
        (["three"], "'three' is not a flag"),
    ],
)
def test_arguments_of_a_script_that_stand_before_the_dashes_are_told_their_place(words: list[str], said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        rewrite(JobType.TRAINING, words, OWN, "run")
    assert caught.value.message == said
    assert "after `--`" in caught.value.fix
    assert "elasticdl train" not in caught.value.fix


def test_a_flag_of_another_command_is_said_to_mean_nothing_to_the_one_that_was_typed() -> None:
    with pytest.raises(InvalidInputError, match="means nothing to `elasticdl run`"):
        rewrite(JobType.TRAINING, ["--prediction_data", "x"], OWN, "run")
