"""DAG mutations: functions ``Dag -> (Dag, report)`` that add edges or change latencies, never nodes.

======================  ====================================================================================================
``wmma_window``         a window per LDS fragment between matrix instructions (PR #203095 of LLVM; article, first draft, slim)
``barrier_latency``     latencies around fences, barriers and tensor waits
``sched_group_barrier`` user patterns: groups of instructions of a class, one group after the other (IGroupLP)
``opening_delay``       LDS loads held until a matrix instruction has issued
======================  ====================================================================================================

The input is not changed.  Every new edge is tested for a cycle first (:mod:`fastgemm.sched.legal_edges`) and refused, with the
reason in the report, if it would close one.  `register` adds a mutation of the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dag import Dag
from .legal_edges import merge_edges
from .machine import Machine
from .machine import machine as machine_named
from .model import DagError, EdgeKind
from .mutation_report import Candidates, MutationReport

__all__ = ["MUTATIONS", "Candidates", "apply_edges", "mutate", "mutations", "register"]

Mutation = Callable[..., tuple[Dag, MutationReport]]
MUTATIONS: dict[str, Mutation] = {}
_ARTIFICIAL = int(EdgeKind.ARTIFICIAL)


def register(name: str) -> Callable[[Mutation], Mutation]:
    """Enter a function ``(dag, *, machine, **options) -> (dag, report)`` under a name `mutate` and `schedule` accept."""

    def enter(function: Mutation) -> Mutation:
        MUTATIONS[name] = function
        return function

    return enter


def mutations() -> tuple[str, ...]:
    """Names `mutate` accepts."""
    _load()
    return tuple(sorted(MUTATIONS))


def mutate(
    dag: Dag, name: str = "wmma_window", *, machine: Machine | str | None = None, **options: Any
) -> tuple[Dag, MutationReport]:
    """Apply one mutation: the changed DAG and a report.

    ``machine`` says how long an LDS load takes (its DS latency mode); without one it is ``gfx1250``, whose mode is *loaded*,
    60 cycles.  ``options`` are the mutation's own, see its function.  Raises `DagError` on an unknown name.
    """
    _load()
    if name not in MUTATIONS:
        raise DagError(f"no mutation called {name!r}; there are {', '.join(sorted(MUTATIONS))}")
    return MUTATIONS[name](dag, machine=machine_named("gfx1250" if machine is None else machine), **options)


def _load() -> None:
    from . import mutation_groups, mutation_latency, mutation_window  # noqa: F401  (they register themselves)


_GRAPH = ("edge_start", "edge_target", "edge_kind", "edge_latency", "edge_register")


def apply_edges(
    dag: Dag, candidates: Candidates, *, edge_latency: NDArray[np.int32] | None = None
) -> tuple[Dag, NDArray[np.int8]]:
    """The DAG with every legal edge of ``candidates`` (and fresh depths and heights), and the verdict on each.

    ``edge_latency`` replaces the latencies of the DAG's own edges.
    """
    graph = dag.addresses(_GRAPH)
    if edge_latency is not None:
        graph[3] = int(edge_latency.__array_interface__["data"][0])
    ends = dag.addresses(("exit_source", "exit_latency"))
    size = (dag.n, dag.edges, dag.exit_source.size)
    changes, verdict = merge_edges(graph, ends, size, candidates.columns, _ARTIFICIAL)
    if not changes and edge_latency is not None:
        changes = {"edge_latency": edge_latency}
    changed = dag._with(**changes)
    return (changed if "height" in changes else changed.with_paths()), verdict


def edit_names(edits: Sequence[str | int] | None, all_edits: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
    """Edits asked for, by name or by their number in the published source (from 1)."""
    if edits is None:
        return tuple(default)
    chosen = []
    for edit in [edits] if isinstance(edits, str | int) else edits:
        name = all_edits[edit - 1] if isinstance(edit, int) and 1 <= edit <= len(all_edits) else edit
        if name not in all_edits:
            raise DagError(f"edit {edit!r} is none of {', '.join(all_edits)} (or their numbers 1 to {len(all_edits)})")
        chosen.append(str(name))
    return tuple(chosen)
