"""Longest latency paths of a DAG and the search for a cycle, linear in its edges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..vectors import pointer
from .model import DagError
from .native import addresses, at_int32, entry, inner, shifted

if TYPE_CHECKING:
    from .dag import Dag

__all__ = ["depths_and_heights", "longest_paths", "sort_topologically"]


@inner
def sort_topologically(nodes, start, target, order, open_count):  # type: ignore[no-untyped-def]
    """Fill ``order`` with the nodes so that every edge points forward; returns how many could be placed.

    ``open_count`` is left with the predecessors each node still waits for: above 0 on and behind cycles.
    """
    for node in range(nodes):
        open_count[node] = 0
    for e in range(start[nodes]):
        open_count[target[e]] += 1
    filled = done = 0
    for node in range(nodes):
        if open_count[node] == 0:
            order[filled] = node
            filled += 1
    while done < filled:
        node = order[done]
        done += 1
        for e in range(start[node], start[node + 1]):
            open_count[target[e]] -= 1
            if open_count[target[e]] == 0:
                order[filled] = target[e]
                filled += 1
    return filled


@inner
def longest_paths(count, order, graph, exits, ends):  # type: ignore[no-untyped-def]
    """Depths and heights of nodes in topological order.

    ``graph``: addresses of starts, targets, kinds and latencies; ``ends``: of the exits' sources and latencies, depth, height.
    """
    start, target, latency = at_int32(graph[0]), at_int32(graph[1]), at_int32(graph[3])
    source, last, depth, height = at_int32(ends[0]), at_int32(ends[1]), at_int32(ends[2]), at_int32(ends[3])
    for i in range(count):
        depth[order[i]] = height[order[i]] = 0
    for i in range(exits):
        height[source[i]] = max(height[source[i]], last[i])
    for i in range(count):
        node = order[i]
        for e in range(start[node], start[node + 1]):
            depth[target[e]] = max(depth[target[e]], depth[node] + latency[e])
    for i in range(count - 1, -1, -1):
        node = order[i]
        for e in range(start[node], start[node + 1]):
            height[node] = max(height[node], height[target[e]] + latency[e])


@entry
def _paths(table, sizes, work):  # type: ignore[no-untyped-def]
    """Depths and heights of ``sizes[0]`` nodes with ``sizes[1]`` exits; returns how many nodes could be placed."""
    t, w = pointer(table), pointer(work)
    nodes = sizes[0]
    placed = sort_topologically(nodes, at_int32(t[0]), at_int32(t[1]), w, shifted(w, nodes))
    longest_paths(placed, w, t, sizes[1], shifted(t, np.int64(4)))
    return placed


def find_cycle(start: NDArray[Any], target: NDArray[Any], suspects: NDArray[Any]) -> list[int]:
    """Nodes of one cycle in order, given the nodes no topological order reaches (each has a successor on or before one)."""
    inside = set(suspects.tolist())
    # every suspect has a suspect predecessor: walk backwards until a node comes again
    previous: dict[int, int] = {}
    for node in suspects.tolist():
        for e in range(int(start[node]), int(start[node + 1])):
            if int(target[e]) in inside:
                previous[int(target[e])] = node
    seen: dict[int, int] = {}
    walk: list[int] = []
    node = int(suspects[0])
    while node not in seen:
        seen[node] = len(walk)
        walk.append(node)
        node = previous[node]
    return walk[seen[node] :][::-1]


def depths_and_heights(dag: Dag) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Longest latency path from the roots to each node and from each node to the region's exit."""
    depth, height = np.empty(dag.n, dtype=np.int32), np.empty(dag.n, dtype=np.int32)
    exits = (np.ascontiguousarray(dag.exit_source), np.ascontiguousarray(dag.exit_latency))
    graph = [np.ascontiguousarray(x) for x in (dag.edge_start, dag.edge_target, dag.edge_kind, dag.edge_latency)]
    work = np.empty(2 * dag.n, dtype=np.int64)
    placed = _paths(addresses(*graph, *exits, depth, height), np.array([dag.n, exits[0].size], dtype=np.int64), work)
    if placed < dag.n:
        raise_cycle(dag, np.flatnonzero(work[dag.n :]))
    return depth, height


def raise_cycle(dag: Dag, suspects: NDArray[Any]) -> NoReturn:
    """Raise `DagError` naming the nodes of a cycle among nodes no topological order reaches."""
    cycle = find_cycle(dag.edge_start, dag.edge_target, suspects)
    shown = " -> ".join(f"{node} ({dag.opcode_name(node)})" for node in [*cycle[:20], cycle[0]])
    more = f" ({len(cycle)} nodes in all)" if len(cycle) > 20 else ""
    raise DagError(f"the edges form a cycle: {shown}{more}; remove one of them")
