"""The rungs of the ladders: each compares the champion a with the challenger b (jitted).

A rung returns 0 (undecided), +reason (the challenger wins) or -reason (the champion does).  `RUNGS` is the table by name.
"""

from __future__ import annotations

from ..vectors import inner
from . import layout as L
from .model import Flag, Flavor, Reason
from .pressure import NO_EXCESS, excess
from .units import DEEP, flip_ancestors, mark_targets, sort_units
from .windows import choose_window, demand_of, needed_flavor, satisfied

__all__ = ["RUNGS", "compare", "features", "stall"]

_WMMA, _VALU1, _TRANS, _VALUN = int(Flavor.WMMA), int(Flavor.VALU1), int(Flavor.TRANS), int(Flavor.VALUN)
_DS, _SALU, _DMA, _FENCE = int(Flavor.DS), int(Flavor.SALU), int(Flavor.DMA), int(Flavor.FENCE)
_COPY, _LOAD = int(Flag.COPY), int(Flag.LOAD)
_PHYS_REG, _REG_EXCESS, _STALL, _CLUSTER = (
    int(Reason.PHYS_REG), int(Reason.REG_EXCESS), int(Reason.STALL), int(Reason.CLUSTER))  # fmt: skip
_WEAK, _ORDER, _EFFECTIVE = int(Reason.WEAK), int(Reason.ORDER), int(Reason.EFFECTIVE_STALL)
_PIPELINE, _SLOT, _MIX = int(Reason.MEMORY_PIPELINE), int(Reason.COEXEC_SLOT), int(Reason.SHADOW_MIX)
_CRITICAL, _DEPENDENCY = int(Reason.CRIT_RESOURCE), int(Reason.CRIT_RESOURCE_DEP)

# name -> number of the rung in a ladder
RUNGS = {
    "physreg": 1,
    "excess": 2,
    "stall": 3,
    "effective_stall": 4,
    "stall_and_missed": 5,
    "memory_pipeline": 6,
    "memory_pipeline_any": 7,
    "slot": 8,
    "shadow_mix": 9,
    "critical": 10,
    "critical_shared": 11,
    "dependency": 12,
    "dependency_shared": 13,
    "loop_order": 14,
    "priority": 15,
    "cluster": 16,
    "weak": 17,
    "order": 18,
}


@inner
def stall(s, n):  # type: ignore[no-untyped-def]
    """16 * (cycles until the node could be issued without a wait) + (kind of the longest wait)."""
    c, m = s.c, s.model
    row, live = n * L.NODE, n * L.LIVE
    cycle = c[L.C_CYCLE]
    counted = m[L.M_STALLS]
    best = max(0, s.live[live + L.READY] - cycle)
    kind = L.K_READY if best > 0 else L.K_NONE
    if s.node[row + L.MATRIX] >= 0 and c[L.C_RESERVED] - cycle > best:
        best, kind = c[L.C_RESERVED] - cycle, L.K_MATRIX
    if c[L.C_WAITS] != 0 and c[L.C_WAIT + s.node[row + L.GROUP]] > best:
        best, kind = c[L.C_WAIT + s.node[row + L.GROUP]], L.K_WINDOW
    if counted == 0:
        return best * 16 + kind
    flavor = s.node[row + L.FLAVOR]
    if flavor == _DS and c[L.C_FIFO] > best:
        best, kind = c[L.C_FIFO], L.K_FIFO
    elif flavor == _FENCE and c[L.C_FENCE] > best:
        best, kind = c[L.C_FENCE], L.K_FENCE
    if (counted >> L.K_CARRIED) & 1 and s.node[row + L.CARRIED] - cycle > best:
        best, kind = s.node[row + L.CARRIED] - cycle, L.K_CARRIED
    if (counted >> L.K_RAW) & 1 and s.live[live + L.RAW_SEEN] >= 0:
        if s.live[live + L.RAW_OPEN] >= 0 and s.unit[_WMMA * L.UNIT + L.U_ISSUED] > s.live[live + L.RAW_SEEN]:
            issued = s.work[c[L.W_WMMA] + s.live[live + L.RAW_SEEN]]  # the first matrix op since settles it
            s.live[live + L.RAW] = max(s.live[live + L.RAW], issued + m[L.M_VISIBLE_WMMA])
            s.live[live + L.RAW_OPEN] = -1
        bound = s.live[live + L.RAW]
        if s.live[live + L.RAW_OPEN] >= 0:
            bound = max(bound, s.live[live + L.RAW_OPEN] + m[L.M_VISIBLE])
        if bound - cycle > best:
            best, kind = bound - cycle, L.K_RAW
    if (counted >> L.K_WAR) & 1 and flavor == _DS and s.node[row + L.FLAGS] & _LOAD:
        for k in range(s.node[row + L.DEFINE], s.node[row + L.NODE + L.DEFINE]):
            register = s.node[c[L.W_VALUES] + s.node[k] * L.VALUE + L.V_REGISTER]
            for i in range(3):
                bound = s.work[c[L.W_REGISTERS] + 3 * register + i] - cycle
                if bound > best:
                    best, kind = bound, L.K_WAR
    return best * 16 + kind


