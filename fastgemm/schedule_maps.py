"""Block schedulers as jitted maps: one function per scheduler, dispatched by id in `steps_of`, `task_of` and `task_pieces`.

A scheduler says how many steps a core makes, which task each step is, and which block (or part of one) a task covers.  P and
out are pointers to the vectors of `fastgemm.layout`; all arithmetic is 64-bit.  The mappings are those of the CATLASS block
schedulers (identity, split-K, tail split-K, stream-K, single-core split-K, L1 full load, column block, ASWT).
"""

from __future__ import annotations

from . import layout as L
from .layout import SchedulerId
from .vectors import inner

__all__ = ["piece_of", "row_major_piece", "row_major_steps", "steps_of", "task_of", "task_pieces"]

_IDENTITY = int(SchedulerId.IDENTITY)
_ROW_MAJOR = int(SchedulerId.ROW_MAJOR)
_SPLIT_K = int(SchedulerId.SPLIT_K)
_TAIL_SPLIT_K = int(SchedulerId.TAIL_SPLIT_K)
_STREAM_K = int(SchedulerId.STREAM_K)
_SINGLE_CORE_SPLIT_K = int(SchedulerId.SINGLE_CORE_SPLIT_K)
_L1_FULL_LOAD = int(SchedulerId.L1_FULL_LOAD)
_COLUMN_BLOCK = int(SchedulerId.COLUMN_BLOCK)


@inner
def put_block(P, batch, m, n, out, at):
    """Fill the piece at out[at:] with the whole block (m, n)."""
    m0 = m * P[L.P_TM]
    n0 = n * P[L.P_TN]
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
def identity_block(P, batch, index, out, at):
    """Block number `index`: bands of P_OFFSET rows (direction 0) or columns (1), walked across first; odd bands run back."""
    along = P[L.P_COLS]
    across = P[L.P_ROWS]
    if P[L.P_DIRECTION] != 0:
        along = P[L.P_ROWS]
        across = P[L.P_COLS]
    width = min(P[L.P_OFFSET], across)  # a huge offset would overflow width * along and changes nothing
    band = index // (width * along)
    inside = index - band * width * along
    height = min(width, across - band * width)
    far = inside // height
    near = band * width + inside - far * height
    if band & 1:
        far = along - 1 - far
    if P[L.P_DIRECTION] != 0:
        put_block(P, batch, far, near, out, at)
    else:
        put_block(P, batch, near, far, out, at)


@inner
def row_major_block(P, batch, index, out, at):
    """Block number `index`, row by row."""
    m = index // P[L.P_COLS]
    put_block(P, batch, m, index - m * P[L.P_COLS], out, at)


@inner
def put_slice(P, part, parts, out, at):
    """Narrow the piece to slice `part` of K cut into `parts`; the first Kt mod parts slices are one tile longer."""
    length = P[L.P_KT] // parts
    longer = P[L.P_KT] - length * parts
    kt = length + 1 if part < longer else length
    cut_k(P, part * length + min(part, longer), kt, part, parts, out, at)


@inner
def split_k_block(P, batch, index, out, at):
    """Slices of K outermost; inside a slice the blocks in identity order."""
    blocks = P[L.P_ROWS] * P[L.P_COLS]
    part = index // blocks
    identity_block(P, batch, index - part * blocks, out, at)
    put_slice(P, part, P[L.P_SPLIT], out, at)


@inner
def tail_split_k_block(P, batch, index, out, at):
    """Whole blocks first; the blocks of the last, partial wave are cut along K, the slices of a block next to each other."""
    behind = index - P[L.P_NORMAL]
    if behind < 0:
        identity_block(P, batch, index, out, at)
        return
    block = behind // P[L.P_SPLIT]
    identity_block(P, batch, P[L.P_NORMAL] + block, out, at)
    put_slice(P, behind - block * P[L.P_SPLIT], P[L.P_SPLIT], out, at)


