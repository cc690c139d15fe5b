"""The user's code in a training step: what it raises is told with its records where these are the reason."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

from elasticdl_core.errors import ElasticDLError, UserCodeError
from elasticdl_worker.trainers.minibatch import Minibatch
from elasticdl_worker.user_code import ModelModule, user_location, user_traceback

_SHAPES = "check the shapes of features, labels and predictions"
_OF_SHAPES = re.compile(r"shape|dimension|\bsize|broadcast|rank|must match|logits and labels", re.IGNORECASE)
_ONE_RECORD = "more than 1 value per channel"
_ONE_RECORD_FIX = (
    "one record has no variance for BatchNorm: choose a --minibatch_size that leaves no single record over (the last "
    "minibatch of a task has the rest of it), leave one out of the data, or use GroupNorm or LayerNorm"
)


@contextlib.contextmanager
def training_step(module: ModelModule, batches: Sequence[Minibatch] = ()) -> Iterator[None]:
    """A context in which the user's code computes a training step.

    Args:
        module: the user's.
        batches: what it computes with.

    Raises:
        UserCodeError: it raised.
    """
    with module.guard("a training step"):
        try:
            yield
        except ElasticDLError:
            raise
        except Exception as error:
            alone = [batch for batch in batches if batch.records == 1]
            if not alone or not re.search(_ONE_RECORD, str(error)):
                of_shapes = not isinstance(error, LookupError) and _OF_SHAPES.search(str(error))
                with module.guard("a training step", _SHAPES if of_shapes else ""):
                    raise
            raise UserCodeError(
                f"a training step on a minibatch of one record ({alone[0].where}) raised {type(error).__name__}: "
                f"{error}{user_location(error, module.roots)}",
                fix=_ONE_RECORD_FIX,
                traceback=user_traceback(error, module.roots),
            ) from error
