"""The shortest way from `matmul(a, b)` to a kernel, for plain 2-D and 3-D arrays of one float type and no options.

One compiled function is called with the Python objects (:mod:`fastgemm.gemm.objects`): type, dtype, shapes, strides, overlap and
size are looked at there, the result is made there, and a job that needs no packing runs at once.  What it does not take it leaves
untouched and says so; nothing is planned in Python.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numpy import empty, ndarray

from ..forks import hold_across_forks
from ..jit import cfunc
from ..vectors import inner
from . import job as j
from . import objects as o
from . import pool
from . import table as t
from .emit_call import call_c, load_i32, load_i64, on_stack, words
from .emit_sync import call
from .multiply import MIRROR, MIRRORED_ROWS, ROWS
from .threads import alone, get_num_threads, pool_kind

__all__ = ["fast"]

# What the compiled function answers when it has not multiplied: who has to (the pool, the engine, matmul's general way), or that
# the kernels of the dtype are not loaded yet.
LARGE, ENGINE, GENERAL, UNLOADED = range(4)

# From so many rows up only half of a product with the own transpose is computed, here so many rows at a time.
SYMMETRIC_ROWS, TRIANGLE_ROWS = 96, 32
# Products below this stay on the caller's thread and keep the GIL; the second number where the process has but one thread.
SERIAL_WORK, ALONE_WORK = 60**3, 130**3
# Above this a job goes through the engine, where Ctrl-C is noticed.
LONG_WORK = 2_000_000_000

_TYPES = tuple(np.dtype(code) for code in ("f4", "f8", "c8", "c16"))
# What the compiled function knows of the process, as words; three per dtype: the object, numpy's number, the kernel table (or 0).
NDARRAY, NONE, NEW_ARRAY, INCREF, AS_INT, SAVE_THREAD, RESTORE_THREAD = range(7)
ALLOCATE, FREE, NO_MEMORY, ALONE, EXECUTE, ANSWERS = range(7, 13)
DTYPES = ANSWERS + 4
# A job's words, and behind them what only this path asks for.
B_N, NDIM, NUMBER = range(j.JOB_WORDS, j.JOB_WORDS + 3)
TAKEN = -1


_FUNCTIONS = (
    "Py_IncRef",
    "PyLong_AsLongLong",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyMem_RawMalloc",
    "PyMem_RawFree",
    "PyErr_NoMemory",
)


class Context(ctypes.Structure):
    """The words above, by name; the kernel tables are ``table0`` and so on, in the order of ``_TYPES``."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            *("ndarray", "none", "new_array", *_FUNCTIONS, "alone", "execute"),
            *(f"answer{answer}" for answer in (LARGE, ENGINE, GENERAL, UNLOADED)),
            *(f"{word}{i}" for i in range(len(_TYPES)) for word in ("dtype", "number", "table")),
        )
    )


@inner
def _array(known, x, dtype, ndim):  # type: ignore[no-untyped-def]
    """Whether the object is an array, no subclass, of this dtype and so many dimensions."""
    return load_i64(x + o.TYPE) == known and load_i64(x + o.DTYPE) == dtype and load_i32(x + o.NDIM) == ndim


