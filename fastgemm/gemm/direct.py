"""The shortest way from `matmul(a, b)` to a kernel, for plain 2-D and 3-D arrays of one float type and no options.

All choices are made inside one jitted function per (dtype, ndim): numba's dispatcher is the type check, shapes, strides, overlap
and size are looked at there, and a job that needs no packing runs at once.  What it does not take it leaves untouched and says so;
nothing is planned in Python.  A 4 x 4 product costs about 0.5 µs, of which 0.25 are the dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numpy import empty, ndarray

from ..jit import njit
from ..vectors import inner
from . import job as j
from . import pool
from . import table as t
from .emit_call import load_i64, on_stack
from .emit_sync import call
from .job import loaded
from .multiply import ROWS
from .threads import get_num_threads, pool_kind

__all__ = ["fast"]

DONE, LARGE, ENGINE, GENERAL = range(4)

# From so many rows up the engine computes half of a product with the own transpose.
SYMMETRIC_ROWS = 96
# Products below this stay on the caller's thread and keep the GIL; the second number where the caller's thread is the only one.
SERIAL_WORK, ALONE_WORK = 60**3, 130**3
# Above this a job goes through the engine, where Ctrl-C is noticed.
LONG_WORK = 2_000_000_000


@inner
def _reach(size, stride):  # type: ignore[no-untyped-def]
    """(lowest, highest) byte offset of an axis' first bytes."""
    return min(0, (size - 1) * stride), max(0, (size - 1) * stride)


@inner
def _apart(x, x_low, x_high, y, y_low, y_high, item):  # type: ignore[no-untyped-def]
    """Whether two arrays' memory ranges do not meet."""
    return x + x_high + item <= y + y_low or y + y_high + item <= x + x_low


@inner
def _worth_laying(table, at_a, at_b, m, n, k, item):  # type: ignore[no-untyped-def]
    """Whether a B without contiguous rows is laid out in rows here: small, used by several rows of A, and not A's transpose (of
    which the engine computes half).  The loop is there once the engine has run (it packs then, too)."""
    if load_i64(table + 8 * ROWS) == 0:
        return False
    return k * n * item <= j.IN_PLACE_BYTES and (m > 8 or k * n < 4096) and (at_a != at_b or m < SYMMETRIC_ROWS)


def direct2(a, b, out, table, serial):  # type: ignore[no-untyped-def]
    """(M, K) by (K, N): DONE, or who has to do it."""
    item = load_i64(table + 8 * t.ITEM)
    m, k = a.shape
    n = b.shape[1]
    if b.shape[0] != k or out.shape[0] != m or out.shape[1] != n or m * n * k == 0:
        return GENERAL
    c_row, c_n = out.strides
    b_k, b_n = b.strides
    a_row, a_k = a.strides
    if (c_n != item and n > 1) or (c_row < n * item and m > 1):
        return GENERAL
    at_a, at_b, at_c = a.ctypes.data, b.ctypes.data, out.ctypes.data
    a0, a1 = _reach(m, a_row)
    a2, a3 = _reach(k, a_k)
    b0, b1 = _reach(k, b_k)
    b2, b3 = _reach(n, b_n)
    c1 = (m - 1) * c_row + (n - 1) * item
    if not (_apart(at_c, 0, c1, at_a, a0 + a2, a1 + a3, item) and _apart(at_c, 0, c1, at_b, b0 + b2, b1 + b3, item)):
        return GENERAL
    if not j.in_place(m, k * n * item) or (
        b_n != item and n > 1 and not _worth_laying(table, at_a, at_b, m, n, k, item)
    ):
        return ENGINE
    if n == 1 and (a_k != item or b_k != item) and k > 64:
        return ENGINE
    if m * n * k > serial:
        return LARGE
    if b_n != item and n > 1:
        rows = np.empty(k * n * item, np.uint8)
        call(load_i64(table + 8 * ROWS), on_stack((table, at_b, b_k, b_n, rows.ctypes.data, k, n)), 0, 0)
        at_b, b_k = rows.ctypes.data, n * item
    kc = j.in_place_slab(k, k * n * item)
    job = on_stack((table, at_a, a_row, a_k, at_b, b_k, at_c, c_row, m, n, k, kc, 1, 0, 0, 0, j.BY_ROWS, m, 0))
    call(load_i64(table + 8 * t.SHARE), job, 0, 0)
    return DONE


