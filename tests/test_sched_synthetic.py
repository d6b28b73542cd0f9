"""Synthetic kernels: the article's shapes, every dtype and cut, dependencies against a slow twin, growth, errors."""

from __future__ import annotations

import hashlib
from dataclasses import fields

import numpy as np
import oracle_sched_extra as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastgemm.sched import DagError, EdgeKind, Flag, Flavor, synthetic
from fastgemm.sched.comparison import ARTICLE
from fastgemm.sched.dependencies import A_NONE, derive_edges
from fastgemm.sched.liverange import carried_edges, pressure


def count(dag, flavor):
    return int((dag.flavor == flavor).sum())


@pytest.mark.parametrize(
    ("kernel", "loads", "carried", "fragment", "acc", "live"),
    [(ARTICLE[0], 83, 49, 16, 512, 711), (ARTICLE[1], 72, 24, 8, 256, 354)],
)
def test_the_kernels_of_the_article(kernel, loads, carried, fragment, acc, live):
    dag = synthetic.parse(kernel)
    assert count(dag, Flavor.WMMA) == 128 and count(dag, Flavor.DS) == loads + carried
    assert count(dag, Flavor.DMA) == (3 if "mxfp8" in kernel else 2)
    assert dag.whole_single_block_loop and (dag.flags[dag.flavor == Flavor.DS] & Flag.LOAD).all()
    core = synthetic.parse(f"{kernel}:body=core")
    assert set(core.flavor.tolist()) == {Flavor.WMMA, Flavor.DS} and count(core, Flavor.DS) == loads
    uses = (dag.operand_kind == 0) & (dag.flavor[dag.operand_node] == Flavor.WMMA)
    sizes = np.bincount(dag.register_size[np.unique(dag.operand_register[uses])])
    assert sizes[8] + (sizes[16] if fragment == 16 else 0) > 0 and sizes[fragment] >= 20
    assert abs(int(pressure(dag, np.arange(dag.n)).vector[0]) - live) <= 4
    assert acc == 8 * len({*dag.operand_register[uses & (dag.register_size[dag.operand_register] == 8)].tolist()} & {
        *dag.live_out_register.tolist()
    }) - (0 if fragment == 16 else 96)  # fmt: skip


