"""The scheduler against the compilers' own schedules, LLVM's tests, and a slow twin of the early ladder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_sched import Early

import fastgemm.sched as sched
from fastgemm.sched import Dag, DagError, Flavor
from fastgemm.sched.model import parse_flavor

DATA = Path(__file__).parent / "data"
SHARED = Path(__file__).parents[2] / "shared" / "corpus"
CASES = {case["name"]: case for case in json.loads((DATA / "coexec_cases.json").read_text())["cases"]}
SCHEDULED = [name for name, case in CASES.items() if case["kind"] == "schedule"]


@pytest.fixture(scope="module")
def regions():
    """The regions of the repository's own corpus files, both compilers."""
    return sched.read_corpus(DATA / "corpus")


def upstream(case):
    """The upstream profile with a case's options."""
    options = case["strategy_options"]
    profile = sched.profile("upstream")
    if options["memory_pipeline"]:
        profile = profile.with_rung("memory_pipeline_any", after="effective_stall")
    if not options["window_model"]:
        profile = profile.replace(hazards=False)
    if options["block_carried_latency"] != "off":
        profile = profile.replace(stalls=(*profile.stalls, "carried"))
    return profile


@pytest.mark.parametrize("name", SCHEDULED)
def test_orders_of_llvms_own_tests(name):
    case = CASES[name]
    carried = case["strategy_options"].get("carried", {})
    instructions = [{**item, "carried": carried.get(item["id"], 0)} for item in case["instructions"]]
    dag = Dag.build(instructions, case["dependencies"], machine="upstream")
    order = sched.schedule(dag, profile=upstream(case)).order
    assert [instructions[n]["id"] for n in order] == case["expected_order"]


