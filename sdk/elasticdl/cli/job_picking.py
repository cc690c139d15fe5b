"""Jobs picked and sorted by what they were asked for and what came of it: evaluations, parameters, labels, fields."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job import JobSpec

if TYPE_CHECKING:
    from elasticdl.client import Job

LOOKED_AT = 2_000
"""Jobs that are looked at: the API sorts by what is in its own columns alone."""
_PARAMS = ("model_params", "optimizer_params", "data_reader_params")
_CONDITION = re.compile(r"((?:metric|param|label|spec):.+?)(<=|>=|!=|=|<|>)(.*)", re.DOTALL)
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_FIX = (
    "write metric:NAME (the latest evaluation), param:NAME (of the model, optimizer or reader), label:KEY or "
    "spec:FIELD; with --where an operator and a value behind it: metric:auc>0.8"
)


def is_value(key: str) -> bool:
    """Whether a key of ``--sort`` is one of those that are looked up here."""
    return key.removeprefix("-").partition(":")[0] in ("metric", "param", "label", "spec") and ":" in key


def value_of(job: Job, key: str) -> Any:
    """The value of a job under a key such as ``metric:auc``; None where it has none.

    Raises:
        InvalidInputError: the specification has no such field.
    """
    kind, _, name = key.partition(":")
    if kind == "metric":
        return job.status.metrics.get(name)
    if kind == "label":
        return (job.spec.get("labels") or {}).get(name)
    if kind == "param":
        return next((job.spec[one][name] for one in _PARAMS if name in (job.spec.get(one) or {})), None)
    if name not in JobSpec.__dataclass_fields__:
        raise InvalidInputError(f"a specification has no field {name!r}", fix=_FIX)
    return job.spec.get(name)


@dataclass(frozen=True)
class Condition:
    """A condition on a value of a job.

    Attributes:
        key: such as ``param:lr``.
        sign: how it is compared.
        wanted: with what.
    """

    key: str
    sign: str
    wanted: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Reads ``metric:auc>0.8``.

        Raises:
            InvalidInputError: it is no condition.
        """
        found = _CONDITION.fullmatch(text)
        if found is None:
            raise InvalidInputError(f"--where {text!r} is no condition", fix=_FIX)
        return cls(found[1].strip(), found[2], found[3].strip())

    def holds(self, job: Job) -> bool:
        """Whether it is true of a job; a value that a job does not have makes no condition true."""
        value = value_of(job, self.key)
        if value is None:
            return False
        numbers = _number(value), _number(self.wanted)
        pair = (_text(value), self.wanted) if None in numbers else numbers
        return bool(_COMPARE[self.sign](*pair))


def pick(jobs: Sequence[Job], conditions: Sequence[Condition], sort: str, limit: int) -> list[Job]:
    """The jobs of which all conditions are true, in order of a value; jobs without it, and those of NaN, come last.

    Args:
        jobs: in the order that those of equal values keep.
        conditions: on them.
        sort: a key, with ``-`` before it for the largest first; empty to keep the order.
        limit: at most so many.
    """
    found = [job for job in jobs if all(one.holds(job) for one in conditions)]
    if sort:
        key, largest = sort.removeprefix("-"), sort.startswith("-")
        ranks = {job.id: _rank(value_of(job, key), largest) for job in found}
        found.sort(key=lambda job: ranks[job.id][1], reverse=largest)
        found.sort(key=lambda job: ranks[job.id][0])
    return found[:limit]


def shown(job: Job, key: str) -> str:
    """A value as a column of a table has it."""
    value = value_of(job, key)
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else _text(value)


def _rank(value: Any, largest: bool) -> tuple[int, tuple[float, str]]:
    """Numbers, then texts, then nothing."""
    number = _number(value)
    if value is None or number != number:
        return 2, (0.0, "")
    return (0, (number, "")) if number is not None else (1, (0.0, _text(value)))


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
