"""Clock, pre-RA hazard state and the two queues of the top-down boundary (jitted).

Queue order is semantic: pushing appends, removing overwrites the hole with the last element.  How long a node has to wait
depends on its hazard group alone, so each queue counts its nodes per group and is walked only if some of them may move.
"""

from __future__ import annotations

from . import layout as L
from .model import Flag, Flavor
from .native import inner

__all__ = ["advance", "issue", "release", "release_pending", "settle", "take"]

_TRANS, _VALUN, _WMMA, _DS = int(Flavor.TRANS), int(Flavor.VALUN), int(Flavor.WMMA), int(Flavor.DS)
_VMEM, _DMA = int(Flavor.VMEM), int(Flavor.DMA)
_IMPLICIT, _READS, _WRITES = int(Flag.IMPLICIT_DEF), int(Flag.READS_SGPR), int(Flag.WRITES_SGPR)


@inner
def refresh_waits(s):  # type: ignore[no-untyped-def]
    """Recompute how long each hazard group has to wait, after the clock or the hazard state moved."""
    c, m = s.c, s.model
    matrix = max(0, c[L.C_RESERVED] - c[L.C_CYCLE])
    window, trans, vector, scalar = c[L.C_WINDOW], c[L.C_TRANS], c[L.C_VECTOR], c[L.C_SCALAR]
    if window < 0 and trans == 0 and vector == 0 and scalar == 0:
        if c[L.C_BLOCKED] & ~(1 << L.G_WMMA) != 0:
            for group in range(L.GROUPS):
                c[L.C_WAIT + group] = 0
        c[L.C_WAIT + L.G_WMMA] = matrix
        c[L.C_BLOCKED] = 1 << L.G_WMMA if matrix > 0 else 0
        return
    blocked = 0
    stages = L.M_WINDOWS + window * L.WINDOW_WORDS + 4
    for group in range(L.GROUPS):
        wait = matrix if group == L.G_WMMA else 0
        kind = m[L.M_CLASS + group]
        if window >= 0:
            wait = max(wait, m[stages + c[L.C_STAGE] * L.STAGE + L.T_WAIT + kind])
            if trans > 0 and (m[L.M_SHADOW_GROUPS] >> group) & 1:
                stage = c[L.C_STAGE] + trans
                later = m[stages + stage * L.STAGE + L.T_WAIT + kind] if stage < m[stages - 4] else 0
                wait = max(wait, trans + later)
        if (m[L.M_TRANS_GROUPS] >> group) & 1:
            wait = max(wait, trans)
        if (m[L.M_VECTOR_GROUPS] >> group) & 1:
            wait = max(wait, vector)
        if (m[L.M_SCALAR_GROUPS] >> group) & 1:
            wait = max(wait, scalar)
        c[L.C_WAIT + group] = wait
        if wait > 0:
            blocked |= 1 << group
    c[L.C_BLOCKED] = blocked


@inner
def advance(s, cycle):  # type: ignore[no-untyped-def]
    """Move the clock to a later cycle, one hazard step per cycle."""
    c = s.c
    steps = cycle - c[L.C_CYCLE]
    c[L.C_CYCLE] = cycle
    c[L.C_CHECK] = 1
    if c[L.C_SKIP] != 0:
        c[L.C_SKIP] = 0
        steps -= 1
    c[L.C_TRANS] = max(0, c[L.C_TRANS] - steps)
    c[L.C_VECTOR] = max(0, c[L.C_VECTOR] - steps)
    c[L.C_SCALAR] = max(0, c[L.C_SCALAR] - steps)
    if c[L.C_WINDOW] >= 0:
        c[L.C_STAGE] += steps
        if c[L.C_STAGE] >= s.model[L.M_WINDOWS + c[L.C_WINDOW] * L.WINDOW_WORDS]:
            c[L.C_WINDOW] = -1


@inner
def issue(s, n):  # type: ignore[no-untyped-def]
    """Tell the hazard state that a node was issued; stage 0 of its window is this cycle."""
    c, m = s.c, s.model
    if m[L.M_HAZARDS] == 0:
        return
    row = n * L.NODE
    flavor, flags, repeat = s.node[row + L.FLAVOR], s.node[row + L.FLAGS], s.node[row + L.REPEAT]
    c[L.C_CHECK] = 1
    c[L.C_SKIP] = 1 if m[L.M_SKIP_STEP] != 0 and flags & _IMPLICIT else 0
    if flavor == _WMMA:
        if s.node[row + L.WINDOW] >= 0:
            c[L.C_WINDOW] = s.node[row + L.WINDOW]
            c[L.C_STAGE] = 0
    elif flavor == _TRANS:
        c[L.C_TRANS] = m[L.M_TRANS_SHADOW]
    elif flavor == _VALUN and repeat > 1:
        c[L.C_VECTOR] = repeat
    if flags & _READS:
        c[L.C_SCALAR] = max(c[L.C_SCALAR], m[L.M_AFTER_READ])
    if flags & _WRITES:
        c[L.C_SCALAR] = max(c[L.C_SCALAR], m[L.M_AFTER_WRITE])


