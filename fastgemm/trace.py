"""Traces: the op stream of every core, written down."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int
from typing import TYPE_CHECKING, Literal

import numpy as np

from . import layout as L
from .arch import Arch, Tile
from .arch import arch as arch_of
from .gemm.choose import schedule
from .jit import njit
from .layout import Op, Realised
from .options import Options
from .policy import Policy
from .stream import advance, encode, new_state, start
from .swizzle import Swizzle

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

__all__ = ["TRACE_DTYPE", "Op", "Realised", "trace", "trace_vector"]

#: core; step (number of the op in the core's stream); op (Op); task (counted through the batches), batch, group; m, n, k (tiles);
#: slot (of B for LOAD_B); klen (elements: of the K tile, for STORE, BEFORE and AFTER of the whole piece); realised (Realised);
#: m0, n0, k0, rows, cols (elements); part, parts (partial sums along K)
TRACE_DTYPE = np.dtype(
    [
        *((name, "i8") for name in ("core", "step")),
        ("op", "i8"),
        *((name, "i8") for name in ("task", "batch", "group", "m", "n", "k", "slot", "klen", "realised")),
        *((name, "i8") for name in ("m0", "n0", "k0", "rows", "cols", "part", "parts")),
    ]
)
# where each field behind core and step lies in the op vector
_SOURCE = np.array(
    [
        L.OP, L.TASK, L.BATCH, L.GROUP, L.M, L.N, L.K, L.SLOT, L.KLEN, L.REALISED,
        L.M0, L.N0, L.K0, L.ROWS, L.COLS, L.PART, L.PARTS,
    ]
)  # fmt: skip
_WIDTH = 2 + _SOURCE.size
# 170 bytes each, and four times as many ops
_MOST_OPS = 1 << 24


@njit
def write_ops(P, S, op, core, step, source, out):
    """Write ops of one core until it is done or `out` is full; returns how many."""
    for row in range(out.shape[0]):
        if not advance(P, S, op):
            return row
        out[row, 0] = core
        out[row, 1] = step + row
        for i in range(source.size):
            out[row, 2 + i] = op[source[i]]
        if op[L.OP] == L.LOAD_B:
            out[row, 9] = op[L.SLOT_B]
    return out.shape[0]


def trace_vector(P: np.ndarray) -> np.ndarray:
    """All ops of all cores of an encoded problem (`fastgemm.stream.encode`), core by core."""
    least = int(P[L.P_BATCH]) * int(P[L.P_LOOPS]) * max(int(P[L.P_KT]), 1)
    if least > _MOST_OPS:
        raise ValueError(
            f"trace: the stream has {least:.3g} multiplications or more, a trace holds {_MOST_OPS}; ask for a smaller problem or a "
            "larger tile"
        )
    state, op = new_state(P), np.zeros(L.OP_SIZE, np.int64)
    chunks, size = [], 1 << 10
    for core in range(int(P[L.P_CORES])):
        start(P, core, state)
        step = 0
        while True:
            chunk = np.empty((size, _WIDTH), np.int64)
            count = write_ops(P, state, op, core, step, _SOURCE, chunk)
            chunks.append(chunk[:count])
            step += count
            if count < size:
                break
            size = min(2 * size, 1 << 20)
    rows = np.concatenate(chunks) if chunks else np.empty((0, _WIDTH), np.int64)
    return rows.view(TRACE_DTYPE)[:, 0]


def in_place_shares(
    problem: tuple[int, int, int], batch: int, dtype: np.dtype, threads: int, strict: bool
) -> np.ndarray | None:
    """The ops of a product of contiguous operands that plans no stream because B is best read in place; None if it plans one.

    Each share of the job (a "core" of the trace) is one block over all of K: views of A and B, a multiplication, a store.
    """
    from .gemm import job

    m, n, k = problem
    item, real = dtype.itemsize, dtype.kind != "c"
    b_bytes = k * n * item
    if not (b_bytes <= job.IN_PLACE_BYTES or (real and (n == 1 or job.in_place.py_func(m, b_bytes)))):
        return None
    cut, step, shares, kc = job.shares_of(problem, batch, item, item if real else item // 2, threads, strict)
    rows = []
    for share in range(shares):
        spans = [(0, batch), (0, m), (0, n)]
        axis = {job.BY_BATCH: 0, job.BY_ROWS: 1, job.BY_COLUMNS: 2}[cut]
        spans[axis] = (share * step, min(step, spans[axis][1] - share * step))
        (first, count), (m0, height), (n0, width) = spans
        number = 0
        for b in range(first, first + count):
            place = (m0 // step if axis == 1 else 0, n0 // step if axis == 2 else 0)
            for k0 in range(0, k, kc):
                for op in (Op.LOAD_A, Op.LOAD_B, Op.MMAD, Op.STORE)[: 4 if k0 + kc >= k else 3]:
                    loads = op in (Op.LOAD_A, Op.LOAD_B)
                    span = (0, 0, k) if op == Op.STORE else (k0 // kc, k0, min(kc, k - k0))
                    realised = Realised.IN_PLACE if loads else Realised.NONE
                    rows.append(
                        (
                            share,
                            number,
                            op,
                            b,
                            b,
                            0,
                            *place,
                            span[0],
                            0,
                            span[2],
                            realised,
                            m0,
                            n0,
                            span[1],
                            height,
                            width,
                            0,
                            1,
                        )
                    )
                    number += 1
    return np.array(rows, TRACE_DTYPE)


def trace(
    m: int,
    n: int,
    k: int,
    *,
    policy: Policy | Literal["auto"] = "auto",
    swizzle: Swizzle | Literal["auto"] = "auto",
    tile: Tile | Sequence[int] | None = None,
    cores: int | None = None,
    batch: int = 1,
    dtype: DTypeLike = "f4",
    arch: str | Arch = "host",
    reproducible: bool = False,
    threads: int | None = None,
    shared_b: bool = False,
) -> np.ndarray:
    """The op stream of an m x n x k product: a structured array of TRACE_DTYPE, core by core in program order.

    It is the stream `matmul` runs with the same keywords on contiguous operands.  policy="auto" is HostPanels with the host's own
    blocking, or for small products no stream at all: their trace has one block per share of the job, A and B both in place.  With
    another policy swizzle="auto" follows the traffic law (`fastgemm.traffic.auto_swizzle`), and tile and cores default to the
    architecture's (on the host: to the threads).  `shared_b` says that all batches multiply the same B.  Raises ValueError where
    the tile does not fit the policy's buffers on the architecture.

    >>> import fastgemm as fg
    >>> t = fg.trace(128, 128, 512, policy=fg.Pingpong(), swizzle=fg.RowMajor(), tile=(128, 128, 256), cores=1)
    >>> [fg.Op(op).name for op in t["op"]]
    ['LOAD_A', 'LOAD_B', 'LOAD_A', 'LOAD_B', 'MMAD', 'MMAD', 'STORE']
    """
    from .gemm.threads import resolve

    problem = (as_int(m), as_int(n), as_int(k))
    batch = as_int(batch)
    if min(problem) < 0 or batch < 0:
        raise ValueError(f"extents must not be negative, got m, n, k = {problem} and batch = {batch}")
    if not isinstance(policy, Policy) and policy != "auto":
        raise ValueError(f'policy must be "auto" or a dispatch policy such as fastgemm.Pingpong(), not {policy!r}')
    if not isinstance(swizzle, Swizzle) and swizzle != "auto":
        raise ValueError(
            f'swizzle must be "auto" or a block scheduler such as fastgemm.IdentitySwizzle(3, 0), not {swizzle!r}'
        )
    if cores is not None and as_int(cores) < 1:
        raise ValueError(f"cores must be at least 1, got {cores}")
    block = None if tile is None else Tile.of(tile)
    profile = arch_of(arch)
    options = Options(policy, swizzle, block, cores, threads, profile, reproducible)
    if 0 in (m, n, batch):
        return np.empty(0, TRACE_DTYPE)
    workers = resolve(threads)
    element = np.dtype(dtype)
    if policy == "auto" and swizzle == "auto" and block is None and cores is None and k and profile.host:
        shares = in_place_shares(problem, batch, element, workers, reproducible)
        if shares is not None:
            return shares
    chosen = schedule(problem, element, options, workers)
    P = encode(
        problem,
        chosen.tile,
        policy=chosen.policy,
        swizzle=chosen.swizzle,
        cores=chosen.cores,
        batch=batch,
        host=chosen.host,
        reproducible=reproducible,
        shared_b=shared_b,
    )
    return trace_vector(P)