def test_unit_totals_of_llvms_own_test():
    case = CASES["hwui_totals"]
    flavors = ["VMEM", "DS", "DMA", "SingleCycleVALU", "TRANS"]
    items = [
        {"opcode": item["opcode"], "flavor": flavor, "unit_cycles": item["unit_cycles"]}
        for flavor, item in zip(flavors, case["instructions"], strict=True)
        for _ in range(item["count"])
    ]
    dag, fifo = Dag.build(items, machine="upstream"), sched.machine("upstream").ds_fifo
    for name, expected in case["expected"].items():
        nodes = dag.nodes_where(parse_flavor(name))
        total = int(dag.unit_cycles[nodes].sum())
        assert [total // fifo if name == "DS" else total, nodes.size] == expected


def f16_kernel():
    """The f16 kernel of the article as its record describes it: the DAG, node numbers by name, and loads by fragment."""
    items, edges, loads = [], [], {}
    for k in range(4):
        for kind, count in (("A", 8), ("B", 4)):
            for i in range(count if k < 3 else 0):
                loads[kind, k + 1, i] = [f"{kind}{k + 1}.{i}.{half}" for half in "ab"]
                load = {"opcode": "DS_READ_B128_gfx9", "unit_cycles": 60, "latency": 60, "defs": [f"{kind}{k + 1}.{i}"]}
                items += [{**load, "id": name} for name in loads[kind, k + 1, i]]
        for m, n in np.ndindex(8, 4):
            w = 32 * k + 4 * m + n
            items.append({"opcode": "V_WMMA_F32_16X16X32_F16_w32_twoaddr", "id": f"W{w}"})
            if k:
                edges.append((f"W{w - 32}", f"W{w}", "data", 8))
                edges += [(name, f"W{w}", "data", 60) for name in loads["A", k, m] + loads["B", k, n]]
    registers = {f"{kind}{k}.{i}": (8, "vector") for kind, k, i in loads}
    dag = Dag.build(items, edges, machine="upstream", registers=registers)
    return dag, {item["id"]: number for number, item in enumerate(items)}, loads


def issue_positions(dag, number, loads):
    """(first consumer, 0 for A and 1 for B, last WMMA issued before the fragment's first load), sorted."""
    order = sched.schedule(dag, profile="upstream").order
    place = np.empty(dag.n, dtype=int)
    place[order] = np.arange(dag.n)
    matrix = np.sort([place[number[f"W{i}"]] for i in range(128)])
    return sorted(
        (32 * k + (4 * i if kind == "A" else i), kind, int(np.searchsorted(matrix, place[number[names[0]]])) - 1)
        for (kind, k, i), names in loads.items()
    )


def test_f16_kernel_issues_its_loads_where_the_article_does():
    dag, number, loads = f16_kernel()
    expected = CASES["kernel_f16_positions"]["expected"]
    mutated, report = sched.mutate(dag, "wmma_window")
    assert report.budget == CASES["mutation_f16"]["expected_budget"] == 88
    wanted = sorted(
        (f["first_consumer"], f["last_consumer"], f["vgprs"], f["expect_late_start"], f["expect_anchor"])
        for f in CASES["mutation_f16"]["fragments"]
    )
    assert wanted == sorted(
        (f.first_consumer, f.last_consumer, f.vgprs, f.late_start, f.anchor) for f in report.fragments
    )
    found = [row for row in issue_positions(mutated, number, loads) if row[0] >= 60]
    assert [row[2] for row in found] == [row["issued_after_wmma"] for row in expected["mutation_on"]]
    opening = number["W7"]
    held = [number[name] for names in loads.values() for name in names]
    delayed = dag.with_edges([opening] * len(held), held)
    found = [row for row in issue_positions(delayed, number, loads) if row[0] >= 60]
    differ = [
        abs(row[2] - want["issued_after_wmma"])
        for row, want in zip(found, expected["mutation_off_article"], strict=True)
    ]
    assert max(differ) <= CASES["kernel_f16_positions"]["tolerance_wmma"]


def test_window_waits_are_those_of_the_table():
    names = {
        "CTRL": ["CTRL"],
        "SALU_or_MEM": ["SALU", "DS", "VMEM", "SMEM"],
        "VALU": ["VALU"],
        "TRANS": ["TRANS"],
        "WMMA": ["WMMA"],
    }
    from fastgemm.sched import layout as L
    from fastgemm.sched.machine import COEXEC_CLASSES

    machine = sched.machine("gfx1250")
    model = sched.profile("upstream").model(machine)
    for pattern, waits in CASES["window_wait_states"]["table"].items():
        base = L.M_WINDOWS + machine.windows.index(pattern) * L.WINDOW_WORDS + 4
        for group, expected in waits.items():
            for name in names[group]:
                column = L.T_WAIT + COEXEC_CLASSES.index(name)
                assert [model[base + stage * L.STAGE + column] for stage in range(len(pattern))] == expected, (
                    pattern,
                    name,
                )


@pytest.mark.parametrize("compiler", ["llvm24-early", "llvm24-late"])
def test_own_kernels_are_scheduled_pick_for_pick(regions, compiler):
    members = [region for region in regions if region.compiler == compiler]
    assert sum(region.dag.n for region in members) > 1000
    for region in members:
        result = sched.replay(region)
        assert result.perfect and result.first_difference is None, (region.dag.name, result.first_difference)
        free = sched.schedule(region.dag, profile=compiler)
        for name in ("node", "cycle", "ready", "reason"):
            assert np.array_equal(free.picks[name], region.picks[name]), (region.dag.name, name)


def test_a_wrong_profile_is_noticed_where_it_differs(regions):
    late = [region for region in regions if region.compiler == "llvm24-late" and region.dag.n > 100]
    results = [
        sched.replay(region, profile=sched.profile("llvm24-late").without("slot", "shadow_mix")) for region in late
    ]
    wrong = [result for result in results if not result.perfect]
    assert wrong
    first = wrong[0].first_difference
    assert set(first) == {"pick", "what", "ours", "compiler"} and first["what"]


@pytest.mark.skipif(not SHARED.exists(), reason="the whole corpus is not beside this checkout")
def test_whole_corpus_is_reproduced():
    for row in sched.fidelity(sched.read_corpus(SHARED)):
        counts = {row[name] for name in ("same_node", "same_cycle", "same_reason", "same_queues")}
        assert counts == {row["picks"]} and row["free_regions"] == row["perfect_regions"] == row["regions"], row


# random DAGs ----------------------------------------------------------------------------------------------------------


def register_edges(nodes, registers, kinds):
    """Data, anti and output edges of operands in program order (whole registers), as (source, target, kind)."""
    edges, definer, readers = set(), {}, {}
    for n in sorted(set(nodes)):
        mine = [(r, k) for m, r, k in zip(nodes, registers, kinds, strict=True) if m == n]
        for r, _ in [x for x in mine if x[1] in (0, 2)]:
            if r in definer:
                edges.add((definer[r], n, 0))
            readers.setdefault(r, set()).add(n)
        for r, _ in [x for x in mine if x[1] in (1, 3)]:
            edges |= {(reader, n, 1) for reader in readers.pop(r, ())}
            if r in definer:
                edges.add((definer[r], n, 2))
            definer[r] = n
    return {edge for edge in edges if edge[0] != edge[1]}


def random_dag(seed, n, *, machine="gfx1250", tight=False, loop=False):
    """A random region with every flavor, all kinds of edges, half registers, copies of physical registers and tight limits."""
    rng = np.random.default_rng(seed)
    names = [
        "V_WMMA_F32_16X16X32_F16_w32_twoaddr",
        "V_WMMA_SCALE_F32_16X16X128_F8F6F4_f8_f8_w32_twoaddr",
        "V_ADD_U32_e32",
        "V_EXP_F32_e32",
        "V_MUL_LO_U32_e64",
        "DS_READ_B128_gfx9",
        "DS_WRITE_B128_gfx9",
        "GLOBAL_STORE_DWORDX4",
        "S_LOAD_DWORD_IMM",
        "S_ADD_I32",
        "TENSOR_LOAD_TO_LDS",
        "ATOMIC_FENCE",
        "COPY",
        "IMPLICIT_DEF",
        "S_MOV_B64_IMM_PSEUDO",
    ]
    code = rng.integers(0, len(names), n)
    registers = 6 + n // 3
    size = rng.integers(1, 5, registers)
    count = 2 * n
    node = np.sort(rng.integers(0, n, count))
    register = rng.integers(0, registers, count)
    full = (1 << (2 * size[register])) - 1
    lanes = np.where(rng.random(count) < 0.6, full, rng.integers(1, 1 << 8, count) & full)
    lanes = np.where(lanes == 0, full, lanes)
    kind = rng.choice([0, 0, 1, 1, 2, 3], count)
    _, once = np.unique(
        np.stack([node, register, kind % 2], axis=1), axis=0, return_index=True
    )  # one def of a register each
    node, register, lanes, kind = (column[np.sort(once)] for column in (node, register, lanes, kind))
    pairs = {
        (*sorted(rng.choice(n, 2, replace=False).tolist()), int(rng.choice([3, 5]))) for _ in range(n if n > 1 else 0)
    }
    edges = sorted(pairs | register_edges(node.tolist(), register.tolist(), kind.tolist()))
    edges = [edges[i] for i in rng.permutation(len(edges))]
    source, target, sort = np.array(edges, dtype=int).reshape(-1, 3).T
    edges = (source, target, sort, rng.choice([0, 1, 5, 16, 60], source.size))
    live = [np.flatnonzero(rng.random(registers) < 0.4) for _ in range(2)]
    dag = Dag.from_arrays(
        names,
        code,
        edges,
        (node, register, lanes, kind),
        registers=(size, rng.random(registers) < 0.7),
        machine=machine,
        live_in=(live[0], (1 << (2 * size[live[0]])) - 1),
        live_out=(live[1], (1 << (2 * size[live[1]])) - 1),
        whole_single_block_loop=loop,
        **({"vgpr_limit": int(rng.integers(4, 30)), "sgpr_limit": int(rng.integers(2, 8))} if tight else {}),
    )
    copies = np.flatnonzero(np.array(names)[code] == "COPY")
    flags = dag.flags.copy()
    flags[copies[::3]] |= int(sched.Flag.COPY_FROM_PHYS)
    flags[copies[1::3]] |= int(sched.Flag.COPY_TO_PHYS)
    return dag.replace(flags=flags)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 60), tight=st.booleans())
