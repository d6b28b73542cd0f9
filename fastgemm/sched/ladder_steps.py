"""Steps of the ladders: each is a key per candidate, and the smaller key wins (jitted).

A rung of a profile is one or more steps (`fastgemm.sched.ladders`); a step that leaves a tie passes on to the next one.
"""

from __future__ import annotations

from . import layout as L
from .model import Flag, Flavor
from .native import inner
from .pressure import excess
from .units import DEEP, flip_ancestors, mark_targets, sort_units
from .windows import cover, demand_of, plan_mix

__all__ = ["NOTHING", "memory_wait", "note_idle", "pair_mix", "stall_kind", "step_key", "wake"]

_WMMA, _TRANS, _VALUN = int(Flavor.WMMA), int(Flavor.TRANS), int(Flavor.VALUN)
_DS, _SALU, _DMA, _FENCE = int(Flavor.DS), int(Flavor.SALU), int(Flavor.DMA), int(Flavor.FENCE)
_COPY, _LOAD = int(Flag.COPY), int(Flag.LOAD)
NOTHING = 1 << 60  # the key of a candidate a step says nothing about


@inner
def memory_wait(s, n, wait):  # type: ignore[no-untyped-def]
    """The wait of a memory op, which visible latencies and readers of the registers it loads may lengthen."""
    c, m = s.c, s.model
    row, live = n * L.NODE, n * L.LIVE
    counted, cycle = m[L.M_STALLS], c[L.C_CYCLE]
    if (counted >> L.K_RAW) & 1:
        if s.live[live + L.RAW_OPEN] >= 0:
            if s.unit[_WMMA * L.UNIT + L.U_ISSUED] > s.live[live + L.RAW_SEEN]:  # the first matrix op since settles it
                issued = s.work[c[L.W_WMMA] + s.live[live + L.RAW_SEEN]]
                s.live[live + L.RAW] = max(s.live[live + L.RAW], issued + m[L.M_VISIBLE_WMMA])
                s.live[live + L.RAW_OPEN] = -1
            else:
                wait = max(wait, s.live[live + L.RAW_OPEN] + m[L.M_VISIBLE] - cycle)
        wait = max(wait, s.live[live + L.RAW] - cycle)
    if (counted >> L.K_WAR) & 1 and s.node[row + L.FLAVOR] == _DS and s.node[row + L.FLAGS] & _LOAD:
        for k in range(s.node[row + L.DEFINE], s.node[row + L.NODE + L.DEFINE]):
            register = s.node[c[L.W_VALUES] + s.node[k] * L.VALUE + L.V_REGISTER]
            for i in range(3):
                wait = max(wait, s.work[c[L.W_REGISTERS] + 3 * register + i] - cycle)
    return wait


@inner
def stall_kind(s, n, wait):  # type: ignore[no-untyped-def]
    """What a picked node waits for longest."""
    c = s.c
    group, cycle = s.node[n * L.NODE + L.GROUP], c[L.C_CYCLE]
    if wait == 0:
        return L.K_NONE
    if s.live[n * L.LIVE + L.READY] - cycle == wait:
        return L.K_READY
    if group == L.G_WMMA and c[L.C_RESERVED] - cycle == wait:
        return L.K_MATRIX
    if c[L.C_WAIT + group] == wait:
        return L.K_WINDOW
    if c[L.C_STALL + group] == wait:
        return L.K_FIFO if group == L.G_DS else L.K_FENCE
    if (s.model[L.M_STALLS] >> L.K_CARRIED) & 1 and s.node[n * L.NODE + L.CARRIED] - cycle == wait:
        return L.K_CARRIED
    still_open = s.live[n * L.LIVE + L.RAW_OPEN]
    visible = still_open + s.model[L.M_VISIBLE] if still_open >= 0 else s.live[n * L.LIVE + L.RAW]
    return L.K_RAW if max(visible, s.live[n * L.LIVE + L.RAW]) - cycle == wait else L.K_WAR


