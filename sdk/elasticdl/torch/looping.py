"""What a script with a training loop of its own asks its launcher for, beside records and updates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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


def output_dir() -> Path:
    """The directory for what the script makes: its files become artifacts of the job.

    It waits until all records are done. One worker gets the directory; in all others the script ends here.

    Raises:
        UserCodeError: the loop has not taken all records.
    """
    return current_feed("elasticdl.torch.output_dir").wait_for_output()
