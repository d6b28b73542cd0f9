"""The in-order timeline: when each instruction of an order issues, and what it waited for.

Every instruction asks a fixed list of questions, each of which may move its issue cycle later; the move is charged to that
question's cause, so issue slots and stalls add up to the cycles exactly.  Memory results are awaited through counters as a
compiler would place them: before a consumer stands a wait for "at most N younger accesses in flight", unless an earlier wait
already covered it.  Queues return in order, so that wait also waits for every older access.
"""

from __future__ import annotations

import numpy as np

from ..jit import njit
from .inorder import (
    K_BARRIER,
    K_FENCE,
    K_FREE,
    K_SIGNAL,
    K_TRANS,
    K_VALU,
    K_VALUN,
    K_WAIT_TENSOR,
    K_WMMA,
    N_CLASS,
    N_KIND,
    N_LATENCY,
    N_OCCUPANCY,
    N_QUEUE,
    N_REPEAT,
    N_SCALED,
    N_WINDOW,
    P_BARRIER,
    P_CAPACITY,
    P_COUNTER,
    P_DRAINS,
    P_SCALED_TRANS,
    P_SCALED_VALU,
    P_SCRATCH,
    P_TRANS_SPACING,
    P_VMEM_LATENCY,
    P_WAIT_ISSUE,
    P_WMMA_TRANS,
)
from .spill import EV_DWORDS, EV_POSITION, EV_PRODUCER, EV_RELOAD

__all__ = ["CAUSES", "run"]

CAUSES = (
    "issue",
    "wait_issue",
    "lds_wait",
    "vmem_wait",
    "smem_wait",
    "tensor_wait",
    "lds_queue",
    "vmem_queue",
    "smem_queue",
    "tensor_queue",
    "operand",
    "matrix_busy",
    "window",
    "trans_gap",
    "barrier",
    "spill_issue",
    "spill_wait",
)
C_ISSUE, C_WAIT_ISSUE, C_WAIT, C_QUEUE = 0, 1, 2, 6
C_OPERAND, C_MATRIX, C_WINDOW, C_GAP, C_BARRIER, C_SPILL_ISSUE, C_SPILL_WAIT = range(10, 17)
_VMEM, _SMEM, _TENSOR = 1, 2, 3

# machine state that outlives an instruction, by index; the last four are book-keeping
(S_NOW, S_MATRIX, S_WINDOW, S_WINDOW_AT, S_VALU, S_TRANS, S_VALUN, S_SIGNAL, S_TURN, S_WAITS, S_CURSOR, S_FINISH) = (
    range(12)
)
_LONG_AGO = -(1 << 40)
# Bundles of arrays: queues = (done[4, k] cycle each access is back, issued[4], waited[4] newest access known back);
# values = (ready[n] cycle, seq[n] number of the access in its queue, fresh[n] written by this run already)


@njit
def _push(queues, queue, at, latency):
    """Enter an access; results come back in order. Returns its number in the queue."""
    done, issued, _ = queues
    k = issued[queue]
    when = at + latency
    if k > 0 and done[queue, k - 1] > when:
        when = done[queue, k - 1]
    done[queue, k] = when
    issued[queue] = k + 1
    return k


@njit
def _space(queues, queue, at, capacity):
    """When a queue that may be full takes one more access."""
    k = queues[1][queue] - capacity
    if k >= 0 and queues[0][queue, k] > at:
        return queues[0][queue, k]
    return at


@njit
def _wait(t, queue, need, p, queues, state, position, waits):
    """A counter wait in front of an instruction: (cycle after it, cycles stalled)."""
    done, issued, waited = queues
    younger = issued[queue] - 1 - need
    if queue == _SMEM:
        younger = 0  # scalar loads return in any order: only zero is safe
    younger = min(younger, p[P_COUNTER + queue])
    need = issued[queue] - 1 - younger
    t += p[P_WAIT_ISSUE]
    stall = max(0, done[queue, need] - t)
    waited[queue] = max(waited[queue], need)
    row = state[S_WAITS]
    if row < waits.shape[0]:
        waits[row, 0] = state[S_TURN]
        waits[row, 1] = position
        waits[row, 2] = queue
        waits[row, 3] = younger
        waits[row, 4] = stall
        state[S_WAITS] = row + 1
    return t + stall, stall


