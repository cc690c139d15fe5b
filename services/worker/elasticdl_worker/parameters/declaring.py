"""Declaring a model to all parameter servers: one worker of several that come at once initialises all of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from elasticdl_core.errors import ConflictError
from elasticdl_runtime.rpc.deadlines import deadline_for
from elasticdl_worker.parameters.connection import ServerConnection
from elasticdl_worker.parameters.group import ServerGroup
from elasticdl_worker.parameters.types import ServedModel
from elasticdl_worker.parameters.waiting import together

_OTHERS_TURN_S = 5.0
"""How long, beside what its size takes, the worker that initialised the first PS may take to initialise another."""
_POLL_S = 0.1


async def declare_model(group: ServerGroup, values: Mapping[str, NDArray[Any]]) -> bool:
    """Declares the model that was placed on the PS, and initialises it unless that was done before.

    The first PS decides: who initialises it initialises the others.

    Args:
        group: the parameter servers; it has the model's specifications and rules.
        values: first values of the dense parameters by name.

    Returns:
        Whether this call initialised the model.

    Raises:
        InvalidInputError: the PS cannot hold the model, or know the optimizer.
        ConflictError: the PS hold a checkpoint of another model.
    """

    first, *others = group.servers
    present = await first.is_initialised()
    initialised = await first.push_model(group.model_frame(0, None if present else values))

    async def follow(server: ServerConnection) -> None:
        turn_s = deadline_for(_OTHERS_TURN_S, sum(one.dense_bytes for one in group.servers))
        there = not initialised and await _wait_until_initialised(server, turn_s)
        await server.push_model(group.model_frame(server.index, None if there else values))

    await together([follow(server) for server in others])
    return initialised


async def describe_model(group: ServerGroup) -> ServedModel:
    """The model that the PS hold, put together of what each holds of it.

    Raises:
        ConflictError: one of them has none yet.
    """
    parts = await together([server.model_part() for server in group.servers])
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        raise ConflictError("the parameter servers have no model yet", fix="declare one first")
    dense = {spec.name: spec for part in found for spec in part.dense}
    tables = {spec.name: spec for part in found for spec in part.tables}
    return ServedModel(
        max(part.version for part in found),
        tuple(dense[name] for name in sorted(dense)),
        tuple(tables[name] for name in sorted(tables)),
        found[0].optimizer,
        found[0].mode,
    )


async def _wait_until_initialised(server: ServerConnection, turn_s: float) -> bool:
    """Gives the worker that won the first PS its time; False if it did not use it."""
    give_up = time.monotonic() + turn_s
    while not await server.is_initialised():
        if time.monotonic() > give_up:
            return False
        await server.pause(_POLL_S)
    return True
