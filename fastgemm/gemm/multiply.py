"""The loops around the micro-kernels: one product of (m x k) by (k x n) into C, for every way B can lie in memory.

All operands are addresses with byte strides; nothing is allocated.  The entries take their arguments as a block of words and are
called by address (:data:`LOOPS`).  A is read in place whatever its strides.  Two loop orders,
both measured on Zen 4:

* rows outer (:func:`by_rows`): a group of rows of A stays in the L1 cache while the panels of B stream past.  For packed B, and
  for a B in place whose rows are short.
* columns outer (:func:`by_columns`): a strip of B stays in the L1/L2 cache while the rows of A stream past.  For a B in place
  of up to some 600 KiB: 98-99 % of the peak at 192..256, where packing would cost 5 %.

Edges run exact-height kernels and lane masks; a right edge of at most half a vector runs the half-width kernel, which costs half
on machines that split a wide vector into two operations.
"""

from __future__ import annotations

from numba import types

from ..jit import cfunc
from ..vectors import inner
from . import table as t
from .emit_call import call_kernel, call_pack, copy_bytes, load_i64, on_stack, words
from .emit_sync import call

__all__ = ["COPY", "IN_PLACE", "LOOPS", "MIRROR", "MIRRORED_ROWS", "PACK", "PACKED", "ROWS"]


# The loops by the table word that holds their address.  Other jitted code calls them through it, arguments in a block of words:
# a function numba inlines is optimised again in each of its callers, and a first call waits for that.
IN_PLACE, PACKED, PACK, COPY, ROWS, MIRROR = range(t.LOOPS, t.LOOPS + 6)
# Rows of one share of MIRROR.
MIRRORED_ROWS = 128


