"""Every path of the engine, forced and seen to be taken, gives the exact product.

Operands hold small integers, so equality is exact; outputs start as NaN, so an element nobody wrote is seen.
"""

from __future__ import annotations

import _thread
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from gemm_spy import Spy

import fastgemm as fg
from fastgemm import api
from fastgemm.arch import Tile
from fastgemm.gemm import direct, engine, job, multiply, objects, scratch
from fastgemm.gemm import mainloop as r
from fastgemm.options import Options

DTYPES = ("f4", "f8", "c8", "c16")
REAL = ("f4", "f8")
TILE = Tile(l1=(16, 32, 24))
TESTS = Path(__file__).resolve().parent


def integers(shape, dtype, seed=0):
    """Whole numbers in [-4, 4]."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-4, 5, shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.integers(-4, 5, shape)
    return values.astype(dtype)


def exact(a, b):
    """The product in exact arithmetic, in a's dtype."""
    wide = np.result_type(a.dtype, "f8")
    return (a.astype(wide) @ b.astype(wide)).astype(a.dtype.char)


def empty(a, b, order="C"):
    """An output that is NaN all over."""
    return np.full((*a.shape[:-1], b.shape[-1]), np.nan, np.dtype(a.dtype.char), order)


def run(a, b, out=None, **options):
    """The engine's product, checked."""
    out = empty(a, b) if out is None else out
    engine.run(a, b, out, Options(**options))
    np.testing.assert_array_equal(out, exact(a, b))
    return out


@pytest.fixture
def spy(monkeypatch):
    return Spy(monkeypatch)


# --- the direct path -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_direct_product(spy, dtype):
    calls = spy.watch(dtype)
    a, b = integers((13, 17), dtype, 1), integers((17, 21), dtype, 2)
    for out in (None, empty(a, b)):
        np.testing.assert_array_equal(direct.fast(a, b, out), exact(a, b))
    assert calls["kernel"] > 0
    assert not spy.jobs
    assert not spy.runs


@pytest.mark.parametrize("dtype", DTYPES)
def test_direct_product_lays_a_transposed_b_out(spy, dtype):
    calls = spy.watch(dtype)
    a, b = integers((13, 17), dtype, 1), integers((21, 17), dtype, 2).T
    np.testing.assert_array_equal(direct.fast(a, b, None), exact(a, b))
    assert calls["lay rows"] == 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_direct_product_beyond_one_thread(dtype, transposed, threads):
    a, b = integers((150, 70), dtype, 1), integers((70, 90), dtype, 2)
    if transposed:
        b = integers((90, 70), dtype, 2).T
    assert a.shape[0] * b.size > job.SERIAL_WORK
    with fg.threads(threads):
        np.testing.assert_array_equal(direct.fast(a, b, empty(a, b)), exact(a, b))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_direct_stacks(dtype, shared, threads):
    a, b = integers((40, 20, 30), dtype, 1), integers((1 if shared else 40, 30, 25), dtype, 2)
    with fg.threads(threads):
        for x in (a, a[::-1], a[:, ::2], a[:3]):
            y = b if shared else b[: len(x)]
            np.testing.assert_array_equal(direct.fast(x, y, None), exact(x, y))


def test_what_the_direct_path_does_not_take_it_leaves_untouched():
    a, b = integers((6, 7), "f8", 1), integers((7, 8), "f8", 2)
    whole = np.full((20, 20), -1.0)
    whole[:6, :7] = a
    refused = [
        (a, b, empty(a, b, "F")),
        (a, b, np.full((6, 9), np.nan)),
        (a, b[:6], np.full((6, 8), np.nan)),
        (a[:0], b, np.empty((0, 8))),
        (a, b.astype("f4"), empty(a, b)),
        (whole[:6, :7], b, whole[3:9, 5:13]),
        (a.astype(">f8"), b, empty(a, b)),
    ]
    for x, y, out in refused:
        before = out.copy()
        assert direct.fast(x, y, out) is NotImplemented
        np.testing.assert_array_equal(out, before)