def test_early_ladder_equals_its_slow_twin(seed, n, tight):
    dag = random_dag(seed, n, machine="llvm24-early", tight=tight)
    picks = sched.schedule(dag, profile="llvm24-early").picks
    ours = [tuple(int(row[k]) for k in ("node", "cycle", "ready", "reason", "available", "pending")) for row in picks]
    assert ours == Early(dag).run()


LADDERS = [
    *sched.profiles(),
    sched.profile("llvm24-late").without("critical_shared"),
    sched.profile("llvm24-late").without("shadow_mix", "excess", "order"),
    sched.profile("llvm24-early", rungs=["dependency", "critical", "stall", "order"]),
    sched.profile("upstream").with_rung("kill_proximity", before="critical"),
    sched.profile("llvm24-late").with_rung("kill_proximity", before="slot"),
    sched.profile("llvm24-late", rungs=["weak", "cluster", "loop_order", "dependency_shared", "priority"]),
]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(1, 90),
    tight=st.booleans(),
    loop=st.booleans(),
    k=st.integers(0, len(LADDERS) - 1),
)
def test_sieving_candidates_equals_comparing_them_in_turn(seed, n, tight, loop, k):
    dag = random_dag(seed, n, tight=tight, loop=loop)
    sieved = sched.schedule(dag, profile=LADDERS[k])
    in_turn = sched.schedule(dag, profile=LADDERS[k], trace=True)
    assert np.array_equal(sieved.picks, in_turn.picks)
    assert sorted(sieved.order) == list(range(n))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(2, 60))
