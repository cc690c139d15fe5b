"""The parameter servers as the master commands them: status, restore, pin, flush, save."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from elasticdl_core.checkpoint_manifest import Manifest, ManifestFile
from elasticdl_core.errors import ConflictError, InvalidInputError, UnavailableError
from elasticdl_master.model_holder import SavedParts, ServerStatus
from elasticdl_master.state.tally import Tallied
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.rpc.client import RpcClient
from elasticdl_runtime.rpc.deadlines import deadline_for, deadline_for_files

_STATUS_DEADLINE_S = 2.0
_DEADLINE_S = 30.0
_FILES_DEADLINE_S = 1800.0
_HOLDS_S = (2.0, 4.0, 8.0)
"""For how long rounds may be held to copy all PS at one version, in each attempt; it takes some milliseconds.

The last attempt has the time besides that copies of large dense parameters take.
"""
_COPIED_BYTES_S = 1e9
_LONGEST_HOLD_S = 600.0
"""A PS holds rounds no longer."""
_ROUND_PATIENCE_S = 30.0
"""A checkpoint waits no longer for gradients that are always about to come."""
_SERVICE = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]


class ServerControl:
    """Commands all PS of a job.

    Args:
        addresses: of PS 0, 1, ...
        token: returns the master's job token.
    """

    def __init__(self, addresses: Sequence[str], token: Callable[[], str]) -> None:
        self.addresses = list(addresses)
        self._clients = [RpcClient(address, _SERVICE, token) for address in addresses]
        self._cutting = asyncio.Lock()
        self._bytes = [0] * len(self._clients)

    async def status(self, index: int) -> ServerStatus:
        """Asks one PS how it is.

        Raises:
            UnavailableError: it does not answer.
        """
        answer = await self._clients[index].call("Status", ps_pb2.StatusRequest(), deadline_s=_STATUS_DEADLINE_S)
        self._bytes[index] = answer.bytes
        return ServerStatus(
            answer.initialized,
            answer.version,
            answer.rows,
            answer.bytes,
            answer.generation,
            answer.records,
            answer.cpu_s,
        )

    async def tallies(self) -> list[Tallied]:
        """The numbers of each training task's records that are in the parameters of each PS."""
        answers = await self._all("Tally", ps_pb2.TallyRequest(), self._deadline_s)
        return [
            Tallied(
                {
                    (answer.counts[at], answer.counts[at + 1]): answer.counts[at + 2]
                    for at in range(0, len(answer.counts), 3)
                },
                answer.complete,
            )
            for answer in answers
        ]

    async def restore(self, manifest: Manifest, *, other_job: bool = False, stop_at: int = 0) -> int:
        """Brings all PS to a checkpoint, of this job or another one; returns the version.

        Args:
            manifest: of the checkpoint.
            other_job: whether it is another job's.
            stop_at: the version after which they refuse updates; 0 for none.

        Raises:
            UnavailableError: a PS does not answer.
            ElasticDLError: the checkpoint cannot be used.
        """
        request = ps_pb2.RestoreRequest(
            directory=manifest["directory"],
            files=[ps_pb2.SavedFile(name=f["name"], size=f["size"], sha256=f["sha256"]) for f in manifest["files"]],
            other_job=other_job,
            stop_at=stop_at,
        )
        # Each reads all files, whoever wrote them.
        size = sum(int(file["size"]) for file in manifest["files"])
        answers = await self._all("Restore", request, deadline_for_files(_FILES_DEADLINE_S, size))
        return int(answers[0].version)

    async def pin(self, number: int, *, one_version: bool = False) -> int:
        """Keeps the present parameters of all PS readable under a number; returns the version of the first.

        Args:
            number: of the pin.
            one_version: all PS must be at one version (synchronous training).
        """
        if not one_version:
            answers = await self._all("Pin", ps_pb2.PinRequest(pin=number), self._deadline_s)
            return int(answers[0].version)

        async def take(version: int) -> None:
            request = ps_pb2.PinRequest(pin=number, version=version)
            answers = await self._all("Pin", request, self._deadline_s)
            if {answer.version for answer in answers} != {version}:
                # An earlier attempt got some of them only.
                await self.unpin(number)
                raise ConflictError(f"pin {number} is at different versions", fix="pin again")

        return await self._at_one_version(take)

    async def unpin(self, number: int) -> None:
        """Drops a pin."""
        await self._all("Unpin", ps_pb2.UnpinRequest(pin=number), self._deadline_s)

    async def flush(self) -> None:
        """Closes the present round of synchronous training on all PS, with the gradients that it has."""
        closed = await self._clients[0].call("FlushRound", ps_pb2.FlushRoundRequest(), deadline_s=self._deadline_s)
        if closed.HasField("closed"):
            request = ps_pb2.ApplyRoundRequest(round=closed.closed)
            await _together([c.call("ApplyRound", request, deadline_s=self._deadline_s) for c in self._clients[1:]])

    def note_save(self) -> None:
        """Does nothing: what the PS hold when they write is what their tallies say."""

    def end_save(self) -> None:
        """Does nothing."""

    async def save(self, directory: str, *, one_version: bool = False) -> SavedParts:
        """Lets all PS write their part into a directory.

        Args:
            directory: of the checkpoint.
            one_version: all parts must be of one version, and all gradients that have been counted in it
                (synchronous training).

        Raises:
            UnavailableError: a PS does not answer.
            ConflictError: the PS could not be brought to one version.
            ElasticDLError: a PS could not write.
        """
        if one_version:
            await self._at_one_version(self._cut, between_rounds=True)
        request = ps_pb2.SaveRequest(directory=directory, cut=one_version)
        deadline_s = deadline_for_files(_FILES_DEADLINE_S, sum(self._bytes))
        answers = await self._all("Save", request, deadline_s)
        versions = [int(answer.version) for answer in answers]
        if one_version and len(set(versions)) > 1:
            raise ConflictError(f"the parts of the checkpoint are of the versions {versions}", fix="save again")
        files: list[ManifestFile] = [
            {"name": file.name, "size": file.size, "sha256": file.sha256, "ps": index}
            for index, answer in enumerate(answers)
            for file in answer.files
        ]
        if len(files) < len(answers):
            raise InvalidInputError("a PS wrote no file", fix="see the log of the PS")
        return SavedParts(int(answers[0].version), files, str(answers[0].model))

    async def _at_one_version(self, take: Callable[[int], Awaitable[None]], *, between_rounds: bool = False) -> int:
        """Brings all PS to one version, and takes something of all of them there; returns the version.

        The first PS lets no round end meanwhile, for a bounded time. What is taken names the version, so a PS that
        has gone on after that time refuses, and all is done again.

        Args:
            take: does it, at a version.
            between_rounds: wait until the present round is full. One that nobody fills ends with what it has.

        Raises:
            ConflictError: it was never to be had.
        """
        async with self._cutting:
            for number, seconds in enumerate(_HOLDS_S, start=1):
                if number == len(_HOLDS_S):
                    seconds = min(seconds + max(self._bytes) / _COPIED_BYTES_S, _LONGEST_HOLD_S)
                try:
                    version = await self._hold(seconds, between_rounds=between_rounds)
                    await _together([self._bring_to(version, index) for index in range(1, len(self._clients))])
                    await take(version)
                    return version
                except ConflictError:
                    if number == len(_HOLDS_S):
                        raise
                finally:
                    with contextlib.suppress(UnavailableError):
                        release = ps_pb2.ReleaseRoundsRequest()
                        await self._clients[0].call("ReleaseRounds", release, deadline_s=self._deadline_s)
        raise AssertionError("every attempt returns or raises")

    async def _hold(self, seconds: float, *, between_rounds: bool) -> int:
        """Has the first PS hold rounds; returns the version that stays meanwhile."""
        give_up = time.monotonic() + _ROUND_PATIENCE_S
        request = ps_pb2.HoldRoundsRequest(seconds=seconds, between_rounds=between_rounds)
        while True:
            held = await self._clients[0].call("HoldRounds", request, deadline_s=self._deadline_s)
            if not (between_rounds and held.open):
                return int(held.version)
            if not held.expected or time.monotonic() > give_up:
                closed = await self._clients[0].call(
                    "FlushRound", ps_pb2.FlushRoundRequest(), deadline_s=self._deadline_s
                )
                return int(closed.version)

    async def _bring_to(self, version: int, index: int) -> None:
        """Passes rounds that the first PS has closed on to one that is behind."""
        present = (await self.status(index)).version
        if present >= version:
            return
        request = ps_pb2.ClosedRoundsRequest(since=present)
        closed = await self._clients[0].call("ClosedRounds", request, deadline_s=self._deadline_s)
        for round_ in closed.rounds:
            apply = ps_pb2.ApplyRoundRequest(round=round_)
            await self._clients[index].call("ApplyRound", apply, deadline_s=self._deadline_s)

    @property
    def _deadline_s(self) -> float:
        """Of what a PS does with what it holds, the largest of them being as large as it is."""
        return deadline_for(_DEADLINE_S, max(self._bytes))

    async def _cut(self, version: int) -> None:
        await self._all("Cut", ps_pb2.CutRequest(version=version), self._deadline_s)

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
