"""Whole schedules in one jitted call."""

from __future__ import annotations

import numpy as np

from . import layout as L
from .jit import njit
from .schedule_maps import piece_of, steps_of, task_pieces
from .vectors import inner, pointer

__all__ = ["CUT_SCHEDULE_DTYPE", "SCHEDULE_DTYPE", "pieces_of_task", "schedule", "step_counts"]

_FIELDS = [
    ("core", "i4"),
    ("step", "i4"),
    ("task", "i8"),
    ("batch", "i4"),
    ("m", "i4"),
    ("n", "i4"),
    ("k0", "i8"),
    ("klen", "i8"),
]
#: one row per piece of a task: block coordinates in tiles, the K range in elements
SCHEDULE_DTYPE = np.dtype(_FIELDS, align=True)
#: the same for schedulers that cut blocks: the rows and columns covered, in elements, as well
CUT_SCHEDULE_DTYPE = np.dtype([*_FIELDS, ("m0", "i8"), ("n0", "i8"), ("rows", "i8"), ("cols", "i8")], align=True)


@njit
def step_counts(P, counts):
    """counts[c] = number of steps of core c."""
    for core in range(counts.size):
        counts[core] = steps_of(pointer(P), core)


@njit
def pieces_of_task(P, task, out):
    """Write the pieces of a task; returns how many."""
    return task_pieces(pointer(P), task, pointer(out), 0)


@inner
def write_row(core, step, piece, at, half, whole, row, words):
    """Write one row through its 32-bit and its 64-bit view."""
    base = row * words
    half[2 * base] = core
    half[2 * base + 1] = step
    whole[base + 1] = piece[at + L.PIECE_TASK]
    half[2 * base + 4] = piece[at + L.PIECE_BATCH]
    half[2 * base + 5] = piece[at + L.PIECE_M]
    half[2 * base + 6] = piece[at + L.PIECE_N]
    half[2 * base + 7] = 0
    whole[base + 4] = piece[at + L.PIECE_K0]
    whole[base + 5] = piece[at + L.PIECE_KLEN]
    if words > 6:
        whole[base + 6] = piece[at + L.PIECE_M0]
        whole[base + 7] = piece[at + L.PIECE_N0]
        whole[base + 8] = piece[at + L.PIECE_ROWS]
        whole[base + 9] = piece[at + L.PIECE_COLS]


@njit
def fill(P, counts, half, whole, words):
    """Write all rows, wave by wave and in core order within a wave; returns their number."""
    cores = counts.size
    piece = np.empty(L.MAX_PIECES * L.PIECE_SIZE, np.int64)
    row = 0
    for step in range(counts.max()):
        for rank in range(cores):
            core = (rank + P[L.P_START]) % cores
            if step < counts[core]:
                for i in range(piece_of(pointer(P), core, step, pointer(piece), 0)):
                    write_row(core, step, pointer(piece), i * L.PIECE_SIZE, pointer(half), pointer(whole), row, words)
                    row += 1
    return row


def schedule(P: np.ndarray, cuts_blocks: bool = False) -> np.ndarray:
    """The whole schedule of P: one row per piece, step by step and in the order of the cores within a step.

    Fields core, step, task (counted through the batches), batch, m, n (tiles), k0, klen (elements); with `cuts_blocks` also
    m0, n0, rows and cols (elements).  10^7 tasks take 0.2 to 0.6 s.
    """
    counts = np.empty(P[L.P_CORES], np.int64)
    step_counts(P, counts)
    bound = int(counts.sum())
    if P[L.P_SCHEDULER] == L.SchedulerId.STREAM_K:
        bound += int(P[L.P_BATCH] * P[L.P_CORES])  # cross tasks have two pieces
    rows = np.empty(bound, CUT_SCHEDULE_DTYPE if cuts_blocks else SCHEDULE_DTYPE)
    if bound:
        rows = rows[: fill(P, counts, rows.view(np.int32), rows.view(np.int64), rows.itemsize // 8)]
    return rows
