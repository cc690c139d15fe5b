"""The number of an update's records, and of an epoch's updates: the same whoever does the work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from elasticdl_core.job.fields import ALL_REDUCE, JobFields, default_of
from elasticdl_core.shard import Shard

_OF_GRADIENTS_ALONE = ("sgd", "adagrad", "torch.sgd", "torch.adagrad", "torch.sparse_adam")
"""Optimizers of which, without momentum and weight decay, a row without a gradient stays as it is anywhere."""


def records_per_update(spec: JobFields) -> int:
    """Records of a full update.

    With parameter servers several minibatches make one where that was asked for: ``grads_to_wait`` of them
    synchronously, ``get_model_steps`` of them in one push.
    """
    if spec.by_group:
        return spec.minibatch_size
    return spec.minibatch_size * max(1, spec.grads_to_wait) * max(1, spec.get_model_steps)


def updates_per_epoch(spec: JobFields, tasks: Iterable[Shard]) -> int:
    """Updates that a pass over the records makes: the last one of a task has what is left of it."""
    push = spec.minibatch_size * (1 if spec.by_group else max(1, spec.get_model_steps))
    pushes = sum(-(-task.records // push) for task in tasks)
    return pushes if spec.by_group else -(-pushes // max(1, spec.grads_to_wait))


def words_of_updates(spec: JobFields, updates: int, where: str = "") -> str:
    """The words about updates when a job begins.

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
    spare = words_of_spare(spec.max_workers, spec.microbatches_per_step) if spec.by_group else ""
    told = f"{where or spec.distribution_strategy}: {said}, {updates:,} updates an epoch"
    return f"{told}; {spare}" if spare and not where else told


def words_of_rows(
    tables: Sequence[str], name: str, groups: Iterable[Mapping[str, Any]], *, by_group: bool = False
) -> str:
    """The words about rows that a minibatch does not have; empty where they stay as they are by either rule.

    Args:
        tables: those of the model: what parameter servers hold, or would hold.
        name: of the optimizer.
        groups: its hyper-parameters, of each group of parameters.
        by_group: whether workers hold the tables whole, as AllReduce does.
    """
    if not tables:
        return ""
    moves = any(params.get(one) for params in groups for one in ("momentum", "weight_decay"))
    if name in _OF_GRADIENTS_ALONE and not moves:
        return ""
    shown = ", ".join(tables[:3]) + (f" and {len(tables) - 3} more" if len(tables) > 3 else "")
    if by_group:
        return (
            f"rows of {shown}: {name} moves all of them in each update, as plain Keras and PyTorch do; "
            "on parameter servers it moves those of a minibatch alone"
        )
    return (
        f"rows of {shown}: {name} moves those of a minibatch alone, on parameter servers and with --local; "
        "plain Keras and PyTorch move all rows in each update"
    )


def words_of_spare(max_workers: int, parts: int) -> str:
    """The words for a job that may have more workers than can compute; empty if it may not.

    Args:
        max_workers: of the job.
        parts: that a group cuts an update into; 0 for no group.
    """
    if not 0 < parts < max_workers:
        return ""
    cut = f"cut into {parts} parts (microbatches)" if parts > 1 else "not cut (microbatches 1)"
    return (
        f"of at most {max_workers} workers {parts} can compute, as an update is {cut}, and no more get a slot; "
        "--microbatches, or a larger --minibatch_size, lets more"
    )


def words_at_submission(given: Mapping[str, Any], spec: JobFields) -> list[str]:
    """The words about a job's updates when it is submitted.

    Args:
        given: the fields as they were given, under their own names.
        spec: what became of them.
    """
    found = [words_of_spare(spec.max_workers, spec.microbatches_per_step)] if spec.by_group else []
    times = given.get("grads_to_wait", 1)
    if given.get("distribution_strategy") == ALL_REDUCE and times != spec.grads_to_wait:
        size = given.get("minibatch_size", default_of("minibatch_size"))
        found.append(
            f"grads_to_wait {times} by {ALL_REDUCE}: an update has {times} x {size} = {spec.minibatch_size} records, "
            f"as with --minibatch_size {spec.minibatch_size}"
        )
    return [words for words in found if words]
