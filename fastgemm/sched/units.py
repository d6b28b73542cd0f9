"""Records of the hardware units: members by depth, priority lists, targets, totals and the sort (jitted).

The priority list of a unit are its unscheduled members of least depth, in node order; members are kept sorted by (depth, node),
so that membership is a comparison of depths and the first member that is not ready only ever moves forward.
"""

from __future__ import annotations

from . import layout as L
from .model import Flavor
from .native import inner

__all__ = ["count_issue", "mark_targets", "set_up_units", "sort_units", "take_snapshot"]

_WMMA, _VALUN, _DS = int(Flavor.WMMA), int(Flavor.VALUN), int(Flavor.DS)
_PRODUCERS = 1 << _WMMA | 1 << int(Flavor.TRANS) | 1 << _VALUN
DEEP = 11  # bit of the deep matrix target in a node's marks


@inner
def _sort_by_depth(s, first, end):  # type: ignore[no-untyped-def]
    """Stable sort of the members of one unit by depth: insertion while few, else by bytes of the depth."""
    work, node = s.work, s.node
    if end - first <= 24:
        for i in range(first + 1, end):
            n = work[i]
            depth = node[n * L.NODE + L.DEPTH]
            k = i
            while k > first and node[work[k - 1] * L.NODE + L.DEPTH] > depth:
                work[k] = work[k - 1]
                k -= 1
            work[k] = n
        return
    deepest = 0
    sorted_already = True
    for i in range(first, end):
        depth = node[work[i] * L.NODE + L.DEPTH]
        sorted_already = sorted_already and depth >= deepest
        deepest = max(deepest, depth)
    if sorted_already:
        return
    spare, buckets = s.c[L.W_SEARCH], s.c[L.W_FLOW]
    shift = 0
    while deepest >> shift > 0:
        for k in range(256):
            work[buckets + k] = 0
        for i in range(first, end):
            work[buckets + ((node[work[i] * L.NODE + L.DEPTH] >> shift) & 255)] += 1
        total = 0
        for k in range(256):
            count = work[buckets + k]
            work[buckets + k] = total
            total += count
        for i in range(first, end):
            k = buckets + ((node[work[i] * L.NODE + L.DEPTH] >> shift) & 255)
            work[spare + work[k]] = work[i]
            work[k] += 1
        for i in range(first, end):
            work[i] = work[spare + i - first]
        shift += 8


@inner
def _open_group(s, base):  # type: ignore[no-untyped-def]
    """Make the members of least depth among those left the priority list."""
    unit, live = s.unit, s.live
    i = unit[base + L.U_GROUP]
    end = unit[base + L.U_END]
    while i < end and live[s.work[i] * L.LIVE + L.OPEN] < 0:
        i += 1
    unit[base + L.U_GROUP] = i
    left = 0
    if i < end:
        depth = s.node[s.work[i] * L.NODE + L.DEPTH]
        unit[base + L.U_DEPTH] = depth
        while i < end and s.node[s.work[i] * L.NODE + L.DEPTH] == depth:
            if live[s.work[i] * L.LIVE + L.OPEN] >= 0:
                left += 1
            i += 1
    unit[base + L.U_GROUP_LEFT] = left