@inner
def missed_stages(s, n):  # type: ignore[no-untyped-def]
    """Window stages a node would waste if it were issued now."""
    window, stage = s.c[L.C_WINDOW], s.c[L.C_STAGE]
    if window < 0:
        return 0
    base = L.M_WINDOWS + window * L.WINDOW_WORDS
    length = s.model[base]
    flavor = s.node[n * L.NODE + L.FLAVOR]
    if flavor == _DS:
        counts = s.model[base + 4 + (stage + 1) * L.STAGE + L.T_COUNTS] if stage + 1 < length else 0
        return 1 if counts == 2 or counts == 3 else 0
    missed = 0
    if flavor == _SALU and s.node[n * L.NODE + L.FLAGS] & _COPY:
        for k in range(stage, min(length, stage + s.node[n * L.NODE + L.REPEAT])):
            if s.model[base + 4 + k * L.STAGE + L.T_ADMITS] & (1 << 1 | 1 << 7):
                missed += 1
    return missed


@inner
def slot_key(s, n, wait):  # type: ignore[no-untyped-def]
    """0 where the stage the node would land on prefers its flavor, 1 where it is neutral, 2 where it avoids it."""
    window = s.c[L.C_WINDOW]
    if window < 0:
        return 1
    base = L.M_WINDOWS + window * L.WINDOW_WORDS
    stage = s.c[L.C_STAGE] + wait
    if stage >= s.model[base]:
        return 1
    flavor = s.node[n * L.NODE + L.FLAVOR]
    at = base + 4 + stage * L.STAGE
    if (s.model[at + L.T_AVOID] >> flavor) & 1:
        return 2
    return 0 if (s.model[at + L.T_PREFER] >> flavor) & 1 else 1


@inner
def enables_key(s, n, every):  # type: ignore[no-untyped-def]
    """Which targets a node enables, units in sorted order: all of them, or the first with the node's height."""
    c = s.c
    if c[L.C_MARKED] == 0:
        mark_targets(s)
    marks = s.live[n * L.LIVE + L.MARK]
    if marks == 0:
        return NOTHING
    if c[L.C_DEEP] != 0:
        marks = (marks & ~1) | (marks >> DEEP)
    found = 0
    for i in range(c[L.C_UNITS]):
        enabled = (marks >> c[L.C_ORDER + i]) & 1
        if enabled and every == 0:
            return ((i + 1) << 40) - s.node[n * L.NODE + L.HEIGHT]
        found = found << 1 | enabled
    return -found if found != 0 else NOTHING


@inner
def loop_key(s, n):  # type: ignore[no-untyped-def]
    """For a DS load the earliest pick that read a loop-carried slice it loads anew."""
    first = NOTHING
    if s.c[L.W_SLICES] < 0 or s.node[n * L.NODE + L.FLAVOR] != _DS or s.node[n * L.NODE + L.FLAGS] & _LOAD == 0:
        return first
    for k in range(s.node[n * L.NODE + L.DEFINE], s.node[(n + 1) * L.NODE + L.DEFINE]):
        seen = s.work[s.c[L.W_SLICES] + s.node[s.c[L.W_VALUES] + s.node[k] * L.VALUE + L.V_SLICE]]
        if seen >= 0:
            first = min(first, seen)
    return first


@inner
def kills_key(s, n):  # type: ignore[no-untyped-def]
    """Minus the registers a node reads last, then the fewest readers left of any other register it reads.

    Registers nobody in the region writes do not count.  A register's readers are those of the value of it that has most.
    """
    c, node = s.c, s.node
    kills = registers = fewest = 0
    k, end = node[n * L.NODE + L.READ], node[(n + 1) * L.NODE + L.READ]
    while k < end:
        register = node[c[L.W_VALUES] + node[k] * L.VALUE + L.V_REGISTER]
        readers = 0
        while k < end and node[c[L.W_VALUES] + node[k] * L.VALUE + L.V_REGISTER] == register:
            if node[k] >= c[L.C_LIVE_IN]:
                readers = max(readers, s.work[c[L.W_READERS] + node[k]])
            k += 1
        if readers == 0:
            continue
        if registers == 0:
            fewest = readers
        registers += 1
        if readers < 2:
            kills += 1
        else:
            fewest = min(fewest, readers)
    return fewest - (kills << 32)


