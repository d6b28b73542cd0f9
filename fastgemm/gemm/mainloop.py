"""The executor: it consumes the op stream of a core and does what each op says.

How an op is realised on a host:

LOAD_A   a view (in place): the first lines of its first rows are prefetched; or a copy into the A slot
LOAD_B   a packed copy into the B slot, nothing if the slot still holds the tile, or a view.  A copy is *pending* until the tile is
         needed: its rows are packed in between the row groups of the multiplication that runs meanwhile, so that the memory system
         fetches the next tile while the FMA units are busy.  That is what loading ahead is on a CPU.
MMAD     the tile product, added into C itself, or into an accumulator tile where C has no unit column stride
STORE    nothing where C is the accumulator, else the copy of the accumulator tile into C

A *run* is a block of 64-bit words (below) at an address, shared by all threads; what is a thread's own (slots, accumulator) lies in
its part of the scratch memory, what is a core's own (the machine's state, the op, the pending copy) in the core's part, so that a
core can stop after any op.  Where it may go on on another thread (OWN_BY_CORE), each core has slots and accumulator too.
"""

from __future__ import annotations

from numba import types

from .. import layout as L
from ..jit import cfunc, njit
from ..vectors import inner
from . import table as t
from .emit_call import load_i64, on_stack, prefetch, store_i64, words
from .emit_sync import call, clock
from .multiply import COPY, IN_PLACE, PACK, PACKED

__all__ = ["CORE_HEAD", "RUN_WORDS", "drive", "run_core"]

# the words of a run
(
    TABLE, P, S_SIZE, A, A_ROW, A_K, A_BATCH, A_SWAP, B, B_K, B_N, B_BATCH, B_SWAP, C, C_ROW, C_N, C_BATCH, C_DIRECT,
    CORES_AT, CORE_BYTES, SCRATCH, THREAD_BYTES, SLOTS_A, SLOT_A_BYTES, SLOTS_B, SLOT_B_BYTES, B_SHARED, ACC, BUDGET, LEFT,
    SYMMETRIC, MACHINE, OWN_BY_CORE,
) = range(33)  # fmt: skip
RUN_WORDS = 33

# what a machine is asked: to start the core, or for its next op (op code -1: none)
START, ADVANCE = range(2)

# a core's part: a header, then S, then the op
STARTED, PENDING, PENDING_FROM, PENDING_TO, PENDING_K, PENDING_N, PENDING_ROWS = range(7)
CORE_HEAD = 7

# Rows of A between two slices of a pending copy.
_GROUP = 64
# Rows of a symmetric product that stop at the same column.
_SYMMETRIC_GROUP = 16


@inner
def _slot_b(run, thread, slot):  # type: ignore[no-untyped-def]
    """The address of a B slot: the thread's own, or the run's where every block column belongs to one core."""
    base = load_i64(run + 8 * SCRATCH)
    if load_i64(run + 8 * B_SHARED) == 0:
        base += thread * load_i64(run + 8 * THREAD_BYTES)
    return base + load_i64(run + 8 * SLOTS_B) + slot * load_i64(run + 8 * SLOT_B_BYTES)


