"""The edges of a straight piece of code: derived from its register operands, its LDS accesses and its fences.

Registers give data, output and anti edges, word by word.  Fences order LDS loads, LDS stores and tensor loads: every access
since the last fence leads into the next one, every access after a fence comes from it, tensor loads follow each other.  The
edges of one source come in the order a compiler building the graph from the bottom has them: data edges to later targets
first, then output, anti and order edges.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..jit import njit
from .model import EdgeKind, OperandKind

__all__ = ["A_FENCE", "A_LDS", "A_NONE", "A_SIGNAL", "A_TENSOR", "A_WAIT", "derive_edges"]

A_NONE, A_LDS, A_TENSOR, A_FENCE, A_SIGNAL, A_WAIT = range(6)  # how a node takes part in ordering
_USE, _DEF, _DEAD = int(OperandKind.USE), int(OperandKind.DEF), int(OperandKind.DEAD_DEF)
_DATA, _ANTI, _OUTPUT = int(EdgeKind.DATA), int(EdgeKind.ANTI), int(EdgeKind.OUTPUT)
_MEMORY, _BARRIER = int(EdgeKind.MEMORY), int(EdgeKind.BARRIER)
_WORDS = 32  # 32-bit words of the widest register


@njit
def _put(edges, count, source, target, kind, latency):
    edges[count, 0] = source
    edges[count, 1] = target
    edges[count, 2] = kind
    edges[count, 3] = latency
    return count + 1


@njit
def _read(node, register, lanes, last, readers, stamp, latency, edges, count):
    """Data edges from the writers of the words read; the node is entered among the words' readers."""
    head, pool, state = readers
    for w in range(_WORDS):
        if (lanes >> np.uint64(2 * w)) & np.uint64(3):
            source = last[register, w]
            if source >= 0 and stamp[_DATA, source] != node:
                stamp[_DATA, source] = node
                count = _put(edges, count, source, node, _DATA, latency[source])
            entry = state[0]
            state[0] = pool[entry, 1]
            pool[entry, 0] = node
            pool[entry, 1] = head[register, w]
            head[register, w] = entry
            state[1] += 1
    return count


@njit
def _write(node, register, lanes, last, readers, stamp, edges, count):
    """Output edges from the previous writers and anti edges from the readers since, which are then forgotten."""
    head, pool, state = readers
    for w in range(_WORDS):
        if not (lanes >> np.uint64(2 * w)) & np.uint64(3):
            continue
        source = last[register, w]
        if source >= 0 and source != node and stamp[_OUTPUT, source] != node:
            stamp[_OUTPUT, source] = node
            count = _put(edges, count, source, node, _OUTPUT, 1)
        entry = head[register, w]
        while entry >= 0:
            source = pool[entry, 0]
            if source != node and stamp[_ANTI, source] != node:
                stamp[_ANTI, source] = node
                count = _put(edges, count, source, node, _ANTI, 0)
            following = pool[entry, 1]
            pool[entry, 1] = state[0]
            state[0] = entry
            state[1] -= 1
            entry = following
        head[register, w] = -1
        last[register, w] = node
    return count


@njit
def _larger(old, rows):
    new = np.empty((rows, old.shape[1]), np.int32)
    for row in range(old.shape[0]):  # a slice assignment takes four seconds to compile
        for column in range(old.shape[1]):
            new[row, column] = old[row, column]
    return new


@njit
def _register_edges(operand_start, register, lanes, kind, registers, latency):
    n = operand_start.size - 1
    last = np.full((registers, _WORDS), -1, np.int32)
    head = np.full((registers, _WORDS), -1, np.int32)  # readers of a word since it was written, a linked list
    pool = np.empty((0, 2), np.int32)  # entries of those lists: node, next entry
    state = np.array([-1, 0])  # first free entry of the pool, entries in use
    stamp = np.full((3, n), -1, np.int32)
    edges = np.empty((4 * n + 16, 4), np.int32)
    count = 0
    for node in range(n):
        begin, end = operand_start[node], operand_start[node + 1]
        words = _WORDS * (end - begin)
        if state[1] + words > pool.shape[0]:
            free = pool.shape[0]
            pool = _larger(pool, 2 * (state[1] + words))
            for entry in range(free, pool.shape[0]):
                pool[entry, 1] = state[0]
                state[0] = entry
        if count + words + state[1] > edges.shape[0]:  # at most one data or output edge a word, one anti edge a reader
            edges = _larger(edges, 2 * (count + words + state[1]))
        readers = (head, pool, state)
        for k in range(begin, end):
            if kind[k] == _USE:
                count = _read(node, register[k], lanes[k], last, readers, stamp, latency, edges, count)
        for k in range(begin, end):
            if kind[k] == _DEF or kind[k] == _DEAD:
                count = _write(node, register[k], lanes[k], last, readers, stamp, edges, count)
    return edges[:count]


@njit
def _order_edges(access, signal_wait):
    n = access.size
    edges = np.empty((max(16, 3 * n), 4), np.int32)
    pending = np.empty(n, np.int32)
    waiting = count = 0
    fence = tensor = -1
    for node in range(n):
        what = access[node]
        if what == A_NONE:
            continue
        if what >= A_FENCE:
            for k in range(waiting):
                count = _put(edges, count, pending[k], node, _BARRIER, 0)
            if tensor >= 0:
                count = _put(edges, count, tensor, node, _BARRIER, 0)
            if fence >= 0:
                lasts = access[fence] == A_SIGNAL and what == A_WAIT
                count = _put(edges, count, fence, node, _BARRIER, signal_wait if lasts else 0)
            waiting, tensor, fence = 0, -1, node
        elif what == A_TENSOR:
            if tensor >= 0:
                count = _put(edges, count, tensor, node, _BARRIER, 1)
            elif fence >= 0:
                count = _put(edges, count, fence, node, _BARRIER, 0)
            tensor = node
        else:
            if fence >= 0:
                count = _put(edges, count, fence, node, _BARRIER, 0)
            pending[waiting] = node
            waiting += 1
    return edges[:count]


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
    register, lanes, kind = operands
    found = np.concatenate(
        [_register_edges(operand_start, register, lanes, kind, registers, latency), _order_edges(access, signal_wait)]
    )
    rank = np.array([0, 2, 1, 3, 3], np.int32)[found[:, 2]]
    order = np.lexsort((-found[:, 1], rank, found[:, 0]))
    source, target, kinds, latencies = found[order].T
    return source, target, kinds, latencies
