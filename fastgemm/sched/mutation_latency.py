"""Mutations that set when things may start: latencies around barriers, and an opening delay for LDS loads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .dag import Dag
from .machine import Machine
from .model import DagError, EdgeKind, Flag, Flavor
from .mutation import Candidates, apply_edges, register
from .mutation_report import MutationReport
from .mutation_wmma import NEVER, Windows

__all__ = ["barrier_latency", "opening_delay"]

_ORDER = (int(EdgeKind.MEMORY), int(EdgeKind.BARRIER))


@register("barrier_latency")
def barrier_latency(
    dag: Dag,
    *,
    machine: Machine,
    mode: str = "set",
    signal_wait: int = 35,
    in_flight: int | Mapping[int, int] | None = None,
    fences: NDArray[np.integer] | None = None,
) -> tuple[Dag, MutationReport]:
    """Latencies around synchronisation, as LLVM's BarrierLatency mutation has them.

    (a) Order edges from loads into a fence get the load's latency (LDS: the machine's DS latency); ``mode="add"`` adds it
    instead, as upstream does, and is not idempotent.  ``fences``: nodes whose scope counts (default: every ATOMIC_FENCE).
    (b) The edge from a barrier signal to its wait lasts at least ``signal_wait`` cycles.  (c) A wait that leaves N tensor or
    asynchronous loads in flight (``in_flight``: N, or N per wait node; the DAG does not hold it) does not wait for the newest
    N before it: their edges get a latency of 1.
    """
    if mode not in ("set", "add"):
        raise DagError(f"mode {mode!r} is neither 'set' nor 'add'")
    names = np.array([*dag.opcodes])
    opcode = names[dag.opcode] if dag.n else np.zeros(0, "U1")
    latency = dag.edge_latency.copy()
    source, target = dag.edge_source, dag.edge_target
    order = np.isin(dag.edge_kind, _ORDER)
    is_fence = np.zeros(dag.n, bool)
    is_fence[np.flatnonzero(opcode == "ATOMIC_FENCE") if fences is None else np.asarray(fences)] = True
    is_load = (dag.flags & int(Flag.LOAD)) != 0
    length = np.where(dag.flavor == int(Flavor.DS), machine.ds_latency, dag.latency)
    into = order & is_fence[target] & is_load[source]
    latency[into] = length[source[into]] + (latency[into] if mode == "add" else 0)
    signal = np.char.startswith(opcode, "S_BARRIER_SIGNAL")
    pair = order & signal[source] & (opcode[target] == "S_BARRIER_WAIT")
    latency[pair] = np.maximum(latency[pair], signal_wait)
    if in_flight is not None:
        for wait in np.flatnonzero((opcode == "S_WAIT_TENSORCNT") | (opcode == "S_WAIT_ASYNCCNT")).tolist():
            allowed = in_flight.get(wait, 0) if isinstance(in_flight, Mapping) else in_flight
            kind = "TENSOR_" if opcode[wait] == "S_WAIT_TENSORCNT" else "GLOBAL_LOAD_ASYNC"
            before = np.flatnonzero(np.char.startswith(opcode[:wait], kind))
            newest = before[max(0, before.size - allowed) :]
            latency[order & (target == wait) & np.isin(source, newest)] = 1
    corrected = int((latency != dag.edge_latency).sum())
    report = MutationReport("barrier_latency", mode, corrected=corrected, idempotent=mode == "set" or not into.any())
    return (dag.replace(edge_latency=latency).with_paths() if corrected else dag), report


@register("opening_delay")
def opening_delay(dag: Dag, *, machine: Machine, until: int = 7, cycles: int = 0) -> tuple[Dag, MutationReport]:
    """Hold LDS loads that feed matrix instructions of the region until ``cycles`` after matrix instruction ``until`` issued.

    It stands for a barrier at the region's start that a bare DAG of loads and matrix instructions lacks.  Loads whose first
    consumer is not later than ``until`` stay as they are.
    """
    windows, wanted = Windows(dag, machine.ds_latency, 0), Candidates()
    if 0 <= until < windows.positions and windows.loads:
        first = windows.first
        held = windows.load[(first != NEVER) & (first > until)]
        wanted.add("opening", np.full(held.size, windows.chain[until]), held, cycles)
    changed, verdict = apply_edges(dag, wanted)
    return changed, MutationReport(
        "opening_delay", f"until {until} + {cycles}", ("opening",), wanted, verdict, positions=windows.positions
    )
