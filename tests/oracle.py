"""Slow, obvious twins of what the package computes: one section per part, each name that of its quick twin."""

from __future__ import annotations

import numpy as np

# --- matmul: three loops over Python numbers -------------------------------------------------------------------------------


def matmul(a, b):
    """The product of two 2-D arrays of one dtype: integers modulo their width, bool by or and and, floats in double."""
    dtype = a.dtype
    out = np.zeros((a.shape[0], b.shape[1]), dtype)
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            if dtype.kind == "b":
                out[i, j] = any(x and y for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True))
            elif dtype.kind in "iu":
                total = sum(x * y for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True))
                total &= 2 ** (8 * dtype.itemsize) - 1
                out[i, j] = np.array(total, f"u{dtype.itemsize}").view(dtype)
            else:
                total = 0.0
                for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True):
                    total += x * y
                out[i, j] = total
    return out


# --- block schedulers: each core's steps as lists of pieces (batch, m, n, [K tiles]) ------------------------------------------


def identity_order(rows, cols, offset, direction):
    """Blocks in order: cut the grid into bands, walk each band across first, every other band backwards."""
    if direction == 1:
        return [(m, n) for n, m in identity_order(cols, rows, offset, 0)]
    order = []
    for number, top in enumerate(range(0, rows, offset)):
        columns = list(range(cols))
        if number % 2:
            columns.reverse()
        order += [(m, n) for n in columns for m in range(top, min(top + offset, rows))]
    return order


def aswt_order(rows, cols, window=4):
    """Bands of `window` rows, the remainder going to the last band."""
    height = min(window, rows)
    tops = list(range(0, rows - height + 1, height)) if rows else []
    order = []
    for number, top in enumerate(tops):
        bottom = rows if number == len(tops) - 1 else top + height
        columns = range(cols) if number % 2 == 0 else reversed(range(cols))
        order += [(m, n) for n in columns for m in range(top, bottom)]
    return order


def double_snake_order(rows, cols, offset, direction):
    """Bands that run back and forth in both directions; a short last band joins the one before."""
    across, along = (rows, cols) if direction == 0 else (cols, rows)
    starts = list(range(0, across, offset))
    if len(starts) > 1:
        tail = across - starts[-1]
        if tail <= offset // 2 if direction == 0 else tail < offset // 2:
            starts.pop()
    order = []
    for number, start in enumerate(starts):
        end = starts[number + 1] if number + 1 < len(starts) else across
        for far in range(along) if number % 2 == 0 else reversed(range(along)):
            for near in range(start, end) if far % 2 == 0 else reversed(range(start, end)):
                order.append((near, far) if direction == 0 else (far, near))
    return order


def equal_ranges(count, parts):
    """range(count) cut into `parts` runs, the first ones one longer."""
    runs, begin = [], 0
    for part in range(parts):
        end = begin + count // parts + (part < count % parts)
        runs.append(list(range(begin, end)))
        begin = end
    return runs


def split_k_tasks(order, kt, factor):
    return [[(m, n, run)] for run in equal_ranges(kt, max(1, min(factor, kt))) for m, n in order]


