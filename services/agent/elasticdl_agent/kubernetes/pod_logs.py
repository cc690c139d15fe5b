"""Logs of pods, through the log API: all incarnations of a process one after the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime

from elasticdl_agent.kubernetes.client import KubernetesClient
from elasticdl_agent.kubernetes.pod_states import CONTAINER
from elasticdl_core.errors import InvalidInputError, NotFoundError, UnavailableError

_AGAIN_S = 0.2
_SILENCE_S = 60.0
"""Seconds without a word after which a log is asked for anew: the way to its node may have broken silently."""
_GONE = (b"unable to retrieve container logs for ", b"failed to try resolving symlinks in path ")
"""What a kubelet puts in the place of a log that it no longer has, with a status of success."""


class PodLog:
    """The log of one pod.

    Args:
        client: of the API server.
        path: of the pod.
        ended: says whether it prints nothing more.
        since: leave out what was printed before, in seconds since 1970.
        silence_s: seconds without a word after which a log that is followed is asked for anew.
    """

    def __init__(
        self,
        client: KubernetesClient,
        path: str,
        ended: Callable[[], bool],
        since: float | None = None,
        *,
        silence_s: float = _SILENCE_S,
    ) -> None:
        self._client = client
        self._path = f"{path}/log"
        self._ended = ended
        self._silence_s = silence_s
        self._params = {"container": CONTAINER}
        if since is not None:
            at = datetime.fromtimestamp(int(since), UTC)
            self._params["sinceTime"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")

    async def read(self, *, follow: bool = False) -> AsyncGenerator[bytes]:
        """Yields what it has printed, and with ``follow`` what it goes on to print, until it has ended.

        Raises:
            UnavailableError: the API server is away.
        """
        sent, told = 0, False
        while True:
            over = self._ended()
            skip = sent
            try:
                params, silence_s = self._params, None
                if follow and not over:
                    params, silence_s = {**params, "follow": "true"}, self._silence_s
                asked = self._client.lines(self._path, params, silence_s=silence_s)
                async with contextlib.aclosing(asked) as pieces:
                    async for piece in pieces:
                        if piece.startswith(_GONE):
                            if not sent and not told:
                                told = True
                                yield b"its log is gone: nodes keep none of containers that were told to leave\n"
                            break
                        new = piece[skip:]
                        skip = max(0, skip - len(piece))
                        if new:
                            sent += len(new)
                            yield new
            except (InvalidInputError, NotFoundError):
                pass  # it has not begun, or was removed
            except UnavailableError:
                if not follow:
                    raise
            if not follow or over:
                return
            await asyncio.sleep(_AGAIN_S)


def cut(data: bytes, tail: int | None, lines: int | None) -> bytes:
    """The end of a log: so many whole lines, or so many bytes."""
    if lines is not None:
        return b"".join(data.splitlines(keepends=True)[-lines:]) if lines else b""
    return data if tail is None else data[len(data) - min(tail, len(data)) :]
