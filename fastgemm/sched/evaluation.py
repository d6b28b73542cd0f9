"""`evaluate`: what an in-order wave makes of a schedule: cycles, stalls, waits, live ranges, registers, scratch traffic.

The model and its assumptions are described in ``docs/scheduling-model.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .dag import Dag
from .inorder import K_FREE, K_TENSOR, K_WAIT_TENSOR, N_KIND, QUEUES, StaticMachine, static_machine
from .liverange import Pressure, carried_edges, pressure
from .model import DagError, EdgeKind, Flag, Flavor
from .spill import EV_DWORDS, EV_REGISTER, EV_RELOAD, plan_spills
from .timeline import CAUSES, run

__all__ = ["Evaluation", "evaluate", "live_ranges"]

WAIT_DTYPE = np.dtype([("position", "i4"), ("node", "i4"), ("queue", "U6"), ("value", "i4"), ("stall", "i4")])
RANGE_DTYPE = np.dtype(
    [
        ("register", "i8"),  # the compiler's number
        ("vgprs", "i4"),
        ("loads", "i4"),
        ("issued_after", "i4"),  # last matrix instruction before the fragment's first load, -1: none
        ("first_consumer", "i4"),  # in matrix instructions, in issue order
        ("last_consumer", "i4"),
        ("position", "i4"),  # of the first load in the order
    ]
)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One order on one machine. Cycles are per iteration: ``cold`` the first, ``warm`` the last (the same if it is no loop)."""

    name: str
    machine: str
    order: NDArray[np.int32]
    cold: int
    warm: int
    finish: int  # cycle, from the start, at which every result is there
    at: NDArray[np.int64]  # issue cycle of each position in the last iteration, from that iteration's start
    stalls: dict[str, int]  # cycles by cause in the last iteration; they add up to `warm`
    cold_stalls: dict[str, int]
    waits: NDArray[Any]  # WAIT_DTYPE: the counter waits a compiler would insert, last iteration
    pressure: Pressure
    ranges: NDArray[Any]  # RANGE_DTYPE: fragments loaded from LDS
    held: float  # matrix instructions issued between a load and its first use, mean over loads
    register_limit: int
    spilled_registers: int  # 32-bit registers that go to scratch in the last iteration
    spill_stores: int  # 32-bit words a lane writes to and reads from scratch in the last iteration
    spill_reloads: int
    matrix_cycles: int  # cycles the matrix unit is busy in an iteration
    coexec: dict[str, tuple[int, int]]  # stage letter -> (stages filled, stages offered) in the last iteration

    @property
    def cycles(self) -> int:
        """Cycles of an iteration in steady state."""
        return self.warm

    @property
    def peak(self) -> int:
        """Largest number of 32-bit vector registers with a live lane."""
        return self.pressure.peak

    @property
    def matrix_share(self) -> float:
        """Share of the cycles the matrix unit is busy."""
        return self.matrix_cycles / self.warm if self.warm else 0.0

    @cached_property
    def wait_positions(self) -> NDArray[np.int32]:
        """Positions in the order in front of which a wait on LDS stands."""
        return self.waits["position"][self.waits["queue"] == "lds"]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON (curves left out)."""
        return {
            "name": self.name,
            "machine": self.machine,
            "cycles": self.cycles,
            "cold": self.cold,
            "finish": self.finish,
            "stalls": {cause: cycles for cause, cycles in self.stalls.items() if cycles},
            "matrix_share": round(self.matrix_share, 4),
            "peak_vgprs": self.peak,
            "peak_vgprs_whole": self.pressure.peak_whole,
            "register_limit": self.register_limit,
            "spilled_registers": self.spilled_registers,
            "spill_stores": self.spill_stores,
            "spill_reloads": self.spill_reloads,
            "held": None if np.isnan(self.held) else round(self.held, 2),
            "waits": [
                {
                    "position": int(w["position"]),
                    "queue": str(w["queue"]),
                    "value": int(w["value"]),
                    "stall": int(w["stall"]),
                }
                for w in self.waits
            ],
            "coexec": {letter: {"filled": f, "offered": o} for letter, (f, o) in self.coexec.items()},
        }


def evaluate(
    dag: Dag,
    order: ArrayLike | Any,
    machine: StaticMachine | str | Path | None = None,
    *,
    iterations: int = 2,
    spills: bool = True,
    tensor_in_flight: int | None = None,
) -> Evaluation:
    """Run ``order`` (node numbers, or a schedule with ``.order``) on an in-order machine.

    A single-block loop runs ``iterations`` times with queues, waits and values carried over the back edge, anything else once.
    ``spills=False`` leaves the register file unbounded; ``tensor_in_flight`` is how many tensor loads the program's own tensor
    waits leave in flight (otherwise: those the DAG's edges do not wait for).  Raises `DagError` if the order is not a
    permutation of the nodes or breaks an edge.
    """
    model = static_machine(machine)
    sequence = check_order(dag, order)
    turns = max(1, iterations) if dag.whole_single_block_loop else 1
    limit = model.register_limit if spills else 1 << 30
    curves = pressure(dag, sequence)
    if curves.peak_whole > limit:
        events, starts = plan_spills(dag, sequence, limit, turns)
    else:
        events, starts = np.empty((0, 5), np.int64), np.zeros(turns + 1, np.int64)
    length, busy, admits = model.window_table(dag.windows)
    nodes = model.node_table(dag, busy)
    at = np.zeros((turns, dag.n), np.int64)
    stalls = np.zeros((turns, len(CAUSES)), np.int64)
    waits = np.zeros((turns * (4 * dag.n + 4) + events.shape[0], 5), np.int64)
    marks, count, finish = run(
        sequence,
        nodes,
        (length, admits),
        _data_predecessors(dag),
        _by_target(*carried_edges(dag), dag.n),
        _allowed_in_flight(dag, nodes, tensor_in_flight),
        model.parameters(),
        (events, starts),
        at,
        stalls,
        waits,
    )
    last = events[starts[turns - 1] :]
    kept = waits[:count][waits[:count, 0] == turns - 1]
    ranges, held = live_ranges(dag, sequence)
    spilled = np.unique(last[last[:, EV_RELOAD] == 1, EV_REGISTER])
    cycles = np.diff(marks)
    issue = at[-1] - marks[turns - 1]
    return Evaluation(
        name=dag.name,
        machine=model.name,
        order=sequence,
        cold=int(cycles[0]),
        warm=int(cycles[-1]),
        finish=int(finish),
        at=issue,
        stalls=dict(zip(CAUSES, stalls[-1].tolist(), strict=True)),
        cold_stalls=dict(zip(CAUSES, stalls[0].tolist(), strict=True)),
        waits=_wait_table(kept, sequence),
        pressure=curves,
        ranges=ranges,
        held=held,
        register_limit=limit,
        spilled_registers=int(dag.register_size[spilled].sum()),
        spill_stores=int(last[last[:, EV_RELOAD] == 0, EV_DWORDS].sum()),
        spill_reloads=int(last[last[:, EV_RELOAD] == 1, EV_DWORDS].sum()),
        matrix_cycles=int(nodes[:, 3].sum()),
        coexec=_coexecution(dag, model, nodes, sequence, issue, int(cycles[-1])),
    )


def check_order(dag: Dag, order: ArrayLike | Any) -> NDArray[np.int32]:
    """The order as an array; raises `DagError` if it is no permutation of the nodes or an edge points backwards in it."""
    sequence = np.ascontiguousarray(getattr(order, "order", order), dtype=np.int32)
    if sequence.shape != (dag.n,):
        raise DagError(f"the order has {sequence.size} entries, the DAG {dag.n} nodes; give every node once")
    place = np.full(dag.n, -1, np.int32)
    inside = (sequence >= 0) & (sequence < dag.n)
    if not inside.all():
        raise DagError(f"the order names node {sequence[~inside][0]}; the DAG has nodes 0 to {dag.n - 1}")
    place[sequence] = np.arange(dag.n, dtype=np.int32)
    if (place < 0).any():
        raise DagError(f"the order misses node {int(np.flatnonzero(place < 0)[0])} and names another one twice")
    gates = dag.edge_kind < int(EdgeKind.WEAK)
    wrong = np.flatnonzero(gates & (place[dag.edge_source] >= place[dag.edge_target]))
    if wrong.size:
        e = int(wrong[0])
        source, target = int(dag.edge_source[e]), int(dag.edge_target[e])
        what = EdgeKind(dag.edge_kind[e]).name.lower()
        raise DagError(
            f"the order breaks {wrong.size} edges; the first ({what}) is {source} ({dag.opcode_name(source)}) -> "
            f"{target} ({dag.opcode_name(target)}), at positions {place[source]} and {place[target]}"
        )
    return sequence


def live_ranges(dag: Dag, order: NDArray[np.integer]) -> tuple[NDArray[Any], float]:
    """Fragments loaded from LDS and consumed by matrix instructions of the region, in issue order, and the held average.

    Held: matrix instructions that issue after a load and before the first one that reads it.
    """
    wmma = dag.flavor[order] == int(Flavor.WMMA)
    before = np.empty(dag.n, np.int64)  # matrix instructions issued before each node
    before[order] = np.cumsum(wmma) - wmma
    place = np.empty(dag.n, np.int64)
    place[order] = np.arange(dag.n)
    is_load = (dag.flavor == int(Flavor.DS)) & ((dag.flags & int(Flag.LOAD)) != 0)
    source, target = dag.edge_source, dag.edge_target
    use = (dag.edge_kind == int(EdgeKind.DATA)) & is_load[source] & (dag.flavor[target] == int(Flavor.WMMA))
    first = np.full(dag.n, dag.n, np.int64)
    last = np.full(dag.n, -1, np.int64)
    np.minimum.at(first, source[use], before[target[use]])
    np.maximum.at(last, source[use], before[target[use]])
    loads = np.flatnonzero(last >= 0)
    register = loaded_registers(dag, loads)
    keep = register >= 0
    loads, register = loads[keep], register[keep]
    if not loads.size:
        return np.empty(0, RANGE_DTYPE), float("nan")
    names, group = np.unique(register, return_inverse=True)
    table = np.zeros(names.size, RANGE_DTYPE)
    table["register"] = dag.register_id[names]
    table["vgprs"] = dag.register_size[names]
    table["loads"] = np.bincount(group)
    for column, values, reduce, start in (
        ("issued_after", before[loads] - 1, np.minimum, dag.n),
        ("first_consumer", first[loads], np.minimum, dag.n),
        ("last_consumer", last[loads], np.maximum, -1),
        ("position", place[loads], np.minimum, dag.n),
    ):
        reduced = np.full(names.size, start, np.int64)
        reduce.at(reduced, group, values)
        table[column] = reduced
    held = float((first[loads] - before[loads]).mean())
    return table[np.argsort(table["position"], kind="stable")], held


def loaded_registers(dag: Dag, loads: NDArray[np.integer]) -> NDArray[np.int64]:
    """The register each load defines (its first definition), -1 if it defines none."""
    defines = np.flatnonzero((dag.operand_kind & 1) == 1)  # DEF and DEAD_DEF are odd
    first = np.full(dag.n, -1, np.int64)
    first[dag.operand_node[defines][::-1]] = dag.operand_register[defines][::-1]
    return first[loads]


def _by_target(source: NDArray[Any], target: NDArray[Any], n: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    start = np.zeros(n + 1, np.int32)
    np.cumsum(np.bincount(target, minlength=n), out=start[1:])
    return start, source[np.argsort(target, kind="stable")].astype(np.int32)


def _data_predecessors(dag: Dag) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    data = dag.edge_kind == int(EdgeKind.DATA)
    return _by_target(dag.edge_source[data], dag.edge_target[data], dag.n)


def _allowed_in_flight(dag: Dag, nodes: NDArray[np.int64], given: int | None) -> NDArray[np.int64]:
    """Accesses each tensor wait leaves in flight: those whose edges into it have a latency of at most one cycle."""
    allowed = np.zeros(dag.n, np.int64)
    kind = nodes[:, N_KIND]
    waits = np.flatnonzero(kind == K_WAIT_TENSOR)
    if given is not None:
        allowed[waits] = given
        return allowed
    from_tensor = (kind[dag.edge_source] == K_TENSOR) & (kind[dag.edge_target] == K_WAIT_TENSOR)
    longest: dict[tuple[int, int], int] = {}
    for e in np.flatnonzero(from_tensor).tolist():
        pair = (int(dag.edge_source[e]), int(dag.edge_target[e]))
        longest[pair] = max(longest.get(pair, 0), int(dag.edge_latency[e]))
    for (_, wait), latency in longest.items():
        allowed[wait] += latency <= 1
    return allowed


def _wait_table(rows: NDArray[np.int64], order: NDArray[np.int32]) -> NDArray[Any]:
    table = np.empty(len(rows), WAIT_DTYPE)
    table["position"] = rows[:, 1]
    table["node"] = order[rows[:, 1]]
    table["queue"] = np.array(QUEUES)[rows[:, 2]]
    table["value"] = rows[:, 3]
    table["stall"] = rows[:, 4]
    return table


def _coexecution(
    dag: Dag,
    model: StaticMachine,
    nodes: NDArray[np.int64],
    order: NDArray[np.int32],
    issue: NDArray[np.int64],
    end: int,
) -> dict[str, tuple[int, int]]:
    """Stages of matrix windows by letter: how many an instruction issued in, and how many there were before the next window."""
    opens = (dag.flavor[order] == int(Flavor.WMMA)) & (dag.window[order] >= 0)
    if not opens.any():
        return {}
    used = [model.windows.get(pattern, (0, pattern))[1] for pattern in dag.windows]
    width = max(len(pattern) for pattern in used)
    letters = np.array([list(pattern.ljust(width)) for pattern in used])
    start = issue[opens]
    window = dag.window[order][opens]
    span = np.minimum(np.diff(np.append(start, end)), np.array([len(pattern) for pattern in used])[window])
    offered = letters[window][np.arange(width) < span[:, None]]
    takes_slot = (nodes[order, N_KIND] != K_FREE) & ~opens
    owner = np.searchsorted(start, issue, side="right") - 1
    stage = issue - start[np.maximum(owner, 0)]
    inside = takes_slot & (owner >= 0) & (stage < span[np.maximum(owner, 0)])
    filled = letters[window[owner[inside]], stage[inside]]
    return {
        str(letter): (int((filled == letter).sum()), int((offered == letter).sum()))
        for letter in np.unique(offered)
        if letter != "0"
    }
