"""`evaluate`: pressure, timeline, waits, spills and live ranges against slow twins and the article's figures."""

from __future__ import annotations

import json

import numpy as np
import oracle_sched_extra as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastgemm.sched import DagError, synthetic
from fastgemm.sched.comparison import ARTICLE, COLUMNS, compare
from fastgemm.sched.evaluation import evaluate, live_ranges
from fastgemm.sched.inorder import StaticMachine, static_machine
from fastgemm.sched.liverange import carried_edges, pressure
from fastgemm.sched.spill import plan_spills

SEEDS = st.integers(0, 10**6)
KERNELS = (
    "gemm:64x64x64:f16:single_warp",
    "gemm:64x64x256:mxfp8:sliceNK",
    "gemm:64x64x128:i8:base",
    "attention:64x32x32:f16",
)


def small(seed, most=60, loop=True):
    rng = np.random.default_rng(seed)
    dag = synthetic.random(int(rng.integers(1, most)), rng=rng, span=int(rng.integers(2, 9)), loop=loop)
    return dag, oracle.random_order(dag, rng)


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_pressure_counts_live_words(seed):
    dag, order = small(seed)
    curves = pressure(dag, order)
    for i, words in enumerate(oracle.live_words(dag, order)):
        registers = {r for r, _ in words}
        vector = {r for r in registers if dag.register_vector[r]}
        assert curves.vector[i] == sum(r in vector for r, _ in words)
        assert curves.scalar[i] == sum(r not in vector for r, _ in words)
        assert curves.vector_whole[i] == sum(dag.register_size[r] for r in vector)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(1, 3))
def test_timeline_is_the_in_order_machine(seed, iterations):
    dag, order = small(seed)
    machine = static_machine()
    twin = oracle.Timeline(dag, order, machine, iterations)
    result = evaluate(dag, order, spills=False, iterations=iterations)
    assert (result.cold, result.warm) == (twin.cycles[0], twin.cycles[-1])
    assert [(w["position"], w["queue"], w["value"]) for w in result.waits] == twin.waits


@pytest.mark.parametrize("kernel", KERNELS)
def test_timeline_on_kernels(kernel):
    dag = synthetic.parse(kernel)
    order = oracle.random_order(dag, np.random.default_rng(3))
    for sequence in (np.arange(dag.n), order):
        twin = oracle.Timeline(dag, sequence, static_machine(), 2)
        assert [evaluate(dag, sequence, spills=False).cold, evaluate(dag, sequence, spills=False).warm] == twin.cycles


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_stalls_and_issue_slots_add_up_to_the_cycles(seed):
    dag, order = small(seed, most=150)
    result = evaluate(dag, order, static_machine().replace(registers=80))
    assert sum(result.stalls.values()) == result.warm
    assert sum(result.cold_stalls.values()) == result.cold
    assert all(value >= 0 for value in result.stalls.values())
    assert (np.diff(result.at) >= 0).all()


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_values_that_cross_the_back_edge(seed):
    dag, _ = small(seed)
    assert set(zip(*(x.tolist() for x in carried_edges(dag)), strict=True)) == oracle.carried(dag)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(40, 120))
def test_spills_keep_within_the_limit_and_bring_back_what_is_read(seed, limit):
    dag, order = small(seed, most=120)
    events, starts = plan_spills(dag, order, limit, 2)
    dead = oracle.live_words(dag, order)
    size = {r: int(s) for r, s in enumerate(dag.register_size)}
    inside = {r for r in dag.live_in_register.tolist() if dag.register_vector[r]}
    if sum(size[r] for r in inside) > limit:
        return
    for turn in range(2):
        mine = events[starts[turn] : starts[turn + 1]]
        for i, node in enumerate(order.tolist()):
            for position, reload, register, words, _ in mine[mine[:, 0] == i].tolist():
                assert position == i and words == size[register]
                inside = inside | {register} if reload else inside
            operands = [(r, k) for r, _, k in oracle.operands_of(dag, node) if dag.register_vector[r]]
            evicted = {r for p, reload, r, _, _ in mine[mine[:, 0] == i].tolist() if not reload}
            assert not evicted & {r for r, _ in operands}
            inside |= {r for r, k in operands if k != 2}
            live = {r for r, _ in dead[i + 1]}
            inside = {r for r in inside if r in live}
    spilled = evaluate(dag, order, static_machine().replace(registers=limit, allocatable_percent=100))
    free = evaluate(dag, order, spills=False)
    assert spilled.warm >= free.warm or len(events)
    results = [{r for r, _, k in oracle.operands_of(dag, node) if k == 1 and dag.register_vector[r]} for node in order]
    room = [
        sum(size[r] for r in {r for r, _ in after} | made if dag.register_vector[r])
        for after, made in zip(dead[1:], results, strict=True)
    ]
    if max(room, default=0) <= limit:
        assert not len(events) and spilled.warm == free.warm


