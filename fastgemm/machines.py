"""The dispatch policies as jitted state machines: each call of one writes the next op of a core.

A machine keeps everything in the state vector, so it can be left after any op and resumed.  S_PC says where; the sections of
a machine are numbered by it.  Order and protocol are those of the CATLASS block multiplications (Pingpong, Preload,
PreloadAsync); HostPanels is this package's own.
"""

from __future__ import annotations

from . import layout as L
from .jit import njit
from .layout import Op, Realised
from .schedule_maps import core_piece

__all__ = ["host_panels", "pingpong", "preload", "preload_async"]

_LOAD_A, _LOAD_B, _MMAD = int(Op.LOAD_A), int(Op.LOAD_B), int(Op.MMAD)
_STORE, _BEFORE, _AFTER = int(Op.STORE), int(Op.BEFORE), int(Op.AFTER)
_COPIED, _CACHED = int(Realised.COPIED), int(Realised.CACHED)


@njit
def take_piece(P, S, at):
    """Copy the core's next piece to S[at:]; False when there are no more."""
    while S[L.S_AT] >= S[L.S_HAVE]:
        if S[L.S_STEP] >= S[L.S_STEPS]:
            return False
        S[L.S_HAVE] = core_piece(P, S[L.S_CORE], S[L.S_STEP], S, L.S_BUFFER)
        S[L.S_AT] = 0
        S[L.S_STEP] += 1
    source = L.S_BUFFER + S[L.S_AT] * L.PIECE_SIZE
    for i in range(L.PIECE_SIZE):
        S[at + i] = S[source + i]
    S[L.S_AT] += 1
    return True


@njit
def put_op(S, at, kind, slot, op):
    """Write an op about the whole piece at S[at:]."""
    op[L.OP] = kind
    op[L.TASK] = S[at + L.PIECE_TASK]
    op[L.BATCH] = S[at + L.PIECE_BATCH]
    op[L.GROUP] = S[at + L.PIECE_GROUP]
    op[L.M] = S[at + L.PIECE_M]
    op[L.N] = S[at + L.PIECE_N]
    op[L.K] = S[at + L.PIECE_K]
    op[L.SLOT] = slot
    op[L.SLOT_B] = slot
    op[L.KLEN] = S[at + L.PIECE_KLEN]
    op[L.K0] = S[at + L.PIECE_K0]
    op[L.FIRST] = 0
    op[L.LAST] = 0
    op[L.M0] = S[at + L.PIECE_M0]
    op[L.N0] = S[at + L.PIECE_N0]
    op[L.ROWS] = S[at + L.PIECE_ROWS]
    op[L.COLS] = S[at + L.PIECE_COLS]
    op[L.PART] = S[at + L.PIECE_PART]
    op[L.PARTS] = S[at + L.PIECE_PARTS]
    op[L.REALISED] = 0


@njit
def put_tile(P, S, at, kind, j, slot, op):
    """Write an op about the j-th executed K tile of the piece at S[at:]; ShuffleK starts core c at its tile c, wrapping round."""
    put_op(S, at, kind, slot, op)
    kt = S[at + L.PIECE_KT]
    k = S[at + L.PIECE_K] + ((S[L.S_CORE] + j) % kt if P[L.P_SHUFFLE] != 0 else j)
    op[L.K] = k
    op[L.K0] = k * P[L.P_TK]
    op[L.KLEN] = min(P[L.P_TK], P[L.P_K] - op[L.K0])
    op[L.FIRST] = 1 if j == 0 else 0
    op[L.LAST] = 1 if j == kt - 1 else 0


@njit
def load_a(P, S, at, j, slot, op):
    put_tile(P, S, at, _LOAD_A, j, slot, op)
    op[L.REALISED] = P[L.P_STAGE_A]


@njit
def claim_b(P, S, op, wanted):
    """Look the B tile of `op` up among the B slots; sets SLOT_B and REALISED.

    wanted >= 0 names the slot.  Otherwise a slot that holds the tile is taken, else the least recently used one: tiles in
    flight are the most recently used, and there are fewer of them than slots.
    """
    batch = 0 if P[L.P_SHARED_B] != 0 else op[L.BATCH]
    found = wanted
    oldest = 0
    first, end = (wanted, wanted + 1) if wanted >= 0 else (0, P[L.P_SLOTS_B])
    held = False
    for slot in range(first, end):
        tag = L.S_TAGS + slot * L.TAG_SIZE
        if (
            S[tag + L.TAG_K] == op[L.K]
            and S[tag + L.TAG_N0] == op[L.N0]
            and S[tag + L.TAG_COLS] == op[L.COLS]
            and S[tag + L.TAG_BATCH] == batch
        ):
            found = slot
            held = True
            break
        if S[tag + L.TAG_STAMP] < S[L.S_TAGS + oldest * L.TAG_SIZE + L.TAG_STAMP]:
            oldest = slot
    if found < 0:
        found = oldest
    tag = L.S_TAGS + found * L.TAG_SIZE
    S[tag + L.TAG_BATCH] = batch
    S[tag + L.TAG_K] = op[L.K]
    S[tag + L.TAG_N0] = op[L.N0]
    S[tag + L.TAG_COLS] = op[L.COLS]
    S[L.S_CLOCK] += 1
    S[tag + L.TAG_STAMP] = S[L.S_CLOCK]
    op[L.SLOT_B] = found
    op[L.REALISED] = _CACHED if held else _COPIED


