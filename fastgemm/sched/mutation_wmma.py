"""The arithmetic of the WMMA / LDS-load mutation (PR #203095 of LLVM), jitted, on flat arrays.

Positions are places in the list of matrix instructions W[0..n-1] in program order.  A *fragment* is what one virtual
register holds: the LDS loads ("sub-loads") that fill it, from its first load to the last matrix instruction that reads it.
The steps are those of the published source: positions (consumers), latest start of each load, one window per fragment, a
histogram of live registers over positions whose maximum is the budget, and the *easing* of each window towards earlier
positions as long as the budget holds.  Easing costs at most budget x positions steps in all, so every step is linear.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..vectors import pointer
from .dag import Dag
from .model import EdgeKind, Flag, Flavor
from .mutation_report import Candidates
from .native import addresses, at_int8, at_int16, at_int32, entry, inner, shifted

__all__ = ["EDITS", "NEVER", "Windows"]

EDITS = ("wmma_chain", "latency", "load_chain", "anchors")  # of the published source, in its order
NEVER = 1 << 30  # position of a load no matrix instruction of the region consumes
_WMMA, _DS, _LOAD, _DATA = int(Flavor.WMMA), int(Flavor.DS), int(Flag.LOAD), int(EdgeKind.DATA)

# arrays of the DAG the arithmetic reads, in the order of the address table
_ARRAYS = (
    *("flavor", "flags", "latency", "edge_start", "edge_target", "edge_kind"),
    *("operand_start", "operand_register", "operand_kind", "register_size"),
)
(_FLAVOR, _FLAGS, _LATENCY, _START, _TARGET, _KIND, _OPERANDS, _OPERAND, _OPERAND_KIND, _SIZE, _NEW_LATENCY) = range(11)
# numbers: given, then found, then where each section of the work vector begins
(_Z_NODES, _Z_REGISTERS, _Z_LOAD_LATENCY, _Z_SPACING) = range(4)
(_Z_POSITIONS, _Z_LOADS, _Z_ORDERED, _Z_FRAGMENTS, _Z_WMMA_LATENCY, _Z_BUDGET, _Z_CORRECTED) = range(4, 11)
(_Z_LOAD, _Z_FIRST, _Z_LAST, _Z_ORDER, _Z_LATEST, _Z_REGISTER, _Z_OF_LOAD, _Z_SKIPPED) = range(11, 19)
(_Z_VGPRS, _Z_ANCHOR, _Z_TABLE, _Z_CHAIN, _Z_BEFORE, _Z_AFTER, _Z_SCRATCH) = range(19, 26)


@inner
def _list_nodes(table, z, work):  # type: ignore[no-untyped-def]
    """Matrix instructions and LDS loads in program order, and the register each load defines first (-1: none)."""
    flavor, flags = at_int8(table[_FLAVOR]), at_int32(table[_FLAGS])
    operands, register, kind = at_int32(table[_OPERANDS]), at_int32(table[_OPERAND]), at_int8(table[_OPERAND_KIND])
    chain, load, defines = shifted(work, z[_Z_CHAIN]), shifted(work, z[_Z_LOAD]), shifted(work, z[_Z_REGISTER])
    position = shifted(work, z[_Z_SCRATCH])
    positions = loads = 0
    for node in range(z[_Z_NODES]):
        position[node] = -1
        if flavor[node] == _WMMA:
            position[node] = positions
            chain[positions] = node
            positions += 1
        elif flavor[node] == _DS and flags[node] & _LOAD:
            load[loads] = node
            defines[loads] = -1
            for k in range(operands[node], operands[node + 1]):
                if kind[k] & 1:  # DEF and DEAD_DEF are odd
                    defines[loads] = register[k]
                    break
            loads += 1
    z[_Z_POSITIONS], z[_Z_LOADS] = positions, loads


@inner
def _consumer_positions(table, z, work):  # type: ignore[no-untyped-def]
    """First and last position among the data successors of each load; (``NEVER``, -1) without one."""
    start, target, kind = at_int32(table[_START]), at_int32(table[_TARGET]), at_int8(table[_KIND])
    load, position = shifted(work, z[_Z_LOAD]), shifted(work, z[_Z_SCRATCH])
    first, last = shifted(work, z[_Z_FIRST]), shifted(work, z[_Z_LAST])
    for k in range(z[_Z_LOADS]):
        first[k], last[k] = NEVER, -1
        for e in range(start[load[k]], start[load[k] + 1]):
            if kind[e] == _DATA and position[target[e]] >= 0:
                first[k] = min(first[k], position[target[e]])
                last[k] = max(last[k], position[target[e]])


@inner
def _order_by_first(z, work):  # type: ignore[no-untyped-def]
    """Loads by first consumer, stable, those without one dropped: a counting sort, linear."""
    first, order, start = shifted(work, z[_Z_FIRST]), shifted(work, z[_Z_ORDER]), shifted(work, z[_Z_SCRATCH])
    positions = z[_Z_POSITIONS]
    for p in range(positions + 1):
        start[p] = 0
    for k in range(z[_Z_LOADS]):
        if first[k] != NEVER:
            start[first[k] + 1] += 1
    for p in range(positions):
        start[p + 1] += start[p]
    z[_Z_ORDERED] = start[positions]
    for k in range(z[_Z_LOADS]):
        if first[k] != NEVER:
            order[start[first[k]]] = k
            start[first[k]] += 1


@inner
def _latest_starts(z, work):  # type: ignore[no-untyped-def]
    """Latest issue time of each ordered load, in cycles of back-to-back matrix instructions.

    A spacing > 0 keeps the loads that many cycles apart (a backward minimum over the order); 0 leaves each on its own.
    """
    first, order, latest = shifted(work, z[_Z_FIRST]), shifted(work, z[_Z_ORDER]), shifted(work, z[_Z_LATEST])
    spacing = z[_Z_SPACING]
    for k in range(z[_Z_ORDERED] - 1, -1, -1):
        latest[k] = first[order[k]] * z[_Z_WMMA_LATENCY] - z[_Z_LOAD_LATENCY]
        if spacing > 0 and k + 1 < z[_Z_ORDERED]:
            latest[k] = min(latest[k], latest[k + 1] - spacing)


@inner
def _make_fragments(table, z, work):  # type: ignore[no-untyped-def]
    """Group ordered loads by the register they fill, in first-seen order.

    Per load its fragment (-1: not in the order); per fragment register (-1: one the DAG does not know), first and last
    consumer, late start, and the 32-bit registers it takes.
    """
    size = at_int16(table[_SIZE])
    first, last, order = shifted(work, z[_Z_FIRST]), shifted(work, z[_Z_LAST]), shifted(work, z[_Z_ORDER])
    latest, register, of_load = shifted(work, z[_Z_LATEST]), shifted(work, z[_Z_REGISTER]), shifted(work, z[_Z_OF_LOAD])
    rows, vgprs, of_register = shifted(work, z[_Z_TABLE]), shifted(work, z[_Z_VGPRS]), shifted(work, z[_Z_SCRATCH])
    for r in range(z[_Z_REGISTERS]):
        of_register[r] = -1
    for k in range(z[_Z_LOADS]):
        of_load[k] = -1
    count = 0
    for k in range(z[_Z_ORDERED]):
        load = order[k]
        name = register[load]
        f = of_register[name] if name >= 0 else -1
        # a register loaded again after its last use holds a new fragment, an unknown one always does
        if f < 0 or first[load] > rows[4 * f + 2]:
            f = count
            count += 1
            vgprs[f] = 0
            if name >= 0:
                of_register[name] = f
                vgprs[f] = size[name]
            rows[4 * f], rows[4 * f + 1], rows[4 * f + 2], rows[4 * f + 3] = name, first[load], last[load], latest[k]
        else:
            rows[4 * f + 1] = min(rows[4 * f + 1], first[load])
            rows[4 * f + 2] = max(rows[4 * f + 2], last[load])
            rows[4 * f + 3] = min(rows[4 * f + 3], latest[k])
        of_load[load] = f
    for f in range(z[_Z_LOADS]):
        work[z[_Z_SKIPPED] + f] = 0
    for f in range(count):  # truncated: negative values end at 0 either way
        rows[4 * f + 3] = max(0, rows[4 * f + 3] // z[_Z_WMMA_LATENCY])
    z[_Z_FRAGMENTS] = count


@inner
def _histogram(z, work):  # type: ignore[no-untyped-def]
    """Registers live at each position if every fragment starts as late as it may; its maximum is the budget."""
    rows, vgprs, live = shifted(work, z[_Z_TABLE]), shifted(work, z[_Z_VGPRS]), shifted(work, z[_Z_BEFORE])
    change = shifted(work, z[_Z_SCRATCH])
    for p in range(z[_Z_POSITIONS] + 1):
        change[p] = 0
    for f in range(z[_Z_FRAGMENTS]):
        change[min(rows[4 * f + 3], rows[4 * f + 2])] += vgprs[f]
        change[rows[4 * f + 2] + 1] -= vgprs[f]
    total = budget = 0
    for p in range(z[_Z_POSITIONS]):
        total += change[p]
        live[p] = total
        budget = max(budget, total)
    z[_Z_BUDGET] = budget


@inner
def _ease(z, work, f):  # type: ignore[no-untyped-def]
    """Earliest position a window may be stretched to without the eased histogram passing the budget."""
    live, size = shifted(work, z[_Z_AFTER]), work[z[_Z_VGPRS] + f]
    early = work[z[_Z_TABLE] + 4 * f + 3]
    while early > 0 and live[early - 1] + size <= z[_Z_BUDGET]:
        early -= 1
    return early


@inner
def _stretch(z, work, f, early):  # type: ignore[no-untyped-def]
    """Enter a window that begins earlier into the eased histogram."""
    live = shifted(work, z[_Z_AFTER])
    for p in range(early, work[z[_Z_TABLE] + 4 * f + 3]):
        live[p] += work[z[_Z_VGPRS] + f]
    work[z[_Z_ANCHOR] + f] = early


@inner
def _ease_all(z, work):  # type: ignore[no-untyped-def]
    """Ease one fragment after the other; those to be skipped are not eased and have no anchor."""
    skipped = shifted(work, z[_Z_SKIPPED])
    for p in range(z[_Z_POSITIONS]):
        work[z[_Z_AFTER] + p] = work[z[_Z_BEFORE] + p]
    for f in range(z[_Z_FRAGMENTS]):
        work[z[_Z_ANCHOR] + f] = 0
        if skipped[f] == 0:
            _stretch(z, work, f, _ease(z, work, f))


@inner
def _correct_latencies(table, z, work):  # type: ignore[no-untyped-def]
    """Set the latency of each load's data edges to its first consumer in the table's last array and count the changes."""
    start, target, kind = at_int32(table[_START]), at_int32(table[_TARGET]), at_int8(table[_KIND])
    latency = at_int32(table[_NEW_LATENCY])
    count = 0
    for k in range(z[_Z_LOADS]):
        load, first = work[z[_Z_LOAD] + k], work[z[_Z_FIRST] + k]
        if first == NEVER:
            continue
        consumer = work[z[_Z_CHAIN] + first]
        for e in range(start[load], start[load + 1]):
            if target[e] == consumer and kind[e] == _DATA and latency[e] != z[_Z_LOAD_LATENCY]:
                latency[e] = z[_Z_LOAD_LATENCY]
                count += 1
    z[_Z_CORRECTED] = count


@inner
def _list_edge(columns, at, source, target, latency):  # type: ignore[no-untyped-def]
    at_int32(columns[0])[at] = source
    at_int32(columns[1])[at] = target
    at_int32(columns[2])[at] = latency
    return at + 1


@inner
def _list_edges(z, work, columns, edit, shift, at):  # type: ignore[no-untyped-def]
    """Append the edges of one edit, 0: chain, 2: load chain, 3: anchors; returns the end."""
    chain, load, order = shifted(work, z[_Z_CHAIN]), shifted(work, z[_Z_LOAD]), shifted(work, z[_Z_ORDER])
    of_load, anchor = shifted(work, z[_Z_OF_LOAD]), shifted(work, z[_Z_ANCHOR])
    if edit == 0:
        for p in range(1, z[_Z_POSITIONS]):
            at = _list_edge(columns, at, chain[p - 1], chain[p], 0)
    elif edit == 2:
        for k in range(1, z[_Z_ORDERED]):
            at = _list_edge(columns, at, load[order[k - 1]], load[order[k]], z[_Z_SPACING])
    else:  # fragment by fragment, in program order inside one
        start, member = shifted(work, z[_Z_SCRATCH]), shifted(work, z[_Z_LATEST])  # latest starts are done with
        for f in range(z[_Z_FRAGMENTS] + 1):
            start[f] = 0
        for k in range(z[_Z_LOADS]):
            if of_load[k] >= 0:
                start[of_load[k] + 1] += 1
        for f in range(z[_Z_FRAGMENTS]):
            start[f + 1] += start[f]
        for k in range(z[_Z_LOADS]):
            if of_load[k] >= 0:
                member[start[of_load[k]]] = k
                start[of_load[k]] += 1
        for i in range(z[_Z_ORDERED]):
            f = of_load[member[i]]
            if anchor[f] > 0 and work[z[_Z_SKIPPED] + f] == 0:
                at = _list_edge(columns, at, chain[anchor[f] - shift], load[member[i]], 0)
    return at


@entry
def _edges(sizes, work, columns, edits, ends, shift):  # type: ignore[no-untyped-def]
    """The edges of some edits, one after the other; where each one's end."""
    z, w, c = pointer(sizes), pointer(work), pointer(columns)
    at = np.int64(0)
    for i in range(edits.size):
        at = _list_edges(z, w, c, edits[i], shift, at)
        ends[i] = at