@inner
def _strip(table, a, a_row, a_k, b, b_k, c, c_row, m, k, add, shape, cols):  # type: ignore[no-untyped-def]
    """All m rows against one strip of B; ``shape`` = (half width * 5 + vectors) * 2 + masked, ``cols`` the lanes of the mask.

    Blocks of the looped height, then one kernel of the exact rest; a strip lower than the tallest kernel is one call.
    """
    vecs = shape // 2 % 5
    heights = t.HEIGHT + shape // 2 * 17
    kernels = t.KERNEL + shape * 17
    tallest = load_i64(table + 8 * (heights + 16))
    if m <= tallest:
        call_kernel(load_i64(table + 8 * (kernels + m)), a, b, c, k, a_row, a_k, b_k, c_row, 1, 0, 0, 0, add, cols)
        return
    height = tallest
    if vecs > 1 and m > 2 * tallest:
        height = min(tallest, load_i64(table + 8 * t.PANEL_ROWS))
    if vecs == 1 and a_row % 4096 == 0:
        height = min(height, 8)  # 16 rows a page apart share one set of the L1 cache: 585 us against 232 with 8
    blocks = -(-m // height)
    height = -(-m // blocks)
    whole = m // height
    call_kernel(
        load_i64(table + 8 * (kernels + height)),
        a,
        b,
        c,
        k,
        a_row,
        a_k,
        b_k,
        c_row,
        whole,
        height * a_row,
        0,
        height * c_row,
        add,
        cols,
    )
    rest = m - whole * height
    if rest > 0:
        a += whole * height * a_row
        c += whole * height * c_row
        call_kernel(load_i64(table + 8 * (kernels + rest)), a, b, c, k, a_row, a_k, b_k, c_row, 1, 0, 0, 0, add, cols)


@inner
def _strip_vecs(vectors, wide, panel):  # type: ignore[no-untyped-def]
    """How many vectors the next strip takes of those left, so that few narrow strips remain: 7 = 4 + 3, 5 = 3 + 2."""
    if vectors % wide == 0:
        return wide
    if vectors % panel == 0:
        return panel
    if vectors >= wide + panel:
        return wide
    if vectors > wide:
        return panel
    return vectors


@inner
def by_columns(table, a, a_row, a_k, b, b_k, c, c_row, m, n, k, add):  # type: ignore[no-untyped-def]
    """C (m x n) = or += A (m x k) B (k x n), B in place with unit column stride, strips of B outermost."""
    item, lanes, col_lanes = (
        load_i64(table + 8 * t.ITEM),
        load_i64(table + 8 * t.LANES),
        load_i64(table + 8 * t.COL_LANES),
    )
    wide, panel = load_i64(table + 8 * t.WIDE_VECS), load_i64(table + 8 * t.PANEL_VECS)
    if m <= load_i64(table + 8 * t.PANEL_ROWS) and m > load_i64(table + 8 * t.WIDE_ROWS):
        wide = panel
    half = (lanes // 2) * load_i64(table + 8 * t.HAS_HALF)
    vectors = n // lanes
    edge = n - vectors * lanes
    if m <= 24 and vectors > 0:
        half = 0  # a second strip of few rows costs more than the half vector it saves
    masked_vector = 1 if edge > half else 0
    vectors += masked_vector
    last = 1 if masked_vector == 0 and edge > 0 else 0
    while vectors + last > 0:
        # One call, so that numba compiles the callee once: constants at two call sites are two signatures.
        vecs = _strip_vecs(vectors, wide, panel)
        width, masked = 0, 0
        if vectors == 0:
            vecs, width, masked, last = 1, 1, 1, 0
        elif vecs == vectors:
            masked = masked_vector
        _strip(table, a, a_row, a_k, b, b_k, c, c_row, m, k, add, (width * 5 + vecs) * 2 + masked, edge * col_lanes)
        vectors -= vecs if width == 0 else 0
        b += vecs * lanes * item
        c += vecs * lanes * item


@inner
def by_rows(table, a, a_row, a_k, b, lying, c, c_row, m, n, k, add):  # type: ignore[no-untyped-def]
    """C (m x n) = or += A (m x k) B (k x n), row groups outermost.

    ``lying`` = (b_k, b_step, edge_k, shift): B's panels of ``PANEL_VECS`` vectors lie ``b_step`` bytes apart with rows ``b_k``
    apart; the narrower last one, ``shift`` bytes further, has rows ``edge_k`` apart.  In place: b_k = edge_k = the row stride,
    b_step = the panel's width.
    """
    b_k, b_step, edge_k, shift = lying
    item, lanes, col_lanes = (
        load_i64(table + 8 * t.ITEM),
        load_i64(table + 8 * t.LANES),
        load_i64(table + 8 * t.COL_LANES),
    )
    vecs, rows = load_i64(table + 8 * t.PANEL_VECS), load_i64(table + 8 * t.PANEL_ROWS)
    half = (lanes // 2) * load_i64(table + 8 * t.HAS_HALF)
    panels = n // (vecs * lanes)
    left = n - panels * vecs * lanes
    edge_vecs = left // lanes
    edge = left - edge_vecs * lanes
    masked = 1 if edge > half else 0
    edge_vecs += masked
    cols = edge * col_lanes
    width = vecs * lanes * item
    full = t.KERNEL + vecs * 2 * 17
    at_edge = t.KERNEL + (edge_vecs * 2 + masked) * 17
    at_half = t.KERNEL + ((5 + 1) * 2 + 1) * 17
    b_edge, c_edge = b + panels * b_step + shift, panels * width
    last = edge_vecs * lanes * item
    for i in range(0, m, rows):
        height = min(rows, m - i)
        if panels > 0:
            call_kernel(
                load_i64(table + 8 * (full + height)),
                a,
                b,
                c,
                k,
                a_row,
                a_k,
                b_k,
                c_row,
                panels,
                0,
                b_step,
                width,
                add,
                0,
            )
        if edge_vecs > 0:
            call_kernel(
                load_i64(table + 8 * (at_edge + height)),
                a,
                b_edge,
                c + c_edge,
                k,
                a_row,
                a_k,
                edge_k,
                c_row,
                1,
                0,
                0,
                0,
                add,
                cols,
            )
        if edge > 0 and masked == 0:
            call_kernel(
                load_i64(table + 8 * (at_half + height)), a, b_edge + last, c + c_edge + last, k, a_row, a_k, edge_k, c_row,
                1, 0, 0, 0, add, cols,
            )  # fmt: skip
        a += rows * a_row
        c += rows * c_row


@inner
def _pack_rows(table, b, b_k, target, first, rows, k, n):  # type: ignore[no-untyped-def]
    """Rows [first, first + rows) of a (k x n) B with unit column stride, cut into panels."""
    item, lanes, vecs = load_i64(table + 8 * t.ITEM), load_i64(table + 8 * t.LANES), load_i64(table + 8 * t.PANEL_VECS)
    width = vecs * lanes
    panels = n // width
    left = n - panels * width
    b += first * b_k
    for row in range(0, rows, 8):  # 8 source rows at a time: 0.13-0.17 ns an element, 0.3 with one
        some = min(8, rows - row)
        if panels > 0:
            to = target + (first + row) * width * item
            call_pack(
                load_i64(table + 8 * (t.PACK_ROWS + vecs)),
                b,
                b_k,
                to,
                k * width * item,
                some,
                panels,
                lanes * load_i64(table + 8 * t.COL_LANES),
            )
        if left > 0:
            edge_vecs = -(-left // lanes)
            to = target + panels * k * width * item + (first + row) * edge_vecs * lanes * item
            cols = (left - (edge_vecs - 1) * lanes) * load_i64(table + 8 * t.COL_LANES)
            call_pack(
                load_i64(table + 8 * (t.PACK_ROWS + edge_vecs)), b + panels * width * item, b_k, to, 0, some, 1, cols
            )
        b += 8 * b_k


@inner
def _pack_elements(table, b, b_k, b_n, swapped, target, to_k, k, cols, lanes):  # type: ignore[no-untyped-def]
    """k rows of one vector column of a panel, from a B of any strides and byte order; absent columns become zero."""
    item, real = load_i64(table + 8 * t.ITEM), load_i64(table + 8 * t.REAL)
    for row in range(k):
        for part in range(0, item, real):
            to, at = target + row * to_k + part, b + row * b_k + part
            if real == 4:
                for j in range(cols):
                    copy_bytes(to + j * item, at + j * b_n, 4, swapped)
            else:
                for j in range(cols):
                    copy_bytes(to + j * item, at + j * b_n, 8, swapped)
        for at in range(cols * item, lanes * item, 4):
            copy_bytes(target + row * to_k + at, table + 8 * t.ZERO, 4, 0)


@inner
def _pack_any(table, b, b_k, b_n, swapped, target, first, rows, k, n):  # type: ignore[no-untyped-def]
    """Rows [first, first + rows) of a (k x n) B of any strides: squares transposed in registers where B is contiguous along
    k, single elements elsewhere."""
    item, lanes, vecs = load_i64(table + 8 * t.ITEM), load_i64(table + 8 * t.LANES), load_i64(table + 8 * t.PANEL_VECS)
    square = load_i64(table + 8 * t.PACK_SQUARE)
    units = lanes if square != 0 and b_k == item and swapped == 0 else rows + 1
    width = vecs * lanes
    # A few rows after the other where they are what lies together: down the columns of a (1024 x 1024) B every step is a page, 5 ns
    # an element against 1.
    step = 8 if abs(b_n) < abs(b_k) else max(rows, 1)
    for above in range(first, first + rows, step):
        block = min(step, first + rows - above)
        for column in range(0, n, lanes):
            panel = column // width
            at_panel = panel * width
            panel_vecs = min(vecs, -(-(n - at_panel) // lanes))
            to_k = panel_vecs * lanes * item
            to = target + at_panel * k * item + above * to_k + (column - at_panel) * item
            come_from = b + above * b_k + column * b_n
            cols = min(lanes, n - column)
            row = 0
            while row + units <= block:
                call_pack(square, come_from + row * b_k, b_n, to + row * to_k, to_k, 0, 0, cols)
                row += units
            _pack_elements(
                table, come_from + row * b_k, b_k, b_n, swapped, to + row * to_k, to_k, block - row, cols, lanes
            )


_LOOP = types.void(types.int64, types.int64, types.int64)


@cfunc(_LOOP)
def pack_panels(arguments, _share, _thread):  # type: ignore[no-untyped-def]
    """Pack rows [first, first + rows) of a (k x n) tile of B into panels at ``target`` (layout: :func:`by_rows`)."""
    w = words(arguments)
    table, b, b_k, b_n, swapped, target, first, rows, k, n = w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9]
    if b_n == load_i64(table + 8 * t.ITEM) and swapped == 0:
        _pack_rows(table, b, b_k, target, first, rows, k, n)
    else:
        _pack_any(table, b, b_k, b_n, swapped, target, first, rows, k, n)


@cfunc(_LOOP)
def lay_rows(arguments, _share, _thread):  # type: ignore[no-untyped-def]
    """Copy a (k x n) B of any strides to contiguous rows: squares transposed in registers where it is contiguous along k."""
    w = words(arguments)
    table, b, b_k, b_n, target, k, n = w[0], w[1], w[2], w[3], w[4], w[5], w[6]
    item, lanes, square = (
        load_i64(table + 8 * t.ITEM),
        load_i64(table + 8 * t.LANES),
        load_i64(table + 8 * t.PACK_SQUARE),
    )
    whole = k // lanes * lanes if square != 0 and b_k == item else 0
    to_k = n * item
    columns = n // lanes * lanes if whole > 0 else 0
    for row in range(0, whole, lanes):
        for column in range(0, columns, lanes):
            call_pack(
                square, b + row * item + column * b_n, b_n, target + row * to_k + column * item, to_k, 0, 0, lanes
            )
    rest = 1 if whole < k else 0
    # the columns right of the squares, then the rows below them
    block = on_stack((table, b + columns * b_n, b_k, b_n, 0, target + columns * item, to_k, item, whole, n - columns))
    call(load_i64(table + 8 * COPY), block, 0, 0)
    if rest != 0:
        block = on_stack((table, b + whole * b_k, b_k, b_n, 0, target + whole * to_k, to_k, item, k - whole, n))
        call(load_i64(table + 8 * COPY), block, 0, 0)


@cfunc(_LOOP)
def copy_elements(arguments, _share, _thread):  # type: ignore[no-untyped-def]
    """Copy an (m x n) matrix of any strides and byte order to one of any strides."""
    w = words(arguments)
    table, source, from_row, from_col, swapped = w[0], w[1], w[2], w[3], w[4]
    target, to_row, to_col, m, n = w[5], w[6], w[7], w[8], w[9]
    item, real = load_i64(table + 8 * t.ITEM), load_i64(table + 8 * t.REAL)
    for i in range(m):
        for part in range(0, item, real):
            to, at = target + i * to_row + part, source + i * from_row + part
            if real == 4:
                for j in range(n):
                    copy_bytes(to + j * to_col, at + j * from_col, 4, swapped)
            else:
                for j in range(n):
                    copy_bytes(to + j * to_col, at + j * from_col, 8, swapped)


@cfunc(_LOOP)
def mirror_rows(job, share, thread):  # type: ignore[no-untyped-def]
    """C[j, i] = C[i, j] for the rows i of a share and all columns j < i; job = (table, c, c_row, n)."""
    table, c, c_row, n = load_i64(job), load_i64(job + 8), load_i64(job + 16), load_i64(job + 24)
    item, lanes, square = (
        load_i64(table + 8 * t.ITEM),
        load_i64(table + 8 * t.LANES),
        load_i64(table + 8 * t.PACK_SQUARE),
    )
    for i in range(share * MIRRORED_ROWS, min(n, (share + 1) * MIRRORED_ROWS), lanes):
        rows = min(lanes, n - i)
        for j in range(0, i, lanes):
            lower, upper = c + i * c_row + j * item, c + j * c_row + i * item
            if square != 0 and rows == lanes:
                call_pack(square, lower, c_row, upper, c_row, 0, 0, lanes)
            else:
                block = on_stack((table, lower, c_row, item, 0, upper, item, c_row, rows, lanes))
                call(load_i64(table + 8 * COPY), block, 0, 0)
        for k in range(rows):
            at = c + (i + k) * c_row + i * item
            block = on_stack((table, at, c_row, item, 0, c + i * c_row + (i + k) * item, item, c_row, 1, k))
            call(load_i64(table + 8 * COPY), block, 0, 0)


@inner
def _near_slab(table, a_row, a_k, k):  # type: ignore[no-untyped-def]
    """K extent whose group of rows of A stays in the L1 cache: all of k for contiguous rows, less where an element takes more of
    its cache line.  Never below the slab of ``reproducible=True``, which must not depend on strides."""
    item, real = load_i64(table + 8 * t.ITEM), load_i64(table + 8 * t.REAL)
    if abs(a_k) == item:
        return k
    line = 64 if abs(a_row) == item else load_i64(table + 8 * t.PANEL_ROWS) * min(64, abs(a_k))
    return max(36864 // max(line, item), (2048 if real == 4 else 2816) // item)


@cfunc(_LOOP)
def multiply_packed(arguments, _share, _thread):  # type: ignore[no-untyped-def]
    """C = or += A times the first n columns (at least: whole panels are done) of a packed (k x width_packed) B."""
    w = words(arguments)
    table, a, a_row, a_k, packed, width_packed = w[0], w[1], w[2], w[3], w[4], w[5]
    c, c_row, m, n, k, add = w[6], w[7], w[8], w[9], w[10], w[11]
    lanes, vecs, item = load_i64(table + 8 * t.LANES), load_i64(table + 8 * t.PANEL_VECS), load_i64(table + 8 * t.ITEM)
    width = vecs * lanes
    n = min(width_packed, -(-n // width) * width)
    edge_vecs = -(-(n % width) // lanes)
    b_k, edge_k = width * item, edge_vecs * lanes * item
    slab = _near_slab(table, a_row, a_k, k)
    for first in range(0, k, slab):
        # a part of a panel's rows: the panels' distance stays that of all k rows
        some = min(slab, k - first)
        lying = (b_k, k * b_k, edge_k, first * (edge_k - b_k))
        by_rows(table, a + first * a_k, a_row, a_k, packed + first * b_k, lying, c, c_row, m, n, some, add)
        add = 1


@cfunc(_LOOP)
def multiply_in_place(arguments, _share, _thread):  # type: ignore[no-untyped-def]
    """C = or += A times a B of unit column stride, read where it lies.

    A low product (k <= 32) writes C row by row, since then C, not B, is what moves.
    """
    w = words(arguments)
    table, a, a_row, a_k, b, b_k = w[0], w[1], w[2], w[3], w[4], w[5]
    c, c_row, m, n, k, add = w[6], w[7], w[8], w[9], w[10], w[11]
    item, lanes, vecs = load_i64(table + 8 * t.ITEM), load_i64(table + 8 * t.LANES), load_i64(table + 8 * t.PANEL_VECS)
    if k <= 32 and m > 64 and n > 4 * vecs * lanes:
        # no shift; a constant here would make the tuple another type, and numba compile by_rows a second time
        by_rows(table, a, a_row, a_k, b, (b_k, vecs * lanes * item, b_k, vecs * 0), c, c_row, m, n, k, add)
    else:
        by_columns(table, a, a_row, a_k, b, b_k, c, c_row, m, n, k, add)


LOOPS = {
    IN_PLACE: multiply_in_place,
    PACKED: multiply_packed,
    PACK: pack_panels,
    COPY: copy_elements,
    ROWS: lay_rows,
    MIRROR: mirror_rows,
}