@inner
def note_visible_latency(s, n):  # type: ignore[no-untyped-def]
    """Bound of a memory op by its vector predecessors: 24 after the first matrix op issued since, 16 after them if none was."""
    row, live = n * L.NODE, n * L.LIVE
    settled = -1
    still_open = -1
    issued = s.unit[_WMMA * L.UNIT + L.U_ISSUED]
    at = s.c[L.W_WMMA]
    for k in range(s.node[row + L.PRED], s.node[row + L.NODE + L.PRED]):
        if s.node[k] & 1 == 0:
            continue
        source = s.node[k] >> 1
        flavor = s.node[source * L.NODE + L.FLAVOR]
        if flavor < 1 or flavor > _VALUN:
            continue
        ready = s.live[source * L.LIVE + L.READY]
        low, high = 0, issued  # first issued matrix op with a later ready cycle
        while low < high:
            middle = (low + high) >> 1
            if s.work[at + middle] > ready:
                high = middle
            else:
                low = middle + 1
        if low < issued:
            settled = max(settled, s.work[at + low] + s.model[L.M_VISIBLE_WMMA])
        else:
            still_open = max(still_open, ready)
    s.live[live + L.RAW] = settled
    s.live[live + L.RAW_OPEN] = still_open
    s.live[live + L.RAW_SEEN] = issued


@inner
def push(s, word, pending):  # type: ignore[no-untyped-def]
    """Append an entry to Available (0) or Pending (1)."""
    c = s.c
    s.work[c[L.W_AVAILABLE + pending] + c[L.C_AVAILABLE + pending]] = word
    c[L.C_AVAILABLE + pending] += 1
    c[L.C_IN_AVAILABLE + pending * L.GROUPS + ((word >> L.GROUP_SHIFT) & 15)] += 1


@inner
def take(s, place, pending):  # type: ignore[no-untyped-def]
    """Remove the entry at a place of Available (0) or Pending (1)."""
    c = s.c
    at = c[L.W_AVAILABLE + pending]
    c[L.C_AVAILABLE + pending] -= 1
    c[L.C_IN_AVAILABLE + pending * L.GROUPS + ((s.work[at + place] >> L.GROUP_SHIFT) & 15)] -= 1
    s.work[at + place] = s.work[at + c[L.C_AVAILABLE + pending]]


@inner
def release(s, n):  # type: ignore[no-untyped-def]
    """All predecessors are scheduled: queue the node. A late operand is no hazard."""
    c = s.c
    row = n * L.NODE
    flavor = s.node[row + L.FLAVOR]
    base = flavor * L.UNIT
    s.unit[base + L.U_READY] += 1
    s.unit[base + L.U_READY_CYCLES] += s.node[row + L.UNIT_CYCLES]
    c[L.C_BIASED] += s.node[row + L.BIAS] & 1
    if flavor == _DS or flavor == _VMEM or flavor == _DMA:
        note_visible_latency(s, n)
    full = c[L.C_AVAILABLE] >= s.model[L.M_AVAILABLE_LIMIT]
    group = s.node[row + L.GROUP]
    word = n | flavor << L.FLAVOR_SHIFT | group << L.GROUP_SHIFT | s.live[n * L.LIVE + L.READY] << L.READY_SHIFT
    push(s, word, 1 if full or (c[L.C_BLOCKED] >> group) & 1 else 0)


@inner
def walk(s, pending):  # type: ignore[no-untyped-def]
    """Move the nodes of one queue that belong into the other: Pending without a hazard, Available with one."""
    c, work = s.c, s.work
    wrong = 0  # groups in the wrong queue
    for group in range(L.GROUPS):
        if c[L.C_IN_AVAILABLE + pending * L.GROUPS + group] > 0 and (c[L.C_BLOCKED] >> group) & 1 != pending:
            wrong |= 1 << group
    if wrong == 0:
        return
    i = 0
    while i < c[L.C_AVAILABLE + pending]:
        word = work[c[L.W_AVAILABLE + pending] + i]
        if (wrong >> ((word >> L.GROUP_SHIFT) & 15)) & 1 == 0:
            i += 1
        elif pending != 0 and c[L.C_AVAILABLE] >= s.model[L.M_AVAILABLE_LIMIT]:
            return
        else:
            push(s, word, 1 - pending)
            take(s, i, pending)


@inner
def release_pending(s):  # type: ignore[no-untyped-def]
    """Move the pending nodes that have no hazard now to the end of Available."""
    s.c[L.C_CHECK] = 0
    if s.c[L.C_PENDING] > 0:
        walk(s, 1)


@inner
def settle(s):  # type: ignore[no-untyped-def]
    """Before a pick: bring both queues up to date; while nothing is available the clock runs."""
    c = s.c
    if c[L.C_CHECK] != 0:
        release_pending(s)
    if c[L.C_BLOCKED] != 0:
        walk(s, 0)
    while c[L.C_AVAILABLE] == 0:
        advance(s, c[L.C_CYCLE] + 1)
        refresh_waits(s)
        release_pending(s)
