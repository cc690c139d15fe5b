"""Rules common to replicas of every framework: seeds, the comparison of members, and refusals."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import DataError
from elasticdl_core.model import DenseSpec
from elasticdl_core.task import Task
from elasticdl_worker.group.replica import Flat
from elasticdl_worker.trainers.not_finite import describe_bad_gradient

_MASK = (1 << 64) - 1


class NamesBuckets(Protocol):
    """An object that names the place of parameters' gradients."""

    def find_not_finite(self, finite: Sequence[bool]) -> str:
        """Names of the gradients in the first bucket that is not finite; empty if all are."""


def step_seed(step: int, microbatch: int, seed: int = 0) -> int:
    """64 bits for all that is random in a microbatch of a step, whoever computes it.

    Args:
        step: the version that the step begins with.
        microbatch: number within the step.
        seed: of the job, where generators do not begin with it themselves.
    """
    return _mix(_mix(_mix(seed) ^ (step + 1)) ^ microbatch)


def reading_seed(seed: int, task: Task, start: int, end: int) -> int:
    """32 bits for all that ``feed`` draws while it makes the microbatch at positions ``[start, end)``.

    Args:
        seed: of the job.
        task: of the records.
        start: the first.
        end: after the last.
    """
    return zlib.crc32(f"{seed} {task.id.epoch} {task.id.index} {start} {end}".encode())


def bits_of(values: NDArray[Any]) -> bytes:
    """Two 64-bit sums of an array's bits, plain and by exclusive or, at the speed of memory; and its last bytes."""
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    whole = len(flat) // 8 * 8
    words = flat[:whole].view(np.uint64)
    pair = np.array([words.sum(dtype=np.uint64), np.bitwise_xor.reduce(words, initial=0)], np.uint64)
    return pair.tobytes() + flat[whole:].tobytes()


def describe_not_finite(loss: float, arrays: Sequence[Flat], buckets: int, names: NamesBuckets) -> str:
    """Describes the part of a contribution that is not finite; empty if all is.

    Args:
        loss: of the microbatch.
        arrays: the buckets of gradients, and what follows them.
        buckets: how many there are.
        names: says which parameters are in them.
    """
    return describe_bad_parts(loss, (is_finite(array) for array in arrays), buckets, names)


def describe_bad_parts(loss: float, parts: Iterable[bool], buckets: int, names: NamesBuckets) -> str:
    """Describes the part of a contribution that is not finite; empty if all is.

    Args:
        loss: of the microbatch.
        parts: whether each of the buckets of gradients, and of what follows them, is finite.
        buckets: how many there are.
        names: says which parameters are in them.
    """
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    finite = list(parts)
    if all(finite):
        return ""
    found = names.find_not_finite(finite[:buckets])
    return describe_bad_gradient(found, loss) if found else f"a new value of the state is not finite ({loss:.6g})"


def check_same_model(layout: Sequence[DenseSpec], values: Mapping[str, NDArray[Any]]) -> None:
    """Refuses parameters of another model.

    Raises:
        DataError: with the name of one that differs.
    """
    own = {spec.name: tuple(spec.shape) for spec in layout}
    given = {name: tuple(value.shape) for name, value in values.items()}
    if own != given:
        odd = sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name))[0]
        raise DataError(
            f"{odd} has the shape {given.get(odd)} in the state and {own.get(odd)} in the model",
            fix="use the model definition and model_params that the checkpoint was made with",
        )


def slots_refusal(
    name: str, given: Sequence[NDArray[Any]], names: Sequence[str], shapes: Sequence[tuple[int | None, ...]]
) -> DataError:
    """Says that the state of an optimizer is another's.

    Args:
        name: of a parameter.
        given: its slots in the state.
        names: of the slots that the optimizer has.
        shapes: of these, for the parameter.
    """
    return DataError(
        f"{name} has {len(given)} slots {[value.shape for value in given]} in the state; the optimizer "
        f"has {', '.join(names) or 'none'}, {list(shapes)}",
        fix="use the optimizer that the checkpoint was made with",
    )


def is_finite(values: Flat) -> bool:
    """Whether all numbers are finite."""
    with np.errstate(all="ignore"):
        return math.isfinite(float(values.sum())) or bool(np.isfinite(values).all())


def _mix(value: int) -> int:
    """Spreads a number over 64 bits (SplitMix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
