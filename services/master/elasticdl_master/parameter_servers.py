"""The parameter servers as the master commands them: status, restore, pin, flush, save."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticdl_core.errors import InvalidInputError, UnavailableError
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.rpc.client import RpcClient

_STATUS_DEADLINE_S = 2.0
_DEADLINE_S = 30.0
_FILES_DEADLINE_S = 1800.0
_SERVICE = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What a PS says of itself."""

    initialized: bool
    version: int
    rows: int
    bytes: int
    generation: str


@dataclass(frozen=True, slots=True)
class SavedParts:
    """What the PS wrote for a checkpoint.

    Attributes:
        version: the model version: that of the first PS.
        files: name, size and sha256 of each file.
        model: what the first PS says of the model.
    """

    version: int
    files: Sequence[Mapping[str, Any]]
    model: str


class ServerControl:
    """Commands all PS of a job.

    Args:
        addresses: of PS 0, 1, ...
        token: returns the master's job token.
    """

    def __init__(self, addresses: Sequence[str], token: Callable[[], str]) -> None:
        self.addresses = list(addresses)
        self._clients = [RpcClient(address, _SERVICE, token) for address in addresses]

    async def status(self, index: int) -> ServerStatus:
        """Asks one PS how it is.

        Raises:
            UnavailableError: it does not answer.
        """
        answer = await self._clients[index].call("Status", ps_pb2.StatusRequest(), deadline_s=_STATUS_DEADLINE_S)
        return ServerStatus(answer.initialized, answer.version, answer.rows, answer.bytes, answer.generation)

    async def restore(self, manifest: Mapping[str, Any]) -> int:
        """Brings all PS to a checkpoint; returns the version.

        Raises:
            UnavailableError: a PS does not answer.
            ElasticDLError: the checkpoint cannot be used.
        """
        request = ps_pb2.RestoreRequest(
            directory=manifest["directory"],
            files=[ps_pb2.SavedFile(name=f["name"], size=f["size"], sha256=f["sha256"]) for f in manifest["files"]],
        )
        answers = await self._all("Restore", request, _FILES_DEADLINE_S)
        return int(answers[0].version)

    async def pin(self, number: int) -> int:
        """Keeps the present parameters of all PS readable under a number; returns the version of the first."""
        answers = await self._all("Pin", ps_pb2.PinRequest(pin=number), _DEADLINE_S)
        return int(answers[0].version)

    async def unpin(self, number: int) -> None:
        """Drops a pin."""
        await self._all("Unpin", ps_pb2.UnpinRequest(pin=number), _DEADLINE_S)

    async def flush(self) -> None:
        """Closes the present round of synchronous training on all PS."""
        closed = await self._clients[0].call("FlushRound", ps_pb2.FlushRoundRequest(), deadline_s=_DEADLINE_S)
        if closed.HasField("closed"):
            request = ps_pb2.ApplyRoundRequest(round=closed.closed)
            await _together([c.call("ApplyRound", request, deadline_s=_DEADLINE_S) for c in self._clients[1:]])

    async def save(self, directory: str) -> SavedParts:
        """Lets all PS write their part into a directory.

        Raises:
            UnavailableError: a PS does not answer.
            ElasticDLError: a PS could not write.
        """
        answers = await self._all("Save", ps_pb2.SaveRequest(directory=directory), _FILES_DEADLINE_S)
        files = [
            {"name": file.name, "size": file.size, "sha256": file.sha256, "ps": index}
            for index, answer in enumerate(answers)
            for file in answer.files
        ]
        if len(files) < len(answers):
            raise InvalidInputError("a PS wrote no file", fix="see the log of the PS")
        return SavedParts(int(answers[0].version), files, str(answers[0].model))

    async def close(self) -> None:
        """Closes the channels."""
        for client in self._clients:
            await client.close()

    async def _all(self, method: str, request: Any, deadline_s: float) -> list[Any]:
        return await _together([client.call(method, request, deadline_s=deadline_s) for client in self._clients])


async def _together(calls: Sequence[Awaitable[Any]]) -> list[Any]:
    """All answers; waits for every call, then raises the worst error: one that trying again does not mend first."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    errors.sort(key=lambda error: isinstance(error, UnavailableError))
    if errors:
        raise errors[0]
    return list(answers)