@pytest.mark.parametrize("shape", [(5, 6, 7), (70, 70, 70), (300, 300, 300)])
def test_the_direct_path_counts_references_as_python_does(shape):
    m, n, k = shape
    a, b, out = integers((m, k), "f4", 1), integers((k, n), "f4", 2), np.empty((m, n), "f4")
    fg.matmul(a, b, out)
    held = [a, b, out, a.dtype, np.ndarray, None, *direct._ANSWERS]
    before = [sys.getrefcount(x) for x in held]
    for _ in range(50):
        assert fg.matmul(a, b, out) is out
        fresh = fg.matmul(a, b)
        assert sys.getrefcount(fresh) == 2
        assert fg.matmul(a[:2], b[:, :2]).flags.owndata
    del fresh
    with pytest.raises(ValueError, match="must be as long as"):
        fg.matmul(a, b[1:])
    # None and the small integers are anybody's; a leak would show as one for each call
    for x, count in zip(held, before, strict=True):
        assert abs(sys.getrefcount(x) - count) < 20


def test_results_of_the_direct_path_are_ordinary_arrays():
    a, b = integers((4, 5), "f8", 1), integers((5, 6), "f8", 2)
    c = fg.matmul(a, b)
    assert type(c) is np.ndarray
    assert c.base is None
    assert c.flags.c_contiguous
    assert c.flags.owndata
    assert c.flags.writeable
    assert c.dtype is a.dtype
    stack = fg.matmul(np.stack([a, a]), b[None])
    assert (stack.shape, stack.strides, stack.flags.owndata) == ((2, 4, 6), (192, 48, 8), True)


def test_without_the_direct_path_everything_is_as_before(monkeypatch):
    """Where arrays do not lie in memory as the compiled function expects, the engine computes everything."""
    monkeypatch.setattr(objects, "DATA", objects.DATA + 8)
    objects.readable.cache_clear()
    assert not objects.readable()
    direct.entry.cache_clear()
    try:
        monkeypatch.setattr(api, "_direct", direct.entry())
        a, b = integers((9, 8), "f4", 1), integers((8, 7), "f4", 2)
        assert direct.entry()(a, b, None) == direct.GENERAL
        np.testing.assert_array_equal(fg.matmul(a, b), exact(a, b))
        np.testing.assert_array_equal(fg.matmul(a[None], b[None]), exact(a[None], b[None]))
    finally:
        monkeypatch.undo()
        objects.readable.cache_clear()
        direct.entry.cache_clear()
    assert objects.readable()


@pytest.mark.parametrize(
    "strange", [None, 3, "text", np.float32(2), np.array(2, "f4"), np.zeros((1,) * 7, "f4"), (), object()]
)
def test_what_is_no_matrix_is_left_to_the_general_way(strange):
    a = np.ones((3, 3), "f4")
    for arguments in ((strange, a, None), (a, strange, None), (strange, strange, None)):
        assert direct.entry()(*arguments) == direct.GENERAL
    if strange is not None:
        assert direct.entry()(a, a, strange) == direct.GENERAL


