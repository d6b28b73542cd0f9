"""DAG mutations: the window arithmetic against a slow twin and the published tables, legality, reports, the command."""

from __future__ import annotations

import json

import numpy as np
import oracle_sched_extra as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastgemm.cli import main
from fastgemm.sched import Dag, DagError, EdgeKind, Flavor, mutate, mutations, schedule, synthetic
from fastgemm.sched.comparison import ARTICLE
from fastgemm.sched.evaluation import evaluate, live_ranges
from fastgemm.sched.legal_edges import admit, topological_places
from fastgemm.sched.mutation import register
from fastgemm.sched.mutation_report import MutationReport

# (first consumer, last consumer, late start, anchor) of every fragment of the article's kernels
F16 = """32 35 24 0|32 60 24 0|33 61 25 0|34 62 26 0|35 63 27 0|36 39 28 0|40 43 32 0|44 47 36 0|48 51 40 0|52 55 44 0|56 59 48 0
60 63 52 36|64 67 56 40|64 92 56 44|65 93 57 48|66 94 58 52|67 95 59 56|68 71 60 60|72 75 64 61|76 79 68 62|80 83 72 63|84 87 76 64
88 91 80 64|92 95 84 68|96 99 88 72|96 124 88 76|97 125 89 80|98 126 90 84|99 127 91 88|100 103 92 92|104 107 96 93|108 111 100 94
112 115 104 95|116 119 108 96|120 123 112 96|124 127 116 100"""
MXFP = """32 58 24 0|32 63 24 0|33 59 25 0|36 62 28 0|37 63 29 0|64 101 55 0|64 90 56 0|64 95 56 0|65 91 57 0|66 103 58 0|68 94 60 0
69 95 61 0|72 109 64 0|74 111 66 0|80 117 72 0|82 119 74 0|88 125 80 59|90 127 82 60|96 122 88 63|96 127 88 64|97 123 89 64
100 126 92 91|101 127 93 92"""
# last matrix instruction before a fragment's first load in the article's traces without the mutation: fragments from 60 on
F16_OFF = (15, 15, 23, 24, 25, 26, 16, 17, 18, 20, 21, 22, 22, 27, 34, 35, 36, 37, 28, 29, 30, 30, 31, 32, 33)
VARIANTS = ("article", "slim", "first_draft")


def table(text):
    return [tuple(int(x) for x in row.split()) for line in text.splitlines() for row in line.split("|")]


def rows(report):
    return [(f.first_consumer, f.last_consumer, f.late_start, f.anchor) for f in report.fragments]