def large2(a, b, out, table, pool_address, threads):  # type: ignore[no-untyped-def]
    """A job :func:`direct2` called LARGE, on the pool; ENGINE if it is long."""
    m, k = a.shape
    n = b.shape[1]
    if m * n * k > LONG_WORK:
        return ENGINE
    item = load_i64(table + 8 * t.ITEM)
    kc = j.in_place_slab(k, k * n * item)
    at_b, b_k = b.ctypes.data, b.strides[0]
    rows = np.empty(k * n * item if b.strides[1] != item and n > 1 else 0, np.uint8)
    if rows.size > 0:
        call(load_i64(table + 8 * ROWS), on_stack((table, at_b, b_k, b.strides[1], rows.ctypes.data, k, n)), 0, 0)
        at_b, b_k = rows.ctypes.data, n * item
    cut, step, shares = j.split(m, n, k, 1, threads)
    job = on_stack(
        (
            table, a.ctypes.data, a.strides[0], a.strides[1], at_b, b_k, out.ctypes.data, out.strides[0],
            m, n, k, kc, 1, 0, 0, 0, cut, step, 0,
        )
    )  # fmt: skip
    if shares == 1:
        call(load_i64(table + 8 * t.SHARE), job, 0, 0)
    else:
        pool.execute(pool_address, load_i64(table + 8 * t.SHARE), job, shares, threads)
    return DONE


def direct3(a, b, out, table, pool_address, threads):  # type: ignore[no-untyped-def]
    """(batch, M, K) by (batch or 1, K, N): DONE, or who has to do it.  Runs on the caller's thread up to SERIAL_WORK."""
    item = load_i64(table + 8 * t.ITEM)
    batch, m, k = a.shape
    n = b.shape[2]
    if b.shape[1] != k or (b.shape[0] != batch and b.shape[0] != 1) or m * n * k * batch == 0:
        return GENERAL
    if out.shape[0] != batch or out.shape[1] != m or out.shape[2] != n:
        return GENERAL
    c_batch, c_row, c_n = out.strides
    b_batch, b_k, b_n = b.strides
    a_batch, a_row, a_k = a.strides
    if b.shape[0] == 1:
        b_batch = 0
    if (c_n != item and n > 1) or (c_row < n * item and m > 1) or (c_batch < m * c_row and batch > 1):
        return GENERAL
    at_a, at_b, at_c = a.ctypes.data, b.ctypes.data, out.ctypes.data
    a0, a1 = _reach(m, a_row)
    a2, a3 = _reach(k, a_k)
    a4, a5 = _reach(batch, a_batch)
    b0, b1 = _reach(k, b_k)
    b2, b3 = _reach(n, b_n)
    b4, b5 = _reach(batch, b_batch)
    c1 = (batch - 1) * c_batch + (m - 1) * c_row + (n - 1) * item
    if not (
        _apart(at_c, 0, c1, at_a, a0 + a2 + a4, a1 + a3 + a5, item)
        and _apart(at_c, 0, c1, at_b, b0 + b2 + b4, b1 + b3 + b5, item)
    ):
        return GENERAL
    if (b_n != item and n > 1) or not j.in_place(m, k * n * item) or batch * m * n * k > LONG_WORK:
        return ENGINE
    if batch * m * n * k <= SERIAL_WORK:
        threads = 1
    if b_batch == 0 and a_batch == m * a_row and c_batch == m * c_row:  # one B for all: one tall product
        m, batch = m * batch, 1
    kc = j.in_place_slab(k, k * n * item)
    cut, step, shares = j.split(m, n, k, batch, threads)
    job = on_stack(
        (
            table, at_a, a_row, a_k, at_b, b_k, at_c, c_row, m, n, k, kc, batch, a_batch, b_batch, c_batch, cut, step, 0,
        )
    )  # fmt: skip
    if shares == 1:
        call(load_i64(table + 8 * t.SHARE), job, 0, 0)
    else:
        pool.execute(pool_address, load_i64(table + 8 * t.SHARE), job, shares, threads)
    return DONE


