"""Which of a list of new edges a graph admits: the legality test every mutation shares.

An edge that would close a cycle is refused, the others are taken, in the order given, as a compiler does that asks
"can this edge be added?" before each one.  Asking one by one is quadratic; here all candidates are laid over the graph at
once and the result is sorted topologically.  If that succeeds every candidate is legal, whatever the order.  If not, only
candidates between nodes that lie on or between cycles are asked one by one, with searches that stay inside that core and
between the two ends in a topological order of it.  Nothing is written to the graph while this goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..vectors import pointer
from .native import addresses, at_int8, at_int32, entry, inner, shifted
from .paths import longest_paths, sort_topologically

__all__ = ["CYCLE", "PRESENT", "TAKEN", "admit", "merge_edges", "refuse_cycles", "topological_places"]

TAKEN, CYCLE, PRESENT = 0, 1, 2  # verdict on one candidate

# address table: the graph, the candidates, the merged graph, the region's exits and the paths of the merged graph
(_START, _SUCC, _KIND, _LATENCY, _REGISTER, _SOURCES, _TARGETS, _LATENCIES, _VERDICT) = range(9)
(_OUT_START, _OUT_SUCC, _OUT_KIND, _OUT_LATENCY, _OUT_REGISTER, _EXIT, _EXIT_LATENCY, _DEPTH, _HEIGHT) = range(9, 18)
(_Z_NODES, _Z_EDGES, _Z_WANTED, _Z_NEW_KIND, _Z_EXITS, _Z_PLACED) = range(6)


@inner
def _group(nodes, count, ends, start, member):  # type: ignore[no-untyped-def]
    """Edge numbers by one of their ends, in their given order: CSR."""
    for node in range(nodes + 1):
        start[node] = 0
    for k in range(count):
        start[ends[k] + 1] += 1
    for node in range(nodes):
        start[node + 1] += start[node]
    for k in range(count):  # each start moves to its end while the list fills, which is the start of the next one
        member[start[ends[k]]] = k
        start[ends[k]] += 1
    for node in range(nodes, 0, -1):
        start[node] = start[node - 1]
    start[0] = 0


@inner
def _peel(nodes, succ_start, succ, start, member, other_end, alive, degree):  # type: ignore[no-untyped-def]
    """Remove nodes without live predecessors until none is left to remove; ``alive`` keeps the rest. Returns its size.

    Candidates come grouped by the end they leave; ``degree`` is followed by room for a stack.
    """
    stack = shifted(degree, nodes)
    for node in range(nodes):
        degree[node] = 0
    for node in range(nodes):
        if alive[node] != 0:
            for e in range(succ_start[node], succ_start[node + 1]):
                degree[succ[e]] += 1
            for k in range(start[node], start[node + 1]):
                degree[other_end[member[k]]] += 1
    top = left = 0
    for node in range(nodes):
        if alive[node] != 0:
            left += 1
            if degree[node] == 0:
                stack[top] = node
                top += 1
    while top > 0:
        top -= 1
        node = stack[top]
        alive[node] = 0
        left -= 1
        for e in range(succ_start[node], succ_start[node + 1]):
            degree[succ[e]] -= 1
            if degree[succ[e]] == 0 and alive[succ[e]] != 0:
                stack[top] = succ[e]
                top += 1
        for k in range(start[node], start[node + 1]):
            other = other_end[member[k]]
            degree[other] -= 1
            if degree[other] == 0 and alive[other] != 0:
                stack[top] = other
                top += 1
    return left


@inner
def _mark_present(table, wanted, new_kind):  # type: ignore[no-untyped-def]
    """Set ``PRESENT`` for each candidate that repeats an edge of its kind and of at least its latency; returns those taken."""
    succ_start, succ = at_int32(table[_START]), at_int32(table[_SUCC])
    kind, latency = at_int8(table[_KIND]), at_int32(table[_LATENCY])
    sources, targets, latencies = at_int32(table[_SOURCES]), at_int32(table[_TARGETS]), at_int32(table[_LATENCIES])
    verdict = at_int8(table[_VERDICT])
    taken = 0
    for k in range(wanted):
        if verdict[k] != TAKEN:
            continue
        e = succ_start[sources[k] + 1] - 1  # a repeated edge is most likely the last of its source
        while e >= succ_start[sources[k]]:
            if succ[e] == targets[k] and kind[e] == new_kind and latency[e] >= latencies[k]:
                verdict[k] = PRESENT
                break
            e -= 1
        if verdict[k] == TAKEN:
            taken += 1
    return taken


@inner
def _judge(table, z, work, settled):  # type: ignore[no-untyped-def]
    """Verdicts on all candidates; returns how many are taken, -1 if they have to be asked one by one (unless ``settled``)."""
    nodes, wanted = z[_Z_NODES], z[_Z_WANTED]
    if settled == 0:
        member = shifted(work, nodes + 1)
        alive = shifted(member, wanted)
        _group(nodes, wanted, at_int32(table[_SOURCES]), work, member)
        for node in range(nodes):
            alive[node] = 1
        succ_start, succ = at_int32(table[_START]), at_int32(table[_SUCC])
        targets = at_int32(table[_TARGETS])
        if _peel(nodes, succ_start, succ, work, member, targets, alive, shifted(alive, nodes)) > 0:
            return -1
    return _mark_present(table, wanted, z[_Z_NEW_KIND])


def _work(nodes: int, edges: int, wanted: int) -> NDArray[np.int64]:
    return np.empty(9 * (nodes + 1) + edges + 4 * wanted + 1, dtype=np.int64)


def admit(
    graph: Sequence[NDArray[np.generic]],
    sources: NDArray[np.int32],
    targets: NDArray[np.int32],
    latencies: NDArray[np.int32],
    new_kind: int,
) -> NDArray[np.int8]:
    """Verdict (``TAKEN``, ``CYCLE``, ``PRESENT``) on each candidate edge, in order, without touching the graph.

    ``graph``: edge_start (n + 1), edge_target, edge_kind, edge_latency, edge_register, contiguous and of a `Dag`'s dtypes.  A
    candidate that repeats an edge of the kind being added and of at least its latency adds nothing (``PRESENT``), which is what
    makes the mutations idempotent.
    """
    verdict = np.zeros(sources.size, dtype=np.int8)
    table = addresses(*graph, sources, targets, latencies, verdict)
    sizes = np.array([graph[0].size - 1, graph[1].size, sources.size, new_kind, 0, 0], dtype=np.int64)
    _settle(table, sizes, merge=False)
    return verdict


def _settle(table: NDArray[np.int64], sizes: NDArray[np.int64], *, merge: bool) -> int:
    """Verdicts, and the merged graph if asked for; returns how many candidates are taken.

    The search for cycles is compiled when the first set of candidates needs it: most never do.
    """
    nodes, edges, wanted = sizes[:3].tolist()
    work = np.empty(9 * (nodes + 1) + edges + 4 * wanted + 1, dtype=np.int64)
    taken: int = _apply(table, sizes, work, 0, merge)
    if taken < 0:
        _search(table, sizes, work)
        taken = _apply(table, sizes, work, 1, merge)
    return taken


def refuse_cycles(
    graph: Sequence[NDArray[np.generic]], sources: NDArray[np.int32], targets: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Which candidates would close a cycle with the graph and the candidates taken before them."""
    return admit(graph, sources, targets, np.zeros(sources.size, dtype=np.int32), -1) == CYCLE