@inner
def _read_operands(context, a, b, job):  # type: ignore[no-untyped-def]
    """Fill in what the operands decide; TAKEN, or the answer."""
    if load_i64(a + o.TYPE) != context[NDARRAY]:
        return GENERAL
    dtype, ndim = load_i64(a + o.DTYPE), load_i32(a + o.NDIM)
    entry = DTYPES
    while entry < DTYPES + 12 and context[entry] != dtype:
        entry += 3
    if entry == DTYPES + 12 or (ndim != 2 and ndim != 3) or not _array(context[NDARRAY], b, dtype, ndim):
        return GENERAL
    job[NUMBER], job[j.TABLE], job[NDIM] = context[entry + 1], context[entry + 2], ndim
    if job[j.TABLE] == 0:
        return UNLOADED
    at, last = ndim - 2, ndim - 1
    shape, strides = words(load_i64(a + o.SHAPE)), words(load_i64(a + o.STRIDES))
    job[j.A], job[j.M], job[j.K] = load_i64(a + o.DATA), shape[at], shape[last]
    job[j.A_ROW], job[j.A_K] = strides[at], strides[last]
    job[j.BATCH] = shape[0] if ndim == 3 else 1
    job[j.A_BATCH] = strides[0] if ndim == 3 else 0
    shape, strides = words(load_i64(b + o.SHAPE)), words(load_i64(b + o.STRIDES))
    job[j.B], job[j.N], job[j.B_K], job[B_N] = load_i64(b + o.DATA), shape[last], strides[at], strides[last]
    job[j.B_BATCH] = strides[0] if ndim == 3 and shape[0] != 1 else 0
    if shape[at] != job[j.K] or job[j.BATCH] * job[j.M] * job[j.N] * job[j.K] == 0:
        return GENERAL
    return TAKEN if ndim == 2 or shape[0] == 1 or shape[0] == job[j.BATCH] else GENERAL


@inner
def _reach(size, stride):  # type: ignore[no-untyped-def]
    """(lowest, highest) byte offset of an axis' first bytes."""
    far = (size - 1) * stride
    return (far, 0) if far < 0 else (0, far)


@inner
def _apart(job, x, batch_stride, rows, row, columns, column, item):  # type: ignore[no-untyped-def]
    """Whether C's memory does not meet the operand's at x."""
    low, high = _reach(job[j.BATCH], batch_stride)
    row_low, row_high = _reach(rows, row)
    column_low, column_high = _reach(columns, column)
    end = (job[j.BATCH] - 1) * job[j.C_BATCH] + (job[j.M] - 1) * job[j.C_ROW] + job[j.N] * item
    return job[j.C] + end <= x + low + row_low + column_low or x + high + row_high + column_high + item <= job[j.C]


@inner
def _read_out(context, out, dtype, job, item):  # type: ignore[no-untyped-def]
    """Fill in what a given `out` decides: whether it can be written directly."""
    ndim = job[NDIM]
    if not _array(context[NDARRAY], out, dtype, ndim) or load_i32(out + o.FLAGS) & o.WRITEABLE == 0:
        return False
    shape, strides = words(load_i64(out + o.SHAPE)), words(load_i64(out + o.STRIDES))
    m, n, batch = shape[ndim - 2], shape[ndim - 1], shape[0] if ndim == 3 else 1
    row = strides[ndim - 2]
    job[j.C], job[j.C_ROW], job[j.C_BATCH] = load_i64(out + o.DATA), row, strides[0] if ndim == 3 else 0
    if m != job[j.M] or n != job[j.N] or batch != job[j.BATCH]:
        return False
    if (strides[ndim - 1] != item and n > 1) or (row < n * item and m > 1) or (job[j.C_BATCH] < m * row and batch > 1):
        return False
    k = job[j.K]
    return _apart(job, job[j.A], job[j.A_BATCH], m, job[j.A_ROW], k, job[j.A_K], item) and _apart(
        job, job[j.B], job[j.B_BATCH], k, job[j.B_K], n, job[B_N], item
    )


@inner
def _new(context, job, item):  # type: ignore[no-untyped-def]
    """A new array for the result, 0 if there is no memory for it."""
    m, n = job[j.M], job[j.N]
    shape = on_stack((job[j.BATCH], m, n)) + 8 * (3 - job[NDIM])
    out = call_c(context[NEW_ARRAY], (context[NDARRAY], job[NDIM], shape, job[NUMBER], 0, 0, 0, 0, 0))
    if out != 0:
        job[j.C], job[j.C_ROW], job[j.C_BATCH] = load_i64(out + o.DATA), n * item, m * n * item
    return out


