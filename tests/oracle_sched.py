"""A slow obvious twin of the early CoExec ladder: Python lists, sets and dicts, every candidate against the champion in turn."""

from __future__ import annotations

from fastgemm.sched.model import EdgeKind, Flag, Flavor, OperandKind, Reason

PRODUCERS = {Flavor.WMMA, Flavor.TRANS, Flavor.VALUN}
GATE, AVAILABLE_LIMIT = 16, 256


def successors_of(dag):
    """Per node its gating edges (target, latency) in order."""
    span = [range(int(dag.edge_start[n]), int(dag.edge_start[n + 1])) for n in range(dag.n)]
    return [
        [(int(dag.edge_target[e]), int(dag.edge_latency[e])) for e in edges if dag.edge_kind[e] < EdgeKind.WEAK]
        for edges in span
    ]


class Registers:
    """Live lanes by brute force: who defines each lane's value, who still has to read it."""

    def __init__(self, dag):
        self.dag = dag
        self.live = set()  # (register, lane, definer)
        self.readers = {}  # (register, lane, definer) -> unscheduled readers
        self.stays = set()
        current, dead = {}, set()
        for register, lane in self._lanes(dag.live_in_register, dag.live_in_lanes):
            current[register, lane] = (register, lane, "in")
            self.live.add((register, lane, "in"))
        self.reads, self.defines = [set() for _ in range(dag.n)], [set() for _ in range(dag.n)]
        for n in range(dag.n):
            for k in range(int(dag.operand_start[n]), int(dag.operand_start[n + 1])):
                if dag.operand_kind[k] == OperandKind.USE:
                    for key in self._lanes([dag.operand_register[k]], [dag.operand_lanes[k]]):
                        if key in current:
                            self.reads[n].add(current[key])
                            self.readers.setdefault(current[key], set()).add(n)
            for k in range(int(dag.operand_start[n]), int(dag.operand_start[n + 1])):
                if dag.operand_kind[k] in (OperandKind.DEF, OperandKind.DEAD_DEF):
                    for key in self._lanes([dag.operand_register[k]], [dag.operand_lanes[k]]):
                        old = current.get(key)
                        if old is not None and old[2] == "in" and not self.readers.get(old):
                            self.readers[old] = {n}  # overwritten unread
                            self.reads[n].add(old)
                        current[key] = (*key, n)
                        self.defines[n].add((*key, n))
                        if dag.operand_kind[k] == OperandKind.DEAD_DEF:
                            dead.add((*key, n))
        for key in self._lanes(dag.live_out_register, dag.live_out_lanes):
            if key in current and (current[key] not in dead or self.readers.get(current[key])):
                self.stays.add(current[key])
        self.defines = [{v for v in d if self.readers.get(v) or v in self.stays} for d in self.defines]

    @staticmethod
    def _lanes(registers, masks):
        for register, mask in zip(registers, masks, strict=True):
            for lane in range(64):
                if int(mask) >> lane & 1:
                    yield int(register), lane

    def after(self, n):
        """Live values once n is scheduled."""
        dying = {v for v in self.reads[n] if self.readers[v] == {n} and v not in self.stays}
        return (self.live - dying) | self.defines[n]

    def count(self, live, vector):
        """32-bit registers of a class with a live lane."""
        return len({(r, lane // 2) for r, lane, _ in live if bool(self.dag.register_vector[r]) == vector})

    def commit(self, n):
        """Schedule n."""
        self.live = self.after(n)
        for value in self.reads[n]:
            self.readers[value].discard(n)


class Early:
    """The early build's scheduler on one DAG; `run` returns (node, cycle, ready, reason, available, pending) per pick."""

    def __init__(self, dag):
        self.dag = dag
        self.successors = successors_of(dag)
        self.predecessors = [[] for _ in range(dag.n)]
        for n, edges in enumerate(self.successors):
            for target, _ in edges:
                self.predecessors[target].append(n)
        self.open = [len(p) for p in self.predecessors]
        self.ready, self.done = [0] * dag.n, [False] * dag.n
        self.cycle = self.uops = 0
        self.reserved = -1
        self.check = False
        self.available, self.pending = [], []
        self.registers = Registers(dag)
        self.members = {f: [n for n in range(dag.n) if dag.flavor[n] == f] for f in Flavor}
        self.total = {f: sum(int(dag.unit_cycles[n]) for n in nodes) for f, nodes in self.members.items()}
        self.priority = {f: self._least(nodes) for f, nodes in self.members.items()}

    def _least(self, nodes):
        depth = min((self.dag.depth[n] for n in nodes), default=0)
        return [n for n in nodes if self.dag.depth[n] == depth]

    def hazard(self, n):
        uops = self.dag.micro_ops[n]
        busy = self.dag.matrix_cycles[n] >= 0 and self.reserved > self.cycle
        return busy or (uops > 0 and self.uops > 0 and self.uops + uops > 1)

    def release(self, n):
        full = self.hazard(n) or len(self.available) >= AVAILABLE_LIMIT
        (self.pending if full else self.available).append(n)

    @staticmethod
    def _take(queue, i):
        queue[i] = queue[-1]
        queue.pop()

    def release_pending(self):
        self.check = False
        i = 0
        while i < len(self.pending):
            if len(self.available) < AVAILABLE_LIMIT and not self.hazard(self.pending[i]):
                self.available.append(self.pending[i])
                self._take(self.pending, i)
            else:
                i += 1

    def advance(self, cycle):
        self.uops = max(0, self.uops - (cycle - self.cycle))
        self.cycle = cycle
        self.check = True

    def settle(self):
        if self.check:
            self.release_pending()
        i = 0
        while i < len(self.available):
            if self.hazard(self.available[i]):
                self.pending.append(self.available[i])
                self._take(self.available, i)
            else:
                i += 1
        while not self.available:
            self.advance(self.cycle + 1)
            self.release_pending()

    def bias(self, n):
        flags = int(self.dag.flags[n])
        if flags & (Flag.COPY_FROM_PHYS | Flag.IMM_TO_PHYS):
            return 1
        if flags & Flag.COPY_TO_PHYS:
            return 1 if self.successors[n] else -1
        return 0

    def excess(self, n):
        registers, dag = self.registers, self.dag
        if registers.count(registers.live, True) + GATE >= dag.vgpr_limit:
            vector, limit = True, dag.vgpr_limit
        elif registers.count(registers.live, False) >= dag.sgpr_limit:
            vector, limit = False, dag.sgpr_limit
        else:
            return -1
        new = registers.count(registers.after(n), vector)
        return new - limit if new >= limit else -1

    def stall(self, n):
        matrix = self.reserved - self.cycle if self.dag.matrix_cycles[n] >= 0 else 0
        return max(0, self.ready[n] - self.cycle, matrix)

    def units(self):
        return sorted(
            (f for f in Flavor if self.members[f] or self.total[f]),
            key=lambda f: (f not in PRODUCERS, -self.total[f], len(self.members[f]), int(f)),
        )

    def target(self, unit, deep):
        waiting = [n for n in self.priority[unit] if self.open[n] > 0]
        if waiting:
            return waiting[0]
        waiting = [n for n in self.members[unit] if self.open[n] > 0] if deep else []
        return min(waiting, key=lambda n: (self.dag.depth[n], n), default=None)

    def reaches(self, a, b):
        seen, stack = {a}, [a]
        while stack:
            for target, _ in self.successors[stack.pop()]:
                if target == b:
                    return True
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
        return False

    def dependency(self, a, b):
        """-1 the champion a, +1 the challenger b, 0 undecided."""
        deep = Flavor.DS in (self.dag.flavor[a], self.dag.flavor[b])
        for unit in self.units():
            target = self.target(unit, deep and unit == Flavor.WMMA)
            if target is None:
                continue
            one, other = self.reaches(a, target), self.reaches(b, target)
            if one and other:
                return 1 if self.dag.height[b] > self.dag.height[a] else -1
            if one or other:
                return -1 if one else 1
        return 0

    def critical(self, a, b):
        for unit in self.units():
            one, other = self.dag.flavor[a] == unit, self.dag.flavor[b] == unit
            if one != other:
                return -1 if one else 1
            if one and other:
                if unit == Flavor.DS and (decided := self.dependency(a, b)):
                    return decided
                listed = [n for n in self.priority[unit] if n in (a, b)]
                if listed:
                    return -1 if listed[0] == a else 1
        return 0

    def compare(self, a, b):
        """(decision, reason)."""
        for key, reason in ((lambda n: -self.bias(n), 1), (self.excess, 2), (self.stall, 4)):
            if key(a) != key(b):
                return (-1 if key(a) < key(b) else 1), Reason(reason)
        if decided := self.critical(a, b):
            return decided, Reason.CRIT_RESOURCE
        if decided := self.dependency(a, b):
            return decided, Reason.CRIT_RESOURCE_DEP
        return (-1 if a < b else 1), Reason.ORDER

    def choose(self):
        candidates = self.available + self.pending
        champion, own, printed = candidates[0], Reason.FIRST, None
        if len(self.available) == 1 and not self.pending:
            return champion, Reason.ONLY_CHOICE
        for challenger in candidates[1:]:
            decided, reason = self.compare(champion, challenger)
            if reason in (Reason.CRIT_RESOURCE, Reason.CRIT_RESOURCE_DEP):
                printed = reason
            if decided > 0:
                champion, own = challenger, reason
            else:
                own = min(own, reason)
        return champion, own if printed is None else printed

    def schedule_unit(self, n):
        unit = Flavor(int(self.dag.flavor[n]))
        if self.total[unit] == 0:
            return
        self.members[unit].remove(n)
        self.total[unit] -= int(self.dag.unit_cycles[n])
        if n in self.priority[unit]:
            self.priority[unit].remove(n)
        if not self.priority[unit]:
            self.priority[unit] = self._least(self.members[unit])

    def commit(self, n):
        self.schedule_unit(n)
        self.registers.commit(n)
        self.done[n] = True
        self.ready[n] = max(self.ready[n], self.cycle)
        following = self.ready[n]
        if self.dag.matrix_cycles[n] >= 0:
            following = max(following, self.reserved)
            self.reserved = following + int(self.dag.matrix_cycles[n])
        if following > self.cycle:
            self.advance(following)
        self.uops += int(self.dag.micro_ops[n])
        while self.uops >= 1:
            following += 1
            self.advance(following)
        for target, latency in self.successors[n]:
            self.ready[target] = max(self.ready[target], self.ready[n] + latency)
            self.open[target] -= 1
            if self.open[target] == 0:
                self.release(target)

    def run(self):
        picks = []
        for n in range(self.dag.n):
            if self.open[n] == 0:
                self.release(n)
        for _ in range(self.dag.n):
            self.settle()
            lengths = len(self.available), len(self.pending)
            n, reason = self.choose()
            if n in self.available:
                self._take(self.available, self.available.index(n))
            else:
                if self.ready[n] > self.cycle:
                    self.advance(self.ready[n])
                while self.hazard(n):
                    self.advance(self.cycle + 1)
                self.release_pending()
                queue = self.available if n in self.available else self.pending
                self._take(queue, queue.index(n))
            cycle = self.cycle
            self.commit(n)
            picks.append((n, cycle, self.ready[n], int(reason), *lengths))
        return picks