def tail_split_k_tasks(order, kt, cores):
    tail = len(order) % cores
    factor = max(1, min(cores // tail, kt)) if tail else 1
    whole, rest = order[: len(order) - tail], order[len(order) - tail :]
    return [[(m, n, list(range(kt)))] for m, n in whole] + [
        [(m, n, run)] for m, n in rest for run in equal_ranges(kt, factor)
    ]


def stream_k_tasks(order, kt, cores):
    tail = len(order) % cores
    whole, rest = order[: len(order) - tail], order[len(order) - tail :]
    tasks = [[(m, n, list(range(kt)))] for m, n in whole]
    tiles = [(m, n, k) for m, n in rest for k in range(kt)]
    for run in equal_ranges(len(tiles), cores):
        task = []
        for m, n, k in (tiles[x] for x in run):
            if task and task[-1][:2] == (m, n):
                task[-1][2].append(k)
            else:
                task.append((m, n, [k]))
        if task:
            tasks.append(task)
    return tasks


def dealt_out(tasks, cores, batch=1, start_core=0):
    """core -> its steps, when task i of all batches goes to core (start_core + i) mod cores."""
    steps = {core: [] for core in range(cores)}
    everything = [[(b, *piece) for piece in task] for b in range(batch) for task in tasks]
    for i, task in enumerate(everything):
        steps[(start_core + i) % cores].append(task)
    return steps


def contiguous(order, kt, cores, batch=1):
    """core -> its steps for schedulers that give each core a run of blocks (L1 full load)."""
    runs = equal_ranges(len(order), cores)
    return {c: [[(b, *order[i], list(range(kt)))] for b in range(batch) for i in runs[c]] for c in range(cores)}


def single_core(order, kt, cores, batch=1):
    """core -> its steps: a run of blocks, walked once per K tile."""
    runs = equal_ranges(len(order), cores)
    return {c: [[(b, *order[i], [k])] for b in range(batch) for k in range(kt) for i in runs[c]] for c in range(cores)}


# --- dispatch policies: a core's ops (name, batch, m, n, k, slot) from its steps ---------------------------------------------


def _load(piece, k, slot):
    batch, m, n, _ = piece
    return [("LOAD_A", batch, m, n, k, slot), ("LOAD_B", batch, m, n, k, slot)]


def _executed(piece, shift):
    ks = piece[3]
    return [ks[(j + shift) % len(ks)] for j in range(len(ks))]


def pingpong(steps, stages=2):
    ops, slot = [], 0
    for piece in (piece for step in steps for piece in step):
        batch, m, n, ks = piece
        ops += _load(piece, ks[0], slot)
        for j, k in enumerate(ks):
            if j + 1 < len(ks):
                ops += _load(piece, ks[j + 1], (slot + 1) % stages)
            ops.append(("MMAD", batch, m, n, k, slot))
            slot = (slot + 1) % stages
        ops.append(("STORE", batch, m, n, ks[0], None))
    return ops


def preload(steps, core=0, shuffle=False, stages=2):
    ops, slot, loaded = [], 0, False
    pieces = [(piece, second) for step in steps for second, piece in enumerate(step)]
    shift = core if shuffle else 0
    for number, (piece, _) in enumerate(pieces):
        batch, m, n, ks = piece
        order = _executed(piece, shift)
        if not loaded:
            ops += _load(piece, order[0], slot)
        loaded = False
        for j, k in enumerate(order):
            ahead = (slot + 1) % stages
            if j + 1 < len(order):
                ops += _load(piece, order[j + 1], ahead)
            elif number + 1 < len(pieces) and not pieces[number + 1][1]:
                following = pieces[number + 1][0]
                ops += _load(following, _executed(following, shift)[0], ahead)
                loaded = True
            ops.append(("MMAD", batch, m, n, k, slot))
            slot = ahead
        ops.append(("STORE", batch, m, n, ks[0], None))
    return ops


def preload_async(steps, core=0, shuffle=False, preload_stages=1, l1_stages=2, callbacks=False):
    ops, slot, queue = [], 0, []

    def execute():
        piece, k, where, last = queue.pop(0)
        batch, m, n, ks = piece
        ops.append(("MMAD", batch, m, n, k, where))
        if last:
            for name in ("BEFORE", "STORE", "AFTER") if callbacks else ("STORE",):
                ops.append((name, batch, m, n, ks[0], None))

    for piece in (piece for step in steps for piece in step):
        order = _executed(piece, core if shuffle else 0)
        for j, k in enumerate(order):
            ops.extend(_load(piece, k, slot))
            if len(queue) == preload_stages:
                execute()
            queue.append((piece, k, slot, j + 1 == len(order)))
            slot = (slot + 1) % l1_stages
    while queue:
        execute()
    return ops


def host_panels(steps, kt):
    """Per batch and K slab: the core's pieces that touch the slab; B loaded once per slab and block column."""
    pieces = [piece for step in steps for piece in step]
    ops = []
    for batch in sorted({piece[0] for piece in pieces}):
        for slab in range(kt):
            columns = set()
            for b, m, n, ks in pieces:
                if b != batch or slab not in ks:
                    continue
                if n not in columns:
                    ops.append(("LOAD_B", b, m, n, slab, n))
                    columns.add(n)
                ops += [("LOAD_A", b, m, n, slab, 0), ("MMAD", b, m, n, slab, 0)]
                if slab == ks[-1]:
                    ops.append(("STORE", b, m, n, ks[0], None))
    return ops


# --- micro-kernels and the loops around them: what ends up in C, and where packed elements lie -----------------------------------


def micro_kernel(a, b, c, add):
    """Write what a kernel makes of tiles a (count, rows, k) and b (count, k, cols) into c (count, rows, cols), in turn."""
    for tile in range(c.shape[0]):
        total = c[tile].copy() if add else np.zeros(c.shape[1:], c.dtype)
        for step in range(a.shape[2]):
            total = total + a[tile, :, step, None] * b[tile, step, None, :]
        c[tile] = total + 0  # no minus zero


def panels(b, vecs, lanes):
    """The elements of a packed (k x n) matrix in memory order: panel by panel, row by row, absent columns zero."""
    k, n = b.shape
    packed = []
    for first in range(0, n, vecs * lanes):
        width = min(vecs * lanes, -(-(n - first) // lanes) * lanes)
        for row in range(k):
            for column in range(first, first + width):
                packed.append(b[row, column] if column < n else b.dtype.type(0))
    return np.array(packed, b.dtype)
