"""Longest latency paths of a DAG and the search for a cycle, linear in its edges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .model import DagError
from .native import entry

if TYPE_CHECKING:
    from .dag import Dag

__all__ = ["depths_and_heights"]


@entry
def _topological(start: Any, target: Any, order: Any, open_count: Any) -> int:
    """Fill `order` with the nodes so that every edge points forward; returns how many could be placed."""
    n = order.size
    for e in range(target.size):
        open_count[target[e]] += 1
    filled = 0
    for node in range(n):
        if open_count[node] == 0:
            order[filled] = node
            filled += 1
    done = 0
    while done < filled:
        node = order[done]
        done += 1
        for e in range(start[node], start[node + 1]):
            open_count[target[e]] -= 1
            if open_count[target[e]] == 0:
                order[filled] = target[e]
                filled += 1
    return filled


@entry
def _longest(start: Any, target: Any, latency: Any, order: Any, depth: Any, height: Any) -> None:
    for i in range(order.size):
        node = order[i]
        for e in range(start[node], start[node + 1]):
            depth[target[e]] = max(depth[target[e]], depth[node] + latency[e])
    for i in range(order.size - 1, -1, -1):
        node = order[i]
        for e in range(start[node], start[node + 1]):
            height[node] = max(height[node], height[target[e]] + latency[e])


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
    order = np.empty(dag.n, dtype=np.int32)
    open_count = np.zeros(dag.n, dtype=np.int32)
    placed = _topological(dag.edge_start, dag.edge_target, order, open_count)
    if placed < dag.n:
        cycle = find_cycle(dag.edge_start, dag.edge_target, np.flatnonzero(open_count))
        shown = " -> ".join(f"{node} ({dag.opcode_name(node)})" for node in [*cycle[:20], cycle[0]])
        more = f" ({len(cycle)} nodes in all)" if len(cycle) > 20 else ""
        raise DagError(f"the edges form a cycle: {shown}{more}; remove one of them")
    depth = np.zeros(dag.n, dtype=np.int32)
    height = np.zeros(dag.n, dtype=np.int32)
    np.maximum.at(height, dag.exit_source, dag.exit_latency)
    _longest(dag.edge_start, dag.edge_target, dag.edge_latency, order, depth, height)
    return depth, height
