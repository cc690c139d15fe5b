"""Rules for a specification: each field by itself, and fields together."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex

from elasticdl_core.best_evaluation import BestEvaluation
from elasticdl_core.devices import HIDING, WHOLE
from elasticdl_core.errors import InvalidInputError, Problem
from elasticdl_core.job.fields import (
    ALL_REDUCE,
    AT_LEAST,
    AT_MOST,
    EXPORT_FORMATS,
    INT32,
    NCCL,
    OF_SERVERS,
    OUTPUT_FORMATS,
    SCRIPT,
    WORDS,
    JobFields,
    JobType,
    default_of,
)
from elasticdl_core.job.names import LAST
from elasticdl_core.pods import image_problem, parse_resources, selector_problem, volume_problem

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
OF_MODULES = (
    "model_params",
    "feed",
    "loss",
    "optimizer",
    "optimizer_params",
    "eval_metrics_fn",
    "callbacks",
    "custom_data_reader",
    "prediction_outputs_processor",
    "collate",
    "keras",
    "validation_data",
    "prediction_data",
    "evaluation_steps",
    "keep_best",
    "output_format",
    "export_formats",
    "eager",
    "xla",
    "torch_compile",
    "autocast",
    "on_nan",
)
"""Fields that say something of a model module, and mean nothing to a script."""
OF_GROUPS = ("microbatches", "deterministic", "collective")
"""Fields of training by AllReduce alone."""
OF_SCRIPTS = ("script_args",)
_WHOLE_NUMBERS = tuple(field.name for field in dataclasses.fields(JobFields) if field.type == "int")


def value_problems(spec: JobFields) -> list[Problem]:
    """The problems of fields by themselves."""
    problems: list[Problem] = []

    def need(ok: bool, name: str, message: str, fix: str) -> None:
        if not ok:
            problems.append(Problem(name, message, fix))

    need(
        bool(_NAME.fullmatch(spec.name)),
        "name",
        f"{ascii(spec.name)[:100]} is not a job name",
        "use 1 to 40 lower-case letters, digits and dashes, starting and ending with a letter or digit",
    )
    need(spec.name != LAST, "name", f"{LAST!r} stands for the newest job", "choose another name")
    need(
        "." in spec.model_def and all(part.isidentifier() for part in spec.model_def.split(".")),
        "model_def",
        f"{spec.model_def!r} does not name an object in a file",
        "write file.object, e.g. 'mnist.custom_model' for custom_model in mnist.py",
    )
    for name, least in AT_LEAST.items():
        value = getattr(spec, name)
        need(value >= least, name, f"{value} is too small", f"give {least} or more")
    for name in _WHOLE_NUMBERS:
        value, most = getattr(spec, name), AT_MOST.get(name, INT32)
        need(value <= most, name, f"{value} is too large", f"give {most} or less")
    need(
        -1000 <= spec.priority <= 1000,
        "priority",
        f"{spec.priority} is out of range",
        "give -1000 to 1000",
    )
    for name, words in WORDS.items():
        value = getattr(spec, name)
        need(value in words, name, f"{value!r} is unknown", f"give one of {words}")
    formats = set(spec.export_formats.split(",")) - {"", *EXPORT_FORMATS}
    need(
        not formats,
        "export_formats",
        f"{sorted(formats)} are unknown",
        f"give some of {EXPORT_FORMATS}, separated by commas",
    )
    for name in ("worker_resource_request", "ps_resource_request", "master_resource_request"):
        try:
            asked = parse_resources(getattr(spec, name))
            devices = bool(asked.device_share) and name != "worker_resource_request"
            need(not devices, name, "only workers take devices", "leave gpu out")
        except InvalidInputError as error:
            problems.append(Problem(name, error.message, error.fix))
    need(not (wrong := image_problem(spec.image)), "image", wrong, "write registry/name:tag")
    need(not (wrong := selector_problem(spec.node_selector)), "node_selector", wrong, "write key=value;key=value")
    try:
        wrong, fix = volume_problem(spec.volume)
        need(not wrong, "volume", wrong, fix)
    except InvalidInputError as error:
        problems.append(Problem("volume", error.message, error.fix))
    try:
        BestEvaluation.parse(spec.keep_best)
    except InvalidInputError as error:
        problems.append(Problem("keep_best", error.message, error.fix))
    for name in HIDING:
        need(
            spec.envs.get(name, "") in ("", "-1", "void", "none"),
            "envs",
            f"{name} is set by the machine: a worker sees the device that it was given, and no other",
            "leave it out, and ask for a device with worker_resource_request, e.g. gpu=1",
        )
    return problems


def combination_problems(spec: JobFields) -> list[Problem]:
    """The problems of combinations of fields that are right by themselves."""
    problems: list[Problem] = []

    def need(ok: bool, name: str, message: str, fix: str) -> None:
        if not ok:
            problems.append(Problem(name, message, fix))

    need(
        not spec.model_bundle or bool(_DIGEST.fullmatch(spec.model_bundle)),
        "model_bundle",
        f"{spec.model_bundle[:80]!r} is not the digest of a bundle",
        "give sha256: and 64 lower-case hex digits",
    )
    need(
        bool(spec.model_zoo) != bool(spec.model_bundle),
        "model_zoo",
        "the model code must come from exactly one place",
        "give model_zoo (a shared path) or model_bundle (an uploaded zip)",
    )
    data = {
        JobType.TRAINING: "training_data",
        JobType.EVALUATION: "validation_data",
        JobType.PREDICTION: "prediction_data",
    }[spec.type]
    need(
        bool(getattr(spec, data)) or bool(spec.custom_data_reader) or spec.runs_script,
        data,
        f"{spec.type.in_words} needs it",
        f"give --{data} (a path, directory, glob or URL)",
    )
    need(
        spec.type is JobType.TRAINING or bool(spec.checkpoint_dir_for_init),
        "checkpoint_dir_for_init",
        f"{spec.type.in_words} needs a trained model",
        "give --checkpoint_dir_for_init (a checkpoint of a training job)",
    )
    need(
        spec.min_workers <= spec.max_workers,
        "max_workers",
        f"{spec.max_workers} is less than min_workers ({spec.min_workers})",
        "raise max_workers or lower min_workers",
    )
    trains = spec.type is JobType.TRAINING
    of_a_group = f"give --distribution_strategy {ALL_REDUCE}, or leave it out" if trains else "leave it out"
    need(
        spec.by_group or not spec.microbatches,
        "microbatches",
        f"they are of training by {ALL_REDUCE}",
        of_a_group,
    )
    need(
        not spec.by_group or spec.microbatches <= spec.minibatch_size,
        "microbatches",
        f"an update of {spec.minibatch_size} records (minibatch_size) cannot be cut into {spec.microbatches} parts",
        f"give --minibatch_size {spec.microbatches} or more, or fewer --microbatches",
    )
    need(
        not spec.runs_script or not spec.microbatches or not spec.minibatch_size % spec.microbatches,
        "microbatches",
        f"an update of {spec.minibatch_size} records (minibatch_size) cannot be cut into {spec.microbatches} batches "
        "of one size, which is what a script's loader makes",
        "give --minibatch_size the records of a batch of the script times --microbatches",
    )
    need(
        spec.by_group or spec.deterministic,
        "deterministic",
        f"only training by {ALL_REDUCE} gives the same bits whoever did the work, and can do without",
        of_a_group,
    )
    if spec.collective == NCCL:
        need(
            spec.fuses,
            "collective",
            f"NCCL adds in an order of its own, and only what members of {ALL_REDUCE} bring",
            f"give --distribution_strategy {ALL_REDUCE} --deterministic false, or leave it out",
        )
        with contextlib.suppress(InvalidInputError):  # of which is told by itself
            need(
                spec.device_share == WHOLE,
                "collective",
                "NCCL joins workers that have a whole device each, and one of this job takes "
                + (spec.worker_resource_request or "none"),
                "give --worker_resource_request gpu=1, or leave it out",
            )
    need(
        spec.has_servers or spec.xla != "on",
        "xla",
        f"workers of {ALL_REDUCE} run the plain compiled step",
        "leave it out, or give --distribution_strategy ParameterServerStrategy",
    )
    if not spec.has_servers:
        for name in OF_SERVERS:
            need(
                getattr(spec, name) == default_of(name),
                name,
                f"{ALL_REDUCE} has no parameter servers",
                "leave it out, or give --distribution_strategy ParameterServerStrategy",
            )
    need(
        spec.use_async or not spec.lr_staleness_modulation,
        "lr_staleness_modulation",
        "it means nothing in synchronous mode",
        "drop it, or set use_async",
    )
    need(
        not spec.use_async or spec.grads_to_wait == 1,
        "grads_to_wait",
        "asynchronous mode applies each gradient at once",
        "set use_async to false, or leave grads_to_wait at 1",
    )
    need(
        not spec.use_async or spec.sync_version_tolerance == 0,
        "sync_version_tolerance",
        "it means nothing in asynchronous mode",
        "set use_async to false, or leave it at 0",
    )
    need(
        0 <= spec.delay_compensation <= 1e9,
        "delay_compensation",
        f"{spec.delay_compensation} is out of range",
        "give a number of 0 or more, such as 30",
    )
    need(
        spec.use_async or spec.delay_compensation == 0,
        "delay_compensation",
        "gradients of synchronous training are not late",
        "set use_async, or leave it at 0",
    )
    need(
        spec.use_async or spec.get_model_steps == 1,
        "get_model_steps",
        "local updates between pulls are asynchronous by nature",
        "set use_async, or leave get_model_steps at 1",
    )
    need(
        spec.use_async or spec.max_staleness == 0,
        "max_staleness",
        "synchronous training is strictly in order",
        "set use_async, or leave it at 0",
    )
    need(
        spec.use_async or spec.hot_rows_staleness == 0,
        "hot_rows_staleness",
        "synchronous training reads every row at its newest version",
        "set use_async, or leave it at 0",
    )
    for name in ("table_admission", "table_eviction", "table_max_rows", "hot_rows_staleness"):
        need(
            spec.type is JobType.TRAINING or getattr(spec, name) == default_of(name),
            name,
            f"{spec.type.in_words} changes no rows",
            "leave it out",
        )
    need(
        not spec.table_max_rows or spec.table_max_rows >= spec.minibatch_size,
        "table_max_rows",
        f"{spec.table_max_rows} rows do not even hold one minibatch",
        "give several times the ids of a minibatch, or 0 for no limit",
    )
    need(
        spec.output_format in ("", *OUTPUT_FORMATS),
        "output_format",
        f"{spec.output_format!r} is unknown",
        f"give one of {OUTPUT_FORMATS}",
    )
    need(
        spec.type is JobType.PREDICTION or not spec.output_format,
        "output_format",
        f"{spec.type.in_words} writes no predictions",
        "leave it out; --export_formats are those of a trained model",
    )
    need(
        not spec.output_format or spec.output_ending in ("", spec.output_format),
        "output_format",
        f"{spec.output_format!r} is not what the ending of the output says ({spec.output})",
        "leave one of them out",
    )
    need(
        not spec.evaluation_steps or bool(spec.validation_data),
        "evaluation_steps",
        "there is nothing to evaluate on",
        "give --validation_data",
    )
    need(
        not spec.keep_best or bool(spec.validation_data),
        "keep_best",
        "the best model is that of an evaluation, and there is nothing to evaluate on",
        "give --validation_data",
    )
    problems += _script_problems(spec) if spec.runs_script else []
    need(
        spec.runs_script or not spec.script_args,
        "script_args",
        f"{spec.model_def} is no script",
        f"name one with --model_def file.{SCRIPT}, or use `elasticdl run`",
    )
    return problems


def _script_problems(spec: JobFields) -> list[Problem]:
    """The problems of fields for a script with a training loop of its own."""
    problems = [
        Problem(name, "a script does that itself", "leave it out, and do it in the script")
        for name in OF_MODULES
        if getattr(spec, name) != default_of(name)
    ]
    if spec.type is not JobType.TRAINING:
        problems.append(Problem("type", f"a script does not do the work of {spec.type.in_words}", "let it train"))
    if spec.has_servers:
        fix = f"leave it out, or give {ALL_REDUCE}"
        problems.append(Problem("distribution_strategy", "a script holds its model itself", fix))
    if not spec.deterministic:
        fix = "leave it out; for fewer and larger passes give fewer --microbatches"
        problems.append(Problem("deterministic", "a script's loop takes one minibatch after the other", fix))
    if spec.collective != default_of("collective"):
        problems.append(Problem("collective", "a script's gradients are summed in the host's memory", "leave it out"))
    if spec.framework != "torch":
        problems.append(Problem("framework", "scripts are those of PyTorch", "leave it out"))
    try:
        shlex.split(spec.script_args)
    except ValueError as error:
        problems.append(Problem("script_args", f"they cannot be split: {error}", "quote them as for a shell"))
    return problems
