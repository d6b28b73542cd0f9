"""Which kernels, loops, jobs and runs a product took: kernel tables whose every entry counts its calls."""

from __future__ import annotations

import ctypes
from collections import Counter

import numpy as np

from fastgemm.gemm import direct, engine, job, multiply
from fastgemm.gemm import table as t

_LOOP_NAMES = {
    multiply.IN_PLACE: "in place",
    multiply.PACKED: "packed",
    multiply.PACK: "pack",
    multiply.COPY: "copy",
    multiply.ROWS: "lay rows",
}


def _entries(vector):
    """(offset, name, number of arguments) of everything in a table that is called."""
    for offset, name in _LOOP_NAMES.items():
        yield offset, name, 3
    for offset in range(t.PACK_ROWS, t.PACK_ROWS + 4):
        yield offset, "pack rows kernel", 7
    yield t.PACK_SQUARE, "square kernel", 7
    for log in range(4):
        yield t.DOT + log, "dot kernel", 14
        yield t.AXPY + log, "axpy kernel", 14
    for offset in range(t.KERNEL, t.TABLE_SIZE):
        yield offset, "kernel", 14


class SpiedTable:
    """A copy of a kernel table that counts what is called through it."""

    def __init__(self, dtype):
        job.loaded(dtype)
        self.calls: Counter[str] = Counter()
        self.vector = t.kernel_table(dtype).vector.copy()
        self._keep = []
        for offset, name, arguments in _entries(self.vector):
            if self.vector[offset]:
                self.vector[offset] = self._counted(int(self.vector[offset]), name, arguments)

    @property
    def address(self):
        return int(self.vector.ctypes.data)

    def _counted(self, address, name, arguments):
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arguments)
        real = kind(address)

        def counted(*values):
            self.calls[name] += 1
            real(*values)

        self._keep.append(kind(counted))
        return ctypes.cast(self._keep[-1], ctypes.c_void_p).value


_tables: dict[np.dtype, SpiedTable] = {}


class Spy:
    """What products did since :meth:`watch`: calls by name, jobs (their words, shares), runs (layout, lanes, words)."""

    def __init__(self, monkeypatch):
        self._patch = monkeypatch
        self.calls: Counter[str] = Counter()
        self.jobs: list[tuple[np.ndarray, int]] = []
        self.runs: list[tuple[engine._Layout, int, np.ndarray]] = []
        real_run, real_place = engine.pool.run, engine._Layout.place

        def run(work, arguments, chunks, threads):
            if work == job.run_share.address:
                words = np.ctypeslib.as_array((ctypes.c_int64 * job.JOB_WORDS).from_address(arguments)).copy()
                self.jobs.append((words, chunks))
            return real_run(work, arguments, chunks, threads)

        def place(layout, template, memory, lanes):
            words = real_place(layout, template, memory, lanes)
            self.runs.append((layout, lanes, words))
            return words

        monkeypatch.setattr(engine.pool, "run", run)
        monkeypatch.setattr(engine, "_runs", {})  # they hold the addresses of kernel tables
        monkeypatch.setattr(engine._Layout, "place", place)

    def watch(self, dtype):
        """Products of this element type are counted from now on, kernel by kernel (slowly: each call goes through Python)."""
        dtype = np.dtype(dtype)
        if dtype not in _tables:
            _tables[dtype] = SpiedTable(dtype)
        table = _tables[dtype]
        self._patch.setattr(job, "loaded", lambda *arguments, **options: table.address)
        self._patch.setattr(direct._known(), f"table{direct._TYPES.index(dtype)}", table.address)
        table.calls.clear()
        self.calls = table.calls
        return self.calls
