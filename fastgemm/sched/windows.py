"""Co-execution windows as the strategy plans them: roofline of a region, demand, and which window to fill next (jitted)."""

from __future__ import annotations

from . import layout as L
from .model import Flavor
from .native import inner
from .units import next_target, take_snapshot

__all__ = ["cover", "demand_of", "note_commit", "plan_mix", "populate", "set_up_windows"]

_WMMA, _VALU1, _TRANS, _VALUN = int(Flavor.WMMA), int(Flavor.VALU1), int(Flavor.TRANS), int(Flavor.VALUN)
_VMEM, _SMEM, _DS, _SALU, _DMA = int(Flavor.VMEM), int(Flavor.SMEM), int(Flavor.DS), int(Flavor.SALU), int(Flavor.DMA)
_NOT_TRANS = 0xFF & ~(1 << 2)  # classes a T stage admits
_EXTERNAL = 1 << 0 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6  # classes an E stage admits
_SIDE = 32  # rows of the capacity matrix: source, 8 classes, slot kinds, sink
_SINK = 31


@inner
def _augment(s):  # type: ignore[no-untyped-def]
    """Push flow along one shortest path from the source to the sink; False if there is none."""
    at = s.c[L.W_FLOW]
    capacity, parent, queue = at, at + _SIDE * _SIDE, at + _SIDE * _SIDE + _SIDE
    for i in range(_SIDE):
        s.work[parent + i] = -1
    s.work[queue] = 0
    head, tail = 0, 1
    while head < tail and s.work[parent + _SINK] < 0:
        row = s.work[queue + head]
        head += 1
        for column in range(1, _SIDE):
            if s.work[parent + column] < 0 and s.work[capacity + row * _SIDE + column] > 0:
                s.work[parent + column] = row
                s.work[queue + tail] = column
                tail += 1
    if s.work[parent + _SINK] < 0:
        return False
    push = 1 << 30
    column = _SINK
    while column != 0:
        push = min(push, s.work[capacity + s.work[parent + column] * _SIDE + column])
        column = s.work[parent + column]
    column = _SINK
    while column != 0:
        row = s.work[parent + column]
        s.work[capacity + row * _SIDE + column] -= push
        s.work[capacity + column * _SIDE + row] += push
        column = row
    return True


@inner
def _slot_supply(s, nodes):  # type: ignore[no-untyped-def]
    """Capacity of every slot kind into the sink; returns the number of slots."""
    m, node = s.model, s.node
    sinks = s.c[L.W_FLOW]
    inside = slots = trans = 0
    for n in range(nodes):
        row = n * L.NODE
        flavor = node[row + L.FLAVOR]
        if flavor == _WMMA and node[row + L.WINDOW] >= 0:
            base = L.M_WINDOWS + node[row + L.WINDOW] * L.WINDOW_WORDS
            for stage in range(m[base]):
                counts = m[base + 4 + stage * L.STAGE + L.T_COUNTS]
                if counts != 0:
                    kind = m[base + 4 + stage * L.STAGE + L.T_KIND]
                    s.work[sinks + (9 + kind) * _SIDE + _SINK] += 1
                    slots += 1
                    if counts == 2 or counts == 3:
                        inside += 1
        elif flavor == _VALUN:
            s.work[sinks + 9 * _SIDE + _SINK] += node[row + L.REPEAT] - 1
            slots += node[row + L.REPEAT] - 1
        elif flavor == _TRANS:
            trans += 1
    s.work[sinks + 10 * _SIDE + _SINK] += max(0, trans - inside)
    return slots + max(0, trans - inside)


@inner
def _consumers(s, kind):  # type: ignore[no-untyped-def]
    """Nodes of a class that may fill slots."""
    unit = s.unit
    if kind == 1:
        return unit[_VALU1 * L.UNIT + L.U_LEFT]
    if kind == 2:
        return unit[_TRANS * L.UNIT + L.U_LEFT]
    if kind == 3:
        return unit[_SALU * L.UNIT + L.U_LEFT]
    if kind == 4:
        return unit[_DS * L.UNIT + L.U_LEFT] + unit[_DMA * L.UNIT + L.U_LEFT]
    if kind == 5:
        return unit[_VMEM * L.UNIT + L.U_LEFT]
    if kind == 6:
        return unit[_SMEM * L.UNIT + L.U_LEFT]
    if kind == 7:
        return max(0, unit[_WMMA * L.UNIT + L.U_LEFT] - 1)
    return 0


