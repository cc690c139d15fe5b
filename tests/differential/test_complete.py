"""Whatever Keras or the product offers has a row, or a reason why it has none: a new thing without either fails."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import elasticdl.callbacks
import elasticdl.layers
from elasticdl.data.factory import READERS
from elasticdl_core.contract import TABLE, Subject, Verdict
from elasticdl_core.job import JobSpec
from tests.differential import grammar, readme
from tests.differential.driver import BASE
from tests.differential.rows import LEGACY_ROWS, ROWS, WHOLE_CLUSTER_ROWS

pytestmark = pytest.mark.integration
ALL_ROWS = [*ROWS, *LEGACY_ROWS, *WHOLE_CLUSTER_ROWS]
SOURCES = "\n".join(row.source for row in ROWS)
ALL_SOURCES = "\n".join(row.source for row in ALL_ROWS)

BASE_CLASS = "the base class of others"
AUGMENTATION = "draws random numbers in training only, as the layers of the family random do"
OTHER_BACKEND = "is for another backend than TensorFlow, or for a model of another kind"
SAME = "is computed by Keras, on the worker as in one process, like its kin that have rows"

LAYERS: Mapping[str, str] = {
    "Layer": BASE_CLASS,
    "Wrapper": BASE_CLASS,
    "InputLayer": "is what keras.Input makes, in every row",
    "InputSpec": "is no layer",
    **dict.fromkeys(("FlaxLayer", "JaxLayer", "TorchModuleWrapper", "TFSMLayer"), OTHER_BACKEND),
    **dict.fromkeys(
        [
            "AugMix",
            "AutoContrast",
            "ContrastLimitedAdaptiveHistogramEqualization",
            "CutMix",
            "Equalization",
            "MixUp",
            "RandAugment",
            "RandomBrightness",
            "RandomColorDegeneration",
            "RandomColorJitter",
            "RandomContrast",
            "RandomCrop",
            "RandomElasticTransform",
            "RandomErasing",
            "RandomGaussianBlur",
            "RandomGrayscale",
            "RandomHue",
            "RandomInvert",
            "RandomPerspective",
            "RandomPosterization",
            "RandomSaturation",
            "RandomSharpness",
            "RandomShear",
            "Solarization",
            "Pipeline",
        ],
        AUGMENTATION,
    ),
    "MaxNumBoundingBoxes": "is about boxes on images, which rows do not have",
    **dict.fromkeys(("AdaptiveAveragePooling3D", "AdaptiveMaxPooling3D"), SAME),
    "MelSpectrogram": SAME,
    "STFTSpectrogram": SAME,
}
LOSSES: Mapping[str, str] = {
    "Loss": BASE_CLASS,
    "CTC": "is about sequences, which rows do not have",
    "Circle": "is about similarities of pairs, which rows do not have",
}
METRICS: Mapping[str, str] = {
    "Mean": "takes values, not labels and predictions",
    "Sum": "takes values, not labels and predictions",
    "Accuracy": "compares predicted classes, which models of rows do not give",
}
OPTIMIZERS = {"OptimizerMap": "is a part of MultiOptimizer"}
CALLBACKS = {
    "CallbackList": "is made by Keras, not by users",
    "OrbaxCheckpoint": "needs a package that is not among the requirements",
    "RemoteMonitor": "is refused by the same line of the table as CSVLogger, and needs a package of its own",
}
OF_TORCH = "is of PyTorch, which has rows of its own"
FIELDS: Mapping[str, str] = {
    "name": "names the job",
    "type": "rows train; evaluation and prediction are in tests/e2e",
    "model_bundle": "is another way to the same module",
    "prediction_data": "rows train",
    "prediction_outputs_processor": "rows train",
    "distribution_strategy": "is compared to the last bit by tests of the group",
    "microbatches": "is compared to the last bit by tests of the group",
    "deterministic": "is compared with the local run by tests of groups, but for rounding",
    "checkpoint_dir": "is a place",
    "checkpoint_dir_for_init": "starts from another job: tests/e2e",
    "keep_best": "says which checkpoint stays, and has tests of its own in test_training_rules.py",
    "output": "is a place",
    "output_format": "is of predictions",
    "priority": "is for the scheduler",
    "progress_timeout_s": "says when a job that stands still is given up",
    "collective": "says who adds gradients up, which tests of collectives and replicas compare",
    "worker_threads": "changes the last bits of sums only",
    "worker_memory_mib": "limits a process",
    "ps_memory_mib": "limits a process",
    **dict.fromkeys(
        (
            "worker_resource_request",
            "ps_resource_request",
            "master_resource_request",
            "image",
            "image_pull_policy",
            "volume",
            "node_selector",
        ),
        "says where a process runs",
    ),
    "labels": "finds jobs",
    "callbacks": "is the name of an entry, like the three that have rows",
    "eval_metrics_fn": "is the name of an entry, like the three that have rows",
    **dict.fromkeys(("framework", "collate", "torch_compile", "autocast", "script_args"), OF_TORCH),
    "model_zoo": "is a place",
    "model_def": "names the model: each row has one",
}
ENTRY = "names an entry or its arguments, which generated modules have under their usual names"
ROW_OF_ITS_OWN = "makes results that are only close to those of one process, and has rows of its own"
NOT_DRAWN: Mapping[str, str] = {
    **dict.fromkeys(("loss", "optimizer", "feed", "custom_data_reader", "model_params", "optimizer_params"), ENTRY),
    **dict.fromkeys(
        (
            "max_staleness",
            "hot_rows_staleness",
            "table_admission",
            "table_eviction",
            "table_max_rows",
            "lr_staleness_modulation",
            "delay_compensation",
            "wire_dtype",
        ),
        ROW_OF_ITS_OWN,
    ),
    **dict.fromkeys(("grads_to_wait", "min_workers", "max_workers"), "is given by the number of workers"),
    "sync_version_tolerance": "lets workers pass each other, and has a row of its own",
    "data_reader_params": "belongs to a reader, and has rows of its own",
    "keras": "takes a process of its own for legacy",
    "envs": "are set before a process starts; whole clusters have a row",
    "eager": "computes the same more slowly, and has a row of its own",
    "export_formats": "says in what form the model is written, and has rows of its own",
    "keep_checkpoint_max": "says which checkpoints are deleted",
}
"""Fields of a job that have rows, but that the grammar leaves alone, and why."""
OF_TABLE: Mapping[str, str] = {
    "learning_rate=callable": "callable_rate",
    "constraint": "own_constraint",
    "assign": "assigns_to_weights",
    "metric_of_a_layer": "metric_of_a_layer",
    "function": "metric_function",
    "function_of_scalar": "metric_scalar",
    "function_of_no_mean": "metric_scalar_no_mean",
    "state_that_does_not_add": "metric_own_maximum",
    "state_outside_variables": "metric_own_attributes",
    "mean_of_a_minibatch": "metric_of_flat_predictions",
    "output_without_name": "nested_metrics_of_list",
    "random_ids": "random_ids",
    "trained_ids": "trained_ids",
    "decay": "legacy_decay",
}
"""Lines of the table that are no names of Keras, and their rows."""
WITHOUT_ROW: Mapping[str, str] = {
    "adaptive_epsilon": "is an option of other versions of Keras",
}
"""Lines of the table that no row is about, and why."""


def classes(*path: str) -> Iterator[set[str]]:
    """The names of each class of a namespace of Keras."""
    import keras

    namespace: Any = keras
    for part in path:
        namespace = getattr(namespace, part)
    names: dict[type, set[str]] = {}
    for name, value in vars(namespace).items():
        if inspect.isclass(value):
            names.setdefault(value, set()).add(name)
    yield from names.values()


def without_row(space: str, exempt: Mapping[str, str], *, found_in: str = SOURCES) -> list[str]:
    """Classes of a namespace that no row names and no exemption explains."""
    path = space.split(".")
    named = set(re.findall(rf"\b{path[-1]}\.(\w+)", found_in))
    return sorted(min(names) for names in classes(*path) if not names & (named | exempt.keys()))


@pytest.mark.parametrize(
    ("space", "exempt"),
    [
        ("layers", LAYERS),
        ("losses", LOSSES),
        ("metrics", METRICS),
        ("optimizers", OPTIMIZERS),
        ("optimizers.schedules", {}),
        ("callbacks", CALLBACKS),
        ("constraints", {}),
        ("regularizers", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_class_of_keras_has_a_row_or_a_reason(space: str, exempt: Mapping[str, str]) -> None:
    assert without_row(space, exempt) == []
    unknown = exempt.keys() - {name for names in classes(*space.split(".")) for name in names}
    assert not unknown, "there is no such class any more"


def test_a_class_without_a_row_is_found() -> None:
    assert without_row("constraints", {}, found_in="keras.constraints.NonNeg()") != []


def test_every_field_of_a_job_that_touches_training_has_a_row_or_a_reason() -> None:
    varied = {key for row in ALL_ROWS for key in row.spec} | (BASE.keys() - {"model_zoo", "model_def"})
    varied |= {"training_data", "validation_data"}  # by the data
    varied |= {"use_async", "grads_to_wait", "min_workers"}  # by the driver
    fields = {field.name for field in dataclasses.fields(JobSpec)}
    assert sorted(fields - varied - FIELDS.keys()) == []
    assert sorted(FIELDS.keys() - fields) == []


def test_every_reader_has_a_row() -> None:
    names = [row.name for row in ROWS if row.family == "readers"]
    assert [kind for kind in (*READERS, "custom_reader") if not any(name.startswith(kind) for name in names)] == []


def test_every_callback_and_layer_of_ours_has_a_row() -> None:
    # GradientClipping is of PyTorch; an optimizer of Keras has arguments for it.
    offered = {*elasticdl.callbacks.__all__, *elasticdl.layers.__all__} - {"Callback", "GradientClipping"}
    assert sorted(name for name in offered if not re.search(rf"\b{name}\(", SOURCES)) == []


@pytest.mark.parametrize(
    "subject", [Subject.OPTIMIZER, Subject.OPTION, Subject.CALLBACK, Subject.LAYER, Subject.METRIC], ids=str
)
def test_every_line_of_the_table_of_what_is_honoured_has_a_row(subject: Subject) -> None:
    rows = {row.name for row in ALL_ROWS}

    def has_row(name: str) -> bool:
        if name in OF_TABLE:
            return OF_TABLE[name] in rows
        return name in WITHOUT_ROW or bool(re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", ALL_SOURCES))

    assert [row.names for row in TABLE if row.subject is subject and not any(map(has_row, row.names))] == []


def honoured(subject: Subject) -> set[str]:
    """Names of what the table says is done, one way or the other."""
    rows = [row for row in TABLE if row.subject is subject and row.verdict is not Verdict.REFUSED]
    return {name for row in rows for name in row.names}


def test_the_grammar_draws_every_option_of_optimizers_that_changes_something() -> None:
    without_effect = {"name", "jit_compile", "is_legacy_optimizer"}
    assert honoured(Subject.OPTION) - without_effect - {"learning_rate"} == grammar.OPTIONS.keys()


def test_the_grammar_draws_every_callback() -> None:
    same = {"ProgbarLogger", "BaseLogger"}  # as History
    assert honoured(Subject.CALLBACK) - same == grammar.CALLBACKS.keys() - {""}


def test_the_grammar_draws_every_field_of_a_job_that_touches_training_or_says_why_not() -> None:
    fields = {field.name for field in dataclasses.fields(JobSpec)} - {"training_data", "validation_data"}
    drawn = grammar.FIELDS.keys() | NOT_DRAWN.keys() | FIELDS.keys()
    assert sorted(fields - drawn) == []
    assert sorted(NOT_DRAWN.keys() - fields | NOT_DRAWN.keys() & grammar.FIELDS.keys()) == []


def test_the_readme_says_what_rows_there_are() -> None:
    assert readme.PAGE.read_text() == readme.page(), "run python -m tests.differential.readme"


def test_rows_have_names_of_their_own_and_there_are_more_than_a_hundred() -> None:
    names = [row.name for row in ALL_ROWS]
    assert sorted({name for name in names if names.count(name) > 1}) == []
    assert len(names) >= 100
