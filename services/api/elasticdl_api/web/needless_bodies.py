"""Bodies that a route does not take: refused, for a wish that nobody reads would seem to be granted."""

from __future__ import annotations

from fastapi import Request
from fastapi.routing import APIRoute

from elasticdl_api.web.bodies import has_body
from elasticdl_core.errors import InvalidInputError

_NOTHING = (b"", b"{}", b"null")
"""What some clients send when they have nothing to say."""


async def refuse_needless_body(request: Request) -> None:
    """Refuses a request with a body whose route takes none.

    Raises:
        InvalidInputError: it has one that says something.
    """
    if not has_body(request.scope):
        return
    route = request.scope.get("route")
    if not isinstance(route, APIRoute) or route.body_field or "requestBody" in (route.openapi_extra or {}):
        return
    if (await request.body()).strip() not in _NOTHING:
        raise InvalidInputError(
            f"{request.method} {request.url.path} takes no body, and the request has one",
            fix="send none; what it takes stands in its description at /docs",
        )