def test_no_edge_is_violated_and_operands_are_ready(seed, n):
    dag = random_dag(seed, n)
    picks = sched.schedule(dag, profile="llvm24-late").picks
    place = np.empty(n, dtype=int)
    place[picks["node"]] = np.arange(n)
    ready = np.empty(n, dtype=int)
    ready[picks["node"]] = picks["ready"]
    assert (place[dag.edge_source] < place[dag.edge_target]).all()
    assert (ready[dag.edge_source] + dag.edge_latency <= ready[dag.edge_target]).all()


# options --------------------------------------------------------------------------------------------------------------


def test_trace_names_queues_candidates_winner_and_reason(regions):
    region = next(r for r in regions if r.compiler == "llvm24-early" and 30 < r.dag.n < 100)
    result = sched.schedule(region.dag, profile="llvm24-early", trace=True)
    assert result.trace.count("Scheduling SU(") == region.dag.n
    for part in ("Queue TopQ.A:", "Queue TopQ.P:", "beats SU(", "Pick Top CritResource", "VGPR="):
        assert part in result.trace


def test_kill_proximity_prefers_last_readers_near_the_limit():
    def order(last="V_ADD_U32_e32", limit=8, more=()):
        items = [
            {"opcode": "V_ADD_U32_e32", "defs": ["a"]},
            {"opcode": "V_ADD_U32_e32", "defs": ["b"]},
            {"opcode": "V_ADD_U32_e32", "uses": ["b"]},
            {"opcode": last, "uses": ["a"]},
            {"opcode": "V_ADD_U32_e32", "uses": ["b"]},
            *({"opcode": "V_ADD_U32_e32", "uses": uses} for uses in more),
        ]
        written = {"a": 0, "b": 1}
        edges = [(written[name], i, "data", 0) for i, item in enumerate(items) for name in item.get("uses", ())]
        dag = Dag.build(items, edges, machine="upstream", vgpr_limit=limit)
        ladder = sched.profile("upstream", rungs=["kill_proximity", "order"])
        return sched.schedule(dag, profile=ladder).order.tolist()

    assert order() == [0, 3, 1, 2, 4]  # 3 is the last to read its register
    assert order(limit=2 + 2 * 16) == [0, 1, 3, 2, 4]  # not before a and b are live
    assert order(limit=3 + 2 * 16) == [0, 1, 2, 3, 4]  # too far from the limit
    assert order(last="DS_WRITE_B32_gfx9") == [0, 1, 2, 3, 4]  # says nothing of memory instructions
    # two readers of each: the order decides, then 4 is the last of b
    assert order(more=[["a"]]) == [0, 1, 2, 4, 3, 5]
    # one reader more for b: those of a, with fewer left, come first
    assert order(more=[["a"], ["b"]]) == [0, 1, 3, 5, 2, 4, 6]


