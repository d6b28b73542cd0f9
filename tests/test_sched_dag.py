"""DAGs and machines: building, validation, files, the corpus reader."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import fastgemm.sched as sched
from fastgemm.sched import Dag, DagError, EdgeKind, Flag, Flavor, machine

CORPUS = Path(__file__).parent / "data" / "corpus"
ADD = {"opcode": "V_ADD_U32_e32"}


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([(0, 1), (1, 2), (2, 0)], r"cycle: 1 \(V_ADD_U32_e32\) -> 2 .* -> 0 .* -> 1"),
        ([(1, 1)], r"node 1 \(V_ADD_U32_e32\) has an edge to itself"),
        ([(0, 1), (0, 1)], r"edges 0 and 1 are the same data edge 0 .* -> 1"),
        ([(0, 7)], "names node 7, which is none of the 3"),
        ([(0, 1, "sideways")], "edge kind 'sideways' is none of"),
        ([(0, 1, "order", -4)], "latency -4"),
    ],
)
def test_bad_edges_are_named(edges, message):
    with pytest.raises(DagError, match=message):
        Dag.build([ADD] * 3, edges)


def test_parallel_edges_of_different_kinds_are_no_duplicates():
    assert Dag.build([ADD] * 2, [(0, 1, "data"), (0, 1, "anti"), (0, 1, "order"), (0, 1, "barrier")]).edges == 4


def test_arrays_are_checked_for_dangling_edges_and_sizes():
    with pytest.raises(DagError, match="edge 0 goes from node 0 to node 5, but the DAG has nodes 0 to 1"):
        Dag.from_arrays(["S_ADD_I32"], [0, 0], ([0], [5], [0], [1]))
    with pytest.raises(DagError, match="differ in length"):
        Dag.from_arrays(["S_ADD_I32"], [0, 0], ([0], [1], [0], [1, 2]))
    with pytest.raises(DagError, match="opcode numbers run from 0 to 3"):
        Dag.from_arrays(["S_ADD_I32"], [0, 3])
    with pytest.raises(DagError, match="names register 4"):
        Dag.from_arrays(["S_ADD_I32"], [0], operands=([0], [4], [3], [0]), registers=([1], [True]))
    with pytest.raises(DagError, match="touches lanes 0xf of register 0"):
        Dag.from_arrays(["S_ADD_I32"], [0], operands=([0], [0], [15], [0]), registers=([1], [True]))
    with pytest.raises(TypeError, match="unknown keyword 'colour'"):
        Dag.from_arrays(["S_ADD_I32"], [0], colour="red")


def test_too_many_instructions_are_refused(monkeypatch):
    monkeypatch.setattr("fastgemm.sched.build.MAX_NODES", 3)
    with pytest.raises(DagError, match="4 instructions exceed the limit of 3"):
        Dag.from_arrays(["S_ADD_I32"], [0] * 4)


def test_unknown_opcodes_follow_the_policy():
    strange = [{"opcode": "X_FROB"}]
    with pytest.raises(DagError, match="opcode 'X_FROB' is unknown to machine 'gfx1250'"):
        Dag.build(strange)
    assert Dag.build(strange, unknown_opcode="SALU").flavor[0] == Flavor.SALU
    assert Dag.build([{"opcode": "X_FROB", "flavor": "DS", "latency": 7}]).latency[0] == 7


def test_paths_follow_edges_and_exit():
    dag = Dag.build([ADD] * 3, [(0, 1, "data", 5), (1, 2, "anti", 1)])
    assert list(dag.depth) == [0, 5, 6] and list(dag.height) == [6, 1, 0]
    longer = dag.with_edges([0], [2], EdgeKind.ARTIFICIAL, 9)
    assert list(longer.depth) == [0, 5, 9] and list(longer.edge_target) == [1, 2, 2]
    with pytest.raises(DagError, match="cycle"):
        dag.with_edges([2], [0])
    with pytest.raises(DagError, match="joins no two nodes"):
        dag.with_edges([2], [2])


def test_edges_of_one_source_keep_their_order():
    dag = Dag.from_arrays(["S_ADD_I32"], [0] * 4, ([2, 0, 0, 0], [3, 3, 1, 2], [0, 0, 0, 0], [1, 2, 3, 4]))
    assert list(dag.edge_target) == [3, 1, 2, 3] and list(dag.edge_latency) == [2, 3, 4, 1]
    start, order = dag.predecessors
    assert list(dag.edge_source[order[start[3] : start[4]]]) == [0, 2]


def test_a_million_nodes_build():
    n = 1_000_000
    dag = Dag.from_arrays(
        ["S_ADD_I32"], np.zeros(n, int), (np.arange(n - 1), np.arange(1, n), np.zeros(n - 1), np.ones(n - 1))
    )
    assert dag.n == n and dag.depth[-1] == n - 1 and dag.nbytes < 100e6


def test_copies_take_their_side_from_their_registers():
    items = [{"opcode": "COPY", "defs": ["a"], "uses": ["b"]}, {"opcode": "COPY", "defs": ["s"], "uses": ["t"]}]
    names = {"a": (2, "vector"), "b": (2, "vector"), "s": (1, "scalar"), "t": (1, "scalar")}
    dag = Dag.build(items, registers=names)
    assert list(dag.flavor) == [Flavor.VALU1, Flavor.SALU] and list(dag.copy_regs) == [2, 1]
    early = dag.on("llvm24-early")
    assert list(early.flavor) == [Flavor.OTHER, Flavor.OTHER] and early.machine == "llvm24-early"
    vector = Dag.build([{"opcode": "V_ADD_U32_e32", "uses": ["s"]}], registers=names)
    assert Flag.READS_SGPR in Flag(int(vector.flags[0]))


def test_another_machine_moves_data_latencies_that_were_result_latencies():
    op = {"opcode": "V_WMMA_SCALE_F32_16X16X128_F8F6F4_f8_f8_w32_twoaddr"}
    dag = Dag.build([op, ADD, ADD], [(0, 1), (0, 2, "data", 99)])
    older = dag.on("gfx1250-a0")
    assert list(dag.edge_latency) == [8, 99] and list(older.edge_latency) == [16, 99]
    assert older.matrix_cycles[0] == 16 and older.depth[1] == 16


def test_machines_are_data(tmp_path):
    assert {"gfx1250", "gfx1250-a0", "gfx950", "llvm24-early", "llvm24-late", "upstream"} <= set(sched.machines())
    assert machine("gfx1250").ds_latency == 60 and machine("gfx1250-ds-fast").ds_latency == 20
    assert machine("gfx950").facts("V_MFMA_F32_32X32X16_F16").matrix_cycles == 16
    with pytest.raises(DagError, match="no machine called 'gfx9000'; there are gfx1250"):
        machine("gfx9000")
    own = {"format": "fastgemm-machine-1", "name": "mine", "extends": "gfx1250", "ds_fifo": 4}
    own["opcodes"] = {"V_ADD_U32_e32": {"flavor": "VALU(1c)", "latency": 3}}
    (tmp_path / "mine.json").write_text(json.dumps(own))
    mine = sched.Machine.load(tmp_path / "mine.json")
    assert mine.ds_fifo == 4 and mine.facts("V_ADD_U32_e32").latency == 3 and mine.facts("S_ADD_I32").latency == 2
    assert sched.schedule(Dag.build([ADD]), machine=mine).machine == "mine"
    (tmp_path / "bad.json").write_text(json.dumps({"format": "something", "name": "x"}))
    with pytest.raises(DagError, match="format 'something'"):
        sched.Machine.load(tmp_path / "bad.json")


def test_corpus_reader_gives_regions_with_picks_and_queues():
    regions = sched.read_corpus(CORPUS / "tt_softmax_1024.llvm24-late.json.gz")
    assert [region.block for region in regions] == ["bb.0", "bb.1", "bb.2"] and regions[0].stage.startswith("Max ILP")
    assert list(regions[0].order) == [0, 1, 2, 3] and not regions[0].third_party
    available, pending = regions[0].queues[1]
    assert list(available) == [1, 2] and pending.size == 0 and len(regions[0].queues) == 4
    for region in regions:
        region.dag.validate()
        assert np.array_equal(region.dag.with_paths().depth, region.dag.depth)


def test_other_files_are_no_corpus(tmp_path):
    with gzip.open(tmp_path / "x.json.gz", "wt") as file:
        file.write("[]")
    with pytest.raises(DagError, match="no corpus file: it has no 'kernel'"):
        sched.read_corpus(tmp_path / "x.json.gz")
    (tmp_path / "y.json").write_text("bb.0:")
    with pytest.raises(DagError, match="no corpus file"):
        sched.read_corpus(tmp_path / "y.json")


def test_files_of_our_own_hold_every_field(tmp_path):
    dags = [region.dag for region in sched.read_corpus(CORPUS / "tt_mm_f16_64x64x32_s2.llvm24-late.json.gz")]
    sched.save(tmp_path / "kernels.npz", dags)
    assert sched.load(tmp_path / "kernels.npz") == dags
    dags[0].save(tmp_path / "one")
    assert sched.load(tmp_path / "one") == dags[:1]
    assert pickle.loads(pickle.dumps(dags[0])) == dags[0]
    sched.save(tmp_path / "none.npz", [])
    assert sched.load(tmp_path / "none.npz") == []


def test_wrong_and_newer_files_are_refused(tmp_path):
    (tmp_path / "text").write_text("hello")
    with pytest.raises(DagError, match="is no file of fastgemm DAGs"):
        sched.load(tmp_path / "text")
    header = {"format": "fastgemm-dags", "version": 99, "tables": [], "dags": []}
    np.savez(tmp_path / "new.npz", header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8))
    with pytest.raises(DagError, match="version 99"):
        sched.load(tmp_path / "new.npz")


def test_the_function_machine_is_not_hidden_by_its_module():
    import fastgemm.sched.machine  # noqa: F401

    assert callable(sched.machine) and repr(sched.machine("gfx1250")).startswith("Machine('gfx1250'")


def test_replaced_columns_have_the_dtype_and_length_of_the_others():
    dag = sched.synthetic.gemm(128, 128, 128)
    doubled = dag.replace(edge_latency=2 * dag.edge_latency.astype(np.float64), flavor=dag.flavor.astype(np.int64))
    assert doubled.edge_latency.dtype == np.int32 and doubled.flavor.dtype == np.int8
    assert np.array_equal(doubled.edge_latency, 2 * dag.edge_latency)
    strided = np.repeat(dag.edge_latency, 2)[::2]
    assert dag.replace(edge_latency=strided).edge_latency.flags.c_contiguous
    with pytest.raises(DagError, match="flavor has shape"):
        dag.replace(flavor=dag.flavor[1:])
    with pytest.raises(DagError, match="edge_kind has shape"):
        dag.replace(edge_target=dag.edge_target[1:])
    with pytest.raises(DagError, match="edge_start has shape .* 1 more"):
        dag.replace(edge_start=dag.edge_start[1:])
    with pytest.raises(DagError, match="edge_start has to rise from 0"):
        dag.replace(edge_start=np.zeros(dag.n + 1))
    with pytest.raises(TypeError, match="no field 'edges'"):
        dag.replace(edges=())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"exits": ([99], [3], [5])}, "exit_source.0. is 99; 0 to 2"),
        ({"live_in": ([50], [3])}, "live_in_register.0. is 50"),
        ({"live_out": ([0], [15])}, "live-out 0 touches lanes 0xf of register 0"),
        ({"flavor": [0, 40, 0]}, "flavor.1. is 40; 0 to 10"),
        ({"window": [99, 0, 0]}, "window.0. is 99"),
        ({"micro_ops": [-5, 1, 1]}, "micro_ops.0. is -5"),
        ({"unit_cycles": [1, 1, -50]}, "unit_cycles.2. is -50"),
        ({"latency": [1, 1 << 30, 0]}, "latency.1. is 1073741824"),
        ({"depth": [1], "height": [1]}, "depth has shape"),
    ],
)
def test_values_jitted_code_would_follow_are_checked_at_the_edge(wrong, message):
    """Whatever `validate` says: a number out of range would be an address out of range."""

    def build(**region):
        operands = ([0, 1, 2], [0, 0, 0], [3, 3, 3], [1, 0, 1])
        return Dag.from_arrays(
            ["V_ADD_U32_e32"], [0, 0, 0], operands=operands, registers=([1], [True]), validate=False, **region
        )

    sched.schedule(build())
    with pytest.raises(DagError, match=message):
        build(**wrong)
    if not wrong.keys() & {"exits", "live_in", "live_out", "depth"}:
        with pytest.raises(DagError, match=message):
            build().replace(**wrong)


def test_a_file_with_values_out_of_range_is_refused(tmp_path):
    sched.save(tmp_path / "good.npz", [sched.synthetic.gemm(128, 128, 128)])
    with np.load(tmp_path / "good.npz") as archive:
        columns = dict(archive)
    columns["operand_register"][7] = 10_000
    np.savez(tmp_path / "bad.npz", **columns)
    with pytest.raises(DagError, match="operand_register.7. is 10000"):
        sched.load(tmp_path / "bad.npz")


def test_an_empty_file_is_no_file_of_dags(tmp_path):
    path = tmp_path / "empty.npz"
    path.touch()
    with pytest.raises(DagError, match="is no file of fastgemm DAGs"):
        sched.load(path)
