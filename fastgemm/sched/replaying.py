"""`replay`: follow a compiler's own picks and compare every decision with ours (teacher-forced)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..vectors import pointer
from . import layout as L
from .choosing import choose, node_at
from .corpus import Region
from .engine import commit, open_state, prepare_pick, remove, set_up, work_size, write_pick
from .hazards import settle
from .ladders import Profile
from .model import Reason
from .native import at_address, entry, inner, shifted
from .scheduling import packed_for, resolve

__all__ = ["REPLAY_DTYPE", "Replay", "fidelity", "replay"]

# one compared pick: what we would have taken and why; cycle, ready cycle of the compiler's pick in our clock; same queues?
REPLAY_DTYPE = np.dtype([(name, "i4") for name in ("node", "cycle", "ready", "reason", "queues")])


@inner
def _same_queues(s, start, nodes, at):  # type: ignore[no-untyped-def]
    """Are both queues as the compiler logged them, in order?"""
    c = s.c
    for queue in range(2):
        first = start[at + queue]
        if start[at + queue + 1] - first != c[L.C_AVAILABLE + queue]:
            return 0
        for i in range(c[L.C_AVAILABLE + queue]):
            if s.work[c[L.W_AVAILABLE + queue] + i] & L.NODE_MASK != nodes[first + i]:
                return 0
    return 1


@entry(nogil=True)
def _follow(addresses, forced, start, nodes, model, work, out, log):  # type: ignore[no-untyped-def]
    """Schedule one packed DAG in the forced order; returns the picks made (fewer if a forced node was not ready)."""
    c, header = pointer(work), at_address(addresses[0])
    c[L.C_LOGGING] = 0
    s = open_state(header, pointer(model), c, pointer(log))
    set_up(s, header)
    for pick in range(forced.size):
        row = shifted(pointer(out), np.int64(pick * L.OUT))
        settle(s)
        prepare_pick(s)
        same = _same_queues(s, pointer(start), pointer(nodes), np.int64(2 * pick))
        ours = node_at(s, choose(s))
        n = forced[pick]
        place = 0
        while place < c[L.C_CANDIDATES] and node_at(s, place) != n:
            place += 1
        if place == c[L.C_CANDIDATES]:
            return pick
        remove(s, place)
        row[L.O_CYCLE] = c[L.C_CYCLE]
        commit(s, n)
        write_pick(s, n, row)
        row[L.O_NODE], row[L.O_STALL] = ours, same
    return forced.size


@dataclass(frozen=True, eq=False)
class Replay:
    """How well a profile reproduces a region: counts of picks, and of those with the compiler's node, cycle (and ready cycle),
    printed reason and queue contents in order; `detail` has the picks one by one (`REPLAY_DTYPE`)."""

    region: Region
    profile: str
    picks: int
    same_node: int
    same_cycle: int
    same_reason: int
    same_queues: int
    first_difference: dict[str, Any] | None
    detail: NDArray[Any] = field(repr=False)

    @property
    def perfect(self) -> bool:
        """Does every pick agree in everything?"""
        return self.picks == self.same_node == self.same_cycle == self.same_reason == self.same_queues


def replay(region: Region, *, profile: str | Profile | None = None) -> Replay:
    """Compare every pick of a region with what a profile would do with the compiler's own history before it.

    `profile` defaults to the one named like the region's compiler.  Where the compiler did not log its queues they count as
    the same.  `first_difference` is None, or what, at which pick, ours and the compiler's.
    """
    ladder, model = resolve(region.compiler if profile is None else profile, None)
    packed = packed_for(region.dag, model)
    addresses = np.array([packed.ctypes.data], dtype=np.int64)
    work = np.empty(work_size([packed], model.available_limit), dtype=np.int64)
    forced = region.picks["node"].astype(np.int64)
    out = np.zeros((forced.size, L.OUT), dtype=np.int32)
    start, nodes = region.queues.start.astype(np.int64), region.queues.nodes.astype(np.int64)
    log = np.empty(1, dtype=np.int32)
    made = _follow(addresses, forced, start, np.append(nodes, 0), ladder.model(model), work, out, log)
    out[made:, L.O_NODE] = -1
    detail = np.empty(forced.size, dtype=REPLAY_DTYPE)
    for name, column in zip(
        REPLAY_DTYPE.names or (), (L.O_NODE, L.O_CYCLE, L.O_READY, L.O_REASON, L.O_STALL), strict=True
    ):
        detail[name] = out[:, column]
    same = {
        "node": detail["node"] == region.picks["node"],
        "cycle": (detail["cycle"] == region.picks["cycle"]) & (detail["ready"] == region.picks["ready"]),
        "reason": detail["reason"] == region.picks["reason"],
        "queues": (detail["queues"] != 0) | ~region.queues.logged,
    }
    counts = {f"same_{name}": int(np.count_nonzero(column)) for name, column in same.items()}
    difference = _first_difference(region, detail, same)
    return Replay(region, ladder.name, forced.size, **counts, first_difference=difference, detail=detail)


def _first_difference(
    region: Region, detail: NDArray[Any], same: dict[str, NDArray[np.bool_]]
) -> dict[str, Any] | None:
    wrong = np.flatnonzero(~np.logical_and.reduce(list(same.values())))
    if wrong.size == 0:
        return None
    pick = int(wrong[0])
    what = [name for name, column in same.items() if not column[pick]]
    ours, theirs = detail[pick], region.picks[pick]
    return {
        "pick": pick,
        "what": what,
        "ours": {name: int(ours[name]) for name in ("node", "cycle", "ready")}
        | {"reason": Reason(int(ours["reason"])).label},
        "compiler": {name: int(theirs[name]) for name in ("node", "cycle", "ready")}
        | {"reason": Reason(int(theirs["reason"])).label},
    }


def fidelity(regions: Iterable[Region], *, profile: str | Profile | None = None) -> list[dict[str, Any]]:
    """One row per compiler: regions and picks, how many agree teacher-forced, regions equal free-running, residue by cause.

    A region whose pick order differs is listed under the reason the compiler printed for the first pick we miss.
    """
    from .batching import schedule_batch

    groups: dict[str, list[Region]] = {}
    for region in regions:
        groups.setdefault(region.compiler, []).append(region)
    rows = []
    for compiler, members in groups.items():
        chosen = compiler if profile is None else profile
        replays = [replay(region, profile=chosen) for region in members]
        free = schedule_batch([region.dag for region in members], profile=chosen)
        equal = [bool(np.array_equal(free.order(i), region.order)) for i, region in enumerate(members)]
        residue: dict[str, int] = {}
        for result in replays:
            if result.first_difference is not None:
                cause = (
                    f"{'+'.join(result.first_difference['what'])} at {result.first_difference['compiler']['reason']}"
                )
                residue[cause] = residue.get(cause, 0) + 1
        row: dict[str, Any] = {"compiler": compiler, "profile": replays[0].profile, "regions": len(members)}
        for name in ("picks", "same_node", "same_cycle", "same_reason", "same_queues"):
            row[name] = sum(getattr(result, name) for result in replays)
        rows.append(
            row | {"perfect_regions": sum(r.perfect for r in replays), "free_regions": sum(equal), "residue": residue}
        )
    return rows
