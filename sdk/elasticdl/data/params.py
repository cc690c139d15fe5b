"""Reader parameters: parsing ``--data_reader_params`` and refusing what a reader does not know."""

from __future__ import annotations

import ast
import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from elasticdl.data.errors import ReaderParamsError

TRAINED_COLUMNS = "trained_columns"
"""The parameter by which jobs say which columns their model was trained on."""
_PYTHON_WORDS = frozenset({"True", "False", "None"})
_OPENING = {"[": "]", "{": "}", "(": ")"}


def parse_reader_params(text: str) -> dict[str, Any]:
    r"""Parses ``key=value`` pairs separated by semicolons, without evaluating anything.

    A value is JSON (``true``, ``3``, ``";"``, ``["a", "b"]``), a Python literal as older job files have them
    (``True``, ``['a', 'b']``), or else a bare string. A semicolon inside quotes or brackets does not separate.

    >>> parse_reader_params('sep=";";with_header=true;columns=["a","b"];encoding=utf-8')
    {'sep': ';', 'with_header': True, 'columns': ['a', 'b'], 'encoding': 'utf-8'}

    Raises:
        ReaderParamsError: a pair without ``=``, a key given twice, or a broken value.
    """
    params: dict[str, Any] = {}
    for pair in _split(text):
        key, separator, value = pair.partition("=")
        key = key.strip()
        if not separator or not key.isidentifier():
            raise ReaderParamsError(
                f"reader parameters: {pair.strip()!r} is not key=value",
                fix="write key=value pairs separated by semicolons, e.g. 'sep=\";\";with_header=true'",
            )
        if key in params:
            raise ReaderParamsError(f"reader parameters: {key} is given twice", fix="give each parameter once")
        params[key] = _value(key, value.strip())
    return params


def _split(text: str) -> Iterable[str]:
    """Splits at semicolons outside quotes and brackets; a quote opens only where a value can begin."""
    parts: list[str] = []
    current: list[str] = []
    closers: list[str] = []
    quote = ""
    escaped = False
    for character in text:
        if quote:
            if not escaped and character == quote:
                quote = ""
            escaped = not escaped and character == "\\"
        elif character in "\"'" and (closers or "".join(current).rstrip().endswith("=")):
            quote = character
        elif character in _OPENING and (closers or "".join(current).rstrip().endswith("=")):
            closers.append(_OPENING[character])
        elif closers and character == closers[-1]:
            closers.pop()
        elif character == ";" and not closers:
            parts.append("".join(current))
            current = []
            continue
        current.append(character)
    if quote or closers:
        missing = quote or closers[-1]
        raise ReaderParamsError(
            f"reader parameters: {missing} is missing in {''.join(current).strip()!r}",
            fix=f"close the value with {missing}",
        )
    parts.append("".join(current))
    return [part for part in parts if part.strip()]


def _value(key: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = error.msg
    if text in _PYTHON_WORDS or text[:1] in {"[", "{", "(", "'", '"'}:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            raise ReaderParamsError(
                f"reader parameters: the value of {key} is not valid JSON ({reason}): {text}",
                fix='write strings in double quotes and lists in brackets, e.g. columns=["a","b"]',
            ) from None
    return text


def refuse_unknown(params: Mapping[str, Any], known: Iterable[str], *, reader: str) -> None:
    """Refuses parameters that a reader does not have.

    Raises:
        ReaderParamsError: names the parameter, the nearest known one, and all known ones.
    """
    names = sorted(known)
    for key in params:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ReaderParamsError(
                f"the {reader} reader has no parameter {key!r}", fix=f"{hint}it has: {', '.join(names)}"
            )


def take(params: Mapping[str, Any], key: str, kind: type | tuple[type, ...], default: Any) -> Any:
    """The value of a parameter, checked for its type.

    Raises:
        ReaderParamsError: the value has another type.
    """
    value = params.get(key, default)
    if value is default:
        return default
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(k.__name__ for k in kinds)
        raise ReaderParamsError(f"reader parameter {key}={value!r} has the wrong type", fix=f"give a {wanted}")
    return value


def take_choice(params: Mapping[str, Any], key: str, choices: tuple[str, ...], default: str) -> str:
    """The value of a parameter that is one of a few words.

    Raises:
        ReaderParamsError: the value is none of them.
    """
    value = params.get(key, default)
    if value not in choices:
        raise ReaderParamsError(
            f"reader parameter {key}={value!r} is not possible", fix=f"use one of: {', '.join(choices)}"
        )
    return str(value)


def take_names(params: Mapping[str, Any], key: str) -> list[str] | None:
    """The names that a parameter lists, or None.

    Raises:
        ReaderParamsError: it is no list of names, or has one twice.
    """
    names = params.get(key)
    if names is None:
        return None
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",")]
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise ReaderParamsError(f"reader parameter {key}={names!r}", fix=f'give a list of names: {key}=["a","b"]')
    if len(set(names)) != len(names):
        raise ReaderParamsError(f"reader parameter {key} names a column twice", fix="name each column once")
    return list(names)