@inner
def _missed(s, n):  # type: ignore[no-untyped-def]
    """Window stages a node would waste if it were issued now."""
    window, stage = s.c[L.C_WINDOW], s.c[L.C_STAGE]
    if window < 0:
        return 0
    base = L.M_WINDOWS + window * L.WINDOW_WORDS
    length = s.model[base]
    flavor = s.node[n * L.NODE + L.FLAVOR]
    if flavor == _DS:
        counts = s.model[base + 4 + (stage + 1) * L.STAGE + L.S_COUNTS] if stage + 1 < length else 0
        return 1 if counts == 2 or counts == 3 else 0
    missed = 0
    if flavor == _SALU and s.node[n * L.NODE + L.FLAGS] & _COPY:
        for k in range(stage, min(length, stage + s.node[n * L.NODE + L.REPEAT])):
            if s.model[base + 4 + k * L.STAGE + L.S_ADMITS] & (1 << 1 | 1 << 7):
                missed += 1
    return missed


@inner
def _slot_quality(s, n, wait):  # type: ignore[no-untyped-def]
    """0 where the stage the node would land on avoids its flavor, 1 neutral, 2 preferred."""
    window = s.c[L.C_WINDOW]
    if window < 0:
        return 1
    base = L.M_WINDOWS + window * L.WINDOW_WORDS
    stage = s.c[L.C_STAGE] + wait
    if stage >= s.model[base]:
        return 1
    flavor = s.node[n * L.NODE + L.FLAVOR]
    at = base + 4 + stage * L.STAGE
    if (s.model[at + L.S_AVOID] >> flavor) & 1:
        return 0
    return 2 if (s.model[at + L.S_PREFER] >> flavor) & 1 else 1


@inner
def features(s, n, at, limits):  # type: ignore[no-untyped-def]
    """What the first rungs compare, computed once per candidate and pick, written from scalar `at` on."""
    c = s.c
    c[at + L.F_BIAS] = s.node[n * L.NODE + L.BIAS]
    c[at + L.F_EXCESS] = NO_EXCESS
    if c[L.C_GATE] != 0:
        c[at + L.F_EXCESS] = excess(s, n, limits[L.H_VGPR_LIMIT] if c[L.C_GATE] == 1 else limits[L.H_SGPR_LIMIT])
    wait = stall(s, n) >> 4
    c[at + L.F_STALL] = wait
    if s.model[L.M_FEATURES] != 0:
        flavor = s.node[n * L.NODE + L.FLAVOR]
        c[at + L.F_MISSED] = _missed(s, n)
        c[at + L.F_PIPE] = 0 if flavor != _DMA and flavor != _FENCE else (2 if wait == 0 else 1)
        c[at + L.F_SLOT] = _slot_quality(s, n, wait)


@inner
def _smaller(a, b, reason):  # type: ignore[no-untyped-def]
    if a == b:
        return 0
    return reason if b < a else -reason


@inner
def stall_and_missed(s):  # type: ignore[no-untyped-def]
    """Stall plus missed stages, then missed stages."""
    a, b = L.C_CHAMPION, L.C_CHALLENGER
    c = s.c
    cost_a, cost_b = c[a + L.F_STALL] + c[a + L.F_MISSED], c[b + L.F_STALL] + c[b + L.F_MISSED]
    if cost_a != cost_b:
        return _smaller(cost_a, cost_b, _EFFECTIVE)
    return _smaller(c[a + L.F_MISSED], c[b + L.F_MISSED], _EFFECTIVE)


