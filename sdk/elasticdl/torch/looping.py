"""Questions of a script with a training loop of its own to its launcher, beside records and updates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from elasticdl.own_loop import current_feed


def run(train: Callable[[], object]) -> None:
    """Calls a training loop as often as it takes to train on all records of all epochs.

    The loop ends with each epoch, and after a minibatch that the data cut short; it goes on by being called again.
    Workers that come and go do not end it. Make the model and the optimizer outside of it.

    What follows this call is done in one worker only, after the last update.

    Args:
        train: the loop.
    """
    feed = current_feed("elasticdl.torch.run")
    train()
    while feed.more():
        train()


def log(**values: Any) -> None:
    """Shows values of the present batch as those of the job: in its curves, on its page, to ``elasticdl jobs get``.

    Call it after the batch was taken and before the optimizer's step, which ends the batch.

    Args:
        values: numbers or tensors of one number, each a mean over the batch's records: ``loss=loss, accuracy=share``.

    Raises:
        UserCodeError: there is no batch that was taken and not committed, or a value is no number.
    """
    plain: dict[str, Any] = {
        name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in values.items()
    }
    current_feed("elasticdl.torch.log").log(plain)


def output_dir() -> Path:
    """The directory for what the script makes: its files become artifacts of the job.

    It waits until all records are done. One worker gets the directory; in all others the script ends here.

    Raises:
        UserCodeError: the loop has not taken all records.
    """
    return current_feed("elasticdl.torch.output_dir").wait_for_output()
