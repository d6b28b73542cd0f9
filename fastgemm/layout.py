"""Where every number lives in the flat int64 vectors that schedulers, policy machines and their consumers share.

No numba here, so that objects built at the Python edge can fill the vectors without it.  `fastgemm.stream` documents the use.
"""

from __future__ import annotations

from enum import IntEnum

# --- P: one problem, its tile, its scheduler and its policy (read only once encoded) ---------------------------------------
P_SCHEDULER = 0  # scheduler id below
P_POLICY = 1  # policy id below
P_M, P_N, P_K = 2, 3, 4  # problem extents, elements
P_TM, P_TN, P_TK = 5, 6, 7  # tile extents, elements
P_ROWS, P_COLS, P_KT = 8, 9, 10  # block grid and number of K tiles
P_BATCH = 11  # number of batches
P_CORES = 12  # number of (virtual) cores
P_START = 13  # core that takes task 0: cores are ranked (core - start) mod cores
P_LOOPS = 14  # tasks of one batch
P_OFFSET, P_DIRECTION = 15, 16  # swizzle band and direction
P_SPLIT = 17  # K slices of a block (split-K) or of a tail block (tail split-K)
P_NORMAL = 18  # tasks of one batch that are whole blocks, ahead of the split tail (tail split-K, stream-K)
P_CUT_M, P_CUT_N = 19, 20  # pieces each block of the last round is cut into (ASWT tail split)
P_STAGES = 21  # L1 slots
P_PRELOAD = 22  # tiles loaded ahead (PreloadAsync)
P_SHUFFLE = 23  # 1: core c starts at K tile c mod Kt
P_CALLBACK = 24  # 1: BEFORE and AFTER around every STORE
P_GROUP = 25  # group number written into every op
P_STAGE_A, P_STAGE_B = 26, 27  # how the host realises LOAD_A and LOAD_B: a Realised value (CACHED = copy unless held)
P_SLOTS_B = 28  # B slots when B has its own (P_STAGE_B == CACHED)
P_SHARED_B = 29  # 1: one B for all batches, so its tiles are held across batches
P_DIRECT_B = 30  # 1: each block column has its own B slot (HostPanels)
P_SIZE = 31

# --- a piece: one contiguous K range of one block (or of a part of one), what a core multiplies and stores at once -------------
PIECE_TASK = 0  # task number, counted through the batches
PIECE_BATCH = 1
PIECE_GROUP = 2
PIECE_M, PIECE_N = 3, 4  # block coordinate, tiles
PIECE_K, PIECE_KT = 5, 6  # first K tile and number of K tiles
PIECE_K0, PIECE_KLEN = 7, 8  # the same in elements
PIECE_M0, PIECE_N0 = 9, 10  # first row and column, elements
PIECE_ROWS, PIECE_COLS = 11, 12  # extents, elements
PIECE_PART, PIECE_PARTS = 13, 14  # this is part PART of the PARTS that K of the block is cut into (0 of 1: all of K)
PIECE_CHAIN = 15  # 0 for the first piece of a task, 1 for the second (stream-K cross tasks)
PIECE_SIZE = 16
MAX_PIECES = 2  # pieces of one task


class SchedulerId(IntEnum):
    """Scheduler ids of P_SCHEDULER."""

    IDENTITY = 0
    ROW_MAJOR = 1
    SPLIT_K = 2
    TAIL_SPLIT_K = 3
    STREAM_K = 4
    SINGLE_CORE_SPLIT_K = 5
    L1_FULL_LOAD = 6
    COLUMN_BLOCK = 7
    ASWT = 8


class PolicyId(IntEnum):
    """Policy ids of P_POLICY."""

    PINGPONG = 0
    PRELOAD = 1
    PRELOAD_ASYNC = 2
    PRELOAD_ASYNC_WITH_CALLBACK = 3
    HOST_PANELS = 4