VECTORS_AND_STACKS = [
    ((5,), (5,)), ((5,), (5, 4)), ((3, 5), (5,)), ((2, 3, 5), (5,)), ((5,), (2, 5, 4)), ((2, 3, 5), (5, 4)), ((3, 5), (2, 5, 4)),
    ((2, 6, 3, 5), (2, 6, 5, 4)), ((2, 6, 3, 5), (5, 4)), ((2, 6, 3, 5), (5,)), ((1, 6, 3, 5), (1, 6, 5, 4)),
    ((7, 3, 5), (1, 5, 4)), ((1, 3, 5), (7, 5, 4)), ((1, 1, 3, 5), (5, 4)), ((1, 2, 1, 3, 3, 5), (5, 4)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", VECTORS_AND_STACKS, ids=str)
def test_vectors_and_broadcast_stacks_take_the_direct_path(shapes, dtype):
    fg.matmul(np.ones((2, 2), dtype), np.ones((2, 2), dtype))
    a, b = (integers(shape, dtype, seed) for seed, shape in enumerate(shapes))
    expected = np.matmul(a, b)
    result = direct.entry()(a, b, None)
    assert type(result) is type(expected)
    np.testing.assert_array_equal(result, expected)
    if expected.ndim == 0:
        out = np.zeros((), dtype)
        assert direct.entry()(a, b, out) is out
        return
    assert result.strides == expected.strides
    for out in (
        np.full(expected.shape, np.nan, dtype),
        np.full((*expected.shape[:-1], 9), np.nan, dtype)[..., : expected.shape[-1]],
    ):
        assert direct.entry()(a, b, out) is out
        np.testing.assert_array_equal(out, expected)


def test_stacks_the_direct_path_cannot_walk_with_one_stride():
    a, b = integers((2, 6, 3, 5), "f4", 1), integers((2, 1, 5, 4), "f4", 2)
    assert direct.entry()(a, b, None) == direct.GENERAL, "two strides, and no stack as the engine takes it"
    assert direct.entry()(a[:, :3], b.repeat(3, 1), None) == direct.ENGINE
    for x, y in ((a, b), (b.swapaxes(2, 3), a.swapaxes(2, 3)), (a[:, :3], b.repeat(3, 1))):
        np.testing.assert_array_equal(fg.matmul(x, y), exact(x, y))
    assert direct.entry()(a, b[0, :, :, :3], np.empty((2, 6, 3, 4), "f4")) == direct.GENERAL


@pytest.mark.parametrize("n", [130, 700])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_stack_of_one_is_repeated_whoever_multiplies(n, backwards):
    """The engine once walked past the end of such a stack."""
    a, b = integers((3, 40, n), "f4", 1), integers((1, n, n), "f4", 2)
    b = b[:, :, ::-1] if backwards else b
    np.testing.assert_array_equal(fg.matmul(a, b), exact(a, b))
    np.testing.assert_array_equal(fg.matmul(b, a.swapaxes(1, 2)), exact(b, a.swapaxes(1, 2)))


def test_an_out_with_one_row_whose_batch_runs_backwards_over_an_operand():
    memory = np.arange(56.0)
    b = np.stack([np.eye(8)] * 6)
    a, out = memory[8:].reshape(6, 1, 8), memory[:48].reshape(6, 1, 8)[::-1, ::-1]
    expected = np.matmul(a.copy(), b)
    assert direct.entry()(a, b, out) == direct.GENERAL
    np.testing.assert_array_equal(fg.matmul(a, b, out=out), expected)


def test_an_out_of_single_rows_that_overlaps_itself():
    def rows_on_top_of_each_other():
        return np.lib.stride_tricks.as_strided(np.zeros(12), (5, 1, 8), (8, 8, 8))

    a, b, out = np.ones((5, 1, 1500)), np.ones((1, 1500, 8)), rows_on_top_of_each_other()
    assert direct.entry()(a, b, out) in (direct.GENERAL, direct.ENGINE)
    np.testing.assert_array_equal(fg.matmul(a, b, out=out), np.full((5, 1, 8), 1500.0))


class _Sub(np.ndarray):
    pass


def test_subclasses_and_read_only_results_are_left_to_the_general_way():
    a = np.ones((3, 3), "f4")
    locked = np.empty((3, 3), "f4")
    locked.flags.writeable = False
    for arguments in ((a.view(_Sub), a, None), (a, a.view(_Sub), None), (a, a, a.copy().view(_Sub)), (a, a, locked)):
        assert direct.entry()(*arguments) == direct.GENERAL


# --- jobs: B in place ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("a_shape", "b_shape", "cut"),
    [
        ((200, 60), (60, 70), job.BY_ROWS),
        ((10, 150), (150, 260), job.BY_COLUMNS),
        ((30, 20, 30), (30, 30, 40), job.BY_BATCH),
    ],
)
def test_job_is_cut(spy, dtype, a_shape, b_shape, cut):
    run(integers(a_shape, dtype, 1), integers(b_shape, dtype, 2), threads=4)
    ((words, shares),) = spy.jobs
    assert words[job.CUT] == cut
    assert shares > 1
    assert not spy.runs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 8, 9, 40])
def test_job_with_slabs_of_k(spy, dtype, m):
    run(integers((m, 900), dtype, 1), integers((900, 33), dtype, 2), threads=1)
    ((words, shares),) = spy.jobs
    assert words[job.KC] < words[job.K]
    assert shares == 1


