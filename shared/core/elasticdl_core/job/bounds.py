"""Bounds of a specification's lengths, counts and depths, whichever way it comes.

The same for the API, the command line and ``--local``: what stands here is what every process of a job, its database
and its terminal can hold, and nothing that only one of them would have to refuse.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from elasticdl_core.errors import Problem

PATH_CHARS = 4096
LIST_CHARS = 65_536
"""Of data, which may be many paths separated by commas."""
NAME_CHARS = 300
_LENGTHS = {
    **dict.fromkeys(("model_zoo", "checkpoint_dir", "checkpoint_dir_for_init", "output"), PATH_CHARS),
    **dict.fromkeys(("training_data", "validation_data", "prediction_data", "script_args"), LIST_CHARS),
    "volume": PATH_CHARS,
}
ENTRIES = (
    "feed",
    "loss",
    "optimizer",
    "eval_metrics_fn",
    "callbacks",
    "collate",
    "custom_data_reader",
    "prediction_outputs_processor",
)
"""Fields that name something in a module of the zoo."""
PARAMETERS = ("model_params", "optimizer_params", "data_reader_params")
DEPTH = 10
"""Objects and lists within each other, in parameters."""
VALUES = 1000
"""Values in all of one field's parameters."""
CHARS = 65_536
"""Characters of all texts in one field of free form."""
VARIABLES = 100
VARIABLE_CHARS = 32_768
METRIC_CHARS = 180
"""Of a metric's name, with that of its output: with what is put around it, it is the name of a series."""
LABELS = 64
LABEL_KEY_CHARS = 100
LABEL_CHARS = 200
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_PACKAGES = "PYTHONPATH"
"""Where workers find packages of the job's own; the services run without the cluster's."""
RESERVED_VARIABLES = ("ELASTICDL_", "PYTHON", "LD_")
"""What the names of variables may not begin with: they are ElasticDL's, the interpreter's and the loader's."""
_BIGINT = 2**63 - 1


def longest(name: str) -> int:
    """The most characters of a text field."""
    return _LENGTHS.get(name, NAME_CHARS)


def find_problems(values: Mapping[str, Any]) -> list[Problem]:
    """All that is out of bounds.

    Args:
        values: fields of a specification, each of its type.
    """
    return [
        *_text_problems(values),
        *_entry_problems(values),
        *(problem for name in PARAMETERS for problem in _parameter_problems(name, values[name])),
        *_variable_problems(values["envs"]),
        *_label_problems("labels", values["labels"]),
        *_label_problems("node_selector", values["node_selector"]),
    ]


def _text_problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    for name, value in values.items():
        if not isinstance(value, str) or name == "name":  # what a job may be called is one rule (`value_problems`)
            continue
        most = longest(name)
        if len(value) > most:
            yield Problem(name, f"it has {len(value)} characters", f"give {most} or fewer")
        elif _CONTROL.search(value):
            yield Problem(name, f"{ascii(value)[:100]} has a control character", "leave it out")


def _entry_problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    for name in ENTRIES:
        value = values[name]
        bounded = len(value) <= NAME_CHARS and not _CONTROL.search(value)
        if value and bounded and not all(part.isidentifier() for part in value.split(".")):
            yield Problem(
                name, f"{value!r} does not name anything in a module", "write a name, or file.name for another file"
            )


def _parameter_problems(name: str, value: Mapping[str, Any]) -> Iterator[Problem]:
    count = chars = 0
    waiting: list[tuple[Any, int]] = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, Mapping | list | tuple):
            if depth > DEPTH:
                yield Problem(name, f"it is nested more than {DEPTH} levels deep", "give flatter parameters")
                return
            inner = list(item.values()) if isinstance(item, Mapping) else list(item)
            count += len(inner)
            if count > VALUES:
                yield Problem(name, f"it has more than {VALUES} values", "put them into a file that the module reads")
                return
            waiting += [(one, depth + 1) for one in inner]
            if isinstance(item, Mapping):
                waiting += [(_Key(key), depth) for key in item]
            continue
        wrong = _wrong(item)
        if wrong:
            yield Problem(name, wrong, "give values that JSON and the database can hold")
            return
        chars += len(item.text if isinstance(item, _Key) else item) if isinstance(item, str | _Key) else 0
        if chars > CHARS:
            yield Problem(
                name, f"its texts have more than {CHARS} characters", "put them into a file that the module reads"
            )
            return


class _Key:
    """A key on its way through the values, so that one that is no text is told from a value."""

    def __init__(self, text: Any) -> None:
        self.text = text if isinstance(text, str) else ""
        self.wrong = "" if isinstance(text, str) else f"the key {text!r} is no text"


def _wrong(value: Any) -> str:
    if isinstance(value, _Key):
        return value.wrong or _wrong(value.text)
    if isinstance(value, str):
        return f"{ascii(value)[:100]} holds a NUL or half a character" if _UNSTORABLE.search(value) else ""
    if isinstance(value, bool) or value is None:
        return ""
    if isinstance(value, int):
        return "" if abs(value) <= _BIGINT else "a whole number is beyond 64 bits"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{value} is no number that JSON can write"
    return f"a {type(value).__name__} is no value of JSON"


def _variable_problems(variables: Mapping[str, str]) -> Iterator[Problem]:
    if len(variables) > VARIABLES:
        yield Problem("envs", f"it has {len(variables)} variables", f"give {VARIABLES} or fewer")
        return
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name):
            yield Problem(
                "envs",
                f"{ascii(name)[:100]} is no name of a variable",
                "use 1 to 128 letters, digits and underscores, and no digit first",
            )
        elif name.startswith(RESERVED_VARIABLES) and name != _PACKAGES:
            yield Problem(
                "envs",
                f"{name} is reserved",
                f"choose names that do not start with {', '.join(RESERVED_VARIABLES)}",
            )
        elif name == "KERAS_BACKEND" and value != "tensorflow":
            yield Problem(
                "envs", f"KERAS_BACKEND={value[:100]} is not taken", "leave it out: TensorFlow trains all models"
            )
        if _UNSTORABLE.search(value):
            yield Problem("envs", f"the value of {ascii(name)[:100]} holds a NUL or half a character", "leave it out")
        if len(value) > VARIABLE_CHARS:
            yield Problem(
                "envs",
                f"the value of {ascii(name)[:100]} has {len(value)} characters",
                f"give {VARIABLE_CHARS} or fewer; put more into a file that the module reads",
            )
    if sum(len(name) + len(value) for name, value in variables.items()) > CHARS:
        yield Problem("envs", f"all together have more than {CHARS} characters", "put them into a file")


def _label_problems(field: str, labels: Mapping[str, str]) -> Iterator[Problem]:
    if len(labels) > LABELS:
        yield Problem(field, f"it has {len(labels)} labels", f"give {LABELS} or fewer")
        return
    for key, value in labels.items():
        if not 1 <= len(key) <= LABEL_KEY_CHARS or _CONTROL.search(key) or "=" in key:
            yield Problem(
                field,
                f"{ascii(key)[:100]} is no key of a label",
                f"use 1 to {LABEL_KEY_CHARS} characters, none of them '=' or a control character",
            )
        if len(value) > LABEL_CHARS or _CONTROL.search(value):
            yield Problem(
                field,
                f"the value of {ascii(key)[:100]} is too long or has a control character",
                f"give {LABEL_CHARS} characters or fewer",
            )
