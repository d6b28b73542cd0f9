"""What happens beyond the register limit: which tuples go to scratch memory in a given order, and when they come back.

The victim is the resident tuple whose next use lies furthest ahead (Belady's rule, which minimises reloads for equal sizes;
ties take the larger tuple, then the lower register number).  A tuple that is already in scratch unchanged is dropped without a
store.  A reload stands directly before its consumer, where a compiler's spiller puts it.  Placement inside the register file
is not modelled: the limit is a count of 32-bit registers, tuples count whole (see :mod:`fastgemm.sched.liverange`).
"""

from __future__ import annotations

import numpy as np

from ..jit import njit
from .dag import Dag
from .liverange import walk_dag
from .model import OperandKind

__all__ = ["EV_POSITION", "EV_PRODUCER", "EV_REGISTER", "EV_RELOAD", "EV_DWORDS", "plan_spills"]

_USE, _DEF, _UNDEF, _DEAD = (
    int(kind) for kind in (OperandKind.USE, OperandKind.DEF, OperandKind.UNDEF_USE, OperandKind.DEAD_DEF)
)
EV_POSITION, EV_RELOAD, EV_REGISTER, EV_DWORDS, EV_PRODUCER = range(5)  # columns of an event
_NONE = 1 << 40


@njit
def _next_access(order, operand_start, operand_register, operand_kind, registers, loop):
    """Per operand the position of the next access to its register; per register the first access. Wraps around in a loop."""
    n = order.size
    first = np.full(registers, _NONE, np.int64)
    for i in range(n - 1, -1, -1):
        for k in range(operand_start[order[i]], operand_start[order[i] + 1]):
            if operand_kind[k] != _UNDEF:
                first[operand_register[k]] = i
    upcoming = np.full(registers, _NONE, np.int64)
    if loop:
        for r in range(registers):
            if first[r] != _NONE:
                upcoming[r] = n + first[r]
    following = np.empty(operand_register.size, np.int64)
    for i in range(n - 1, -1, -1):
        node = order[i]
        for k in range(operand_start[node], operand_start[node + 1]):
            following[k] = upcoming[operand_register[k]]
        for k in range(operand_start[node], operand_start[node + 1]):
            if operand_kind[k] != _UNDEF:
                upcoming[operand_register[k]] = i
    return following, first


@njit
def _furthest(residents, count, pinned, upcoming, size):
    """Place in ``residents`` of the register to send away, -1 if every one is pinned."""
    best = -1
    for place in range(count):
        r = residents[place]
        if pinned[r]:
            continue
        if best < 0:
            best = place
            continue
        b = residents[best]
        if upcoming[r] > upcoming[b] or (upcoming[r] == upcoming[b] and (size[r], -r) > (size[b], -b)):
            best = place
    return best


@njit
def _grow(events, count):
    if count < events.shape[0]:
        return events
    bigger = np.empty((events.shape[0] * 2, events.shape[1]), np.int64)
    for row in range(count):
        for column in range(events.shape[1]):
            bigger[row, column] = events[row, column]
    return bigger


@njit
def _make_room(
    needed, limit, used, residents, count, place_of, pinned, upcoming, size, in_scratch, writer, events, done, position
):
    """Send tuples away until ``needed`` more registers fit; ``position`` < 0 records no traffic (before the region)."""
    while used + needed > limit:
        place = _furthest(residents, count, pinned, upcoming, size)
        if place < 0:
            break
        r = residents[place]
        count -= 1
        residents[place] = residents[count]
        place_of[residents[place]] = place
        place_of[r] = -1
        used -= size[r]
        if not in_scratch[r]:
            in_scratch[r] = True
            if position >= 0:
                events = _grow(events, done)
                events[done, 0] = position
                events[done, 1] = 0
                events[done, 2] = r
                events[done, 3] = size[r]
                events[done, 4] = writer[r]
                done += 1
    return used, count, events, done


