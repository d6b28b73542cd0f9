"""The edges of a straight piece of code: derived from its register operands, its LDS accesses and its fences.

Registers give data, output and anti edges, word by word.  Fences order LDS loads, LDS stores and tensor loads: every access
since the last fence leads into the next one, every access after a fence comes from it, tensor loads follow each other.  The
edges of one source come in the order a compiler building the graph from the bottom has them: data edges to later targets
first, then output, anti and order edges.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..vectors import pointer
from .model import EdgeKind, OperandKind
from .native import addresses, at_address, at_int8, at_int32, entry, inner

__all__ = ["A_FENCE", "A_LDS", "A_NONE", "A_SIGNAL", "A_TENSOR", "A_WAIT", "derive_edges"]

A_NONE, A_LDS, A_TENSOR, A_FENCE, A_SIGNAL, A_WAIT = range(6)  # how a node takes part in ordering
_USE, _DEF, _DEAD = int(OperandKind.USE), int(OperandKind.DEF), int(OperandKind.DEAD_DEF)
_DATA, _ANTI, _OUTPUT, _BARRIER = int(EdgeKind.DATA), int(EdgeKind.ANTI), int(EdgeKind.OUTPUT), int(EdgeKind.BARRIER)
_WORDS = 32  # 32-bit words of the widest register

# address table: operands, node facts, what is kept per word and node, edges as found, edges in order
(_START, _REGISTER, _LANES, _KIND, _LATENCY, _ACCESS) = range(6)
(_LAST, _HEAD, _STAMP, _POOL, _EDGES, _SOURCE, _TARGET, _EDGE_KIND, _EDGE_LATENCY) = range(6, 15)
# numbers: of the code; next node, edges, room for edges; entries of reader lists in use, chained and there is room for, first free
(_Z_NODES, _Z_SIGNAL_WAIT, _Z_NODE, _Z_COUNT, _Z_ROOM, _Z_USED, _Z_CHAINED, _Z_POOL, _Z_FREE) = range(9)


@inner
def _put(table, z, source, target, kind, latency):  # type: ignore[no-untyped-def]
    edges, at = at_int32(table[_EDGES]), 4 * z[_Z_COUNT]
    edges[at], edges[at + 1], edges[at + 2], edges[at + 3] = source, target, kind, latency
    z[_Z_COUNT] += 1


@inner
def _put_once(table, z, source, node, kind, latency):  # type: ignore[no-untyped-def]
    """An edge into a node, unless it has one of that source and kind."""
    stamp, at = at_int32(table[_STAMP]), 3 * source + kind
    if stamp[at] != node:
        stamp[at] = node
        _put(table, z, source, node, kind, latency)


@inner
def _read(table, z, node, register, lanes):  # type: ignore[no-untyped-def]
    """Data edges from the writers of the words read; the node is entered among the words' readers."""
    last, head, pool = at_int32(table[_LAST]), at_int32(table[_HEAD]), at_int32(table[_POOL])
    latency = at_int32(table[_LATENCY])
    word = register * _WORDS
    while lanes != 0:
        if lanes & 3:
            if last[word] >= 0:
                _put_once(table, z, last[word], node, _DATA, latency[last[word]])
            reader = z[_Z_FREE]
            z[_Z_FREE] = pool[2 * reader + 1]
            pool[2 * reader], pool[2 * reader + 1] = node, head[word]
            head[word] = reader
            z[_Z_USED] += 1
        lanes = (lanes >> 2) & 0x3FFFFFFFFFFFFFFF  # the sign bit is a lane as well
        word += 1


@inner
def _write(table, z, node, register, lanes):  # type: ignore[no-untyped-def]
    """Output edges from the previous writers and anti edges from the readers since, which are then forgotten."""
    last, head, pool = at_int32(table[_LAST]), at_int32(table[_HEAD]), at_int32(table[_POOL])
    word = register * _WORDS
    while lanes != 0:
        if lanes & 3:
            if last[word] >= 0 and last[word] != node:
                _put_once(table, z, last[word], node, _OUTPUT, 1)
            reader = head[word]
            while reader >= 0:
                if pool[2 * reader] != node:
                    _put_once(table, z, pool[2 * reader], node, _ANTI, 0)
                following = pool[2 * reader + 1]
                pool[2 * reader + 1] = z[_Z_FREE]
                z[_Z_FREE] = reader
                z[_Z_USED] -= 1
                reader = following
            head[word] = -1
            last[word] = node
        lanes = (lanes >> 2) & 0x3FFFFFFFFFFFFFFF
        word += 1


@inner
def _register_edges(table, z):  # type: ignore[no-untyped-def]
    """Edges of the operands from the next node on; stops at a node for which there may not be room enough."""
    start, register, lanes = at_int32(table[_START]), at_int32(table[_REGISTER]), at_address(table[_LANES])
    kind, pool = at_int8(table[_KIND]), at_int32(table[_POOL])
    while z[_Z_CHAINED] < z[_Z_POOL]:
        pool[2 * z[_Z_CHAINED] + 1] = z[_Z_FREE]
        z[_Z_FREE] = z[_Z_CHAINED]
        z[_Z_CHAINED] += 1
    while z[_Z_NODE] < z[_Z_NODES]:
        node = z[_Z_NODE]
        begin, end = start[node], start[node + 1]
        words = _WORDS * (end - begin)
        # at most one data or output edge a word, one anti edge a reader
        if z[_Z_USED] + words > z[_Z_POOL] or z[_Z_COUNT] + words + z[_Z_USED] > z[_Z_ROOM]:
            return
        for k in range(begin, end):
            if kind[k] == _USE:
                _read(table, z, node, register[k], lanes[k])
        for k in range(begin, end):
            if kind[k] == _DEF or kind[k] == _DEAD:
                _write(table, z, node, register[k], lanes[k])
        z[_Z_NODE] += 1


