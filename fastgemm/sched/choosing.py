"""Which candidate a pick takes, and the reason that is printed (jitted).

The compiler compares a champion with every challenger in turn.  As long as every step of the ladder orders the candidates
(a key each, ties keep the champion), the last champion is the first candidate with the smallest keys, step by step: `best`
sieves the candidates instead of comparing pairs.  Where a step depends on the pair, the survivors fall back to a `duel`.
The printed reason is that of the last comparison so decided, which a few comparisons from the end tell.
"""

from __future__ import annotations

import numpy as np

from . import layout as L
from .ladder_steps import NOTHING, memory_wait, missed_stages, note_idle, pair_mix, step_key, wake
from .model import Flavor, Reason
from .native import inner
from .units import DEEP, mark_targets

__all__ = ["choose"]

_WMMA, _TRANS, _VALUN, _DS, _SALU = (int(f) for f in (Flavor.WMMA, Flavor.TRANS, Flavor.VALUN, Flavor.DS, Flavor.SALU))
_MEMORY_GROUPS = 1 << L.G_DS | 1 << L.G_VMEM | 1 << L.G_DMA
_MISSING_GROUPS = 1 << L.G_DS | 1 << L.G_SALU | 1 << L.G_SALU_FREE
_NOT_BY_KILLS = 1 << _DS | 1 << int(Flavor.VMEM)
_FIRST, _SHARED = int(Reason.FIRST), int(Reason.EFFECTIVE_STALL)  # reasons from _SHARED on belong to the pick


@inner
def node_at(s, place):  # type: ignore[no-untyped-def]
    """The node of the candidate at a place."""
    return s.work[s.c[L.W_CANDIDATES] + place] & L.NODE_MASK


@inner
def gather(s):  # type: ignore[no-untyped-def]
    """List the candidates, Available before Pending, with their waits."""
    c, work = s.c, s.work
    cycle, listed, stalls = c[L.C_CYCLE], c[L.W_CANDIDATES], c[L.W_STALLS]
    carried = (s.model[L.M_STALLS] >> L.K_CARRIED) & 1
    memory = _MEMORY_GROUPS if (s.model[L.M_STALLS] >> L.K_RAW) & 3 != 0 else 0  # visible latencies or readers count
    least = NOTHING
    for queue in range(2):
        at, count = c[L.W_AVAILABLE + queue], c[L.C_AVAILABLE + queue]
        for i in range(count):
            word = work[at + i]
            group = (word >> L.GROUP_SHIFT) & 15
            wait = max(c[L.C_STALL + group], (word >> L.READY_SHIFT) - cycle)
            if (memory >> group) & 1:
                wait = memory_wait(s, word & L.NODE_MASK, wait)
            if carried != 0:
                wait = max(wait, s.node[(word & L.NODE_MASK) * L.NODE + L.CARRIED] - cycle)
            work[listed + i] = word
            work[stalls + i] = wait
            least = min(least, wait)
        listed += count
        stalls += count
    c[L.C_CANDIDATES], c[L.C_LEAST] = c[L.C_AVAILABLE] + c[L.C_PENDING], least


@inner
def compare(s, first, i, j):  # type: ignore[no-untyped-def]
    """The champion at place i against the challenger at j from a step on: +reason if j wins, -reason if i, 0 if undecided."""
    c, m = s.c, s.model
    a, b = node_at(s, i), node_at(s, j)
    flavor_a, flavor_b = s.node[a * L.NODE + L.FLAVOR], s.node[b * L.NODE + L.FLAVOR]
    for k in range(first, m[L.M_STEPS]):
        step = m[L.M_LADDER + 2 * k]
        if not wake(s, step):
            continue
        if step == L.S_MIX_SCORE and c[L.C_MIX] == 3:
            pair_mix(s, a, b)
        if flavor_a != flavor_b and (step == L.S_LISTED or step == L.S_LISTED_WMMA or step == L.S_ENABLES_DS):
            continue
        if (step == L.S_RANK and flavor_a == flavor_b) or (step == L.S_ENABLES_DS and flavor_a != _DS):
            continue
        if step == L.S_KILLS and (1 << flavor_a | 1 << flavor_b) & _NOT_BY_KILLS:
            continue
        c[L.C_DEEP] = 1 if flavor_a == _DS or flavor_b == _DS else 0
        key_a, key_b = step_key(s, step, i), step_key(s, step, j)
        if step == L.S_LOOP and (key_a == NOTHING or key_b == NOTHING):
            continue
        if key_a != key_b:
            return m[L.M_LADDER + 2 * k + 1] if key_b < key_a else -m[L.M_LADDER + 2 * k + 1]
        if key_a != NOTHING and (step == L.S_ENABLES or step == L.S_ENABLES_DS):
            return -m[L.M_LADDER + 2 * k + 1]  # both enable the target equally: the champion stays, decided
    return 0


