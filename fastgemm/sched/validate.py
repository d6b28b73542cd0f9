"""Checks of a DAG that need more than one look at one edge: self edges, duplicates, cycles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .columns import check_columns
from .model import DagError, EdgeKind
from .paths import depths_and_heights

if TYPE_CHECKING:
    from .dag import Dag

__all__ = ["check_dag"]


def check_dag(dag: Dag) -> None:
    """Raise `DagError` naming the nodes of a self edge, a duplicate edge or a cycle, or a value that cannot be."""
    check_columns(vars(dag), vars(dag))
    source, target = dag.edge_source, dag.edge_target
    loops = np.flatnonzero(source == target)
    if loops.size:
        node = int(source[loops[0]])
        raise DagError(f"node {node} ({dag.opcode_name(node)}) has an edge to itself")
    _check_duplicates(dag)
    depths_and_heights(dag)


def _check_duplicates(dag: Dag) -> None:
    """Two edges are duplicates if source, target, kind and register agree."""
    if dag.edges < 2:
        return
    key = dag.edge_source.astype(np.int64) * dag.n + dag.edge_target
    extra = dag.edge_kind.astype(np.int64) * (dag.register_id.size + 1) + dag.edge_register + 1
    order = np.lexsort((extra, key))
    same = (np.diff(key[order]) == 0) & (np.diff(extra[order]) == 0)
    if not same.any():
        return
    first, second = (int(order[int(np.flatnonzero(same)[0]) + i]) for i in (0, 1))
    a, b = int(dag.edge_source[first]), int(dag.edge_target[first])
    kind = EdgeKind(int(dag.edge_kind[first])).name.lower()
    raise DagError(
        f"edges {first} and {second} are the same {kind} edge {a} ({dag.opcode_name(a)}) -> {b} ({dag.opcode_name(b)}); "
        "keep the one with the larger latency"
    )
