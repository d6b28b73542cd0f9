"""Products too large, too strided or too particular for the direct path: from checked arrays to a job or a run on the pool.

:func:`run` takes operands the public edge has settled (one element type, equal batch axes, no empty extent, an output that
overlaps nothing).  Two things come out of it: a *job* (B in place, :mod:`fastgemm.gemm.job`), or a *run* of an op stream
(:mod:`fastgemm.gemm.mainloop`) under the policy asked for, ``"auto"`` being :class:`fastgemm.HostPanels`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.ctypeslib import as_array

from .. import layout as L
from .. import stream
from ..options import DEFAULTS, Options
from ..policy import HostPanels
from . import job as j
from . import mainloop as r
from . import pool
from . import table as t
from .choose import schedule
from .direct import SYMMETRIC_ROWS
from .feed import machine_address
from .mirror import mirror
from .multiply import COPY, LOOPS
from .scratch import borrowed
from .threads import get_num_threads, resolve

__all__ = ["run", "run_again"]

Array = np.ndarray[Any, np.dtype[Any]]

# Runs longer than this (in multiplications) come back to Python every BUDGET, where Ctrl-C is noticed.
_LONG_RUN = 5e10
_BUDGET_NS = 200_000_000
_LINE = 64


@dataclass(frozen=True)
class Operands:
    """Addresses and byte strides of one stack of products."""

    a: int
    a_row: int
    a_k: int
    a_batch: int
    a_swap: bool
    b: int
    b_k: int
    b_n: int
    b_batch: int
    b_swap: bool
    c: int
    c_row: int
    c_n: int
    c_batch: int
    m: int
    n: int
    k: int
    batch: int
    swapped: bool = False  # these are the transposes of the caller's B and A

    @classmethod
    def of(cls, a: Array, b: Array, out: Array) -> Operands:
        """Of arrays with one batch axis or none."""
        if out.ndim == 2:
            a, b, out = a[None], b[None], out[None]
        batch, m, n = out.shape
        return cls(
            a.ctypes.data, a.strides[1], a.strides[2], a.strides[0], not a.dtype.isnative,
            b.ctypes.data, b.strides[1], b.strides[2], b.strides[0], not b.dtype.isnative,
            out.ctypes.data, out.strides[1], out.strides[2], out.strides[0], m, n, a.shape[2], batch,
        )  # fmt: skip

    def transposed(self) -> Operands:
        """The same products as Cᵀ = Bᵀ Aᵀ."""
        return Operands(
            self.b, self.b_n, self.b_k, self.b_batch, self.b_swap, self.a, self.a_k, self.a_row, self.a_batch, self.a_swap,
            self.c, self.c_n, self.c_row, self.c_batch, self.n, self.m, self.k, self.batch, not self.swapped,
        )  # fmt: skip

    def slice_batch(self, first: int) -> Operands:
        if self.batch == 1:
            return self
        return replace(
            self,
            a=self.a + first * self.a_batch,
            b=self.b + first * self.b_batch,
            c=self.c + first * self.c_batch,
            batch=1,
        )

    @property
    def symmetric(self) -> bool:
        """Whether B is A's transpose, in the same memory."""
        same = self.a == self.b and self.m == self.n and self.a_row == self.b_n and self.a_k == self.b_k
        return same and self.a_swap == self.b_swap and (self.batch == 1 or self.a_batch == self.b_batch)


def run(a: Array, b: Array, out: Array, options: Options = DEFAULTS) -> _Run | None:
    """Write the products of the stacks a (*batch, M, K) and b (*batch, K, N) to out (*batch, M, N).

    Returns the run if it was one, and the same for any operands of these shapes and strides.
    """
    parts = _collapsed(a, b, out)
    runs = [_run_stack(Operands.of(*part), out.dtype, options) for part in parts]
    return runs[0] if len(runs) == 1 else None


# Runs by what decides them, for calls without options: planning one anew would cost 2 % of a product of 512 x 512, more than
# elsewhere because its own data are all the caches hold.
_runs: dict[tuple[Any, ...], _Run] = {}
_MOST_RUNS = 128


def run_again(a: Array, b: Array, out: Array) -> None:
    """:func:`run` for plain matrices of one native dtype, quickly if it is not the first time."""
    key = (a.shape, b.shape, a.strides, b.strides, out.strides, a.dtype.num, get_num_threads())
    known = _runs.get(key)
    at_a, at_b = a.ctypes.data, b.ctypes.data
    own = at_a == at_b and a.strides == b.strides[::-1]
    if known is not None and not own:
        known.start(at_a, at_b, out.ctypes.data)
        return
    made = run(a, b, out)
    if made is not None and not own:
        if len(_runs) >= _MOST_RUNS:
            _runs.clear()
        _runs[key] = made


