"""Disk use of the namespaces, against their limits."""

from __future__ import annotations

from elasticdl_api.settings import ApiSettings
from elasticdl_api.store.retention import RetentionStore
from elasticdl_core.errors import ConflictError


class DiskFullError(ConflictError):
    """A namespace fills all that it may."""

    code = "disk_limit"


class DiskLimits:
    """Refuses more to a namespace that is over its limit.

    Args:
        settings: the limit of namespaces that have none of their own.
        store: knows what they have.
    """

    def __init__(self, settings: ApiSettings, store: RetentionStore) -> None:
        self._settings = settings
        self._store = store

    async def require_room(self, namespace: str, more: int = 0) -> None:
        """Refuses if a namespace has more than it may.

        Args:
            namespace: the namespace.
            more: bytes that are to be added.

        Raises:
            DiskFullError: it has.
        """
        limit = await self._limit(namespace)
        if not limit:
            return
        used = await self._store.count_disk(namespace)
        if used + more > limit:
            raise DiskFullError(
                f"the namespace {namespace!r} has {used >> 20} MiB on disk; it may have {limit >> 20}",
                fix="delete jobs that are over (`elasticdl jobs delete ID`), or ask an administrator for more",
            )

    async def room(self, namespace: str) -> int | None:
        """Bytes that a namespace may still add; None for no limit."""
        limit = await self._limit(namespace)
        return max(0, limit - await self._store.count_disk(namespace)) if limit else None

    async def _limit(self, namespace: str) -> int:
        own = await self._store.read_disk_limit(namespace)
        return (self._settings.namespace_disk_mib if own is None else own) << 20
