"""The shortest way from `matmul(a, b)` to a kernel, for plain arrays of one float type and no options.

One compiled function is called with the Python objects (:mod:`fastgemm.gemm.objects`): type, dtype, shapes, strides, overlap and
size are looked at there, the result is made there, and a job that needs no packing runs at once.  What it does not take it leaves
untouched and says so; nothing is planned in Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numpy import empty, ndarray
from numpy.ctypeslib import as_array

from ..jit import cfunc
from ..lazy import module
from ..vectors import inner
from . import job as j
from . import objects as o
from . import pool
from . import table as t
from .emit_call import call_c, load_i32, load_i64, on_stack, words
from .emit_sync import call
from .multiply import MIRROR, MIRRORED_ROWS, ROWS
from .threads import alone, get_num_threads, pool_kind

__all__ = ["entry", "fast", "first_entry", "settle"]

# What the compiled function answers when it has not multiplied: who has to (the pool, the engine, matmul's general way), or that
# the kernels of the dtype are not loaded yet.
LARGE, ENGINE, GENERAL, UNLOADED = range(4)

# From so many rows up only half of a product with the own transpose is computed, here so many rows at a time.
SYMMETRIC_ROWS, TRIANGLE_ROWS = 96, 32
# Products up to j.SERIAL_WORK keep the GIL; up to this one where the process has but one thread.
ALONE_WORK = 130**3

_TYPES = tuple(np.dtype(code) for code in ("f4", "f8", "c8", "c16"))
# What the compiled function knows of the process, as words; three per dtype: the object, numpy's number, the kernel table (or 0).
NDARRAY, NONE, NEW_ARRAY, AS_SCALAR, INCREF, AS_INT, SAVE_THREAD, RESTORE_THREAD = range(8)
ALLOCATE, FREE, NO_MEMORY, ALONE, EXECUTE, ANSWERS = range(8, 14)
DTYPES = ANSWERS + 4
END = DTYPES + 3 * len(_TYPES)
# A job's words, and behind them what only this path asks for.
B_N, A_NDIM, B_NDIM, NUMBER, ALIKE, OUT_NDIM, OUT_SHAPE = range(j.JOB_WORDS, j.JOB_WORDS + 7)
MAX_NDIM = 6
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
            *("ndarray", "none", "new_array", "as_scalar", *_FUNCTIONS, "alone", "execute"),
            *(f"answer{answer}" for answer in (LARGE, ENGINE, GENERAL, UNLOADED)),
            *(f"{word}{i}" for i in range(len(_TYPES)) for word in ("dtype", "number", "table")),
        )
    )


@inner
def _array(known, x, dtype):  # type: ignore[no-untyped-def]
    """Whether the object is an array, no subclass, of this dtype."""
    return load_i64(x + o.TYPE) == known and load_i64(x + o.DTYPE) == dtype


@inner
def _read_operands(context, a, b, job):  # type: ignore[no-untyped-def]
    """Fill in what the matrices of the operands decide; TAKEN, or the answer."""
    if load_i64(a + o.TYPE) != context[NDARRAY]:
        return GENERAL
    dtype, a_ndim = load_i64(a + o.DTYPE), load_i32(a + o.NDIM)
    entry = DTYPES
    while entry < END and context[entry] != dtype:
        entry += 3
    if entry == END or not _array(context[NDARRAY], b, dtype):
        return GENERAL
    b_ndim = load_i32(b + o.NDIM)
    if a_ndim < 1 or b_ndim < 1 or a_ndim > MAX_NDIM or b_ndim > MAX_NDIM:
        return GENERAL
    job[NUMBER], job[j.TABLE], job[A_NDIM], job[B_NDIM] = context[entry + 1], context[entry + 2], a_ndim, b_ndim
    if job[j.TABLE] == 0:
        return UNLOADED
    # a vector on the left is a row, on the right a column
    job[j.M], job[j.N], job[j.A_ROW], job[B_N] = 1, 1, 0, 0
    shape, strides = words(load_i64(a + o.SHAPE)), words(load_i64(a + o.STRIDES))
    job[j.A], job[j.K], job[j.A_K] = load_i64(a + o.DATA), shape[a_ndim - 1], strides[a_ndim - 1]
    if a_ndim > 1:
        job[j.M], job[j.A_ROW] = shape[a_ndim - 2], strides[a_ndim - 2]
    shape, strides = words(load_i64(b + o.SHAPE)), words(load_i64(b + o.STRIDES))
    at = max(b_ndim - 2, 0)
    job[j.B], job[j.B_K] = load_i64(b + o.DATA), strides[at]
    if b_ndim > 1:
        job[j.N], job[B_N] = shape[b_ndim - 1], strides[b_ndim - 1]
    return TAKEN if shape[at] == job[j.K] else GENERAL


@inner
def _batch_axis(x, ndim, axis):  # type: ignore[no-untyped-def]
    """(size, stride) of a batch axis counted from the matrices outwards; an axis that is not there, or of one, is repeated."""
    at = ndim - 3 - axis
    if at < 0 or words(load_i64(x + o.SHAPE))[at] == 1:
        return 1, 0
    return words(load_i64(x + o.SHAPE))[at], words(load_i64(x + o.STRIDES))[at]


@inner
def _read_batch(context, a, b, out, job, item):  # type: ignore[no-untyped-def]
    """Merge the batch axes into one with a stride for each array, and find the result's shape; TAKEN, or the answer."""
    a_ndim, b_ndim, row = job[A_NDIM], job[B_NDIM], job[j.N] * item
    axes = max(a_ndim, b_ndim, 2) - 2
    ndim = axes + min(a_ndim - 1, 1) + min(b_ndim - 1, 1)
    given = out != context[NONE]
    if given and (not _array(context[NDARRAY], out, load_i64(a + o.DTYPE)) or load_i32(out + o.NDIM) != ndim):
        return GENERAL
    out_strides = words(load_i64(out + o.STRIDES)) if given else words(load_i64(a + o.STRIDES))
    count, a_batch, b_batch, c_batch = 1, 0, 0, job[j.M] * row
    alike, merged = a_ndim == b_ndim and axes == a_ndim - 2, True
    for axis in range(axes):
        a_size, a_stride = _batch_axis(a, a_ndim, axis)
        b_size, b_stride = _batch_axis(b, b_ndim, axis)
        if a_size != b_size and a_size != 1 and b_size != 1:
            return GENERAL
        alike = alike and a_size == b_size
        size = b_size if a_size == 1 else a_size
        at = axes - 1 - axis
        job[OUT_SHAPE + at] = size
        if size == 1:
            continue
        c_stride = out_strides[at] if given else count * job[j.M] * row
        if count == 1:
            a_batch, b_batch, c_batch = a_stride, b_stride, c_stride
        merged = merged and a_stride == a_batch * count and b_stride == b_batch * count and c_stride == c_batch * count
        count *= size
    if a_ndim > 1:
        job[OUT_SHAPE + axes] = job[j.M]
    if b_ndim > 1:
        job[OUT_SHAPE + ndim - 1] = job[j.N]
    job[OUT_NDIM], job[ALIKE] = ndim, alike
    job[j.BATCH], job[j.A_BATCH], job[j.B_BATCH], job[j.C_BATCH], job[j.C_ROW] = count, a_batch, b_batch, c_batch, row
    if count * job[j.M] * job[j.N] * job[j.K] == 0:
        return GENERAL
    return TAKEN if merged else ENGINE


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
def _read_out(out, job, item):  # type: ignore[no-untyped-def]
    """Fill in what a given array of the right dtype and number of dimensions decides: whether it can be written directly."""
    if load_i32(out + o.FLAGS) & o.WRITEABLE == 0:
        return False
    ndim, m, n, k = job[OUT_NDIM], job[j.M], job[j.N], job[j.K]
    shape, strides = words(load_i64(out + o.SHAPE)), words(load_i64(out + o.STRIDES))
    for axis in range(ndim):
        if shape[axis] != job[OUT_SHAPE + axis]:
            return False
    columns = min(job[B_NDIM] - 1, 1)
    if columns > 0 and strides[ndim - 1] != item and n > 1:
        return False
    if job[A_NDIM] > 1 and m > 1:  # the stride of an axis of one may be anything
        job[j.C_ROW] = strides[ndim - 1 - columns]
    row = job[j.C_ROW]
    if (row < n * item and m > 1) or (job[j.C_BATCH] < m * row and job[j.BATCH] > 1):
        return False
    job[j.C] = load_i64(out + o.DATA)
    return _apart(job, job[j.A], job[j.A_BATCH], m, job[j.A_ROW], k, job[j.A_K], item) and _apart(
        job, job[j.B], job[j.B_BATCH], k, job[j.B_K], n, job[B_N], item
    )


