"""Fill the upper triangle of a symmetric product from the lower one, in squares transposed in registers."""

from __future__ import annotations

import ctypes

import numpy as np

from . import pool
from .multiply import LOOPS, MIRROR, MIRRORED_ROWS

__all__ = ["mirror"]


def mirror(table: int, c: int, c_row: int, n: int, threads: int) -> None:
    """Complete the symmetric (n x n) matrix at address ``c`` (row-major) whose lower triangle, diagonal included, is computed."""
    # from now on the direct path can mirror, too
    ctypes.c_int64.from_address(table + 8 * MIRROR).value = LOOPS[MIRROR].address
    words = np.array([table, c, c_row, n], np.int64)
    pool.run(LOOPS[MIRROR].address, words.ctypes.data, -(-n // MIRRORED_ROWS), threads)