def _collapsed(a: Array, b: Array, out: Array) -> list[tuple[Array, Array, Array]]:
    """The same products with at most one batch axis each: axes that can be walked with one stride are merged, the outer ones of
    what is left are looped over."""
    if out.ndim == 2:
        return [(a, b, out)]
    shape = list(out.shape[:-2])
    strides = [list(x.strides[:-2]) for x in (a, b, out)]
    for axis in reversed(range(len(shape))):
        if shape[axis] == 1:
            for each in (shape, *strides):
                del each[axis]
    for axis in reversed(range(len(shape) - 1)):
        if all(s[axis] == s[axis + 1] * shape[axis + 1] for s in strides):
            shape[axis] *= shape[axis + 1]
            for each in strides:
                each[axis] = each[axis + 1]
            for each in (shape, *strides):
                del each[axis + 1]
    merged = [
        np.lib.stride_tricks.as_strided(x, (*shape, *x.shape[-2:]), (*s, *x.strides[-2:]))
        for x, s in zip((a, b, out), strides, strict=True)
    ]
    if len(shape) <= 1:
        return [(merged[0], merged[1], merged[2])]
    return [(merged[0][at], merged[1][at], merged[2][at]) for at in np.ndindex(*shape[:-1])]


def _oriented(x: Operands, item: int, options: Options, real: bool) -> Operands:
    """The product or its transpose, whichever has C's rows contiguous, or reads the larger operand in place."""
    if options.policy != "auto":
        return x
    rows_contiguous = x.c_n == item or x.n == 1
    if not rows_contiguous and (x.c_row == item or x.m == 1):
        return x.transposed()
    if options.reproducible:
        return x
    if real and x.n == 1 and x.a_row == item and x.a_k != item and x.c_row == item:
        return x.transposed()  # a column-major matrix times a vector: its columns, scaled
    if x.m <= 32 and x.b_k == item and x.b_n != item and x.n > x.m and x.a_k == item:
        return x.transposed()  # few rows times a transposed matrix: dot products with its rows, no copy of it
    return x


def _run_stack(x: Operands, dtype: np.dtype[Any], options: Options) -> _Run | None:
    item = dtype.itemsize
    table = j.loaded(dtype)
    real = t.ELEMENTS[dtype].real_size
    x = _oriented(x, item, options, real == item)
    threads = resolve(options.threads)
    if options.policy == "auto" and options.tile is None and options.cores is None and options.swizzle == "auto":
        if x.n == 1 and x.b_k != item and x.a_k == item and real == item and not options.reproducible:
            _with_contiguous_column(x, dtype, options)
            return None
        symmetric = x.symmetric and x.m >= SYMMETRIC_ROWS and x.c_n == item
        if not symmetric and _takes_job(x, item, real == item):
            _run_job(x, table, item, real, threads, options.reproducible)
            return None
        if x.b_batch == 0 and x.batch > 1:  # one B for all: packed once
            return _run_stream(_as_one(x), table, dtype, options, threads, False)
        for i in range(x.batch):
            one = x.slice_batch(i)
            made = _run_stream(one, table, dtype, options, threads, symmetric)
            if symmetric:
                mirror(table, one.c, one.c_row, one.m, threads)
        return made if x.batch == 1 else None
    return _run_stream(x, table, dtype, options, threads, False)


def _as_one(x: Operands) -> Operands:
    """A stack that multiplies one B as one tall product, where the rows of A and C go on from one member to the next."""
    if x.a_batch == x.m * x.a_row and x.c_batch == x.m * x.c_row:
        return replace(x, m=x.m * x.batch, batch=1)
    return x


def _with_contiguous_column(x: Operands, dtype: np.dtype[Any], options: Options) -> None:
    """Times a column with gaps: the column is packed, for one stack at a time."""
    for i in range(x.batch):
        one = x.slice_batch(i)
        column = np.empty((one.k, 1), dtype)
        item = dtype.itemsize
        words = np.array(
            [j.loaded(dtype), one.b, one.b_k, item, one.b_swap, column.ctypes.data, item, item, one.k, 1], np.int64
        )
        pool.run(LOOPS[COPY].address, words.ctypes.data, 1, 1)
        _run_stack(
            replace(one, b=column.ctypes.data, b_k=dtype.itemsize, b_n=dtype.itemsize, b_swap=False), dtype, options
        )


def _takes_job(x: Operands, item: int, real: bool) -> bool:
    """Whether the product is one of those that need no packing."""
    if x.a_swap or x.b_swap or not (x.b_n == item or x.n == 1) or not (x.c_n == item or x.n == 1):
        return False
    if x.n == 1:
        return x.k * item <= 640 * 1024 or (real and x.a_k == item and x.b_k == item)
    return real and bool(j.in_place.py_func(x.m, x.k * x.n * item)) or x.k * x.n * item <= j.IN_PLACE_BYTES


