"""The treatment of each field of a job in each way of running it: done, translated or refused, never passed over.

One table for all doors: the command line, the API and the local run ask it, and ``docs/honoured.md`` shows it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from elasticdl_core.contract.row import Verdict
from elasticdl_core.errors import Problem, SpecError
from elasticdl_core.job.field_groups import FIELD_GROUPS, NOT_FOR, OF_THE_MODEL
from elasticdl_core.job.fields import OF_SERVERS, JobFields, JobType, default_of
from elasticdl_core.job.rules import OF_GROUPS, OF_MODULES, OF_SCRIPTS

OF_PODS = ("image", "image_pull_policy", "volume", "node_selector")
"""Fields that mean nothing where processes are no pods."""


class Way(enum.StrEnum):
    """Ways of running a job."""

    LOCAL = "`train --local`"
    SERVERS = "parameter servers"
    GROUP = "AllReduce"
    EVALUATION = "`evaluate`"
    PREDICTION = "`predict`"
    SCRIPT = "`run`"
    LOCAL_EVALUATION = "`evaluate --local`"
    LOCAL_PREDICTION = "`predict --local`"
    LOCAL_SCRIPT = "`run --local`"

    @property
    def of_scripts(self) -> bool:
        """Whether it runs a training loop of one's own."""
        return self in (Way.SCRIPT, Way.LOCAL_SCRIPT)

    @property
    def is_local(self) -> bool:
        """Whether it is one process, here."""
        return self in (Way.LOCAL, Way.LOCAL_EVALUATION, Way.LOCAL_PREDICTION, Way.LOCAL_SCRIPT)


_NOTHING_IS_LATE = "one process makes one update after the other, so no gradient and no row is late"
_LOCALLY_TRANSLATED: Mapping[str, str] = {
    "min_workers": "one process makes the updates of all workers",
    "max_workers": "one process makes the updates of all workers, cut into parts as AllReduce would cut them",
    "distribution_strategy": "says how updates are cut; one process makes them",
    "microbatches": "one process makes one part of an update after the other",
    "deterministic": "parts of an update are computed in one pass where it is false",
    "collective": "there is nothing to add up; the devices that it refuses are refused",
    "num_ps": "the model is in one process",
    "embedding_threshold_bytes": "embeddings stay in the model; in checkpoints they are tables",
    "use_async": _NOTHING_IS_LATE,
    "grads_to_wait": "one process computes the minibatches of a round, one after the other",
    "sync_version_tolerance": _NOTHING_IS_LATE,
    "lr_staleness_modulation": _NOTHING_IS_LATE,
    "delay_compensation": _NOTHING_IS_LATE,
    "get_model_steps": _NOTHING_IS_LATE,
    "max_staleness": _NOTHING_IS_LATE,
    "hot_rows_staleness": _NOTHING_IS_LATE,
    "checkpoint_dir": "for checkpoints of this run; by default `checkpoints` in the output's directory",
}
_NO_SERVERS = "only parameter servers do it"
_LOCALLY_REFUSED: dict[str, str] = {
    "model_bundle": "the code must be a directory here",
    "labels": "there is no job to be found by them",
    "priority": "nothing waits for a place",
    "progress_timeout_s": "nobody watches the one process",
    "worker_memory_mib": "the process has the memory that it takes",
    "ps_memory_mib": "there are no parameter servers",
    **dict.fromkeys(OF_PODS, "there are no pods"),
    **dict.fromkeys(("ps_resource_request", "master_resource_request"), "there is one process"),
    "wire_dtype": "nothing travels",
    "table_admission": _NO_SERVERS,
    "table_eviction": _NO_SERVERS,
    "table_max_rows": _NO_SERVERS,
    "xla": "the step of one process is compiled without it",
}
_LOCAL_SCRIPT_REFUSED = dict.fromkeys(
    ("checkpoint_steps", "checkpoint_dir", "keep_checkpoint_max"), "the state of a script is left to the script"
)
_GROUP_TRANSLATED = {
    "use_async": "false, with grads_to_wait, means a larger minibatch_size",
    "grads_to_wait": "means a minibatch_size that is so many times larger",
}
_SCRIPT_REFUSED = {
    "deterministic": "a script's loop takes one minibatch after the other",
    "collective": "a script's gradients are summed in the host's memory",
    "framework": "scripts are those of PyTorch",
}
_OF_TYPES = {
    Way.EVALUATION: JobType.EVALUATION,
    Way.LOCAL_EVALUATION: JobType.EVALUATION,
    Way.PREDICTION: JobType.PREDICTION,
    Way.LOCAL_PREDICTION: JobType.PREDICTION,
}


