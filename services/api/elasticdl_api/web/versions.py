"""The version in the path: ``/v1/jobs`` is ``/jobs``. Paths without it are aliases that stay.

Health, the description of the api and what masters ask have no version.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from elasticdl_api.web.auth import UNVERSIONED_PATHS

PREFIX = "/v1"
_PREFIX = PREFIX.encode()


def versioned(path: str) -> str:
    """The documented path of a route."""
    return f"{PREFIX}{path}" if has_version(path) else path


def has_version(path: str) -> bool:
    """Whether a route has a version in its documented path."""
    return path not in UNVERSIONED_PATHS and path != "/internal" and not path.startswith(("/internal/", f"{PREFIX}/"))


class VersionMiddleware:
    """ASGI middleware that takes the version off the path, before anybody looks at it.

    Args:
        app: handles the request; finds in the scope's state under ``version`` whether there was one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] == "http":
            path: str = scope["path"]
            bare = path.removeprefix(PREFIX)
            there = path.startswith(f"{PREFIX}/") and has_version(bare)
            state = {**scope.get("state", {}), "version": PREFIX if there else ""}
            scope = {**scope, "state": state}
            if there:
                raw = scope.get("raw_path") or b""
                scope |= {"path": bare, "raw_path": raw.removeprefix(_PREFIX)}
        await self._app(scope, receive, send)
