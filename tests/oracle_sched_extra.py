"""Slow obvious twins for the scheduler's mutations, live ranges, in-order timeline and spills. Python loops, sets and dicts."""

from __future__ import annotations

from collections import defaultdict
from itertools import permutations

import numpy as np

from fastgemm.sched.inorder import StaticMachine
from fastgemm.sched.model import EdgeKind, Flag, Flavor, OperandKind

DATA, WEAK = int(EdgeKind.DATA), int(EdgeKind.WEAK)


def edges_of(dag):
    """(source, target, kind, latency) of every edge."""
    return list(
        zip(
            dag.edge_source.tolist(),
            dag.edge_target.tolist(),
            dag.edge_kind.tolist(),
            dag.edge_latency.tolist(),
            strict=True,
        )
    )


def operands_of(dag, node):
    """(register, lanes, kind) of a node."""
    span = range(int(dag.operand_start[node]), int(dag.operand_start[node + 1]))
    return [(int(dag.operand_register[k]), int(dag.operand_lanes[k]), int(dag.operand_kind[k])) for k in span]


def admit(n, edges, candidates):
    """Refused (1) or taken (0), asking before each candidate whether its target leads to its source."""
    successors = defaultdict(set)
    for source, target in edges:
        successors[source].add(target)
    verdict = []
    for source, target in candidates:
        seen, stack = {target}, [target]
        while stack:
            for other in successors[stack.pop()]:
                if other not in seen:
                    seen.add(other)
                    stack.append(other)
        verdict.append(int(source in seen))
        if source not in seen:
            successors[source].add(target)
    return verdict


def windows(dag, load_latency=60, spacing=1):
    """Budget, histograms and fragments (register, vgprs, first, last, late start, anchor, loads), by the text of the method."""
    chain = [i for i in range(dag.n) if dag.flavor[i] == Flavor.WMMA]
    position = {node: p for p, node in enumerate(chain)}
    loads = [i for i in range(dag.n) if dag.flavor[i] == Flavor.DS and dag.flags[i] & Flag.LOAD]
    uses = defaultdict(list)
    for source, target, kind, _ in edges_of(dag):
        if kind == DATA and target in position:
            uses[source].append(position[target])
    wmma = int(dag.latency[chain[0]])
    ordered = sorted((i for i in loads if uses[i]), key=lambda i: min(uses[i]))
    latest = [min(uses[i]) * wmma - load_latency for i in ordered]
    for k in range(len(latest) - 2, -1, -1):
        latest[k] = min(latest[k], latest[k + 1] - spacing)
    fragments = []
    for load, late in zip(ordered, latest, strict=True):
        register = next(r for r, _, kind in operands_of(dag, load) if kind in (OperandKind.DEF, OperandKind.DEAD_DEF))
        mine = [f for f in fragments if f["register"] == register and f["last"] >= min(uses[load])]
        if not mine:
            mine = [{"register": register, "first": 10**9, "last": -1, "latest": 10**9, "loads": []}]
            fragments += mine
        f = mine[-1]
        f["first"], f["last"] = min(f["first"], min(uses[load])), max(f["last"], max(uses[load]))
        f["latest"] = min(f["latest"], late)
        f["loads"].append(load)
    live = [0] * len(chain)
    for f in fragments:
        f["size"] = int(dag.register_size[f["register"]])
        f["late"] = max(0, int(f["latest"] / wmma))
        for p in range(f["late"], f["last"] + 1):
            live[p] += f["size"]
    before, budget = list(live), max(live, default=0)
    for f in fragments:
        early = f["late"]
        for p in range(f["late"] - 1, -1, -1):
            if live[p] + f["size"] > budget:
                break
            early = p
        for p in range(early, f["late"]):
            live[p] += f["size"]
        f["anchor"] = early
    rows = [
        (
            int(dag.register_id[f["register"]]),
            f["size"],
            f["first"],
            f["last"],
            f["late"],
            f["anchor"],
            tuple(sorted(f["loads"])),
        )
        for f in fragments
    ]
    return budget, before, live, rows


def derive_edges(nodes, latency):
    """Register edges of code given as [(register, lanes, kind), ...] per node: {(source, target, kind): latency}."""
    found = {}
    words = [[(r, w, k) for r, lanes, k in node for w in range(32) if lanes >> (2 * w) & 3] for node in nodes]
    for later in range(len(nodes)):
        reads = {(r, w) for r, w, k in words[later] if k == OperandKind.USE}
        writes = {(r, w) for r, w, k in words[later] if k in (OperandKind.DEF, OperandKind.DEAD_DEF)}
        for word in reads | writes:
            for earlier in range(later - 1, -1, -1):
                wrote = any(
                    (r, w) == word and k in (OperandKind.DEF, OperandKind.DEAD_DEF) for r, w, k in words[earlier]
                )
                read = any((r, w) == word and k == OperandKind.USE for r, w, k in words[earlier])
                if wrote and word in reads:
                    found[earlier, later, DATA] = latency[earlier]
                if wrote and word in writes:
                    found[earlier, later, int(EdgeKind.OUTPUT)] = 1
                if read and not wrote and word in writes:
                    found[earlier, later, int(EdgeKind.ANTI)] = 0
                if wrote:
                    break
    return found