@inner
def set_up_units(s, nodes):  # type: ignore[no-untyped-def]
    """Fill the records from the nodes (their predecessor counts are set)."""
    unit, node, work = s.unit, s.node, s.work
    for i in range(L.FLAVORS * L.UNIT):
        unit[i] = 0
    for n in range(nodes):
        base = node[n * L.NODE + L.FLAVOR] * L.UNIT
        unit[base + L.U_LEFT] += 1
        unit[base + L.U_TOTAL] += node[n * L.NODE + L.UNIT_CYCLES]
    first, ordered = s.c[L.W_MEMBERS], s.c[L.W_ORDERED]
    units = 0
    for flavor in range(L.FLAVORS):
        base = flavor * L.UNIT
        unit[base + L.U_FIRST] = unit[base + L.U_END] = first
        unit[base + L.U_ORDERED] = ordered + first - s.c[L.W_MEMBERS]
        unit[base + L.U_SHALLOW] = unit[base + L.U_DEEP] = -1
        unit[base + L.U_REMAINING] = unit[base + L.U_TOTAL]
        unit[base + L.U_DEPTH] = -1
        if unit[base + L.U_LEFT] > 0:
            s.c[L.C_ORDER + units] = flavor
            units += 1
        first += unit[base + L.U_LEFT]
    s.c[L.C_UNITS], s.c[L.C_DIRTY] = units, (1 << L.FLAVORS) - 1
    for n in range(nodes):
        base = node[n * L.NODE + L.FLAVOR] * L.UNIT
        work[unit[base + L.U_END]] = n
        unit[base + L.U_END] += 1
    for i in range(nodes):
        work[ordered + i] = work[s.c[L.W_MEMBERS] + i]
    for flavor in range(L.FLAVORS):
        base = flavor * L.UNIT
        _sort_by_depth(s, unit[base + L.U_FIRST], unit[base + L.U_END])
        unit[base + L.U_OPEN] = unit[base + L.U_GROUP] = unit[base + L.U_FIRST]
        _open_group(s, base)
    base = _DS * L.UNIT
    if s.model[L.M_DS_BUFFER] > 0 and unit[base + L.U_LEFT] > 0:
        unit[base + L.U_BUFFER] = unit[base + L.U_TOTAL] // unit[base + L.U_LEFT]
        unit[base + L.U_TOTAL] //= s.model[L.M_DS_BUFFER]


@inner
def count_issue(s, n):  # type: ignore[no-untyped-def]
    """Bookkeeping of a unit when one of its nodes is scheduled; a unit whose total is 0 is frozen. Returns whether it counted."""
    unit = s.unit
    base = s.node[n * L.NODE + L.FLAVOR] * L.UNIT
    cycles = s.node[n * L.NODE + L.UNIT_CYCLES]
    unit[base + L.U_READY] -= 1
    unit[base + L.U_READY_CYCLES] -= cycles
    if unit[base + L.U_REMAINING] != 0:
        unit[base + L.U_REMAINING] -= cycles
    if unit[base + L.U_TOTAL] == 0:
        return False
    unit[base + L.U_ISSUED] += 1
    s.c[L.C_DIRTY] |= 1 << s.node[n * L.NODE + L.FLAVOR]
    unit[base + L.U_LEFT] -= 1
    if s.node[n * L.NODE + L.FLAVOR] == _DS and s.model[L.M_DS_BUFFER] > 0:
        if unit[base + L.U_ISSUED] % s.model[L.M_DS_BUFFER] == 0:
            unit[base + L.U_TOTAL] -= cycles
    else:
        unit[base + L.U_TOTAL] -= cycles
    if s.node[n * L.NODE + L.DEPTH] == unit[base + L.U_DEPTH]:
        unit[base + L.U_GROUP_LEFT] -= 1
        if unit[base + L.U_GROUP_LEFT] == 0:
            _open_group(s, base)
    return True


@inner
def next_target(s, base, deep):  # type: ignore[no-untyped-def]
    """First member of the priority list that is not ready; if `deep`, else the not-ready member of least depth; else -1."""
    unit = s.unit
    i = unit[base + L.U_OPEN]
    end = unit[base + L.U_END]
    while i < end and s.live[s.work[i] * L.LIVE + L.OPEN] <= 0:
        i += 1
    unit[base + L.U_OPEN] = i
    if i == end:
        return -1
    n = s.work[i]
    if deep or s.node[n * L.NODE + L.DEPTH] == unit[base + L.U_DEPTH]:
        return n
    return -1


