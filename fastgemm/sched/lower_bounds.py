"""`bounds`: what no order of a DAG can beat on the in-order machine, and the register peak of just-in-time loading."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..jit import njit
from .dag import Dag
from .inorder import (
    K_BARRIER,
    K_FREE,
    K_SIGNAL,
    K_TENSOR,
    K_TRANS,
    K_VALUN,
    K_WMMA,
    N_KIND,
    N_LATENCY,
    N_OCCUPANCY,
    N_QUEUE,
    N_REPEAT,
    QUEUES,
    StaticMachine,
    static_machine,
)
from .legal_edges import topological_places
from .liverange import pressure, register_count
from .model import EdgeKind, Flavor

__all__ = ["Bounds", "bounds"]


@dataclass(frozen=True)
class Bounds:
    """Lower bounds. Cycles count as :attr:`Evaluation.cold` and ``warm`` do: up to the slot after the last issue.

    ``critical_path`` holds for a region run once from an empty machine (``cold``); the others for every iteration of a loop.
    """

    issue: int  # one instruction a cycle
    matrix: int  # the matrix unit's occupancy
    trans: int  # spacing of transcendental and multi-cycle ops
    queues: dict[str, int]  # lds, vmem, smem, tensor: entries of a queue of that many in flight
    critical_path: int
    registers: int  # 32-bit vector registers no order can do without
    just_in_time: (
        int  # peak if every LDS fragment is loaded as late as its first consumer allows (a schedule, not a bound)
    )

    @property
    def warm(self) -> int:
        """Cycles no iteration of a loop can beat."""
        return max(self.issue, self.matrix, self.trans, *self.queues.values())

    @property
    def cold(self) -> int:
        """Cycles no run from an empty machine can beat."""
        return max(self.warm, self.critical_path)

    @property
    def limiter(self) -> str:
        """Name of the largest cycle bound of an iteration."""
        named = {"issue": self.issue, "matrix": self.matrix, "trans": self.trans, **self.queues}
        return max(named, key=lambda name: named[name])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "issue": self.issue,
            "matrix": self.matrix,
            "trans": self.trans,
            "queues": dict(self.queues),
            "critical_path": self.critical_path,
            "registers": self.registers,
            "just_in_time": self.just_in_time,
            "warm": self.warm,
            "cold": self.cold,
            "limiter": self.limiter,
        }


def bounds(dag: Dag, machine: StaticMachine | str | Path | None = None) -> Bounds:
    """Lower bounds for ``dag`` on the in-order machine `evaluate` uses."""
    model = static_machine(machine)
    _, busy, _ = model.window_table(dag.windows)
    nodes = model.node_table(dag, busy)
    kind = nodes[:, N_KIND]
    wmma = nodes[kind == K_WMMA, N_OCCUPANCY]
    queues = {}
    for q, name in enumerate(QUEUES):
        latency = nodes[nodes[:, N_QUEUE] == q, N_LATENCY]
        full_turns = max(0, latency.size - 1) // model.in_flight[name]
        queues[name] = int(max(full_turns * latency.min(initial=1 << 30), latency.size - 1) + 1) if latency.size else 0
    # a transcendental op keeps the next one trans_spacing cycles away, a multi-cycle op any vector op as long as it repeats
    trans = (int((kind == K_TRANS).sum()) - 1) * model.trans_spacing + 1
    slow = nodes[kind == K_VALUN, N_REPEAT]
    return Bounds(
        issue=int((kind != K_FREE).sum()),
        matrix=int(wmma.sum() - wmma.max() + 1) if wmma.size else 0,
        trans=max(0, trans, int(slow.sum() - slow.max(initial=0) + (slow.size > 0))),
        queues=queues,
        critical_path=_critical_path(dag, nodes, model),
        registers=register_floor(dag),
        just_in_time=_just_in_time(dag),
    )


def register_floor(dag: Dag) -> int:
    """32-bit vector registers every order needs, because they are live at entry or at exit."""
    floor = 0
    for register, lanes in ((dag.live_in_register, dag.live_in_lanes), (dag.live_out_register, dag.live_out_lanes)):
        words = [register_count(mask) for mask in lanes[dag.register_vector[register]]]
        floor = max(floor, sum(words))
    return floor


@njit
def _longest(order, edge_start, edge_target, weight, least):
    """Earliest issue of each node."""
    for node in order:
        for e in range(edge_start[node], edge_start[node + 1]):
            least[edge_target[e]] = max(least[edge_target[e]], least[node] + weight[e])


def _critical_path(dag: Dag, nodes: NDArray[np.int64], model: StaticMachine) -> int:
    """Longest chain of issue slots and result latencies, up to the slot after the last issue."""
    if not dag.n:
        return 0
    kind = nodes[:, N_KIND]
    slot = (kind != K_FREE).astype(np.int64)
    source = dag.edge_source
    weight = slot[source].copy()
    data = (dag.edge_kind == int(EdgeKind.DATA)) & (kind[source] != K_TENSOR)
    weight[data] = np.maximum(weight[data], nodes[source[data], N_LATENCY])
    pair = (kind[source] == K_SIGNAL) & (kind[dag.edge_target] == K_BARRIER)
    weight[pair] = np.maximum(weight[pair], model.latency["barrier"])
    weight[dag.edge_kind >= int(EdgeKind.WEAK)] = 0
    least = np.zeros(dag.n, np.int64)
    gates = dag.edge_kind < int(EdgeKind.WEAK)
    _longest(_topological(dag), dag.edge_start, dag.edge_target, np.where(gates, weight, -(1 << 30)), least)
    return int((least + slot).max())


def _just_in_time(dag: Dag) -> int:
    """Register peak of the order that puts every LDS load right before its first consumer in program order."""
    order = just_in_time_order(dag)
    return pressure(dag, order).peak if dag.n else 0


def just_in_time_order(dag: Dag) -> NDArray[np.int32]:
    """Program order with every LDS load moved down to just before the first instruction any edge makes wait for it."""
    source, target = dag.edge_source, dag.edge_target
    wanted = np.arange(dag.n, dtype=np.float64)
    loads = dag.flavor == int(Flavor.DS)
    first = np.full(dag.n, float(dag.n))
    np.minimum.at(first, source, target.astype(np.float64))
    moved = loads & (first > wanted)
    wanted[moved] = first[moved] - 0.5
    if (source >= target).any():  # not in program order: leave it as it is
        return _topological(dag)
    return np.argsort(wanted, kind="stable").astype(np.int32)


def _topological(dag: Dag) -> NDArray[np.int32]:
    """An order that respects every edge: program order if it does."""
    return np.argsort(topological_places(dag.edge_start, dag.edge_target)).astype(np.int32)
