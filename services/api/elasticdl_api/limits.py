"""Limits on the tokens of a namespace: the settings, or what ``namespaces.limits`` says instead."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import structlog
from pydantic import ValidationError

from elasticdl_api.schemas.access import NamespaceLimits
from elasticdl_api.settings import ApiSettings
from elasticdl_api.store.namespaces import NamespaceStore
from elasticdl_api.web.rate_limits import RequestRate
from elasticdl_core.errors import UnavailableError

BURST_S = 5
"""Seconds' worth of requests that a token may send at once where the namespace has a limit of its own."""
KEPT_S = 10.0
"""Seconds for which limits are kept, once they were read."""
_log = structlog.get_logger(__name__)


class LimitReader:
    """Reads the limits of namespaces, and keeps them for a while.

    Args:
        namespaces: knows what was said of each.
        settings: the limits of those that have none of their own.
        clock: seconds that only grow.
    """

    def __init__(
        self, namespaces: NamespaceStore, settings: ApiSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._namespaces = namespaces
        self._settings = settings
        self._clock = clock
        self._kept: dict[str, tuple[float, NamespaceLimits]] = {}

    async def rate_of(self, namespace: str) -> RequestRate:
        """The rate at which each token of a namespace may ask."""
        own = (await self._limits(namespace)).requests_per_second
        if own is None:
            return RequestRate(self._settings.requests_per_s, self._settings.requests_at_once)
        return RequestRate(own, own * BURST_S)

    async def streams_of(self, namespace: str | None) -> int | None:
        """The number of streams a token may have open; None for no limit, which tokens of the cluster have."""
        if namespace is None:
            return None
        limits = await self._limits(namespace)
        return self._settings.max_streams_per_token if limits.max_streams is None else limits.max_streams

    async def _limits(self, namespace: str) -> NamespaceLimits:
        at, limits = self._kept.get(namespace, (-KEPT_S, NamespaceLimits()))
        if self._clock() - at < KEPT_S:
            return limits
        try:
            limits = _read(namespace, await self._namespaces.get_limits(namespace))
        except UnavailableError:
            pass  # the limits of before hold until the database answers
        self._kept[namespace] = (self._clock(), limits)
        return limits


def _read(namespace: str, found: Any) -> NamespaceLimits:
    try:
        return NamespaceLimits.model_validate(found or {})
    except ValidationError as error:
        _log.warning("the limits of a namespace are not valid", namespace=namespace, error=str(error))
        return NamespaceLimits()
