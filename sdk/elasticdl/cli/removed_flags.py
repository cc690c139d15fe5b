"""Flags of the original project that were removed: why, and what to do instead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RemovedFlag:
    """Why a flag was removed.

    Attributes:
        reason: why there is no use for it.
        instead: what to do now.
    """

    reason: str
    instead: str


_IMAGES = RemovedFlag(
    "no image is built for a job; the model code travels as a bundle",
    "leave it out; --image names the one that workers run in, as registry/name:tag, where the cluster lets jobs",
)
_KUBERNETES = RemovedFlag(
    "a job does not talk to Kubernetes; the cluster that it is submitted to does",
    "leave it out, and choose the cluster with ELASTICDL_API_URL and ELASTICDL_TOKEN",
)
_PRIORITY = RemovedFlag(
    "the scheduler ranks whole jobs, not their processes", "give --priority (-1000 to 1000, higher goes first)"
)
_RESOURCES = RemovedFlag(
    "what a process asks for is its limit as well",
    "give --worker_resource_request, --ps_resource_request or --master_resource_request",
)
_RELAUNCH = RemovedFlag(
    "a process that dies is replaced and its tasks are handed out again; a job that cannot go on fails with a reason",
    "leave it out; --restart_policy Never is what is done, and taken",
)
_LOGS = RemovedFlag(
    "logs are kept for every process of a job", "leave it out, and read them with `elasticdl jobs logs`"
)
_CURVES = RemovedFlag(
    "losses and evaluations are kept for every job", "leave it out, and read them with `elasticdl jobs metrics`"
)

REMOVED: Mapping[str, RemovedFlag] = {
    r"image_base|\w+_image|extra_pypi_index|image_pull_secrets|docker_\w+"
    r"|dockerfile\w*": _IMAGES,
    r"namespace|cluster_spec|cluster_spec_json|yaml|force_use_kube_config_file|populate_env_names|service_account\w*"
    r"|need_elasticdl_job_service|need_task_manager|need_pod_manager|need_tf_config": _KUBERNETES,
    r"\w+_pod_priority": _PRIORITY,
    r"(?!(worker|ps|master)_resource_request)\w+_resource_(request|limit)": _RESOURCES,
    r"restart_policy|relaunch_\w+|disable_relaunch|max_relaunch\w*|task_fault_tolerance": _RELAUNCH,
    r"log_level|log_file_path|log_dir|logtostderr": _LOGS,
    r"tensorboard_log_dir|profile_steps": _CURVES,
    r"records_per_task": RemovedFlag(
        "a task is a number of minibatches", "give --minibatch_size and --num_minibatches_per_task"
    ),
    r"use_go_ps": RemovedFlag("there is one parameter server", "leave it out"),
    r"evaluation_(throttle|start_delay)_secs": RemovedFlag(
        "evaluations are counted in model updates, not in seconds", "give --evaluation_steps"
    ),
    r"num_evaluators?|num_evaluator_pods": RemovedFlag(
        "the workers evaluate at a pinned model version", "leave it out"
    ),
    r"custom_training_loop|job_command": RemovedFlag(
        "scripts with a training loop of their own have a command", "use `elasticdl run SCRIPT -- ARGUMENTS`"
    ),
    r"aux_params": RemovedFlag("it had no effect on models of this kind", "leave it out"),
    r"checkpoint_filename_for_init": RemovedFlag(
        "a checkpoint is a directory with a manifest", "give --checkpoint_dir_for_init"
    ),
    r"job_type": RemovedFlag("the command says it", "use `elasticdl train`, `evaluate` or `predict`"),
}


def removed_flag(name: str) -> RemovedFlag | None:
    """The answer to a flag (underscores, no dashes in front) of the original project; None for any other."""
    return next((gone for pattern, gone in REMOVED.items() if re.fullmatch(pattern, name)), None)