@njit
def _spacing(t, row, state, p):
    """Earliest cycle the spacing rules of transcendental, multi-cycle and scaled matrix ops allow."""
    kind = row[N_KIND]
    if kind == K_WMMA:
        gap = max(t, state[S_TRANS] + p[P_WMMA_TRANS])
        if row[N_SCALED]:
            if state[S_VALU] == gap - 1:
                gap += p[P_SCALED_VALU]
            if state[S_TRANS] == gap - p[P_SCALED_TRANS]:
                gap += 1
        return max(gap, state[S_VALUN])
    if kind == K_VALU or kind == K_TRANS or kind == K_VALUN:
        gap = max(t, state[S_VALUN])
        if kind != K_VALU:
            gap = max(gap, state[S_TRANS] + p[P_TRANS_SPACING])
        return gap
    return t


@njit
def _admitted(t, row, windows, state):
    """Earliest cycle from ``t`` on whose stage of the open window takes this class; a multi-cycle op waits for its end."""
    length, admits = windows
    window = state[S_WINDOW]
    if window < 0:
        return t
    stage = t - state[S_WINDOW_AT]
    if row[N_KIND] == K_VALUN:
        return t + max(0, length[window] - stage)
    bit = 1 << row[N_CLASS]
    while stage < length[window] and not (admits[window, stage] & bit):
        stage += 1
        t += 1
    return t