@inner
def _new(context, block):  # type: ignore[no-untyped-def]
    """A new array for the result, 0 if there is no memory for it."""
    job = words(block)
    shape = block + 8 * OUT_SHAPE
    out = call_c(context[NEW_ARRAY], (context[NDARRAY], job[OUT_NDIM], shape, job[NUMBER], 0, 0, 0, 0, 0))
    if out != 0:
        job[j.C] = load_i64(out + o.DATA)
    return out


@inner
def _runs_here(job, item, lay):  # type: ignore[no-untyped-def]
    """Whether the product needs no packing and no column in one piece, is not too long, and finds its loops in the table: those
    for laying B out and for half a product are there once the engine has used them."""
    m, n, k, b_bytes = job[j.M], job[j.N], job[j.K], job[j.K] * job[j.N] * item
    if job[j.BATCH] * m * n * k > j.LONG_WORK or not j.in_place(m, b_bytes):
        return False
    if _symmetric(job) and (load_i64(job[j.TABLE] + 8 * MIRROR) == 0 or b_bytes > j.IN_PLACE_BYTES):
        return False
    if n == 1 and job[j.BATCH] == 1:
        return k <= 64 or (job[j.A_K] == item and job[j.B_K] == item)
    if not lay:
        return True
    # rows are laid out once, where several rows of A use them
    ready = load_i64(job[j.TABLE] + 8 * ROWS) != 0 and (job[j.BATCH] == 1 or job[j.B_BATCH] == 0)
    return ready and b_bytes <= j.IN_PLACE_BYTES and (m > 8 or k * n < 4096)


