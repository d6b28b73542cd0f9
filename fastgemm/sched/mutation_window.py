"""The WMMA window mutation, in its three published forms; see ``docs/mutation.md`` for the idea and pictures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..jit import njit
from .dag import Dag
from .evaluation import loaded_registers
from .legal_edges import CYCLE, refuse_cycles
from .machine import Machine
from .model import DagError, EdgeKind, Flavor
from .mutation import Candidates, apply_edges, edit_names, lds_loads, register, verdicts
from .mutation_report import Fragment, MutationReport
from .mutation_wmma import (
    NEVER,
    consumer_positions,
    dead_before,
    ease_all,
    ease_one,
    histogram,
    latest_starts,
    make_fragments,
    order_by_first,
)

__all__ = ["EDITS", "VARIANTS", "wmma_window"]

EDITS = ("wmma_chain", "latency", "load_chain", "anchors")
VARIANTS = {"article": EDITS, "first_draft": ("latency", "anchors"), "slim": ("latency", "anchors")}
_DATA = int(EdgeKind.DATA)


@register("wmma_window")
def wmma_window(
    dag: Dag,
    *,
    machine: Machine,
    variant: str = "article",
    edits: Sequence[str | int] | None = None,
    load_latency: int | None = None,
    spacing: int = 1,
) -> tuple[Dag, MutationReport]:
    """Give each LDS fragment a window between matrix instructions to be loaded in.

    ``article``: (1) matrix instructions chained in program order, (2) latency of each load's edge to its first consumer
    corrected, (3) loads chained by first consumer, ``spacing`` cycles apart, (4) anchors: an edge from a matrix instruction to
    the loads of a fragment, as early as the register budget allows.  ``slim``: no chains and no spacing, anchor one position
    earlier, a fragment with an illegal edge is left alone.  ``first_draft``: each load between the last use of a fragment that
    is dead by then and a deadline, no budget.  ``edits`` picks among (1) to (4), by name or number.  The load latency is the
    machine's DS latency unless given.  Nothing happens without matrix instructions or LDS loads.
    """
    if variant not in VARIANTS:
        raise DagError(f"variant {variant!r} is none of {', '.join(VARIANTS)}")
    chosen = edit_names(edits, EDITS, VARIANTS[variant])
    latency = machine.ds_latency if load_latency is None else int(load_latency)
    if latency < 0 or spacing < 0:
        raise DagError(f"load_latency is {latency} and spacing {spacing}; neither can be negative")
    chain = dag.nodes_where(Flavor.WMMA)
    loads = lds_loads(dag)
    if not chain.size or not loads.size:
        return dag, MutationReport(
            "wmma_window", variant, chosen, note="no matrix instructions or no LDS loads: nothing to do"
        )
    plan = _Plan(dag, chain, loads, latency, spacing if variant == "article" else 0)
    candidates = Candidates()
    if "wmma_chain" in chosen:
        candidates.add("wmma_chain", chain[:-1], chain[1:])
    if "load_chain" in chosen:
        ordered = loads[plan.order]
        candidates.add("load_chain", ordered[:-1], ordered[1:], spacing)
    skipped: tuple[int, ...] = ()
    if variant == "first_draft":
        plan.first_draft(candidates, "anchors" in chosen)
    elif "anchors" in chosen:
        skipped = plan.add_anchors(candidates, slim=variant == "slim")
    corrected = 0
    base = dag
    if "latency" in chosen:
        base, corrected = plan.corrected()
    changed, verdict = apply_edges(base, wanted := candidates.table())
    report = MutationReport(
        "wmma_window",
        variant,
        chosen,
        wanted,
        verdict,
        corrected,
        latency,
        plan.wmma_latency,
        plan.spacing,
        chain.size,
        plan.budget,
        plan.before,
        plan.after,
        skipped,
        make_fragments=plan.fragments,
    )
    return changed, report


class _Plan:
    """Windows of one DAG: the arithmetic of steps 2 to 4 before any edge is made."""

    def __init__(
        self, dag: Dag, chain: NDArray[np.int32], loads: NDArray[np.int32], latency: int, spacing: int
    ) -> None:
        self.dag, self.chain, self.loads, self.latency, self.spacing = dag, chain, loads, latency, spacing
        self.wmma_latency = max(1, int(dag.latency[chain[0]]))
        position = np.full(dag.n, -1, np.int64)
        position[chain] = np.arange(chain.size)
        self.first, self.last = consumer_positions(
            dag.edge_start, dag.edge_target, dag.edge_kind, _DATA, position, loads
        )
        registers = loaded_registers(dag, loads)
        # a load that defines nothing the DAG knows of makes a fragment of its own, of size 0
        spare = registers < 0
        registers[spare] = dag.register_id.size + np.arange(int(spare.sum()))
        self.order = order_by_first(self.first, chain.size)
        each = np.full(loads.size, latency, np.int64)
        latest = latest_starts(self.order, self.first, each, self.wmma_latency, spacing)
        self.of_load, self.table = make_fragments(
            self.order, registers, dag.register_id.size + loads.size, self.first, self.last, latest, self.wmma_latency
        )
        sizes = np.concatenate([dag.register_size.astype(np.int64), np.zeros(loads.size, np.int64)])
        self.vgprs = sizes[self.table[:, 0]]
        self.before = histogram(self.table, self.vgprs, chain.size)
        self.budget = int(self.before.max(initial=0))
        self.after = self.before.copy()
        self.anchor = ease_all(self.table, self.vgprs, self.after, self.budget)

    def corrected(self) -> tuple[Dag, int]:
        """The DAG with the latency of each load's data edges to its first consumer set, and how many edges changed."""
        dag = self.dag
        first_node = np.full(dag.n, -1, np.int64)
        has = self.first != NEVER
        first_node[self.loads[has]] = self.chain[self.first[has]]
        source = dag.edge_source
        wrong = (dag.edge_kind == _DATA) & (first_node[source] == dag.edge_target) & (dag.edge_latency != self.latency)
        count = int(wrong.sum())
        if not count:
            return dag, 0
        return dag.replace(edge_latency=np.where(wrong, self.latency, dag.edge_latency).astype(np.int32)), count

    def add_anchors(self, candidates: Candidates, *, slim: bool) -> tuple[int, ...]:
        """Edit 4; returns the fragments the slim form skips."""
        shift = 1 if slim else 0
        known = np.flatnonzero(self.of_load >= 0)
        known = known[np.argsort(self.of_load[known], kind="stable")]  # fragment by fragment, program order inside one
        skipped: tuple[int, ...] = ()
        for _ in range(2):
            anchor = self.anchor[self.of_load[known]]
            use = anchor > shift - 1 if slim else anchor != 0
            use &= ~np.isin(self.of_load[known], skipped)
            part = Candidates()
            part.add("anchors", self.chain[anchor[use] - shift], self.loads[known[use]])
            if not slim or skipped or not (verdicts(self.dag, part.table()) == CYCLE).any():
                break
            skipped = self._ease_legal(known, shift)
        candidates.add("anchors", *(part.table()[c] for c in ("source", "target")))
        return skipped

    def _ease_legal(self, known: NDArray[np.int64], shift: int) -> tuple[int, ...]:
        """Easing anew, fragment by fragment, leaving out those with an edge that would close a cycle (slim)."""
        self.after = self.before.copy()
        start = np.searchsorted(self.of_load[known], np.arange(len(self.table) + 1))
        legal = _ease_legal(
            self.dag.n,
            (self.dag.edge_start, self.dag.edge_target),
            self.chain,
            self.loads[known],
            start,
            (self.table, self.vgprs),
            self.after,
            self.budget,
            self.anchor,
            shift,
        )
        return tuple(np.flatnonzero(~legal).tolist())

    def first_draft(self, candidates: Candidates, wanted: bool) -> None:
        """Deadlines and starts of the first draft; they replace late starts and anchors of the report."""
        distance = -(-self.latency // self.wmma_latency)
        self.table[:, 3] = np.maximum(0, self.table[:, 1] - distance)
        free = dead_before(self.table, self.table[:, 3], self.chain.size)
        self.anchor = np.maximum(free, 0)
        self.after = self.before = histogram(self.table, self.vgprs, self.chain.size)
        self.budget = int(self.before.max(initial=0))
        if not wanted:
            return
        mine = np.flatnonzero(self.of_load >= 0)
        deadline = self.table[self.of_load[mine], 3]
        begin = free[self.of_load[mine]]
        candidates.add("deadline", self.loads[mine[deadline > 0]], self.chain[deadline[deadline > 0]])
        candidates.add("anchors", self.chain[begin[begin >= 0]], self.loads[mine[begin >= 0]])

    def fragments(self) -> tuple[Fragment, ...]:
        """Fragments for the report."""
        known = np.flatnonzero(self.of_load >= 0)
        known = known[np.argsort(self.of_load[known], kind="stable")]
        bounds = np.searchsorted(self.of_load[known], np.arange(len(self.table) + 1))
        names = np.concatenate([self.dag.register_id, np.full(self.loads.size, -1)])
        return tuple(
            Fragment(
                register=int(names[row[0]]),
                vgprs=int(self.vgprs[f]),
                first_consumer=int(row[1]),
                last_consumer=int(row[2]),
                late_start=int(row[3]),
                anchor=int(self.anchor[f]),
                loads=tuple(self.loads[known[bounds[f] : bounds[f + 1]]].tolist()),
            )
            for f, row in enumerate(self.table)
        )


@njit
def _ease_legal(n, edges, chain, loads, load_start, windows, live, budget, anchor, shift):
    """Per fragment whether its edges are legal; anchors and ``live`` of the legal ones are committed, the others reset."""
    edge_start, edge_target = edges
    fragments, vgprs = windows
    legal = np.ones(fragments.shape[0], np.bool_)
    sources = np.empty(loads.size, np.int64)
    targets = np.empty(loads.size, np.int64)
    taken = 0
    for f in range(fragments.shape[0]):
        late = fragments[f, 3]
        early = ease_one(live, budget, late, vgprs[f])
        count = taken
        if early >= shift:
            for k in range(load_start[f], load_start[f + 1]):
                sources[count] = chain[early - shift]
                targets[count] = loads[k]
                count += 1
            verdict = np.zeros(count, np.int8)
            refuse_cycles(n, edge_start, edge_target, sources[:count], targets[:count], verdict)
            for k in range(taken, count):
                if verdict[k] == CYCLE:
                    legal[f] = False
        if legal[f]:
            for p in range(early, late):
                live[p] += vgprs[f]
            anchor[f] = early
            taken = count
        else:
            anchor[f] = 0
    return legal