def _run_job(x: Operands, table: int, item: int, real: int, threads: int, strict: bool) -> None:
    cut, step, shares, kc = j.shares_of((x.m, x.n, x.k), x.batch, item, real, threads, strict)
    words = np.array(
        [
            table, x.a, x.a_row, x.a_k, x.b, x.b_k, x.c, x.c_row, x.m, x.n, x.k, kc, x.batch, x.a_batch, x.b_batch,
            x.c_batch, cut, step, strict,
        ],
        np.int64,
    )  # fmt: skip
    pool.run(j.run_share.address, words.ctypes.data, shares, threads)


def _run_stream(
    x: Operands, table: int, dtype: np.dtype[Any], options: Options, threads: int, symmetric: bool
) -> _Run | None:
    """Execute the op stream that the options mean."""
    item = dtype.itemsize
    flags = (x.a_swap, x.b_swap, x.c_n == item or x.n == 1, x.b_batch == 0)
    callbacks = (getattr(options.policy, "before", None), getattr(options.policy, "after", None))
    if any(callbacks):  # a layout is kept for the next call, a caller's functions are not
        options = replace(options, policy=replace(options.policy, before=None, after=None))  # type: ignore[arg-type,type-var]
    plan = _layout((x.m, x.n, x.k), x.batch, dtype, table, options, threads, flags)
    made = _Run(plan, x, threads, symmetric, callbacks)
    made.start(*((x.b, x.a) if x.swapped else (x.a, x.b)), x.c)
    return made


class _Run:
    """An op stream over operands of known shapes and strides: all but the addresses, which :meth:`start` takes."""

    def __init__(
        self, plan: _Layout, x: Operands, threads: int, symmetric: bool, callbacks: tuple[Any, Any] = (None, None)
    ) -> None:
        work = x.m * x.n * x.k * x.batch
        self.plan, self.callbacks, self.swapped = plan, callbacks, x.swapped
        self.threads = threads if work > j.SERIAL_WORK else 1
        # A long run comes back to Python between ops, and each core keeps its slots; with very many cores a core is short anyway.
        long = work > _LONG_RUN and plan.cores <= 8 * self.threads and not any(callbacks)
        self.lanes = plan.cores if long else self.threads
        self.bytes = plan.bytes(self.lanes)
        words = plan.words.copy()
        words[r.A : r.C_BATCH + 1] = (
            x.a, x.a_row, x.a_k, x.a_batch, x.a_swap, x.b, x.b_k, x.b_n, x.b_batch, x.b_swap, x.c, x.c_row, x.c_n, x.c_batch,
        )  # fmt: skip
        words[[r.SYMMETRIC, r.BUDGET, r.OWN_BY_CORE]] = symmetric, _BUDGET_NS * long, long
        self.words = words

    def start(self, a: int, b: int, c: int) -> None:
        """Run it for the caller's operands at these addresses."""
        with borrowed(self.bytes) as memory:
            words = self.plan.place(self.words, memory, self.lanes)
            words[r.A], words[r.B], words[r.C] = (b, a, c) if self.swapped else (a, b, c)
            if any(self.callbacks):
                _run_with_callbacks(words, self.plan, self.threads, self.callbacks)
                return
            address = words.ctypes.data
            while True:
                words[r.LEFT] = 0
                pool.run(r.run_core.address, address, self.plan.cores, self.threads)
                if not words[r.LEFT]:
                    return


# Schedulers that cut K of a block into parts on different cores (or at different times): they are traced, not yet executed.
_PARTIAL = (
    L.SchedulerId.SPLIT_K,
    L.SchedulerId.TAIL_SPLIT_K,
    L.SchedulerId.STREAM_K,
    L.SchedulerId.SINGLE_CORE_SPLIT_K,
)


@lru_cache(maxsize=128)
def _layout(
    problem: tuple[int, int, int],
    batch: int,
    dtype: np.dtype[Any],
    table: int,
    options: Options,
    threads: int,
    flags: tuple[bool, bool, bool, bool],
) -> _Layout:
    """The layout for a problem; ``flags``: A swapped, B swapped, C is the accumulator, one B for all batches."""
    a_swap, b_swap, direct, shared_b = flags
    plan = schedule(problem, dtype, options, threads)
    policy = plan.policy
    tile = plan.tile
    if isinstance(policy, HostPanels):
        if b_swap:
            policy = replace(policy, pack_b=None)
        if not direct:  # one accumulator tile cannot hold several blocks from one K slab to the next
            policy, tile = replace(policy, kc=None), (tile[0], tile[1], problem[2])
    elif a_swap or b_swap:
        policy = replace(policy, staging="copy")
    p = stream.encode(
        problem, tile, policy=policy, swizzle=plan.swizzle, cores=plan.cores, batch=batch,
        host=plan.host, reproducible=options.reproducible, shared_b=shared_b,
    )  # fmt: skip
    if int(p[L.P_SCHEDULER]) in _PARTIAL:
        raise ValueError(
            f"matmul: swizzle={plan.swizzle!r} cuts K into partial sums, which fastgemm.trace and fastgemm.plan show but matmul "
            "does not execute; use IdentitySwizzle, RowMajor, L1FullLoadSwizzle or AswtSwizzle"
        )
    if a_swap:
        p[L.P_STAGE_A] = L.COPIED
    return _Layout(p, table, dtype.itemsize, direct)


