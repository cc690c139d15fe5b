"""How many records an update of the model has, and how many updates an epoch: the same whoever does the work."""

from __future__ import annotations

from collections.abc import Iterable

from elasticdl_core.job.fields import JobFields
from elasticdl_core.shard import Shard


def records_per_update(spec: JobFields) -> int:
    """Records of a full update.

    With parameter servers several minibatches make one where that was asked for: ``grads_to_wait`` of them
    synchronously, ``get_model_steps`` of them in one push.
    """
    if spec.by_group:
        return spec.minibatch_size
    return spec.minibatch_size * max(1, spec.grads_to_wait) * max(1, spec.get_model_steps)


def updates_per_epoch(spec: JobFields, tasks: Iterable[Shard]) -> int:
    """Updates that a pass over the records makes: the last one of a task has what is left of it.

    Args:
        spec: the job.
        tasks: of one epoch.
    """
    push = spec.minibatch_size * (1 if spec.by_group else max(1, spec.get_model_steps))
    pushes = sum(-(-task.records // push) for task in tasks)
    return pushes if spec.by_group else -(-pushes // max(1, spec.grads_to_wait))


def words_of_updates(spec: JobFields, updates: int, where: str = "") -> str:
    """What a job says when it begins.

    Args:
        spec: the job, with its strategy.
        updates: of an epoch.
        where: in place of the strategy.
    """
    said = f"{records_per_update(spec):,} records an update"
    if spec.by_group and spec.microbatches_per_step > 1:
        said += f" (minibatch_size) in {spec.microbatches_per_step} microbatches of {spec.microbatch_size:,}"
    elif not spec.by_group and records_per_update(spec) > spec.minibatch_size:
        said += f" ({records_per_update(spec) // spec.minibatch_size} minibatches of {spec.minibatch_size:,})"
    else:
        said += " (minibatch_size)"
    return f"{where or spec.distribution_strategy}: {said}, {updates:,} updates an epoch"
