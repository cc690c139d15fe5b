"""A mirror of the objects of one kind: lists are the truth, a watch only tells sooner."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import structlog

from elasticdl_agent.kubernetes.client import GoneError, KubernetesClient, Manifest
from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import ElasticDLError
from elasticdl_runtime.retry import Attempts

_BACKOFF = Backoff(0.2, 10.0)
_WATCH_S = (60, 90)
_LIST_ANEW_S = (450.0, 600.0)
_log = structlog.get_logger(__name__)
T = TypeVar("T")


class ResourceMirror(Generic[T]):
    """A mirror of the objects of a list, by name; of each only what ``digest`` makes of it is kept.

    Args:
        client: of the API server.
        path: of the list.
        params: selectors.
        digest: makes what is kept of an object.
        changed: hears of each object that came, changed or went (None).

    Attributes:
        items: the present ones, by name.
        listed: set once they are known.
    """

    def __init__(
        self,
        client: KubernetesClient,
        path: str,
        params: Mapping[str, str],
        digest: Callable[[Manifest], T],
        changed: Callable[[str, T | None], None],
    ) -> None:
        self._client = client
        self._path = path
        self._params = dict(params)
        self._digest = digest
        self._changed = changed
        self.items: dict[str, T] = {}
        self.listed = asyncio.Event()

    async def run(self) -> None:
        """Keeps the mirror up to date until cancelled: a lost list or watch is begun anew, ever later."""
        attempts = Attempts(_BACKOFF)
        async for _ in attempts:
            with contextlib.suppress(GoneError):
                try:
                    version = await self.list()
                    until = time.monotonic() + random.uniform(*_LIST_ANEW_S)
                    while time.monotonic() < until:
                        version = await self._follow(version, attempts)
                        await asyncio.sleep(_BACKOFF.pause_s(1))  # a server that ends each watch at once is spared
                except GoneError:
                    raise
                except ElasticDLError as error:
                    _log.warning("the API server is away", error=error.message)
                    continue
                attempts.reset()

    async def list(self) -> str:
        """Reads the whole list; returns its version.

        Raises:
            ElasticDLError: the API server is away, or refuses.
        """
        seen: set[str] = set()
        version = ""
        async for page, present in self._client.pages(self._path, self._params):
            version = present
            seen.update(map(self._take, page))
        for name in [name for name in self.items if name not in seen]:
            self._drop(name)
        self.listed.set()
        return version

    async def _follow(self, version: str, attempts: Attempts) -> str:
        params: dict[str, Any] = {**self._params, "resourceVersion": version}
        watch = self._client.watch(self._path, params, timeout_s=random.randint(*_WATCH_S))
        async with contextlib.aclosing(watch) as events:
            try:
                async for kind, item in events:
                    attempts.reset()
                    version = str(item["metadata"]["resourceVersion"])
                    if kind == "DELETED":
                        self._drop(str(item["metadata"]["name"]))
                    elif kind in ("ADDED", "MODIFIED"):
                        self._take(item)
            except GoneError:
                raise
            except ElasticDLError as error:
                # What was seen is true: it goes on from there, and lists anew only if the server says so.
                _log.info("a watch was cut", error=error.message)
                await attempts.pause()
        return version

    def _take(self, item: Manifest) -> str:
        name = str(item["metadata"]["name"])
        try:
            found = self._digest(item)
        except (KeyError, TypeError, ValueError) as error:
            _log.warning("an object that only looks like one of ours is passed over", name=name, error=repr(error))
            return name
        if self.items.get(name) != found:
            self.items[name] = found
            self._changed(name, found)
        return name

    def _drop(self, name: str) -> None:
        if self.items.pop(name, None) is not None:
            self._changed(name, None)