# one by one -------------------------------------------------------------------------------------------------------------


@inner
def _places(nodes, succ_start, succ, alive, place, degree):  # type: ignore[no-untyped-def]
    """Place of every live node in a topological order of the graph without candidates: program order if it is one."""
    forward = 1
    for node in range(nodes):
        degree[node] = 0
        place[node] = -1
    for node in range(nodes):
        if alive[node] != 0:
            place[node] = node
            for e in range(succ_start[node], succ_start[node + 1]):
                degree[succ[e]] += 1
                if succ[e] <= node:
                    forward = 0
    if forward != 0:
        return
    queue = shifted(degree, nodes)
    filled = done = 0
    for node in range(nodes):
        if alive[node] != 0 and degree[node] == 0:
            queue[filled] = node
            filled += 1
    while done < filled:
        node = queue[done]
        place[node] = done
        done += 1
        for e in range(succ_start[node], succ_start[node + 1]):
            degree[succ[e]] -= 1
            if degree[succ[e]] == 0 and alive[succ[e]] != 0:
                queue[filled] = succ[e]
                filled += 1


@inner
def _sift(nodes, place, root, count):  # type: ignore[no-untyped-def]
    """Let a node sink in a heap of the first ``count`` nodes whose root has the greatest place."""
    node = nodes[root]
    child = 2 * root + 1
    while child < count:
        if child + 1 < count and place[nodes[child]] < place[nodes[child + 1]]:
            child += 1
        if place[nodes[child]] <= place[node]:
            break
        nodes[root] = nodes[child]
        root = child
        child = 2 * root + 1
    nodes[root] = node


