"""Fill the upper triangle of a symmetric product from the lower one, in squares transposed in registers."""

from __future__ import annotations

import numpy as np
from numba import types

from ..jit import cfunc
from . import pool
from . import table as t
from .emit_call import call_pack, load_i64, on_stack
from .emit_sync import call
from .multiply import COPY

__all__ = ["mirror"]

# Rows of squares of one share.
_ROWS = 128


@cfunc(types.void(types.int64, types.int64, types.int64))
def mirror_rows(job, share, thread):  # type: ignore[no-untyped-def]
    """C[j, i] = C[i, j] for the rows i of a share and all columns j < i; job = (table, c, c_row, n)."""
    table, c, c_row, n = load_i64(job), load_i64(job + 8), load_i64(job + 16), load_i64(job + 24)
    item, lanes, square = (
        load_i64(table + 8 * t.ITEM),
        load_i64(table + 8 * t.LANES),
        load_i64(table + 8 * t.PACK_SQUARE),
    )
    for i in range(share * _ROWS, min(n, (share + 1) * _ROWS), lanes):
        rows = min(lanes, n - i)
        for j in range(0, i, lanes):
            lower, upper = c + i * c_row + j * item, c + j * c_row + i * item
            if square != 0 and rows == lanes:
                call_pack(square, lower, c_row, upper, c_row, 0, 0, lanes)
            else:
                block = on_stack((table, lower, c_row, item, 0, upper, item, c_row, rows, lanes))
                call(load_i64(table + 8 * COPY), block, 0, 0)
        for k in range(rows):
            at = c + (i + k) * c_row + i * item
            block = on_stack((table, at, c_row, item, 0, c + i * c_row + (i + k) * item, item, c_row, 1, k))
            call(load_i64(table + 8 * COPY), block, 0, 0)


def mirror(table: int, c: int, c_row: int, n: int, threads: int) -> None:
    """Complete the symmetric (n x n) matrix at address ``c`` (row-major) whose lower triangle, diagonal included, is computed."""
    words = np.array([table, c, c_row, n], np.int64)
    pool.run(mirror_rows.address, words.ctypes.data, -(-n // _ROWS), threads)
