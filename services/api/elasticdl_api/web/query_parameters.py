"""Query parameters that a route does not have: refused, for a filter that nobody reads would show everything."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from elasticdl_core.errors import InvalidInputError


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuses a request whose query has a parameter that its route does not know.

    Raises:
        InvalidInputError: names it, the nearest known one, and all of them.
    """
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    if not request.scope["query_string"]:
        return
    known = sorted(set(_names(route.dependant)))
    for given in request.query_params:
        if given not in known:
            near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise InvalidInputError(f"{request.url.path} has no query parameter {given[:100]!r}", fix=f"{hint}{has}")


def _names(dependant: Dependant) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for one in dependant.dependencies:
        yield from _names(one)
