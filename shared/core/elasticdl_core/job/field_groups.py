"""Groups of a specification's fields for people: at the command line, in the API's description, in the form."""

from __future__ import annotations

from collections.abc import Mapping

from elasticdl_core.job.fields import OF_UPDATES, JobType

FIELD_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Model": (
        "model_zoo",
        "model_def",
        "model_bundle",
        "script_args",
        "model_params",
        "feed",
        "loss",
        "optimizer",
        "optimizer_params",
        "eval_metrics_fn",
        "callbacks",
        "custom_data_reader",
        "prediction_outputs_processor",
        "framework",
        "collate",
        "keras",
        "embedding_threshold_bytes",
        "eager",
        "xla",
        "torch_compile",
        "autocast",
        "on_nan",
    ),
    "Data": ("training_data", "validation_data", "prediction_data", "data_reader_params"),
    "Work": (
        "minibatch_size",
        "num_minibatches_per_task",
        "num_epochs",
        "max_steps",
        "shuffle",
        "shuffle_block",
        "seed",
        "evaluation_steps",
        "log_loss_steps",
    ),
    "Workers and parameter servers": (
        "min_workers",
        "max_workers",
        "num_ps",
        "priority",
        "progress_timeout_s",
        "worker_threads",
        "worker_memory_mib",
        "ps_memory_mib",
        "worker_resource_request",
        "distribution_strategy",
        "microbatches",
        "deterministic",
        "collective",
        *OF_UPDATES,
    ),
    "Checkpoints and results": (
        "checkpoint_steps",
        "checkpoint_dir",
        "keep_checkpoint_max",
        "keep_best",
        "checkpoint_dir_for_init",
        "output",
        "output_format",
        "export_formats",
    ),
    "Job": ("name", "labels", "envs"),
    "Pods of Kubernetes": (
        "ps_resource_request",
        "master_resource_request",
        "image",
        "image_pull_policy",
        "volume",
        "node_selector",
    ),
}
"""The fields of a specification in groups, in the order in which people are shown them."""
OF_THE_MODEL = frozenset(
    {
        "model_def",
        "model_zoo",
        "model_bundle",
        "model_params",
        "feed",
        "loss",
        "eval_metrics_fn",
        "custom_data_reader",
        "data_reader_params",
        "prediction_outputs_processor",
        "framework",
        "collate",
        "keras",
        "autocast",
        "embedding_threshold_bytes",
        "envs",
        "image",
        "image_pull_policy",
    }
)
"""What a job that evaluates or predicts shares with the one that trained."""
_TRAINING_ONLY = frozenset(
    {
        "script_args",
        "training_data",
        "optimizer",
        "optimizer_params",
        "callbacks",
        "num_epochs",
        "max_steps",
        "shuffle",
        "shuffle_block",
        "evaluation_steps",
        "log_loss_steps",
        "microbatches",
        "deterministic",
        "collective",
        *OF_UPDATES,
        "checkpoint_steps",
        "checkpoint_dir",
        "keep_checkpoint_max",
        "keep_best",
        "export_formats",
        "xla",
        "torch_compile",
        "on_nan",
    }
)
_PREDICTION_ONLY = frozenset({"prediction_data", "prediction_outputs_processor", "output_format"})
NOT_FOR: Mapping[JobType, frozenset[str]] = {
    JobType.TRAINING: _PREDICTION_ONLY,
    JobType.EVALUATION: _TRAINING_ONLY | _PREDICTION_ONLY | {"output"},
    JobType.PREDICTION: _TRAINING_ONLY | {"validation_data", "loss", "eval_metrics_fn"},
}
"""By type of job, the fields that mean nothing to it."""


def group_of(name: str) -> str:
    """The group of a field; empty for ``type``, which each command and form asks in its own way."""
    return next((group for group, names in FIELD_GROUPS.items() if name in names), "")


def types_of(name: str) -> tuple[JobType, ...]:
    """The types of jobs that a field means something to."""
    return tuple(kind for kind in JobType if name not in NOT_FOR[kind])