def test_matrix_order_of_the_article():
    mxfp, f16 = (synthetic.parse(kernel) for kernel in ARTICLE)
    for dag, place in (
        (f16, lambda k, m, n: 32 * k + 4 * m + n),
        (mxfp, lambda s, m, n: 32 * s + 8 * (m // 2) + 4 * (n // 2) + 2 * (m % 2) + n % 2),
    ):
        chain = dag.nodes_where(Flavor.WMMA).tolist()
        sources = [[r for r, _, k in oracle.operands_of(dag, node) if k == 0] for node in chain]  # B, A, C
        for s in range(4):
            for m in range(8):
                assert len({sources[place(s, m, n)][1] for n in range(4)}) == 1
            for n in range(4):
                assert len({sources[place(s, m, n)][0] for m in range(8)}) == 1


@pytest.mark.parametrize("dtype", sorted(synthetic.MATRIX))
@pytest.mark.parametrize("cut", sorted(synthetic.SCHEDULES))
def test_every_dtype_and_cut(dtype, cut):
    op = synthetic.MATRIX[dtype]
    dag = synthetic.gemm(128, 128, 4 * op.k, waves=4, dtype=dtype, buffers=2, schedule=cut)
    dag.validate()
    assert (dag.edge_source < dag.edge_target).all()
    assert count(dag, Flavor.WMMA) == (64 // op.m) * (64 // op.n) * 4
    fragments = 4 * (64 // op.m + 64 // op.n)
    data = [name for name in range(dag.n) if dag.opcode_name(name).startswith(("DS_READ_B128", "DS_READ_B64"))]
    assert len(data) == 4 * (64 // op.m * op.a + 64 // op.n * op.b) // min(4, op.a) and fragments
    assert count(dag, Flavor.FENCE) >= 9
    assert bool(len(carried_edges(dag)[0]))
    assert dag == synthetic.gemm(128, 128, 4 * op.k, waves=4, dtype=dtype, buffers=2, schedule=cut)


def test_a_cut_of_ones_own():
    cut = synthetic.GemmSchedule(m=2, n=1, k=1, nest="nkm", preload=True)
    dag = synthetic.gemm(128, 64, 64, schedule=cut)
    assert count(dag, Flavor.WMMA) == 4 * 2 * 2 and dag.name.endswith("custom")


def test_growth_along_k_is_linear_and_bounded_in_width():
    sizes = [
        (d.n, d.edges, d.register_id.size)
        for d in (synthetic.gemm(256, 128, 128 * t, buffers=3, schedule="single_warp") for t in (1, 2, 4, 64))
    ]
    nodes = [n for n, _, _ in sizes]
    assert nodes == [nodes[0] * t for t in (1, 2, 4, 64)]
    steps = np.diff([e for _, e, _ in sizes]) / np.diff(nodes)
    assert steps.max() - steps.min() < 0.01 and len({r for _, _, r in sizes}) == 1
    assert synthetic.gemm(256, 128, 128, buffers=3, schedule="single_warp", unroll=4).n == 4 * nodes[0]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9))
def test_register_edges_equal_the_slow_twin(seed):
    draw = np.random.default_rng(seed)
    n = int(draw.integers(1, 14))
    code = []
    for _ in range(n):
        operands = [
            (int(draw.integers(3)), int(draw.integers(1, 256)), int(draw.choice([0, 0, 1, 2, 3])))
            for _ in range(draw.integers(0, 4))
        ]
        code.append(operands)
    latency = draw.integers(0, 9, n).astype(np.int32)
    start = np.concatenate([[0], np.cumsum([len(x) for x in code])])
    flat = [x for node in code for x in node]
    columns = (
        np.array([x[0] for x in flat], np.int32),
        np.array([x[1] for x in flat], np.uint64),
        np.array([x[2] for x in flat], np.int8),
    )
    source, target, kind, lasts = derive_edges(start, columns, 3, latency, np.full(n, A_NONE, np.int8))
    mine = {(int(s), int(t), int(k)): int(w) for s, t, k, w in zip(source, target, kind, lasts, strict=True)}
    assert len(mine) == source.size and mine == oracle.derive_edges(code, latency.tolist())


def test_edges_of_registers_many_nodes_share():
    """More readers and edges than there is room for at first: 128 writers of a word each, then readers of all of them."""
    writers = [[(r, 3 << 2 * w, 1)] for r in range(4) for w in range(32)]
    readers = [[(r, (1 << 64) - 1, 0) for r in range(4)] for _ in range(60)]
    code = [*writers, *readers, *writers]
    latency = np.arange(len(code), dtype=np.int32) % 7
    flat = np.array([x for node in code for x in node], dtype=object)
    columns = tuple(flat[:, i].astype(t) for i, t in enumerate((np.int32, np.uint64, np.int8)))
    start = np.concatenate([[0], np.cumsum([len(x) for x in code])])
    found = derive_edges(start, columns, 4, latency, np.full(len(code), A_NONE, np.int8))
    mine = {(s, t, k): w for s, t, k, w in zip(*(x.tolist() for x in found), strict=True)}
    assert len(mine) == found[0].size > 15_000 and mine == oracle.derive_edges(code, latency.tolist())
    assert np.array_equal(np.lexsort((-found[1], np.array([0, 2, 1])[found[2]], found[0])), np.arange(found[0].size))


def test_fences_order_accesses_and_nothing_else():
    dag = synthetic.parse(ARTICLE[0])
    names = [dag.opcode_name(i) for i in range(dag.n)]
    order = [(s, t) for s, t, kind, _ in oracle.edges_of(dag) if kind == EdgeKind.BARRIER]
    fences = [i for i in range(dag.n) if dag.flavor[i] == Flavor.FENCE]
    for fence, following in zip(fences, fences[1:], strict=False):
        assert (fence, following) in order
        between = [i for i in range(fence + 1, following) if names[i].startswith("DS_")]
        assert all((fence, i) in order and (i, following) in order for i in between)
    assert not any(names[i].startswith("V_WMMA") for pair in order for i in pair)


def test_attention_uses_every_unit():
    dag = synthetic.attention(128, 128, 128)
    dag.validate()
    for flavor in (Flavor.WMMA, Flavor.VALU1, Flavor.TRANS, Flavor.DS, Flavor.SALU, Flavor.DMA, Flavor.FENCE):
        assert count(dag, flavor)
    assert count(dag, Flavor.TRANS) == 2 * 8 * 8 + 2
    assert synthetic.attention(128, 128, 128, unroll=3).n == 3 * dag.n


def test_random_code_follows_its_seed():
    a, b, c = (synthetic.random(500, rng=rng) for rng in (7, np.random.default_rng(7), 8))
    assert a == b and a != c
    a.validate()
    big = synthetic.random(10**5, rng=1)
    assert big.n == 10**5 and pressure(big, np.arange(big.n)).peak < 1000
    looped = synthetic.random(200, rng=3, loop=True)
    assert looped.whole_single_block_loop and len(carried_edges(looped)[0])
    assert synthetic.random(0).n == 0


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: synthetic.gemm(256, 256, 256, dtype="f12"), "dtype 'f12'"),
        (lambda: synthetic.gemm(256, 256, 256, schedule="fast"), "schedule 'fast'"),
        (lambda: synthetic.gemm(256, 256, 250), "multiple of 32"),
        (lambda: synthetic.gemm(100, 256, 256), "cannot share"),
        (lambda: synthetic.gemm(256, 256, 256, body="half"), "body 'half'"),
        (lambda: synthetic.gemm(4096, 4096, 64, buffers=3), "hold at most 6 of K in 327680 bytes"),
        (lambda: synthetic.gemm(256, 256, 256, buffers=3, unroll=2), "hold at most 106 of K .* 256 are wanted"),
        (lambda: synthetic.gemm(128, 128, 128, dtype="fp8", schedule="sliceNK"), "into 2 slices, but K 128 .* makes 1"),
        (lambda: synthetic.gemm(32, 32, 32, waves=4, schedule="sliceN"), "do not divide"),
        (lambda: synthetic.gemm(64, 64, 64, schedule=synthetic.GemmSchedule(nest="kk")), "nest"),
        (lambda: synthetic.attention(100, 64, 64), "block_m has to be"),
        (lambda: synthetic.attention(128, 64, 64, dtype="i8"), "f16 or bf16"),
        (lambda: synthetic.random(-1), "have to be positive"),
        (lambda: synthetic.parse("gemm:256x256"), "three extents"),
        (lambda: synthetic.parse("conv:3x3x3"), "is no kernel"),
        (lambda: synthetic.parse("gemm:64x64x64:speed=3"), "no option 'speed'"),
    ],
)
def test_wrong_kernels_are_named(make, text):
    with pytest.raises(DagError, match=text):
        make()


