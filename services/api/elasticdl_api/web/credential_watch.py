"""Open streams end within seconds when the token or session that they were opened with is not valid any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

import structlog
from starlette.types import Scope

from elasticdl_core.errors import ElasticDLError, PermissionDeniedError, UnauthenticatedError

RECHECK_S = 3.0
"""Seconds between two looks at the credentials of open streams; each is looked at once, however many it opened."""
_STATE = "credential_watch"
_log = structlog.get_logger(__name__)
End = Callable[[], None]


class CredentialWatch:
    """Looks at the credentials of open streams, by one task that lives as long as a stream is open.

    Args:
        verify: raises where what a request showed is not valid any more.
        credential_of: what a request showed.
    """

    def __init__(self, verify: Callable[[Scope], Awaitable[object]], credential_of: Callable[[Scope], str]) -> None:
        self._verify = verify
        self._credential_of = credential_of
        self._streams: dict[str, dict[End, Scope]] = {}
        self._task: asyncio.Task[None] | None = None

    def hand_on(self, scope: Scope) -> None:
        """Lets the stream that a request may open be watched, see ``watched``."""
        scope["state"][_STATE] = self

    @contextlib.contextmanager
    def watching(self, scope: Scope, end: End) -> Iterator[None]:
        """Watches over one stream until the block ends."""
        credential = self._credential_of(scope)
        self._streams.setdefault(credential, {})[end] = scope
        if self._task is None:
            self._task = asyncio.create_task(self._look(), name="credentials of streams")
        try:
            yield
        finally:
            del self._streams[credential][end]
            if not self._streams[credential]:
                del self._streams[credential]
            if not self._streams and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(RECHECK_S)
            for credential, streams in list(self._streams.items()):
                scope = next(iter(streams.values()), None)
                if scope is not None and not await self._is_valid(scope):
                    for end in list(self._streams.get(credential, ())):
                        end()

    async def _is_valid(self, scope: Scope) -> bool:
        try:
            await self._verify(scope)
        except (UnauthenticatedError, PermissionDeniedError):
            return False
        except ElasticDLError as error:
            _log.warning("the credentials of streams are looked at later", error=error.message)
        except Exception:
            _log.exception("a credential cannot be looked at")
        return True


def watched(scope: Scope, end: End) -> contextlib.AbstractContextManager[None]:
    """Has a stream ended, for as long as the block lasts, when its credential is not valid any more.

    Args:
        scope: of the request that opened it.
        end: ends the stream; a function of that stream alone.
    """
    watch: CredentialWatch | None = scope.get("state", {}).get(_STATE)
    return contextlib.nullcontext() if watch is None else watch.watching(scope, end)