@njit
def _spill_traffic(t, i, last, events, p, nodes, queues, values, state, waits, stall):
    """Scratch stores and reloads in front of the instruction at position ``i``; reloads are awaited at once."""
    ready, seq, _ = values
    newest = -1
    k = state[S_CURSOR]
    while k < last and events[k, EV_POSITION] == i:
        producer = events[k, EV_PRODUCER]
        before = t
        if not events[k, EV_RELOAD] and producer >= 0:  # the stored value has to be there
            queue = nodes[producer, N_QUEUE]
            if queue < 0:
                t = max(t, ready[producer])
            elif seq[producer] > queues[2][queue]:
                t, _ = _wait(t, queue, seq[producer], p, queues, state, i, waits)
        for _ in range((events[k, EV_DWORDS] + p[P_SCRATCH] - 1) // p[P_SCRATCH]):
            t = _space(queues, _VMEM, t, p[P_CAPACITY + _VMEM])
            access = _push(queues, _VMEM, t, p[P_VMEM_LATENCY])
            if events[k, EV_RELOAD]:
                newest = access
            stall[C_SPILL_ISSUE] += 1
            stall[C_SPILL_WAIT] -= 1
            t += 1
        stall[C_SPILL_WAIT] += t - before
        k += 1
    state[S_CURSOR] = k
    if newest >= 0:
        before = t
        t, _ = _wait(t, _VMEM, newest, p, queues, state, i, waits)
        stall[C_SPILL_WAIT] += t - before
    return t


@njit
def _needs(node, nodes, preds, values, need, t):
    """Newest access needed per queue, and when the other operands are there, over the given predecessors."""
    start, source = preds
    ready, seq, fresh = values
    for e in range(start[node], start[node + 1]):
        p = source[e]
        if not fresh[p]:
            continue
        queue = nodes[p, N_QUEUE]
        if queue >= 0:
            need[queue] = max(need[queue], seq[p])
        else:
            t = max(t, ready[p])
    return t


@njit
def _await(t, i, kind, need, allowed, p, queues, state, waits, stall):
    """The counter waits an instruction needs: for its operands, for a fence, or the program's own tensor wait."""
    done, issued, waited = queues
    for q in range(4):
        if kind == K_FENCE and p[P_DRAINS + q]:
            need[q] = issued[q] - 1
        if q != _TENSOR and need[q] > waited[q]:
            t, lost = _wait(t, q, need[q], p, queues, state, i, waits)
            stall[C_WAIT_ISSUE] += p[P_WAIT_ISSUE]
            stall[C_WAIT + q] += lost
    if kind == K_WAIT_TENSOR:  # it takes its own slot, not an inserted one
        wanted = issued[_TENSOR] - allowed - 1
        if wanted > waited[_TENSOR]:
            waited[_TENSOR] = wanted
            late = max(0, done[_TENSOR, wanted] - t)
            stall[C_WAIT + _TENSOR] += late
            t += late
    return t


@njit
def _structural(t, row, windows, p, queues, state, stall):
    """Barrier, queue space, matrix unit, spacing and window, in this order."""
    kind, queue = row[N_KIND], row[N_QUEUE]
    if kind == K_BARRIER and state[S_SIGNAL] + p[P_BARRIER] > t:
        stall[C_BARRIER] += state[S_SIGNAL] + p[P_BARRIER] - t
        t = state[S_SIGNAL] + p[P_BARRIER]
    if queue >= 0:
        room = _space(queues, queue, t, p[P_CAPACITY + queue])
        stall[C_QUEUE + queue] += room - t
        t = room
    if kind == K_WMMA and state[S_MATRIX] > t:
        stall[C_MATRIX] += state[S_MATRIX] - t
        t = state[S_MATRIX]
    gap = _spacing(t, row, state, p)
    stall[C_GAP] += gap - t
    admitted = _admitted(gap, row, windows, state)
    stall[C_WINDOW] += admitted - gap
    return admitted


@njit
def _issue(node, t, row, queues, values, state, stall):
    """What an issue leaves behind; the cycle after it."""
    ready, seq, fresh = values
    kind, queue = row[N_KIND], row[N_QUEUE]
    fresh[node] = True
    if queue >= 0:
        seq[node] = _push(queues, queue, t, row[N_LATENCY])
        back = queues[0][queue, seq[node]]
    else:
        back = ready[node] = t + row[N_LATENCY]
    state[S_FINISH] = max(state[S_FINISH], back)
    if kind == K_WMMA:
        state[S_MATRIX] = t + row[N_OCCUPANCY]
        state[S_WINDOW] = row[N_WINDOW]
        state[S_WINDOW_AT] = t
    elif kind == K_TRANS:
        state[S_TRANS] = state[S_VALU] = t
    elif kind == K_VALU:
        state[S_VALU] = t
    elif kind == K_VALUN:
        state[S_VALU] = t
        state[S_VALUN] = t + row[N_REPEAT]
    elif kind == K_SIGNAL:
        state[S_SIGNAL] = t
    if kind == K_FREE:
        return t
    stall[C_ISSUE] += 1
    return t + 1


@njit
def _empty_queues(order, nodes, events, scratch, iterations):
    """Queue arrays long enough for every access of every iteration and all scratch traffic."""
    entries = np.zeros(4, np.int64)
    for node in order:
        if nodes[node, N_QUEUE] >= 0:
            entries[nodes[node, N_QUEUE]] += iterations
    for k in range(events.shape[0]):
        entries[_VMEM] += (events[k, EV_DWORDS] + scratch - 1) // scratch
    return np.zeros((4, entries.max() + 1), np.int64), np.zeros(4, np.int64), np.full(4, -1, np.int64)


@njit
def run(order, nodes, windows, preds, carried, allowed, p, spills, at, stalls, waits):
    """Run ``order`` once per row of ``at``, state carried over.

    ``preds`` and ``carried``: CSR of data predecessors inside an iteration and across the back edge; ``allowed``: accesses a
    tensor wait leaves in flight; ``spills``: (events, row where each iteration starts).  Fills issue cycles
    ``at[iteration, position]``, cycles per cause ``stalls[iteration]`` and the rows of ``waits`` (iteration, position, queue,
    counter value, cycles stalled).  Returns (start of each iteration and the end, number of waits, cycle of the last result).
    """
    events, event_start = spills
    iterations, n = at.shape
    queues = _empty_queues(order, nodes, events, p[P_SCRATCH], iterations)
    values = (np.zeros(n, np.int64), np.full(n, -1, np.int64), np.zeros(n, np.bool_))
    need = np.empty(4, np.int64)
    state = np.full(S_FINISH + 1, _LONG_AGO, np.int64)
    state[S_NOW] = state[S_MATRIX] = state[S_WAITS] = state[S_FINISH] = 0
    state[S_WINDOW] = -1
    marks = np.zeros(iterations + 1, np.int64)
    for turn in range(iterations):
        marks[turn] = state[S_NOW]
        state[S_CURSOR] = event_start[turn]
        state[S_TURN] = turn
        stall = stalls[turn]
        for i in range(n):
            node = order[i]
            row = nodes[node]
            t = _spill_traffic(
                state[S_NOW], i, event_start[turn + 1], events, p, nodes, queues, values, state, waits, stall
            )
            need[:] = -1
            operand = _needs(node, nodes, preds, values, need, 0)
            if turn > 0:
                operand = _needs(node, nodes, carried, values, need, operand)
            t = _await(t, i, row[N_KIND], need, allowed[node], p, queues, state, waits, stall)
            if operand > t:
                stall[C_OPERAND] += operand - t
                t = operand
            t = _structural(t, row, windows, p, queues, state, stall)
            at[turn, i] = t
            state[S_NOW] = _issue(node, t, row, queues, values, state, stall)
        marks[turn + 1] = state[S_NOW]
    return marks, state[S_WAITS], max(state[S_FINISH], state[S_NOW])