@inner
def _pairwise(s, step, source, count):  # type: ignore[no-untyped-def]
    """Does the step depend on which two of the survivors meet?"""
    c, work, node = s.c, s.work, s.node
    if step == L.S_MIX_SCORE:
        if c[L.C_MIX] != 3:
            return False
        for i in range(count):
            flavor = node[node_at(s, work[source + i]) * L.NODE + L.FLAVOR]
            if flavor == _WMMA or flavor == _TRANS or flavor == _VALUN:
                return True
        return False
    if step == L.S_KILLS:  # silent between pairs with a memory instruction
        for i in range(count):
            if (_NOT_BY_KILLS >> node[node_at(s, work[source + i]) * L.NODE + L.FLAVOR]) & 1:
                return True
        return False
    if step == L.S_LOOP:
        known = 0
        for i in range(count):
            known += 1 if step_key(s, step, work[source + i]) != NOTHING else 0
        return known != 0 and known != count
    if step >= L.S_ENABLES_DS and step <= L.S_ENABLES_ALL:
        flavor = node[node_at(s, work[source]) * L.NODE + L.FLAVOR]
        c[L.C_DEEP] = 1 if flavor == _DS else 0
        for i in range(1, count):
            if node[node_at(s, work[source + i]) * L.NODE + L.FLAVOR] != flavor:
                return True
    return False


@inner
def _duel(s, first, source, count):  # type: ignore[no-untyped-def]
    """The last champion of survivors that meet in turn from a step on; survivors are places."""
    champion = s.work[source]
    for i in range(1, count):
        if compare(s, first, champion, s.work[source + i]) > 0:
            champion = s.work[source + i]
    return champion


@inner
def _add_missed(s, limit):  # type: ignore[no-untyped-def]
    """Waits plus the window stages a node would waste, which only DS nodes and scalar copies do."""
    c, work = s.c, s.work
    for i in range(limit):
        word, wait = work[c[L.W_CANDIDATES] + i], work[c[L.W_STALLS] + i]
        if (_MISSING_GROUPS >> ((word >> L.GROUP_SHIFT) & 15)) & 1:
            wait += missed_stages(s, word & L.NODE_MASK)
        work[c[L.W_COSTS] + i] = wait


@inner
def _cheapest(s, limit, costs, members):  # type: ignore[no-untyped-def]
    """List the places of the candidates with the smallest cost; returns their number."""
    c, work = s.c, s.work
    smallest = c[L.C_LEAST]
    if costs != c[L.W_STALLS] or limit != c[L.C_CANDIDATES]:
        smallest = NOTHING
        for i in range(limit):
            smallest = min(smallest, work[costs + i])
    count = 0
    for i in range(limit):
        if work[costs + i] == smallest:
            work[members + count] = i
            count += 1
    return count


@inner
def _first_node(s, source, count):  # type: ignore[no-untyped-def]
    """Place of the smallest node; the list stays as it is, these are the candidates nothing else tells apart."""
    c, work, listed = s.c, s.work, s.c[L.W_CANDIDATES]
    c[L.C_TIED_AT], c[L.C_TIED] = source, count
    first, place = NOTHING, 0
    for i in range(count):
        n = work[listed + work[source + i]] & L.NODE_MASK
        if n < first:
            first, place = n, work[source + i]
    return place


@inner
def _sieve_rank(s, source, count, target):  # type: ignore[no-untyped-def]
    """Keep the candidates of the unit that comes first in the sort."""
    work, unit, listed = s.work, s.unit, s.c[L.W_CANDIDATES]
    smallest = NOTHING
    kept = 0
    for i in range(count):
        place = work[source + i]
        key = unit[((work[listed + place] >> L.FLAVOR_SHIFT) & 15) * L.UNIT + L.U_RANK]
        if key <= smallest:
            kept = kept if key == smallest else 0
            smallest = key
            work[target + kept] = place
            kept += 1
    return kept


@inner
def _sieve_listed(s, source, count, target):  # type: ignore[no-untyped-def]
    """Keep the first node of the priority list; all of them if none is in it. They are of one unit."""
    work, node, listed = s.work, s.node, s.c[L.W_CANDIDATES]
    depth = s.unit[((work[listed + work[source]] >> L.FLAVOR_SHIFT) & 15) * L.UNIT + L.U_DEPTH]
    first = NOTHING
    kept = 0
    for i in range(count):
        place = work[source + i]
        n = work[listed + place] & L.NODE_MASK
        if n < first and node[n * L.NODE + L.DEPTH] == depth:
            first = n
            kept = place
    if first == NOTHING:
        return count
    work[target] = kept
    return 1


