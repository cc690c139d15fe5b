"""The calls of ``AsyncClient`` for tokens, namespaces and the audit log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from elasticdl.client.aio.connection import AsyncApiConnection
from elasticdl.client.messages import Request
from elasticdl.client.requests import given, namespace_path, token_path
from elasticdl.client.transport import moment_text


class AsyncAccessCalls:
    """Administration, and the caller's identity. Part of ``AsyncClient``."""

    _api: AsyncApiConnection

    async def whoami(self) -> Mapping[str, Any]:
        """The user, namespace and scope of the token."""
        return dict(await self._api.fetch(Request("GET", "/whoami")))

    async def version(self) -> Mapping[str, Any]:
        """The version of ElasticDL that answers."""
        return dict(await self._api.fetch(Request("GET", "/version")))

    async def create_token(
        self,
        name: str,
        *,
        scope: str = "read",
        namespace: str | None = None,
        of_cluster: bool = False,
        owner: str | None = None,
        expires_in_s: int | None = None,
    ) -> Mapping[str, Any]:
        """Makes a token; ``token`` of the answer is shown this once.

        Args:
            name: what it is for.
            scope: ``read``, ``submit`` or ``admin``.
            namespace: the only one that its holder sees; one's own by default.
            of_cluster: its holder sees all namespaces.
            owner: the user who will hold it; oneself by default.
            expires_in_s: seconds for which it is valid; until it is revoked by default.
        """
        body = given(
            name=name,
            scope=scope,
            namespace=namespace,
            of_cluster=of_cluster or None,
            owner=owner,
            expires_in_s=expires_in_s,
        )
        return dict(await self._api.fetch(Request("POST", "/tokens", json=body)))

    async def tokens(
        self, *, namespace: str | None = None, owner: str | None = None, ended: bool = False
    ) -> Sequence[Mapping[str, Any]]:
        """All tokens that one administers, the newest first.

        Args:
            namespace: only of that one.
            owner: only of that user.
            ended: also those that are expired or revoked.
        """
        params = given(namespace=namespace, owner=owner, ended="true" if ended else None, limit="500")
        found: list[Mapping[str, Any]] = []
        while True:
            page = await self._api.fetch(Request("GET", "/tokens", params=params))
            found += page["tokens"]
            if not page["next_page_token"]:
                return found
            params["page_token"] = page["next_page_token"]

    async def revoke_token(self, token_id: str) -> None:
        """Ends a token; it is refused from the next request on."""
        await self._api.exchange(Request("DELETE", token_path(token_id)))

    async def namespaces(self) -> Sequence[Mapping[str, Any]]:
        """The namespaces that one sees, by name."""
        return list((await self._api.fetch(Request("GET", "/namespaces")))["namespaces"])

    async def namespace(self, name: str) -> Mapping[str, Any]:
        """One namespace."""
        return dict(await self._api.fetch(Request("GET", namespace_path(name))))

    async def put_namespace(
        self,
        name: str,
        *,
        data_roots: Sequence[str] | None = None,
        limits: Mapping[str, int] | None = None,
        sources: Mapping[str, str | None] | None = None,
    ) -> Mapping[str, Any]:
        """Makes a namespace, or changes what is given of it; for administrators of the cluster.

        Args:
            name: of the namespace.
            data_roots: where its jobs may read and write besides their own folders.
            limits: what it may take.
            sources: databases that its statements may read, addresses by name; None removes one, others stay.
        """
        roots = None if data_roots is None else list(data_roots)
        body = given(data_roots=roots, limits=limits, sources=None if sources is None else dict(sources))
        return dict(await self._api.fetch(Request("PUT", namespace_path(name), json=body)))

    async def delete_namespace(self, name: str) -> None:
        """Removes a namespace without jobs, and its tokens; for administrators of the cluster."""
        await self._api.exchange(Request("DELETE", namespace_path(name)))

    async def audit(
        self,
        *,
        namespace: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        target: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        page_token: str = "",
    ) -> Mapping[str, Any]:
        """One page of the changes that users made, the latest first.

        Args:
            namespace: only of that one.
            actor: only of that user.
            action: only such, e.g. ``job.cancel``.
            target: only about that object.
            since: only from then on.
            until: only before then.
            limit: entries on a page.
            page_token: ``next_page_token`` of the page before; empty for the first page.
        """
        params = given(
            namespace=namespace,
            actor=actor,
            action=action,
            target=target,
            since=moment_text(since),
            until=moment_text(until),
            limit=str(limit),
            page_token=page_token or None,
        )
        return dict(await self._api.fetch(Request("GET", "/audit", params=params)))
