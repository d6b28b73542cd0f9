"""The pick loop: set up a region, choose, commit, write down (jitted; Python enters at `run_batch` and `replay_region`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..vectors import pointer
from . import layout as L
from .choosing import choose, node_at
from .hazards import advance, issue, refresh_waits, release, release_pending, settle, take
from .ladder_steps import stall_kind
from .model import Flavor
from .native import State, at_address, entry, inner, shifted
from .pressure import commit_registers, open_gate, set_up_registers
from .units import count_issue, set_up_units
from .windows import note_commit, set_up_windows

__all__ = ["open_state", "run_batch", "work_size"]

_WMMA, _VALU1, _VALUN, _DS, _FENCE = (
    int(Flavor.WMMA), int(Flavor.VALU1), int(Flavor.VALUN), int(Flavor.DS), int(Flavor.FENCE))  # fmt: skip


@inner
def lay_work(c, header, limit):  # type: ignore[no-untyped-def]
    """Positions of the sections in the work vector; returns its size."""
    nodes = header[L.H_NODES]
    at = nodes * L.LIVE
    c[L.W_AVAILABLE] = at
    at += limit + 1
    c[L.W_PENDING] = at
    at += nodes + 1
    c[L.W_MEMBERS] = at
    at += nodes
    c[L.W_ORDERED] = at
    at += nodes
    c[L.W_WMMA] = at
    at += header[L.H_WMMA]
    c[L.W_DS] = at
    at += header[L.H_DS]
    c[L.W_READERS] = at
    at += header[L.H_VALUES]
    c[L.W_CELLS] = at
    at += header[L.H_CELLS]
    c[L.W_SLICES] = at if header[L.H_LOOP] else -1
    at += header[L.H_SLICES]
    c[L.W_REGISTERS] = at
    at += 3 * header[L.H_REGISTERS]
    for section in (L.W_SEARCH, L.W_CANDIDATES, L.W_STALLS, L.W_COSTS, L.W_CLASS, L.W_ALIVE):
        c[section] = at
        at += nodes + 1
    c[L.W_LOOK] = at
    at += 18
    c[L.W_FLOW] = at
    at += 32 * 32 + 64 + 256
    c[L.W_VALUES] = header[L.H_VALUE_AT]
    c[L.W_SLICE_FLAGS] = header[L.H_SLICE_AT]
    c[L.W_SOFT] = header[L.H_SOFT_AT]
    return at


@inner
def set_up(s, header):  # type: ignore[no-untyped-def]
    """Fresh state of a region: counts, units, registers, windows, roots."""
    c, node, live, work = s.c, s.node, s.live, s.work
    nodes = header[L.H_NODES]
    logging = c[L.C_LOGGING]
    for i in range(L.W_AVAILABLE):
        c[i] = 0
    for i in range(L.C_WAIT, L.C_FILL):
        c[i] = 0
    c[L.C_LOGGING] = logging
    c[L.C_VGPR_LIMIT], c[L.C_SGPR_LIMIT] = header[L.H_VGPR_LIMIT], header[L.H_SGPR_LIMIT]
    c[L.C_WINDOW] = c[L.C_CLUSTER] = -1
    c[L.C_STALE], c[L.C_NODES], c[L.C_LIVE_IN] = 0, nodes, header[L.H_LIVE_IN]
    for n in range(nodes):
        row = n * L.LIVE
        live[row + L.READY] = 0
        live[row + L.OPEN] = node[(n + 1) * L.NODE + L.PRED] - node[n * L.NODE + L.PRED]
        live[row + L.MARK] = live[row + L.LOOK] = live[row + L.STAMP] = live[row + L.SOFT] = 0
        live[row + L.RAW_SEEN] = -1
    if c[L.W_SOFT] > 0:
        for k in range(node[c[L.W_SOFT]], node[c[L.W_SOFT] + nodes]):
            if node[c[L.W_SOFT] + k] & 1 == 0:
                live[(node[c[L.W_SOFT] + k] >> 1) * L.LIVE + L.SOFT] += 1
    set_up_units(s, nodes)
    set_up_registers(s, header[L.H_VALUES], header[L.H_LIVE_IN], header[L.H_CELLS])
    if header[L.H_LOOP] != 0:
        for i in range(header[L.H_SLICES]):
            work[c[L.W_SLICES] + i] = -1
    for i in range(3 * header[L.H_REGISTERS]):
        work[c[L.W_REGISTERS] + i] = -1
    for i in range(18):
        work[c[L.W_LOOK] + i] = -1 if i < 16 else 0
    if s.model[L.M_EXPOSURE] != 0:
        set_up_windows(s, nodes)
    for n in range(nodes):
        if live[n * L.LIVE + L.OPEN] == 0:
            release(s, n)
    c[L.C_STALE] = 1


@inner
def prepare_pick(s):  # type: ignore[no-untyped-def]
    """What is constant during one pick."""
    c, unit = s.c, s.unit
    open_gate(s)
    c[L.C_SORTED] = c[L.C_MARKED] = 0
    c[L.C_NEAR_VALU] = c[L.C_NEAR_DS] = c[L.C_MIX] = -1
    stalls = s.model[L.M_STALLS]
    ds, fence = _DS * L.UNIT, _FENCE * L.UNIT
    c[L.C_FIFO] = c[L.C_FENCE] = 0
    for group in range(L.GROUPS):
        c[L.C_STALL + group] = c[L.C_WAIT + group]
    issued = unit[ds + L.U_ISSUED]
    entries = s.model[L.M_DS_BUFFER]
    if (stalls >> L.K_FIFO) & 1 and entries > 0 and issued >= entries:
        c[L.C_FIFO] = unit[ds + L.U_BUFFER] + s.work[c[L.W_DS] + issued - entries] - c[L.C_CYCLE]
        c[L.C_STALL + L.G_DS] = max(c[L.C_STALL + L.G_DS], c[L.C_FIFO])
    if (stalls >> L.K_FENCE) & 1 and issued > 0 and unit[ds + L.U_LAST_READY] >= unit[fence + L.U_LAST_READY]:
        c[L.C_FENCE] = unit[ds + L.U_LAST_READY] + unit[ds + L.U_LAST_CYCLES] - c[L.C_CYCLE]
        for group in (L.G_FENCE, L.G_FENCE_FREE):
            c[L.C_STALL + group] = max(c[L.C_STALL + group], c[L.C_FENCE])


@inner
def remove(s, place):  # type: ignore[no-untyped-def]
    """Take the pick out of its queue; a pending one first waits until it may issue."""
    c = s.c
    n = node_at(s, place)
    if place < c[L.C_AVAILABLE]:
        take(s, place, 0)
        return
    if s.live[n * L.LIVE + L.READY] > c[L.C_CYCLE]:
        advance(s, s.live[n * L.LIVE + L.READY])
    refresh_waits(s)
    while (c[L.C_BLOCKED] >> s.node[n * L.NODE + L.GROUP]) & 1:
        advance(s, c[L.C_CYCLE] + 1)
        refresh_waits(s)
    release_pending(s)
    for queue in range(2):
        for i in range(c[L.C_AVAILABLE + queue]):
            if s.work[c[L.W_AVAILABLE + queue] + i] & L.NODE_MASK == n:
                take(s, i, queue)
                return


@inner
def _note_issued(s, n, ready):  # type: ignore[no-untyped-def]
    """Issue lists: ready cycles of matrix ops and DS, of the last op of every unit."""
    flavor = s.node[n * L.NODE + L.FLAVOR]
    base = flavor * L.UNIT
    s.unit[base + L.U_LAST_READY] = ready
    s.unit[base + L.U_LAST_CYCLES] = s.node[n * L.NODE + L.UNIT_CYCLES]
    if flavor == _WMMA:
        s.work[s.c[L.W_WMMA] + s.unit[base + L.U_ISSUED] - 1] = ready
    elif flavor == _DS:
        s.work[s.c[L.W_DS] + s.unit[base + L.U_ISSUED] - 1] = ready


@inner
def _note_reads(s, n, ready):  # type: ignore[no-untyped-def]
    """Write-after-read bounds per register, and when loop-carried slices are first read."""
    c, node, work = s.c, s.node, s.work
    flavor = node[n * L.NODE + L.FLAVOR]
    column = 0 if flavor == _WMMA else (1 if flavor == _VALU1 else (2 if flavor == _VALUN else -1))
    if column < 0 and c[L.W_SLICES] < 0:
        return
    bound = ready + 4 * node[n * L.NODE + L.UNIT_CYCLES]
    for k in range(node[n * L.NODE + L.READ], node[(n + 1) * L.NODE + L.READ]):
        value = c[L.W_VALUES] + node[k] * L.VALUE
        if column >= 0:
            work[c[L.W_REGISTERS] + 3 * node[value + L.V_REGISTER] + column] = bound
        if c[L.W_SLICES] >= 0:
            part = node[value + L.V_SLICE]
            if node[c[L.W_SLICE_FLAGS] + part] != 0 and work[c[L.W_SLICES] + part] < 0:
                work[c[L.W_SLICES] + part] = c[L.C_PICKS]


@inner
def _note_soft(s, n):  # type: ignore[no-untyped-def]
    """Weak predecessors count down, a cluster edge names the node that should follow."""
    c, node = s.c, s.node
    c[L.C_CLUSTER] = -1
    for k in range(node[c[L.W_SOFT] + n], node[c[L.W_SOFT] + n + 1]):
        target = node[c[L.W_SOFT] + k]
        if target & 1:
            c[L.C_CLUSTER] = target >> 1
        else:
            s.live[(target >> 1) * L.LIVE + L.SOFT] -= 1


@inner
def commit(s, n):  # type: ignore[no-untyped-def]
    """Schedule a node that was taken out of its queue. The order of these steps decides cycles."""
    c, node, live = s.c, s.node, s.live
    row = n * L.NODE
    live[n * L.LIVE + L.OPEN] = -1
    c[L.C_BIASED] -= node[row + L.BIAS] & 1
    counted = count_issue(s, n)
    if s.model[L.M_EXPOSURE] != 0:
        note_commit(s, n)
    commit_registers(s, n)
    ready = max(live[n * L.LIVE + L.READY], c[L.C_CYCLE])
    live[n * L.LIVE + L.READY] = ready
    if counted:
        _note_issued(s, n, ready)
    _note_reads(s, n, ready)
    if c[L.W_SOFT] > 0:
        _note_soft(s, n)
    following = ready
    if node[row + L.MATRIX] >= 0:
        following = max(following, c[L.C_RESERVED])
        c[L.C_RESERVED] = following + node[row + L.MATRIX]
    if following > c[L.C_CYCLE]:
        advance(s, following)
    issue(s, n)
    if node[row + L.UOPS] > 0:
        advance(s, c[L.C_CYCLE] + node[row + L.UOPS])
    refresh_waits(s)
    for k in range(node[row + L.SUCC], node[row + L.NODE + L.SUCC], 2):
        target = node[k] * L.LIVE
        live[target + L.READY] = max(live[target + L.READY], ready + node[k + 1])
        live[target + L.OPEN] -= 1
        if live[target + L.OPEN] == 0:
            release(s, node[k])
    c[L.C_PICKS] += 1
    c[L.C_STALE] = 1


@inner
def write_pick(s, n, out):  # type: ignore[no-untyped-def]
    """The pick as it stands after its commit, except what was noted before."""
    c = s.c
    out[L.O_NODE] = n
    out[L.O_READY] = s.live[n * L.LIVE + L.READY]
    out[L.O_REASON] = c[L.C_REASON]
    out[L.O_VGPR] = c[L.C_VGPR]
    out[L.O_SGPR] = c[L.C_SGPR]


@inner
def schedule_region(s, header, out):  # type: ignore[no-untyped-def]
    """Schedule one region freely; one row of `OUT` words per pick."""
    c = s.c
    set_up(s, header)
    for pick in range(header[L.H_NODES]):
        row = shifted(out, pick * L.OUT)
        settle(s)
        prepare_pick(s)
        row[L.O_AVAILABLE], row[L.O_PENDING] = c[L.C_AVAILABLE], c[L.C_PENDING]
        place = choose(s)
        n, wait = node_at(s, place), s.work[c[L.W_STALLS] + place]
        row[L.O_STALL], row[L.O_WAIT] = stall_kind(s, n, wait), wait
        remove(s, place)
        row[L.O_CYCLE] = c[L.C_CYCLE]
        commit(s, n)
        write_pick(s, n, row)


@inner
def open_state(header, model, work, log):  # type: ignore[no-untyped-def]
    """The state of a packed DAG in a work vector: scalars and unit records first, then the sections of `lay_work`."""
    lay_work(work, header, model[L.M_AVAILABLE_LIMIT])
    units = shifted(work, np.int64(L.SCALARS))
    vector = shifted(units, np.int64(L.FLAVORS * L.UNIT))
    return State(shifted(header, np.int64(L.HEADER)), vector, vector, work, units, model, log)


def work_size(packed: Sequence[NDArray[np.int64]], limit: int) -> int:
    """Words of the work vector that the largest of some packed DAGs needs (see `open_state`)."""
    sizes = [0]
    for header in packed:
        nodes = int(header[L.H_NODES])
        fixed = (limit + 1) + 18 + 32 * 32 + 64 + 256 + 8
        counts = (L.H_WMMA, L.H_DS, L.H_VALUES, L.H_CELLS, L.H_SLICES)
        rest = sum(int(header[name]) for name in counts) + 3 * int(header[L.H_REGISTERS])
        sizes.append(nodes * L.LIVE + 9 * (nodes + 1) + fixed + rest)
    return L.SCALARS + L.FLAVORS * L.UNIT + max(sizes)


@entry(nogil=True)
def run_batch(addresses, starts, chunk, model, work, out, done, log):  # type: ignore[no-untyped-def]
    """Schedule the packed DAGs `chunk[0]` to `chunk[1] - 1`; the rows of DAG i start at `starts[i]` of `out` (OUT words each).

    `done[0]` counts finished DAGs; `done[1]` set by another thread stops before the next one; `done[2]` asks for the log of the
    last DAG, `done[3]` returns the words it takes.
    """
    c = pointer(work)
    c[L.C_LOGGING] = done[2]
    for i in range(chunk[0], chunk[1]):
        if done[1] != 0:
            break
        header = at_address(addresses[i])
        s = open_state(header, pointer(model), c, pointer(log))
        schedule_region(s, header, shifted(pointer(out), starts[i] * L.OUT))
        done[0] += 1
        done[3] = c[L.C_LOGGED]
