"""Pages as responses."""

from __future__ import annotations

from fastapi import Request, Response
from pydantic import BaseModel, TypeAdapter


def page_response(request: Request, page: BaseModel, items: str) -> Response:
    """A page; without a version in the path its items alone, as a list, as earlier releases gave it.

    Args:
        request: what was asked.
        page: the page.
        items: the field of the page that has its items.
    """
    if request.state.version:
        return Response(page.model_dump_json(), media_type="application/json")
    found = getattr(page, items)
    return Response(
        TypeAdapter(list[BaseModel]).dump_json(found, serialize_as_any=True), media_type="application/json"
    )