@njit
def load_b(P, S, at, j, slot, op):
    """Write LOAD_B; returns the slot B goes to."""
    put_tile(P, S, at, _LOAD_B, j, slot, op)
    if P[L.P_STAGE_B] == _CACHED:
        claim_b(P, S, op, -1)
    else:
        op[L.REALISED] = P[L.P_STAGE_B]
    return op[L.SLOT_B]


@njit
def multiply(P, S, op):
    """Write MMAD of the current piece's next K tile and move the slot ring on."""
    put_tile(P, S, L.S_CUR, _MMAD, S[L.S_J], S[L.S_SLOT], op)
    op[L.SLOT_B] = S[L.S_B]
    S[L.S_B] = S[L.S_B_NEXT]
    S[L.S_SLOT] = (S[L.S_SLOT] + 1) % P[L.P_STAGES]
    S[L.S_J] += 1


@njit
def pingpong(P, S, op):
    """The next K tile of the block is loaded before each multiplication; a block's first tile is never loaded ahead.

    0 next piece, load A of its first tile; 1 load B of it; 2 load A of the next tile; 3 load B of it; 4 multiply; 5 store.
    """
    while True:
        pc = S[L.S_PC]
        if pc == 0:
            if not take_piece(P, S, L.S_CUR):
                return False
            S[L.S_J] = 0
            if S[L.S_CUR + L.PIECE_KT] == 0:  # an empty sum: nothing to load or multiply, zeros are stored
                S[L.S_PC] = 5
                continue
            load_a(P, S, L.S_CUR, 0, S[L.S_SLOT], op)
            S[L.S_PC] = 1
            return True
        if pc == 1:
            S[L.S_B] = load_b(P, S, L.S_CUR, 0, S[L.S_SLOT], op)
            S[L.S_PC] = 2
            return True
        if pc == 2 or pc == 3:
            if S[L.S_J] + 1 == S[L.S_CUR + L.PIECE_KT]:
                S[L.S_PC] = 4
                continue
            ahead = (S[L.S_SLOT] + 1) % P[L.P_STAGES]
            if pc == 2:
                load_a(P, S, L.S_CUR, S[L.S_J] + 1, ahead, op)
            else:
                S[L.S_B_NEXT] = load_b(P, S, L.S_CUR, S[L.S_J] + 1, ahead, op)
            S[L.S_PC] = pc + 1
            return True
        if pc == 4:
            multiply(P, S, op)
            S[L.S_PC] = 5 if S[L.S_J] == S[L.S_CUR + L.PIECE_KT] else 2
            return True
        put_op(S, L.S_CUR, _STORE, 0, op)
        S[L.S_PC] = 0
        return True


@njit
def next_block(P, S):
    """Preload: make the piece looked at ahead the current one, and look at the one behind it; False at the end."""
    if S[L.S_NEXT_STATE] == 0:
        S[L.S_NEXT_STATE] = 1 if take_piece(P, S, L.S_NEXT) else 2
    if S[L.S_NEXT_STATE] == 2:
        return False
    for i in range(L.PIECE_SIZE):
        S[L.S_CUR + i] = S[L.S_NEXT + i]
    S[L.S_NEXT_STATE] = 1 if take_piece(P, S, L.S_NEXT) else 2
    S[L.S_J] = 0
    return True


@njit
def can_preload(S):
    """The first tile of the next piece may be loaded ahead: there is one, and it is not the second half of a cross task."""
    return S[L.S_NEXT_STATE] == 1 and S[L.S_NEXT + L.PIECE_CHAIN] == 0 and S[L.S_NEXT + L.PIECE_KT] > 0


