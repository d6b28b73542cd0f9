"""The dispatch policies as jitted state machines: each call of one decides the next op of a core, `emit` writes it.

P, S and op are pointers to the vectors of `fastgemm.layout`; `fastgemm.stream` takes arrays.

A machine keeps everything in the state vector, so it can be left after any op and resumed.  S_PC says where; the sections of
a machine are numbered by it.  Order and protocol are those of the CATLASS block multiplications (Pingpong, Preload,
PreloadAsync); HostPanels is this package's own.
"""

from __future__ import annotations

from typing import Any

from . import layout as L
from .schedule_maps import piece_of
from .vectors import inner

__all__ = ["emit", "host_panels", "panels", "pingpong", "preload", "preload_async", "taker"]


def taker(piece_of: Any) -> Any:
    """The function that hands out the pieces of a scheduler one by one."""

    @inner
    def take_piece(P, S, at):
        """Copy the core's next piece to S[at:]; False when there are no more."""
        while S[L.S_AT] >= S[L.S_HAVE]:
            if S[L.S_STEP] >= S[L.S_STEPS]:
                return False
            S[L.S_HAVE] = piece_of(P, S[L.S_CORE], S[L.S_STEP], S, L.S_BUFFER)
            S[L.S_AT] = 0
            S[L.S_STEP] += 1
        source = L.S_BUFFER + S[L.S_AT] * L.PIECE_SIZE
        for i in range(L.PIECE_SIZE):
            S[at + i] = S[source + i]
        S[L.S_AT] += 1
        return True

    return take_piece


take_piece = taker(piece_of)


@inner
def say(S, kind, piece, j, slot):
    """Decide on op `kind` about the j-th executed K tile of the piece at S[piece:]."""
    S[L.S_SAY] = kind
    S[L.S_SAY_PIECE] = piece
    S[L.S_SAY_J] = j
    S[L.S_SAY_SLOT] = slot
    return True


@inner
def tile_k(P, S, piece, j):
    """The K tile executed as the j-th of the piece: ShuffleK starts core c at its tile c, wrapping round."""
    shift = S[L.S_CORE] if P[L.P_SHUFFLE] != 0 else 0
    return S[piece + L.PIECE_K] + (j + shift) % S[piece + L.PIECE_KT]


@inner
def find_b(P, S, piece, k):
    """The B slot that holds the piece's K tile k, or -1 - the slot to replace.

    That is the least recently used one: tiles in flight are the most recently used, and there are fewer of them than slots.
    With P_DIRECT_B each block column has its slot.
    """
    first = 0
    end = P[L.P_SLOTS_B]
    if P[L.P_DIRECT_B] != 0:
        first = S[piece + L.PIECE_N]
        end = first + 1
    batch = 0 if P[L.P_SHARED_B] != 0 else S[piece + L.PIECE_BATCH]
    oldest = first
    for slot in range(first, end):
        tag = L.S_TAGS + slot * L.TAG_SIZE
        same_columns = S[tag + L.TAG_N0] == S[piece + L.PIECE_N0] and S[tag + L.TAG_COLS] == S[piece + L.PIECE_COLS]
        if same_columns and S[tag + L.TAG_K] == k and S[tag + L.TAG_BATCH] == batch:
            return slot
        if S[tag + L.TAG_STAMP] < S[L.S_TAGS + oldest * L.TAG_SIZE + L.TAG_STAMP]:
            oldest = slot
    return -1 - oldest


@inner
def ring_b(P, slot):
    """Where S keeps the B slot that belongs to L1 slot `slot`."""
    return L.S_TAGS + P[L.P_SLOTS_B] * L.TAG_SIZE + slot


@inner
def claim_b(P, S, piece, k, slot):
    """Give the B tile a B slot, which goes with L1 slot `slot`; returns how the load is realised."""
    if P[L.P_STAGE_B] != L.CACHED:
        S[ring_b(P, slot)] = slot
        return P[L.P_STAGE_B]
    found = find_b(P, S, piece, k)
    realised = L.CACHED if found >= 0 else L.COPIED
    found = max(found, -1 - found)
    tag = L.S_TAGS + found * L.TAG_SIZE
    S[tag + L.TAG_BATCH] = 0 if P[L.P_SHARED_B] != 0 else S[piece + L.PIECE_BATCH]
    S[tag + L.TAG_K] = k
    S[tag + L.TAG_N0] = S[piece + L.PIECE_N0]
    S[tag + L.TAG_COLS] = S[piece + L.PIECE_COLS]
    S[L.S_CLOCK] += 1
    S[tag + L.TAG_STAMP] = S[L.S_CLOCK]
    S[ring_b(P, slot)] = found
    return realised


