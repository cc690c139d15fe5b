"""Reports of many items, taken one by one: one that cannot be taken is left out and said, the others count.

Names, messages and numbers in them come from users' code. A report that is refused as a whole takes with it what it
carries beside them: a lease, wishes, other losses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BeforeValidator, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from elasticdl_core.well_formed import shortened

_MOST_SAID = 3
T = TypeVar("T")


class AcceptedItems(list[T]):
    """The items of a list that were accepted.

    Attributes:
        refused: why others could not be, the first few of them.
    """

    refused: list[str]


def one_by_one(most: int) -> WrapValidator:
    """Takes the items of a list one by one, and at most so many, the last ones."""

    def take(values: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(values, list):
            return handler(values)
        taken: AcceptedItems[Any] = AcceptedItems()
        taken.refused = [] if len(values) <= most else [f"{len(values)} are more than {most}"]
        for value in values[-most:]:
            try:
                taken += handler([value])
            except ValidationError as error:
                if len(taken.refused) < _MOST_SAID:
                    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
                    where = ".".join(str(part) for part in first["loc"][1:])
                    taken.refused.append(f"{where}: {first['msg']}"[:300])
        return taken

    return WrapValidator(take)


def names_one_by_one(most: int) -> WrapValidator:
    """Takes what a mapping has for each name by itself, and at most so many, the first ones."""

    def take(values: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(values, dict):
            return handler(values)
        taken: dict[str, Any] = {}
        for name, value in list(values.items())[:most]:
            try:
                taken |= handler({name: value})
            except ValidationError:
                continue
        return taken

    return WrapValidator(take)


def at_most(characters: int) -> BeforeValidator:
    """Shortens texts to so many characters."""
    return BeforeValidator(lambda value: shortened(value, characters) if isinstance(value, str) else value)


def refused_of(items: Iterable[Any]) -> list[str]:
    """Why items of a report were left out; empty where all were taken."""
    return list(items.refused) if isinstance(items, AcceptedItems) else []