@pytest.mark.parametrize("body", ["full", "core"])
@pytest.mark.parametrize(
    ("kernel", "budget", "expected", "loads"), [(ARTICLE[0], 228, MXFP, 83), (ARTICLE[1], 88, F16, 72)]
)
def test_windows_of_the_article(kernel, budget, expected, loads, body):
    _, report = mutate(synthetic.parse(f"{kernel}:body={body}"), "wmma_window")
    assert report.budget == budget == report.histogram_before.max() == report.histogram_after.max()
    assert sorted(rows(report)) == sorted(table(expected))
    assert sum(len(f.loads) for f in report.fragments) == loads
    assert (report.load_latency, report.wmma_latency, report.positions) == (60, 8, 128)
    assert not len(report.refused) and report.changed


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["f16", "mxfp8", "fp4", "i8"]),
    st.sampled_from(["single_warp", "sliceNK", "sliceMNK", "base", "sliceK"]),
    st.sampled_from([20, 60, 100]),
    st.integers(0, 3),
    st.sampled_from(["full", "core"]),
)
def test_windows_equal_the_slow_twin(dtype, cut, latency, spacing, body):
    dag = synthetic.gemm(128, 128, 256, waves=4, dtype=dtype, buffers=2, schedule=cut, body=body)
    _, report = mutate(dag, load_latency=latency, spacing=spacing)
    budget, before, after, fragments = oracle.windows(dag, latency, spacing)
    assert report.budget == budget
    assert report.histogram_before.tolist() == before and report.histogram_after.tolist() == after
    mine = [
        (f.register, f.vgprs, f.first_consumer, f.last_consumer, f.late_start, f.anchor, f.loads)
        for f in report.fragments
    ]
    assert mine == fragments


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_legality_is_that_of_asking_one_by_one(seed):
    draw = np.random.default_rng(seed)
    n = int(draw.integers(1, 25))
    names = draw.permutation(n)
    ends = draw.integers(0, n, (int(draw.integers(0, 50)), 2))
    ends = np.unique(np.sort(ends[ends[:, 0] != ends[:, 1]], axis=1), axis=0)
    ends = names[ends].reshape(-1, 2) if n > 1 else ends
    ends = ends[np.argsort(ends[:, 0], kind="stable")].astype(np.int32)
    start = np.zeros(n + 1, np.int32)
    start[1:] = np.cumsum(np.bincount(ends[:, 0], minlength=n))
    wanted = draw.integers(0, n, (int(draw.integers(0, 30)), 2)).astype(np.int32)
    target = np.ascontiguousarray(ends[:, 1])
    zeros = np.zeros(target.size, np.int32)
    graph = (start, target, zeros.astype(np.int8), zeros, zeros)
    columns = [np.ascontiguousarray(x) for x in (*wanted.T, np.zeros(len(wanted)))]
    verdict = admit(graph, *(x.astype(np.int32) for x in columns), EdgeKind.ARTIFICIAL)
    assert verdict.tolist() == oracle.admit(n, ends.tolist(), wanted.tolist())
    place = topological_places(start, target)
    assert all(place[a] < place[b] for a, b in ends.tolist()) and sorted(place.tolist()) == list(range(n))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kernel", [*ARTICLE, "attention:128x64x64", "random:400:3"])
def test_a_second_application_changes_nothing(kernel, variant):
    dag = synthetic.parse(kernel)
    before = dag.replace()
    once, report = mutate(dag, variant=variant)
    twice, again = mutate(once, variant=variant)
    assert dag == before
    assert once == twice and not again.changed and report.idempotent
    assert len(again.present) == len(report.added)
    once.validate()
    if report.changed:
        assert np.array_equal(once.depth, once.with_paths().depth)


@pytest.mark.parametrize("variant", VARIANTS)
def test_edges_added_are_artificial_and_last_of_their_source(variant):
    dag = synthetic.parse(ARTICLE[1])
    changed, report = mutate(dag, variant=variant)
    assert changed.edges == dag.edges + len(report.added)
    for node in range(dag.n):
        old = slice(dag.edge_start[node], dag.edge_start[node + 1])
        new = slice(changed.edge_start[node], changed.edge_start[node + 1])
        size = old.stop - old.start
        assert changed.edge_target[new][:size].tolist() == dag.edge_target[old].tolist()
        assert (changed.edge_kind[new][size:] == EdgeKind.ARTIFICIAL).all()


def test_edits_one_by_one():
    dag = synthetic.parse(ARTICLE[0])
    fast = dag.replace(edge_latency=np.where(dag.edge_latency == 60, 20, dag.edge_latency))
    for number, name in enumerate(("wmma_chain", "latency", "load_chain", "anchors"), start=1):
        by_name, by_number = mutate(fast, edits=[name]), mutate(fast, edits=[number])
        assert by_name[0] == by_number[0]
        assert list(by_name[1].edges_by_edit()) == ([] if name == "latency" else [name])
        assert by_name[1].corrected == (83 if name == "latency" else 0)
    _, nothing = mutate(fast, edits=[])
    assert not nothing.changed and nothing.budget == 228
    with pytest.raises(DagError, match="edit 'anchor' is none of"):
        mutate(dag, edits=["anchor"])
    with pytest.raises(DagError, match="edit 5"):
        mutate(dag, edits=[5])