@inner
def _runs_here(job, item, lay):  # type: ignore[no-untyped-def]
    """Whether the product needs no packing and no column in one piece, is not too long, and finds its loops in the table: those
    for laying B out and for half a product are there once the engine has used them."""
    m, n, k, b_bytes = job[j.M], job[j.N], job[j.K], job[j.K] * job[j.N] * item
    if job[j.BATCH] * m * n * k > LONG_WORK or not j.in_place(m, b_bytes):
        return False
    if _symmetric(job) and (load_i64(job[j.TABLE] + 8 * MIRROR) == 0 or b_bytes > j.IN_PLACE_BYTES):
        return False
    if n == 1 and job[NDIM] == 2:
        return k <= 64 or (job[j.A_K] == item and job[j.B_K] == item)
    if not lay:
        return True
    # rows are laid out where several rows of A use them
    ready = load_i64(job[j.TABLE] + 8 * ROWS) != 0 and job[NDIM] == 2
    return ready and b_bytes <= j.IN_PLACE_BYTES and (m > 8 or k * n < 4096)


@inner
def _symmetric(job):  # type: ignore[no-untyped-def]
    """Whether B is A's transpose, in the same memory, and large enough for half the product to be quicker."""
    same = job[j.A] == job[j.B] and job[j.A_ROW] == job[B_N] and job[j.A_K] == job[j.B_K] and job[j.M] == job[j.N]
    return same and job[j.M] >= SYMMETRIC_ROWS and job[NDIM] == 2


@inner
def _share_out(context, work, block, shares, pool_address, threads):  # type: ignore[no-untyped-def]
    """Run every share of some work, on the pool if there are threads for it."""
    if threads > 1 and shares > 1:
        call(context[EXECUTE], on_stack((pool_address, work, block, shares, threads)), 0, 0)
    else:
        for share in range(shares):
            call(work, block, share, 0)