@njit
def preload(P, S, op):
    """As Pingpong, and during a block's last multiplication the next block's (or batch's) first tile is loaded.

    0 next piece; 1, 2 load A, B of its first tile unless it was loaded ahead; 3, 4 load A, B of the next tile; 5 multiply; 6 store.
    """
    while True:
        pc = S[L.S_PC]
        if pc == 0:
            if not next_block(P, S):
                return False
            if S[L.S_CUR + L.PIECE_KT] == 0:
                S[L.S_PC] = 6
            else:
                S[L.S_PC] = 3 if S[L.S_LOADED] == 1 else 1
            S[L.S_LOADED] = 0
            continue
        if pc == 1:
            load_a(P, S, L.S_CUR, 0, S[L.S_SLOT], op)
            S[L.S_PC] = 2
            return True
        if pc == 2:
            S[L.S_B] = load_b(P, S, L.S_CUR, 0, S[L.S_SLOT], op)
            S[L.S_PC] = 3
            return True
        if pc == 3 or pc == 4:
            last = S[L.S_J] + 1 == S[L.S_CUR + L.PIECE_KT]
            if last and not can_preload(S):
                S[L.S_PC] = 5
                continue
            piece, j = (L.S_NEXT, 0) if last else (L.S_CUR, S[L.S_J] + 1)
            ahead = (S[L.S_SLOT] + 1) % P[L.P_STAGES]
            if pc == 3:
                load_a(P, S, piece, j, ahead, op)
            else:
                S[L.S_B_NEXT] = load_b(P, S, piece, j, ahead, op)
                S[L.S_LOADED] = 1 if last else 0
            S[L.S_PC] = pc + 1
            return True
        if pc == 5:
            multiply(P, S, op)
            S[L.S_PC] = 6 if S[L.S_J] == S[L.S_CUR + L.PIECE_KT] else 3
            return True
        put_op(S, L.S_CUR, _STORE, 0, op)
        S[L.S_PC] = 0
        return True


@njit
def enqueue(P, S, op):
    """Append the current piece's tile j to the FIFO as a complete MMAD op, with the K fields of the store behind it."""
    position = (S[L.S_HEAD] + S[L.S_COUNT]) % P[L.P_PRELOAD]
    entry = L.S_TAGS + P[L.P_SLOTS_B] * L.TAG_SIZE + position * L.ENTRY_SIZE
    if S[L.S_CUR + L.PIECE_KT] == 0:
        put_op(S, L.S_CUR, _MMAD, 0, op)
        op[L.LAST] = 1
    else:
        put_tile(P, S, L.S_CUR, _MMAD, S[L.S_J], S[L.S_SLOT], op)
        op[L.SLOT_B] = S[L.S_B]
        S[L.S_SLOT] = (S[L.S_SLOT] + 1) % P[L.P_STAGES]
    for i in range(L.OP_SIZE):
        S[entry + i] = op[i]
    S[entry + L.ENTRY_K] = S[L.S_CUR + L.PIECE_K]
    S[entry + L.ENTRY_KLEN] = S[L.S_CUR + L.PIECE_KLEN]
    S[entry + L.ENTRY_K0] = S[L.S_CUR + L.PIECE_K0]
    S[L.S_COUNT] += 1
    S[L.S_J] += 1


@njit
def dequeue(P, S):
    """Move the oldest descriptor to S_EXEC."""
    entry = L.S_TAGS + P[L.P_SLOTS_B] * L.TAG_SIZE + S[L.S_HEAD] * L.ENTRY_SIZE
    for i in range(L.ENTRY_SIZE):
        S[L.S_EXEC + i] = S[entry + i]
    S[L.S_HEAD] = (S[L.S_HEAD] + 1) % P[L.P_PRELOAD]
    S[L.S_COUNT] -= 1


@njit
def executed_op(S, kind, op):
    """Write the descriptor in execution as an op of the given kind."""
    for i in range(L.OP_SIZE):
        op[i] = S[L.S_EXEC + i]
    op[L.OP] = kind
    if kind != _MMAD:
        op[L.K] = S[L.S_EXEC + L.ENTRY_K]
        op[L.KLEN] = S[L.S_EXEC + L.ENTRY_KLEN]
        op[L.K0] = S[L.S_EXEC + L.ENTRY_K0]
        op[L.SLOT] = 0
        op[L.SLOT_B] = 0
        op[L.FIRST] = 0
        op[L.LAST] = 0


