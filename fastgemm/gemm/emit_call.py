"""The bridge from jitted loops to the emitted kernels: calls by address, and plain memory at an address.

Addresses are run-time values (arguments or table entries), never constants, so that a cached function holds none.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "call_c",
    "call_kernel",
    "call_pack",
    "copy_bytes",
    "load_i32",
    "load_i64",
    "on_stack",
    "prefetch",
    "store_i64",
    "words",
]

_I64 = ir.IntType(64)
_POINTER = ir.PointerType()


def _call(builder: Any, values: Any) -> Any:
    """``((void (*)(i64, ...))values[0])(values[1:])``"""
    function = ir.FunctionType(ir.VoidType(), [_I64] * (len(values) - 1))
    builder.call(builder.inttoptr(values[0], function.as_pointer()), values[1:])


@intrinsic
def call_kernel(typingctx, kernel, a, b, c, k, a_row, a_k, b_k, c_row, count, a_step, b_step, c_step, add, cols):  # type: ignore[no-untyped-def]
    """Run the micro-kernel at an address (contract: :mod:`fastgemm.gemm.emit`)."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        _call(builder, arguments)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 15), generate


@intrinsic
def call_pack(typingctx, kernel, src, src_row, dst, dst_panel, rows, panels, cols):  # type: ignore[no-untyped-def]
    """Run the packing kernel at an address."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        _call(builder, arguments)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 8), generate


@intrinsic
def call_c(typingctx, function, values):  # type: ignore[no-untyped-def]
    """What the C function at an address returns for these 64-bit integers (or pointers; one that takes none ignores them)."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        items = cgutils.unpack_tuple(builder, arguments[1])
        kind = ir.FunctionType(_I64, [_I64] * len(items))
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), items)

    return types.int64(types.int64, types.UniTuple(types.int64, len(values))), generate


@intrinsic
def load_i32(typingctx, address):  # type: ignore[no-untyped-def]
    """The 32-bit integer at an address, as a 64-bit one."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        value = builder.load(builder.inttoptr(arguments[0], _POINTER), typ=ir.IntType(32))
        return builder.sext(value, _I64)

    return types.int64(types.int64), generate


@intrinsic
def load_i64(typingctx, address):  # type: ignore[no-untyped-def]
    """The 64-bit integer at an address."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.load(builder.inttoptr(arguments[0], _POINTER), typ=_I64)

    return types.int64(types.int64), generate


@intrinsic
def store_i64(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Store a 64-bit integer at an address."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        builder.store(arguments[1], builder.inttoptr(arguments[0], _POINTER))
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), generate


@intrinsic
def prefetch(typingctx, address):  # type: ignore[no-untyped-def]
    """Ask for the cache line at an address, to be read soon and often."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [_POINTER, i32, i32, i32])
        function = builder.module.declare_intrinsic("llvm.prefetch.p0", fnty=kind)
        builder.call(function, [builder.inttoptr(arguments[0], _POINTER), i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.none(types.int64), generate


@intrinsic(prefer_literal=True)
def copy_bytes(typingctx, target, source, size, swapped):  # type: ignore[no-untyped-def]
    """Move one element of ``size`` (1, 2, 4, 8, a literal) bytes, its bytes reversed if ``swapped`` (a run-time flag)."""
    if not isinstance(size, types.IntegerLiteral):
        return None
    width = ir.IntType(8 * size.literal_value)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        to, come_from = (builder.inttoptr(value, _POINTER) for value in arguments[:2])
        value = builder.load(come_from, typ=width, align=1)
        reversed_ = builder.bswap(value) if width.width > 8 else value
        builder.store(builder.select(builder.trunc(arguments[3], ir.IntType(1)), reversed_, value), to, align=1)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, size, types.int64), generate


@intrinsic
def on_stack(typingctx, values):  # type: ignore[no-untyped-def]
    """The address of these integers in the caller's frame; it holds until the calling function returns."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        items = cgutils.unpack_tuple(builder, arguments[0])
        block = cgutils.alloca_once(builder, ir.ArrayType(_I64, len(items)))
        for i, item in enumerate(items):
            builder.store(item, cgutils.gep_inbounds(builder, block, 0, i))
        return builder.ptrtoint(block, _I64)

    return types.int64(types.UniTuple(types.int64, len(values))), generate


@intrinsic
def words(typingctx, address):  # type: ignore[no-untyped-def]
    """The 64-bit integers at an address, to be indexed."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int64)(types.int64), generate
