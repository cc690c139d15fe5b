"""Whole numbers of requests, as JSON schema has them: 3.0 is one, and ``"3"`` and true are none."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Strict, model_validator

from elasticdl_core.json_numbers import whole

Whole = Annotated[int, Strict()]


class WholeNumbers(BaseModel):
    """Base of bodies with whole numbers.

    It looks at the fields itself, since a validator of a field hides its bounds from the description.
    """

    @model_validator(mode="before")
    @classmethod
    def _as_whole(cls, values: Any) -> Any:
        return {name: whole(value) for name, value in values.items()} if isinstance(values, dict) else values