@inner
def _sieve(s, step, source, count, target):  # type: ignore[no-untyped-def]
    """Copy the survivors with the smallest key, in order; returns their number."""
    work = s.work
    smallest = NOTHING + 1
    kept = 0
    for i in range(count):
        place = work[source + i]
        key = step_key(s, step, place)
        if key < smallest:
            smallest = key
            kept = 0
        if key == smallest:
            work[target + kept] = place
            kept += 1
    return kept


@inner
def _sieve_alike(s, step, source, count, target):  # type: ignore[no-untyped-def]
    """`_sieve` for steps that tell candidates of one unit and wait apart only if they are scalar copies: a key per run of them."""
    work, listed, stalls = s.work, s.c[L.W_CANDIDATES], s.c[L.W_STALLS]
    smallest = NOTHING + 1
    kept = key = 0
    known, known_wait = -1, 0
    for i in range(count):
        place = work[source + i]
        flavor = (work[listed + place] >> L.FLAVOR_SHIFT) & 15
        if flavor != known or flavor == _SALU or work[stalls + place] != known_wait:
            key = step_key(s, step, place)
            known, known_wait = flavor, work[stalls + place]
        if key < smallest:
            smallest = key
            kept = 0
        if key == smallest:
            work[target + kept] = place
            kept += 1
    return kept


@inner
def _sieve_waits(s, step, source, count, target):  # type: ignore[no-untyped-def]
    """Keep the candidates with the smallest wait (and missed stages)."""
    c, work = s.c, s.work
    costs = c[L.W_STALLS]
    if step == L.S_COST and c[L.C_WINDOW] >= 0:
        _add_missed(s, c[L.C_CANDIDATES])
        costs = c[L.W_COSTS]
    smallest = NOTHING
    kept = 0
    for i in range(count):
        place = work[source + i]
        cost = work[costs + place]
        if cost <= smallest:
            kept = kept if cost == smallest else 0
            smallest = cost
            work[target + kept] = place
            kept += 1
    return kept


@inner
def _sieve_flavor(s, flavor, source, count, target):  # type: ignore[no-untyped-def]
    """Keep the candidates of a flavor; all of them if there is none."""
    work, listed = s.work, s.c[L.W_CANDIDATES]
    kept = 0
    for i in range(count):
        place = work[source + i]
        if (work[listed + place] >> L.FLAVOR_SHIFT) & 15 == flavor:
            kept += 1
    if kept == 0 or kept == count:
        return count
    kept = 0
    for i in range(count):
        place = work[source + i]
        if (work[listed + place] >> L.FLAVOR_SHIFT) & 15 == flavor:
            work[target + kept] = place
            kept += 1
    return kept


@inner
def _sieve_enabling(s, step, source, count, target):  # type: ignore[no-untyped-def]
    """Unit by unit in sorted order, keep the candidates that enable its target if some do; they are of one unit.

    In the early form the first such unit decides, and of its nodes the first of the greatest height.
    """
    c, work, live, node = s.c, s.work, s.live, s.node
    if c[L.C_MARKED] == 0:
        mark_targets(s)
    listed = c[L.W_CANDIDATES]
    deep = (work[listed + work[source]] >> L.FLAVOR_SHIFT) & 15 == _DS
    some = 0
    for i in range(count):
        some |= live[(work[listed + work[source + i]] & L.NODE_MASK) * L.LIVE + L.MARK]
    if some == 0:
        return count
    for i in range(c[L.C_UNITS]):
        bit = c[L.C_ORDER + i]
        if bit == _WMMA and deep:
            bit = DEEP
        if (some >> bit) & 1 == 0:
            continue
        kept = some = 0
        for k in range(count):
            place = work[source + k]
            marks = live[(work[listed + place] & L.NODE_MASK) * L.LIVE + L.MARK]
            if (marks >> bit) & 1:
                some |= marks
                work[target + kept] = place
                kept += 1
        source, count = target, kept
        if step != L.S_ENABLES_ALL:
            tallest = 0
            for k in range(1, count):
                a, b = node_at(s, work[target + tallest]), node_at(s, work[target + k])
                if node[b * L.NODE + L.HEIGHT] > node[a * L.NODE + L.HEIGHT]:
                    tallest = k
            work[target] = work[target + tallest]
            return 1  # equals keep the champion, and no later step is asked
        if count == 1:
            break
    return count


