"""Notes how a large embedding begins, without making its numbers: what is done to it while its model is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from elasticdl_core.model import InitializerSpec

_SIGMAS = 2.0
"""Where the parameter servers cut a truncated normal distribution, in standard deviations."""
_FAR = 6.0
"""A cut so far out changes nothing that anybody could see."""


class FirstValues:
    """How the rows of one embedding begin, as far as it was said.

    Args:
        padding_idx: the row that stays zero.
        dim: length of a row.

    Attributes:
        obstacle: why that cannot be said in the words of the parameter servers; empty if it can.
    """

    def __init__(self, padding_idx: int | None, dim: int) -> None:
        self.obstacle = ""
        self._padding_idx = padding_idx
        self._dim = dim
        self._kind = "normal"
        self._params: dict[str, float] = {"mean": 0.0, "stddev": 1.0}
        self._cut: float | None = None

    def spec(self, seed: int) -> InitializerSpec:
        """The rule for rows."""
        kind, params = self._kind, dict(self._params)
        if kind == "erfinv":
            kind = "truncated_normal" if self._cut is not None and abs(self._cut - _SIGMAS) < 1e-3 else "normal"
        return InitializerSpec(kind, params, seed)

    def note(self, name: str, arguments: tuple[Any, ...], options: Mapping[str, Any], whole: torch.Tensor) -> None:
        """Takes in an operation that changes the weight in place.

        Args:
            name: of the operation, e.g. ``normal_``.
            arguments: after the tensor.
            options: by name.
            whole: the tensor that it is done to: the weight, or a view of it.
        """
        if whole.numel() == self._dim and whole.storage_offset() == self._dim * (
            -1 if self._padding_idx is None else self._padding_idx
        ):
            if not _is_zero(name, arguments):
                self.obstacle = "its padding row is not zero"
            return
        act = _ACTIONS.get(name)
        if act is None or not whole.is_contiguous() or whole.storage_offset():
            self.obstacle = f"it starts from given values ({name})"
            return
        act(self, *arguments, **options)

    def _uniform(self, low: float = 0.0, high: float = 1.0, generator: object = None) -> None:
        self._set("uniform", minval=float(low), maxval=float(high))

    def _normal(self, mean: float = 0.0, std: float = 1.0, generator: object = None) -> None:
        self._set("normal", mean=float(mean), stddev=float(std))

    def _fill(self, value: object = 0.0) -> None:
        number = value.item() if isinstance(value, torch.Tensor) and value.device.type != "meta" else value
        if isinstance(number, int | float):
            self._set("constant", value=float(number))
        else:
            self.obstacle = "it starts from given values (fill_)"

    def _zero(self) -> None:
        self._set("constant", value=0.0)

    def _set(self, kind: str, **params: float) -> None:
        self._kind, self._params, self._cut, self.obstacle = kind, params, None, ""

    def _erfinv(self) -> None:
        """The middle of ``torch.nn.init.trunc_normal_``: of uniform numbers it makes normal ones, cut."""
        low, high = self._params.get("minval", 0.0), self._params.get("maxval", 0.0)
        if self._kind != "uniform" or abs(low + high) > 1e-6 or not 0 < high <= 1:
            self.obstacle = "it starts from a distribution that the parameter servers do not know (erfinv_)"
            return
        cut = math.sqrt(2.0) * float(torch.erfinv(torch.tensor(high, dtype=torch.float64)))
        if abs(cut - _SIGMAS) >= 1e-3 and cut < _FAR:
            self.obstacle = f"it starts from a normal distribution cut at {cut:.3g} standard deviations"
        self._kind, self._params, self._cut = "erfinv", {"mean": 0.0, "stddev": 1.0 / math.sqrt(2.0)}, cut

    def _multiply(self, factor: object) -> None:
        if not isinstance(factor, int | float):
            self.obstacle = "it starts from given values (mul_)"
            return
        self._params = {
            name: value * (abs(factor) if name == "stddev" else factor) for name, value in self._params.items()
        }
        if self._kind == "uniform" and factor < 0:
            self._params = {"minval": self._params["maxval"], "maxval": self._params["minval"]}

    def _divide(self, by: object) -> None:
        self._multiply(1.0 / by if isinstance(by, int | float) and by else by)

    def _add(self, other: object, alpha: float = 1) -> None:
        if not isinstance(other, int | float):
            self.obstacle = "it starts from given values (add_)"
            return
        self._params = {
            name: value + (0.0 if name == "stddev" else other * alpha) for name, value in self._params.items()
        }

    def _clamp(self, low: object = None, high: object = None) -> None:
        if self._kind != "erfinv":
            self.obstacle = "it starts from values that are cut off (clamp_)"


_ACTIONS: Mapping[str, Callable[..., None]] = {
    "uniform_": FirstValues._uniform,
    "normal_": FirstValues._normal,
    "fill_": FirstValues._fill,
    "zero_": FirstValues._zero,
    "erfinv_": FirstValues._erfinv,
    "mul_": FirstValues._multiply,
    "div_": FirstValues._divide,
    "add_": FirstValues._add,
    "clamp_": FirstValues._clamp,
}


def _is_zero(name: str, arguments: tuple[Any, ...]) -> bool:
    value = arguments[0] if arguments else 0
    if isinstance(value, torch.Tensor):
        value = value.item() if value.device.type != "meta" else 1
    return name == "zero_" or (name == "fill_" and value == 0)


class FirstValuesRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """While active, notes what is done in place to weights that have no numbers (on the device ``meta``).

    Args:
        find: gives the notes of a tensor's storage, by its address; None for any other tensor.
    """

    def __init__(self, find: Callable[[torch.Tensor], FirstValues | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._find = find

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs an operation, after noting it."""
        options = kwargs or {}
        changed = args[0] if args and func._schema.is_mutable else None
        if isinstance(changed, torch.Tensor) and changed.device.type == "meta":
            notes = self._find(changed)
            if notes is not None:
                notes.note(func.overloadpacket.__name__, args[1:], options, changed)
        return func(*args, **options)