def test_weak_edges_do_not_gate_and_cluster_edges_attract():
    items = [{"opcode": "V_ADD_U32_e32"} for _ in range(4)]
    weak = Dag.build(items, [(3, 0, "weak")])
    profile = sched.profile("llvm24-early", rungs=["weak", "order"])
    assert list(sched.schedule(weak, profile=profile).order) == [1, 2, 3, 0]
    cluster = Dag.build(items, [(0, 3, "cluster")])
    profile = sched.profile("llvm24-early", rungs=["cluster", "order"])
    assert list(sched.schedule(cluster, profile=profile).order) == [0, 3, 1, 2]


def test_profiles_say_what_they_are_made_of():
    early = sched.profile("llvm24-early")
    assert early.rungs == ("physreg", "excess", "stall", "critical", "dependency", "order")
    assert set(early.rungs) <= set(sched.rungs())
    assert early.without("stall").rungs == ("physreg", "excess", "critical", "dependency", "order")
    assert early.with_rung("weak", before="order").rungs[-2:] == ("weak", "order")
    for wrong in (
        lambda: sched.profile("llvm25"),
        lambda: early.without("slot"),
        lambda: early.with_rung("nonsense"),
        lambda: early.with_rung("weak", after="slot"),
        lambda: early.replace(stalls=("nap",)),
        lambda: sched.profile("llvm24-late", rungs=["order"] * 99),
    ):
        with pytest.raises(DagError):
            wrong()


def test_machine_takes_facts_windows_and_queues_from_elsewhere():
    items = [{"opcode": "DS_READ_B128_gfx9"} for _ in range(40)] + [{"opcode": "V_ADD_U32_e32"}]
    dag = Dag.build(items)
    fast = sched.schedule(dag, machine="gfx1250-ds-fast")
    slow = sched.schedule(dag, machine="gfx1250-ds-overloaded")
    assert fast.machine == "gfx1250-ds-fast" and slow.dag.unit_cycles[0] == 100
    assert (slow.picks["wait"].max() if slow.picks["stall"].any() else 0) >= (fast.picks["wait"].max())
    matrix = [{"opcode": "V_WMMA_F32_16X16X32_F16_w32_twoaddr"}]
    with pytest.raises(DagError, match="is none of machine 'gfx950'"):
        sched.schedule(Dag.build(matrix), profile=sched.profile("article").replace(machine="gfx950"))


def test_mutations_run_first_and_report():
    dag = Dag.build([{"opcode": "S_ADD_I32"}, {"opcode": "V_ADD_U32_e32"}])
    plain = list(sched.schedule(dag).order)
    swapped = sched.schedule(dag, mutations=[lambda d: d.with_edges(plain[1], plain[0])])
    assert list(swapped.order) == plain[::-1] and swapped.dag.edges == 1 and swapped.reports == (None,)
    with_report = sched.schedule(dag, mutations=[lambda d: (d, "nothing done")])
    assert with_report.reports == ("nothing done",)


def test_only_dags_are_scheduled(regions):
    with pytest.raises(TypeError, match="in .dag"):
        sched.schedule(regions[0])


def test_empty_dag_has_an_empty_schedule():
    result = sched.schedule(Dag.from_arrays([], []))
    assert result.picks.size == 0 and result.length == 0 and result.peak_vgpr == 0


def test_flavor_labels_are_the_compilers():
    assert [flavor.label for flavor in Flavor][:4] == ["WMMA", "VALU(1c)", "TRANS", "VALU(Nc)"]