@inner
def _roofline(s, nodes):  # type: ignore[no-untyped-def]
    """Place consumers into slots by maximal flow; what finds no slot is exposed."""
    c, m, unit = s.c, s.model, s.unit
    capacity = c[L.W_FLOW]
    for i in range(_SIDE * _SIDE):
        s.work[capacity + i] = 0
    c[L.C_SUPPLY_I] = c[L.C_SUPPLY_E] = 0
    if _slot_supply(s, nodes) == 0:
        return
    for kind in range(L.CLASSES):
        count = _consumers(s, kind)
        s.work[capacity + 1 + kind] = count
        for slot in range(m[L.M_KINDS]):
            if (m[L.M_KIND_ADMITS + slot] >> kind) & 1:
                supply = s.work[capacity + (9 + slot) * _SIDE + _SINK]
                s.work[capacity + (1 + kind) * _SIDE + 9 + slot] = min(count, supply)
    while _augment(s):
        pass
    for flavor in range(L.FLAVORS):
        kind = m[L.M_FLAVOR_CLASS + flavor]
        if flavor == _DMA:
            kind = 4
        if kind > 0:  # capacity left from the source is what was not placed
            unit[flavor * L.UNIT + L.U_EXPOSED] = s.work[capacity + 1 + kind]
    wmma = unit[_WMMA * L.UNIT + L.U_LEFT]
    if wmma > 0:  # placed = capacity of the reverse edge
        share = 75 * wmma // 100
        placed = s.work[capacity + 2 * _SIDE] + s.work[capacity + 3 * _SIDE]
        c[L.C_SUPPLY_I] = (placed + share) // wmma
        placed = s.work[capacity + 4 * _SIDE] + s.work[capacity + 5 * _SIDE]
        c[L.C_SUPPLY_E] = (placed + share) // wmma


@inner
def set_up_windows(s, nodes):  # type: ignore[no-untyped-def]
    """Roofline and first window of a region."""
    for i in range(2 * (L.C_NEXT - L.C_CURRENT)):
        s.c[L.C_CURRENT + i] = 0
    _roofline(s, nodes)
    populate(s, L.C_CURRENT)


@inner
def demand_of(s, n, at):  # type: ignore[no-untyped-def]
    """Stages a node's window wants filled, written to three scalars E, I, T from `at` on; returns their number."""
    c, m = s.c, s.model
    row = n * L.NODE
    flavor = s.node[row + L.FLAVOR]
    c[at] = c[at + 1] = c[at + 2] = 0
    if flavor == _WMMA:
        if s.node[row + L.WINDOW] >= 0:
            base = L.M_WINDOWS + s.node[row + L.WINDOW] * L.WINDOW_WORDS
            c[at] = m[base + 1]
            c[at + 1] = m[base + 2]
    elif flavor == _VALUN:
        c[at] = s.node[row + L.REPEAT] - 1
    elif flavor == _TRANS:
        c[at + 2] = s.node[row + L.REPEAT] - 1
    return c[at] + c[at + 1] + c[at + 2]


@inner
def _fill_stage(s, prefer, admits):  # type: ignore[no-untyped-def]
    """Use up one ready node for a stage: a preferred flavor first, then any admitted one; False if there is none.

    Fences and other nodes of class CTRL fill no stage: with them one region of the corpus is scheduled otherwise.
    """
    c = s.c
    for flavor in range(L.FLAVORS):
        if (prefer >> flavor) & 1 and c[L.C_FILL + flavor] > 0:
            c[L.C_FILL + flavor] -= 1
            return True
    fills = admits & ~1
    for flavor in range(L.FLAVORS):
        if (fills >> s.model[L.M_FLAVOR_CLASS + flavor]) & 1 and c[L.C_FILL + flavor] > 0:
            c[L.C_FILL + flavor] -= 1
            return True
    return False


@inner
def _missed_stages(s, n):  # type: ignore[no-untyped-def]
    """1000 * (stages of a node's window that the ready nodes of the snapshot leave empty) + (999 - its stages)."""
    c, m = s.c, s.model
    row = n * L.NODE
    flavor = s.node[row + L.FLAVOR]
    for f in range(L.FLAVORS):
        c[L.C_FILL + f] = s.unit[f * L.UNIT + L.U_SEEN]
    missed = size = 0
    if flavor != _WMMA:
        size = s.node[row + L.REPEAT] - 1
        for _ in range(size):
            if flavor == _TRANS:
                missed += 0 if _fill_stage(s, 1 << _VALU1, _NOT_TRANS) else 1
            else:
                missed += 0 if _fill_stage(s, 0, _EXTERNAL) else 1
    elif s.node[row + L.WINDOW] >= 0:
        base = L.M_WINDOWS + s.node[row + L.WINDOW] * L.WINDOW_WORDS
        size = m[base]
        inside = outside = 0
        for stage in range(size):
            at = base + 4 + stage * L.STAGE
            counts = m[at + L.T_COUNTS]
            if counts == 0 or counts == 5:
                continue
            filled = _fill_stage(s, m[at + L.T_PREFER], m[at + L.T_ADMITS])
            if counts == 1:
                outside += 1 if filled else 0
                missed += 1 if not filled and outside < c[L.C_SUPPLY_E] else 0
            elif counts == 2:
                inside += 1 if filled else 0
                missed += 1 if not filled and inside < c[L.C_SUPPLY_I] else 0
            elif not filled:
                missed += 1
    return missed * 1000 + 999 - size