@pytest.mark.parametrize("dtype", synthetic.MATRIX)
@pytest.mark.parametrize("buffers", [2, 3])
@pytest.mark.parametrize("tile", [(128, 128, 128), (64, 128, 128), (256, 64, 384), (96, 96, 128), (128, 128, 640)])
def test_any_tile_that_fits_the_lds_is_a_kernel(tile, buffers, dtype):
    """The default schedule is the finest the tile can be cut for; the work is that of the tile whatever the cut."""
    op = synthetic.MATRIX[dtype]
    if tile[0] % (2 * op.m):
        pytest.skip("two waves cannot share these rows")
    dag = synthetic.gemm(*tile, dtype=dtype, buffers=buffers)
    m, n, k = tile
    assert count(dag, Flavor.WMMA) == (m // (2 * op.m)) * (n // (2 * op.n)) * (k // op.k)
    cut = dag.name.rsplit("_", 1)[1]
    assert dag == synthetic.gemm(*tile, dtype=dtype, buffers=buffers, schedule=cut)
    finer = ("sliceNK", "sliceN", "sliceK", "base")[: ("sliceNK", "sliceN", "sliceK", "base").index(cut)]
    for name in finer:
        with pytest.raises(DagError, match="slices"):
            synthetic.gemm(*tile, dtype=dtype, buffers=buffers, schedule=name)


def digest(dags):
    """Of every field of some DAGs, arrays with their dtypes."""
    whole = hashlib.sha256()
    for dag in dags:
        for field in fields(dag):
            value = getattr(dag, field.name)
            text = f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else repr(value)
            whole.update(f"{field.name} {text}".encode())
            whole.update(np.ascontiguousarray(value).tobytes() if isinstance(value, np.ndarray) else b"")
    return whole.hexdigest()[:16]


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        (
            ["gemm:128x128x128", "gemm:256x128x512:bf16:buffers=3:single_warp", "gemm:128x128x64:unroll=3"],
            "fefa8c4f6db30ffa",
        ),
        ([f"gemm:256x256x256:{dtype}:sliceMNK" for dtype in ("mxfp8", "fp4", "i8", "fp8")], "cdd786836d0c2779"),
        (
            ["gemm:256x256x256:mxfp8:a_scales=1:base", "gemm:128x256x256:f32:pipelined:body=core:waves=2"],
            "2f3396a71fa116b2",
        ),
        (["attention:128x128x128", "attention:64x64x64:f16:unroll=2"], "669c5a9d8a64f290"),
    ],
)
def test_kernels_are_the_same_to_the_last_byte_from_version_to_version(kernels, expected):
    """Figures measured on them stay comparable; a kernel that is meant to change changes its digest here."""
    assert digest([synthetic.parse(kernel) for kernel in kernels]) == expected