class Op(IntEnum):
    """What a core does next."""

    LOAD_A = 0
    LOAD_B = 1
    MMAD = 2
    STORE = 3
    BEFORE = 4
    AFTER = 5


class Realised(IntEnum):
    """How the host carries a load out: nothing to load, copied (packed) into the slot, read where it is, still in a slot."""

    NONE = 0
    COPIED = 1
    IN_PLACE = 2
    CACHED = 3


# --- op: one step of a core; behind OP come the fields of its piece in the piece's order -------------------------------------
OP = 0  # an Op value
TASK, BATCH, GROUP = 1, 2, 3
M, N = 4, 5  # block coordinate, tiles
K, KT = 6, 7  # the K tile; for STORE, BEFORE and AFTER the first K tile of the piece. Number of K tiles of the piece
K0, KLEN = 8, 9  # the K tile (for STORE, BEFORE and AFTER the whole piece) in elements
M0, N0 = 10, 11  # first row and column, elements
ROWS, COLS = 12, 13  # extents, elements
PART, PARTS = 14, 15  # as in the piece
CHAIN = 16  # as in the piece
SLOT = 17  # L1 slot
SLOT_B = 18  # slot of the B tile; equals SLOT unless B has its own slots
FIRST, LAST = (
    19,
    20,
)  # 1 on the first and last *executed* K step of the piece: reset the accumulator, the result is complete
REALISED = 21  # a Realised value
OP_SIZE = 22

# Values of OP and REALISED, and two zeros.  To numba an attribute of a module is a plain number, where a literal or a global
# would make it compile the callee again for each value.
LOAD_A, LOAD_B, MMAD, STORE, BEFORE, AFTER = (int(op) for op in Op)
NONE, COPIED, IN_PLACE, CACHED = (int(how) for how in Realised)
FIRST_TILE = 0
ONLY_SLOT = 0

# --- S: the state of one core's machine --------------------------------------------------------------------------------------
S_CORE = 0
S_STEP, S_STEPS = 1, 2  # next step to fetch from the scheduler, number of steps
S_HAVE, S_AT = 3, 4  # pieces of the fetched step in the buffer, next of them to hand out
S_PC = 5  # where the machine resumes; every machine starts at 0
S_J = 6  # executed K steps of the current piece
S_RING = 7  # L1 slot of the current tile
S_LOADED = 8  # 1: the first tile of the current piece is already in its slot (Preload)
S_AHEAD = 9  # 0: not looked ahead yet, 1: S_NEXT holds a piece, 2: no more pieces (Preload)
S_HEAD, S_COUNT = 10, 11  # FIFO of descriptors: oldest entry, number of entries (PreloadAsync)
S_DRAIN = 12  # 1: all tiles are issued, the FIFO drains
S_SLAB, S_WINDOW, S_WINDOW_BATCH = 13, 14, 15  # K slab, first step and batch of the pieces it runs over (HostPanels)
S_CLOCK = 16  # time stamp of B slots
S_SAY, S_SAY_PIECE, S_SAY_J, S_SAY_SLOT = (
    17,
    18,
    19,
    20,
)  # the machine's decision: op, piece it is about, executed K step, slot
S_CUR = 21  # the current piece
S_NEXT = S_CUR + PIECE_SIZE  # the piece behind it
S_BUFFER = S_NEXT + PIECE_SIZE  # pieces of the fetched step
ENTRY_J, ENTRY_SLOT = PIECE_SIZE, PIECE_SIZE + 1  # a FIFO descriptor: piece, executed K step, slot
ENTRY_SIZE = PIECE_SIZE + 2
S_EXEC = S_BUFFER + MAX_PIECES * PIECE_SIZE  # the descriptor in execution (PreloadAsync)
S_TAGS = S_EXEC + ENTRY_SIZE  # what each B slot holds; behind them P_STAGES B slot numbers by L1 slot, then the FIFO
TAG_BATCH, TAG_K, TAG_N0, TAG_COLS, TAG_STAMP = 0, 1, 2, 3, 4
TAG_SIZE = 5