@inner
def _narrow(s, step, source, count, target):  # type: ignore[no-untyped-def]
    """One step of the sieve; returns how many survive in `target`, or `count` if all survive where they are."""
    if step == L.S_RANK:
        return _sieve_rank(s, source, count, target)
    if step == L.S_STALL or step == L.S_COST:
        return _sieve_waits(s, step, source, count, target)
    if step == L.S_MIX_MATCH:
        return _sieve_flavor(s, s.c[L.C_AIM], source, count, target)
    flavor = (s.work[s.c[L.W_CANDIDATES] + s.work[source]] >> L.FLAVOR_SHIFT) & 15
    if step == L.S_LISTED or step == L.S_LISTED_WMMA:
        return _sieve_listed(s, source, count, target) if step == L.S_LISTED or flavor == _WMMA else count
    if step >= L.S_ENABLES_DS and step <= L.S_ENABLES_ALL:
        return count if step == L.S_ENABLES_DS and flavor != _DS else _sieve_enabling(s, step, source, count, target)
    if step == L.S_MISSED or step == L.S_SLOT or step == L.S_PIPELINE or step == L.S_PIPELINE_ANY:
        return _sieve_alike(s, step, source, count, target)
    return _sieve(s, step, source, count, target)


@inner
def _start(s, limit):  # type: ignore[no-untyped-def]
    """Everybody is in the class."""
    for i in range(limit):
        s.work[s.c[L.W_CLASS] + i] = i


@inner
def _begin(s, step, limit, target):  # type: ignore[no-untyped-def]
    """Make the list of places, after the step of the waits if that is the first one; returns its length."""
    c = s.c
    if step == L.S_STALL or (step == L.S_COST and c[L.C_WINDOW] < 0):
        return _cheapest(s, limit, c[L.W_STALLS], target)
    if step == L.S_COST:
        _add_missed(s, limit)
        return _cheapest(s, limit, c[L.W_COSTS], target)
    for i in range(limit):
        s.work[target + i] = i
    return limit


@inner
def best(s, limit):  # type: ignore[no-untyped-def]
    """Place of the last champion of the first `limit` candidates.

    Leaves the survivors of the candidates' own steps as the class, in `C_DECIDED` the last step that removed somebody, and as
    `C_TIED` the candidates only their order told apart.
    """
    c, m = s.c, s.model
    source, count = c[L.W_CLASS], 0  # 0: no list yet
    own = m[L.M_OWN_STEPS]
    c[L.C_DECIDED], c[L.C_TIED], c[L.C_CLASS] = -1, 0, 0
    uniform = False  # are the survivors of one unit?
    if limit == 1:
        c[L.C_WHOLE], c[L.C_CLASS] = 1, 1
        return 0
    for k in range(m[L.M_STEPS]):
        target = c[L.W_CLASS] if k < own else c[L.W_ALIVE]
        if k == own:
            c[L.C_WHOLE], c[L.C_CLASS] = (1, limit) if count == 0 else (0, count)
        if count == 1:
            if k < own:
                continue
            break
        step = m[L.M_LADDER + 2 * k]
        if not wake(s, step):
            continue
        if count == 0:
            source, count = target, _begin(s, step, limit, target)
            if step == L.S_STALL or step == L.S_COST:
                c[L.C_DECIDED] = k if count < limit else -1
                continue
        if step == L.S_KILLS or step == L.S_MIX_SCORE or step == L.S_LOOP or (step >= L.S_ENABLES_DS and not uniform):
            if _pairwise(s, step, source, count):
                c[L.C_DECIDED] = -1
                return _duel(s, k, source, count)
        if step >= L.S_MIX_SCORE and step <= L.S_MIX_MATCH and c[L.C_MIX] == 3:
            continue
        if step == L.S_ORDER:
            c[L.C_DECIDED] = k
            return _first_node(s, source, count)
        kept = _narrow(s, step, source, count, target)
        if kept < count:
            source, count = target, kept
            c[L.C_DECIDED] = k
        uniform = uniform or step == L.S_RANK
    return s.work[source]


@inner
def log_queues(s):  # type: ignore[no-untyped-def]
    """Open the record of a pick: -1, its number, the cycle, the lengths of both queues, their nodes."""
    c = s.c
    at = c[L.C_LOGGED]
    c[L.C_LOGGED] += 5 + c[L.C_CANDIDATES]
    if c[L.C_LOGGING] == 2:
        s.log[at], s.log[at + 1], s.log[at + 2] = -1, c[L.C_PICKS], c[L.C_CYCLE]
        s.log[at + 3], s.log[at + 4] = c[L.C_AVAILABLE], c[L.C_PENDING]
        for i in range(c[L.C_CANDIDATES]):
            s.log[at + 5 + i] = node_at(s, i)