@inner
def search_near(s, flavor):  # type: ignore[no-untyped-def]
    """Is a node of a flavor that is not ready within 8 levels of the ready nodes? Large regions give up early."""
    c, node, live, work = s.c, s.node, s.live, s.work
    c[L.C_STAMP] += 1
    stamp = c[L.C_STAMP]
    at = c[L.W_SEARCH]
    tail = 0
    for queue in range(2):
        for i in range(c[L.C_AVAILABLE + queue]):
            n = work[c[L.W_AVAILABLE + queue] + i] & L.NODE_MASK
            live[n * L.LIVE + L.STAMP] = stamp
            work[at + tail] = n
            tail += 1
    left = s.model[L.M_BUDGET] if c[L.C_NODES] > s.model[L.M_LARGE] else NOTHING
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
def mark_ahead(s, flavor):  # type: ignore[no-untyped-def]
    """Mark which nodes reach the first 8 nodes of a flavor, in node order, that are not ready."""
    bank = 8 if flavor == _DS else 0
    look = s.c[L.W_LOOK] + bank
    base = flavor * L.UNIT
    size = s.unit[base + L.U_END] - s.unit[base + L.U_FIRST]
    at = s.unit[base + L.U_ORDERED]
    first = s.work[s.c[L.W_LOOK] + 16 + bank // 8]
    while first < size and s.live[s.work[at + first] * L.LIVE + L.OPEN] <= 0:
        first += 1
    s.work[s.c[L.W_LOOK] + 16 + bank // 8] = first
    found = 0
    for i in range(first, size):
        n = s.work[at + i]
        if s.live[n * L.LIVE + L.OPEN] > 0:
            if s.work[look + found] != n:
                if s.work[look + found] >= 0:
                    flip_ancestors(s, s.work[look + found], L.LOOK, bank + found, False)
                s.work[look + found] = n
                flip_ancestors(s, n, L.LOOK, bank + found, True)
            found += 1
            if found == 8:
                return
    for i in range(found, 8):
        if s.work[look + i] >= 0:
            flip_ancestors(s, s.work[look + i], L.LOOK, bank + i, False)
            s.work[look + i] = -1


@inner
def mix_score(s, n):  # type: ignore[no-untyped-def]
    """Minus the successors of the needed flavor for which the node is the only open predecessor; its producer has none."""
    c = s.c
    if c[L.C_MIX_NOW] != 2 or s.node[n * L.NODE + L.FLAVOR] == c[L.C_AIM]:
        return 0
    score = 0
    for k in range(s.node[n * L.NODE + L.SUCC], s.node[(n + 1) * L.NODE + L.SUCC], 2):
        target = s.node[k]
        if s.node[target * L.NODE + L.FLAVOR] == c[L.C_NEEDED] and s.live[target * L.LIVE + L.OPEN] == 1:
            score -= 1
    return score


@inner
def mix_look(s, n):  # type: ignore[no-untyped-def]
    """Minus which needed nodes ahead a node reaches, the first one weighing most; its producer reaches none."""
    c = s.c
    if c[L.C_MIX_NOW] != 2 or s.node[n * L.NODE + L.FLAVOR] == c[L.C_AIM]:
        return 0
    which = 1 if c[L.C_NEEDED] == _DS else 0
    if c[L.C_NEAR_VALU + which] < 0:
        c[L.C_NEAR_VALU + which] = search_near(s, c[L.C_NEEDED])
        if c[L.C_NEAR_VALU + which] != 0:
            mark_ahead(s, c[L.C_NEEDED])
    if c[L.C_NEAR_VALU + which] == 0:
        return 0
    marks = (s.live[n * L.LIVE + L.LOOK] >> (8 * which)) & 255
    found = 0
    for _ in range(8):
        found = found << 1 | (marks & 1)
        marks >>= 1
    return -found


@inner
def pair_mix(s, a, b):  # type: ignore[no-untyped-def]
    """Where no window is planned, the demand of the champion if it is a producer, else of the challenger if it is one."""
    c = s.c
    c[L.C_MIX_NOW] = 0
    for i in range(2):
        n = a if i == 0 else b
        flavor = s.node[n * L.NODE + L.FLAVOR]
        if flavor == _WMMA or flavor == _TRANS or flavor == _VALUN:
            if demand_of(s, n, L.C_DEMAND_E) > 0:
                c[L.C_MIX_NOW] = 1 if cover(s) else 2
            return


@inner
def note_idle(s):  # type: ignore[no-untyped-def]
    """Note which steps can tell no candidates apart in this pick, as far as that is known before any is asked."""
    c = s.c
    mask = 0
    if c[L.C_BIASED] == 0:
        mask |= 1 << L.S_BIAS
    if c[L.C_GATE] == 0:
        mask |= 1 << L.S_EXCESS
    if c[L.C_VGPR] + 2 * s.model[L.M_GATE] < c[L.C_VGPR_LIMIT]:
        mask |= 1 << L.S_KILLS
    if c[L.C_WINDOW] < 0:
        mask |= 1 << L.S_MISSED | 1 << L.S_SLOT
    if s.unit[_DMA * L.UNIT + L.U_READY] + s.unit[_FENCE * L.UNIT + L.U_READY] == 0:
        mask |= 1 << L.S_PIPELINE | 1 << L.S_PIPELINE_ANY
    if c[L.W_SLICES] < 0:
        mask |= 1 << L.S_LOOP
    c[L.C_IDLE] = mask


@inner
def wake(s, step):  # type: ignore[no-untyped-def]
    """Prepare what a step needs; False if it is idle."""
    c = s.c
    if (c[L.C_IDLE] >> step) & 1:
        return False
    if step >= L.S_RANK:
        if c[L.C_SORTED] == 0:
            sort_units(s)
    elif step >= L.S_MIX_SCORE and c[L.C_MIX] < 0:
        plan_mix(s)
        if c[L.C_MIX] == 0:
            c[L.C_IDLE] |= 1 << L.S_MIX_SCORE | 1 << L.S_MIX_LOOK | 1 << L.S_MIX_MATCH
            return False
        if c[L.C_MIX] == 1:
            c[L.C_IDLE] |= 1 << L.S_MIX_SCORE | 1 << L.S_MIX_LOOK
            return step == L.S_MIX_MATCH
    return True


@inner
def step_key(s, step, place):  # type: ignore[no-untyped-def]
    """The key of the candidate at a place, in a step that is not idle."""
    n = s.work[s.c[L.W_CANDIDATES] + place] & L.NODE_MASK
    wait = s.work[s.c[L.W_STALLS] + place]
    row = n * L.NODE
    if step == L.S_COST:
        return wait + missed_stages(s, n)
    if step == L.S_STALL:
        return wait
    flavor = s.node[row + L.FLAVOR]
    if step == L.S_RANK:
        return s.unit[flavor * L.UNIT + L.U_RANK]
    if step == L.S_LISTED or (step == L.S_LISTED_WMMA and flavor == _WMMA):
        return n if s.node[row + L.DEPTH] == s.unit[flavor * L.UNIT + L.U_DEPTH] else NOTHING
    if step == L.S_ENABLES or (step == L.S_ENABLES_DS and flavor == _DS):
        return enables_key(s, n, 0)
    if step == L.S_ENABLES_ALL:
        return enables_key(s, n, 1)
    if step == L.S_MIX_SCORE:
        return mix_score(s, n)
    if step == L.S_MIX_LOOK:
        return mix_look(s, n)
    if step == L.S_MIX_MATCH:
        return 0 if s.c[L.C_MIX_NOW] != 0 and flavor == s.c[L.C_AIM] else 1
    if step == L.S_BIAS:
        return -s.node[row + L.BIAS]
    if step == L.S_EXCESS:
        return excess(s, n)
    if step == L.S_MISSED:
        return missed_stages(s, n)
    if step == L.S_PIPELINE:
        return 0 if (flavor == _DMA or flavor == _FENCE) and wait == 0 else 1
    if step == L.S_PIPELINE_ANY:
        return 0 if flavor == _DMA or flavor == _FENCE else 1
    if step == L.S_SLOT:
        return slot_key(s, n, wait)
    if step == L.S_LOOP:
        return loop_key(s, n)
    if step == L.S_KILLS:
        return kills_key(s, n)
    if step == L.S_CLUSTER:
        return 0 if s.c[L.C_CLUSTER] == n else 1
    if step == L.S_WEAK:
        return s.live[n * L.LIVE + L.SOFT]
    if step == L.S_ORDER:
        return n
    return NOTHING
