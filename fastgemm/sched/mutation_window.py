"""The WMMA window mutation, in its three published forms; see ``docs/mutation.md`` for the idea and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from .dag import Dag
from .legal_edges import refuse_cycles
from .machine import Machine
from .model import DagError
from .mutation import Candidates, apply_edges, edit_names, register
from .mutation_report import Fragment, MutationReport
from .mutation_wmma import EDITS, Windows

__all__ = ["EDITS", "VARIANTS", "wmma_window"]

VARIANTS = {"article": EDITS, "first_draft": ("latency", "anchors"), "slim": ("latency", "anchors")}


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
    windows = Windows(dag, latency, spacing if variant == "article" else 0)
    if not windows.positions or not windows.loads:
        return dag, MutationReport(
            "wmma_window", variant, chosen, note="no matrix instructions or no LDS loads: nothing to do"
        )
    if variant == "first_draft":
        wanted = _first_draft(windows, latency, "anchors" in chosen)
    else:
        if variant == "slim" and "anchors" in chosen:
            _skip_illegal(windows)
        wanted = windows.edges([edit for edit in chosen if edit != "latency"], 1 if variant == "slim" else 0)
    skipped = tuple(np.flatnonzero(windows.skipped).tolist()) if variant == "slim" else ()
    corrected = windows.corrected if "latency" in chosen else 0
    changed, verdict = apply_edges(dag, wanted, edge_latency=windows.edge_latency if corrected else None)
    report = MutationReport(
        "wmma_window",
        variant,
        chosen,
        wanted,
        verdict,
        corrected,
        latency,
        windows.wmma_latency,
        windows.spacing,
        windows.positions,
        windows.budget,
        windows.before,
        windows.after,
        skipped,
        make_fragments=partial(_fragments, windows),
    )
    return changed, report


def _skip_illegal(windows: Windows) -> None:
    """Mark the fragments the slim form leaves alone because an edge of theirs would close a cycle.

    Easing goes fragment by fragment and a fragment left alone is not eased, so each one found means easing the later ones anew.
    """
    dag = windows.dag
    columns = (dag.edge_start, dag.edge_target, dag.edge_kind, dag.edge_latency, dag.edge_register)
    graph = [np.ascontiguousarray(column) for column in columns]
    fragment_of = np.full(dag.n, -1)
    fragment_of[windows.load] = windows.of_load
    while True:
        sources, targets, _ = windows.edges(["anchors"], 1).columns
        bad = np.flatnonzero(refuse_cycles(graph, sources, targets))
        if not bad.size:
            break
        windows.skipped[fragment_of[targets[bad[0]]]] = 1
        windows.ease_again()


def _first_draft(windows: Windows, latency: int, anchors: bool) -> Candidates:
    """Deadlines and starts of the first draft; they replace late starts and anchors of the report."""
    wanted = Candidates()
    table, of_load = windows.table, windows.of_load
    distance = -(-latency // windows.wmma_latency)
    table[:, 3] = np.maximum(0, table[:, 1] - distance)
    # for each position the latest last use below it: where a register has just become free
    free = np.full(windows.positions + 1, -1, np.int64)
    np.maximum.at(free, table[:, 2] + 1, table[:, 2])
    begin = np.maximum.accumulate(free)[table[:, 3]]
    windows.anchor[:] = np.maximum(begin, 0)
    windows.count_registers()
    if not anchors:
        return wanted
    mine = np.flatnonzero(of_load >= 0)
    deadline, begin = table[of_load[mine], 3], begin[of_load[mine]]
    wanted.add("deadline", windows.load[mine[deadline > 0]], windows.chain[deadline[deadline > 0]])
    wanted.add("anchors", windows.chain[begin[begin >= 0]], windows.load[mine[begin >= 0]])
    return wanted


def _fragments(windows: Windows) -> tuple[Fragment, ...]:
    """Fragments for the report."""
    known = np.flatnonzero(windows.of_load >= 0)
    known = known[np.argsort(windows.of_load[known], kind="stable")]
    bounds = np.searchsorted(windows.of_load[known], np.arange(len(windows.table) + 1))
    return tuple(
        Fragment(
            register=int(windows.dag.register_id[row[0]]) if row[0] >= 0 else -1,
            vgprs=int(windows.vgprs[f]),
            first_consumer=int(row[1]),
            last_consumer=int(row[2]),
            late_start=int(row[3]),
            anchor=int(windows.anchor[f]),
            loads=tuple(windows.load[known[bounds[f] : bounds[f + 1]]].tolist()),
        )
        for f, row in enumerate(windows.table)
    )