@inner
def _run(context, block, item, lay, pool_address, threads):  # type: ignore[no-untyped-def]
    """Multiply, without the GIL if a thread count was given.  False if there is no memory."""
    job = words(block)
    table, n, k, rows, half = job[j.TABLE], job[j.N], job[j.K], 0, _symmetric(job)
    if lay:
        rows = call_c(context[ALLOCATE], (k * n * item,))
        if rows == 0:
            call_c(context[NO_MEMORY], (0,))
            return False
    state = call_c(context[SAVE_THREAD], (0,)) if threads > 0 else 0
    if lay:
        call(load_i64(table + 8 * ROWS), on_stack((table, job[j.B], job[j.B_K], job[B_N], rows, k, n)), 0, 0)
        job[j.B], job[j.B_K] = rows, n * item
    if job[j.B_BATCH] == 0 and job[j.A_BATCH] == job[j.M] * job[j.A_ROW] and job[j.C_BATCH] == job[j.M] * job[j.C_ROW]:
        job[j.M], job[j.BATCH] = job[j.M] * job[j.BATCH], 1  # one B for all: one tall product
    job[j.KC], job[j.STRICT] = j.in_place_slab(k, k * n * item), 0
    cut, step, shares = j.split(job[j.M], n, k, job[j.BATCH], threads)
    if half:
        cut, step, shares = j.BY_TRIANGLE, TRIANGLE_ROWS, -(-n // TRIANGLE_ROWS)
    job[j.CUT], job[j.STEP] = cut, step
    _share_out(context, load_i64(table + 8 * t.SHARE), block, shares, pool_address, threads)
    if half:
        lower = on_stack((table, job[j.C], job[j.C_ROW], n))
        _share_out(context, load_i64(table + 8 * MIRROR), lower, -(-n // MIRRORED_ROWS), pool_address, threads)
    if threads > 0:
        call_c(context[RESTORE_THREAD], (state,))
    if lay:
        call_c(context[FREE], (rows,))
    return True


@inner
def _product(context, a, b, out, pool_address, threads):  # type: ignore[no-untyped-def]
    """A new reference to the product's array or to an answer; 0 if an exception is set."""
    block = on_stack((0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
    job = words(block)
    serial = ALONE_WORK if load_i64(context[ALONE]) != 0 else SERIAL_WORK
    answer = _read_operands(context, a, b, job)
    if answer == TAKEN:
        item = load_i64(job[j.TABLE] + 8 * t.ITEM)
        lay = job[B_N] != item and job[j.N] > 1
        if out != context[NONE] and not _read_out(context, out, load_i64(a + o.DTYPE), job, item):
            answer = GENERAL
        elif not _runs_here(job, item, lay):
            answer = ENGINE
        elif threads == 0 and job[j.BATCH] * job[j.M] * job[j.N] * job[j.K] > serial:
            answer = LARGE
    if answer != TAKEN:
        out = context[ANSWERS + answer]
    elif out == context[NONE]:
        out = _new(context, job, item)
        if out == 0 or not _run(context, block, item, lay, pool_address, threads):
            return 0
        return out
    elif not _run(context, block, item, lay, pool_address, threads):
        return 0
    call_c(context[INCREF], (out,))
    return out


@cfunc(types.int64(types.int64, types.int64, types.int64))
def direct(self, arguments, count):  # type: ignore[no-untyped-def]
    """``direct(a, b, out)``, and ``direct(a, b, out, pool address, threads)`` for what the first call answered LARGE to."""
    context, given = words(load_i64(self + o.DATA)), words(arguments)
    pool_address, threads = 0, 0
    if count == 5:
        pool_address, threads = call_c(context[AS_INT], (given[3],)), call_c(context[AS_INT], (given[4],))
    return _product(context, given[0], given[1], given[2], pool_address, threads)


def _declined(a: Any, b: Any, out: Any, *_: int) -> int:
    """In the place of :func:`direct` where Python's objects are not as it expects them."""
    return GENERAL


@cache
def _known() -> Context:
    """What :func:`direct` knows of this process."""
    words = [id(ndarray), id(None), o.new_array(), *map(o.c_function, _FUNCTIONS)]
    words += [ctypes.addressof(alone), 0, *map(id, _ANSWERS)]
    for dtype in _TYPES:
        words += [id(dtype), dtype.num, 0]
    return Context(*words)


# The very objects whose addresses the compiled function answers with.
_ANSWERS = (LARGE, ENGINE, GENERAL, UNLOADED)
_loading = threading.RLock()
hold_across_forks(_loading)
_native_pool = pool_kind() == "futex"


@cache
def entry() -> Callable[..., Any]:
    """:func:`direct` for Python: the product, or an integer for who has to compute it."""
    if not o.readable():
        return _declined
    context = _known()
    view = (ctypes.c_int64 * (ctypes.sizeof(context) // 8)).from_buffer(context)
    return o.builtin("direct", direct.address, np.ctypeslib.as_array(view))


def load(dtype: np.dtype[Any]) -> None:
    """Compile or load the kernels of a dtype for the direct path."""
    with _loading:
        setattr(_known(), f"table{_TYPES.index(dtype)}", j.loaded(dtype, complete=False))


def fast(a: Any, b: Any, out: Any) -> Any:
    """`a @ b` into `out` (or a new array) if this path takes it, else NotImplemented; nothing is written then."""
    return settle(entry()(a, b, out), a, b, out)


def settle(answer: Any, a: Any, b: Any, out: Any) -> Any:
    """What becomes of a call that :func:`direct` has answered: its result, or that of whoever it names."""
    if answer is UNLOADED:
        load(a.dtype)
        answer = entry()(a, b, out)
    if answer is LARGE:
        threads = get_num_threads() if _native_pool else 1
        answer = entry()(a, b, out, _pool_address(threads) if threads > 1 else 0, threads)
    if type(answer) is not int:
        return answer
    if answer == GENERAL:
        return NotImplemented
    if out is None:
        out = empty((*a.shape[:-1], b.shape[-1]), a.dtype)
    _engine()(a, b, out)
    return out


def _pool_address(threads: int) -> int:
    """The pool, ready for so many threads, and what runs a job on it known to :func:`direct`."""
    if not _known().execute:
        _known().execute = pool.execute_words.address
    return pool.address(threads)


@cache
def _engine() -> Callable[[ndarray, ndarray, ndarray], object]:
    """The engine, imported when a product first needs it."""
    from .engine import run, run_again

    return lambda a, b, out: run(a, b, out) if a.ndim > 2 else run_again(a, b, out)
