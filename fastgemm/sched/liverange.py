"""Register pressure and live ranges of a region in a given order, by one backward walk over its operands.

Two counts are kept apart.  *Lanes*: 32-bit registers with a live lane, the scheduler's own count.  *Whole*: a register
counts with its full size from its first part written to its last use, which is what an allocator has to provide, because a
tuple needs adjacent registers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..jit import njit
from .dag import Dag
from .model import OperandKind

__all__ = ["Pressure", "carried_edges", "pressure", "register_count"]

_USE, _DEF, _UNDEF, _DEAD = (
    int(kind) for kind in (OperandKind.USE, OperandKind.DEF, OperandKind.UNDEF_USE, OperandKind.DEAD_DEF)
)


@dataclass(frozen=True)
class Pressure:
    """Registers in use after each instruction of the order; index 0 is the region's entry, so the arrays have n + 1 values."""

    vector: NDArray[np.int32]  # 32-bit vector registers with a live lane
    scalar: NDArray[np.int32]
    vector_whole: NDArray[np.int32]  # full sizes of vector registers of which any lane is live
    scalar_whole: NDArray[np.int32]

    @property
    def peak(self) -> int:
        """Largest number of 32-bit vector registers with a live lane."""
        return int(self.vector.max())

    @property
    def peak_whole(self) -> int:
        """Largest number of vector registers an allocator has to provide."""
        return int(self.vector_whole.max())


@njit
def register_count(lanes):
    """32-bit registers a lane mask touches (two bits each)."""
    pairs = (lanes | (lanes >> np.uint64(1))) & np.uint64(0x5555555555555555)
    count = 0
    while pairs:
        pairs &= pairs - np.uint64(1)
        count += 1
    return count


@njit
def walk(order, operand_start, operand_register, operand_lanes, operand_kind, size, vector, out_register, out_lanes):
    """Curves (4, n + 1); per operand, whether its register is dead once the instruction issued; registers alive at entry."""
    n = order.size
    curves = np.zeros((4, n + 1), np.int32)
    dead_after = np.zeros(operand_register.size, np.bool_)
    live = np.zeros(size.size, np.uint64)
    lanes = np.zeros(2, np.int64)
    whole = np.zeros(2, np.int64)
    for k in range(out_register.size):
        r = out_register[k]
        s = 0 if vector[r] else 1
        if live[r] == 0 and out_lanes[k] != 0:
            whole[s] += size[r]
        lanes[s] += register_count(live[r] | out_lanes[k]) - register_count(live[r])
        live[r] |= out_lanes[k]
    for i in range(n, -1, -1):
        for s in range(2):
            curves[s, i] = lanes[s]
            curves[2 + s, i] = whole[s]
        if i == 0:
            break
        node = order[i - 1]
        begin, end = operand_start[node], operand_start[node + 1]
        for k in range(begin, end):
            dead_after[k] = live[operand_register[k]] == 0
        for phase in range(2):
            for k in range(begin, end):
                kind = operand_kind[k]
                r = operand_register[k]
                if phase == 0 and (kind == _DEF or kind == _DEAD):
                    now = live[r] & ~operand_lanes[k]
                elif phase == 1 and kind == _USE:
                    now = live[r] | operand_lanes[k]
                else:
                    continue
                s = 0 if vector[r] else 1
                lanes[s] += register_count(now) - register_count(live[r])
                if (now == 0) != (live[r] == 0):
                    whole[s] += size[r] if now != 0 else -size[r]
                live[r] = now
    return curves, dead_after, live != 0


def pressure(dag: Dag, order: NDArray[np.integer]) -> Pressure:
    """Pressure curves of ``dag`` issued in ``order`` (live-through values included)."""
    curves, _, _ = walk_dag(dag, order)
    return Pressure(curves[0], curves[1], curves[2], curves[3])


def walk_dag(dag: Dag, order: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_]]:
    """:func:`walk` on a DAG's own arrays."""
    return walk(
        order,
        dag.operand_start,
        dag.operand_register,
        dag.operand_lanes,
        dag.operand_kind,
        dag.register_size,
        dag.register_vector,
        dag.live_out_register,
        dag.live_out_lanes,
    )


@njit
def _carried(operand_start, operand_register, operand_lanes, operand_kind, registers):
    n = operand_start.size - 1
    most = 32  # 32-bit registers of the widest register (a lane mask holds 32)
    last = np.full((registers, most), -1, np.int32)
    for node in range(n):
        for k in range(operand_start[node], operand_start[node + 1]):
            if operand_kind[k] == _DEF:
                for w in range(most):
                    if (operand_lanes[k] >> np.uint64(2 * w)) & np.uint64(3):
                        last[operand_register[k], w] = node
    written = np.zeros((registers, most), np.bool_)
    source = np.empty(operand_register.size * 4 + 16, np.int32)
    target = np.empty(source.size, np.int32)
    count = 0
    for node in range(n):
        begin = count
        for k in range(operand_start[node], operand_start[node + 1]):
            if operand_kind[k] != _USE:
                continue
            r = operand_register[k]
            for w in range(most):
                if (operand_lanes[k] >> np.uint64(2 * w)) & np.uint64(3) and not written[r, w] and last[r, w] >= 0:
                    known = False
                    for e in range(begin, count):
                        if source[e] == last[r, w]:
                            known = True
                            break
                    if not known:
                        if count == source.size:
                            source = np.concatenate((source, np.empty_like(source)))
                            target = np.concatenate((target, np.empty_like(target)))
                        source[count] = last[r, w]
                        target[count] = node
                        count += 1
        for k in range(operand_start[node], operand_start[node + 1]):
            if operand_kind[k] == _DEF:
                for w in range(most):
                    if (operand_lanes[k] >> np.uint64(2 * w)) & np.uint64(3):
                        written[operand_register[k], w] = True
    return source[:count].copy(), target[:count].copy()


def carried_edges(dag: Dag) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(writer, reader) pairs of values that cross the back edge of a single-block loop; empty for other regions."""
    if not dag.whole_single_block_loop:
        return np.empty(0, np.int32), np.empty(0, np.int32)
    return _carried(dag.operand_start, dag.operand_register, dag.operand_lanes, dag.operand_kind, dag.register_id.size)
