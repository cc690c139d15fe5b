"""Eight float32 numbers at once, for compiled kernels: a numba type with arithmetic, loads and stores.

The compiler vectorises a loop over the columns of a row only behind checks, made anew for each row, that arrays do
not overlap and that the row is long enough; on short rows these cost more than the work. With lanes a kernel says
itself what is done at once. Arithmetic rounds as it does for single numbers: nothing is fused or reordered. A
function of lanes and float32 constants works on single float32 numbers too, which serves the columns left over.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# (numba's extension points are untyped.)

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

LANES = 8
"""Numbers in one value: 32 bytes, a register of AVX2, half of one of AVX-512, two of NEON."""

_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
_FLOAT_ALIGN = 4


class LanesType(types.Type):
    """The type of eight float32 numbers."""

    def __init__(self) -> None:
        super().__init__(name="float32x8")


lanes_type = LanesType()


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _spread(builder: Any, value: Any, kind: Any) -> Any:
    """A single number in all lanes; lanes as they are."""
    if kind is lanes_type:
        return value
    single = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.IntType(32)(0))
    order = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(single, ir.Constant(_VECTOR, ir.Undefined), order)


def _add_operator(function: Callable[..., Any], instruction: str) -> None:
    both = [(lanes_type, lanes_type), (lanes_type, types.float32), (types.float32, lanes_type)]

    class Template(ConcreteTemplate):
        cases = [signature(lanes_type, *pair) for pair in both]  # noqa: RUF012 (numba's own form)

    infer_global(function)(Template)

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        left, right = (_spread(builder, a, kind) for a, kind in zip(arguments, sig.args, strict=True))
        return getattr(builder, instruction)(left, right)

    for pair in both:
        lower_builtin(function, *pair)(generate)


for _function, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _add_operator(_function, _instruction)


@intrinsic
def eight(typing_context):
    """Eight zeros: says to ``read`` that it shall read lanes."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        return ir.Constant(_VECTOR, [0.0] * LANES)

    return lanes_type(), generate


@intrinsic
def read(typing_context, address, kind):
    """The number at an address (int64), or the eight from there on, as the type of ``kind`` is."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        shape = _VECTOR if kind is lanes_type else _FLOAT
        return builder.load(builder.inttoptr(arguments[0], shape.as_pointer()), align=_FLOAT_ALIGN)

    return kind(types.int64, kind), generate


@intrinsic
def write(typing_context, address, value):
    """Puts a number, or eight, to an address (int64)."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        shape = _VECTOR if value is lanes_type else _FLOAT
        builder.store(arguments[1], builder.inttoptr(arguments[0], shape.as_pointer()), align=_FLOAT_ALIGN)
        return context.get_dummy_value()

    return types.void(types.int64, value), generate


def _from_llvm(name: str) -> Callable[..., Any]:
    """An operation of LLVM on lanes or on a single number."""

    def typed(typing_context, value):
        return value(value), _call(name, value, 1)

    return typed


def _call(name: str, kind: Any, count: int) -> Callable[..., Any]:
    shape = _VECTOR if kind is lanes_type else _FLOAT
    suffix = f"v{LANES}f32" if kind is lanes_type else "f32"

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(shape, [shape] * count), f"llvm.{name}.{suffix}"
        )
        values = [
            _spread(builder, a, given) if kind is lanes_type else a
            for a, given in zip(arguments, sig.args, strict=True)
        ]
        return builder.call(function, values)

    return generate


def _choice(comparison: str) -> Callable[..., Any]:
    """The left value where the comparison holds, else the right one; of lanes or single numbers, or of both."""

    def typed(typing_context, left, right):
        result = lanes_type if lanes_type in (left, right) else types.float32

        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
            a, b = arguments
            if result is lanes_type:
                a, b = _spread(builder, a, left), _spread(builder, b, right)
            return builder.select(builder.fcmp_ordered(comparison, a, b), a, b)

        return result(left, right), generate

    return typed


root = intrinsic(_from_llvm("sqrt"))
"""Square root."""
magnitude = intrinsic(_from_llvm("fabs"))
"""Absolute value."""
larger = intrinsic(_choice(">"))
"""The larger of two."""
smaller = intrinsic(_choice("<"))
"""The smaller of two."""


@intrinsic
def either(typing_context, known, then, otherwise):
    """``then`` where ``known`` is a number, ``otherwise`` where it is none; of lanes, or of single numbers."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        asked, left, right = arguments
        return builder.select(builder.fcmp_ordered("ord", asked, asked), left, right)

    return known(known, known, known), generate


@intrinsic
def power(typing_context, value, exponent):
    """``value`` to the power of a single number."""
    return value(value, types.float32), _call("pow", value, 2)