@njit
def _enter(r, i, limit, pool, values, counts, events):
    """Make a register resident in front of position ``i`` (reloading it if it is in scratch), sending others away for it."""
    residents, place_of, pinned = pool
    upcoming, size, in_scratch, writer = values
    used, count, events, done = _make_room(
        size[r],
        limit,
        counts[0],
        residents,
        counts[1],
        place_of,
        pinned,
        upcoming,
        size,
        in_scratch,
        writer,
        events,
        counts[2],
        i,
    )
    if in_scratch[r] and i >= 0:
        events = _grow(events, done)
        events[done, 0] = i
        events[done, 1] = 1
        events[done, 2] = r
        events[done, 3] = size[r]
        events[done, 4] = -1
        done += 1
    place_of[r] = count
    residents[count] = r
    counts[0], counts[1], counts[2] = used + size[r], count + 1, done
    return events


@njit
def _leave(r, pool, values, counts):
    """A dead register makes room."""
    residents, place_of, _ = pool
    _, size, in_scratch, _ = values
    in_scratch[r] = False
    if place_of[r] >= 0:
        counts[1] -= 1
        residents[place_of[r]] = residents[counts[1]]
        place_of[residents[counts[1]]] = place_of[r]
        place_of[r] = -1
        counts[0] -= size[r]


@njit
def _instruction(i, node, limit, operands, following, dead_after, vector, pool, values, counts, events):
    """One instruction: sources come in, sources that die make room, then the results come in."""
    operand_start, operand_register, operand_kind = operands
    _, place_of, pinned = pool
    upcoming, _, in_scratch, writer = values
    span = range(operand_start[node], operand_start[node + 1])
    for k in span:
        pinned[operand_register[k]] = True
    for phase in range(2):
        for k in span:
            r = operand_register[k]
            writes = operand_kind[k] == _DEF or operand_kind[k] == _DEAD
            if vector[r] and operand_kind[k] != _UNDEF and writes == (phase == 1) and place_of[r] < 0:
                events = _enter(r, i, limit, pool, values, counts, events)
        for k in span:
            r = operand_register[k]
            if operand_kind[k] == _UNDEF:
                continue
            if phase == 0:
                upcoming[r] = following[k]
            elif operand_kind[k] != _USE:
                in_scratch[r] = False
                writer[r] = node
            if vector[r] and dead_after[k] and (phase == 1 or operand_kind[k] == _USE):
                _leave(r, pool, values, counts)
    for k in span:
        pinned[operand_register[k]] = False
    return events


@njit
def _plan(order, operands, dead_after, size, vector, alive, limit, iterations, loop):
    """Events (rows, 5) and the row where each iteration starts."""
    registers = size.size
    following, first = _next_access(order, operands[0], operands[1], operands[2], registers, loop)
    pool = (np.empty(registers + 1, np.int64), np.full(registers, -1, np.int64), np.zeros(registers, np.bool_))
    values = (first.copy(), size, np.zeros(registers, np.bool_), np.full(registers, -1, np.int64))
    counts = np.zeros(3, np.int64)  # 32-bit registers in use, tuples resident, events so far
    events = np.empty((64, 5), np.int64)
    starts = np.zeros(iterations + 1, np.int64)
    for r in range(registers):
        if vector[r] and alive[r]:
            events = _enter(r, -1, limit, pool, values, counts, events)
    for turn in range(iterations):
        starts[turn] = counts[2]
        for i in range(order.size):
            events = _instruction(
                i, order[i], limit, operands, following, dead_after, vector, pool, values, counts, events
            )
        if loop:
            for r in range(registers):
                if not alive[r]:  # lives out of the loop, but the next iteration does not read it
                    _leave(r, pool, values, counts)
                if values[0][r] != _NONE:
                    values[0][r] -= order.size
    starts[iterations] = counts[2]
    return events[: counts[2]].copy(), starts


def plan_spills(dag: Dag, order: np.ndarray, limit: int, iterations: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Scratch traffic of ``dag`` in ``order`` with ``limit`` vector registers: (events, row where each iteration starts).

    Events are rows of position in the order, 1 for a reload or 0 for a store, register, 32-bit words, producer node (-1: a
    value from before); an event happens just before the instruction at its position.
    """
    _, dead_after, alive = walk_dag(dag, order)
    operands = (dag.operand_start, dag.operand_register, dag.operand_kind)
    size, vector = dag.register_size.astype(np.int64), dag.register_vector
    return _plan(order, operands, dead_after, size, vector, alive, limit, iterations, dag.whole_single_block_loop)