def test_only_the_edge_to_the_first_consumer_gets_the_latency():
    dag = synthetic.parse(ARTICLE[0])
    slow, report = mutate(dag, edits=["latency"], load_latency=90)
    wrong = np.flatnonzero(slow.edge_latency != dag.edge_latency)
    chain = dag.nodes_where(Flavor.WMMA).tolist()
    firsts = {load: chain[f.first_consumer] for f in report.fragments for load in f.loads}
    assert report.corrected == len(wrong) == 83
    assert {(int(dag.edge_source[e]), int(dag.edge_target[e])) for e in wrong} <= set(firsts.items())
    assert (slow.edge_latency[wrong] == 90).all()


def test_the_machine_says_how_long_a_load_takes():
    dag = synthetic.parse(ARTICLE[1])
    for name, latency in (("gfx1250", 60), ("gfx1250-ds-fast", 20), ("gfx1250-ds-overloaded", 100)):
        _, report = mutate(dag, machine=name)
        assert report.load_latency == latency
        assert oracle.windows(dag, latency)[0] == report.budget


def test_slim_has_anchors_one_earlier_and_no_chains():
    dag = synthetic.parse(ARTICLE[1])
    changed, report = mutate(dag, variant="slim")
    chain = dag.nodes_where(Flavor.WMMA)
    wanted = {(int(chain[f.anchor - 1]), load) for f in report.fragments if f.anchor for load in f.loads}
    assert {(int(r["source"]), int(r["target"])) for r in report.added} == wanted
    assert report.spacing == 0 and not report.skipped


def crossed():
    """A fragment whose window may begin at position 16, but whose load leads, through an order edge, to matrix op 5."""
    matrix = "V_WMMA_F32_16X16X32_F16_w32_twoaddr"
    reads = [["a", "x"] if i < 16 else ["b"] if i >= 30 else [] for i in range(34)]
    code = [{"id": name, "opcode": "DS_READ_B128_gfx9", "defs": [name]} for name in ("a", "x", "b")]
    code += [{"id": f"w{i}", "opcode": matrix, "defs": [f"c{i}"], "uses": uses} for i, uses in enumerate(reads)]
    edges = [(name, f"w{i}", "data", 60) for i, uses in enumerate(reads) for name in uses]
    registers = dict.fromkeys(("a", "x", "b", *(f"c{i}" for i in range(34))), (8, "vector"))
    return Dag.build(code, [*edges, ("w5", "w20", "order", 0), ("b", "w5", "order", 0)], registers=registers)


def test_an_edge_that_would_close_a_cycle_is_refused_and_named():
    dag = crossed()
    changed, report = mutate(dag)
    assert report.fragments[-1].anchor == 16
    assert [(r["source"], r["target"], r["edit"]) for r in report.refused] == [(3 + 16, 2, "anchors")]
    assert "already leads to" in report.reasons()[0]
    changed.validate()
    _, slim = mutate(dag, variant="slim")
    assert not slim.skipped and slim.fragments[2].anchor == 16  # without the chain of matrix ops W15 is not reached
    led = dag.with_edges([2], [3 + 15])
    _, slim = mutate(led, variant="slim")
    assert slim.skipped == (2,) and slim.fragments[2].anchor == 0 and not len(slim.refused)
    assert slim.histogram_after.tolist() == slim.histogram_before.tolist()


def test_a_register_loaded_again_is_a_new_fragment():
    dag = synthetic.gemm(64, 64, 64, waves=1, schedule="single_warp", unroll=3)
    _, report = mutate(dag)
    names = [f.register for f in report.fragments]
    assert len(names) > len(set(names))
    assert [f.first_consumer for f in report.fragments] == sorted(f.first_consumer for f in report.fragments)