@inner
def flip_ancestors(s, target, column, bit, on):  # type: ignore[no-untyped-def]
    """Set a mark on all unscheduled ancestors of a node, or clear it from all that have it."""
    node, live, work = s.node, s.live, s.work
    at = s.c[L.W_SEARCH]
    work[at] = target
    top = 1
    while top > 0:
        top -= 1
        n = work[at + top]
        for k in range(node[n * L.NODE + L.PRED], node[(n + 1) * L.NODE + L.PRED]):
            source = node[k] >> 1
            row = source * L.LIVE
            marked = (live[row + column] >> bit) & 1
            if on and marked == 0 and live[row + L.OPEN] >= 0:
                live[row + column] |= 1 << bit
                work[at + top] = source
                top += 1
            elif not on and marked != 0:
                live[row + column] &= ~(1 << bit)
                work[at + top] = source
                top += 1


@inner
def mark_targets(s):  # type: ignore[no-untyped-def]
    """Bring the marks of the nodes that reach each unit's target up to date; cheap while targets stay."""
    unit = s.unit
    for i in range(s.c[L.C_UNITS]):
        flavor = s.c[L.C_ORDER + i]
        base = flavor * L.UNIT
        for deep in range(2 if flavor == _WMMA else 1):
            target = next_target(s, base, deep == 1)
            if target != unit[base + L.U_SHALLOW + deep]:
                bit = DEEP if deep == 1 else flavor
                if unit[base + L.U_SHALLOW + deep] >= 0:
                    flip_ancestors(s, unit[base + L.U_SHALLOW + deep], L.MARK, bit, False)
                unit[base + L.U_SHALLOW + deep] = target
                if target >= 0:
                    flip_ancestors(s, target, L.MARK, bit, True)
    s.c[L.C_MARKED] = 1


@inner
def take_snapshot(s):  # type: ignore[no-untyped-def]
    """Ready nodes per unit as ShadowMix and the sort see them until the next commit."""
    if s.c[L.C_STALE] != 0:
        s.c[L.C_STALE] = 0
        for i in range(s.c[L.C_UNITS]):
            base = s.c[L.C_ORDER + i] * L.UNIT
            s.unit[base + L.U_SEEN] = s.unit[base + L.U_READY]
            s.unit[base + L.U_SEEN_CYCLES] = s.unit[base + L.U_READY_CYCLES]


@inner
def sort_units(s):  # type: ignore[no-untyped-def]
    """Sort the units for this pick; the order persists until it is needed again.

    Producers come first, then (in profiles with exposure) units with exposed nodes, more of them, and more cycles that are not
    ready yet; then larger totals, fewer members left, smaller flavors.  Two integers hold all of it.
    """
    c, unit = s.c, s.unit
    exposure = s.model[L.M_EXPOSURE] != 0
    if exposure:
        take_snapshot(s)
    for i in range(c[L.C_UNITS]):
        flavor = c[L.C_ORDER + i]
        base = flavor * L.UNIT
        if exposure or (c[L.C_DIRTY] >> flavor) & 1:
            key = (_PRODUCERS >> flavor) & 1
            if exposure:
                key = key << 24 | max(0, unit[base + L.U_EXPOSED])
                key = key << 38 | max(0, unit[base + L.U_REMAINING] - unit[base + L.U_SEEN_CYCLES])
            tie = (unit[base + L.U_TOTAL] << 28) - (unit[base + L.U_LEFT] << 4) - flavor
        else:
            key, tie = c[L.C_KEYS + 2 * i], c[L.C_KEYS + 2 * i + 1]
        k = i
        while k > 0 and (
            c[L.C_KEYS + 2 * k - 2] < key or (c[L.C_KEYS + 2 * k - 2] == key and c[L.C_KEYS + 2 * k - 1] < tie)
        ):
            c[L.C_ORDER + k] = c[L.C_ORDER + k - 1]
            c[L.C_KEYS + 2 * k], c[L.C_KEYS + 2 * k + 1] = c[L.C_KEYS + 2 * k - 2], c[L.C_KEYS + 2 * k - 1]
            k -= 1
        c[L.C_ORDER + k] = flavor
        c[L.C_KEYS + 2 * k], c[L.C_KEYS + 2 * k + 1] = key, tie
    for i in range(c[L.C_UNITS]):
        unit[c[L.C_ORDER + i] * L.UNIT + L.U_RANK] = i
    c[L.C_SORTED], c[L.C_DIRTY] = 1, 0
