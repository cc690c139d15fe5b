"""Query parameters that a route does not read: refused, for a filter that nobody reads would show everything."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, get_args, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from elasticdl_core.errors import InvalidInputError


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuses a request whose query has a parameter that its route does not know, or takes once and got twice.

    Raises:
        InvalidInputError: names it, the nearest known one, and all of them.
    """
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    if not request.scope["query_string"]:
        return
    parameters = {parameter.alias: parameter for parameter in _parameters(route.dependant)}
    known = sorted(parameters)
    for given in request.query_params:
        if given not in known:
            near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise InvalidInputError(f"{request.url.path} has no query parameter {given[:100]!r}", fix=f"{hint}{has}")
    for name in request.query_params:
        times = len(request.query_params.getlist(name))
        if times > 1 and not _takes_many(parameters[name].field_info.annotation):
            raise InvalidInputError(f"the query parameter {name!r} is there {times} times", fix="give it once")


def _takes_many(annotation: Any) -> bool:
    return any(get_origin(one) is list for one in (annotation, *get_args(annotation)))


def _parameters(dependant: Dependant) -> Iterator[Any]:
    yield from dependant.query_params
    for one in dependant.dependencies:
        yield from _parameters(one)