@inner
def slot(s):  # type: ignore[no-untyped-def]
    """Not avoided beats avoided, preferred beats not preferred; only while a window is open."""
    return _smaller(-s.c[L.C_CHAMPION + L.F_SLOT], -s.c[L.C_CHALLENGER + L.F_SLOT], _SLOT)


@inner
def _listed(s, n):  # type: ignore[no-untyped-def]
    """Is a ready node in its unit's priority list?"""
    return s.node[n * L.NODE + L.DEPTH] == s.unit[s.node[n * L.NODE + L.FLAVOR] * L.UNIT + L.U_DEPTH]


@inner
def _listed_first(s, a, b, reason):  # type: ignore[no-untyped-def]
    """Of two nodes of one unit the one that comes first in its priority list (which is in node order)."""
    in_a, in_b = _listed(s, a), _listed(s, b)
    if in_a and (not in_b or a < b):
        return -reason
    return reason if in_b else 0


@inner
def critical(s, a, b, shared):  # type: ignore[no-untyped-def]
    """The node of the unit that comes first in the sort wins; of one unit the first of its priority list.

    In the shared form (`shared`) only the matrix unit decides between two of its own nodes.
    """
    if s.c[L.C_SORTED] == 0:
        sort_units(s)
    unit_a, unit_b = s.node[a * L.NODE + L.FLAVOR], s.node[b * L.NODE + L.FLAVOR]
    if unit_a != unit_b:
        first = s.unit[unit_a * L.UNIT + L.U_RANK] < s.unit[unit_b * L.UNIT + L.U_RANK]
        return -_CRITICAL if first else _CRITICAL
    if shared:
        return _listed_first(s, a, b, _CRITICAL) if unit_a == _WMMA else 0
    if unit_a == _DS:
        decided = dependency(s, a, b, False)
        if decided != 0:
            return _CRITICAL if decided > 0 else -_CRITICAL
    return _listed_first(s, a, b, _CRITICAL)


@inner
def dependency(s, a, b, shared):  # type: ignore[no-untyped-def]
    """Whoever enables the target of the first unit in the sort; both: the greater height, else (shared form) the next unit."""
    c = s.c
    if c[L.C_SORTED] == 0:
        sort_units(s)
    if c[L.C_MARKED] == 0:
        mark_targets(s)
    marks_a, marks_b = s.live[a * L.LIVE + L.MARK], s.live[b * L.LIVE + L.MARK]
    if (marks_a | marks_b) == 0:
        return 0
    deep = s.node[a * L.NODE + L.FLAVOR] == _DS or s.node[b * L.NODE + L.FLAVOR] == _DS
    for i in range(L.FLAVORS):
        flavor = c[L.C_ORDER + i]
        bit = DEEP if deep and flavor == _WMMA else flavor
        enables_a, enables_b = (marks_a >> bit) & 1, (marks_b >> bit) & 1
        if enables_a != enables_b:
            return _DEPENDENCY if enables_b else -_DEPENDENCY
        if enables_a and not shared:
            taller = s.node[b * L.NODE + L.HEIGHT] > s.node[a * L.NODE + L.HEIGHT]
            return _DEPENDENCY if taller else -_DEPENDENCY
    return 0


@inner
def _first_carried(s, n):  # type: ignore[no-untyped-def]
    """Earliest pick that read a loop-carried slice the node loads anew; -1: none did."""
    first = -1
    for k in range(s.node[n * L.NODE + L.DEFINE], s.node[(n + 1) * L.NODE + L.DEFINE]):
        seen = s.work[s.c[L.W_SLICES] + s.node[s.c[L.W_VALUES] + s.node[k] * L.VALUE + L.V_SLICE]]
        if seen >= 0 and (first < 0 or seen < first):
            first = seen
    return first


@inner
def loop_order(s, a, b):  # type: ignore[no-untyped-def]
    """Of two DS loads for the next iteration the one whose old value was read earlier in this one."""
    if s.c[L.W_SLICES] < 0:
        return 0
    for n in (a, b):
        if s.node[n * L.NODE + L.FLAVOR] != _DS or s.node[n * L.NODE + L.FLAGS] & _LOAD == 0:
            return 0
    first_a, first_b = _first_carried(s, a), _first_carried(s, b)
    if first_a < 0 or first_b < 0:
        return 0
    return _smaller(first_a, first_b, _DEPENDENCY)