def live_words(dag, order):
    """Per point of the order (entry first) the set of live (register, 32-bit word)."""
    live = set()
    for register, lanes in zip(dag.live_out_register.tolist(), dag.live_out_lanes.tolist(), strict=True):
        live |= {(register, half) for half in range(64) if lanes >> half & 1}
    points = [set(live)]
    for node in reversed(list(order)):
        for register, lanes, kind in operands_of(dag, node):
            if kind in (OperandKind.DEF, OperandKind.DEAD_DEF):
                live -= {(register, half) for half in range(64) if lanes >> half & 1}
        for register, lanes, kind in operands_of(dag, node):
            if kind == OperandKind.USE:
                live |= {(register, half) for half in range(64) if lanes >> half & 1}
        points.append(set(live))
    return [{(r, half // 2) for r, half in point} for point in reversed(points)]


def carried(dag):
    """(writer, reader) over the back edge: readers of words not yet written in program order."""
    last, pairs = {}, set()
    for turn in range(2):
        written = set()
        for node in range(dag.n):
            for register, lanes, kind in operands_of(dag, node):
                for w in range(32):
                    if kind == OperandKind.USE and lanes >> (2 * w) & 3 and turn and (register, w) not in written:
                        if (register, w) in last:
                            pairs.add((last[register, w], node))
            for register, lanes, kind in operands_of(dag, node):
                for w in range(32):
                    if kind == OperandKind.DEF and lanes >> (2 * w) & 3:
                        written.add((register, w))
                        if not turn:
                            last[register, w] = node
    return pairs


def topological_orders(dag):
    """Every order that respects the edges (tiny DAGs only)."""
    pairs = [(s, t) for s, t, kind, _ in edges_of(dag) if kind < WEAK]
    for order in permutations(range(dag.n)):
        place = {node: i for i, node in enumerate(order)}
        if all(place[s] < place[t] for s, t in pairs):
            yield order


def random_order(dag, draw):
    """A random order that respects the edges."""
    waiting = [0] * dag.n
    successors = defaultdict(list)
    for source, target, kind, _ in edges_of(dag):
        if kind < WEAK:
            waiting[target] += 1
            successors[source].append(target)
    ready = [i for i in range(dag.n) if not waiting[i]]
    order = []
    while ready:
        node = ready.pop(int(draw.integers(len(ready))))
        order.append(node)
        for target in successors[node]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return np.array(order, np.int32)


class Timeline:
    """The in-order wave, one instruction at a time; no spills. `cycles` per iteration, `waits` of the last one."""

    def __init__(self, dag, order, machine: StaticMachine, iterations: int) -> None:
        self.dag, self.m = dag, machine
        self.now = self.busy_until = 0
        self.window = None  # (start, pattern)
        self.trans = self.valu = self.valun = self.signal = -(10**9)
        self.back = {queue: [] for queue in ("lds", "vmem", "smem", "tensor")}
        self.known = dict.fromkeys(self.back, -1)  # newest access known to be back
        self.ready, self.access = {}, {}
        self.data = defaultdict(list)
        for source, target, kind, _ in edges_of(dag):
            if kind == DATA:
                self.data[target].append(source)
        self.over = defaultdict(list)
        if dag.whole_single_block_loop:
            for writer, reader in carried(dag):
                self.over[reader].append(writer)
        self.cycles, self.waits = [], []
        for turn in range(iterations):
            begin, self.waits = self.now, []
            for position, node in enumerate(order):
                self.step(int(node), position, turn)
            self.cycles.append(self.now - begin)

    def kind(self, node):
        name, flavor = self.dag.opcode_name(node), Flavor(int(self.dag.flavor[node]))
        if self.dag.micro_ops[node] == 0:
            return "free"
        if name.startswith("S_BARRIER_SIGNAL"):
            return "signal"
        if name == "S_BARRIER_WAIT":
            return "barrier"
        if name in ("S_WAIT_TENSORCNT", "S_WAIT_ASYNCCNT"):
            return "tensor_wait"
        names = {
            Flavor.DS: "lds",
            Flavor.DMA: "tensor",
            Flavor.VALU1: "valu",
            Flavor.VALUN: "valun",
            Flavor.OTHER: "other",
        }
        return names.get(flavor, flavor.name.lower())

    def latency(self, node, kind):
        if kind == "lds":
            return self.m.latency["lds_read" if self.dag.flags[node] & Flag.LOAD else "lds_write"]
        if kind == "wmma":
            return self.occupancy(node)
        if kind in ("fence", "signal", "barrier", "tensor_wait", "free"):
            return 0
        return self.m.latency.get({"valun": "valu"}.get(kind, kind), int(self.dag.latency[node]))

    def occupancy(self, node):
        pattern = self.dag.windows[self.dag.window[node]] if self.dag.window[node] >= 0 else None
        return self.m.windows[pattern][0] if pattern in self.m.windows else max(1, int(self.dag.matrix_cycles[node]))

    def wait(self, t, queue, access, position):
        younger = 0 if queue == "smem" else min(len(self.back[queue]) - 1 - access, self.m.counter_max[queue])
        access = len(self.back[queue]) - 1 - younger
        t += self.m.wait_issue
        self.waits.append((position, queue, younger))
        self.known[queue] = max(self.known[queue], access)
        return max(t, self.back[queue][access])

    def step(self, node, position, turn):
        t, kind = self.now, self.kind(node)
        sources = self.data[node] + (self.over[node] if turn else [])
        operands, need = 0, {}
        for source in sources:
            if source in self.access:
                queue, number = self.access[source]
                need[queue] = max(need.get(queue, -1), number)
            elif source in self.ready:
                operands = max(operands, self.ready[source])
        if kind == "fence":
            need.update({queue: len(self.back[queue]) - 1 for queue in self.m.fence_drains})
        for queue in ("lds", "vmem", "smem"):
            if need.get(queue, -1) > self.known[queue]:
                t = self.wait(t, queue, need[queue], position)
        if kind == "tensor_wait" and self.back["tensor"]:
            allowed = {}
            for source, target, _, latency in edges_of(self.dag):
                if target == node and self.kind(source) == "tensor":
                    allowed[source] = max(allowed.get(source, 0), latency)
            wanted = len(self.back["tensor"]) - 1 - sum(latency <= 1 for latency in allowed.values())
            if wanted > self.known["tensor"]:
                self.known["tensor"] = wanted
                t = max(t, self.back["tensor"][wanted])
        t = max(t, operands)
        if kind == "barrier":
            t = max(t, self.signal + self.m.latency["barrier"])
        if kind in self.back and len(self.back[kind]) >= self.m.in_flight[kind]:
            t = max(t, self.back[kind][-self.m.in_flight[kind]])
        t = self.hazards(t, node, kind)
        self.issue(t, node, kind)

    def hazards(self, t, node, kind):
        scaled = "_SCALE" in self.dag.opcode_name(node)
        if kind == "wmma":
            t = max(t, self.busy_until, self.trans + self.m.wmma_after_trans)
            if scaled:
                t += self.m.scaled_after_valu if self.valu == t - 1 else 0
                t += 1 if self.trans == t - self.m.scaled_after_trans else 0
        if kind in ("wmma", "valu", "trans", "valun"):
            t = max(t, self.valun)
        if kind in ("trans", "valun"):
            t = max(t, self.trans + self.m.trans_spacing)
        if self.window is not None:
            start, pattern = self.window
            if kind == "valun":
                return max(t, start + len(pattern))
            name = "scaled" if kind == "wmma" and scaled else {"lds": "ds", "tensor": "valu"}.get(kind, kind)
            name = name if name in self.m.classes["A"] else "other"
            while t - start < len(pattern) and name not in self.m.classes[pattern[t - start]]:
                t += 1
        return t

    def issue(self, t, node, kind):
        if kind in self.back:
            before = self.back[kind][-1] if self.back[kind] else 0
            self.back[kind].append(max(before, t + self.latency(node, kind)))
            self.access[node] = (kind, len(self.back[kind]) - 1)
        else:
            self.ready[node] = t + self.latency(node, kind)
        if kind == "wmma":
            self.busy_until = t + self.occupancy(node)
            pattern = self.dag.windows[self.dag.window[node]] if self.dag.window[node] >= 0 else None
            self.window = None if pattern is None else (t, self.m.windows.get(pattern, (0, pattern))[1])
        if kind in ("valu", "trans", "valun"):
            self.valu = t
        if kind == "trans":
            self.trans = t
        if kind == "valun":
            self.valun = t + max(1, int(self.dag.repeat[node]))
        if kind == "signal":
            self.signal = t
        self.now = t + (kind != "free")