def become(name: str, way: Way) -> tuple[Verdict, str]:
    """The treatment of a field in a way of running a job, and how or why; of ``xla`` the word ``on``.

    Args:
        name: of a field of ``JobFields``, other than ``type``.
        way: of running it.
    """
    kind = _OF_TYPES.get(way, JobType.TRAINING)
    refused = _refused_of_scripts(way) | (_LOCALLY_REFUSED if way.is_local else {})
    if name in NOT_FOR[kind]:
        return Verdict.REFUSED, f"means nothing to {kind.in_words}"
    if name in refused:
        return Verdict.REFUSED, refused[name]
    if way in (Way.GROUP, Way.SCRIPT, Way.LOCAL_SCRIPT):
        if name in _GROUP_TRANSLATED:
            return Verdict.TRANSLATED, _GROUP_TRANSLATED[name]
        if name in (*OF_SERVERS, "xla"):
            return Verdict.REFUSED, _NO_SERVERS
    if way.is_local and name in _LOCALLY_TRANSLATED:
        return Verdict.TRANSLATED, _LOCALLY_TRANSLATED[name]
    if way in (Way.SERVERS, Way.EVALUATION, Way.PREDICTION) and name in OF_GROUPS:
        return Verdict.REFUSED, "only AllReduce does it"
    if name in OF_SCRIPTS and not way.of_scripts:
        return Verdict.REFUSED, "only a script has arguments"
    return Verdict.HONOURED, ""


def _refused_of_scripts(way: Way) -> dict[str, str]:
    if not way.of_scripts:
        return {}
    of_modules = dict.fromkeys(OF_MODULES, "a script does that itself")
    return of_modules | _SCRIPT_REFUSED | (_LOCAL_SCRIPT_REFUSED if way.is_local else {})


def refuse_meaningless(spec: JobFields) -> None:
    """Refuses fields that mean nothing to the type of a job, for those who submit one.

    A job that evaluates or predicts may have all that it shares with the one that trained its model.

    Raises:
        SpecError: with each of them.
    """
    names = NOT_FOR[spec.type] - OF_THE_MODEL
    _refuse(spec, dict.fromkeys(names, f"it means nothing to {spec.type.in_words}"))


def refuse_locally(spec: JobFields) -> None:
    """Refuses fields that a run in one process would pass over.

    Raises:
        SpecError: with each of them.
    """
    reasons = _LOCALLY_REFUSED | (_LOCAL_SCRIPT_REFUSED if spec.runs_script else {})
    asked = {name for name in reasons if name != "xla" or spec.xla != "off"}  # nor does the local step
    _refuse(spec, {name: f"--local does not do it: {reasons[name]}" for name in asked})
    if refused := [name for name in ("cpu", "disk") if getattr(spec.asked_of("worker"), name)]:
        message = f"--local does not do it: {' and '.join(refused)} {'is' if len(refused) == 1 else 'are'} a pod's"
        raise SpecError([Problem("worker_resource_request", message, "ask for gpu alone")])


def refuse_pods(spec: JobFields) -> None:
    """Refuses what only pods have, where a job's processes are none.

    Raises:
        SpecError: with each field that asks for it.
    """
    problems = [
        Problem(name, "the processes of this cluster are no pods", "leave it out, or submit to one on Kubernetes")
        for name in OF_PODS
        if getattr(spec, name)
    ]
    for role in ("worker", "ps", "master"):
        asked = spec.asked_of(role)
        if wrong := [name for name in ("cpu", "disk") if getattr(asked, name)]:
            message = f"{' and '.join(wrong)} cannot be given to a process of this cluster, which is no pod"
            fix = f"leave {' and '.join(wrong)} out, or submit to a cluster on Kubernetes"
            problems.append(Problem(f"{role}_resource_request", message, fix))
    if problems:
        raise SpecError(problems)


def _refuse(spec: JobFields, reasons: Mapping[str, str]) -> None:
    odd = [name for name in _ORDER if name in reasons and getattr(spec, name) != default_of(name)]
    if odd:
        raise SpecError([Problem(name, reasons[name], "leave it out") for name in odd])


_ORDER = [name for names in FIELD_GROUPS.values() for name in names]