@inner
def emit(P, S, op):
    """Write the op decided on."""
    kind = S[L.S_SAY]
    piece = S[L.S_SAY_PIECE]
    slot = S[L.S_SAY_SLOT]
    op[L.OP] = kind
    for i in range(L.PIECE_SIZE):
        op[L.TASK + i] = S[piece + i]
    op[L.SLOT] = slot
    op[L.SLOT_B] = slot
    op[L.FIRST] = 0
    op[L.LAST] = 0
    op[L.REALISED] = 0
    if kind >= L.STORE:
        return
    j = S[L.S_SAY_J]
    k = tile_k(P, S, piece, j)
    op[L.K] = k
    op[L.K0] = k * P[L.P_TK]
    op[L.KLEN] = min(P[L.P_TK], P[L.P_K] - op[L.K0])
    op[L.FIRST] = 1 if j == 0 else 0
    op[L.LAST] = 1 if j + 1 == op[L.KT] else 0
    if kind == L.LOAD_A:
        op[L.REALISED] = P[L.P_STAGE_A]
    else:
        if kind == L.LOAD_B:
            op[L.REALISED] = claim_b(P, S, piece, k, slot)
        op[L.SLOT_B] = S[ring_b(P, slot)]


@inner
def pingpong(P, S):
    """The next K tile of the block is loaded before each multiplication; a block's first tile is never loaded ahead.

    0 next piece; 1, 2 load A, B of its first tile; 3, 4 load A, B of the next tile; 5 multiply; 6 store.
    """
    while True:
        pc = S[L.S_PC]
        j = S[L.S_J]
        ring = S[L.S_RING]
        ahead = (ring + 1) % P[L.P_STAGES]
        kt = S[L.S_CUR + L.PIECE_KT]
        if pc == 0:
            if not take_piece(P, S, L.S_CUR):
                return False
            S[L.S_J] = 0
            S[L.S_PC] = 6 if S[L.S_CUR + L.PIECE_KT] == 0 else 1  # an empty sum: nothing to load, zeros are stored
        elif pc <= 2:
            S[L.S_PC] = pc + 1
            return say(S, L.LOAD_A + pc - 1, L.S_CUR, j, ring)
        elif pc <= 4 and j + 1 < kt:
            S[L.S_PC] = pc + 1
            return say(S, L.LOAD_A + pc - 3, L.S_CUR, j + 1, ahead)
        elif pc <= 5:
            S[L.S_J] += 1
            S[L.S_RING] = ahead
            S[L.S_PC] = 6 if j + 1 == kt else 3
            return say(S, L.MMAD, L.S_CUR, j, ring)
        else:
            S[L.S_PC] = 0
            return say(S, L.STORE, L.S_CUR, j, ring)


@inner
def next_block(P, S):
    """Preload: make the piece looked at ahead the current one, and look at the one behind it; False at the end."""
    if S[L.S_AHEAD] == 0:
        S[L.S_AHEAD] = 1 if take_piece(P, S, L.S_NEXT) else 2
    if S[L.S_AHEAD] == 2:
        return False
    for i in range(L.PIECE_SIZE):
        S[L.S_CUR + i] = S[L.S_NEXT + i]
    S[L.S_AHEAD] = 1 if take_piece(P, S, L.S_NEXT) else 2
    S[L.S_J] = 0
    return True


@inner
def preload(P, S):
    """As Pingpong, and during a block's last multiplication the next block's (or batch's) first tile is loaded.

    0 next piece; 1, 2 load A, B of its first tile unless it was loaded ahead; 3, 4 load A, B of the next tile; 5 multiply; 6 store.
    """
    while True:
        pc = S[L.S_PC]
        j = S[L.S_J]
        ring = S[L.S_RING]
        ahead = (ring + 1) % P[L.P_STAGES]
        kt = S[L.S_CUR + L.PIECE_KT]
        # the second half of a cross task is not loaded ahead, nor is a piece that has nothing to load
        more = S[L.S_AHEAD] == 1 and S[L.S_NEXT + L.PIECE_CHAIN] == 0 and S[L.S_NEXT + L.PIECE_KT] > 0
        if pc == 0:
            if not next_block(P, S):
                return False
            S[L.S_PC] = 3 if S[L.S_LOADED] == 1 else 1
            if S[L.S_CUR + L.PIECE_KT] == 0:
                S[L.S_PC] = 6
            S[L.S_LOADED] = 0
        elif pc <= 2:
            S[L.S_PC] = pc + 1
            return say(S, L.LOAD_A + pc - 1, L.S_CUR, j, ring)
        elif pc <= 4 and j + 1 < kt:
            S[L.S_PC] = pc + 1
            return say(S, L.LOAD_A + pc - 3, L.S_CUR, j + 1, ahead)
        elif pc <= 4 and more:
            S[L.S_LOADED] = 1
            S[L.S_PC] = pc + 1
            return say(S, L.LOAD_A + pc - 3, L.S_NEXT, L.FIRST_TILE, ahead)
        elif pc <= 5:
            S[L.S_J] += 1
            S[L.S_RING] = ahead
            S[L.S_PC] = 6 if j + 1 == kt else 3
            return say(S, L.MMAD, L.S_CUR, j, ring)
        else:
            S[L.S_PC] = 0
            return say(S, L.STORE, L.S_CUR, j, ring)


@inner
def fifo_entry(P, position):
    """Where the FIFO entry lies in S."""
    return ring_b(P, P[L.P_STAGES]) + position % P[L.P_PRELOAD] * L.ENTRY_SIZE


