"""Values of flags that are key-value pairs. Nothing is evaluated."""

from __future__ import annotations

import json
from typing import Any

from elasticdl_core.errors import InvalidInputError


def parse_pairs(flag: str, text: str) -> dict[str, Any]:
    """Pairs with JSON values: ``lr=0.01;layers=[64,32];name=adam``, or one JSON object.

    Raises:
        InvalidInputError: the text is neither.
    """
    if text.lstrip().startswith("{"):
        return _object(flag, text)
    from elasticdl.data.params import parse_reader_params

    try:
        return parse_reader_params(text)
    except InvalidInputError as error:
        message = error.message.removeprefix("reader parameters: ")
        fix = error.fix if "sep=" not in error.fix else "write key=value pairs separated by semicolons"
        raise InvalidInputError(f"--{flag}: {message}", fix=fix) from None


def parse_strings(flag: str, text: str) -> dict[str, str]:
    """Pairs whose values are plain strings: ``A=1;B=two words``, or one JSON object of strings.

    Pairs may also be separated by commas, as the original project has it, if there is no semicolon and each part is
    a pair: ``A=1,B=2`` is two pairs, and ``A=1,B=2;`` is one.

    Raises:
        InvalidInputError: the text is neither.
    """
    if text.lstrip().startswith("{"):
        values = _object(flag, text)
        wrong = sorted(key for key, value in values.items() if not isinstance(value, str))
        if wrong:
            raise InvalidInputError(f"--{flag}: {wrong} are not strings", fix="put the values in quotes")
        return values
    parts = [part.strip() for part in text.split(";") if part.strip()]
    commas = [part.strip() for part in text.split(",")]
    if ";" not in text and all(part.partition("=")[0].isidentifier() and "=" in part for part in commas):
        parts = commas
    pairs: dict[str, str] = {}
    for part in parts:
        key, separator, value = part.partition("=")
        if not separator or not key.strip():
            raise InvalidInputError(
                f"--{flag}: {part!r} is not key=value", fix="write key=value pairs separated by semicolons"
            )
        if key.strip() in pairs:
            raise InvalidInputError(f"--{flag}: {key.strip()} is given twice", fix="give each key once")
        pairs[key.strip()] = value.strip()
    return pairs


def _object(flag: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except RecursionError:
        raise InvalidInputError(f"--{flag}: the JSON is nested too deeply", fix="write key=value;...") from None
    except ValueError as error:
        raise InvalidInputError(
            f"--{flag}: {text!r} is not JSON: {error}", fix="mend it, or write key=value;..."
        ) from None
    if not isinstance(value, dict):
        raise InvalidInputError(f"--{flag}: {text!r} is not a JSON object", fix="write {...} or key=value;...")
    return value
