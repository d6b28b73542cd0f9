"""Atomics, waiting and C calls for jitted code: the synchronisation half of the room where LLVM IR is built (``emit*.py``).

Every function is a module-level intrinsic on plain ``int64`` addresses, so the jitted functions that use them can be cached
on disk: no address is baked into them.  All atomics are sequentially consistent; on x86-64 only the stores and the
read-modify-write operations pay for that (``xchg``, ``lock``), on AArch64 they are the acquire/release instructions.

What depends on the platform: :func:`pause` is the spin hint of x86 and of AArch64 and nothing elsewhere; the futex calls are
Linux on those two and compile to nothing elsewhere (the portable pool waits in Python); :func:`clock` is the monotonic clock
of POSIX and the time stamp counter on Windows.
"""

from __future__ import annotations

import platform
import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "add",
    "call",
    "clock",
    "compare_swap",
    "futex_wait",
    "futex_wake",
    "give_way",
    "load",
    "pause",
    "processor",
    "set_affinity",
    "store",
    "swap",
]

_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_ORDER = "seq_cst"
_MACHINE = platform.machine().lower()
_X86 = _MACHINE in ("x86_64", "amd64")
_ARM = _MACHINE in ("aarch64", "arm64")
# The number of the futex system call; no other machine is served (the portable pool is).
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}.get(_MACHINE) if sys.platform == "linux" else None
_FUTEX_WAIT_BITSET = 9 | 128  # 128: private to the process, which saves the kernel a look at the mapping
_FUTEX_WAKE_BITSET = 10 | 128
_CLOCK_MONOTONIC = 6 if sys.platform == "darwin" else 1
_NANO = 1_000_000_000


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _I64.as_pointer())


@intrinsic
def load(typingctx: Any, address: Any) -> Any:
    """load(address) -> the int64 there."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0]), _ORDER, 8)

    return types.int64(types.int64), emit


@intrinsic
def store(typingctx: Any, address: Any, value: Any) -> Any:
    """store(address, value)."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _pointer(builder, args[0]), _ORDER, 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def swap(typingctx: Any, address: Any, value: Any) -> Any:
    """swap(address, value) -> what was there."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("xchg", _pointer(builder, args[0]), args[1], _ORDER)

    return types.int64(types.int64, types.int64), emit


@intrinsic
def add(typingctx: Any, address: Any, value: Any) -> Any:
    """add(address, value) -> what was there before."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(builder, args[0]), args[1], _ORDER)

    return types.int64(types.int64, types.int64), emit


@intrinsic
def compare_swap(typingctx: Any, address: Any, expected: Any, value: Any) -> Any:
    """compare_swap(address, expected, value) -> True if `expected` was there and `value` now is."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pair = builder.cmpxchg(_pointer(builder, args[0]), args[1], args[2], _ORDER, _ORDER)
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), emit


@intrinsic
def pause(typingctx: Any) -> Any:
    """pause(): tell the core that this is a spin loop."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _X86:
            hint = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, hint, "llvm.x86.sse2.pause"), [])
        elif _ARM:
            hint = ir.FunctionType(ir.VoidType(), [_I32])
            yield_hint = ir.Constant(_I32, 1)
            builder.call(cgutils.get_or_insert_function(builder.module, hint, "llvm.aarch64.hint"), [yield_hint])
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def give_way(typingctx: Any) -> Any:
    """give_way(): let another thread that waits for this very core run first (nothing on Windows)."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if sys.platform != "win32":
            kind = ir.FunctionType(_I32, [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def call(typingctx: Any, function: Any, args: Any, chunk: Any, thread: Any) -> Any:
    """call(function, args, chunk, thread): the C function ``void(int64, int64, int64)`` at address `function`."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I64] * 3)
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit


