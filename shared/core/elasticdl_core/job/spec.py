"""The specification of a job, with strict conversion from JSON."""

from __future__ import annotations

import dataclasses
import difflib
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin, get_type_hints

from elasticdl_core.errors import InvalidInputError, Problem, SpecError
from elasticdl_core.job.bounds import find_problems
from elasticdl_core.job.fields import (
    ALL_REDUCE,
    OF_SERVERS,
    PARAMETER_SERVERS,
    SCRIPT,
    JobFields,
    JobType,
    default_of,
)
from elasticdl_core.job.names import resolve_aliases
from elasticdl_core.job.rules import combination_problems, value_problems
from elasticdl_core.pods import parse_resources, without_memory


@dataclass(frozen=True)
class JobSpec(JobFields):
    """Everything that a user says about a job, read strictly and checked; see ``JobFields`` for what fields mean."""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> JobSpec:
        """Builds and validates a specification from JSON data; ``ALIASES`` of fields are understood.

        Raises:
            SpecError: with every problem found: unknown fields, wrong types, values and combinations.
        """
        if len(mapping) > _MOST_FIELDS:
            fix = "see the API reference for all fields"
            raise SpecError([Problem("body", f"a specification has no {len(mapping)} fields", fix)])
        mapping = resolve_aliases(mapping)
        hints = get_type_hints(cls)
        fields = {f.name: f for f in dataclasses.fields(cls)}
        problems: list[Problem] = []
        values: dict[str, Any] = {}
        for key, value in mapping.items():
            if key not in fields:
                near = difflib.get_close_matches(key, fields, n=1) if len(key) <= 2 * _LONGEST_FIELD else []
                fix = f"did you mean {near[0]!r}?" if near else "remove it; see the API reference for all fields"
                shown = ascii(key)[:100]
                problems.append(Problem(key[:100], f"there is no field {shown}", fix))
                continue
            converted, wrong = _convert(value, hints[key])
            if wrong:
                problems.append(Problem(key, f"{_SHOWN.repr(value)} is not {wrong}", f"give {wrong}"))
            else:
                values[key] = converted
        if "model_def" not in mapping:
            problems.append(Problem("model_def", "it is missing", "name the model, e.g. 'mnist.custom_model'"))
        if problems:
            raise SpecError(problems)
        scripted = values["model_def"].endswith(f".{SCRIPT}")
        if "distribution_strategy" not in values and not scripted and any(name in values for name in OF_SERVERS):
            # Who says how many parameter servers there are, or what they do, wants them: also by what is the default.
            values["distribution_strategy"] = PARAMETER_SERVERS
        spec = cls(**_with_limits_of_memory(_with_larger_updates(values)))
        if spec.runs_script:  # which no group but workers hold, and which writes itself what it makes
            strategy, framework = spec.distribution_strategy, spec.framework
            spec = dataclasses.replace(
                spec,
                distribution_strategy=ALL_REDUCE if strategy == "auto" else strategy,
                framework="torch" if framework == "auto" else framework,
            )
        spec.check()
        # Said once: the number of workers may change while the job runs, what makes an update may not.
        return dataclasses.replace(spec, microbatches=spec.microbatches_per_step) if spec.by_group else spec

    def to_mapping(self) -> dict[str, Any]:
        """The specification as JSON data; ``from_mapping`` reads it back."""
        mapping = dataclasses.asdict(self)
        mapping["type"] = str(self.type)
        return mapping

    def check(self) -> None:
        """Checks values and combinations.

        Raises:
            SpecError: with every problem found.
        """
        problems = find_problems(vars(self))
        if not problems:  # what else is wrong would be told with what is out of bounds in it
            problems = [*value_problems(self), *combination_problems(self)]
        if problems:
            raise SpecError(problems)


def _with_larger_updates(values: dict[str, Any]) -> dict[str, Any]:
    """Takes the original's spelling of a larger update by a group, N gradients in step, as a larger minibatch."""
    times, strategy = values.get("grads_to_wait", 1), values.get("distribution_strategy", "auto")
    of_script = values["model_def"].endswith(f".{SCRIPT}") and strategy == "auto"
    grouped = of_script or strategy == ALL_REDUCE
    if not grouped or values.get("use_async", True) or values.get("type", JobType.TRAINING) is not JobType.TRAINING:
        return values
    others = {name: value for name, value in values.items() if name not in ("use_async", "grads_to_wait")}
    return {**others, "minibatch_size": values.get("minibatch_size", default_of("minibatch_size")) * max(1, times)}


def _with_limits_of_memory(values: dict[str, Any]) -> dict[str, Any]:
    """Takes the original's spelling of a limit of memory as ours, for there is one limit.

    Raises:
        SpecError: there are two, and they differ.
    """
    for role in ("worker", "ps"):
        request, limit = f"{role}_resource_request", f"{role}_memory_mib"
        try:
            memory = parse_resources(values.get(request, "")).memory_mib
        except InvalidInputError:
            continue  # which the rules tell
        if memory and values.get(limit, 0) not in (0, memory):
            message = f"memory of {memory} MiB, and {limit} of {values[limit]}, are two limits of one process"
            raise SpecError([Problem(request, message, f"leave {limit} out")])
        if memory:
            values = {**values, request: without_memory(values[request]), limit: memory}
    return values


_MOST_FIELDS = 200
_LARGEST = 10**300
_LONGEST_FIELD = 40
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 100


def _convert(value: Any, hint: Any) -> tuple[Any, str]:
    """Checks a JSON value against a type; returns the value and, if it does not fit, what was expected."""
    if hint is JobType:
        kinds = [str(kind) for kind in JobType]
        return (JobType(value), "") if value in kinds else (None, f"one of {', '.join(kinds)}")
    if hint is bool:
        return (value, "") if isinstance(value, bool) else (None, "true or false")
    if hint is int:
        return (value, "") if isinstance(value, int) and not isinstance(value, bool) else (None, "a whole number")
    if hint is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        fits = fits and not (isinstance(value, int) and abs(value) > _LARGEST)  # which no float holds
        return (float(value), "") if fits else (None, "a number")
    if hint is str:
        return (value, "") if isinstance(value, str) else (None, "a string")
    if get_origin(hint) is dict:
        fits = isinstance(value, dict) and all(isinstance(key, str) for key in value)
        if fits and get_args(hint)[1] is str:
            wrong = next((key for key, item in value.items() if not isinstance(item, str)), None)
            return (
                (value, "")
                if wrong is None
                else (None, f"an object of texts, with quotes around the value of {wrong!r}")
            )
        return (value, "") if fits else (None, "an object with string keys")
    raise TypeError(f"no conversion for {hint!r}")