@inner
def priority(s, a, b):  # type: ignore[no-untyped-def]
    """Of two nodes of one unit the first of its priority list."""
    if s.node[a * L.NODE + L.FLAVOR] != s.node[b * L.NODE + L.FLAVOR]:
        return 0
    return _listed_first(s, a, b, _DEPENDENCY)


@inner
def _enabled(s, n, flavor):  # type: ignore[no-untyped-def]
    """Successors of a flavor for which the node is the only open predecessor."""
    count = 0
    for k in range(s.node[n * L.NODE + L.SUCC], s.node[(n + 1) * L.NODE + L.SUCC], 2):
        target = s.node[k]
        if s.node[target * L.NODE + L.FLAVOR] == flavor and s.live[target * L.LIVE + L.OPEN] == 1:
            count += 1
    return count


@inner
def _search_near(s, flavor):  # type: ignore[no-untyped-def]
    """Is a node of a flavor that is not ready within 8 levels of the ready nodes? Large regions give up early."""
    c, node, live, work = s.c, s.node, s.live, s.work
    c[L.C_STAMP] += 1
    stamp = c[L.C_STAMP]
    at = c[L.W_SEARCH]
    tail = 0
    for queue in range(2):
        for i in range(c[L.C_AVAILABLE + queue]):
            n = work[c[L.W_AVAILABLE + queue] + i]
            live[n * L.LIVE + L.STAMP] = stamp
            work[at + tail] = n
            tail += 1
    left = s.model[L.M_BUDGET] if c[L.C_NODES] > s.model[L.M_LARGE] else 1 << 30
    head = 0
    for _ in range(8):
        level_end = tail
        while head < level_end:
            if left == 0:
                return 0
            left -= 1
            n = work[at + head]
            head += 1
            for k in range(node[n * L.NODE + L.SUCC], node[(n + 1) * L.NODE + L.SUCC], 2):
                target = node[k]
                if live[target * L.LIVE + L.STAMP] != stamp:
                    if node[target * L.NODE + L.FLAVOR] == flavor:
                        return 1
                    live[target * L.LIVE + L.STAMP] = stamp
                    work[at + tail] = target
                    tail += 1
    return 0


@inner
def _mark_ahead(s, flavor):  # type: ignore[no-untyped-def]
    """Mark which nodes reach the first 8 nodes of a flavor, in node order, that are not ready."""
    bank = 8 if flavor == _DS else 0
    base = flavor * L.UNIT
    size = s.unit[base + L.U_END] - s.unit[base + L.U_FIRST]
    at = s.unit[base + L.U_ORDERED]
    skipped = True
    found = 0
    i = s.work[s.c[L.W_LOOK] + 16 + bank]
    while i < size and found < 8:
        n = s.work[at + i]
        if s.live[n * L.LIVE + L.OPEN] > 0:
            skipped = False
            slot_at = s.c[L.W_LOOK] + bank + found
            if s.work[slot_at] != n:
                if s.work[slot_at] >= 0:
                    flip_ancestors(s, s.work[slot_at], L.LOOK, bank + found, False)
                s.work[slot_at] = n
                flip_ancestors(s, n, L.LOOK, bank + found, True)
            found += 1
        elif skipped:
            s.work[s.c[L.W_LOOK] + 16 + bank] = i + 1
        i += 1
    while found < 8:
        slot_at = s.c[L.W_LOOK] + bank + found
        if s.work[slot_at] >= 0:
            flip_ancestors(s, s.work[slot_at], L.LOOK, bank + found, False)
            s.work[slot_at] = -1
        found += 1


@inner
def _look_ahead(s, a, b, matches_a, matches_b):  # type: ignore[no-untyped-def]
    """The first needed node ahead that exactly one candidate can reach decides; a producer of the window reaches none."""
    flavor = needed_flavor(s, L.C_DEMAND_E)
    which = 1 if flavor == _DS else 0
    if s.c[L.C_NEAR_VALU + which] < 0:
        s.c[L.C_NEAR_VALU + which] = _search_near(s, flavor)
        if s.c[L.C_NEAR_VALU + which] != 0:
            _mark_ahead(s, flavor)
    if s.c[L.C_NEAR_VALU + which] == 0:
        return 0
    reach_a = 0 if matches_a else (s.live[a * L.LIVE + L.LOOK] >> (8 * which)) & 255
    reach_b = 0 if matches_b else (s.live[b * L.LIVE + L.LOOK] >> (8 * which)) & 255
    differ = reach_a ^ reach_b
    if differ == 0:
        return 0
    return _MIX if reach_b & differ & -differ else -_MIX


