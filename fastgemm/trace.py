"""Traces: the op stream of every core, written down."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int
from typing import TYPE_CHECKING

import numpy as np

from . import layout as L
from .arch import Arch, Tile
from .arch import arch as arch_of
from .jit import njit
from .layout import Op, Realised
from .policy import HostPanels, Policy
from .stream import advance, encode, new_state, start
from .swizzle import IdentitySwizzle, Swizzle

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
    state, op = new_state(P), np.zeros(L.OP_SIZE, np.int64)
    chunks, size = [], 1 << 10
    for core in range(int(P[L.P_CORES])):
        start(P, core, state)
        step = 0
        while True:
            chunk = np.empty((size, len(TRACE_DTYPE)), np.int64)
            count = write_ops(P, state, op, core, step, _SOURCE, chunk)
            chunks.append(chunk[:count])
            step += count
            if count < size:
                break
            size = min(2 * size, 1 << 20)
    rows = np.concatenate(chunks) if chunks else np.empty((0, len(TRACE_DTYPE)), np.int64)
    return rows.view(TRACE_DTYPE)[:, 0]


def trace(
    m: int,
    n: int,
    k: int,
    *,
    policy: Policy | str = "auto",
    swizzle: Swizzle | str = "auto",
    tile: Tile | Sequence[int] | None = None,
    cores: int | None = None,
    batch: int = 1,
    dtype: DTypeLike = "f4",
    arch: str | Arch = "host",
    reproducible: bool = False,
    shared_b: bool = False,
) -> np.ndarray:
    """The op stream of an m x n x k product: a structured array of TRACE_DTYPE, core by core in program order.

    It is the stream the executor runs.  policy="auto" is HostPanels; swizzle="auto" follows the traffic law
    (`fastgemm.traffic.auto_swizzle`); tile defaults to the architecture's; cores to its core count.  Raises ValueError where the
    tile does not fit the policy's buffers on the architecture.

    >>> import fastgemm as fg
    >>> t = fg.trace(128, 128, 512, policy=fg.Pingpong(), swizzle=fg.RowMajor(), tile=(128, 128, 256), cores=1)
    >>> [fg.Op(op).name for op in t["op"]]
    ['LOAD_A', 'LOAD_B', 'LOAD_A', 'LOAD_B', 'MMAD', 'MMAD', 'STORE']
    """
    problem = tuple(as_int(extent) for extent in (m, n, k))
    if min(problem) < 0 or as_int(batch) < 0:
        raise ValueError(f"extents must not be negative, got m, n, k = {problem} and batch = {batch}")
    profile = arch_of(arch)
    kind = HostPanels() if isinstance(policy, str) and policy == "auto" else policy
    if not isinstance(kind, Policy):
        raise ValueError(f'policy must be "auto" or a dispatch policy such as fastgemm.Pingpong(), not {policy!r}')
    cores = profile.cores if cores is None else as_int(cores)
    if cores < 1:
        raise ValueError(f"cores must be at least 1, got {cores}")
    blocks = profile.default_tile(dtype, problem, kind.slots().l1) if tile is None else Tile.of(tile)
    kind.validate(profile, blocks, dtype, reproducible)
    order = swizzle
    if isinstance(swizzle, str) and swizzle == "auto":
        from .traffic import auto_swizzle

        order = auto_swizzle(problem, blocks.l1, np.dtype(dtype).itemsize, profile.llc_bytes, share=profile.swizzle_share)[0]
    if not isinstance(order, Swizzle):
        raise ValueError(f'swizzle must be "auto" or a block scheduler such as {IdentitySwizzle(3, 0)}, not {swizzle!r}')
    P = encode(
        problem,  # type: ignore[arg-type]
        blocks.l1,
        policy=kind,
        swizzle=order,
        cores=cores,
        batch=as_int(batch),
        host=profile.host,
        reproducible=reproducible,
        shared_b=shared_b,
    )
    return trace_vector(P)
