"""Which of a list of new edges a graph admits: the legality test every mutation shares.

An edge that would close a cycle is refused, the others are taken, in the order given, as a compiler does that asks
"can this edge be added?" before each one.  Asking one by one is quadratic; here all candidates are laid over the graph at
once and the result is sorted topologically.  If that succeeds every candidate is legal, whatever the order.  If not, only
candidates between nodes that lie on or between cycles are asked one by one, with a search that stays inside that core.
Nothing is written to the graph while this goes on.
"""

from __future__ import annotations

import numpy as np

from ..jit import njit

__all__ = ["TAKEN", "CYCLE", "PRESENT", "admit", "merge_edges"]

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
def _peel_sinks(n, succ_start, succ, start, member, targets, alive):
    """The same from the other side: remove nodes that reach no live cycle."""
    changed = True
    while changed:
        changed = False
        for node in range(n - 1, -1, -1):
            if not alive[node]:
                continue
            leads_on = False
            for e in range(succ_start[node], succ_start[node + 1]):
                if alive[succ[e]]:
                    leads_on = True
                    break
            if not leads_on:
                for k in range(start[node], start[node + 1]):
                    if alive[targets[member[k]]]:
                        leads_on = True
                        break
            if not leads_on:
                alive[node] = False
                changed = True


@njit
def _reaches(source, goal, succ_start, succ, first, following, targets, alive, stamp, mark, stack):
    """Is ``goal`` reachable from ``source`` inside the live core, over graph edges and candidates taken so far?"""
    stack[0] = source
    top = 1
    stamp[source] = mark
    while top > 0:
        top -= 1
        node = stack[top]
        if node == goal:
            return True
        for e in range(succ_start[node], succ_start[node + 1]):
            other = succ[e]
            if alive[other] and stamp[other] != mark:
                stamp[other] = mark
                stack[top] = other
                top += 1
        k = first[node]
        while k >= 0:
            other = targets[k]
            if alive[other] and stamp[other] != mark:
                stamp[other] = mark
                stack[top] = other
                top += 1
            k = following[k]
    return False


@njit
def admit(n, succ_start, succ, artificial, edge_latency, sources, targets, latencies):
    """Verdict (``TAKEN``, ``CYCLE``, ``PRESENT``) on each candidate edge, in order, without touching the graph.

    ``artificial[e]`` says that edge ``e`` is of the kind being added: a candidate that repeats one of at least its latency
    adds nothing (``PRESENT``), which is what makes the mutations idempotent.
    """
    verdict = np.zeros(sources.size, np.int8)
    start, member = _by_source(n, sources)
    alive = np.ones(n, np.bool_)
    if _peel(n, succ_start, succ, start, member, targets, alive) > 0:
        _peel_sinks(n, succ_start, succ, start, member, targets, alive)
        first = np.full(n, -1, np.int64)
        following = np.full(sources.size, -1, np.int64)
        stamp = np.full(n, -1, np.int64)
        stack = np.empty(n + 1, np.int64)
        for number in range(sources.size):
            source, target = sources[number], targets[number]
            if source == target:
                verdict[number] = CYCLE
            elif alive[source] and alive[target]:
                if _reaches(target, source, succ_start, succ, first, following, targets, alive, stamp, number, stack):
                    verdict[number] = CYCLE
                else:
                    following[number] = first[source]
                    first[source] = number
    for number in range(sources.size):
        if verdict[number] == TAKEN:
            source = sources[number]
            for e in range(succ_start[source + 1] - 1, succ_start[source] - 1, -1):
                if artificial[e] and succ[e] == targets[number] and edge_latency[e] >= latencies[number]:
                    verdict[number] = PRESENT
                    break
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
