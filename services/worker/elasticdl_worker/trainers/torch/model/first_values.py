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
_CLOSE = 1e-3
_FAR = 6.0
"""A cut so far out changes nothing that anybody could see."""


class FirstValues:
    """The first values of one embedding's rows, as far as they were said.

    Args:
        padding_idx: the row that stays zero.
        rows: how many there are.
        dim: length of a row.

    Attributes:
        padding_is_zero: whether the padding row was set to zero after the others were filled.
    """

    def __init__(self, padding_idx: int | None, rows: int, dim: int) -> None:
        self.padding_is_zero = True  # by the layer's own initialisation
        self._obstacle = self._use = ""
        self._padding_idx = padding_idx
        self._size, self._dim = rows * dim, dim
        self._kind = "normal"
        self._params: dict[str, float] = {"mean": 0.0, "stddev": 1.0}
        self._cut: float | None = None

    @property
    def obstacle(self) -> str:
        """Why that cannot be said in the words of the parameter servers; empty if it can."""
        return self._use or self._obstacle

    def spec(self, seed: int) -> InitializerSpec:
        """The rule for rows."""
        kind, params = self._kind, dict(self._params)
        if kind == "erfinv":
            kind = "truncated_normal" if self._cut is not None and abs(self._cut - _SIGMAS) < _CLOSE else "normal"
        return InitializerSpec(kind, params, seed)

    def note(self, name: str, arguments: tuple[Any, ...], options: Mapping[str, Any], whole: torch.Tensor) -> None:
        """Takes in an operation that changes the weight in place.

        Args:
            name: of the operation, e.g. ``normal_``.
            arguments: after the tensor.
            options: by name.
            whole: the tensor that it is done to: the weight, or a view of it.
        """
        if whole.numel() != self._size:
            self._note_some(name, arguments, whole)
            return
        act = _ACTIONS.get(name)
        if act is None or not whole.is_contiguous():
            self._obstacle = f"it starts from given values ({name})"
            return
        act(self, *arguments, **options)

    def note_use(self, name: str) -> None:
        """Takes in an operation that makes something of the numbers, or changes them in a way that has no words."""
        self._use = f"its first numbers go into something else while the model is made ({name})"

    def _note_some(self, name: str, arguments: tuple[Any, ...], some: torch.Tensor) -> None:
        """Takes in what is done to some of the rows."""
        place = None if self._padding_idx is None else self._dim * self._padding_idx
        if some.numel() != self._dim or some.storage_offset() != place:
            self._obstacle = f"some of its rows start otherwise than the others ({name})"
        elif not _is_zero(name, arguments):
            self._obstacle = "its padding row is not zero"
        else:
            self.padding_is_zero = True

    def _uniform(self, low: float = 0.0, high: float = 1.0, generator: object = None) -> None:
        self._set("uniform", minval=float(low), maxval=float(high))

    def _normal(self, mean: float = 0.0, std: float = 1.0, generator: object = None) -> None:
        self._set("normal", mean=float(mean), stddev=float(std))

    def _fill(self, value: object = 0.0) -> None:
        number = value.item() if isinstance(value, torch.Tensor) and value.device.type != "meta" else value
        if isinstance(number, int | float):
            self._set("constant", value=float(number))
        else:
            self._obstacle = "it starts from given values (fill_)"

    def _zero(self) -> None:
        self._set("constant", value=0.0)

    def _set(self, kind: str, **params: float) -> None:
        self._kind, self._params, self._cut, self._obstacle = kind, params, None, ""
        self.padding_is_zero = self._padding_idx is None or (kind == "constant" and params["value"] == 0.0)

    def _truncated(
        self, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator: object = None
    ) -> None:
        low, high = (mean - a) / std, (b - mean) / std
        if min(low, high) >= _FAR:
            self._set("normal", mean=float(mean), stddev=float(std))
        elif max(abs(low - _SIGMAS), abs(high - _SIGMAS)) < _CLOSE:
            self._set("truncated_normal", mean=float(mean), stddev=float(std))
        else:
            self._obstacle = (
                f"it starts from a normal distribution cut at -{low:.3g} and {high:.3g} standard deviations"
            )

    def _erfinv(self) -> None:
        """The middle of how libraries draw from a cut normal distribution: of uniform numbers it makes those."""
        low, high = self._params.get("minval", 0.0), self._params.get("maxval", 0.0)
        if self._kind != "uniform" or abs(low + high) > 1e-6 or not 0 < high <= 1:
            self._obstacle = "it starts from a distribution that the parameter servers do not know (erfinv_)"
            return
        cut = math.sqrt(2.0) * float(torch.erfinv(torch.tensor(high, dtype=torch.float64)))
        if abs(cut - _SIGMAS) >= _CLOSE and cut < _FAR:
            self._obstacle = f"it starts from a normal distribution cut at {cut:.3g} standard deviations"
        self._kind, self._params, self._cut = "erfinv", {"mean": 0.0, "stddev": 1.0 / math.sqrt(2.0)}, cut

    def _multiply(self, factor: object) -> None:
        if not isinstance(factor, int | float):
            self._obstacle = "it starts from given values (mul_)"
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
            self._obstacle = "it starts from given values (add_)"
            return
        self._params = {
            name: value + (0.0 if name == "stddev" else other * alpha) for name, value in self._params.items()
        }

    def _clamp(self, low: object = None, high: object = None) -> None:
        if self._kind != "erfinv":
            self._obstacle = "it starts from values that are cut off (clamp_)"


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
    "trunc_normal_": FirstValues._truncated,
}