class _Way:
    """The compiled entries of one element type; what their tables hold is in :mod:`fastgemm.gemm.table`."""

    __slots__ = ("address", "dtype", "large", "small", "stack")

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.address = loaded(dtype, complete=False)
        self.small = self._entry(direct2, 2, 2, nogil=False)
        self.large: Callable[..., int] | None = None
        self.stack: Callable[..., int] | None = None

    def _entry(self, function: Callable[..., int], ndim: int, words: int, *, nogil: bool = True) -> Callable[..., int]:
        """The one specialisation for arrays of any layout, alignment and writability, without the dispatcher in front of it.

        The dispatcher's type check costs 0.1 µs, a fifth of a small call; :func:`fast` knows type, dtype, dimensions and
        writability by then.
        """
        operand = types.Array(_NUMBA[self.dtype], ndim, "A", readonly=True, aligned=False)
        result = types.Array(_NUMBA[self.dtype], ndim, "A", readonly=False, aligned=False)
        entry = njit(function, nogil=nogil)
        entry.compile((operand, operand, result, *[types.int64] * words))
        (overload,) = entry.overloads.values()
        return overload.entry_point

    def run_large(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> int:
        if self.large is None:
            self.large = self._entry(large2, 2, 3)
        threads = get_num_threads()
        return self.large(a, b, out, self.address, pool.address(threads), threads)

    def run_stack(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> int:
        if self.stack is None:
            self.stack = self._entry(direct3, 3, 3)
        threads = get_num_threads() if _native_pool else 1
        return self.stack(a, b, out, self.address, pool.address(threads), threads)


_NUMBA = {
    np.dtype("f4"): types.float32,
    np.dtype("f8"): types.float64,
    np.dtype("c8"): types.complex64,
    np.dtype("c16"): types.complex128,
}
_F4, _F8, _C8, _C16 = _NUMBA
_ways: dict[np.dtype[Any], _Way] = {}
_way4: _Way | None = None
_way8: _Way | None = None
_native_pool = pool_kind() == "futex"


def _way(dtype: np.dtype[Any]) -> _Way | None:
    """The entries for a dtype, None if the direct path has none (then the general one decides)."""
    global _way4, _way8
    if dtype is not _F4 and dtype is not _F8 and dtype is not _C8 and dtype is not _C16:
        return None
    if dtype not in _ways:
        _ways[dtype] = _Way(dtype)
    _way4, _way8 = _ways.get(_F4), _ways.get(_F8)  # type: ignore[call-overload]
    return _ways[dtype]


def fast(a: Any, b: Any, out: Any) -> Any:
    """`a @ b` into `out` (or a new array) if this path takes it, else NotImplemented; nothing is written then.

    Dtypes are compared by identity: native ones are singletons, and hashing one costs as much as the product.
    """
    if type(a) is not ndarray or type(b) is not ndarray:
        return NotImplemented
    dtype = a.dtype
    if b.dtype is not dtype:
        return NotImplemented
    way = _way4 if dtype is _F4 else _way8 if dtype is _F8 else None
    if way is None:
        way = _way(dtype)
        if way is None:
            return NotImplemented
    ndim = a.ndim
    if ndim != 2 or b.ndim != 2:
        return _fast_stack(way, a, b, out) if ndim == 3 and b.ndim == 3 else NotImplemented
    if out is None:
        out = empty((len(a), b.shape[1]), dtype)
    elif type(out) is not ndarray or out.dtype is not dtype or out.ndim != 2 or not out.flags.writeable:
        return NotImplemented
    serial = SERIAL_WORK
    if len(a) > 60 and get_num_threads() == 1:
        serial = ALONE_WORK
    status = way.small(a, b, out, way.address, serial)
    if status == DONE:
        return out
    if status == LARGE and _native_pool:
        status = way.run_large(a, b, out)
        if status == DONE:
            return out
    if status == ENGINE or status == LARGE:  # the operands are as the engine wants them
        _engine()(a, b, out)
        return out
    return NotImplemented


@cache
def _engine() -> Callable[[ndarray, ndarray, ndarray], None]:
    """The engine, imported when a product first needs it."""
    from .engine import run

    return run


def _fast_stack(way: _Way, a: ndarray, b: ndarray, out: Any) -> Any:
    if out is None:
        out = empty((*a.shape[:2], b.shape[2]), way.dtype)
    elif type(out) is not ndarray or out.dtype is not way.dtype or out.ndim != 3 or not out.flags.writeable:
        return NotImplemented
    return out if way.run_stack(a, b, out) == DONE else NotImplemented