def test_nothing_to_do_is_said():
    for dag in (
        synthetic.random(0),
        Dag.build([{"opcode": "S_ADD_I32"}]),
        Dag.build([{"opcode": "DS_READ_B128_gfx9"}]),
    ):
        same, report = mutate(dag)
        assert same is dag and "nothing to do" in report.note and not report.fragments
        json.dumps(report.to_dict())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": "wmma"}, "no mutation called 'wmma'"),
        ({"variant": "fat"}, "variant 'fat'"),
        ({"load_latency": -1}, "neither can be negative"),
        ({"name": "barrier_latency", "mode": "max"}, "mode 'max'"),
        ({"name": "sched_group_barrier"}, "empty pattern"),
        ({"name": "sched_group_barrier", "pattern": [("DS", 0)]}, "start at 1"),
        ({"name": "sched_group_barrier", "pattern": [("LDS", 1)]}, "class 'LDS'"),
    ],
)
def test_wrong_use(options, text):
    with pytest.raises(DagError, match=text):
        mutate(synthetic.parse("gemm:64x64x64:f16:single_warp"), **options)


# the other mutations --------------------------------------------------------------------------------------------------


def test_barrier_latencies():
    dag = synthetic.parse(ARTICLE[0])
    slow, report = mutate(dag, "barrier_latency", signal_wait=50, in_flight=1)
    names = [dag.opcode_name(i) for i in range(dag.n)]
    again, twice = mutate(slow, "barrier_latency", signal_wait=50, in_flight=1)
    assert again == slow and not twice.changed and report.idempotent
    for s, t, kind, latency in oracle.edges_of(slow):
        if kind == EdgeKind.BARRIER and names[s] == "S_BARRIER_SIGNAL_IMM" and names[t] == "S_BARRIER_WAIT":
            assert latency == 50
        if kind == EdgeKind.BARRIER and names[s].startswith("DS_READ") and names[t] == "ATOMIC_FENCE":
            assert latency == 60
    added, grown = mutate(dag, "barrier_latency", mode="add")
    assert added.edge_latency.sum() >= dag.edge_latency.sum() and isinstance(grown, MutationReport)


def test_tensor_waits_leave_the_newest_in_flight():
    code = [{"opcode": "TENSOR_LOAD_TO_LDS_d2"} for _ in range(3)] + [{"opcode": "S_WAIT_TENSORCNT"}]
    dag = Dag.build(code, [(i, 3, "barrier", 320) for i in range(3)])
    for allowed, expected in ((0, [320, 320, 320]), (1, [320, 320, 1]), (2, [320, 1, 1]), (9, [1, 1, 1])):
        changed, _ = mutate(dag, "barrier_latency", in_flight=allowed)
        assert changed.edge_latency.tolist() == expected
    assert mutate(dag, "barrier_latency", in_flight={3: 2})[0].edge_latency.tolist() == [320, 1, 1]


def test_groups_follow_each_other_in_every_schedule():
    dag = synthetic.gemm(64, 64, 64, waves=1, schedule="base", body="core")
    pattern = [("DS_READ", 4), ("WMMA", 2)]
    changed, report = mutate(dag, "sched_group_barrier", pattern=pattern, repeat=1)
    order = schedule(changed, profile="llvm24-late").order.tolist()
    loads = dag.nodes_where(Flavor.DS)[:4].tolist()
    chain = dag.nodes_where(Flavor.WMMA)[:2].tolist()
    expected = {(a, b) for a in loads for b in chain}
    assert {(int(r["source"]), int(r["target"])) for r in report.added} == expected
    assert max(map(order.index, loads)) < min(map(order.index, chain))
    by_mask, _ = mutate(dag, "sched_group_barrier", pattern=[(0x100, 4), (0x8, 2)], repeat=1)
    assert by_mask == changed
    assert mutate(changed, "sched_group_barrier", pattern=pattern, repeat=1)[0] == changed