@inner
def _sort_by_place(nodes, place, count):  # type: ignore[no-untyped-def]
    for root in range(count // 2 - 1, -1, -1):
        _sift(nodes, place, root, count)
    for last in range(count - 1, 0, -1):
        nodes[0], nodes[last] = nodes[last], nodes[0]
        _sift(nodes, place, np.int64(0), last)


@inner
def _move(ahead, count, behind, others, place, slots):  # type: ignore[no-untyped-def]
    """Give the nodes of ``ahead`` the lower and those of ``behind`` the higher of the places both hold now."""
    _sort_by_place(ahead, place, count)
    _sort_by_place(behind, place, others)
    i = j = 0
    for k in range(count + others):
        if j == others or (i < count and place[ahead[i]] < place[behind[j]]):
            slots[k] = place[ahead[i]]
            i += 1
        else:
            slots[k] = place[behind[j]]
            j += 1
    for k in range(count):
        place[ahead[k]] = slots[k]
    for k in range(others):
        place[behind[k]] = slots[count + k]


@inner
def _add_found(other, low, high, place, stamp, mark, found, count):  # type: ignore[no-untyped-def]
    if low <= place[other] and place[other] <= high and stamp[other] != mark:
        stamp[other] = mark
        found[count] = other
        return count + 1
    return count


@inner
def _reach(begin, low, high, start, edge, first, following, ends, place, stamp, mark, found):  # type: ignore[no-untyped-def]
    """Live nodes with places from ``low`` to ``high`` reachable from ``begin`` (itself included): how many are in ``found``.

    Neighbours are those of a CSR graph and, as linked lists, of the candidates taken so far.
    """
    found[0] = begin
    stamp[begin] = mark
    count, done = 1, 0
    while done < count:
        node = found[done]
        done += 1
        for e in range(start[node], start[node + 1]):
            count = _add_found(edge[e], low, high, place, stamp, mark, found, count)
        k = first[node]
        while k >= 0:
            count = _add_found(ends[k], low, high, place, stamp, mark, found, count)
            k = following[k]
    return count


@inner
def _one_by_one(table, nodes, wanted, alive, back_start, back, work):  # type: ignore[no-untyped-def]
    """Test the candidates inside the core in order, keeping a topological order of it up to date (Pearce and Kelly, 2006).

    A candidate that points forward in the order is legal at once; any other costs a search of the stretch between its ends.
    """
    succ_start, succ = at_int32(table[_START]), at_int32(table[_SUCC])
    sources, targets, verdict = at_int32(table[_SOURCES]), at_int32(table[_TARGETS]), at_int8(table[_VERDICT])
    place, stamp = work, shifted(work, nodes)
    ahead, behind = shifted(work, 2 * nodes), shifted(work, 3 * nodes)
    out_first, in_first = shifted(work, 4 * nodes), shifted(work, 5 * nodes)
    out_next, in_next = shifted(work, 6 * nodes), shifted(work, 6 * nodes + wanted)
    _places(nodes, succ_start, succ, alive, place, ahead)
    for node in range(nodes):
        stamp[node] = out_first[node] = in_first[node] = -1
    for k in range(wanted):
        source, target = np.int64(sources[k]), np.int64(targets[k])
        if source == target:
            verdict[k] = CYCLE
            continue
        if alive[source] == 0 or alive[target] == 0:
            continue
        low, high = place[target], place[source]
        if high > low:
            count = _reach(
                target, low, high, succ_start, succ, out_first, out_next, targets, place, stamp, 2 * k, behind
            )
            if stamp[source] == 2 * k:
                verdict[k] = CYCLE
                continue
            others = _reach(
                source, low, high, back_start, back, in_first, in_next, sources, place, stamp, 2 * k + 1, ahead
            )
            _move(ahead, others, behind, count, place, shifted(work, 6 * nodes + 2 * wanted))
        out_next[k], out_first[source] = out_first[source], k
        in_next[k], in_first[target] = in_first[target], k


@inner
def _turn(nodes, succ_start, succ, start, back):  # type: ignore[no-untyped-def]
    """CSR of predecessors."""
    _group(nodes, np.int64(succ_start[nodes]), succ, start, back)
    for node in range(nodes):
        for e in range(succ_start[node], succ_start[node + 1]):
            back[start[succ[e]]] = node
            start[succ[e]] += 1
    for node in range(nodes, 0, -1):
        start[node] = start[node - 1]
    start[0] = 0


@entry
def _search(table, sizes, work):  # type: ignore[no-untyped-def]
    """Set ``CYCLE`` for each candidate that would close one with the graph and the candidates taken before it."""
    t, z, w = pointer(table), pointer(sizes), pointer(work)
    nodes, edges, wanted = z[_Z_NODES], z[_Z_EDGES], z[_Z_WANTED]
    alive, back_start = w, shifted(w, nodes)
    back = shifted(back_start, nodes + 1)
    rest = shifted(back, edges)
    member, degree = shifted(rest, nodes + 1), shifted(rest, nodes + 1 + wanted)
    succ_start, succ = at_int32(t[_START]), at_int32(t[_SUCC])
    sources, targets = at_int32(t[_SOURCES]), at_int32(t[_TARGETS])
    for node in range(nodes):
        alive[node] = 1
    _group(nodes, wanted, sources, rest, member)
    _peel(nodes, succ_start, succ, rest, member, targets, alive, degree)
    _turn(nodes, succ_start, succ, back_start, back)
    _group(nodes, wanted, targets, rest, member)
    _peel(nodes, back_start, back, rest, member, sources, alive, degree)
    _one_by_one(t, nodes, wanted, alive, back_start, back, rest)


@entry
def _all_places(table, place, degree, alive):  # type: ignore[no-untyped-def]
    start, target = at_int32(table[0]), at_int32(table[1])
    _places(np.int64(place.size), start, target, pointer(alive), pointer(place), pointer(degree))


def topological_places(edge_start: NDArray[np.int32], edge_target: NDArray[np.int32]) -> NDArray[np.int64]:
    """Place of every node in a topological order of an acyclic graph: its number if all edges point forward."""
    nodes = edge_start.size - 1
    graph = np.ascontiguousarray(edge_start), np.ascontiguousarray(edge_target)
    place, alive = np.empty(nodes, dtype=np.int64), np.ones(nodes, dtype=np.int64)
    _all_places(addresses(*graph), place, np.empty(2 * nodes, dtype=np.int64), alive)
    return place


# merging ----------------------------------------------------------------------------------------------------------------


@inner
def _merge(table, nodes, wanted, new_kind, fill):  # type: ignore[no-untyped-def]
    """The successor lists with the taken candidates appended to their sources' lists, in candidate order.

    A compiler appends a new edge to the list too, and the list's order is the order of release, so it is kept.
    """
    succ_start, succ, kind = at_int32(table[_START]), at_int32(table[_SUCC]), at_int8(table[_KIND])
    latency, register = at_int32(table[_LATENCY]), at_int32(table[_REGISTER])
    sources, verdict = at_int32(table[_SOURCES]), at_int8(table[_VERDICT])
    start, out, out_kind = at_int32(table[_OUT_START]), at_int32(table[_OUT_SUCC]), at_int8(table[_OUT_KIND])
    out_latency, out_register = at_int32(table[_OUT_LATENCY]), at_int32(table[_OUT_REGISTER])
    for node in range(nodes):
        fill[node] = 0
    for k in range(wanted):
        if verdict[k] == TAKEN:
            fill[sources[k]] += 1
    at = 0
    for node in range(nodes):
        extra = fill[node]
        start[node] = at
        for e in range(succ_start[node], succ_start[node + 1]):
            out[at], out_kind[at], out_latency[at], out_register[at] = succ[e], kind[e], latency[e], register[e]
            at += 1
        fill[node] = at
        at += extra
    start[nodes] = at
    targets, latencies = at_int32(table[_TARGETS]), at_int32(table[_LATENCIES])
    for k in range(wanted):
        if verdict[k] == TAKEN:
            at = fill[sources[k]]
            fill[sources[k]] += 1
            out[at], out_kind[at], out_latency[at], out_register[at] = targets[k], new_kind, latencies[k], -1


@entry
def _apply(table, sizes, work, settled, merge):  # type: ignore[no-untyped-def]
    """Verdicts; then, if asked for and any candidate is taken, the merged graph with its depths and heights."""
    t, z, w = pointer(table), pointer(sizes), pointer(work)
    taken = np.int64(_judge(t, z, w, settled))
    if merge and taken > 0:
        nodes = z[_Z_NODES]
        _merge(t, nodes, z[_Z_WANTED], z[_Z_NEW_KIND], w)
        start, target = at_int32(t[_OUT_START]), at_int32(t[_OUT_SUCC])
        z[_Z_PLACED] = sort_topologically(nodes, start, target, w, shifted(w, nodes))
        longest_paths(z[_Z_PLACED], w, shifted(t, np.int64(_OUT_START)), z[_Z_EXITS], shifted(t, np.int64(_EXIT)))
    return taken


MERGED = ("edge_start", "edge_target", "edge_kind", "edge_latency", "edge_register", "depth", "height")


def merge_edges(
    graph: list[int], ends: list[int], size: tuple[int, int, int], wanted: NDArray[np.int32], new_kind: int
) -> tuple[dict[str, NDArray[np.generic]], NDArray[np.int8]]:
    """The graph with all candidates it admits, by the names in `MERGED`, and the verdict on each candidate.

    ``graph``: addresses of its five columns; ``ends``: of the nodes that lead to the region's end, and of how long that takes;
    ``size``: nodes, edges, ends; ``wanted``: rows of source, target and latency of every candidate.  Without a candidate taken
    there are no columns; without depth and height the graph has a cycle.
    """
    nodes, edges, exits = size
    most = edges + wanted[0].size
    verdict = np.zeros(wanted[0].size, dtype=np.int8)
    types = (np.int32, np.int8, np.int32, np.int32)
    merged = [np.empty(nodes + 1, dtype=np.int32), *(np.empty(most, dtype=kind) for kind in types)]
    paths = [np.empty(nodes, dtype=np.int32), np.empty(nodes, dtype=np.int32)]
    sizes = np.array([nodes, edges, verdict.size, new_kind, exits, 0], dtype=np.int64)
    taken = _settle(addresses(graph, *wanted, verdict, *merged, ends, *paths), sizes, merge=True)
    if not taken:
        return {}, verdict
    if edges + taken < most:
        merged[1:] = [column[: edges + taken].copy() for column in merged[1:]]
    return dict(zip(MERGED, merged + paths if sizes[_Z_PLACED] == nodes else merged, strict=False)), verdict