@inner
def _order_edges(table, z):  # type: ignore[no-untyped-def]
    """Edges between fences and memory accesses."""
    access, pending = at_int8(table[_ACCESS]), at_int32(table[_STAMP])  # the stamps are done with
    waiting = 0
    fence = tensor = -1
    for node in range(z[_Z_NODES]):
        what = access[node]
        if what == A_NONE:
            continue
        if what >= A_FENCE:
            for k in range(waiting):
                _put(table, z, pending[k], node, _BARRIER, 0)
            if tensor >= 0:
                _put(table, z, tensor, node, _BARRIER, 0)
            if fence >= 0:
                lasts = access[fence] == A_SIGNAL and what == A_WAIT
                _put(table, z, fence, node, _BARRIER, z[_Z_SIGNAL_WAIT] if lasts else 0)
            waiting, tensor, fence = 0, -1, node
        elif what == A_TENSOR:
            if tensor >= 0:
                _put(table, z, tensor, node, _BARRIER, 1)
            elif fence >= 0:
                _put(table, z, fence, node, _BARRIER, 0)
            tensor = node
        else:
            if fence >= 0:
                _put(table, z, fence, node, _BARRIER, 0)
            pending[waiting] = node
            waiting += 1


@inner
def _rank(kind):  # type: ignore[no-untyped-def]
    """Place of a kind among the edges of a source."""
    return 0 if kind == _DATA else 1 if kind == _OUTPUT else 2 if kind == _ANTI else 3


@inner
def _sort(table, z, begin):  # type: ignore[no-untyped-def]
    """Edges by source, inside one by rank, inside one rank later targets first: they were found by target, so a counting sort
    that goes through them backwards does it."""
    edges, nodes, count = at_int32(table[_EDGES]), z[_Z_NODES], z[_Z_COUNT]
    source, target = at_int32(table[_SOURCE]), at_int32(table[_TARGET])
    kind, latency = at_int32(table[_EDGE_KIND]), at_int32(table[_EDGE_LATENCY])
    for i in range(4 * nodes + 1):
        begin[i] = 0
    for e in range(count):
        begin[4 * edges[4 * e] + _rank(edges[4 * e + 2]) + 1] += 1
    for i in range(4 * nodes):
        begin[i + 1] += begin[i]
    for back in range(count):
        e = 4 * (count - 1 - back)
        bucket = 4 * edges[e] + _rank(edges[e + 2])
        at = begin[bucket]
        begin[bucket] += 1
        source[at], target[at], kind[at], latency[at] = edges[e], edges[e + 1], edges[e + 2], edges[e + 3]


@entry
def _derive(table, sizes, work, step):  # type: ignore[no-untyped-def]
    """0: edges of registers, 1: of fences, 2: sort them all."""
    t, z = pointer(table), pointer(sizes)
    if step == 0:
        _register_edges(t, z)
    elif step == 1:
        _order_edges(t, z)
    else:
        _sort(t, z, pointer(work))


def derive_edges(
    operand_start: NDArray[np.integer],
    operands: tuple[NDArray[np.int32], NDArray[np.uint64], NDArray[np.int8]],
    registers: int,
    latency: NDArray[np.int32],
    access: NDArray[np.int8],
    signal_wait: int = 35,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """(source, target, kind, latency) of every edge, sorted by source and in a compiler's order within one.

    ``operands`` = (register, lanes, kind) per operand; ``latency`` is each node's result latency; ``access`` says how a node
    takes part in ordering (``A_*``).  Data edges carry the source's latency, output edges 1, anti edges 0, a barrier signal to
    its wait ``signal_wait``.
    """
    nodes = latency.size
    columns = [np.ascontiguousarray(operand_start, np.int32)]
    columns += [np.ascontiguousarray(x, t) for x, t in zip(operands, (np.int32, np.uint64, np.int8), strict=True)]
    columns += [np.ascontiguousarray(latency, np.int32), np.ascontiguousarray(access, np.int8)]
    words = np.full((2, registers * _WORDS), -1, np.int32)  # last writer of each word, list of its readers since
    stamp = np.full(3 * nodes, -1, np.int32)
    busiest = _WORDS * int(np.diff(columns[0]).max(initial=0))
    pool, edges = np.empty((busiest + 4096, 2), np.int32), np.empty((8 * nodes + 8192, 4), np.int32)  # grown if need be
    sizes = np.zeros(9, np.int64)
    sizes[_Z_NODES], sizes[_Z_SIGNAL_WAIT], sizes[_Z_FREE] = nodes, signal_wait, -1
    work = np.empty(4 * nodes + 1, np.int64)
    while True:
        sizes[_Z_POOL], sizes[_Z_ROOM] = len(pool), len(edges)
        table = addresses(*columns, *words, stamp, pool, edges)
        _derive(table, sizes, work, 0)
        if sizes[_Z_NODE] == nodes and sizes[_Z_COUNT] + 3 * nodes <= len(edges):
            break
        if sizes[_Z_USED] + busiest > len(pool):
            pool = _longer(pool, 2 * len(pool))
        else:
            edges = _longer(edges, 2 * len(edges) + len(pool))
    _derive(table, sizes, work, 1)
    found = np.empty((4, int(sizes[_Z_COUNT])), np.int32)
    _derive(addresses(*columns, *words, stamp, pool, edges, *found), sizes, work, 2)
    source, target, kind, lasts = found
    return source, target, kind, lasts


def _longer(rows: NDArray[np.int32], length: int) -> NDArray[np.int32]:
    longer = np.empty((length, rows.shape[1]), np.int32)
    longer[: len(rows)] = rows
    return longer