def _futex(builder: Any, address: Any, operation: int, value: Any, timeout: Any, mask: Any) -> Any:
    """syscall(SYS_futex, address, operation, value, timeout, NULL, mask): `value` is compared with 32 bits, little-endian."""
    kind = ir.FunctionType(_I64, [_I64], var_arg=True)
    function = cgutils.get_or_insert_function(builder.module, kind, "syscall")
    number, code, zero = (ir.Constant(_I64, one) for one in (_SYS_FUTEX, operation, 0))
    return builder.call(function, [number, address, code, value, timeout, zero, mask])


@intrinsic
def futex_wait(typingctx: Any, address: Any, expected: Any, mask: Any, until: Any) -> Any:
    """futex_wait(address, expected, mask, until): sleep while the low 32 bits there are `expected`.

    Returns on a wake that shares a bit with `mask`, at `until` (nanoseconds of :func:`clock`; 0: never), on a signal, or
    for no reason: look again at what was waited for.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _SYS_FUTEX is not None:
            address, expected, mask, until = args
            spec = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
            nano, zero = ir.Constant(_I64, _NANO), ir.Constant(_I64, 0)
            builder.store(builder.sdiv(until, nano), cgutils.gep_inbounds(builder, spec, 0, 0))
            builder.store(builder.srem(until, nano), cgutils.gep_inbounds(builder, spec, 0, 1))
            forever = builder.icmp_signed("==", until, zero)
            timeout = builder.select(forever, zero, builder.ptrtoint(spec, _I64))
            _futex(builder, address, _FUTEX_WAIT_BITSET, expected, timeout, mask)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit


@intrinsic
def futex_wake(typingctx: Any, address: Any, mask: Any) -> Any:
    """futex_wake(address, mask): wake everybody who sleeps there and shares a bit with `mask`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _SYS_FUTEX is not None:
            everybody, zero = ir.Constant(_I64, 2**31 - 1), ir.Constant(_I64, 0)
            _futex(builder, args[0], _FUTEX_WAKE_BITSET, everybody, zero, args[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def clock(typingctx: Any) -> Any:
    """clock() -> nanoseconds of the monotonic clock, about 20 ns a reading.

    Windows has no such symbol in the C library: there it is the time stamp counter, a third to a half of a nanosecond a
    tick.  It only decides when a long job looks at Python again, which may be that much earlier.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if sys.platform == "win32":
            counter = ir.FunctionType(_I64, [])
            return builder.call(cgutils.get_or_insert_function(builder.module, counter, "llvm.readcyclecounter"), [])
        spec = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
        pair = ir.ArrayType(_I64, 2).as_pointer()
        kind = ir.FunctionType(_I32, [_I32, pair])
        function = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        builder.call(function, [ir.Constant(_I32, _CLOCK_MONOTONIC), spec])
        seconds = builder.load(cgutils.gep_inbounds(builder, spec, 0, 0))
        nanoseconds = builder.load(cgutils.gep_inbounds(builder, spec, 0, 1))
        return builder.add(builder.mul(seconds, ir.Constant(_I64, _NANO)), nanoseconds)

    return types.int64(), emit


@intrinsic
def processor(typingctx: Any) -> Any:
    """The processor the calling thread is on, -1 where the system does not tell (Linux: libc's sched_getcpu)."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _SYS_FUTEX is None:
            return ir.Constant(_I64, -1)
        kind = ir.FunctionType(ir.IntType(32), [])
        return builder.sext(
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_getcpu"), []), _I64
        )

    return types.int64(), emit


@intrinsic
def set_affinity(typingctx: Any, thread: Any, size: Any, mask: Any) -> Any:
    """Keep a thread (its system number) to the processors of a mask of `size` bytes at an address; a refusal changes nothing."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _SYS_FUTEX is not None:
            word = ir.IntType(32)
            kind = ir.FunctionType(word, [word, _I64, _I64])
            function = cgutils.get_or_insert_function(builder.module, kind, "sched_setaffinity")
            builder.call(function, [builder.trunc(args[0], word), args[1], args[2]])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), emit