@pytest.mark.parametrize("batch", [1, 3])
def test_a_long_job_is_cut_for_ctrl_c_on_one_thread_too(spy, batch):
    """More than 2e9 multiplications; A repeats one row, so the expected result is one row, too."""
    k, n = 400, 390
    m = int(2e9) // (k * n * batch) + 100
    row, b = integers((batch, 1, k), "f4", 1), integers((batch, k, n), "f4", 2)
    a = np.broadcast_to(row, (batch, m, k))
    out = np.full((batch, m, n), np.nan, "f4")
    engine.run(a, b, out, Options(threads=1))
    assert (out == exact(row, b)).all()
    ((words, shares),) = spy.jobs
    assert shares > 1
    assert words[job.CUT] == (job.BY_ROWS if batch == 1 else job.BY_BATCH)


@pytest.mark.parametrize("dtype", REAL)
def test_few_rows_stream_a_large_b(spy, dtype):
    calls = spy.watch(dtype)
    k = 203
    n = job.CACHED_BYTES // (k * np.dtype(dtype).itemsize) + 77
    for m in (2, job.STREAMED_ROWS):
        calls.clear()
        run(integers((m, k), dtype, 1), integers((k, n), dtype, 2), threads=1)
        assert calls["axpy kernel"] > 0
        assert calls["kernel"] == 0


@pytest.mark.parametrize("dtype", REAL)
def test_one_row_scales_rows_of_b(spy, dtype):
    calls = spy.watch(dtype)
    for k, n in ((1, 2), (23, 5), (8, 6000), (513, 70)):
        calls.clear()
        run(integers((1, k), dtype, 1), integers((k, n), dtype, 2), threads=1)
        assert calls["axpy kernel"] > 0
        assert calls["kernel"] == 0


@pytest.mark.parametrize("dtype", REAL)
def test_one_column_is_dot_products(spy, dtype):
    calls = spy.watch(dtype)
    for m, k in ((1, 5), (2, 70), (15, 64), (700, 900), (30, 4096)):
        calls.clear()
        run(integers((m, k), dtype, 1), integers((k, 1), dtype, 2), threads=1)
        assert calls["dot kernel"] > 0
        assert calls["kernel"] == 0


@pytest.mark.parametrize("dtype", REAL)
def test_column_major_matrix_times_a_column_scales_columns(spy, dtype):
    calls = spy.watch(dtype)
    a = integers((90, 40), dtype, 1).T
    run(a, integers((90, 1), dtype, 2), threads=1)
    assert calls["axpy kernel"] > 0


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("dtype", REAL)
def test_column_with_gaps_is_packed_first(spy, dtype, batch):
    calls = spy.watch(dtype)
    wide = integers((*batch, 130, 7), dtype, 2)
    copied = []
    real = engine._with_contiguous_column
    spy._patch.setattr(engine, "_with_contiguous_column", lambda *x: copied.append(1) or real(*x))
    run(integers((*batch, 50, 130), dtype, 1), wide[..., 3:4], threads=1)
    run(integers((*batch, 50, 130), dtype, 1), wide.astype(wide.dtype.newbyteorder())[..., 3:4], threads=1)
    assert len(copied) == 2
    assert calls["kernel"] + calls["dot kernel"] > 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_few_rows_times_a_transposed_matrix_read_it_in_place(spy, dtype):
    for m in (1, 5, 32):
        b = integers((400, 300), dtype, 2)
        run(integers((m, 300), dtype, 1), b.T, threads=1)
        taken = [words[job.A] for words, _ in spy.jobs] + [words[r.A] for _, _, words in spy.runs]
        assert taken == [b.ctypes.data], "computed as B times the few rows' transpose"
        spy.jobs.clear()
        spy.runs.clear()


@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_of_a_reproducible_product_take_the_general_kernels(spy, dtype):
    calls = spy.watch(dtype)
    for m, n in ((1, 70), (70, 1), (1, 1)):
        run(integers((m, 300), dtype, 1), integers((300, n), dtype, 2), threads=1, reproducible=True)
    assert calls["dot kernel"] + calls["axpy kernel"] == 0
    assert calls["kernel"] > 0


# --- runs of an op stream ------------------------------------------------------------------------------------------------------


