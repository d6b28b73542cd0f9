"""Block schedulers as jitted maps: one function per scheduler, dispatched by id in `steps_of` and `piece_of`.

A scheduler answers two questions about a core: how many steps it makes, and which block (or part of one) each step covers.
All arithmetic is 64-bit.  The mappings are those of the CATLASS block schedulers; `docs/swizzle.md` shows them.
"""

from __future__ import annotations

from . import layout as L
from .layout import SchedulerId
from .vectors import inner

__all__ = ["piece_of", "steps_of", "identity_coord"]

_IDENTITY = int(SchedulerId.IDENTITY)
_ROW_MAJOR = int(SchedulerId.ROW_MAJOR)


@inner
def identity_coord(rows, cols, offset, direction, index):
    """(m, n) of task `index`: bands of `offset` rows (direction 0) or columns (1), walked across the band first; odd bands run back."""
    if direction == 0:
        along, across = cols, rows
    else:
        along, across = rows, cols
    width = min(offset, across)  # a huge offset would overflow offset * along and changes nothing
    band = index // (width * along)
    inside = index - band * width * along
    height = min(width, across - band * width)
    far = inside // height
    near = band * width + inside - far * height
    if band & 1:
        far = along - 1 - far
    if direction == 0:
        return near, far
    return far, near


@inner
def put_block(P, task, batch, m, n, out, at):
    """Fill the piece at out[at:] with the whole block (m, n)."""
    m0 = m * P[L.P_TM]
    n0 = n * P[L.P_TN]
    out[at + L.PIECE_TASK] = task
    out[at + L.PIECE_BATCH] = batch
    out[at + L.PIECE_GROUP] = P[L.P_GROUP]
    out[at + L.PIECE_M] = m
    out[at + L.PIECE_N] = n
    out[at + L.PIECE_K] = 0
    out[at + L.PIECE_KT] = P[L.P_KT]
    out[at + L.PIECE_K0] = 0
    out[at + L.PIECE_KLEN] = P[L.P_K]
    out[at + L.PIECE_M0] = m0
    out[at + L.PIECE_N0] = n0
    out[at + L.PIECE_ROWS] = min(P[L.P_TM], P[L.P_M] - m0)
    out[at + L.PIECE_COLS] = min(P[L.P_TN], P[L.P_N] - n0)
    out[at + L.PIECE_PART] = 0
    out[at + L.PIECE_PARTS] = 1
    out[at + L.PIECE_CHAIN] = 0


@inner
def cut_k(P, k, kt, part, parts, out, at):
    """Narrow the piece at out[at:] to the K tiles [k, k + kt), part `part` of `parts`."""
    k0 = k * P[L.P_TK]
    out[at + L.PIECE_K] = k
    out[at + L.PIECE_KT] = kt
    out[at + L.PIECE_K0] = k0
    out[at + L.PIECE_KLEN] = min(kt * P[L.P_TK], P[L.P_K] - k0)
    out[at + L.PIECE_PART] = part
    out[at + L.PIECE_PARTS] = parts


@inner
def rank_of(P, core):
    """Position of the core behind the start core."""
    rank = core - P[L.P_START]
    return rank if rank >= 0 else rank + P[L.P_CORES]


@inner
def strided_steps(total, rank, cores):
    """How many of the tasks rank, rank + cores, ... lie below total."""
    return 0 if rank >= total else (total - rank + cores - 1) // cores


@inner
def steps_of(P, core):
    """Number of steps the core makes."""
    return strided_steps(P[L.P_BATCH] * P[L.P_LOOPS], rank_of(P, core), P[L.P_CORES])


@inner
def identity_piece(P, task, out, at):
    batch = task // P[L.P_LOOPS]
    m, n = identity_coord(P[L.P_ROWS], P[L.P_COLS], P[L.P_OFFSET], P[L.P_DIRECTION], task - batch * P[L.P_LOOPS])
    put_block(P, task, batch, m, n, out, at)
    return 1


@inner
def row_major_piece(P, task, out, at):
    batch = task // P[L.P_LOOPS]
    index = task - batch * P[L.P_LOOPS]
    m = index // P[L.P_COLS]
    put_block(P, task, batch, m, index - m * P[L.P_COLS], out, at)
    return 1


@inner
def piece_of(P, core, step, out, at):
    """Write the pieces of the core's step into out[at:] (PIECE_SIZE numbers each); returns how many there are (0, 1 or 2)."""
    scheduler = P[L.P_SCHEDULER]
    task = step * P[L.P_CORES] + rank_of(P, core)
    if scheduler == _IDENTITY:
        return identity_piece(P, task, out, at)
    return row_major_piece(P, task, out, at)
