"""Which of a list of new edges a graph admits: the legality test every mutation shares.

An edge that would close a cycle is refused, the others are taken, in the order given, as a compiler does that asks
"can this edge be added?" before each one.  Asking one by one is quadratic; here all candidates are laid over the graph at
once and the result is sorted topologically.  If that succeeds every candidate is legal, whatever the order.  If not, only
candidates between nodes that lie on or between cycles are asked one by one, with searches that stay inside that core and
between the two ends in a topological order of it.  Nothing is written to the graph while this goes on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..jit import njit

__all__ = ["TAKEN", "CYCLE", "PRESENT", "admit", "merge_edges", "refuse_cycles", "topological_places"]

TAKEN, CYCLE, PRESENT = 0, 1, 2  # verdict on one candidate


@njit
def _by_source(n, sources):
    """Candidates grouped by source, in their given order: (start, candidate numbers)."""
    start = np.zeros(n + 1, np.int64)
    for source in sources:
        start[source + 1] += 1
    for node in range(n):
        start[node + 1] += start[node]
    fill = start[:n].copy()
    member = np.empty(sources.size, np.int64)
    for number in range(sources.size):
        member[fill[sources[number]]] = number
        fill[sources[number]] += 1
    return start, member


@njit
def _peel(n, succ_start, succ, start, member, targets, alive):
    """Remove nodes without live predecessors until none is left to remove; ``alive`` keeps the rest. Returns its size."""
    degree = np.zeros(n, np.int64)
    for node in range(n):
        if alive[node]:
            for e in range(succ_start[node], succ_start[node + 1]):
                degree[succ[e]] += 1
            for k in range(start[node], start[node + 1]):
                degree[targets[member[k]]] += 1
    stack = np.empty(n, np.int64)
    top = 0
    left = 0
    for node in range(n):
        if alive[node]:
            left += 1
            if degree[node] == 0:
                stack[top] = node
                top += 1
    while top > 0:
        top -= 1
        node = stack[top]
        alive[node] = False
        left -= 1
        for e in range(succ_start[node], succ_start[node + 1]):
            degree[succ[e]] -= 1
            if degree[succ[e]] == 0 and alive[succ[e]]:
                stack[top] = succ[e]
                top += 1
        for k in range(start[node], start[node + 1]):
            other = targets[member[k]]
            degree[other] -= 1
            if degree[other] == 0 and alive[other]:
                stack[top] = other
                top += 1
    return left


@njit
def _predecessors(n, succ_start, succ):
    """CSR of predecessors."""
    start = np.zeros(n + 1, np.int64)
    for target in succ:
        start[target + 1] += 1
    for node in range(n):
        start[node + 1] += start[node]
    fill = start[:n].copy()
    pred = np.empty(succ.size, np.int64)
    for node in range(n):
        for e in range(succ_start[node], succ_start[node + 1]):
            pred[fill[succ[e]]] = node
            fill[succ[e]] += 1
    return start, pred


@njit
def topological_places(n, succ_start, succ, alive):
    """Place of every live node in a topological order of the graph without candidates: program order if it is one."""
    degree = np.zeros(n, np.int64)
    place = np.full(n, -1, np.int64)
    forward = True
    for node in range(n):
        if alive[node]:
            place[node] = node
            for e in range(succ_start[node], succ_start[node + 1]):
                degree[succ[e]] += 1
                forward &= succ[e] > node
    if forward:
        return place
    queue = np.empty(n, np.int64)
    filled = done = 0
    for node in range(n):
        if alive[node] and degree[node] == 0:
            queue[filled] = node
            filled += 1
    while done < filled:
        node = queue[done]
        place[node] = done
        done += 1
        for e in range(succ_start[node], succ_start[node + 1]):
            degree[succ[e]] -= 1
            if degree[succ[e]] == 0 and alive[succ[e]]:
                queue[filled] = succ[e]
                filled += 1
    return place


@njit
def _reach(begin, low, high, edges, extra, place, stamp, mark, found):
    """Live nodes with places from ``low`` to ``high`` reachable from ``begin`` (itself included): how many are in ``found``."""
    start, neighbour = edges
    first, following, other_end = extra
    found[0] = begin
    stamp[begin] = mark
    count, done = 1, 0
    while done < count:
        node = found[done]
        done += 1
        for e in range(start[node], start[node + 1]):
            other = neighbour[e]
            if low <= place[other] <= high and stamp[other] != mark:
                stamp[other] = mark
                found[count] = other
                count += 1
        k = first[node]
        while k >= 0:
            other = other_end[k]
            if low <= place[other] <= high and stamp[other] != mark:
                stamp[other] = mark
                found[count] = other
                count += 1
            k = following[k]
    return count


@njit
def _move(ahead, behind, place):
    """Give the nodes of ``ahead`` the lower and those of ``behind`` the higher of the places both hold now."""
    slots = np.sort(np.concatenate((place[ahead], place[behind])))
    ahead = ahead[np.argsort(place[ahead])]
    behind = behind[np.argsort(place[behind])]
    for k in range(ahead.size):
        place[ahead[k]] = slots[k]
    for k in range(behind.size):
        place[behind[k]] = slots[ahead.size + k]


@njit
def _one_by_one(n, succ_start, succ, alive, sources, targets, verdict):
    """Test the candidates inside the core in order, keeping a topological order of it up to date (Pearce and Kelly, 2006).

    A candidate that points forward in the order is legal at once; any other costs a search of the stretch between its ends.
    """
    place = topological_places(n, succ_start, succ, alive)
    pred_start, pred = _predecessors(n, succ_start, succ)
    stamp = np.full(n, -1, np.int64)
    forward = np.empty(n, np.int64)
    backward = np.empty(n, np.int64)
    out_first, in_first = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    out_next, in_next = np.full(sources.size, -1, np.int64), np.full(sources.size, -1, np.int64)
    for number in range(sources.size):
        source, target = sources[number], targets[number]
        if source == target:
            verdict[number] = CYCLE
        if source == target or not (alive[source] and alive[target]):
            continue
        low, high = place[target], place[source]
        if high > low:
            outgoing = (out_first, out_next, targets)
            ahead = _reach(target, low, high, (succ_start, succ), outgoing, place, stamp, 2 * number, forward)
            if stamp[source] == 2 * number:
                verdict[number] = CYCLE
                continue
            incoming = (in_first, in_next, sources)
            behind = _reach(source, low, high, (pred_start, pred), incoming, place, stamp, 2 * number + 1, backward)
            _move(backward[:behind].copy(), forward[:ahead].copy(), place)
        out_next[number], out_first[source] = out_first[source], number
        in_next[number], in_first[target] = in_first[target], number


@njit
def overlay_is_acyclic(n, succ_start, succ, sources, targets):
    """Whether the graph has no cycle with all candidates in it."""
    start, member = _by_source(n, sources)
    alive = np.ones(n, np.bool_)
    return _peel(n, succ_start, succ, start, member, targets, alive) == 0


@njit
def refuse_cycles(n, succ_start, succ, sources, targets, verdict):
    """Set ``CYCLE`` in ``verdict`` for each candidate that would close one with the graph and the candidates taken before it."""
    start, member = _by_source(n, sources)
    alive = np.ones(n, np.bool_)
    if _peel(n, succ_start, succ, start, member, targets, alive) > 0:
        back_start, back = _predecessors(n, succ_start, succ)
        into, into_member = _by_source(n, targets)
        _peel(n, back_start, back, into, into_member, sources, alive)
        _one_by_one(n, succ_start, succ, alive, sources, targets, verdict)


@njit
def mark_present(succ_start, succ, artificial, edge_latency, sources, targets, latencies, verdict):
    """Set ``PRESENT`` for each candidate that repeats an edge of its kind and of at least its latency."""
    for number in range(sources.size):
        if verdict[number] == TAKEN:
            source = sources[number]
            for e in range(succ_start[source + 1] - 1, succ_start[source] - 1, -1):
                if artificial[e] and succ[e] == targets[number] and edge_latency[e] >= latencies[number]:
                    verdict[number] = PRESENT
                    break


def admit(
    n: int,
    succ_start: NDArray[np.int32],
    succ: NDArray[np.int32],
    artificial: NDArray[np.bool_],
    edge_latency: NDArray[np.int32],
    sources: NDArray[np.int32],
    targets: NDArray[np.int32],
    latencies: NDArray[np.int32],
) -> NDArray[np.int8]:
    """Verdict (``TAKEN``, ``CYCLE``, ``PRESENT``) on each candidate edge, in order, without touching the graph.

    ``artificial[e]`` says that edge ``e`` is of the kind being added: a candidate that repeats one of at least its latency
    adds nothing (``PRESENT``), which is what makes the mutations idempotent.  The search for cycles is compiled when the first
    set of candidates needs it: most never do.
    """
    verdict = np.zeros(sources.size, np.int8)
    if not overlay_is_acyclic(n, succ_start, succ, sources, targets):
        refuse_cycles(n, succ_start, succ, sources, targets, verdict)
    mark_present(succ_start, succ, artificial, edge_latency, sources, targets, latencies, verdict)
    return verdict


@njit
def merge_edges(n, succ_start, succ, kind, latency, register, verdict, sources, targets, new_latency, new_kind):
    """The successor lists with the taken candidates appended to their sources' lists, in candidate order.

    A compiler appends a new edge to the list too, and the list's order is the order of release, so it is kept.
    """
    extra = np.zeros(n + 1, np.int64)
    for number in range(sources.size):
        if verdict[number] == TAKEN:
            extra[sources[number] + 1] += 1
    start = np.empty(n + 1, np.int32)
    start[0] = 0
    for node in range(n):
        start[node + 1] = start[node] + succ_start[node + 1] - succ_start[node] + extra[node + 1]
    total = start[n]
    out_succ = np.empty(total, succ.dtype)
    out_kind = np.empty(total, kind.dtype)
    out_latency = np.empty(total, latency.dtype)
    out_register = np.empty(total, register.dtype)
    fill = np.empty(n, np.int64)
    for node in range(n):
        where = start[node]
        for e in range(succ_start[node], succ_start[node + 1]):
            out_succ[where] = succ[e]
            out_kind[where] = kind[e]
            out_latency[where] = latency[e]
            out_register[where] = register[e]
            where += 1
        fill[node] = where
    for number in range(sources.size):
        if verdict[number] == TAKEN:
            where = fill[sources[number]]
            fill[sources[number]] += 1
            out_succ[where] = targets[number]
            out_kind[where] = new_kind
            out_latency[where] = new_latency[number]
            out_register[where] = -1
    return start, out_succ, out_kind, out_latency, out_register
