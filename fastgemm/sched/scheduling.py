"""`schedule`: one DAG through the scheduler, with everything it decided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import layout as L
from .dag import Dag
from .ladders import Profile, profile
from .machine import Machine, machine
from .model import DagError

__all__ = ["PICKED_DTYPE", "STALL_KINDS", "Mutation", "Schedule", "packed_for", "prepare", "resolve", "schedule"]

# one pick of a schedule: `reason` is a `Reason`, `stall` indexes STALL_KINDS; `available`, `pending` are queue lengths before
# the pick, `wait` the stall in cycles the node was chosen with, `vgpr`/`sgpr` the registers live after it
PICKED_DTYPE = np.dtype(
    [
        (name, "i4")
        for name in ("node", "cycle", "ready", "reason", "available", "pending", "stall", "wait", "vgpr", "sgpr")
    ]
)
STALL_KINDS = ("none", "ready", "matrix", "hazard", "fifo", "fence", "raw", "war", "carried")

Mutation = str | tuple[str, dict[str, Any]] | Callable[[Dag], Any]


@dataclass(frozen=True, eq=False)
class Schedule:
    """A scheduled DAG (`dag` is the mutated one): `picks` has one `PICKED_DTYPE` row per instruction, in issue order."""

    dag: Dag
    profile: str
    machine: str
    picks: NDArray[Any]
    reports: tuple[Any, ...] = ()  # what each mutation reported
    trace: str | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"Schedule({self.dag.name or 'dag'!r}, {self.picks.size} picks, {self.profile}, {self.length} cycles)"

    @property
    def order(self) -> NDArray[np.int32]:
        """Nodes in issue order."""
        order: NDArray[np.int32] = self.picks["node"]
        return order

    @property
    def length(self) -> int:
        """Cycle after the last pick's ready cycle."""
        return int(self.picks["ready"].max()) + 1 if self.picks.size else 0

    @property
    def peak_vgpr(self) -> int:
        """Most vector registers live after any pick."""
        return int(self.picks["vgpr"].max()) if self.picks.size else 0

    @property
    def peak_sgpr(self) -> int:
        """Most scalar registers live after any pick."""
        return int(self.picks["sgpr"].max()) if self.picks.size else 0


def schedule(
    dag: Dag,
    *,
    profile: str | Profile = "llvm24-late",
    mutations: Iterable[Mutation] = (),
    machine: str | Machine | None = None,
    trace: bool = False,
) -> Schedule:
    """Schedule a DAG as the compiler would.

    `profile` is a name of `profiles()` or a `Profile` of your own.  `mutations` change the DAG first, in order: a name
    `mutate` knows, a (name, options) pair, or a callable Dag → Dag or (Dag, report).  Node facts (flavor, latency, …) are the
    DAG's; `machine` takes them, and queue sizes and windows, from another machine.  `trace=True` adds the debug text compiler
    people know: queues, every comparison with its reason, the winner.
    """
    ladder, model = resolve(profile, machine)
    dag, reports = prepare(dag, mutations, machine)
    packed = packed_for(dag, model)
    picks, log = run(packed, ladder.model(model), dag.n, trace=trace)
    text = None
    if trace:
        from .tracing import trace_text

        text = trace_text(dag, picks, log)
    return Schedule(dag, ladder.name, model.name, picks, reports, text)


def resolve(name: str | Profile, chosen: str | Machine | None) -> tuple[Profile, Machine]:
    """The profile and the machine whose queues and windows it runs on."""
    ladder = profile(name)
    return ladder, machine(ladder.machine if chosen is None else chosen)


def prepare(dag: Dag, mutations: Iterable[Mutation], chosen: str | Machine | None) -> tuple[Dag, tuple[Any, ...]]:
    """The DAG on the chosen machine after its mutations, and their reports."""
    if not isinstance(dag, Dag):
        raise TypeError(f"expected a Dag, not {type(dag).__name__}; a corpus region has its DAG in .dag")
    if chosen is not None and machine(chosen).name != dag.machine:
        dag = dag.on(chosen)
    reports: list[Any] = []
    for mutation in _as_list(mutations):
        dag, report = _mutated(dag, mutation, chosen)
        reports.append(report)
    return dag, tuple(reports)


def _as_list(mutations: Iterable[Mutation]) -> Sequence[Mutation]:
    return [mutations] if isinstance(mutations, str) else list(mutations)


def _mutated(dag: Dag, mutation: Mutation, chosen: str | Machine | None) -> tuple[Dag, Any]:
    if callable(mutation):
        result = mutation(dag)
        return result if isinstance(result, tuple) else (result, None)
    from .mutation import mutate

    name, options = (mutation, {}) if isinstance(mutation, str) else mutation
    if chosen is not None:
        options = {"machine": chosen, **options}
    return mutate(dag, name, **options)


def packed_for(dag: Dag, model: Machine, *, keep: bool = True) -> NDArray[np.int64]:
    """The packed DAG with its windows numbered as the machine numbers them; `keep` leaves the packed form with the DAG."""
    if keep:
        packed = dag.packed
    else:
        from .packing import pack

        packed = vars(dag).get("packed")  # type: ignore[assignment]
        packed = pack(dag) if packed is None else packed
    if dag.windows == model.windows:
        return packed
    number = _window_numbers(dag.windows, model.windows)[dag.window]
    if (number == _NO_WINDOW).any():
        pattern = dag.windows[dag.window[number == _NO_WINDOW][0]]
        raise DagError(f"window {pattern!r} of the DAG is none of machine {model.name!r}: {', '.join(model.windows)}")
    packed = packed.copy() if "packed" in vars(dag) else packed
    packed[L.HEADER : L.HEADER + dag.n * L.NODE].reshape(-1, L.NODE)[:, L.WINDOW] = number
    return packed


_NO_WINDOW = -2


@lru_cache(maxsize=256)
def _window_numbers(own: tuple[str, ...], wanted: tuple[str, ...]) -> NDArray[np.int32]:
    """The number in ``wanted`` of each window of ``own``, `_NO_WINDOW` if there is none; the last entry serves window -1."""
    numbers = [wanted.index(pattern) if pattern in wanted else _NO_WINDOW for pattern in own]
    return np.array([*numbers, -1], dtype=np.int32)


def run(
    packed: NDArray[np.int64], model: NDArray[np.int64], nodes: int, *, trace: bool = False
) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Picks of one packed DAG and, if asked for, the raw log of its comparisons."""
    from .engine import run_batch, work_size

    addresses = np.array([packed.ctypes.data], dtype=np.int64)
    starts, chunk = np.array([0, nodes], dtype=np.int64), np.array([0, 1], dtype=np.int64)
    work = np.empty(work_size([packed], int(model[L.M_AVAILABLE_LIMIT])), dtype=np.int64)
    out = np.zeros((nodes, L.OUT), dtype=np.int32)
    log = np.empty(1, dtype=np.int32)
    for logging in (1, 2) if trace else (0,):
        done = np.array([0, 0, logging, 0], dtype=np.int64)
        run_batch(addresses, starts, chunk, model, work, out, done, log)
        if logging == 1:
            log = np.empty(int(done[3]), dtype=np.int32)
    return out.view(PICKED_DTYPE).reshape(nodes), log