@inner
def enqueue(P, S):
    """Append the descriptor of the current piece's tile j to the FIFO; the next tile goes to the next slot."""
    entry = fifo_entry(P, S[L.S_HEAD] + S[L.S_COUNT])
    for i in range(L.PIECE_SIZE):
        S[entry + i] = S[L.S_CUR + i]
    S[entry + L.ENTRY_J] = S[L.S_J]
    S[entry + L.ENTRY_SLOT] = S[L.S_RING]
    S[L.S_COUNT] += 1
    S[L.S_J] += 1
    S[L.S_RING] = (S[L.S_RING] + 1) % P[L.P_STAGES]


@inner
def dequeue(P, S):
    """Move the oldest descriptor to S_EXEC."""
    entry = fifo_entry(P, S[L.S_HEAD])
    for i in range(L.ENTRY_SIZE):
        S[L.S_EXEC + i] = S[entry + i]
    S[L.S_HEAD] = (S[L.S_HEAD] + 1) % P[L.P_PRELOAD]
    S[L.S_COUNT] -= 1


@inner
def preload_async(P, S):
    """Loads run P_PRELOAD tiles ahead of the multiplications, across blocks; what is left in the FIFO drains at the end.

    0 next tile; 1, 2 load A, B of it; 3 take the oldest descriptor out if the FIFO is full; 4 multiply it; 5 before; 6 store;
    7 after; 8 enqueue the tile loaded, or drain.
    """
    while True:
        pc = S[L.S_PC]
        j = S[L.S_J]
        done = S[L.S_EXEC + L.ENTRY_J]
        slot = S[L.S_EXEC + L.ENTRY_SLOT]
        kt = S[L.S_EXEC + L.PIECE_KT]
        if pc == 0:
            if j >= S[L.S_CUR + L.PIECE_KT]:
                S[L.S_J] = 0
                S[L.S_DRAIN] = 0 if take_piece(P, S, L.S_CUR) else 1
            S[L.S_PC] = 1
            if S[L.S_DRAIN] == 1:
                S[L.S_PC] = 8
            elif S[L.S_CUR + L.PIECE_KT] == 0:
                S[L.S_PC] = 3
        elif pc <= 2:
            S[L.S_PC] = pc + 1
            return say(S, L.LOAD_A + pc - 1, L.S_CUR, j, S[L.S_RING])
        elif pc == 3:
            S[L.S_PC] = 8
            if S[L.S_COUNT] == P[L.P_PRELOAD]:
                dequeue(P, S)
                S[L.S_PC] = 4
        elif pc == 4:
            if kt > 0:
                S[L.S_PC] = 5 if done + 1 == kt else 8
                return say(S, L.MMAD, L.S_EXEC, done, slot)
            S[L.S_PC] = 5
        elif pc == 8:
            S[L.S_PC] = 0
            if S[L.S_DRAIN] == 0:
                enqueue(P, S)
            elif S[L.S_COUNT] > 0:
                dequeue(P, S)
                S[L.S_PC] = 4
            else:
                S[L.S_PC] = 8
                return False
        elif pc == 6 or P[L.P_CALLBACK] != 0:  # pc 5, 6, 7 say BEFORE, STORE, AFTER
            kind = L.STORE if pc == 6 else L.BEFORE + (pc - 5) // 2
            S[L.S_PC] = pc + 1
            return say(S, kind, L.S_EXEC, done, slot)
        else:
            S[L.S_PC] = pc + 1


def panels(take_piece: Any) -> Any:
    """The HostPanels machine over a scheduler's pieces: one that knows a single scheduler compiles in a fraction of the time."""

    @inner
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

    @inner
    def host_panels(P, S):
        """K slab outermost: B is packed once per slab and block column, A is read in place, blocks accumulate from slab to slab.

        0 next piece of the slab; 1 load B unless the slab's column is held; 2 load A; 3 multiply; 4 store on the last slab.
        """
        while True:
            pc = S[L.S_PC]
            j = S[L.S_J]
            kt = S[L.S_CUR + L.PIECE_KT]
            if pc == 0:
                if not slab_piece(P, S):
                    return False
                S[L.S_PC] = 4 if S[L.S_CUR + L.PIECE_KT] == 0 else 1
            elif pc == 1:
                held = find_b(P, S, L.S_CUR, S[L.S_SLAB])
                S[L.S_PC] = 2
                if held < 0 or P[L.P_STAGE_B] != L.CACHED:
                    return say(S, L.LOAD_B, L.S_CUR, j, L.ONLY_SLOT)
                S[ring_b(P, L.ONLY_SLOT)] = held
            elif pc == 2:
                S[L.S_PC] = 3
                return say(S, L.LOAD_A, L.S_CUR, j, L.ONLY_SLOT)
            elif pc == 3:
                S[L.S_PC] = 4 if j + 1 == kt else 0
                return say(S, L.MMAD, L.S_CUR, j, L.ONLY_SLOT)
            else:
                S[L.S_PC] = 0
                return say(S, L.STORE, L.S_CUR, j, L.ONLY_SLOT)

    return host_panels


host_panels = panels(take_piece)