@inner
def stream_first(P, block):
    """The stream task that holds the first K tile of stream block `block` (or its boundary behind the last block)."""
    cores = P[L.P_CORES]
    total = (P[L.P_ROWS] * P[L.P_COLS] - P[L.P_NORMAL]) * P[L.P_KT]
    length = total // cores
    longer = total - length * cores
    boundary = block * P[L.P_KT]
    if boundary <= longer * (length + 1):
        return boundary // (length + 1)
    return longer + (boundary - longer * (length + 1)) // length


@inner
def stream_start(P, task):
    """First K tile of stream task `task` in the concatenation of the stream blocks."""
    cores = P[L.P_CORES]
    total = (P[L.P_ROWS] * P[L.P_COLS] - P[L.P_NORMAL]) * P[L.P_KT]
    length = total // cores
    return task * length + min(task, total - length * cores)


@inner
def stream_part(P, batch, task, start, kt, out, at):
    """Piece of stream task `task`: kt K tiles from flat tile `start`, all of one block."""
    block = start // P[L.P_KT]
    first = stream_first(P, block)
    last = stream_first(P, block + 1)
    if (
        stream_start(P, last) == (block + 1) * P[L.P_KT]
    ):  # the boundary is a task's edge: the task behind it has no share
        last -= 1
    identity_block(P, batch, P[L.P_NORMAL] + block, out, at)
    cut_k(P, start - block * P[L.P_KT], kt, task - first, last - first + 1, out, at)