@entry
def _plan(table, sizes, work, again):  # type: ignore[no-untyped-def]
    """All steps from the nodes to the anchors; ``again``: only the last one, with the fragments now to be skipped."""
    t, z, w = pointer(table), pointer(sizes), pointer(work)
    if again == 0:
        _list_nodes(t, z, w)
        if z[_Z_POSITIONS] == 0 or z[_Z_LOADS] == 0:
            return
        z[_Z_WMMA_LATENCY] = max(1, at_int32(t[_LATENCY])[w[z[_Z_CHAIN]]])
        _consumer_positions(t, z, w)
        _correct_latencies(t, z, w)
        _order_by_first(z, w)
        _latest_starts(z, w)
        _make_fragments(t, z, w)
        _histogram(z, w)
    _ease_all(z, w)


class Windows:
    """Windows of one DAG before any edge is made: positions, fragments, histograms, anchors (all int64).

    ``edge_latency`` are the DAG's with each load's edges to its first consumer set to the load latency, ``corrected`` of them.
    Per load: ``load`` (node), ``first`` and ``last`` consumer, ``of_load`` (its fragment, -1: no consumer); ``ordered`` lists loads
    by first consumer.  Per fragment: ``table`` (register or -1, first and last consumer, late start), ``vgprs``, ``anchor``.
    """

    __slots__ = (
        *(
            "dag",
            "spacing",
            "_sizes",
            "_work",
            "edge_latency",
            "_table",
            "positions",
            "loads",
            "wmma_latency",
            "budget",
        ),
        *("corrected", "chain", "load", "first", "last", "ordered", "of_load", "table", "vgprs", "anchor", "skipped"),
        *("before", "after"),
    )  # batches keep thousands of them

    def __init__(self, dag: Dag, load_latency: int, spacing: int) -> None:
        self.dag, self.spacing = dag, spacing
        matrix, loads = int(np.count_nonzero(dag.flavor == _WMMA)), int(np.count_nonzero(dag.flavor == _DS))
        lengths = [loads] * 10 + [4 * loads, matrix, matrix, matrix]  # _Z_LOAD to _Z_AFTER
        registers = dag.register_id.size
        self._sizes = np.zeros(_Z_SCRATCH + 1, dtype=np.int64)
        self._sizes[:4] = dag.n, registers, load_latency, spacing
        np.cumsum(lengths, out=self._sizes[_Z_FIRST:])
        self._work = np.empty(int(self._sizes[-1]) + max(dag.n, registers, matrix) + 2, dtype=np.int64)
        self.edge_latency = dag.edge_latency.copy()
        self._table = addresses(dag.addresses(_ARRAYS), self.edge_latency)
        _plan(self._table, self._sizes, self._work, 0)
        self.positions, self.loads, ordered, fragments, *rest = self._sizes[_Z_POSITIONS:_Z_LOAD].tolist()
        self.wmma_latency, self.budget, self.corrected = rest
        if not self.corrected:
            self.edge_latency = dag.edge_latency  # reports live long: no copy for nothing
        self.chain, self.load = self._view(_Z_CHAIN, self.positions), self._view(_Z_LOAD, self.loads)
        self.first, self.last = self._view(_Z_FIRST, self.loads), self._view(_Z_LAST, self.loads)
        self.ordered, self.of_load = self._view(_Z_ORDER, ordered), self._view(_Z_OF_LOAD, self.loads)
        self.table = self._view(_Z_TABLE, 4 * fragments).reshape(fragments, 4)
        self.vgprs, self.anchor = self._view(_Z_VGPRS, fragments), self._view(_Z_ANCHOR, fragments)
        self.skipped = self._view(_Z_SKIPPED, fragments)
        self.before, self.after = self._view(_Z_BEFORE, self.positions), self._view(_Z_AFTER, self.positions)

    def _view(self, section: int, length: int) -> NDArray[np.int64]:
        begin = int(self._sizes[section])
        return self._work[begin : begin + length]

    def edges(self, edits: Sequence[str], shift: int) -> Candidates:
        """The edges of some edits; ``shift``: how many positions before its window an anchor is."""
        counts = {"wmma_chain": self.positions - 1, "load_chain": self.ordered.size, "anchors": self.loads}
        most = sum(counts[edit] for edit in edits)
        columns = np.empty((3, most), dtype=np.int32)
        numbers = np.array([EDITS.index(edit) for edit in edits], dtype=np.int64)
        ends = np.zeros(len(edits), dtype=np.int64)
        _edges(self._sizes, self._work, addresses(*columns), numbers, ends, shift)
        last = ends.tolist()
        begins = [0, *last]
        sizes = {edit: end - begin for edit, begin, end in zip(edits, begins, last, strict=False)}
        return Candidates(sizes, columns[:, : begins[-1]])

    def ease_again(self) -> None:
        """Ease all fragments anew but those in ``skipped``, which get no anchor."""
        _plan(self._table, self._sizes, self._work, 1)

    def count_registers(self) -> None:
        """Both histograms and the budget from the late starts as they are now, nothing eased."""
        change = np.zeros(self.positions + 1, dtype=np.int64)
        np.add.at(change, np.minimum(self.table[:, 3], self.table[:, 2]), self.vgprs)
        np.subtract.at(change, self.table[:, 2] + 1, self.vgprs)
        self.before[:] = self.after[:] = np.cumsum(change[:-1])
        self.budget = int(self.before.max(initial=0))