def test_mutations_of_ones_own():
    @register("doubled")
    def doubled(dag, *, machine):
        return dag.replace(edge_latency=2 * dag.edge_latency).with_paths(), MutationReport(
            "doubled", corrected=dag.edges
        )

    dag = synthetic.parse("gemm:64x64x64:f16:single_warp")
    assert "doubled" in mutations()
    assert mutate(dag, "doubled")[0].edge_latency.sum() == 2 * dag.edge_latency.sum()
    assert schedule(dag, profile="llvm24-early", mutations=["doubled"]).order.size == dag.n


# what schedules make of it --------------------------------------------------------------------------------------------


def test_issue_positions_of_the_article():
    dag = synthetic.parse(f"{ARTICLE[1]}:body=core")
    held, _ = mutate(dag, "opening_delay", until=7)
    windowed, report = mutate(held)
    positions = {}
    for name, side in (("off", held), ("on", windowed)):
        ranges, average = live_ranges(dag, schedule(side, profile="upstream").order)
        ranges = np.sort(ranges, order=["first_consumer", "last_consumer"])
        positions[name] = ranges[ranges["first_consumer"] >= 60]["issued_after"].tolist()
        assert abs(average - {"off": 52.1, "on": 20.2}[name]) <= 0.5
    anchors = [row[3] for row in sorted(rows(report)) if row[0] >= 60]
    assert positions["on"] == anchors
    assert max(abs(a - b) for a, b in zip(positions["off"], F16_OFF, strict=True)) <= 2


def test_mxfp_averages_with_an_opening_delay():
    dag = synthetic.parse(f"{ARTICLE[0]}:body=core", machine="upstream")
    loads = dag.flavor == Flavor.DS
    loaded = (dag.edge_kind == EdgeKind.DATA) & loads[dag.edge_source]
    dag = dag.replace(
        edge_latency=np.where(loaded, 60, dag.edge_latency), unit_cycles=np.where(loads, 60, dag.unit_cycles)
    ).with_paths()
    held, _ = mutate(dag, "opening_delay", until=8, cycles=3)
    for side, average in ((held, 44.5), (mutate(held)[0], 34.5)):
        assert abs(live_ranges(dag, schedule(side, profile="upstream").order)[1] - average) <= 0.5


@pytest.mark.parametrize("kernel", ARTICLE)
def test_mutated_orders_are_valid_for_the_original(kernel):
    dag = synthetic.parse(kernel)
    for variant in VARIANTS:
        order = schedule(mutate(dag, variant=variant)[0], profile="llvm24-late").order
        assert evaluate(dag, order).cycles > 0


# the command ----------------------------------------------------------------------------------------------------------


def test_command(capsys, tmp_path):
    assert main(["mutate", ARTICLE[0], "--json", "--compare"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["regions"][0]["budget"] == 228 and data["comparisons"][0]["gain"] > 2
    assert main(["mutate", ARTICLE[1], "--variant", "slim", "--histogram"]) == 0
    shown = capsys.readouterr().out
    assert "budget 88" in shown and "W127" in shown
    assert main(["mutate", "random:200:1", "--mutation", "sched_group_barrier", "-o", "pattern=DS_READ:2,WMMA:4"]) == 0
    assert main(["mutate", "--mutation", "list"]) == 0
    assert "wmma_window" in capsys.readouterr().out
    picture = tmp_path / "picture.png"
    assert main(["mutate", ARTICLE[1], "--picture", str(picture)]) == 0
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nosuch.json"], "no such file"),
        (["gemm:64x64x64:f16:single_warp", "--region", "3"], "regions 0 to 0"),
        (["gemm:64x64x64:f16:single_warp", "--variant", "fat"], "variant 'fat'"),
        (["gemm:64x64x64:f16:single_warp", "-o", "until"], "key=value"),
        ([], "name a kernel"),
    ],
)
def test_command_used_wrongly(words, text, capsys):
    assert main(["mutate", *words]) == 2
    assert text in capsys.readouterr().err