@njit
def preload_async(P, S, op):
    """Loads run P_PRELOAD tiles ahead of the multiplications, across blocks; what is left in the FIFO drains at the end.

    0 next tile, load A; 1 load B; 2 execute the oldest descriptor if the FIFO is full; 3 enqueue the tile;
    4 multiply; 5 before; 6 store; 7 after; 8 back to 3, or drain.
    """
    while True:
        pc = S[L.S_PC]
        if pc == 0:
            if S[L.S_J] == S[L.S_CUR + L.PIECE_KT] or S[L.S_CUR + L.PIECE_KT] == 0:
                S[L.S_J] = 0
                if not take_piece(P, S, L.S_CUR):
                    S[L.S_DRAIN] = 1
                    S[L.S_CUR + L.PIECE_KT] = 0
                    S[L.S_PC] = 8
                    continue
                if S[L.S_CUR + L.PIECE_KT] == 0:
                    S[L.S_PC] = 2
                    continue
            load_a(P, S, L.S_CUR, S[L.S_J], S[L.S_SLOT], op)
            S[L.S_PC] = 1
            return True
        if pc == 1:
            S[L.S_B] = load_b(P, S, L.S_CUR, S[L.S_J], S[L.S_SLOT], op)
            S[L.S_PC] = 2
            return True
        if pc == 2:
            S[L.S_PC] = 3
            if S[L.S_COUNT] == P[L.P_PRELOAD]:
                dequeue(P, S)
                S[L.S_PC] = 4
            continue
        if pc == 3:
            enqueue(P, S, op)
            S[L.S_PC] = 0
            continue
        if pc == 8:
            if S[L.S_DRAIN] == 0:
                S[L.S_PC] = 3
                continue
            if S[L.S_COUNT] == 0:
                return False
            dequeue(P, S)
            S[L.S_PC] = 4
            continue
        if execute(P, S, pc, op):
            return True


@njit
def execute(P, S, pc, op):
    """Sections 4 to 7 of `preload_async`; False when the section has nothing to say."""
    S[L.S_PC] = pc + 1
    if pc == 4:
        if S[L.S_EXEC + L.LAST] == 0:
            S[L.S_PC] = 8
        if S[L.S_EXEC + L.KLEN] == 0:
            return False
        executed_op(S, _MMAD, op)
        return True
    if pc == 6:
        executed_op(S, _STORE, op)
        return True
    if P[L.P_CALLBACK] == 0:
        return False
    executed_op(S, _BEFORE if pc == 5 else _AFTER, op)
    return True


@njit
def slab_piece(P, S):
    """HostPanels: fetch the next piece that the current K slab touches; False at the end.

    The pieces of one batch form a window that is walked once per slab.  Behind its last piece the scheduler is rewound to its
    first step for the next slab; behind the last slab the window moves to the next batch.
    """
    while True:
        more = take_piece(P, S, L.S_CUR)
        if not more or S[L.S_CUR + L.PIECE_BATCH] != S[L.S_WINDOW_BATCH]:
            S[L.S_SLAB] += 1
            if S[L.S_WINDOW_BATCH] >= 0 and S[L.S_SLAB] < P[L.P_KT]:
                S[L.S_STEP] = S[L.S_WINDOW]
                S[L.S_HAVE] = 0
                S[L.S_AT] = 0
                continue
            if not more:
                return False
            S[L.S_WINDOW_BATCH] = S[L.S_CUR + L.PIECE_BATCH]
            S[L.S_WINDOW] = S[L.S_STEP] - 1  # a batch begins at the first piece of a task
            S[L.S_SLAB] = 0
        j = S[L.S_SLAB] - S[L.S_CUR + L.PIECE_K]
        kt = S[L.S_CUR + L.PIECE_KT]
        if (j >= 0 and j < kt) or (kt == 0 and S[L.S_SLAB] == 0):
            S[L.S_J] = j
            return True


@njit
def host_panels(P, S, op):
    """K slab outermost: B is packed once per slab and block column, A is read in place, blocks accumulate from slab to slab.

    0 next piece of the slab; 1 load B unless the slab's column is held; 2 load A; 3 multiply; 4 store on the last slab.
    """
    while True:
        pc = S[L.S_PC]
        if pc == 0:
            if not slab_piece(P, S):
                return False
            S[L.S_PC] = 4 if S[L.S_CUR + L.PIECE_KT] == 0 else 1
        elif pc == 1:
            S[L.S_PC] = 2
            put_tile(P, S, L.S_CUR, _LOAD_B, S[L.S_J], 0, op)
            if P[L.P_STAGE_B] == _CACHED:
                claim_b(P, S, op, op[L.N])
            else:
                op[L.REALISED] = P[L.P_STAGE_B]
            S[L.S_B] = op[L.SLOT_B]
            if op[L.REALISED] != _CACHED:
                return True
        elif pc == 2:
            load_a(P, S, L.S_CUR, S[L.S_J], 0, op)
            S[L.S_PC] = 3
            return True
        elif pc == 3:
            put_tile(P, S, L.S_CUR, _MMAD, S[L.S_J], 0, op)
            op[L.SLOT_B] = S[L.S_B]
            S[L.S_PC] = 4 if op[L.LAST] != 0 else 0
            return True
        else:
            put_op(S, L.S_CUR, _STORE, 0, op)
            S[L.S_PC] = 0
            return True