def large_b(dtype):
    """Extents (m, k, n) whose B is packed."""
    k = 160
    return 70, k, job.IN_PLACE_BYTES // (k * np.dtype(dtype).itemsize) + 101


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_stream_with_a_common_packed_b(spy, dtype, threads):
    m, k, n = large_b(dtype)
    run(integers((m, k), dtype, 1), integers((k, n), dtype, 2), threads=threads)
    ((layout, lanes, words),) = spy.runs
    assert layout.shared
    assert layout.common > 0
    assert words[r.B_SHARED] == 1
    assert lanes == threads


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_stream_with_a_b_per_thread(spy, dtype, threads):
    a, b = integers((100, 70), dtype, 1), integers((70, 150), dtype, 2)
    run(a, b, threads=threads, policy=fg.Preload(), tile=TILE, cores=3)
    ((layout, lanes, words),) = spy.runs
    assert not layout.shared
    assert layout.common == 0
    assert layout.own > 0
    assert words[r.B_SHARED] == 0
    assert lanes == threads


@pytest.mark.parametrize("dtype", DTYPES)
def test_stream_packs_every_layout_of_b(spy, dtype):
    m, k, n = large_b(dtype)
    calls = spy.watch(dtype)
    a = integers((m, k), dtype, 1)
    operands = {
        "pack rows kernel": integers((k, n), dtype, 2),
        "square kernel": integers((n, k), dtype, 2).T,
        "pack": integers((k, 2 * n), dtype, 2)[:, ::2],
    }
    for name, b in operands.items():
        if name == "square kernel" and dtype == "c16" and multiply.t.host_isa() == "generic":
            continue
        calls.clear()
        run(a, b, threads=1)
        assert calls[name] > 0, name
        assert calls["packed"] > 0, name