@inner
def populate(s, at):  # type: ignore[no-untyped-def]
    """Plan a window: of the producers with a target the one whose stages the ready nodes fill best, ready flavors first."""
    c = s.c
    best_ready = best_other = 1 << 60
    ready_node = other_node = -1
    for i in range(c[L.C_UNITS]):
        flavor = c[L.C_ORDER + i]
        if flavor != _WMMA and flavor != _TRANS and flavor != _VALUN:
            continue
        target = next_target(s, flavor * L.UNIT, True)
        if target < 0:
            continue
        score = _missed_stages(s, target)
        if s.unit[flavor * L.UNIT + L.U_SEEN] > 0:
            if score < best_ready:
                best_ready, ready_node = score, target
        elif score < best_other:
            best_other, other_node = score, target
    chosen = ready_node if ready_node >= 0 and best_ready % 1000 < 999 else other_node
    c[at + L.WIN_POPULATED] = c[at + L.WIN_ACTIVE] = 0
    if chosen < 0:
        return
    c[at + L.WIN_FLAVOR] = s.node[chosen * L.NODE + L.FLAVOR]
    if demand_of(s, chosen, at + L.WIN_E) > 0:
        c[at + L.WIN_POPULATED] = 1
    if c[at + L.WIN_FLAVOR] == _WMMA:
        c[at + L.WIN_E] = min(c[at + L.WIN_E], c[L.C_SUPPLY_E])
        c[at + L.WIN_I] = min(c[at + L.WIN_I], c[L.C_SUPPLY_I])


@inner
def note_commit(s, n):  # type: ignore[no-untyped-def]
    """Exposure and windows when a node is scheduled; its ready cycle is still the old one."""
    c = s.c
    flavor = s.node[n * L.NODE + L.FLAVOR]
    producer = flavor == _WMMA or flavor == _TRANS or flavor == _VALUN
    if not (c[L.C_CURRENT + L.WIN_ACTIVE] != 0 and not producer):
        s.unit[flavor * L.UNIT + L.U_EXPOSED] -= 1
    ready = s.live[n * L.LIVE + L.READY]
    if c[L.C_CURRENT + L.WIN_ACTIVE] != 0 and ready >= c[L.C_CURRENT + L.WIN_END]:
        populate(s, L.C_CURRENT)
        if c[L.C_CURRENT + L.WIN_POPULATED] != 0:
            c[L.C_NEXT + L.WIN_POPULATED] = 0
    if c[L.C_CURRENT + L.WIN_POPULATED] != 0 and c[L.C_CURRENT + L.WIN_ACTIVE] == 0:
        if c[L.C_CURRENT + L.WIN_FLAVOR] == flavor:
            c[L.C_CURRENT + L.WIN_ACTIVE] = 1
            c[L.C_CURRENT + L.WIN_END] = ready + s.node[n * L.NODE + L.UNIT_CYCLES] - 1


@inner
def cover(s):  # type: ignore[no-untyped-def]
    """Do the ready nodes of the snapshot cover the demand in the scalars? If not, which flavor is needed goes to the scalars.

    DS is needed if external stages lack most, else single-cycle VALU.
    """
    c, u, seen = s.c, s.unit, L.U_SEEN
    valu = u[_VALU1 * L.UNIT + seen] + u[_VMEM * L.UNIT + seen]
    outside = u[_DS * L.UNIT + seen] + u[_SALU * L.UNIT + seen]
    external = max(0, c[L.C_DEMAND_E] - outside)
    internal = max(0, c[L.C_DEMAND_I] - valu - u[_TRANS * L.UNIT + seen])
    shadow = max(0, c[L.C_DEMAND_T] - valu - outside)
    c[L.C_NEEDED] = _DS if external > internal and external >= shadow else _VALU1
    return external + internal + shadow == 0


@inner
def _aim_at(s, at):  # type: ignore[no-untyped-def]
    """Take over a planned window's demand and flavor; False if it is not populated."""
    c = s.c
    if c[at + L.WIN_POPULATED] == 0:
        return False
    c[L.C_AIM] = c[at + L.WIN_FLAVOR]
    for i in range(3):
        c[L.C_DEMAND_E + i] = c[at + L.WIN_E + i]
    return True


@inner
def plan_mix(s):  # type: ignore[no-untyped-def]
    """What ShadowMix aims at in this pick: the current window, or the next one if that is active and covered."""
    c = s.c
    take_snapshot(s)
    c[L.C_AIM] = -1
    c[L.C_MIX] = 3
    if not _aim_at(s, L.C_CURRENT):
        return
    covered = cover(s)
    if covered and c[L.C_CURRENT + L.WIN_ACTIVE] != 0:
        if c[L.C_NEXT + L.WIN_POPULATED] == 0:
            populate(s, L.C_NEXT)
        if _aim_at(s, L.C_NEXT):
            covered = cover(s)
    if c[L.C_DEMAND_E] + c[L.C_DEMAND_I] + c[L.C_DEMAND_T] == 0:
        c[L.C_MIX] = 0
    else:
        c[L.C_MIX] = 1 if covered else 2
    c[L.C_MIX_NOW] = c[L.C_MIX]
