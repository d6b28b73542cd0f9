"""One product whose B is read where it lies: the work a thread does on its share of it, and how the shares are cut.

No tile is packed and no op stream is planned: the whole K range is one K tile, B is a view.  A job is a block of 64-bit words
(below) at an address; a share is a range of rows, of columns, or of batches.  :mod:`fastgemm.gemm.direct` fills it for single
calls, :mod:`fastgemm.gemm.engine` for everything larger.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import config, types

from ..jit import cfunc
from ..vectors import inner
from . import table as t
from .choose import slab
from .emit_call import call_kernel, load_i64, on_stack
from .emit_sync import call
from .multiply import COPY, IN_PLACE, LOOPS, PACK, PACKED, ROWS

__all__ = [
    "BY_BATCH",
    "BY_COLUMNS",
    "BY_ROWS",
    "BY_TRIANGLE",
    "JOB_WORDS",
    "in_place",
    "in_place_slab",
    "loaded",
    "run_share",
    "shares_of",
    "split",
]

TABLE, A, A_ROW, A_K, B, B_K, C, C_ROW, M, N, K, KC, BATCH, A_BATCH, B_BATCH, C_BATCH, CUT, STEP, STRICT = range(19)
JOB_WORDS = 19
# Shares are rows, columns, members of the stack, or rows up to the diagonal: the lower half of a symmetric product.
BY_ROWS, BY_COLUMNS, BY_BATCH, BY_TRIANGLE = range(4)

# Bytes of C that stay in the L1 cache while rows of B stream past, and of a row of B of which eight stay in the L2 cache.
_ROW_BYTES = 16384
_WIDE_BYTES = 32768
_NEAR_BYTES = 2 << 20
# Of a stack of small products so much is walked at once, one group of rows after the other: more where the stack is near or takes
# few groups (a far one is then read in pieces too short for the prefetcher: 32 x 32 float64 33 GFLOP/s instead of 47).
_STACK_BYTES, _WIDE_STACK_BYTES, _FEW_GROUPS, _NEAR_STACK_BYTES = 32768, 131072, 3, 1 << 20
# Up to so many rows a B beyond CACHED_BYTES is streamed; more are better multiplied from packed slabs.
STREAMED_ROWS = 4
# B is read where it lies up to IN_PLACE_BYTES (96-99 % of the peak at 192..512 float32; packing wins beyond some 1.3 times the L2
# cache of 1 MiB); with few rows of A, which would not repay packing, as long as the last-level cache holds it.
IN_PLACE_BYTES = 1344 * 1024
FEW_ROWS, CACHED_BYTES = 64, 8 << 20
# Up to so many multiplications a product stays on the caller's thread; above the second number it is cut so that Ctrl-C is noticed.
SERIAL_WORK, LONG_WORK = 60**3, 2_000_000_000


@inner
def in_place(m, b_bytes):  # type: ignore[no-untyped-def]
    """Whether B is better read in place than packed."""
    return b_bytes <= IN_PLACE_BYTES or m <= STREAMED_ROWS or (m <= FEW_ROWS and b_bytes <= CACHED_BYTES)


@inner
def in_place_slab(k, b_bytes):  # type: ignore[no-untyped-def]
    """K extent of one pass over a B in place: what of a strip of columns stays in the near caches, whose sets a power-of-two row
    stride thins out (32 x 1024 x 1024: 1.55 times numpy with 256, 1.32 with all of K)."""
    if b_bytes > IN_PLACE_BYTES:
        return min(k, 256)
    return 512 if k > 768 else k


@inner
def _row_times_matrix(table, a, a_k, b, b_k, c, n, k):  # type: ignore[no-untyped-def]
    """One row of A: eight rows of B at a time are scaled into C, so that B streams through once, in order."""
    item = load_i64(table + 8 * t.ITEM)
    block = _ROW_BYTES // item
    for first in range(0, n, block):
        cols = min(block, n - first)
        done = 0
        most = 2 if b_k % 4096 == 0 and k * n * item <= CACHED_BYTES else 3  # eight rows a page apart share an L1 set
        for log in range(most, -1, -1):
            rows = 1 << log
            count = (k - done) // rows
            if count > 0:
                call_kernel(
                    load_i64(table + 8 * (t.AXPY + log)), a + done * a_k, b + done * b_k + first * item, c + first * item,
                    k, 0, a_k, b_k, 0, count, rows * a_k, rows * b_k, 0, min(done, 1), cols,
                )  # fmt: skip
                done += count * rows


@inner
def _few_rows_times_matrix(table, a, a_row, a_k, b, b_k, c, c_row, m, n, k):  # type: ignore[no-untyped-def]
    """A few rows of A times a B that no cache holds: eight rows of B at a time are scaled into every row of C, so that B comes
    from memory once, in long streams (4 x 4096 x 4096 float64: 1.5 times numpy, strips of columns 0.7)."""
    item = load_i64(table + 8 * t.ITEM)
    block = _WIDE_BYTES // item
    for column in range(0, n, block):
        cols = min(block, n - column)
        done = 0
        while done < k:
            log = 3
            while 1 << log > k - done:
                log -= 1
            kernel = load_i64(table + 8 * (t.AXPY + log))
            at = b + done * b_k + column * item
            for i in range(m):
                call_kernel(
                    kernel, a + i * a_row + done * a_k, at, c + i * c_row + column * item, k, 0, a_k, b_k, 0, 1, 0, 0, 0,
                    min(done, 1), cols,
                )  # fmt: skip
            done += 1 << log


@inner
def _matrix_times_column(table, a, a_row, b, c, c_row, m, k):  # type: ignore[no-untyped-def]
    """One column of B: dot products of eight (four, two, one) rows of A at a time; x is read once for them.

    Four where A stays near (1.2 to 1.5 times numpy instead of 0.9) or its rows share a set of the L1 cache.
    """
    done = 0
    most = 2 if a_row % 4096 == 0 or m * a_row <= _NEAR_BYTES else 3
    for log in range(most, -1, -1):
        rows = 1 << log
        while m - done >= rows:
            call_kernel(
                load_i64(table + 8 * (t.DOT + log)), a + done * a_row, b, c + done * c_row, k, a_row, 0, 0, c_row,
                1, 0, 0, 0, 0, 0,
            )  # fmt: skip
            done += rows


@inner
def _product(table, a, a_row, a_k, b, b_k, c, c_row, m, n, k, kc, strict):  # type: ignore[no-untyped-def]
    """One product by the loops that suit its shape; ``strict``: only those whose bits do not depend on the shape."""
    item = load_i64(table + 8 * t.ITEM)
    vectors = load_i64(table + 8 * t.AXPY) != 0 and strict == 0
    if vectors and m == 1 and n > 1:
        _row_times_matrix(table, a, a_k, b, b_k, c, n, k)
    elif vectors and m <= STREAMED_ROWS and n > 64 and n * k * item > CACHED_BYTES:
        _few_rows_times_matrix(table, a, a_row, a_k, b, b_k, c, c_row, m, n, k)
    elif vectors and n == 1 and a_k == item and b_k == item:
        _matrix_times_column(table, a, a_row, b, c, c_row, m, k)
    else:
        for first in range(0, k, kc):
            some = min(kc, k - first)
            block = on_stack(
                (table, a + first * a_k, a_row, a_k, b + first * b_k, b_k, c, c_row, m, n, some, min(first, 1))
            )
            call(load_i64(table + 8 * IN_PLACE), block, 0, 0)


@inner
def _one_strip(table, m, n):  # type: ignore[no-untyped-def]
    """(kernels by rows, lanes of the mask, rows a kernel) of the strip that covers all n columns; (0, 0, 1) if none does."""
    lanes = load_i64(table + 8 * t.LANES)
    half = (lanes // 2) * load_i64(table + 8 * t.HAS_HALF)
    vecs = -(-n // lanes)
    if vecs > load_i64(table + 8 * t.WIDE_VECS):
        return 0, 0, 1
    edge = n - (vecs - 1) * lanes
    width = 1 if vecs == 1 and edge <= half else 0
    masked = 1 if width == 1 or edge < lanes else 0
    tallest = load_i64(table + 8 * (t.HEIGHT + (width * 5 + vecs) * 17 + 16))
    kernels = table + 8 * (t.KERNEL + ((width * 5 + vecs) * 2 + masked) * 17)
    return kernels, edge * load_i64(table + 8 * t.COL_LANES), -(-m // -(-m // tallest))


@inner
def _stack(job, a, b, c, m, n, first, last):  # type: ignore[no-untyped-def]
    """Products first ... last-1 of a stack.

    Small ones are few kernel calls for the whole stack, or for as much of it as the L1 cache holds: the kernel's tile loop walks
    the stack, one group of rows at a time.
    """
    table = load_i64(job + 8 * TABLE)
    item = load_i64(table + 8 * t.ITEM)
    a_row, a_k, b_k, c_row = (
        load_i64(job + 8 * A_ROW), load_i64(job + 8 * A_K), load_i64(job + 8 * B_K), load_i64(job + 8 * C_ROW),
    )  # fmt: skip
    a_batch, b_batch, c_batch = load_i64(job + 8 * A_BATCH), load_i64(job + 8 * B_BATCH), load_i64(job + 8 * C_BATCH)
    k, kc, strict = load_i64(job + 8 * K), load_i64(job + 8 * KC), load_i64(job + 8 * STRICT)
    a += first * a_batch
    b += first * b_batch
    c += first * c_batch
    kernel, cols, height = _one_strip(table, m, n)
    member = (m * k + k * n + m * n) * item
    wide = m <= _FEW_GROUPS * height or (last - first) * member <= _NEAR_STACK_BYTES
    together = max(1, (_WIDE_STACK_BYTES if wide else _STACK_BYTES) // member)
    if kernel != 0 and k <= kc and n > 1 and (m <= height or together > 3) and (last - first > 1 or m > 1):
        if m <= height:
            together = last - first
        for at in range(first, last, together):
            count = min(together, last - at)
            for row in range(0, m, height):
                rows = min(height, m - row)
                call_kernel(
                    load_i64(kernel + 8 * rows), a + row * a_row, b, c + row * c_row, k, a_row, a_k, b_k, c_row, count,
                    a_batch, b_batch, c_batch, 0, cols,
                )  # fmt: skip
            a += count * a_batch
            b += count * b_batch
            c += count * c_batch
        return
    for _ in range(first, last):
        _product(table, a, a_row, a_k, b, b_k, c, c_row, m, n, k, kc, strict)
        a += a_batch
        b += b_batch
        c += c_batch


@cfunc(types.void(types.int64, types.int64, types.int64))
def run_share(job, share, thread):  # type: ignore[no-untyped-def]
    """Share number ``share`` of the job (the signature is the thread pool's)."""
    a, b, c = load_i64(job + 8 * A), load_i64(job + 8 * B), load_i64(job + 8 * C)
    m, n, batch = load_i64(job + 8 * M), load_i64(job + 8 * N), load_i64(job + 8 * BATCH)
    cut, step = load_i64(job + 8 * CUT), load_i64(job + 8 * STEP)
    item = load_i64(load_i64(job + 8 * TABLE) + 8 * t.ITEM)
    begin = share * step
    first, last = 0, batch
    if cut == BY_BATCH:
        first, last = begin, min(batch, begin + step)
    elif cut != BY_COLUMNS:
        if cut == BY_TRIANGLE:
            n = min(n, begin + step)
        a += begin * load_i64(job + 8 * A_ROW)
        c += begin * load_i64(job + 8 * C_ROW)
        m = min(m - begin, step)
    else:
        b += begin * item
        c += begin * item
        n = min(n - begin, step)
    _stack(job, a, b, c, m, n, first, last)


@inner
def split(m, n, k, batch, threads):  # type: ignore[no-untyped-def]
    """How to cut a job for so many threads: (cut, step, shares).

    Four shares a thread, so that a core taken away by somebody else costs a share and not half the job (1024: 11.5 against
    18.3 ms with two halves); shares of rows are whole groups of eight, of columns whole 64s.
    """
    if threads <= 1:
        return BY_ROWS, m, 1
    shares = 4 * threads
    if batch >= 2 * threads:
        step = max(1, batch // shares)
        return BY_BATCH, step, -(-batch // step)
    if m >= 16 * threads:
        step = max(16, (-(-m // shares) + 7) // 8 * 8)
        return BY_ROWS, step, -(-m // step)
    step = max(64, (-(-n // shares) + 63) // 64 * 64)
    return BY_COLUMNS, step, -(-n // step)


def shares_of(
    problem: tuple[int, int, int], batch: int, item: int, real: int, threads: int, strict: bool
) -> tuple[int, int, int, int]:
    """How a product with B in place is cut: (axis, extent of a share on it, shares, K extent of a pass).

    The axis is one of BY_ROWS, BY_COLUMNS, BY_BATCH; ``item`` and ``real`` are the bytes of an element and of its real part.
    """
    m, n, k = problem
    work = m * n * k * batch
    cut, step, shares = split.py_func(m, n, k, batch, threads if work > SERIAL_WORK else 1)
    if work > LONG_WORK:  # shares of some tens of milliseconds, for Ctrl-C
        parts = work // (LONG_WORK // 2) + 1
        if batch >= parts:
            cut, step = BY_BATCH, -(-batch // parts)
        elif m >= 64:
            cut, step = BY_ROWS, max(16, -(-m // parts // 8) * 8)
        shares = -(-(m, n, batch)[cut] // step)
    kc = slab(m, k, n, item, real, 0, True) if strict else int(in_place_slab.py_func(k, k * n * item))
    return cut, step, shares, kc


_loaded: dict[tuple[np.dtype[Any], str], int] = {}
_complete: set[int] = set()


def loaded(dtype: np.dtype[Any], isa: str | None = None, *, complete: bool = True) -> int:
    """The address of a kernel table with its loops: all of them, or what a B in place needs if not ``complete``.

    On a cold start LLVM compiles the kernels while numba, mostly in Python, compiles the loops around them.
    """
    key = (dtype, isa or t.host_isa())
    if key not in _loaded:
        if config.DISABLE_JIT:
            raise RuntimeError(
                f"a product of {dtype} runs compiled loops, and NUMBA_DISABLE_JIT turns Numba's compiler off; unset it"
            )
        with ThreadPoolExecutor(1) as beside:
            kernels = beside.submit(t.kernel_table, dtype, isa)
            loops = {t.SHARE: run_share.address, IN_PLACE: LOOPS[IN_PLACE].address}
            table = kernels.result()
        for word, address in loops.items():
            table.vector[word] = address
        _loaded[key] = table.address
    address = _loaded[key]
    if complete and address not in _complete:
        vector = t.kernel_table(dtype, isa).vector
        for word in (PACKED, PACK, COPY, ROWS):
            vector[word] = LOOPS[word].address
        _complete.add(address)
    return address
