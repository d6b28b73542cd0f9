"""Clock, pre-RA hazard state and the two queues of the top-down boundary (jitted).

Queue order is semantic: pushing appends, removing overwrites the hole with the last element.
"""

from __future__ import annotations

from ..vectors import inner
from . import layout as L
from .model import Flag, Flavor

__all__ = ["advance", "hazard", "issue", "release", "release_pending", "settle", "take"]

_TRANS, _VALUN, _WMMA, _DS = int(Flavor.TRANS), int(Flavor.VALUN), int(Flavor.WMMA), int(Flavor.DS)
_VALU1, _VMEM, _DMA = int(Flavor.VALU1), int(Flavor.VMEM), int(Flavor.DMA)
_IMPLICIT, _READS, _WRITES = int(Flag.IMPLICIT_DEF), int(Flag.READS_SGPR), int(Flag.WRITES_SGPR)


@inner
def window_wait(s, window, stage, kind):  # type: ignore[no-untyped-def]
    """Cycles from a stage of a window until a class is admitted (or the window is over)."""
    base = L.M_WINDOWS + window * L.WINDOW_WORDS
    if stage >= s.model[base]:
        return 0
    return s.model[base + 4 + stage * L.STAGE + L.S_WAIT + kind]


@inner
def refresh_waits(s):  # type: ignore[no-untyped-def]
    """Recompute how long each hazard group has to wait, after the hazard state changed."""
    c, m = s.c, s.model
    window, stage, trans, vector, scalar = c[L.C_WINDOW], c[L.C_STAGE], c[L.C_TRANS], c[L.C_VECTOR], c[L.C_SCALAR]
    if window < 0 and trans == 0 and vector == 0 and scalar == 0:
        if c[L.C_WAITS] != 0:
            c[L.C_WAITS] = 0
            for group in range(L.GROUPS):
                c[L.C_WAIT + group] = 0
        return
    some = 0
    for group in range(L.GROUPS):
        wait = 0
        if window >= 0:
            wait = window_wait(s, window, stage, m[L.M_CLASS + group])
            if trans > 0 and (m[L.M_SHADOW_GROUPS] >> group) & 1:
                wait = max(wait, trans + window_wait(s, window, stage + trans, m[L.M_CLASS + group]))
        if (m[L.M_TRANS_GROUPS] >> group) & 1:
            wait = max(wait, trans)
        if (m[L.M_VECTOR_GROUPS] >> group) & 1:
            wait = max(wait, vector)
        if (m[L.M_SCALAR_GROUPS] >> group) & 1:
            wait = max(wait, scalar)
        c[L.C_WAIT + group] = wait
        some |= wait
    c[L.C_WAITS] = some


@inner
def advance(s, cycle):  # type: ignore[no-untyped-def]
    """Move the clock to a later cycle, one hazard step per cycle."""
    c = s.c
    steps = cycle - c[L.C_CYCLE]
    c[L.C_UOPS] = max(0, c[L.C_UOPS] - steps)
    c[L.C_CYCLE] = cycle
    c[L.C_CHECK] = 1
    if s.model[L.M_HAZARDS] == 0:
        return
    if c[L.C_SKIP] != 0:
        c[L.C_SKIP] = 0
        steps -= 1
    if steps == 0:
        return
    c[L.C_TRANS] = max(0, c[L.C_TRANS] - steps)
    c[L.C_VECTOR] = max(0, c[L.C_VECTOR] - steps)
    c[L.C_SCALAR] = max(0, c[L.C_SCALAR] - steps)
    if c[L.C_WINDOW] >= 0:
        c[L.C_STAGE] += steps
        if c[L.C_STAGE] >= s.model[L.M_WINDOWS + c[L.C_WINDOW] * L.WINDOW_WORDS]:
            c[L.C_WINDOW] = -1
    refresh_waits(s)


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
    refresh_waits(s)


@inner
def hazard(s, n):  # type: ignore[no-untyped-def]
    """Can the node not be issued in this cycle? (Its operands may be late; that is no hazard.)"""
    c = s.c
    row = n * L.NODE
    if c[L.C_WAITS] != 0 and c[L.C_WAIT + s.node[row + L.GROUP]] > 0:
        return True
    uops = s.node[row + L.UOPS]
    if uops > 0 and c[L.C_UOPS] > 0 and c[L.C_UOPS] + uops > 1:
        return True
    return s.node[row + L.MATRIX] >= 0 and c[L.C_RESERVED] > c[L.C_CYCLE]


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
def release(s, n):  # type: ignore[no-untyped-def]
    """All predecessors are scheduled: queue the node."""
    c = s.c
    flavor = s.node[n * L.NODE + L.FLAVOR]
    base = flavor * L.UNIT
    s.unit[base + L.U_READY] += 1
    s.unit[base + L.U_READY_CYCLES] += s.node[n * L.NODE + L.UNIT_CYCLES]
    if flavor == _DS or flavor == _VMEM or flavor == _DMA:
        note_visible_latency(s, n)
    if hazard(s, n) or c[L.C_AVAILABLE] >= s.model[L.M_AVAILABLE_LIMIT]:
        s.work[c[L.W_PENDING] + c[L.C_PENDING]] = n
        c[L.C_PENDING] += 1
    else:
        s.work[c[L.W_AVAILABLE] + c[L.C_AVAILABLE]] = n
        c[L.C_AVAILABLE] += 1


@inner
def take(s, queue, length, place):  # type: ignore[no-untyped-def]
    """Remove the element at a place of a queue (`queue` and `length` index the scalars)."""
    s.c[length] -= 1
    at = s.c[queue]
    s.work[at + place] = s.work[at + s.c[length]]


@inner
def release_pending(s):  # type: ignore[no-untyped-def]
    """Move the pending nodes that have no hazard now to the end of Available."""
    c = s.c
    c[L.C_CHECK] = 0
    i = 0
    while i < c[L.C_PENDING]:
        n = s.work[c[L.W_PENDING] + i]
        if c[L.C_AVAILABLE] >= s.model[L.M_AVAILABLE_LIMIT] or hazard(s, n):
            i += 1
        else:
            s.work[c[L.W_AVAILABLE] + c[L.C_AVAILABLE]] = n
            c[L.C_AVAILABLE] += 1
            take(s, L.W_PENDING, L.C_PENDING, i)


@inner
def settle(s):  # type: ignore[no-untyped-def]
    """Before a pick: bring both queues up to date; while nothing is available the clock runs."""
    c = s.c
    if c[L.C_CHECK] != 0:
        release_pending(s)
    i = 0
    while i < c[L.C_AVAILABLE]:
        n = s.work[c[L.W_AVAILABLE] + i]
        if hazard(s, n):
            s.work[c[L.W_PENDING] + c[L.C_PENDING]] = n
            c[L.C_PENDING] += 1
            take(s, L.W_AVAILABLE, L.C_AVAILABLE, i)
        else:
            i += 1
    while c[L.C_AVAILABLE] == 0:
        advance(s, c[L.C_CYCLE] + 1)
        release_pending(s)
