"""The peak of the multiply-add units, measured: the table's own register kernel on operands that never leave the L1 cache.

It is the number a share of the peak is a share of.  A probe much shorter than the work beside it reads 5-10 % too high (the
clock has not settled yet), so the caller says how long it should take.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from .gemm import table as kt
from .gemm.emit_call import call_kernel
from .jit import njit

__all__ = ["peak_probe"]

_DEPTH = 4096  # K of one kernel call: entry, exit and the store of the tile are below 0.2 % of it
_LINE = 64


@njit
def _run(kernel, a, b, c, k, row, count):  # type: ignore[no-untyped-def]
    """``count`` tiles of depth k, every operand read at the same few lines again and again."""
    call_kernel(kernel, a, b, c, k, row, 0, 0, row, count, 0, 0, 0, 0, 0)


class _Probe:
    """One thread's probe: its operands, and the rate it saw last (to choose the number of tiles)."""

    def __init__(self, table: kt.KernelTable) -> None:
        vector, vecs = table.vector, table.isa.panel_vecs
        rows = int(vector[kt.PANEL_ROWS])
        lanes = int(vector[kt.LANES])
        self._kernel = int(vector[kt.KERNEL + (vecs * 2) * 17 + rows])
        self._row = max(_LINE, lanes * vecs * int(vector[kt.ITEM]))
        # float64 zeros are zeros of every element type; 0 * 0 + 0 costs what any other product does
        self._buffers = [np.zeros(rows * self._row // 8 + 64) for _ in range(3)]
        self._work = (8 if table.element.paired else 2) * rows * vecs * lanes * _DEPTH / 1e9
        self._rate = 0.0

    def run(self, seconds: float) -> float:
        """GFLOP/s over about so many seconds."""
        if self._rate == 0.0:
            self._rate = self._timed(1)
            self._rate = self._timed(20)
        return self._timed(max(1, round(seconds * self._rate / self._work)))

    def _timed(self, count: int) -> float:
        a, b, c = (buffer.ctypes.data for buffer in self._buffers)
        start = time.perf_counter()
        _run(self._kernel, a, b, c, _DEPTH, self._row, count)
        self._rate = count * self._work / (time.perf_counter() - start)
        return self._rate


def peak_probe(dtype: np.dtype, threads: int = 1) -> Callable[[float], float] | None:
    """A function ``probe(seconds) -> GFLOP/s`` for an element type on ``threads`` threads at once.

    None for element types without micro-kernels.  On several threads the rates are added.
    """
    if dtype not in kt.ELEMENTS:
        return None
    probes = [_Probe(kt.kernel_table(dtype)) for _ in range(threads)]
    if threads == 1:
        return probes[0].run

    def together(seconds: float) -> float:
        rates = [0.0] * threads

        def work(index: int) -> None:
            rates[index] = probes[index].run(seconds)

        workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return sum(rates)

    return together
