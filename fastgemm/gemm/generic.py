"""The plain path: integers and bool, exact modulo 2**bits, in loops the compiler vectorises by itself.

What numpy answers for integers is arithmetic modulo the width of the result, which does not care for signs: int32 and uint32 share
a loop over the same bits. bool is "or" over "and".  Order of summation does not matter either, so blocks are chosen for caches
alone: two rows of C in registers' reach, four rows of B a step, a strip of `_STRIP` bytes of B's rows by `_DEPTH` of them in L2.

Measured at 1000 x 1000 x 1000 on one Zen 4 thread: int8 96, int16 97, int32 50, int64 26 GOP/s (numpy: 1 to 3).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import warn_slow
from ..jit import njit

__all__ = ["run"]

Array = np.ndarray[Any, np.dtype[Any]]

_STRIP = 2048  # bytes of a row of B (and of C) worked on at once: two rows of C and four of B are 12 KiB, in L1
_DEPTH = 256  # rows of B in a strip: 512 KiB, in L2 while all rows of A pass
_FEW = 16  # columns of C up to which rows of A are read once, against columns of B
_LANES = 256  # bytes of partial sums of a dot product: a few vectors
_CHUNK, _FULL = 64, 32  # elements of K after which products of bools look whether more could change anything
_QUIET_WORK = 64**3  # multiplications below which a slow path is not worth a warning

_BITS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
_FIRST = np.zeros(1, np.int64)
_FIRST.flags.writeable = False


@njit
def _two_rows(x, y, b, c, d):
    """c += x @ b, d += y @ b, where b is a tuple (B, first row, first column)."""
    right, p, q = b
    stop = q + c.shape[0]
    whole = x.shape[0] - x.shape[0] % 4
    for k in range(0, whole, 4):
        b0, b1, b2, b3 = (
            right[p + k, q:stop],
            right[p + k + 1, q:stop],
            right[p + k + 2, q:stop],
            right[p + k + 3, q:stop],
        )
        x0, x1, x2, x3 = x[k], x[k + 1], x[k + 2], x[k + 3]
        y0, y1, y2, y3 = y[k], y[k + 1], y[k + 2], y[k + 3]
        for j in range(c.shape[0]):
            c[j] = c[j] + x0 * b0[j] + x1 * b1[j] + x2 * b2[j] + x3 * b3[j]
            d[j] = d[j] + y0 * b0[j] + y1 * b1[j] + y2 * b2[j] + y3 * b3[j]
    for k in range(whole, x.shape[0]):
        b0 = right[p + k, q:stop]
        for j in range(c.shape[0]):
            c[j] = c[j] + x[k] * b0[j]
            d[j] = d[j] + y[k] * b0[j]


@njit
def _multiply(a, b, c, which_a, which_b, strip, depth):
    """c[s] = a[which_a[s]] @ b[which_b[s]] for unsigned integers of one width, all C-contiguous."""
    m, n, k = c.shape[1], c.shape[2], a.shape[2]
    spare = np.zeros(min(n, strip) if m % 2 else 0, c.dtype)
    for s in range(c.shape[0]):
        c[s] = 0
        left, right = a[which_a[s]], b[which_b[s]]
        for j in range(0, n, strip):
            for p in range(0, k, depth):
                block = (right, p, j)
                for i in range(0, m - 1, 2):
                    target, below = c[s, i, j : j + strip], c[s, i + 1, j : j + strip]
                    _two_rows(left[i, p : p + depth], left[i + 1, p : p + depth], block, target, below)
                if m % 2:  # the last row, and itself once more into a spare one: one loop less to compile
                    row = left[m - 1, p : p + depth]
                    target = c[s, m - 1, j : j + strip]
                    _two_rows(row, row, block, target, spare[: target.shape[0]])


@njit
def _dots(a, b, c, which_a, which_b, lanes):
    """As `_multiply` for few columns: b holds columns as rows, each dot product is kept in `lanes` partial sums."""
    width = lanes.shape[0]
    for s in range(c.shape[0]):
        left, right = a[which_a[s]], b[which_b[s]]
        k = left.shape[1]
        for i in range(c.shape[1]):
            for j in range(c.shape[2]):
                x, y = left[i], right[j]
                lanes[:] = 0
                for p in range(
                    0, k, width
                ):  # slices: an index that is a sum is checked for being negative, and not vectorised
                    u, v = x[p : p + width], y[p : p + width]
                    for q in range(u.shape[0]):
                        lanes[q] = lanes[q] + u[q] * v[q]
                total = lanes[0]
                for q in range(1, width):
                    total = total + lanes[q]
                c[s, i, j] = total


@njit
def _multiply_bool(a, b, c, which_a, which_b):
    """As `_multiply` for bytes that are true or false; rows of B under a false element of A are skipped, full rows of C left."""
    for s in range(c.shape[0]):
        left, right = a[which_a[s]], b[which_b[s]]
        for i in range(c.shape[1]):
            row = c[s, i]
            row[:] = 0
            for k in range(left.shape[1]):
                if left[i, k] != 0:
                    other = right[k]
                    for j in range(row.shape[0]):
                        row[j] |= other[j]
                if k % _FULL == _FULL - 1:
                    least = 1
                    for j in range(row.shape[0]):
                        least = min(least, row[j])
                    if least != 0:
                        break
            for j in range(row.shape[0]):
                row[j] = 1 if row[j] != 0 else 0


@njit
def _any_bool(a, b, c, which_a, which_b):
    """As `_dots` for bytes that are true or false."""
    for s in range(c.shape[0]):
        left, right = a[which_a[s]], b[which_b[s]]
        k = left.shape[1]
        for i in range(c.shape[1]):
            for j in range(c.shape[2]):
                found = 0
                for first in range(0, k, _CHUNK):
                    x, y = left[i, first : first + _CHUNK], right[j, first : first + _CHUNK]
                    for p in range(x.shape[0]):
                        found |= (x[p] != 0) & (y[p] != 0)
                    if found:
                        break
                c[s, i, j] = found


def run(a: Array, b: Array, out: Array) -> None:
    """out = a @ b for stacks (\\*batch, M, K), (\\*batch, K, N), (\\*batch, M, N) of one integer dtype or bool, no extent 0.

    Operands may have any strides, byte order and alignment; what is not C-contiguous is copied once, a matrix that is repeated
    by stride 0 once in all.  Warns once per dtype (`FastgemmPerformanceWarning`).
    """
    dtype = out.dtype
    if out.size * a.shape[-1] >= _QUIET_WORK:
        _warn(dtype)
    bits = _BITS[dtype.itemsize]
    few = out.shape[-1] <= _FEW and a.shape[-1] >= _LANES // dtype.itemsize
    flat_a, which_a = _distinct(a, dtype, bits)
    flat_b, which_b = _distinct(b.swapaxes(-1, -2) if few else b, dtype, bits)
    direct = out.flags.c_contiguous and out.flags.aligned
    target = out if direct else np.empty(out.shape, dtype)
    flat = target.view(bits).reshape(-1, *out.shape[-2:])
    if dtype.kind == "b":
        (_any_bool if few else _multiply_bool)(flat_a, flat_b, flat, which_a, which_b)
    elif few:
        _dots(flat_a, flat_b, flat, which_a, which_b, np.empty(_LANES // dtype.itemsize, bits))
    else:
        _multiply(flat_a, flat_b, flat, which_a, which_b, _STRIP // dtype.itemsize, _DEPTH)
    if not direct:
        out[...] = target


def _warn(dtype: np.dtype[Any]) -> None:
    modulo = "" if dtype.kind == "b" else f" modulo 2**{8 * dtype.itemsize}"
    warn_slow(
        dtype.name,
        f"matmul of {dtype.name} runs plain vectorised loops on one thread: there is no packed kernel for this dtype. The result "
        f"is exact{modulo}; where values below 2**24 (2**53) are enough, float32 (float64) operands are faster",
    )


def _distinct(stack: Array, dtype: np.dtype[Any], bits: np.dtype[Any]) -> tuple[Array, Array]:
    """The matrices of a stack that differ by address, as native C-contiguous `bits`, and which of them each batch has.

    Both come read-only, whatever the caller's were, since read-only and writeable arrays are two types to the compiler.
    """
    which = _FIRST
    if stack.ndim > 2:
        batch = stack.shape[:-2]
        stack = stack[tuple(slice(1) if stride == 0 else slice(None) for stride in stack.strides[: len(batch)])]
        numbers = np.arange(math.prod(stack.shape[:-2]), dtype=np.int64).reshape(stack.shape[:-2])
        which = np.broadcast_to(numbers, batch).ravel()
        which.flags.writeable = False
    if not (stack.flags.c_contiguous and stack.flags.aligned and stack.dtype.isnative):
        stack = np.require(stack, dtype, ["C", "A"])
    flat = stack.view(bits).reshape(-1, *stack.shape[-2:])
    flat.flags.writeable = False
    return flat, which
