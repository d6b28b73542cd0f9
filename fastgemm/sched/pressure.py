"""Register pressure: which values are live, and what a node would change (jitted)."""

from __future__ import annotations

from . import layout as L
from .native import inner

__all__ = ["commit_registers", "excess", "open_gate", "set_up_registers"]

NO_EXCESS = -1


@inner
def _count(s, value, change):  # type: ignore[no-untyped-def]
    """A value becomes live (+1) or dies (-1): the change of its class's registers."""
    row = s.c[L.W_VALUES] + value * L.VALUE
    cell = s.node[row + L.V_CELL]
    if cell < 0:
        return change * s.node[row + L.V_WEIGHT]
    at = s.c[L.W_CELLS] + cell
    s.c[L.C_TOUCHED] = 1
    before = s.work[at]
    s.work[at] = before + change
    if change > 0:
        return 1 if before == 0 else 0
    return -1 if before == 1 else 0


@inner
def set_up_registers(s, values, live_in, cells):  # type: ignore[no-untyped-def]
    """Readers of every value and the pressure at the start of the region."""
    c = s.c
    for i in range(cells):
        s.work[c[L.W_CELLS] + i] = 0
    c[L.C_VGPR] = c[L.C_SGPR] = 0
    for value in range(values):
        row = c[L.W_VALUES] + value * L.VALUE
        s.work[c[L.W_READERS] + value] = s.node[row + L.V_READERS]
        if value < live_in:
            c[L.C_SGPR + s.node[row + L.V_VECTOR]] += _count(s, value, 1)


@inner
def open_gate(s):  # type: ignore[no-untyped-def]
    """Decide once per pick which registers the pressure rung looks at."""
    c = s.c
    c[L.C_GATE] = 0
    if c[L.C_VGPR] + s.model[L.M_GATE] >= c[L.C_VGPR_LIMIT]:
        c[L.C_GATE], c[L.C_LIMIT] = 1, c[L.C_VGPR_LIMIT]
    elif c[L.C_SGPR] >= c[L.C_SGPR_LIMIT]:
        c[L.C_GATE], c[L.C_LIMIT] = 2, c[L.C_SGPR_LIMIT]


@inner
def _change(s, n, vector, sign):  # type: ignore[no-untyped-def]
    """Change of one class's registers when a node is scheduled; sign -1 takes the cells back to where they were."""
    c, node, work = s.c, s.node, s.work
    row = n * L.NODE
    change = 0
    for k in range(node[row + L.READ], node[row + L.NODE + L.READ]):
        value = c[L.W_VALUES] + node[k] * L.VALUE
        if node[value + L.V_VECTOR] == vector and work[c[L.W_READERS] + node[k]] == 1 and node[value + L.V_STAYS] == 0:
            change += _count(s, node[k], -sign)
    for k in range(node[row + L.DEFINE], node[row + L.NODE + L.DEFINE]):
        value = c[L.W_VALUES] + node[k] * L.VALUE
        if node[value + L.V_VECTOR] == vector and (node[value + L.V_READERS] > 0 or node[value + L.V_STAYS] != 0):
            if node[value + L.V_DEAD] == 0:
                change += _count(s, node[k], sign)
    return change


@inner
def excess(s, n):  # type: ignore[no-untyped-def]
    """Registers at or beyond the limit if the node were scheduled now (0 counts), `NO_EXCESS` below it."""
    c, node = s.c, s.node
    vector = 1 if c[L.C_GATE] == 1 else 0
    now, limit = c[L.C_SGPR + vector], c[L.C_LIMIT]
    most = now  # what it would be if nothing died
    for k in range(node[n * L.NODE + L.DEFINE], node[(n + 1) * L.NODE + L.DEFINE]):
        value = c[L.W_VALUES] + node[k] * L.VALUE
        if node[value + L.V_VECTOR] == vector:
            most += node[value + L.V_WEIGHT] if node[value + L.V_CELL] < 0 else 1
    if most < limit:
        return NO_EXCESS
    c[L.C_TOUCHED] = 0
    new = now + _change(s, n, vector, 1)
    if c[L.C_TOUCHED] != 0:
        _change(s, n, vector, -1)
    return new - limit if new >= limit else NO_EXCESS


@inner
def commit_registers(s, n):  # type: ignore[no-untyped-def]
    """Kill the values a node reads last, then make those it defines live."""
    c, node = s.c, s.node
    row = n * L.NODE
    c[L.C_SGPR] += _change(s, n, 0, 1)
    c[L.C_VGPR] += _change(s, n, 1, 1)
    for k in range(node[row + L.READ], node[row + L.NODE + L.READ]):
        s.work[c[L.W_READERS] + node[k]] -= 1