class _Layout:
    """What runs of one problem share: P, the words of a run that do not change, and the layout of the scratch memory."""

    def __init__(self, p: np.ndarray, table: int, item: int, direct: bool) -> None:
        self.p = p
        self.cores = int(p[L.P_CORES])
        self.state = stream.new_state(p).size
        tm, tn, tk = (int(p[i]) for i in (L.P_TM, L.P_TN, L.P_TK))
        lanes = t.word(table, t.LANES)
        slots_b = int(p[L.P_SLOTS_B] if p[L.P_STAGE_B] == L.CACHED else p[L.P_STAGES])
        slot_a, slot_b = _lines(tm * tk * item), _lines(-(-tn // lanes) * lanes * tk * item)
        all_b = slots_b * slot_b if p[L.P_STAGE_B] != L.IN_PLACE else 0
        all_a = int(p[L.P_STAGES]) * slot_a if p[L.P_STAGE_A] == L.COPIED else 0
        row_major = int(p[L.P_SCHEDULER]) == L.SchedulerId.ROW_MAJOR
        # HostPanels: a packed column serves one core alone where the cores divide the columns
        self.shared = bool(p[L.P_DIRECT_B]) and (self.cores == 1 or (row_major and int(p[L.P_COLS]) % self.cores == 0))
        self.core_bytes = _lines(8 * (r.CORE_HEAD + self.state + L.OP_SIZE))
        self.common = all_b if self.shared else 0
        own_b = 0 if self.shared else all_b
        self.own = all_a + own_b + (0 if direct else _lines(tm * tn * item))
        w = np.zeros(r.RUN_WORDS, np.int64)
        w[[r.TABLE, r.P, r.S_SIZE, r.MACHINE]] = table, p.ctypes.data, self.state, machine_address(p)
        w[[r.CORE_BYTES, r.THREAD_BYTES, r.SLOT_A_BYTES, r.SLOT_B_BYTES]] = self.core_bytes, self.own, slot_a, slot_b
        w[[r.SLOTS_A, r.SLOTS_B, r.ACC]] = 0, all_a, all_a + own_b
        w[[r.B_SHARED, r.C_DIRECT]] = self.shared, direct
        self.words = w

    def bytes(self, lanes: int) -> int:
        """The scratch a run needs: the lanes' own slots and accumulators, the common slab, the cores' states."""
        return lanes * self.own + self.common + self.cores * self.core_bytes

    def place(self, words: np.ndarray, memory: int, lanes: int) -> np.ndarray:
        """A copy of a run's words, its scratch laid out at an address in the order of :meth:`bytes`."""
        w = words.copy()
        cores_at = memory + lanes * self.own + self.common
        w[r.SCRATCH], w[r.CORES_AT] = memory, cores_at
        if self.shared:
            w[r.SLOTS_B] = lanes * self.own
        for core in range(self.cores):
            ctypes.memset(cores_at + core * self.core_bytes, 0, 8)
        return w


def _lines(size: int) -> int:
    return -(-size // _LINE) * _LINE


def _run_with_callbacks(words: np.ndarray, plan: _Layout, threads: int, callbacks: tuple[Any, Any]) -> None:
    """Execute core by core on Python threads, calling back before and after the store of every block.

    The first exception of a callback ends the run and is raised; the pool stays usable.
    """
    before, after = callbacks
    address = words.ctypes.data

    def core_loop(core: int, thread: int) -> None:
        at = int(words[r.CORES_AT]) + core * plan.core_bytes + 8 * (r.CORE_HEAD + plan.state)
        op = as_array((ctypes.c_int64 * L.OP_SIZE).from_address(at))
        while (kind := r.drive(address, core, thread)) >= 0:
            callback = before if kind == L.BEFORE else after
            if pool.stopping():  # another core's callback has failed
                return
            if callback is not None:
                callback(core, int(op[L.TASK]), int(op[L.GROUP]), int(op[L.M]), int(op[L.N]))

    pool.run_python(core_loop, plan.cores, threads)
