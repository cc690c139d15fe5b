"""One name for one thing: the fields of a job have one documented name each, and others that are understood."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticdl_core.errors import Problem, SpecError
from elasticdl_core.job.fields import ALL_REDUCE, STRATEGIES
from elasticdl_core.json_numbers import whole

LAST = "last"
"""Stands for the newest job where a job is named; no job is called so."""
ALIASES: Mapping[str, str] = {
    "job_name": "name",
    "num_workers": "max_workers",
    "num_ps_pods": "num_ps",
    "max_step": "max_steps",
    "dataset_fn": "feed",
    "image_name": "image",
}
"""Other names of fields, mostly those of the original project, and the field's own: what documentation uses."""


def resolve_aliases(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a mapping with fields of a job under their own names, strategies as they are spelt, and 3.0 as 3.

    ``num_ps`` of 0, as lines of the original have it, says that there are no parameter servers.

    Every door that takes such fields by name (command line, Python, HTTP) calls this before it looks at them.

    Raises:
        SpecError: a field is given under two names, with values that differ.
    """
    named: dict[str, Any] = {}
    typed: dict[str, str] = {}
    problems: list[Problem] = []
    for key, given in mapping.items():
        name, value = ALIASES.get(key, key), whole(given)
        if name in named and not _same(named[name], value):
            message = f"{typed[name]!r} ({named[name]!r}) and {key!r} ({value!r}) are two names of one field"
            problems.append(Problem(name, message, f"give {name!r} alone"))
            continue
        named[name], typed[name] = value, key
    if problems:
        raise SpecError(problems)
    strategy = named.get("distribution_strategy")
    if isinstance(strategy, str):
        spelt = {one.lower(): one for one in STRATEGIES}
        named["distribution_strategy"] = strategy = spelt.get(strategy.lower(), strategy)
    if _same(named.get("num_ps"), 0) and strategy in (None, "auto", ALL_REDUCE):
        del named["num_ps"]
        named["distribution_strategy"] = ALL_REDUCE
    return named


def _same(one: Any, other: Any) -> bool:
    """Whether two values are one and the same; true is no 1 here."""
    return type(one) is type(other) and bool(one == other)