@inner
def stream_k_block(P, batch, index, out, at):
    """Complete waves of whole blocks; the K tiles of the blocks left over are dealt out evenly to all cores, in flat order."""
    task = index - P[L.P_NORMAL]
    if task < 0 or P[L.P_KT] == 0:
        identity_block(P, batch, index, out, at)
        return 1
    start = stream_start(P, task)
    end = stream_start(P, task + 1)
    middle = (start // P[L.P_KT] + 1) * P[L.P_KT]
    stream_part(P, batch, task, start, min(end, middle) - start, out, at)
    if end <= middle:
        return 1
    stream_part(P, batch, task, middle, end - middle, out, at + L.PIECE_SIZE)
    out[at + L.PIECE_SIZE + L.PIECE_CHAIN] = 1
    return 2


@inner
def contiguous_blocks(P):
    """Single-core split-K: blocks of a core that gets more, and how many cores do."""
    blocks = P[L.P_ROWS] * P[L.P_COLS]
    most = (blocks + P[L.P_CORES] - 1) // P[L.P_CORES]
    return most, blocks - P[L.P_CORES] * (most - 1)


@inner
def double_snake_block(P, batch, index, out, at):
    """Identity order whose bands also turn round across the band in odd columns (rows), so that consecutive blocks share an edge.

    A short last band joins the one before it: up to half an offset of rows (direction 0), less than half of columns (1).
    """
    along = P[L.P_COLS]
    across = P[L.P_ROWS]
    direction = P[L.P_DIRECTION]
    if direction != 0:
        along = P[L.P_ROWS]
        across = P[L.P_COLS]
    width = min(P[L.P_OFFSET], across)
    bands = (across + width - 1) // width
    tail = across - (bands - 1) * width
    if bands >= 2 and tail + direction <= width // 2:
        bands -= 1
    band = min(index // (width * along), bands - 1)
    inside = index - band * width * along
    height = across - band * width if band == bands - 1 else width
    far = inside // height
    near = inside - far * height
    if band & 1:
        far = along - 1 - far
    if far & 1:
        near = height - 1 - near
    near += band * width
    if direction != 0:
        put_block(P, batch, far, near, out, at)
    else:
        put_block(P, batch, near, far, out, at)


@inner
def single_core_block(P, batch, index, out, at):
    """A contiguous run of blocks per core, K outermost; a core's tasks are numbered on from Kt times its first block."""
    depth = max(P[L.P_KT], 1)
    most, fuller = contiguous_blocks(P)
    block = index // depth
    start = block - block % most
    length = most
    if block >= most * fuller:
        length = most - 1
        start = block - (block - most * fuller) % length
    loop = index - start * depth
    k = loop // length
    double_snake_block(P, batch, start + loop - k * length, out, at)
    if P[L.P_KT] > 0:
        cut_k(P, k, 1, k, P[L.P_KT], out, at)


@inner
def full_load_block(P, batch, index, out, at):
    """Identity geometry, ranked so that each core walks a contiguous run."""
    cores = P[L.P_CORES]
    blocks = P[L.P_ROWS] * P[L.P_COLS]
    step = index // cores
    rank = index - step * cores
    each = blocks // cores
    identity_block(P, batch, rank * each + step + min(rank, blocks - each * cores), out, at)


@inner
def column_tails(P):
    """Column block: columns left over for a core's tail, cores that get one more, cores that have a tail."""
    rest = P[L.P_N] % (P[L.P_CORES] * P[L.P_TN])
    each = rest // P[L.P_CORES]
    return each, rest - each * P[L.P_CORES], P[L.P_CORES] if each > 0 else rest


@inner
def column_block(P, batch, index, out, at):
    """Equal columns for every core: whole block columns first, then a share of the columns left over; m varies fastest."""
    cores = P[L.P_CORES]
    rows = P[L.P_ROWS]
    full = P[L.P_N] // (cores * P[L.P_TN])
    tail = index - full * rows * cores
    if tail < 0:
        walk = index // cores
        column = walk // rows
        put_block(P, batch, walk - column * rows, column * cores + index - walk * cores, out, at)
        return
    each, longer, tails = column_tails(P)
    m = tail // tails
    rank = tail - m * tails
    put_block(P, batch, m, full * cores, out, at)
    out[at + L.PIECE_N0] += rank * each + min(rank, longer)
    out[at + L.PIECE_COLS] = each + 1 if rank < longer else each


@inner
def aswt_block(P, batch, index, out, at):
    """Bands of four rows; the last band absorbs the remainder; odd bands run back."""
    along = P[L.P_COLS]
    height = min(P[L.P_OFFSET], P[L.P_ROWS])
    last = P[L.P_ROWS] // height - 1
    band = min(index // (along * height), last)
    inside = index - band * along * height
    first = band * height
    if band == last:
        height = P[L.P_ROWS] - first
    n = inside // height
    m = first + inside - n * height
    put_block(P, batch, m, along - 1 - n if band & 1 else n, out, at)


@inner
def cut_block(P, piece, out, at):
    """ASWT tail split: narrow the block at out[at:] to part `piece`; False when the part lies beyond it."""
    rows = out[at + L.PIECE_ROWS]
    cols = out[at + L.PIECE_COLS]
    across = (rows + P[L.P_CUT_M] - 1) // P[L.P_CUT_M]
    along = (cols + P[L.P_CUT_N] - 1) // P[L.P_CUT_N]
    j = piece // P[L.P_CUT_M]
    m0 = (piece - j * P[L.P_CUT_M]) * across
    n0 = j * along
    out[at + L.PIECE_M0] += m0
    out[at + L.PIECE_N0] += n0
    out[at + L.PIECE_ROWS] = min(across, rows - m0)
    out[at + L.PIECE_COLS] = min(along, cols - n0)
    return m0 < rows and n0 < cols


@inner
def task_pieces(P, task, out, at):
    """Write the pieces of a task from out[at] on; returns how many."""
    scheduler = P[L.P_SCHEDULER]
    batch = task // P[L.P_LOOPS]
    index = task - batch * P[L.P_LOOPS]
    pieces = 1
    if scheduler == _IDENTITY:
        identity_block(P, batch, index, out, at)
    elif scheduler == _ROW_MAJOR:
        row_major_block(P, batch, index, out, at)
    elif scheduler == _SPLIT_K:
        split_k_block(P, batch, index, out, at)
    elif scheduler == _TAIL_SPLIT_K:
        tail_split_k_block(P, batch, index, out, at)
    elif scheduler == _STREAM_K:
        pieces = stream_k_block(P, batch, index, out, at)
    elif scheduler == _SINGLE_CORE_SPLIT_K:
        single_core_block(P, batch, index, out, at)
    elif scheduler == _L1_FULL_LOAD:
        full_load_block(P, batch, index, out, at)
    elif scheduler == _COLUMN_BLOCK:
        column_block(P, batch, index, out, at)
    else:
        aswt_block(P, batch, index, out, at)
    out[at + L.PIECE_TASK] = task
    out[at + L.PIECE_SIZE + L.PIECE_TASK] = task
    return pieces


@inner
def batch_steps(P, rank):
    """Steps per batch of the core of that rank, for schedulers that finish one batch before the next."""
    if P[L.P_SCHEDULER] == _SINGLE_CORE_SPLIT_K:
        most, fuller = contiguous_blocks(P)
        return (most if rank < fuller else most - 1) * max(P[L.P_KT], 1)
    if P[L.P_SCHEDULER] == _L1_FULL_LOAD:
        return (P[L.P_LOOPS] - rank + P[L.P_CORES] - 1) // P[L.P_CORES]
    _each, _longer, tails = column_tails(P)
    return P[L.P_ROWS] * (P[L.P_N] // (P[L.P_CORES] * P[L.P_TN]) + (1 if rank < tails else 0))


@inner
def steps_of(P, core):
    """Number of steps the core makes."""
    total = P[L.P_BATCH] * P[L.P_LOOPS]
    cores = P[L.P_CORES]
    rank = (core + cores - P[L.P_START]) % cores
    if total == 0:
        return 0
    if P[L.P_SCHEDULER] >= _SINGLE_CORE_SPLIT_K and P[L.P_SCHEDULER] <= _COLUMN_BLOCK:
        return P[L.P_BATCH] * batch_steps(P, rank)
    rounds = (total + cores - 1) // cores
    last = (total - (rounds - 1) * cores) * P[L.P_CUT_M] * P[L.P_CUT_N]
    return rounds if rank < last else rounds - 1


@inner
def task_of(P, rank, step):
    """The task of the step of the core of that rank."""
    cores = P[L.P_CORES]
    scheduler = P[L.P_SCHEDULER]
    task = step * cores + rank
    if scheduler >= _SINGLE_CORE_SPLIT_K and scheduler <= _COLUMN_BLOCK:
        each = batch_steps(P, rank)
        batch = step // each
        inside = step - batch * each
        task = batch * P[L.P_LOOPS] + inside * cores + rank
        if scheduler == _SINGLE_CORE_SPLIT_K:
            most, fuller = contiguous_blocks(P)
            start = rank * most - max(0, rank - fuller)
            task = batch * P[L.P_LOOPS] + start * max(P[L.P_KT], 1) + inside
        elif scheduler == _COLUMN_BLOCK:
            whole = P[L.P_ROWS] * (P[L.P_N] // (cores * P[L.P_TN]))
            if inside >= whole:
                _each, _longer, tails = column_tails(P)
                task = batch * P[L.P_LOOPS] + whole * cores + (inside - whole) * tails + rank
    return task


@inner
def piece_of(P, core, step, out, at):
    """Write the pieces of the core's step into out[at:] (PIECE_SIZE numbers each); returns how many there are (0, 1 or 2)."""
    cores = P[L.P_CORES]
    rank = (core + cores - P[L.P_START]) % cores
    cuts = P[L.P_CUT_M] * P[L.P_CUT_N]
    if cuts > 1 and (step + 1) * cores >= P[L.P_BATCH] * P[L.P_LOOPS]:  # the last round: several cores share a block
        task_pieces(P, step * cores + rank // cuts, out, at)
        return 1 if cut_block(P, rank % cuts, out, at) else 0
    return task_pieces(P, task_of(P, rank, step), out, at)


@inner
def row_major_piece(P, core, step, out, at):
    """:func:`piece_of` for plain row-major blocks."""
    cores = P[L.P_CORES]
    task = step * cores + (core + cores - P[L.P_START]) % cores
    batch = task // P[L.P_LOOPS]
    row_major_block(P, batch, task - batch * P[L.P_LOOPS], out, at)
    out[at + L.PIECE_TASK] = task
    return 1


@inner
def row_major_steps(P, core):
    """:func:`steps_of` for plain row-major blocks."""
    cores = P[L.P_CORES]
    return (P[L.P_BATCH] * P[L.P_LOOPS] - (core + cores - P[L.P_START]) % cores + cores - 1) // cores
