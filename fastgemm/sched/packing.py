"""Packing a DAG into one int64 vector for the jitted scheduler: rows, edges, predecessors and register values.

Registers are cut into lane slices no operand splits further.  A *value* is a slice between a definition (or the region's
start) and the next; pressure follows from which values are live.  Half slices share a *cell*, the 32-bit register they lie in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..vectors import pointer
from . import layout as L
from .model import EdgeKind, Flag, Flavor, OperandKind
from .native import addresses, at_address, at_int8, at_int16, at_int32, entry, inner, shifted

if TYPE_CHECKING:
    from .dag import Dag

__all__ = ["pack"]

_LOW = 0x5555555555555555  # low halves of 32-bit registers
_USE, _DEF, _DEAD = int(OperandKind.USE), int(OperandKind.DEF), int(OperandKind.DEAD_DEF)
_VALU1, _WMMA, _DS = int(Flavor.VALU1), int(Flavor.WMMA), int(Flavor.DS)
_COPY, _SCALAR, _LOAD = int(Flag.COPY), int(Flag.SCALAR_ISSUE), int(Flag.LOAD)
_FROM_PHYS, _TO_PHYS = int(Flag.COPY_FROM_PHYS | Flag.IMM_TO_PHYS), int(Flag.COPY_TO_PHYS)
_WEAK, _CLUSTER = int(EdgeKind.WEAK), int(EdgeKind.CLUSTER)
# hazard group of a flavor; those that end in _FREE move down by one where the scalar wait applies
_GROUPS = (
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
)
# one slice: mask, next slice of its register, register, cell, current value, first and last use, last DS load, live-in?
_SLICE = 9
(_MASK, _NEXT, _REG, _CELL, _VALUE, _FIRST_USE, _LAST_USE, _LAST_LOAD, _FRESH) = range(_SLICE)
# arrays of a Dag the jitted code reads, in the order of the address table: int8, int16, int32, int64
_INT8 = ("flavor", "micro_ops", "edge_kind", "operand_kind", "register_vector")
_INT16 = ("window", "repeat", "copy_regs")
_INT32 = (
    *("unit_cycles", "matrix_cycles", "flags", "carried", "depth", "height"),
    *("edge_start", "edge_target", "edge_latency", "operand_start", "operand_register"),
    *("live_in_register", "live_out_register"),
)
_INT64 = ("operand_lanes", "live_in_lanes", "live_out_lanes")
_TABLE = (*_INT8, *_INT16, *_INT32, *_INT64)
(_T_FLAVOR, _T_UOPS, _T_EDGE_KIND, _T_OPERAND_KIND, _T_VECTOR, _T_WINDOW, _T_REPEAT, _T_COPY) = range(8)
(_T_UNIT, _T_MATRIX, _T_FLAGS, _T_CARRIED, _T_DEPTH, _T_HEIGHT, _T_EDGE_START, _T_TARGET) = range(8, 16)
(_T_EDGE_LATENCY, _T_OPERAND_START, _T_OPERAND_REGISTER, _T_IN, _T_OUT, _T_LANES, _T_IN_LANES, _T_OUT_LANES) = range(
    16, 24
)


@inner
def _new_slice(slices, count, mask, register, following):  # type: ignore[no-untyped-def]
    base = count * _SLICE
    for i in range(_SLICE):
        slices[base + i] = -1
    slices[base + _MASK], slices[base + _REG] = mask, register
    slices[base + _NEXT], slices[base + _FRESH] = following, 0
    return count + 1


@inner
def _refine(head, slices, count, register, mask):  # type: ignore[no-untyped-def]
    """Cut the slices of a register along a mask; returns the new number of slices."""
    rest = mask
    s = head[register]
    while s >= 0:
        own = slices[s * _SLICE + _MASK]
        if own == mask:
            return count
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
def _cut_halves(head, slices, count):  # type: ignore[no-untyped-def]
    """Give every half slice a slice and a cell of its own 32-bit register; returns (slices, cells)."""
    cells = 0
    whole = count
    for s in range(whole):
        mask, register = slices[s * _SLICE + _MASK], slices[s * _SLICE + _REG]
        half = ((mask & _LOW) ^ ((mask >> 1) & _LOW)) & _LOW
        while half != 0:
            bit = half & -half
            half ^= bit
            piece = mask & (bit | (bit << 1))
            owner = s
            if piece != mask:
                mask &= ~piece
                slices[s * _SLICE + _MASK] = mask
                count = _new_slice(slices, count, piece, register, head[register])
                owner = count - 1
                head[register] = owner
            cell = cells
            other = head[register]
            while other >= 0:  # the sibling half may have the cell already
                if slices[other * _SLICE + _CELL] >= 0 and slices[other * _SLICE + _MASK] & (bit | (bit << 1)):
                    cell = slices[other * _SLICE + _CELL]
                other = slices[other * _SLICE + _NEXT]
            slices[owner * _SLICE + _CELL] = cell
            cells = max(cells, cell + 1)
    return count, cells


@inner
def _slice_registers(table, sizes, head, slices):  # type: ignore[no-untyped-def]
    """Cut all registers into slices; returns (slices, cells)."""
    register, lanes = at_int32(table[_T_OPERAND_REGISTER]), at_address(table[_T_LANES])
    count = 0
    for i in range(sizes[5]):
        head[i] = -1
    for i in range(sizes[2]):
        if lanes[i] != 0:
            count = _refine(head, slices, count, np.int64(register[i]), lanes[i])
    for side in range(2):
        register, lanes = at_int32(table[_T_IN + side]), at_address(table[_T_IN_LANES + side])
        for i in range(sizes[3 + side]):
            if lanes[i] != 0:
                count = _refine(head, slices, count, np.int64(register[i]), lanes[i])
    return _cut_halves(head, slices, count)


@inner
def _count_touched(table, sizes, head, slices):  # type: ignore[no-untyped-def]
    """How many (operand, slice) pairs there are, the live lists included: no list can grow longer."""
    count = 0
    for side in range(3):
        register = at_int32(table[_T_OPERAND_REGISTER + side])
        lanes = at_address(table[_T_LANES + side])
        for i in range(sizes[2 + side]):
            s = head[register[i]]
            while s >= 0:
                count += 1 if slices[s * _SLICE + _MASK] & lanes[i] else 0
                s = slices[s * _SLICE + _NEXT]
    return count


@inner
def _new_value(values, count, slices, s, vector, dead):  # type: ignore[no-untyped-def]
    base = count * L.VALUE
    weight = 0
    if slices[s * _SLICE + _CELL] < 0:
        both = slices[s * _SLICE + _MASK] & _LOW
        while both != 0:
            both &= both - 1
            weight += 1
    values[base + L.V_WEIGHT], values[base + L.V_CELL] = weight, slices[s * _SLICE + _CELL]
    values[base + L.V_READERS], values[base + L.V_STAYS], values[base + L.V_DEAD] = 0, 0, dead
    values[base + L.V_VECTOR], values[base + L.V_SLICE] = vector, s
    values[base + L.V_REGISTER] = slices[s * _SLICE + _REG]
    slices[s * _SLICE + _VALUE] = count
    return count + 1


@inner
def _follow_values(table, sizes, head, slices, values, last, lists):  # type: ignore[no-untyped-def]
    """Follow values in program order; returns (values, live-in values, reads, definitions).

    `lists` receives per node the first read and the first definition, then the reads, then the definitions.
    """
    flavor, flags = at_int8(table[_T_FLAVOR]), at_int32(table[_T_FLAGS])
    start, register = at_int32(table[_T_OPERAND_START]), at_int32(table[_T_OPERAND_REGISTER])
    lanes, kinds, vector = at_address(table[_T_LANES]), at_int8(table[_T_OPERAND_KIND]), at_int8(table[_T_VECTOR])
    nodes = sizes[0]
    reads, defines = 2 * (nodes + 1), 2 * (nodes + 1) + sizes[6]
    count = n_reads = n_defines = 0
    entry, entry_lanes = at_int32(table[_T_IN]), at_address(table[_T_IN_LANES])
    for i in range(sizes[3]):
        s = head[entry[i]]
        while s >= 0:
            if slices[s * _SLICE + _MASK] & entry_lanes[i]:
                count = _new_value(values, count, slices, s, np.int64(vector[entry[i]]), 0)
                slices[s * _SLICE + _FRESH] = 1
            s = slices[s * _SLICE + _NEXT]
    live_in = count
    for node in range(nodes):
        lists[2 * node], lists[2 * node + 1] = n_reads, n_defines
        for i in range(start[node], start[node + 1]):
            s = head[register[i]] if kinds[i] == _USE else -1
            while s >= 0:
                base = s * _SLICE
                if slices[base + _MASK] & lanes[i]:
                    if slices[base + _FIRST_USE] < 0:
                        slices[base + _FIRST_USE] = node
                    slices[base + _LAST_USE] = node
                    value = slices[base + _VALUE]
                    if value >= 0 and (values[value * L.VALUE + L.V_READERS] == 0 or last[value] != node):
                        last[value] = node
                        values[value * L.VALUE + L.V_READERS] += 1
                        values[value * L.VALUE + L.V_DEAD] = 0  # whatever was said of it
                        lists[reads + n_reads] = value
                        n_reads += 1
                s = slices[base + _NEXT]
        for i in range(start[node], start[node + 1]):
            s = head[register[i]] if kinds[i] == _DEF or kinds[i] == _DEAD else -1
            while s >= 0:
                base = s * _SLICE
                if slices[base + _MASK] & lanes[i]:
                    old = slices[base + _VALUE] * L.VALUE
                    if slices[base + _FRESH] == 1 and values[old + L.V_READERS] == 0:
                        values[old + L.V_READERS] = 1  # a live-in nobody reads ends where it is overwritten
                        lists[reads + n_reads] = slices[base + _VALUE]
                        n_reads += 1
                    slices[base + _FRESH] = 0
                    if flavor[node] == _DS and flags[node] & _LOAD:
                        slices[base + _LAST_LOAD] = node
                    dead = 1 if kinds[i] == _DEAD else 0
                    count = _new_value(values, count, slices, s, np.int64(vector[register[i]]), dead)
                    lists[defines + n_defines] = count - 1
                    n_defines += 1
                s = slices[base + _NEXT]
    lists[2 * nodes], lists[2 * nodes + 1] = n_reads, n_defines
    leave, leave_lanes = at_int32(table[_T_OUT]), at_address(table[_T_OUT_LANES])
    for i in range(sizes[4]):
        s = head[leave[i]]
        while s >= 0:
            value = slices[s * _SLICE + _VALUE] * L.VALUE
            if slices[s * _SLICE + _MASK] & leave_lanes[i] and value >= 0 and values[value + L.V_DEAD] == 0:
                values[value + L.V_STAYS] = 1
            s = slices[s * _SLICE + _NEXT]
    return count, live_in, n_reads, n_defines


@inner
def _fill_rows(table, nodes, rows, groups):  # type: ignore[no-untyped-def]
    """The static columns of every row, except where its lists begin; returns whether some node is biased."""
    flavors, uops, window = at_int8(table[_T_FLAVOR]), at_int8(table[_T_UOPS]), at_int16(table[_T_WINDOW])
    repeat, copy = at_int16(table[_T_REPEAT]), at_int16(table[_T_COPY])
    unit, matrix, all_flags = at_int32(table[_T_UNIT]), at_int32(table[_T_MATRIX]), at_int32(table[_T_FLAGS])
    carried, depth, height = at_int32(table[_T_CARRIED]), at_int32(table[_T_DEPTH]), at_int32(table[_T_HEIGHT])
    start = at_int32(table[_T_EDGE_START])
    biased = 0
    for n in range(nodes):
        row = n * L.NODE
        flavor, flags = np.int64(flavors[n]), np.int64(all_flags[n])
        group = groups[flavor]
        if flavor == _VALU1 and flags & _COPY:
            group = L.G_VECTOR_COPY
        elif flavor == _WMMA and matrix[n] < 0:
            group = L.G_WMMA_FREE
        elif flags & _SCALAR and (group == L.G_SALU_FREE or group == L.G_FENCE_FREE or group == L.G_OTHER_FREE):
            group -= 1
        bias = 1 if flags & _FROM_PHYS else 0
        if flags & _TO_PHYS:
            bias = 1 if start[n + 1] > start[n] else -1
        biased |= bias
        rows[row + L.FLAVOR], rows[row + L.GROUP], rows[row + L.BIAS] = flavor, group, bias
        rows[row + L.FLAGS], rows[row + L.UNIT_CYCLES], rows[row + L.UOPS] = flags, unit[n], uops[n]
        rows[row + L.MATRIX], rows[row + L.WINDOW], rows[row + L.CARRIED] = matrix[n], window[n], carried[n]
        rows[row + L.DEPTH], rows[row + L.HEIGHT] = depth[n], height[n]
        rows[row + L.REPEAT] = copy[n] if flags & _COPY else repeat[n]
    return 1 if biased != 0 else 0


@inner
def _fill_edges(table, nodes, rows, at):  # type: ignore[no-untyped-def]
    """(target, latency) pairs from `at` on, then predecessors; weak and cluster edges are left out. Returns the end."""
    start, target = at_int32(table[_T_EDGE_START]), at_int32(table[_T_TARGET])
    latency, kind = at_int32(table[_T_EDGE_LATENCY]), at_int8(table[_T_EDGE_KIND])
    for n in range(nodes + 1):
        rows[n * L.NODE + L.PRED] = 0
    for n in range(nodes):
        rows[n * L.NODE + L.SUCC] = at
        for e in range(start[n], start[n + 1]):
            if kind[e] < _WEAK:
                rows[at], rows[at + 1] = target[e], latency[e]
                at += 2
                rows[(target[e] + 1) * L.NODE + L.PRED] += 1
    rows[nodes * L.NODE + L.SUCC] = at
    rows[L.PRED] = at
    for n in range(nodes):
        rows[(n + 1) * L.NODE + L.PRED] += rows[n * L.NODE + L.PRED]
    for n in range(nodes):  # each start moves to its end while the list fills, which is the start of the next row
        for e in range(start[n], start[n + 1]):
            if kind[e] < _WEAK:
                place = target[e] * L.NODE + L.PRED
                rows[rows[place]] = 2 * n + (1 if kind[e] == 0 else 0)
                rows[place] += 1
    end = rows[nodes * L.NODE + L.PRED]
    for n in range(nodes - 1, 0, -1):
        rows[n * L.NODE + L.PRED] = rows[(n - 1) * L.NODE + L.PRED]
    rows[L.PRED] = at
    return end


@inner
def _fill_soft(table, nodes, rows, at):  # type: ignore[no-untyped-def]
    """Weak and cluster edges: n + 1 starts counted from `at`, then 2 * target + (cluster edge)."""
    start, target, kind = at_int32(table[_T_EDGE_START]), at_int32(table[_T_TARGET]), at_int8(table[_T_EDGE_KIND])
    place = at + nodes + 1
    for n in range(nodes):
        rows[at + n] = place - at
        for e in range(start[n], start[n + 1]):
            if kind[e] >= _WEAK:
                rows[place] = 2 * target[e] + (1 if kind[e] == _CLUSTER else 0)
                place += 1
    rows[at + nodes] = place - at


# sizes of a DAG and what the steps of `_pack` find
(_Z_NODES, _Z_EDGES, _Z_OPERANDS, _Z_IN, _Z_OUT, _Z_REGISTERS, _Z_ROOM, _Z_MOST_SLICES, _Z_SOFT) = range(9)
(_Z_SLICES, _Z_CELLS, _Z_VALUES, _Z_LIVE_IN, _Z_READS, _Z_DEFINES) = range(9, 15)


@inner
def _fill(table, sizes, slices, scratch, packed, groups):  # type: ignore[no-untyped-def]
    """Write the packed form from what the earlier steps found."""
    nodes, edges = sizes[_Z_NODES], sizes[_Z_EDGES] - sizes[_Z_SOFT]
    count, found = sizes[_Z_SLICES], sizes[_Z_VALUES]
    n_reads, n_defines = sizes[_Z_READS], sizes[_Z_DEFINES]
    lists = shifted(scratch, sizes[_Z_ROOM] * (L.VALUE + 1))
    for i in range(L.HEADER):
        packed[i] = 0
    rows = shifted(packed, np.int64(L.HEADER))
    packed[L.H_BIASED] = _fill_rows(table, nodes, rows, groups)
    at = _fill_edges(table, nodes, rows, (nodes + 1) * L.NODE)
    for n in range(nodes + 1):
        rows[n * L.NODE + L.READ] = at + lists[2 * n]
        rows[n * L.NODE + L.DEFINE] = at + n_reads + lists[2 * n + 1]
    for i in range(n_reads):
        rows[at + i] = lists[2 * (nodes + 1) + i]
    at += n_reads
    for i in range(n_defines):
        rows[at + i] = lists[2 * (nodes + 1) + sizes[_Z_ROOM] + i]
    at += n_defines
    packed[L.H_VALUE_AT] = at
    for i in range(found * L.VALUE):
        rows[at + i] = scratch[i]
    at += found * L.VALUE
    packed[L.H_SLICE_AT] = at
    for i in range(count):  # loop-carried: read before its last load, and not after it
        first, final = slices[i * _SLICE + _FIRST_USE], slices[i * _SLICE + _LAST_USE]
        load = slices[i * _SLICE + _LAST_LOAD]
        rows[at + i] = 1 if first >= 0 and load >= 0 and final <= load and first < load else 0
    at += count
    if sizes[_Z_SOFT] > 0:
        packed[L.H_SOFT_AT] = at
        _fill_soft(table, nodes, rows, at)
    packed[L.H_NODES], packed[L.H_EDGES] = nodes, edges
    packed[L.H_VALUES], packed[L.H_LIVE_IN] = found, sizes[_Z_LIVE_IN]
    packed[L.H_CELLS], packed[L.H_SLICES], packed[L.H_REGISTERS] = sizes[_Z_CELLS], count, sizes[_Z_REGISTERS]


@entry
def _pack(step, table, sizes, slices, scratch, packed, groups):  # type: ignore[no-untyped-def]
    """Pack in three steps, because each finds how much room the next one takes.

    0 cuts slices (`slices` = their heads per register, then the slices), 1 follows values (`scratch` = values, last readers,
    lists), 2 writes `packed`.
    """
    t, z, head, room = pointer(table), pointer(sizes), pointer(slices), pointer(scratch)
    cut = shifted(head, sizes[_Z_REGISTERS] + 1)
    if step == 0:
        sizes[_Z_SLICES], sizes[_Z_CELLS] = _slice_registers(t, z, head, cut)
        sizes[_Z_ROOM] = 2 * _count_touched(t, z, head, cut) + 1
    elif step == 1:
        last = shifted(room, sizes[_Z_ROOM] * L.VALUE)
        lists = shifted(last, sizes[_Z_ROOM])
        found = _follow_values(t, z, head, cut, room, last, lists)
        sizes[_Z_VALUES], sizes[_Z_LIVE_IN], sizes[_Z_READS], sizes[_Z_DEFINES] = found
    else:
        _fill(t, z, cut, room, pointer(packed), pointer(groups))


_GROUP_TABLE = np.array(_GROUPS, dtype=np.int64)


def pack(dag: Dag) -> NDArray[np.int64]:
    """The DAG as the jitted scheduler reads it (see `fastgemm.sched.layout`)."""
    table = addresses(dag.addresses(_TABLE))
    soft = int(np.count_nonzero(dag.edge_kind >= _WEAK))
    # a slice per lane at most, and one more while it is cut (room that stays empty costs nothing)
    most = 2 * int(np.maximum(dag.register_size, 1).sum(dtype=np.int64)) + dag.register_id.size + 1
    sizes = np.zeros(15, dtype=np.int64)
    sizes[:_Z_REGISTERS] = (
        dag.n,
        dag.edges,
        dag.operand_kind.size,
        dag.live_in_register.size,
        dag.live_out_register.size,
    )
    sizes[_Z_REGISTERS], sizes[_Z_MOST_SLICES], sizes[_Z_SOFT] = dag.register_id.size, most, soft
    slices = np.empty(dag.register_id.size + 1 + int(sizes[_Z_MOST_SLICES]) * _SLICE, dtype=np.int64)
    _pack(0, table, sizes, slices, table, table, _GROUP_TABLE)
    scratch = np.empty(int(sizes[_Z_ROOM]) * (L.VALUE + 3) + 2 * (dag.n + 1), dtype=np.int64)
    _pack(1, table, sizes, slices, scratch, table, _GROUP_TABLE)
    size = (dag.n + 1) * L.NODE + 3 * (dag.edges - soft) + (dag.n + 1 + soft if soft else 0)
    size += int(sizes[_Z_READS] + sizes[_Z_DEFINES] + sizes[_Z_VALUES] * L.VALUE + sizes[_Z_SLICES])
    packed = np.empty(L.HEADER + size, dtype=np.int64)
    _pack(2, table, sizes, slices, scratch, packed, _GROUP_TABLE)
    packed[L.H_LOOP], packed[L.H_VGPR_LIMIT], packed[L.H_SGPR_LIMIT] = (
        dag.whole_single_block_loop,
        dag.vgpr_limit,
        dag.sgpr_limit,
    )
    packed[L.H_WMMA] = np.count_nonzero(dag.flavor == _WMMA)
    packed[L.H_DS] = np.count_nonzero(dag.flavor == _DS)
    return packed
