"""Packing a DAG into one int32 vector for the jitted scheduler: rows, edges, predecessors and register values.

Registers are cut into lane slices no operand splits further.  A *value* is a slice between a definition (or the region's
start) and the next; pressure follows from which values are live.  Half slices share a *cell*, the 32-bit register they lie in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..jit import njit
from ..vectors import pointer
from . import layout as L
from .model import EdgeKind, Flag, Flavor, OperandKind
from .native import inner

if TYPE_CHECKING:
    from .dag import Dag

__all__ = ["pack"]

_LOW = 0x5555555555555555  # low halves of 32-bit registers
_USE, _DEF, _DEAD = int(OperandKind.USE), int(OperandKind.DEF), int(OperandKind.DEAD_DEF)
# slice table: mask, next slice of the register, register, cell, current value, loop-carried facts
_SLICE = 10
(_MASK, _NEXT, _REG, _CELL, _VALUE, _FIRST_USE, _LAST_USE, _LAST_LOAD, _FRESH, _) = range(_SLICE)


@inner
def _new_slice(slices, count, mask, register, following):  # type: ignore[no-untyped-def]
    base = count * _SLICE
    slices[base + _MASK] = mask
    slices[base + _NEXT] = following
    slices[base + _REG] = register
    slices[base + _CELL] = -1
    slices[base + _VALUE] = -1
    slices[base + _FIRST_USE] = -1
    slices[base + _LAST_USE] = -1
    slices[base + _LAST_LOAD] = -1
    slices[base + _FRESH] = 0
    return count + 1


@inner
def _refine(head, slices, count, register, mask):  # type: ignore[no-untyped-def]
    """Cut the slices of a register along a mask; returns the new number of slices."""
    rest = mask
    s = head[register]
    while s >= 0:
        own = slices[s * _SLICE + _MASK]
        common = own & mask
        following = slices[s * _SLICE + _NEXT]
        if common != 0 and common != own:
            slices[s * _SLICE + _MASK] = common
            slices[s * _SLICE + _NEXT] = count
            count = _new_slice(slices, count, own & ~common, register, following)
        rest &= ~common
        s = following
    if rest != 0:
        count = _new_slice(slices, count, rest, register, head[register])
        head[register] = count - 1
    return count


@inner
def _cut_halves(head, slices, count, registers):  # type: ignore[no-untyped-def]
    """Give every half slice a slice and a cell of its own 32-bit register; returns (slices, cells)."""
    cells = 0
    for register in range(registers):
        first = cells
        s = head[register]
        while s >= 0:
            mask = slices[s * _SLICE + _MASK]
            following = slices[s * _SLICE + _NEXT]
            half = ((mask & _LOW) ^ ((mask >> 1) & _LOW)) & _LOW
            while half != 0:
                bit = half & -half
                half ^= bit
                piece = mask & (bit | (bit << 1))
                if piece != mask:
                    mask &= ~piece
                    slices[s * _SLICE + _MASK] = mask
                    count = _new_slice(slices, count, piece, register, head[register])
                    head[register] = count - 1
                    owner = count - 1
                else:
                    owner = s
                slices[owner * _SLICE + _FRESH] = bit
                slices[owner * _SLICE + _CELL] = cells
                other = head[register]
                while other >= 0:  # the sibling half already has the cell
                    if (
                        other != owner
                        and slices[other * _SLICE + _FRESH] == bit
                        and slices[other * _SLICE + _CELL] >= first
                    ):
                        slices[owner * _SLICE + _CELL] = slices[other * _SLICE + _CELL]
                    other = slices[other * _SLICE + _NEXT]
                if slices[owner * _SLICE + _CELL] == cells:
                    cells += 1
            s = following
    for s in range(count):
        slices[s * _SLICE + _FRESH] = 0
    return count, cells


@inner
def _new_value(values, count, slices, s, vector, dead):  # type: ignore[no-untyped-def]
    base = count * L.VALUE
    mask = slices[s * _SLICE + _MASK]
    weight = 0
    if slices[s * _SLICE + _CELL] < 0:
        both = mask & _LOW
        while both != 0:
            both &= both - 1
            weight += 1
    register = slices[s * _SLICE + _REG]
    values[base + L.V_WEIGHT] = weight
    values[base + L.V_CELL] = slices[s * _SLICE + _CELL]
    values[base + L.V_READERS] = 0
    values[base + L.V_STAYS] = 0
    values[base + L.V_DEAD] = dead
    values[base + L.V_VECTOR] = vector[register]
    values[base + L.V_SLICE] = s
    values[base + L.V_REGISTER] = register
    slices[s * _SLICE + _VALUE] = count
    return count + 1


@inner
def _read(operand, node, head, slices, values, last, reads, count):  # type: ignore[no-untyped-def]
    """Enter the values one use reads; returns the new number of reads."""
    s = head[operand[1]]
    while s >= 0:
        base = s * _SLICE
        if slices[base + _MASK] & operand[2]:
            if slices[base + _FIRST_USE] < 0:
                slices[base + _FIRST_USE] = node
            slices[base + _LAST_USE] = node
            value = slices[base + _VALUE]
            if value >= 0 and last[value] != node:
                last[value] = node
                values[value * L.VALUE + L.V_READERS] += 1
                reads[count] = value
                count += 1
        s = slices[base + _NEXT]
    return count


@njit
def _slices(operands, live, slices, head):  # type: ignore[no-untyped-def]
    """Cut all registers into slices; returns (slices, cells, sum of slices over the definitions and live lists)."""
    table, heads = pointer(slices), pointer(head)
    count = 0
    for register in range(head.size):
        head[register] = -1
    for i in range(operands.shape[0]):
        if operands[i, 2] != 0:
            count = _refine(heads, table, count, operands[i, 1], operands[i, 2])
    for i in range(live.shape[0]):
        if live[i, 2] != 0:
            count = _refine(heads, table, count, live[i, 1], live[i, 2])
    count, cells = _cut_halves(heads, table, count, head.size)
    touched = 0
    for rows in (operands, live):
        for i in range(rows.shape[0]):
            s = head[rows[i, 1]]
            while s >= 0:
                if table[s * _SLICE + _MASK] & rows[i, 2]:
                    touched += 1
                s = table[s * _SLICE + _NEXT]
    return count, cells, touched


@njit
def _values(operands, live, nodes, slices, head, vector, load, values, reads, defines, starts):  # type: ignore[no-untyped-def]
    """Follow values in program order; returns (values, live-in values, reads, definitions).

    `live` rows are (0 in or 1 out, register, lanes); `starts` receives per node its first read and its first definition.
    """
    table, heads, rows = pointer(slices), pointer(head), pointer(values)
    kinds, read_list = pointer(vector), pointer(reads)
    last = np.full(values.size // L.VALUE, -1, np.int32)
    readers = pointer(last)
    count = n_reads = n_defines = row = 0
    for i in range(live.shape[0]):
        s = head[live[i, 1]]
        while s >= 0 and live[i, 0] == 0:
            if table[s * _SLICE + _MASK] & live[i, 2]:
                count = _new_value(rows, count, table, s, kinds, 0)
                table[s * _SLICE + _FRESH] = 1
            s = table[s * _SLICE + _NEXT]
    live_in = count
    for node in range(nodes):
        starts[node, 0], starts[node, 1] = n_reads, n_defines
        first = row
        while row < operands.shape[0] and operands[row, 0] == node:
            if operands[row, 3] == _USE:
                n_reads = _read(pointer(operands[row]), node, heads, table, rows, readers, read_list, n_reads)
            row += 1
        for i in range(first, row):
            kind = operands[i, 3]
            if kind != _DEF and kind != _DEAD:
                continue
            s = head[operands[i, 1]]
            while s >= 0:
                base = s * _SLICE
                if table[base + _MASK] & operands[i, 2]:
                    old = table[base + _VALUE]
                    if table[base + _FRESH] == 1 and values[old * L.VALUE + L.V_READERS] == 0:
                        values[old * L.VALUE + L.V_READERS] = 1  # a live-in nobody reads ends where it is overwritten
                        reads[n_reads] = old
                        n_reads += 1
                    table[base + _FRESH] = 0
                    if load[node]:
                        table[base + _LAST_LOAD] = node
                    count = _new_value(rows, count, table, s, kinds, 1 if kind == _DEAD else 0)
                    defines[n_defines] = count - 1
                    n_defines += 1
                s = table[base + _NEXT]
    starts[nodes, 0], starts[nodes, 1] = n_reads, n_defines
    for i in range(live.shape[0]):
        s = head[live[i, 1]]
        while s >= 0 and live[i, 0] == 1:
            value = table[s * _SLICE + _VALUE]
            if table[s * _SLICE + _MASK] & live[i, 2] and value >= 0 and values[value * L.VALUE + L.V_DEAD] == 0:
                values[value * L.VALUE + L.V_STAYS] = 1
            s = table[s * _SLICE + _NEXT]
    return count, live_in, n_reads, n_defines


def _hazard_groups(dag: Dag) -> NDArray[np.int32]:
    """Which nodes wait for the same things: flavor, copies apart, and whether the scalar wait applies."""
    group = np.array(
        [
            L.G_WMMA,
            L.G_VALU1,
            L.G_TRANS,
            L.G_VALUN,
            L.G_VMEM,
            L.G_SMEM,
            L.G_DS,
            L.G_SALU_FREE,
            L.G_DMA,
            L.G_FENCE_FREE,
            L.G_OTHER_FREE,
        ],
        dtype=np.int32,
    )[dag.flavor]
    group[(group == L.G_WMMA) & (dag.matrix_cycles < 0)] = L.G_WMMA_FREE
    group[(group == L.G_VALU1) & ((dag.flags & int(Flag.COPY)) != 0)] = L.G_VECTOR_COPY
    scalar = (dag.flags & int(Flag.SCALAR_ISSUE)) != 0
    for free in (L.G_SALU_FREE, L.G_FENCE_FREE, L.G_OTHER_FREE):
        group[scalar & (group == free)] = free - 1
    return group


def _bias(dag: Dag, successors: NDArray[np.int64]) -> NDArray[np.int32]:
    """Preference of copies that touch physical registers."""
    bias = np.zeros(dag.n, dtype=np.int32)
    bias[(dag.flags & int(Flag.COPY_FROM_PHYS | Flag.IMM_TO_PHYS)) != 0] = 1
    to_physical = (dag.flags & int(Flag.COPY_TO_PHYS)) != 0
    bias[to_physical] = np.where(successors[to_physical] > 0, 1, -1)
    return bias


def _register_values(dag: Dag) -> tuple[NDArray[Any], ...]:
    """(values, reads, definitions, starts, loop-carried slices, live-in values, cells)."""
    load = ((dag.flavor == int(Flavor.DS)) & ((dag.flags & int(Flag.LOAD)) != 0)).astype(np.int32)
    columns = (dag.operand_node, dag.operand_register, dag.operand_lanes.view(np.int64), dag.operand_kind)
    operands = np.stack([column.astype(np.int64) for column in columns], axis=1)
    live = np.zeros((dag.live_in_register.size + dag.live_out_register.size, 3), dtype=np.int64)
    live[dag.live_in_register.size :, 0] = 1
    live[:, 1] = np.concatenate([dag.live_in_register, dag.live_out_register])
    live[:, 2] = np.concatenate([dag.live_in_lanes, dag.live_out_lanes]).view(np.int64)
    registers = dag.register_id.size
    # a register has at most 64 slices, and no more than two per mask that touches it
    touches = np.bincount(np.concatenate([operands[:, 1], live[:, 1]]), minlength=registers)
    bound = (
        int(np.minimum(2 * touches + 1, 64).sum()) + 33 * int((touches > 0).sum())
        if _has_halves(operands, live)
        else (int(np.minimum(2 * touches + 1, 32).sum()))
    )
    slices = np.empty(max(bound, 1) * _SLICE, dtype=np.int64)
    head = np.empty(registers, dtype=np.int32)
    count, cells, touched = _slices(operands, live, slices, head)
    values = np.empty(max(touched, 1) * L.VALUE, dtype=np.int32)
    reads = np.empty(2 * touched + 1, dtype=np.int32)
    defines = np.empty(touched + 1, dtype=np.int32)
    starts = np.empty((dag.n + 1, 2), dtype=np.int32)
    vector = dag.register_vector.astype(np.int32)
    found = _values(operands, live, dag.n, slices, head, vector, load, values, reads, defines, starts)
    table = slices[: count * _SLICE].reshape(-1, _SLICE)
    last_load, first, last = (table[:, column] for column in (_LAST_LOAD, _FIRST_USE, _LAST_USE))
    carried = (first >= 0) & (last_load >= 0) & (last <= last_load) & (first < last_load)
    return (
        values[: found[0] * L.VALUE],
        reads[: found[2]],
        defines[: found[3]],
        starts,
        carried.astype(np.int32),
        found[1],
        cells,
    )


def _has_halves(operands: NDArray[np.int64], live: NDArray[np.int64]) -> bool:
    lanes = np.concatenate([operands[:, 2], live[:, 2]])
    return bool(np.any((lanes & _LOW) != ((lanes >> 1) & _LOW)))


def pack(dag: Dag) -> NDArray[np.int64]:
    """The DAG as the jitted scheduler reads it (see `fastgemm.sched.layout`)."""
    n = dag.n
    gating = dag.edge_kind < int(EdgeKind.WEAK)
    source, target, latency, kind = (
        column if gating.all() else column[gating]
        for column in (dag.edge_source, dag.edge_target, dag.edge_latency, dag.edge_kind)
    )
    successors = np.bincount(source, minlength=n)
    values, reads, defines, starts, carried, live_in, cells = _register_values(dag)
    by_target = np.argsort(target, kind="stable")
    predecessors = 2 * source[by_target] + (kind[by_target] == int(EdgeKind.DATA))
    soft = _soft_edges(dag, gating)
    sections = [
        np.stack([target, latency], axis=1).ravel().astype(np.int32),
        predecessors.astype(np.int32),
        reads,
        defines,
        values,
        carried,
        soft,
    ]
    at = np.cumsum([(n + 1) * L.NODE] + [section.size for section in sections])
    packed = np.zeros(L.HEADER + int(at[-1]), dtype=np.int64)
    rows = packed[L.HEADER : L.HEADER + (n + 1) * L.NODE].reshape(n + 1, L.NODE)
    _fill_rows(dag, rows, successors)
    rows[1:, L.SUCC] = 2 * np.cumsum(successors)
    rows[1:, L.PRED] = np.cumsum(np.bincount(target, minlength=n))
    rows[:, L.READ], rows[:, L.DEFINE] = starts[:, 0], starts[:, 1]
    for column, base in zip((L.SUCC, L.PRED, L.READ, L.DEFINE), at, strict=False):
        rows[:, column] += base
    packed[L.HEADER + (n + 1) * L.NODE :] = np.concatenate(sections)
    header = packed[: L.HEADER]
    header[L.H_NODES], header[L.H_EDGES], header[L.H_VALUES] = n, target.size, values.size // L.VALUE
    header[L.H_LIVE_IN], header[L.H_CELLS], header[L.H_SLICES] = live_in, cells, carried.size
    header[L.H_REGISTERS], header[L.H_LOOP] = dag.register_id.size, dag.whole_single_block_loop
    header[L.H_VGPR_LIMIT], header[L.H_SGPR_LIMIT] = dag.vgpr_limit, dag.sgpr_limit
    header[L.H_VALUE_AT], header[L.H_SLICE_AT] = at[4], at[5]
    header[L.H_SOFT_AT] = at[6] if soft.size else 0
    header[L.H_WMMA] = np.count_nonzero(dag.flavor == int(Flavor.WMMA))
    header[L.H_BIASED] = bool(rows[:-1, L.BIAS].any())
    header[L.H_DS] = np.count_nonzero(dag.flavor == int(Flavor.DS))
    return packed


def _fill_rows(dag: Dag, rows: NDArray[np.int32], successors: NDArray[np.int64]) -> None:
    body = rows[:-1]
    body[:, L.FLAVOR], body[:, L.GROUP] = dag.flavor, _hazard_groups(dag)
    body[:, L.UNIT_CYCLES], body[:, L.UOPS], body[:, L.MATRIX] = dag.unit_cycles, dag.micro_ops, dag.matrix_cycles
    body[:, L.WINDOW], body[:, L.FLAGS], body[:, L.CARRIED] = dag.window, dag.flags, dag.carried
    body[:, L.DEPTH], body[:, L.HEIGHT] = dag.depth, dag.height
    body[:, L.BIAS] = _bias(dag, successors)
    body[:, L.REPEAT] = np.where((dag.flags & int(Flag.COPY)) != 0, dag.copy_regs, dag.repeat)


def _soft_edges(dag: Dag, gating: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Weak and cluster edges: n + 1 starts, then 2 * target + (cluster edge)."""
    if gating.all():
        return np.zeros(0, dtype=np.int32)
    source, target = dag.edge_source[~gating], dag.edge_target[~gating]
    cluster = dag.edge_kind[~gating] == int(EdgeKind.CLUSTER)
    starts = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=dag.n))]) + dag.n + 1
    return np.concatenate([starts, 2 * target + cluster]).astype(np.int32)