@inner
def in_turn(s):  # type: ignore[no-untyped-def]
    """All candidates in turn, as the compiler does it: the winner; the reason goes to the scalars, comparisons to the log."""
    c = s.c
    champion = 0
    own, shared = _FIRST, 0
    for challenger in range(1, c[L.C_CANDIDATES]):
        decided = compare(s, 0, champion, challenger)
        if c[L.C_LOGGING] == 2:
            at = c[L.C_LOGGED]
            s.log[at], s.log[at + 1], s.log[at + 2] = node_at(s, champion), node_at(s, challenger), decided
        c[L.C_LOGGED] += 3
        reason = abs(decided)
        if reason >= _SHARED:
            shared = reason
        if decided > 0:
            champion, own = challenger, reason
        elif decided < 0 and reason < own:
            own = reason
    c[L.C_REASON] = shared if shared != 0 else own
    return np.int64(champion)


@inner
def _member(s, i):  # type: ignore[no-untyped-def]
    """Place of the i-th candidate of the class."""
    return i if s.c[L.C_WHOLE] != 0 else s.work[s.c[L.W_CLASS] + i]


@inner
def find_reason(s, winner):  # type: ignore[no-untyped-def]
    """The reason of the last comparison whose reason belongs to the pick; 0 if there is none.

    Going back from the last candidate: members of the class meet the champion of their time, and those tied with it lose by
    their order, a reason of their own.
    """
    c, m = s.c, s.model
    champion = winner
    if c[L.C_CLASS] > 0 and c[L.C_DECIDED] >= m[L.M_OWN_STEPS] and _member(s, c[L.C_CLASS] - 1) == winner:
        reason = m[L.M_LADDER + 2 * c[L.C_DECIDED] + 1]  # it came last and beat the best of the others there
        if reason >= _SHARED:
            return reason
    while True:
        i, tied = c[L.C_CLASS] - 1, c[L.C_TIED] - 1
        while i >= 0 and _member(s, i) > champion:
            if tied >= 0 and s.work[c[L.C_TIED_AT] + tied] == _member(s, i):
                tied -= 1
            else:
                reason = abs(compare(s, m[L.M_OWN_STEPS], champion, _member(s, i)))
                if reason >= _SHARED:
                    return reason
            i -= 1
        if c[L.C_TIED] > 0 and c[L.C_TIED] == c[L.C_CLASS]:
            champion = _member(s, 0)  # the whole class is tied, nothing was decided among its members
        if champion == 0:
            return 0
        before = best(s, champion)
        reason = abs(compare(s, 0, before, champion))
        if reason >= _SHARED:
            return reason
        champion = before


@inner
def look_back(s, winner):  # type: ignore[no-untyped-def]
    """Sort the units (and plan windows) if any comparison of this pick would have: the order outlives the pick.

    Candidates before the winner that tied with the best of their time reached those steps, though all of them lost.
    """
    c, work = s.c, s.work
    waits_first = s.model[L.M_LADDER + 2 * s.model[L.M_OWN_STEPS]] == L.S_COST
    if waits_first and (c[L.C_IDLE] >> L.S_BIAS) & 1 and (c[L.C_IDLE] >> L.S_EXCESS) & 1:
        costs = c[L.W_STALLS] if c[L.C_WINDOW] < 0 else c[L.W_COSTS]
        least, tied = NOTHING, False
        for i in range(winner):
            tied = tied or work[costs + i] == least
            least = min(least, work[costs + i])
        if not tied:
            return
    limit = winner
    while limit > 0 and c[L.C_SORTED] == 0:
        limit = best(s, limit)


@inner
def choose(s):  # type: ignore[no-untyped-def]
    """Place of the candidate to schedule; the printed reason goes to the scalars."""
    c = s.c
    gather(s)
    note_idle(s)
    c[L.C_REASON] = 0
    if c[L.C_LOGGING] != 0:
        log_queues(s)
    if c[L.C_AVAILABLE] == 1 and c[L.C_PENDING] == 0:
        return 0
    if c[L.C_LOGGING] != 0:
        return in_turn(s)
    winner = best(s, c[L.C_CANDIDATES])
    reason = find_reason(s, winner)
    if c[L.C_SORTED] == 0 and s.model[L.M_EXPOSURE] != 0:
        look_back(s, winner)
    if reason == 0:
        return in_turn(s)
    c[L.C_REASON] = reason
    return winner
