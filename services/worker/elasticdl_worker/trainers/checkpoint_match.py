"""Whether a checkpoint is of the model that shall begin with it: nothing of either is left over."""

from __future__ import annotations

from collections.abc import Collection

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.checkpoint_files import CheckpointContent

OTHER_MODEL_FIX = "use the model definition and model_params that the checkpoint was made with"


def check_nothing_left(content: CheckpointContent, dense: Collection[str], tables: Collection[str]) -> None:
    """Refuses a checkpoint that has something that the model has no place for, as parameter servers refuse it.

    Args:
        content: the checkpoint.
        dense: names of the model's parameters.
        tables: names of the tables that the model has, as tables or as weights.

    Raises:
        InvalidInputError: with the name of what is left over.
    """
    for what, there, here in (("parameter", content.dense, dense), ("embedding table", content.tables, tables)):
        left = sorted(set(there) - set(here))
        if left:
            raise InvalidInputError(
                f"the checkpoint has the {what} {left[0]!r}, which the model does not have", fix=OTHER_MODEL_FIX
            )


def check_has_tables(content: CheckpointContent, tables: Collection[str]) -> None:
    """Refuses a checkpoint that lacks a table, whose rows would begin anew.

    Raises:
        InvalidInputError: with the name of the table.
    """
    missing = sorted(set(tables) - set(content.tables))
    if missing:
        raise InvalidInputError(
            f"the checkpoint has no embedding table {missing[0]!r}, which the model has; it has "
            f"{sorted(content.tables)[:10]}",
            fix=OTHER_MODEL_FIX,
        )
