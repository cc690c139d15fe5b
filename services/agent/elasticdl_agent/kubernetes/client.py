"""Requests to a Kubernetes API server: raw dictionaries, each with a deadline, failing with our own exceptions."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any

import httpx

from elasticdl_agent.kubernetes.access import KubernetesAccess
from elasticdl_core.errors import (
    ConflictError,
    ElasticDLError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)

Manifest = dict[str, Any]
"""An object of the API, as JSON has it."""
FIELD_MANAGER = "elasticdl"
_DEADLINE_S = 10.0
_PAGE = 500
_LONGEST_LINE = 16 << 20


_NO_RIGHT = re.compile(r"\bcannot \w+ resource\b")


class GoneError(UnavailableError):
    """The version that a list or a watch wants to go on from is no longer kept: list anew (410)."""


class QuotaExceededError(UnavailableError):
    """A quota of the namespace has no room for an object now (403)."""


class NoRightError(PermissionDeniedError):
    """A right that whoever asks lacks (401, and 403 but for objects that a policy does not allow).

    An API server that has just begun says so, too, until it has read who may do what.
    """


class KubernetesClient:
    """Talks to one API server; an async context manager.

    Args:
        access: where it is.
        deadline_s: seconds after which a request fails with UnavailableError.
    """

    def __init__(self, access: KubernetesAccess, *, deadline_s: float = _DEADLINE_S) -> None:
        self._access = access
        self._deadline_s = deadline_s
        self._http = httpx.AsyncClient(
            base_url=access.server,
            verify=access.tls if access.tls is not None else False,
            timeout=deadline_s,
            limits=httpx.Limits(max_connections=100),
            trust_env=False,
        )

    async def __aenter__(self) -> KubernetesClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
        kind: str = "application/json",
    ) -> Manifest:
        """Makes a request; returns the object that is answered.

        Raises:
            GoneError: 410.
            QuotaExceededError: 403 of a quota.
            ElasticDLError: as the status says; UnavailableError where there is no answer.
        """
        content = None if body is None else json.dumps(body).encode()
        headers = self._headers() | ({} if body is None else {"Content-Type": kind})
        try:
            response = await self._http.request(method, path, content=content, params=params, headers=headers)
        except httpx.HTTPError as error:
            raise _away(error) from None
        if response.status_code >= 400:
            raise error_of(response.status_code, response.content)
        return _object(response.content)

    async def apply(self, path: str, manifest: Manifest) -> Manifest:
        """Server-side apply: makes the object, or makes what we say of it true again.

        Raises:
            ElasticDLError: as ``call``.
        """
        params = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self.call("PATCH", path, manifest, params=params, kind="application/apply-patch+yaml")

    async def delete(self, path: str, *, grace_s: int | None = None, uid: str = "") -> None:
        """Deletes an object, and in the background what it owns; does nothing where there is none.

        Args:
            path: of the object.
            grace_s: seconds that a pod has to end.
            uid: delete that very object, and none that took its name since.

        Raises:
            ElasticDLError: as ``call``.
        """
        options: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid:
            options["preconditions"] = {"uid": uid}
        with contextlib.suppress(NotFoundError, ConflictError):
            await self.call("DELETE", path, options)

    async def pages(
        self, path: str, params: Mapping[str, str] | None = None
    ) -> AsyncGenerator[tuple[list[Manifest], str]]:
        """Lists page by page: objects, and the version of the list that a watch goes on from.

        Raises:
            GoneError: the list grew old between two pages.
            ElasticDLError: as ``call``.
        """
        asked = {**(params or {}), "limit": str(_PAGE)}
        while True:
            found = await self.call("GET", path, params=asked)
            metadata = found.get("metadata") or {}
            yield found.get("items") or [], str(metadata.get("resourceVersion", ""))
            if not metadata.get("continue"):
                return
            asked["continue"] = metadata["continue"]

    async def lines(
        self, path: str, params: Mapping[str, str], *, silence_s: float | None = None
    ) -> AsyncGenerator[bytes]:
        """Yields the pieces of an answer as they come, for as long as something comes.

        Args:
            path: of a log or a list to watch.
            params: of the request.
            silence_s: seconds without a byte after which it counts as broken off; those of any request by default.

        Raises:
            ElasticDLError: as ``call``.
        """
        timeout = httpx.Timeout(self._deadline_s, read=silence_s or self._deadline_s)
        try:
            async with self._http.stream("GET", path, params=params, headers=self._headers(), timeout=timeout) as got:
                if got.status_code >= 400:
                    raise error_of(got.status_code, await got.aread())
                async for piece in got.aiter_bytes():
                    yield piece
        except httpx.HTTPError as error:
            raise _away(error) from None

    async def watch(
        self, path: str, params: Mapping[str, str], *, timeout_s: int
    ) -> AsyncGenerator[tuple[str, Manifest]]:
        """Yields what happens to the objects of a list, as type and object, until the server ends the watch.

        Raises:
            GoneError: the version to go on from is no longer kept.
            ElasticDLError: as ``call``.
        """
        asked = {**params, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout_s)}
        rest = b""
        async with contextlib.aclosing(self.lines(path, asked, silence_s=timeout_s + _DEADLINE_S)) as pieces:
            async for piece in pieces:
                *whole, rest = (rest + piece).split(b"\n")
                if len(rest) > _LONGEST_LINE:
                    raise UnavailableError("the API server sent an event without an end", fix="try again")
                for line in whole:
                    if not line.strip():
                        continue
                    event = _object(line)
                    kind, found = str(event.get("type", "")), event.get("object") or {}
                    if kind == "ERROR":
                        raise error_of(int(found.get("code") or 500), json.dumps(found).encode())
                    yield kind, found

    def _headers(self) -> dict[str, str]:
        token = self._access.token()
        return {"Authorization": f"Bearer {token}"} if token else {}


def error_of(code: int, content: bytes) -> ElasticDLError:
    """The error for an answer that is no success.

    Args:
        code: the HTTP status.
        content: a ``Status`` object, or anything else.
    """
    try:
        said = str(json.loads(content).get("message", ""))
    except (ValueError, AttributeError):
        said = content[:200].decode(errors="replace")
    message = f"Kubernetes says: {said or code}"
    if code == 410:
        return GoneError(message, fix="list anew")
    if code == 403 and "exceeded quota" in said:
        return QuotaExceededError(message, fix="wait, or have the namespace's quota raised")
    if code in (401, 403):
        kind = NoRightError if code == 401 or _NO_RIGHT.search(said) else PermissionDeniedError
        return kind(message, fix="give whoever asks those rights; the agent's are in deploy/k8s/base/rbac.yaml")
    if code == 404:
        return NotFoundError(message, fix="see that the namespace and the object are there")
    if code == 409:
        return ConflictError(message, fix="read the object and try again")
    if code == 429 or code >= 500:
        return UnavailableError(message, fix="try again")
    return InvalidInputError(message, fix="see docs/kubernetes.md for what pods may have")


def _object(content: bytes) -> Manifest:
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UnavailableError("the API server answered with something else than an object", fix="try again")
    return found


def _away(error: httpx.HTTPError) -> UnavailableError:
    return UnavailableError(
        f"the Kubernetes API server does not answer: {str(error) or type(error).__name__}", fix="try again"
    )
