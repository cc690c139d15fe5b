"""The original project's optimizer, on ``elasticdl.torch``."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from elasticdl.own_loop import current_feed
from elasticdl.torch import distributed_optimizer
from elasticdl.torch.distributed import DistributedOptimizer as _Distributed
from elasticdl_core.errors import UserCodeError


def DistributedOptimizer(  # noqa: N802 - the original's name
    optimizer: Optimizer,
    named_parameters: Any = None,
    compression: Any = None,
    backward_passes_per_step: int = 1,
    op: Any = None,
    gradient_predivide_factor: float = 1.0,
    global_batch_num_per_step: int | None = None,
    fixed_global_batch_size: bool = False,
) -> _Distributed:
    """Wraps an optimizer; see ``elasticdl.torch.distributed_optimizer``.

    Args:
        optimizer: the optimizer.
        named_parameters: not needed, and not looked at.
        compression: must be left out.
        backward_passes_per_step: must be left out.
        op: must be left out: gradients are averaged.
        gradient_predivide_factor: must be left out.
        global_batch_num_per_step: batches of an update; compared with the job's ``microbatches``.
        fixed_global_batch_size: must be True: the global batch does not follow the number of workers.

    Raises:
        UserCodeError: something is asked for that there is not.
    """
    other = {
        "compression": compression is not None,
        "backward_passes_per_step": backward_passes_per_step != 1,
        "op": op is not None,
        "gradient_predivide_factor": gradient_predivide_factor != 1.0,
    }
    for name, given in other.items():
        if given:
            raise UserCodeError(f"DistributedOptimizer does not take {name}", fix="leave it out")
    if not fixed_global_batch_size:
        raise UserCodeError(
            "an update has the same number of records whatever the number of workers",
            fix="give DistributedOptimizer fixed_global_batch_size=True",
        )
    feed = current_feed("DistributedOptimizer")
    if global_batch_num_per_step is not None and global_batch_num_per_step != feed.microbatches:
        raise UserCodeError(
            f"the script wants {global_batch_num_per_step} batches an update, and the job has {feed.microbatches}",
            fix=f"give `elasticdl run` --microbatches {global_batch_num_per_step} "
            f"--minibatch_size {global_batch_num_per_step * feed.batch_size} (the records of an update)",
        )
    return distributed_optimizer(optimizer)
