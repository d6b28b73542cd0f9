"""The arithmetic of the WMMA / LDS-load mutation (PR #203095 of LLVM), jitted, on flat arrays.

Positions are places in the list of matrix instructions W[0..n-1] in program order.  A *fragment* is what one virtual
register holds: the LDS loads ("sub-loads") that fill it, from its first load to the last matrix instruction that reads it.
The steps are those of the published source: positions (consumers), latest start of each load, one window per fragment, a
histogram of live registers over positions whose maximum is the budget, and the *easing* of each window towards earlier
positions as long as the budget holds.  Easing costs at most budget x positions steps in all, so every step is linear.
"""

from __future__ import annotations

import numpy as np

from ..jit import njit

__all__ = ["NEVER", "consumer_positions", "ease_all", "histogram", "latest_starts", "make_fragments", "order_by_first"]

NEVER = 1 << 30  # position of a load no matrix instruction of the region consumes


@njit
def consumer_positions(edge_start, edge_target, edge_kind, data_kind, position, loads):
    """First and last position among the data successors of each load; (``NEVER``, -1) without one."""
    first = np.full(loads.size, NEVER, np.int64)
    last = np.full(loads.size, -1, np.int64)
    for k in range(loads.size):
        for e in range(edge_start[loads[k]], edge_start[loads[k] + 1]):
            if edge_kind[e] == data_kind:
                p = position[edge_target[e]]
                if p >= 0:
                    first[k] = min(first[k], p)
                    last[k] = max(last[k], p)
    return first, last


@njit
def order_by_first(first, positions):
    """Loads by first consumer, stable, those without one dropped: a counting sort, linear."""
    start = np.zeros(positions + 1, np.int64)
    for p in first:
        if p != NEVER:
            start[p + 1] += 1
    for p in range(positions):
        start[p + 1] += start[p]
    order = np.empty(start[positions], np.int64)
    for k in range(first.size):
        if first[k] != NEVER:
            order[start[first[k]]] = k
            start[first[k]] += 1
    return order


@njit
def latest_starts(order, first, load_latency, wmma_latency, spacing):
    """Latest issue time of each ordered load, in cycles of back-to-back matrix instructions.

    ``spacing`` > 0 keeps the loads that many cycles apart (a backward minimum over the order); 0 leaves each on its own.
    """
    latest = np.empty(order.size, np.int64)
    for k in range(order.size):
        latest[k] = first[order[k]] * wmma_latency - load_latency[order[k]]
    if spacing > 0:
        for k in range(order.size - 2, -1, -1):
            latest[k] = min(latest[k], latest[k + 1] - spacing)
    return latest


@njit
def make_fragments(order, register, registers, first, last, latest, wmma_latency):
    """Group ordered loads by the register they fill, in first-seen order.

    Returns per load its fragment (-1: not in the order), and per fragment: register, first and last consumer, late start.
    """
    of_register = np.full(registers, -1, np.int64)
    of_load = np.full(first.size, -1, np.int64)
    table = np.empty((order.size, 4), np.int64)
    count = 0
    for k in range(order.size):
        load = order[k]
        f = of_register[register[load]]
        if f < 0 or first[load] > table[f, 2]:  # a register loaded again after its last use holds a new fragment
            f = count
            count += 1
            of_register[register[load]] = f
            table[f, 0] = register[load]
            table[f, 1] = first[load]
            table[f, 2] = last[load]
            table[f, 3] = latest[k]
        else:
            table[f, 1] = min(table[f, 1], first[load])
            table[f, 2] = max(table[f, 2], last[load])
            table[f, 3] = min(table[f, 3], latest[k])
        of_load[load] = f
    for f in range(count):
        table[f, 3] = max(0, table[f, 3] // wmma_latency)  # truncated: negative values end at 0 either way
    return of_load, table[:count]


@njit
def histogram(fragments, vgprs, positions):
    """Registers live at each position if every fragment starts as late as it may."""
    change = np.zeros(positions + 1, np.int64)
    for f in range(fragments.shape[0]):
        change[min(fragments[f, 3], fragments[f, 2])] += vgprs[f]
        change[fragments[f, 2] + 1] -= vgprs[f]
    live = np.empty(positions, np.int64)
    total = 0
    for p in range(positions):
        total += change[p]
        live[p] = total
    return live


@njit
def ease_one(live, budget, late, size):
    """Earliest position a window may be stretched to without the histogram passing the budget."""
    early = late
    while early > 0 and live[early - 1] + size <= budget:
        early -= 1
    return early


@njit
def ease_all(fragments, vgprs, live, budget):
    """Anchor of each fragment, in order; ``live`` is changed to the eased histogram."""
    anchor = np.empty(fragments.shape[0], np.int64)
    for f in range(fragments.shape[0]):
        early = ease_one(live, budget, fragments[f, 3], vgprs[f])
        for p in range(early, fragments[f, 3]):
            live[p] += vgprs[f]
        anchor[f] = early
    return anchor


@njit
def dead_before(fragments, position, positions):
    """For each position p the latest last use below p of any fragment (-1: none): where a register has just become free."""
    latest = np.full(positions + 1, -1, np.int64)
    for f in range(fragments.shape[0]):
        if fragments[f, 2] + 1 <= positions:
            latest[fragments[f, 2] + 1] = max(latest[fragments[f, 2] + 1], fragments[f, 2])
    for p in range(1, positions + 1):
        latest[p] = max(latest[p], latest[p - 1])
    out = np.empty(position.size, np.int64)
    for k in range(position.size):
        out[k] = latest[position[k]]
    return out