_AT_ONCE = 1 << 20
_MOST_DRAWN = 1 << 30
"""Numbers of a table that no process could hold: what is made after it begins by itself."""


def draw_alike(name: str, count: int, generator: torch.Generator | None = None) -> None:
    """Takes as many random numbers as filling a tensor would: what is made after it begins as if it had been filled.

    Args:
        name: of the operation; those that draw nothing take nothing.
        count: elements of the tensor.
        generator: that it draws from; None for PyTorch's own.
    """
    if name not in ("normal_", "uniform_") or count > _MOST_DRAWN:
        return
    while count:
        # The last part is of no few elements, which PyTorch draws in another way.
        part = _AT_ONCE if count >= 2 * _AT_ONCE else count
        getattr(torch.empty(part, device="cpu"), name)(generator=generator)
        count -= part


def _is_zero(name: str, arguments: tuple[Any, ...]) -> bool:
    value = arguments[0] if arguments else 0
    if isinstance(value, torch.Tensor):
        value = value.item() if value.device.type != "meta" else 1
    return name == "zero_" or (name == "fill_" and value == 0)


class FirstValuesRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """While active, notes what is done with weights that have no numbers (on the device ``meta``).

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
        if _moves_to_cpu(func, options) and self._notes(args[0]) is not None:
            # `model.to("cpu")`, as most scripts have it: numbers that are yet to be made are moved by that, too.
            return func(*args, **{**options, "device": args[0].device})
        for number, argument in enumerate(func._schema.arguments):
            given = args[number] if number < len(args) else options.get(argument.name)
            written = argument.alias_info is not None and argument.alias_info.is_write
            for tensor in given if isinstance(given, list | tuple) else (given,):
                notes = self._notes(tensor)
                if notes is None:
                    continue
                if written and number == 0 and isinstance(given, torch.Tensor):
                    notes.note(func.overloadpacket.__name__, args[1:], options, given)
                    draw_alike(func.overloadpacket.__name__, given.numel(), options.get("generator"))
                elif written or not (func.is_view or _makes_another(func.overloadpacket.__name__)):
                    notes.note_use(func.overloadpacket.__name__)
        return func(*args, **options)

    def _notes(self, value: object) -> FirstValues | None:
        return self._find(value) if isinstance(value, torch.Tensor) and value.device.type == "meta" else None


class WeightUses(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """While active, notes which weights without numbers a model computes with, beside its lookups.

    Args:
        find: gives the number of the layer that a tensor is the weight of; None for any other tensor.

    Attributes:
        numbers: of the layers whose weights were used.
    """

    def __init__(self, find: Callable[[torch.Tensor], int | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers: set[int] = set()
        self._find = find

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs an operation, after noting it."""
        if not _makes_another(func.overloadpacket.__name__):
            for given in (*args, *(kwargs or {}).values()):
                for tensor in given if isinstance(given, list | tuple) else (given,):
                    if isinstance(tensor, torch.Tensor) and tensor.device.type == "meta":
                        number = self._find(tensor)
                        self.numbers |= set() if number is None else {number}
        return func(*args, **(kwargs or {}))


def _moves_to_cpu(func: Any, options: Mapping[str, Any]) -> bool:
    return func is torch.ops.aten._to_copy.default and torch.device(options.get("device") or "cpu").type == "cpu"


def _makes_another(name: str) -> bool:
    """Whether an operation makes a tensor that has of another the shape alone."""
    return name.startswith("new_") or name.endswith("_like")
