"""Pages as responses."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Request, Response
from pydantic_core import to_json

from elasticdl_api.store.job_views import array, joined


def json_response(body: bytes) -> Response:
    """A body that is JSON already."""
    return Response(body, media_type="application/json")


def page_response(name: str, items: Sequence[bytes], following: str | None) -> Response:
    """A page.

    Args:
        name: the field of the page that has its items.
        items: the items, as JSON.
        following: the token of the next page.
    """
    return json_response(joined(to_json({"next_page_token": following}), {name: array(items)}))


def page_or_list(request: Request, name: str, items: Sequence[bytes], following: str | None) -> Response:
    """A page; without a version in the path its items alone, as a list, as earlier releases gave it."""
    if request.state.version:
        return page_response(name, items, following)
    return json_response(array(items))