@inner
def shadow_mix(s, a, b):  # type: ignore[no-untyped-def]
    """Prefer what fills the planned window; once the ready nodes cover it, its producer."""
    c = s.c
    if c[L.C_TARGETED] == 0:
        choose_window(s)
    flavor_a, flavor_b = s.node[a * L.NODE + L.FLAVOR], s.node[b * L.NODE + L.FLAVOR]
    aim = c[L.C_AIM]
    if aim < 0:
        c[L.C_DEMAND_E] = c[L.C_DEMAND_I] = c[L.C_DEMAND_T] = 0
        for n in (a, b):
            flavor = s.node[n * L.NODE + L.FLAVOR]
            if flavor == _WMMA or flavor == _TRANS or flavor == _VALUN:
                demand_of(s, n, L.C_DEMAND_E)
                break
    if c[L.C_DEMAND_E] + c[L.C_DEMAND_I] + c[L.C_DEMAND_T] == 0:
        return 0
    matches_a, matches_b = flavor_a == aim, flavor_b == aim
    if matches_a and matches_b:
        return 0
    if not satisfied(s, L.C_DEMAND_E):
        flavor = needed_flavor(s, L.C_DEMAND_E)
        score_a = 0 if matches_a else _enabled(s, a, flavor)
        score_b = 0 if matches_b else _enabled(s, b, flavor)
        if score_a != score_b:
            return _MIX if score_b > score_a else -_MIX
        decided = _look_ahead(s, a, b, matches_a, matches_b)
        if decided != 0:
            return decided
    if matches_a == matches_b:
        return 0
    return _MIX if matches_b else -_MIX


@inner
def compare(s, a, b):  # type: ignore[no-untyped-def]
    """Walk the ladder until a rung decides between champion a and challenger b, whose features are in the scalars."""
    c, m = s.c, s.model
    p, q = L.C_CHAMPION, L.C_CHALLENGER
    for i in range(m[L.M_RUNGS]):
        rung = m[L.M_LADDER + i]
        if rung == 1:
            decided = _smaller(-c[p + L.F_BIAS], -c[q + L.F_BIAS], _PHYS_REG)
        elif rung == 2:
            decided = _smaller(c[p + L.F_EXCESS], c[q + L.F_EXCESS], _REG_EXCESS)
        elif rung == 3:
            decided = _smaller(c[p + L.F_STALL], c[q + L.F_STALL], _STALL)
        elif rung == 4:
            decided = _smaller(c[p + L.F_STALL], c[q + L.F_STALL], _EFFECTIVE)
        elif rung == 5:
            decided = stall_and_missed(s)
        elif rung == 6:
            decided = _smaller(-(c[p + L.F_PIPE] >> 1), -(c[q + L.F_PIPE] >> 1), _PIPELINE)
        elif rung == 7:
            decided = _smaller(-min(1, c[p + L.F_PIPE]), -min(1, c[q + L.F_PIPE]), _PIPELINE)
        elif rung == 8:
            decided = slot(s)
        elif rung == 9:
            decided = shadow_mix(s, a, b)
        elif rung == 10:
            decided = critical(s, a, b, False)
        elif rung == 11:
            decided = critical(s, a, b, True)
        elif rung == 12:
            decided = dependency(s, a, b, False)
        elif rung == 13:
            decided = dependency(s, a, b, True)
        elif rung == 14:
            decided = loop_order(s, a, b)
        elif rung == 15:
            decided = priority(s, a, b)
        elif rung == 16:
            decided = _smaller(0 if c[L.C_CLUSTER] == a else 1, 0 if c[L.C_CLUSTER] == b else 1, _CLUSTER)
        elif rung == 17:
            decided = _smaller(s.live[a * L.LIVE + L.SOFT], s.live[b * L.LIVE + L.SOFT], _WEAK)
        else:
            decided = _smaller(a, b, _ORDER)
        if decided != 0:
            return decided
    return 0