@pytest.mark.parametrize("dtype", DTYPES)
def test_stacks_beyond_one_batch_axis(spy, dtype):
    m, k, n = 40, 100, job.IN_PLACE_BYTES // (100 * np.dtype(dtype).itemsize) // 4
    a, b = integers((2, 3, m, k), dtype, 1), integers((2, 1, k, n), dtype, 2)
    run(a, np.broadcast_to(b, (2, 3, k, n)), threads=1)
    run(a[::-1, ::2], np.broadcast_to(b, (2, 3, k, n))[:, 1:], threads=2)
    run(a.transpose(1, 0, 2, 3), np.broadcast_to(b, (2, 3, k, n)).transpose(1, 0, 2, 3), threads=2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("policy", [fg.HostPanels(), fg.Pingpong(), fg.PreloadAsync()], ids=str)
def test_accumulating_in_c_or_in_a_tile_of_its_own(spy, policy, dtype):
    a, b = integers((50, 70), dtype, 1), integers((70, 75), dtype, 2)  # several K tiles
    tall = np.full((50, 150), np.nan, dtype)
    outs = {"rows": (empty(a, b), 1), "columns": (empty(a, b, "F"), 0), "gaps": (tall[:, ::2], 0)}
    outs["upside down"] = (empty(a, b)[::-1], 1)
    for name, (out, in_c) in outs.items():
        spy.runs.clear()
        run(a, b, out, policy=policy, tile=TILE, cores=2, threads=2)
        ((_, _, words),) = spy.runs
        assert words[r.C_DIRECT] == in_c, name
    assert np.isnan(tall[:, 1::2]).all(), "what lies between the columns of the output is not touched"


@pytest.mark.parametrize("order", ["F", "gaps"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_auto_with_an_output_of_any_strides(dtype, order):
    m, k, n = large_b(dtype)
    a, b = integers((m, k), dtype, 1), integers((k, n), dtype, 2)
    out = empty(a, b, "F") if order == "F" else np.full((m, 2 * n), np.nan, dtype)[:, ::2]
    run(a, b, out, threads=2)


@pytest.mark.parametrize("swapped", ["a", "b", "ab"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_byte_swapped_operands(spy, dtype, swapped):
    for m, k, n in ((9, 17, 33), large_b(dtype), (1, 40, 70), (70, 40, 1)):
        a, b = integers((m, k), dtype, 1), integers((k, n), dtype, 2)
        a = a.astype(a.dtype.newbyteorder()) if "a" in swapped else a
        b = b.astype(b.dtype.newbyteorder()) if "b" in swapped else b
        spy.runs.clear()
        run(a, b, threads=2)
        if n > 1:
            assert spy.runs, "a byte-swapped operand is copied into a slot"
        for policy in (fg.Pingpong(), fg.HostPanels()):
            run(a, b, threads=2, policy=policy, tile=TILE, cores=2)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_b_for_a_stack_is_packed_once(spy, dtype, threads):
    m, k, n = large_b(dtype)
    a, b = integers((3, m, k), dtype, 1), integers((1, k, n), dtype, 2)
    shared = np.broadcast_to(b, (3, k, n))
    calls = spy.watch(dtype)
    run(a[:1], b, threads=threads)
    once = calls["pack rows kernel"]
    for stack in (a, integers((3, m + 5, k), dtype, 3)[:, :m], a[::-1]):
        calls.clear()
        run(stack, shared, threads=threads)
        assert 0 < calls["pack rows kernel"] <= once * 1.2


# --- products with the own transpose -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n", [direct.SYMMETRIC_ROWS, direct.SYMMETRIC_ROWS + 1, 129, 257])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_with_the_own_transpose_computes_half(spy, monkeypatch, dtype, n, threads):
    mirrored = []
    real = engine.mirror
    monkeypatch.setattr(engine, "mirror", lambda *x: mirrored.append(x) or real(*x))
    a = integers((n, 61), dtype, 1)
    tall = integers(
        (job.IN_PLACE_BYTES // (n * a.itemsize) + 3, n), dtype, 2
    )  # its transpose has contiguous rows: not in place
    for x in (a, tall.T):
        c = run(x, x.T, threads=threads)
        np.testing.assert_array_equal(c, c.T)
    assert len(mirrored) == 2
    assert [words[r.SYMMETRIC] for _, _, words in spy.runs] == [1, 1]


def test_symmetric_products_in_a_stack(spy):
    a = integers((3, 130, 40), "f4", 1)
    run(a, a.transpose(0, 2, 1), threads=2)
    assert [words[r.SYMMETRIC] for _, _, words in spy.runs] == [1, 1, 1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_only_looks_symmetric_is_computed_in_full(spy, dtype):
    a = integers((130, 130), dtype, 1)
    run(a, a, threads=1)
    run(a, a.copy().T, threads=1)
    run(a[:, ::-1], a.T, threads=1)
    stack = integers((2, 130, 40), dtype, 1)
    run(stack, np.broadcast_to(stack[0].T, (2, 40, 130)), threads=1)
    assert not any(words[r.SYMMETRIC] for _, _, words in spy.runs)


# --- long runs, and what interrupts them -----------------------------------------------------------------------------------------


@pytest.fixture
def long_runs(monkeypatch):
    """Every run is a long one, and stops after each multiplication."""
    monkeypatch.setattr(engine, "_LONG_RUN", 0)
    monkeypatch.setattr(engine, "_BUDGET_NS", 1)
    rounds = []
    real = engine.pool.run
    monkeypatch.setattr(engine.pool, "run", lambda *x: rounds.append(x) or real(*x))
    return rounds


POLICIES = (fg.HostPanels(), fg.Pingpong(), fg.Preload(), fg.PreloadAsync(preload_stages=2, l1_stages=4))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_long_run_stops_and_goes_on(long_runs, policy, threads):
    a, b = integers((100, 90), "f4", 1), integers((90, 200), "f4", 2)
    order = "C" if isinstance(policy, fg.HostPanels) else "F"
    for out in (empty(a, b), empty(a, b, order)):
        long_runs.clear()
        run(a, b, out, policy=policy, tile=TILE, cores=3, threads=threads)
        assert len(long_runs) > 10


@pytest.mark.parametrize("threads", [1, 2])
def test_a_long_run_under_auto(long_runs, threads):
    m, k, n = large_b("f8")
    run(integers((m, k), "f8", 1), integers((k, n), "f8", 2), threads=threads)
    x = integers((200, 50), "f8", 3)
    run(x, x.T, threads=threads)
    assert len(long_runs) > 2


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_ends_a_long_run_and_leaves_everything_usable(long_runs, monkeypatch, threads):
    a, b = integers((100, 90), "f4", 1), integers((90, 200), "f4", 2)
    real = engine.pool.run

    def pressed(*arguments):
        if len(long_runs) == 3:
            _thread.interrupt_main()
        return real(*arguments)

    options = {"policy": fg.Preload(), "tile": TILE, "cores": 3, "threads": threads}
    run(a, b, **options)
    for _ in range(3):
        long_runs.clear()
        monkeypatch.setattr(engine.pool, "run", pressed)
        held = scratch.kept_bytes()
        with pytest.raises(KeyboardInterrupt):
            engine.run(a, b, empty(a, b), Options(**options))
        assert len(long_runs) < 10
        assert scratch.kept_bytes() == held
        monkeypatch.setattr(engine.pool, "run", real)
        run(a, b, **options)
        run(a, b, threads=2)


# --- callbacks and what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failing_callback_raises_its_exception_and_leaves_the_pool_usable(when, threads):
    a, b = integers((100, 90), "f4", 1), integers((90, 200), "f4", 2)
    held = None
    for turn in range(20):
        seen = []

        def fail(core, task, group, m, n, seen=seen):
            seen.append(task)
            if len(seen) == 5:
                raise LookupError(f"block {m}, {n}")

        policy = fg.PreloadAsyncWithCallback(**{when: fail})
        with pytest.raises(LookupError, match=r"block \d+, \d+"):
            engine.run(a, b, empty(a, b), Options(policy=policy, tile=TILE, cores=4, threads=threads))
        assert len(seen) <= 5 + threads
        held = scratch.kept_bytes() if turn == 0 else held
        assert scratch.kept_bytes() == held
    run(a, b, policy=fg.PreloadAsyncWithCallback(), tile=TILE, cores=4, threads=threads)
    assert threading.active_count() < 20


@pytest.mark.parametrize(
    "swizzle",
    [fg.SplitKSwizzle(factor=2), fg.TailSplitKSwizzle(), fg.StreamKSwizzle(), fg.SingleCoreSplitKSwizzle()],
    ids=lambda s: type(s).__name__,
)
def test_schedulers_of_partial_sums_are_refused_by_name(swizzle):
    a, b = integers((100, 90), "f4", 1), integers((90, 200), "f4", 2)
    out = empty(a, b)
    with pytest.raises(ValueError, match=rf"{type(swizzle).__name__}.*partial sums.*IdentitySwizzle"):
        fg.matmul(a, b, out, policy=fg.Pingpong(), swizzle=swizzle, tile=TILE, cores=2)
    assert np.isnan(out).all()


# --- other instruction sets and the other pool, in processes of their own --------------------------------------------------------


def sweep():
    """Products of every kind against exact arithmetic; prints how many, under which kernels and which pool."""
    done = 0
    shapes = [
        (1, 1, 1),
        (1, 90, 70),
        (70, 90, 1),
        (3, 5, 7),
        (17, 31, 33),
        (65, 64, 66),
        (130, 129, 131),
        (40, 170, 1100),
    ]
    for dtype in DTYPES:
        for number, (m, k, n) in enumerate(shapes):
            for threads in (1, 2):
                a, b = integers((m, k), dtype, number), integers((k, n), dtype, number + 50)
                for x, y in (
                    (a, b),
                    (a[::-1], b),
                    (a, integers((n, k), dtype, 9).T),
                    (integers((k, m), dtype, 9).T, b),
                ):
                    with fg.threads(threads):
                        np.testing.assert_array_equal(fg.matmul(x, y), exact(x, y))
                    run(x, y, threads=threads)
                    done += 2
                for policy in (fg.Pingpong(), fg.Preload(), fg.HostPanels()):
                    run(a, b, threads=threads, policy=policy, tile=TILE, cores=3)
                    done += 1
        run(integers((7, 20, 30), dtype, 1), integers((7, 30, 25), dtype, 2), threads=2)
        square = integers((130, 40), dtype, 3)
        run(square, square.T, threads=2)
        done += 2
    print(done, multiply.t.host_isa(), direct.pool_kind())


@pytest.mark.parametrize(
    ("isa", "pool"), [*((isa, "") for isa in multiply.t.usable_isas()[1:-1]), ("generic", "portable"), ("", "portable")]
)
def test_sweep_in_a_process_of_its_own(isa, pool):
    environment = {**os.environ, "FASTGEMM_ISA": isa, "FASTGEMM_POOL": pool}
    code = f"import sys; sys.path.insert(0, {str(TESTS)!r}); import test_gemm_engine; test_gemm_engine.sweep()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    count, used_isa, used_pool = done.stdout.split()
    assert int(count) > 500
    assert used_isa == (isa or multiply.t.usable_isas()[0])
    assert used_pool == (pool or "futex")


def test_sweep_in_this_process(capsys):
    sweep()
    assert int(capsys.readouterr().out.split()[0]) > 500
