"""Intrinsics that numba lacks: prefetching, comparing many numbers at once, and numbers at an address."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Asks the processor to fetch the cache line at an address; a wrong address is harmless.

    Args:
        typing_context: numba's.
        address: int64.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        word = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, word, word, word])
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, function_type, "llvm.prefetch.p0"
        )
        pointer = builder.inttoptr(arguments[0], byte_pointer)
        builder.call(function, [pointer, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def equal_bytes(typing_context: Any, address: Any, byte: Any) -> Any:
    """Compares the sixteen bytes at an address (int64) with a byte (uint8): bit ``i`` for byte ``i``, as uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte_type, word = ir.IntType(8), ir.IntType(32)
        vector = ir.VectorType(byte_type, 16)
        undefined = ir.Constant(vector, ir.Undefined)
        loaded = builder.load(builder.inttoptr(arguments[0], vector.as_pointer()), align=1)
        single = builder.insert_element(undefined, arguments[1], word(0))
        wanted = builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(word, 16), [0] * 16))
        found = builder.icmp_unsigned("==", loaded, wanted)
        return builder.zext(builder.bitcast(found, ir.IntType(16)), ir.IntType(64))

    return types.uint64(types.int64, types.uint8), generate


@intrinsic
def empty_words(typing_context: Any, address: Any) -> Any:
    """Finds the zeros among the sixteen uint32 at an address (int64): bit ``i`` for number ``i``, as uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.IntType(32), 16)
        loaded = builder.load(builder.inttoptr(arguments[0], vector.as_pointer()), align=4)
        found = builder.icmp_unsigned("==", loaded, ir.Constant(vector, [0] * 16))
        return builder.zext(builder.bitcast(found, ir.IntType(16)), ir.IntType(64))

    return types.uint64(types.int64), generate


@intrinsic
def lowest_bit(typing_context: Any, bits: Any) -> Any:
    """The number of the lowest bit that is set; 64 where none is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(0))

    return types.uint64(types.uint64), generate


def _reader(number: Any, bits: int) -> Any:
    def typed(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            return builder.load(pointer, align=bits // 8)

        return number(types.int64), generate

    return intrinsic(typed)


def _writer(number: Any, bits: int) -> Any:
    def typed(typing_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            builder.store(arguments[1], pointer, align=bits // 8)
            return context.get_dummy_value()

        return types.void(types.int64, number), generate

    return intrinsic(typed)


# By address, because a function that is given an array and inlined in a loop counts its references in each turn.
read_word = _reader(types.uint32, 32)
"""The uint32 at an address."""
read_long = _reader(types.int64, 64)
"""The int64 at an address."""
write_word = _writer(types.uint32, 32)
"""Puts a uint32 to an address."""
write_long = _writer(types.int64, 64)
"""Puts an int64 to an address."""
write_byte = _writer(types.uint8, 8)
"""Puts a uint8 to an address."""