@inner
def _advance_copy(run, head, rows):  # type: ignore[no-untyped-def]
    """Pack so many more rows of the pending tile of B (8 at least; all when none would be left worth a visit)."""
    k, first = head[PENDING_K], head[PENDING_ROWS]
    rows = min(k - first, max(8, (rows + 7) // 8 * 8))
    table = load_i64(run + 8 * TABLE)
    block = on_stack(
        (
            table, head[PENDING_FROM], load_i64(run + 8 * B_K), load_i64(run + 8 * B_N), load_i64(run + 8 * B_SWAP),
            head[PENDING_TO], first, rows, k, head[PENDING_N],
        )
    )  # fmt: skip
    call(load_i64(table + 8 * PACK), block, 0, 0)
    head[PENDING_ROWS] = first + rows
    if first + rows == k:
        head[PENDING] = -1


@inner
def _load(run, thread, head, op):  # type: ignore[no-untyped-def]
    """LOAD_A and LOAD_B."""
    if op[L.OP] == L.LOAD_A:
        a_row, a_k = load_i64(run + 8 * A_ROW), load_i64(run + 8 * A_K)
        at = load_i64(run + 8 * A) + op[L.BATCH] * load_i64(run + 8 * A_BATCH) + op[L.M0] * a_row + op[L.K0] * a_k
        if op[L.REALISED] == L.COPIED:
            to = load_i64(run + 8 * SCRATCH) + thread * load_i64(run + 8 * THREAD_BYTES)
            to += load_i64(run + 8 * SLOTS_A) + op[L.SLOT] * load_i64(run + 8 * SLOT_A_BYTES)
            table = load_i64(run + 8 * TABLE)
            item = load_i64(table + 8 * t.ITEM)
            rows, klen = op[L.ROWS], op[L.KLEN]
            block = on_stack((table, at, a_row, a_k, load_i64(run + 8 * A_SWAP), to, klen * item, item, rows, klen))
            call(load_i64(table + 8 * COPY), block, 0, 0)
        else:
            for row in range(min(8, op[L.ROWS])):
                for line in range(0, 256, 64):
                    prefetch(at + row * a_row + line)
    elif op[L.REALISED] == L.COPIED:
        if head[PENDING] >= 0:
            _advance_copy(run, head, head[PENDING_K])
        head[PENDING] = op[L.SLOT_B]
        head[PENDING_FROM] = (
            load_i64(run + 8 * B) + op[L.BATCH] * load_i64(run + 8 * B_BATCH) + op[L.K0] * load_i64(run + 8 * B_K)
            + op[L.N0] * load_i64(run + 8 * B_N)
        )  # fmt: skip
        head[PENDING_TO] = _slot_b(run, thread, op[L.SLOT_B])
        head[PENDING_K], head[PENDING_N], head[PENDING_ROWS] = op[L.KLEN], op[L.COLS], 0


@inner
def _target(run, thread, op):  # type: ignore[no-untyped-def]
    """(address, row stride) of what a block is accumulated in."""
    item = load_i64(load_i64(run + 8 * TABLE) + 8 * t.ITEM)
    if load_i64(run + 8 * C_DIRECT) != 0:
        c_row = load_i64(run + 8 * C_ROW)
        return load_i64(run + 8 * C) + op[L.BATCH] * load_i64(run + 8 * C_BATCH) + op[L.M0] * c_row + op[
            L.N0
        ] * item, c_row
    own = load_i64(run + 8 * SCRATCH) + thread * load_i64(run + 8 * THREAD_BYTES)
    return own + load_i64(run + 8 * ACC), op[L.COLS] * item


@inner
def _multiply(run, thread, p, head, op):  # type: ignore[no-untyped-def]
    """MMAD: the tile product in groups of rows, a slice of the pending copy after each."""
    table = load_i64(run + 8 * TABLE)
    item = load_i64(table + 8 * t.ITEM)
    a_row, a_k = load_i64(run + 8 * A_ROW), load_i64(run + 8 * A_K)
    a = load_i64(run + 8 * A) + op[L.BATCH] * load_i64(run + 8 * A_BATCH) + op[L.M0] * a_row + op[L.K0] * a_k
    rows, cols, klen = op[L.ROWS], op[L.COLS], op[L.KLEN]
    if p[L.P_STAGE_A] == L.COPIED:
        a = load_i64(run + 8 * SCRATCH) + thread * load_i64(run + 8 * THREAD_BYTES)
        a += load_i64(run + 8 * SLOTS_A) + op[L.SLOT] * load_i64(run + 8 * SLOT_A_BYTES)
        a_row, a_k = klen * item, item
    c, c_row = _target(run, thread, op)
    add = 1 - op[L.FIRST]
    if p[L.P_STAGE_B] == L.IN_PLACE:
        b_k = load_i64(run + 8 * B_K)
        b = load_i64(run + 8 * B) + op[L.BATCH] * load_i64(run + 8 * B_BATCH) + op[L.K0] * b_k + op[L.N0] * item
        block = on_stack((table, a, a_row, a_k, b, b_k, c, c_row, rows, cols, klen, add))
        call(load_i64(table + 8 * IN_PLACE), block, 0, 0)
        return
    if head[PENDING] == op[L.SLOT_B]:
        _advance_copy(run, head, klen)
    packed = _slot_b(run, thread, op[L.SLOT_B])
    share = 0
    group = rows
    symmetric = load_i64(run + 8 * SYMMETRIC) != 0
    if head[PENDING] >= 0:
        share = -(-head[PENDING_K] * (_SYMMETRIC_GROUP if symmetric else _GROUP) // rows)
    if head[PENDING] >= 0:
        group = _GROUP
    if symmetric:
        group = _SYMMETRIC_GROUP
    for first in range(0, rows, group):
        some = min(group, rows - first)
        if symmetric:  # the lower triangle only: columns up to this group's last row
            cols = min(op[L.COLS], op[L.M0] + first + some - op[L.N0])
        if cols > 0:
            block = on_stack(
                (
                    table, a + first * a_row, a_row, a_k, packed, op[L.COLS], c + first * c_row, c_row, some, cols, klen, add,
                )
            )  # fmt: skip
            call(load_i64(table + 8 * PACKED), block, 0, 0)
        if head[PENDING] >= 0:
            _advance_copy(run, head, share)


@inner
def _store(run, thread, op):  # type: ignore[no-untyped-def]
    """STORE from an accumulator tile; where C is the accumulator the result is there already."""
    if load_i64(run + 8 * C_DIRECT) == 0:
        table = load_i64(run + 8 * TABLE)
        acc, acc_row = _target(run, thread, op)
        c_row, c_n = load_i64(run + 8 * C_ROW), load_i64(run + 8 * C_N)
        c = load_i64(run + 8 * C) + op[L.BATCH] * load_i64(run + 8 * C_BATCH) + op[L.M0] * c_row + op[L.N0] * c_n
        item = load_i64(table + 8 * t.ITEM)
        block = on_stack((table, acc, acc_row, item, 0, c, c_row, c_n, op[L.ROWS], op[L.COLS]))
        call(load_i64(table + 8 * COPY), block, 0, 0)


@njit
def drive(run, core, lane):  # type: ignore[no-untyped-def]
    """Run the core's ops until one is a callback (its op code), the budget is used up (-2), or there are no more (-1).

    ``lane`` says whose part of the scratch memory is used.
    """
    at = load_i64(run + 8 * CORES_AT) + core * load_i64(run + 8 * CORE_BYTES)
    head = words(at)
    stepping = on_stack((load_i64(run + 8 * P), at + 8 * CORE_HEAD, at + 8 * (CORE_HEAD + load_i64(run + 8 * S_SIZE))))
    p, op = words(load_i64(stepping)), words(load_i64(stepping + 16))
    machine = load_i64(run + 8 * MACHINE)
    if head[STARTED] == 2:
        return -1
    if head[STARTED] == 0:
        head[STARTED] = 1
        head[PENDING] = -1
        call(machine, stepping, core, START)
    budget = load_i64(run + 8 * BUDGET)
    until = clock() + budget if budget > 0 else 0
    while True:
        call(machine, stepping, core, ADVANCE)
        if op[L.OP] < 0:
            break
        kind = op[L.OP]
        if kind <= L.LOAD_B:
            _load(run, lane, head, op)
        elif kind == L.MMAD:
            _multiply(run, lane, p, head, op)
            if until != 0 and clock() > until:
                return -2
        elif kind == L.STORE:
            _store(run, lane, op)
        else:
            return kind
    head[STARTED] = 2
    return -1


@cfunc(types.void(types.int64, types.int64, types.int64))
def run_core(run, core, thread):  # type: ignore[no-untyped-def]
    """All ops of a core, or as many as the budget allows (the signature is the thread pool's); LEFT is set if some are left."""
    lane = core if load_i64(run + 8 * OWN_BY_CORE) != 0 else thread
    while True:
        stopped = drive(run, core, lane)
        if stopped < 0:
            break
    if stopped == -2:
        store_i64(run + 8 * LEFT, 1)