@inner
def _symmetric(job):  # type: ignore[no-untyped-def]
    """Whether B is A's transpose, in the same memory, and large enough for half the product to be quicker."""
    same = job[j.A] == job[j.B] and job[j.A_ROW] == job[B_N] and job[j.A_K] == job[j.B_K] and job[j.M] == job[j.N]
    return same and job[j.M] >= SYMMETRIC_ROWS and job[j.BATCH] == 1


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
    """A new reference to the product or to an answer; 0 if an exception is set."""
    block = on_stack((0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
    job = words(block)
    answer, item, lay = _read_operands(context, a, b, job), 0, False
    if answer == TAKEN:
        item = load_i64(job[j.TABLE] + 8 * t.ITEM)
        lay = job[B_N] != item and job[j.N] > 1
        answer = _read_batch(context, a, b, out, job, item)
    if answer == TAKEN or answer == ENGINE:
        serial = ALONE_WORK if load_i64(context[ALONE]) != 0 else j.SERIAL_WORK
        if out != context[NONE] and not _read_out(out, job, item):
            answer = GENERAL
        elif answer == ENGINE or not _runs_here(job, item, lay):
            answer = ENGINE if job[ALIKE] != 0 else GENERAL  # the engine takes stacks of matrices alike
        elif threads == 0 and job[j.BATCH] * job[j.M] * job[j.N] * job[j.K] > serial:
            answer = LARGE
    if answer != TAKEN:
        out = context[ANSWERS + answer]
    elif out == context[NONE]:
        out = _new(context, block)
        if out == 0 or not _run(context, block, item, lay, pool_address, threads):
            return 0
        return call_c(context[AS_SCALAR], (out,)) if job[OUT_NDIM] == 0 else out
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
    words = [id(ndarray), id(None), o.new_array(), o.as_scalar(), *map(o.c_function, _FUNCTIONS)]
    words += [ctypes.addressof(alone), 0, *map(id, _ANSWERS)]
    for dtype in _TYPES:
        words += [id(dtype), dtype.num, 0]
    return Context(*words)


# The very objects whose addresses the compiled function answers with.
_ANSWERS = (LARGE, ENGINE, GENERAL, UNLOADED)
_native_pool = pool_kind() == "futex"


@cache
def entry() -> Callable[..., Any]:
    """:func:`direct` for Python: the product, or an integer for who has to compute it."""
    if not o.readable():
        return _declined
    context = _known()
    view = (ctypes.c_int64 * (ctypes.sizeof(context) // 8)).from_buffer(context)
    return o.builtin("direct", direct.address, as_array(view))


def first_entry(a: Any) -> Callable[..., Any]:
    """:func:`entry` for a process whose first product has this left operand: LLVM compiles the kernels for it, should they not be
    on disk, while numba compiles :func:`direct` and the loops."""
    if type(a) is ndarray and a.dtype in _TYPES:
        with ThreadPoolExecutor(1) as beside:
            beside.submit(t.kernel_table, a.dtype)  # what fails here fails again, and is raised, in `load`
            entry()
            load(a.dtype)
    return entry()


def load(dtype: np.dtype[Any]) -> None:
    """Compile or load the kernels of a dtype for the direct path."""
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
        # held until it returns: a fork may take the pool out of use meanwhile
        held = _pool(threads) if threads > 1 else None
        answer = entry()(a, b, out, held.address if held else 0, threads)
    if type(answer) is not int:
        return answer
    if answer == GENERAL:
        return NotImplemented
    if out is None:
        out = empty((*a.shape[:-1], b.shape[-1]), a.dtype)
    _engine()(a, b, out)
    return out


def _pool(threads: int) -> Any:
    """The pool, ready for so many threads, and what runs a job on it known to :func:`direct`."""
    if not _known().execute:
        _known().execute = pool.execute_words.address
    return pool.ready(threads - 1)


@cache
def _engine() -> Callable[[ndarray, ndarray, ndarray], object]:
    """The engine, imported when a product first needs it."""
    engine = module(".engine", __package__)
    return lambda a, b, out: engine.run(a, b, out) if a.ndim > 2 else engine.run_again(a, b, out)