def test_furthest_next_use_goes_to_scratch():
    from fastgemm.sched import Dag

    code = [
        {"id": f"m{i}", "opcode": "V_MOV_B32_e32", "defs": [f"v{i}"]} for i in range(3)
    ] + [
        {"id": f"a{i}", "opcode": "V_ADD_U32_e32", "defs": [f"s{i}"], "uses": [f"v{i}"]} for i in (0, 1, 2)
    ]  # fmt: skip
    registers = dict.fromkeys(("v0", "v1", "v2", "s0", "s1", "s2"), (1, "vector"))
    dag = Dag.build(code, [], registers=registers, live_out=["s0", "s1", "s2"])
    order = np.arange(6)
    events, _ = plan_spills(dag, order, 2, 1)
    # making v2 at position 2 sends away v1, whose use is further off than v0's
    assert events[0].tolist()[:4] == [2, 0, dag.register_id.tolist().index(events[0][2]), 1]
    names = [row[2] for row in events.tolist()]
    first_use = {r: i for i in range(6) for r, _, k in oracle.operands_of(dag, i) if k == 0}
    assert first_use[names[0]] == 4


def test_a_loop_without_pressure_never_spills_and_a_tight_one_costs_cycles():
    dag = synthetic.parse(ARTICLE[0])
    order = np.arange(dag.n)
    roomy, tight = evaluate(dag, order), evaluate(dag, order, static_machine().replace(registers=700))
    assert roomy.spilled_registers == roomy.spill_reloads == 0
    assert tight.spilled_registers > 0 and tight.warm > roomy.warm
    assert tight.stalls["spill_wait"] + tight.stalls["spill_issue"] > 0


@pytest.mark.parametrize(
    ("order", "text"),
    [
        ([0, 1], "2 entries"),
        ([0, 1, 1], "misses node 2"),
        ([0, 1, 7], "names node 7"),
        ([1, 0, 2], "breaks 1 edges"),
    ],
)
def test_orders_are_checked(order, text):
    from fastgemm.sched import Dag

    dag = Dag.build(
        [{"id": str(i), "opcode": "V_MOV_B32_e32"} for i in range(3)],
        [("0", "1", "data", 5)],
    )
    with pytest.raises(DagError, match=text):
        evaluate(dag, order)


def test_the_machine_is_a_file(tmp_path):
    machine = static_machine()
    path = tmp_path / "mine.json"
    data = {
        "format": "fastgemm static machine",
        "version": 1,
        "name": "mine",
        "latency": {**machine.latency, "lds_read": 500},
        "in_flight": machine.in_flight,
        "counter_max": machine.counter_max,
        "classes": {k: list(v) for k, v in machine.classes.items()},
        "windows": {k: list(v) for k, v in machine.windows.items()},
    }
    path.write_text(json.dumps(data))
    dag = synthetic.parse("gemm:64x64x64:f16:single_warp")
    assert evaluate(dag, np.arange(dag.n), path).warm > evaluate(dag, np.arange(dag.n)).warm
    with pytest.raises(DagError, match="unknown entries"):
        StaticMachine.from_dict({**data, "speed": 3})
    with pytest.raises(DagError, match="lacks"):
        StaticMachine.from_dict({k: v for k, v in data.items() if k != "classes"})
    with pytest.raises(DagError, match="queue"):
        StaticMachine.from_dict({**data, "in_flight": {"l3": 4}})


# the article's kernels -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kernel", "off", "on"), [(ARTICLE[0], 44.5, 34.5), (ARTICLE[1], 52.1, 20.2)])
def test_held_averages_of_the_article(kernel, off, on):
    comparison = compare(synthetic.parse(kernel), profile="llvm24-late")
    assert abs(comparison.off.held - off) <= 0.5
    assert abs(comparison.on.held - on) <= 0.5


def test_what_the_mutation_is_worth():
    mxfp, f16 = (compare(synthetic.parse(kernel), profile="llvm24-late") for kernel in ARTICLE)
    assert mxfp.gain > 2.5 and mxfp.off.spilled_registers > 40 and mxfp.on.spilled_registers == 0
    assert 1.0 < f16.gain < 1.2 and f16.off.spilled_registers == f16.on.spilled_registers == 0
    assert f16.off.peak - f16.on.peak > 100
    for comparison in (mxfp, f16):
        assert comparison.bounds.warm <= comparison.on.cycles
        assert [tuple(row) for row in comparison.rows()] == [COLUMNS, COLUMNS]
        json.dumps(comparison.to_dict())


def test_live_ranges_of_a_just_in_time_order():
    dag = synthetic.gemm(32, 32, 64, waves=1, schedule="base", body="core")
    ranges, held = live_ranges(dag, np.arange(dag.n))
    assert len(ranges) == 8 and (ranges["issued_after"] == -1).all()
    assert held == np.mean(
        [f for f, count in zip(ranges["first_consumer"], ranges["loads"], strict=True) for _ in range(count)]
    )
    assert np.isnan(live_ranges(synthetic.random(5, rng=1), np.arange(5))[1])


def test_waits_are_those_of_the_compiler():
    """The counter values in front of a compiled loop's consumers, as its assembly has them after register allocation."""
    from pathlib import Path

    import fastgemm.sched
    from fastgemm.sched import read_corpus

    path = Path(fastgemm.sched.__file__).parent / "kernels" / "tt_tdm_f16_256x256x64_s2.llvm24-late.json.gz"
    (loop,) = (region for region in read_corpus(path) if region.dag.whole_single_block_loop and region.block == "bb.7")
    waits = evaluate(loop.dag, loop.order, spills=False).waits
    assembly = [0, 15, 13, 11, 9, 14, 19, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0]  # s_wait_dscnt
    assert waits["value"][waits["queue"] == "lds"].tolist() == assembly
