"""matmul's values: every dtype pair, stride and shape gives what numpy gives, on data whose products are exact."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import warnings

import ml_dtypes
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastgemm as fg

DTYPES = "?bBhHiIqQefdFD"
ENGINE = "fdFD"
SHAPES = [(1, 1, 1), (2, 3, 4), (8, 8, 8), (9, 17, 5), (33, 1, 70), (1, 65, 3), (64, 50, 1), (40, 100, 129)]


def integers(shape, dtype, seed=0, limit=8):
    """Small integers of that dtype, so that every partial sum of a product is exact in float16's accumulator and wider."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    low = 0 if dtype.kind in "bu" else -limit
    values = rng.integers(low, limit + 1, shape)
    if dtype.kind == "b":
        return values > limit // 2
    if dtype.kind == "c":
        return (values + 1j * rng.integers(low, limit + 1, shape)).astype(dtype)
    return values.astype(dtype)


def same(got, want):
    """Equal in type, dtype, shape and every bit that is not the sign of a NaN."""
    assert type(got) is type(want)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)


def quiet(a, b):
    """matmul where a warning of a slow path is expected and beside the point."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.FastgemmPerformanceWarning)
        return fg.matmul(a, b)


@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("right", DTYPES)
def test_every_pair_of_dtypes(left, right):
    a, b = integers((17, 33), left, 1, limit=3), integers((33, 9), right, 2, limit=3)
    same(fg.matmul(a, b), np.matmul(a, b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m,n,k", SHAPES)
def test_shapes(dtype, m, n, k):
    a, b = integers((m, k), dtype, 1), integers((k, n), dtype, 2)
    same(quiet(a, b), np.matmul(a, b))


@pytest.mark.parametrize("dtype", "bBhHiIqQ?")
def test_integers_wrap_modulo_their_width(dtype):
    rng = np.random.default_rng(3)
    a, b = (np.frombuffer(rng.bytes(7 * 13 * 8), np.dtype(f"u{np.dtype(dtype).itemsize}"))[: 7 * 13] for _ in range(2))
    a, b = (x.reshape(7, 13) % 2 if dtype == "?" else x.reshape(7, 13) for x in (a, b))
    a, b = a.astype(dtype), b.astype(dtype).T
    same(fg.matmul(a, b), oracle.matmul(a, b))
    same(fg.matmul(a, b), np.matmul(a, b))


def test_integer_loops_block_at_every_edge():
    """More columns than a strip, more rows of B than a block, odd rows, K not a multiple of four."""
    for dtype, m, n, k in [
        ("i8", 5, 300, 517),
        ("u1", 3, 2049, 259),
        ("i4", 4, 513, 1),
        ("i2", 1, 1025, 6),
        ("?", 3, 70, 300),
    ]:
        a, b = integers((m, k), dtype, 4, limit=100), integers((k, n), dtype, 5, limit=100)
        same(quiet(a, b), (a.astype("i8") @ b.astype("i8")).astype(dtype))


def test_bytes_of_bools_other_than_one_count_as_true():
    a = np.array([[2, 0], [4, 255]], np.uint8).view(np.bool_)
    assert fg.matmul(a, a).view(np.uint8).tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize("dtype", ["i1", "i4", "f4", "f8", "f2"])
def test_widening_with_dtype(dtype):
    a = np.full((2, 2), 127, dtype)
    same(fg.matmul(a, a.T, dtype="f8"), np.matmul(a, a.T, dtype="f8"))
    assert fg.matmul(np.array([[127, 127]], "i1"), np.array([[127], [127]], "i1"), dtype="i4").item() == 32258


def test_float16_is_summed_in_float32_and_rounded_once():
    # 2048 + 1 is not a float16: summed in float16 the ones are lost one by one
    a = np.array([[2048] + [1] * 64], np.float16)
    got = fg.matmul(a, np.ones((65, 1), np.float16))
    assert got.dtype == np.float16
    assert got.item() == 2112
    assert fg.matmul(a, np.ones((65, 1), np.float16), dtype=np.float32).dtype == np.float32


def test_float16_overflows_at_the_store_alone_and_without_a_warning():
    a = np.array([[300.0, 300.0]], np.float16)
    assert fg.matmul(a, np.array([[300.0], [-300.0]], np.float16)).item() == 0
    assert np.isinf(fg.matmul(a, a.T).item())


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_ml_dtypes_keep_their_dtype_unless_asked(name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    x = integers((5, 6), "f4", 7, limit=3)
    a, b = x.astype(dtype), x.T.astype(dtype)
    assert fg.matmul(a, b).dtype == dtype
    np.testing.assert_array_equal(fg.matmul(a, b).astype("f4"), np.matmul(x, x.T).astype(dtype).astype("f4"))
    same(fg.matmul(a, b, dtype=np.float32), np.matmul(x, x.T))
    same(fg.matmul(a, x.T), np.matmul(x, x.T))
    out = np.full((5, 5), np.nan, np.float32)
    assert fg.matmul(a, b, out=out) is out
    same(out, np.matmul(x, x.T).astype(dtype).astype("f4"))


def test_ml_dtypes_integers_wrap():
    x = np.arange(-8, 8).reshape(4, 4)
    got = fg.matmul(x.astype(ml_dtypes.int4), x.T.astype(ml_dtypes.int4))
    same(got, (x @ x.T).astype(ml_dtypes.int4))


def test_bfloat16_and_float16_meet_in_float32():
    a = np.ones((2, 3), ml_dtypes.bfloat16)
    assert fg.matmul(a, np.ones((3, 2), np.float16)).dtype == np.float32


@pytest.mark.parametrize(
    "dtype,acc", [("f4", "f8"), ("f2", "f4"), ("f2", "f8"), ("i1", "i4"), ("F", "D"), ("f8", "f8")]
)
def test_a_wider_accumulator(dtype, acc):
    a, b = integers((5, 7), dtype, 1), integers((7, 6), dtype, 2)
    same(fg.matmul(a, b, acc_dtype=acc), np.matmul(a, b))


def test_a_wider_accumulator_is_used():
    a = np.array([[2.0**24, 1.0, 1.0, -(2.0**24)]], np.float32)
    assert fg.matmul(a, np.ones((4, 1), np.float32), acc_dtype=np.float64).item() == 2.0


# --- strides -----------------------------------------------------------------------------------------------------------------


def packed_field(x):
    """The values in the field of a packed struct: strides no multiple of the item, addresses unaligned."""
    records = np.zeros(x.shape, np.dtype([("pad", "u1"), ("x", x.dtype)]))
    records["x"] = x
    return records["x"]


LAYOUTS = {
    "C": lambda x: x.copy(),
    "Fortran": np.asfortranarray,
    "transposed": lambda x: x.T.copy().T,
    "rows backwards": lambda x: x[::-1].copy()[::-1],
    "columns backwards": lambda x: x[:, ::-1].copy()[:, ::-1],
    "both backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "every other row": lambda x: np.repeat(x, 2, 0)[::2],
    "every third column": lambda x: np.repeat(x, 3, 1)[:, ::3],
    "backwards by two": lambda x: np.repeat(x[:, ::-1], 2, 1)[:, ::-2],
    "sliced from a larger one": lambda x: np.pad(x, ((3, 2), (1, 5)))[3:-2, 1:-5],
    "field of a packed struct": packed_field,
    "byte-swapped": lambda x: x.astype(x.dtype.newbyteorder()),
    "byte-swapped, backwards": lambda x: x[:, ::-1].astype(x.dtype.newbyteorder())[:, ::-1],
    "byte-swapped field": lambda x: packed_field(x.astype(x.dtype.newbyteorder())),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
}


@pytest.mark.parametrize("dtype", "fdFDei")
@pytest.mark.parametrize("name", LAYOUTS)
def test_strides_of_operands(dtype, name):
    a, b = integers((19, 37), dtype, 1), integers((37, 23), dtype, 2)
    want = np.matmul(a, b)
    laid_a, laid_b = LAYOUTS[name](a), LAYOUTS[name](b)
    np.testing.assert_array_equal(laid_a, a)
    same(fg.matmul(laid_a, b), want)
    same(fg.matmul(a, laid_b), want)
    same(fg.matmul(laid_a, laid_b), want)


@pytest.mark.parametrize("dtype", "fD")
@pytest.mark.parametrize("left,right", list(itertools.combinations(LAYOUTS, 2)))
def test_pairs_of_strides(dtype, left, right):
    a, b = integers((9, 21), dtype, 1), integers((21, 18), dtype, 2)
    same(fg.matmul(LAYOUTS[left](a), LAYOUTS[right](b)), np.matmul(a, b))


@pytest.mark.parametrize("dtype", "fdFDei?")
def test_zero_strides(dtype):
    a, b = integers((7, 1), dtype, 1), integers((1, 6), dtype, 2)
    wide_a, tall_b = np.broadcast_to(a, (7, 5)), np.broadcast_to(b, (5, 6))
    same(fg.matmul(wide_a, tall_b), np.matmul(wide_a.copy(), tall_b.copy()))
    flat = np.broadcast_to(a[0], (3, 1))
    same(fg.matmul(flat, b), np.matmul(flat.copy(), b))
    scalar = np.broadcast_to(a[0, 0], (4, 5))
    same(fg.matmul(scalar, tall_b), np.matmul(scalar.copy(), tall_b.copy()))


OUTS = {name: LAYOUTS[name] for name in LAYOUTS if name not in ("read-only",)}


@pytest.mark.parametrize("dtype", "fdFDei")
@pytest.mark.parametrize("name", OUTS)
def test_strides_of_out(dtype, name):
    a, b = integers((19, 37), dtype, 1), integers((37, 23), dtype, 2)
    want = np.matmul(a, b)
    out = OUTS[name](np.zeros_like(want))
    out[...] = 1 if dtype == "i" else np.nan
    assert fg.matmul(a, b, out=out) is out
    np.testing.assert_array_equal(out, want)


def test_neighbours_of_a_sliced_out_are_untouched():
    frame = np.full((12, 14), 7.0)
    fg.matmul(np.ones((5, 3)), np.ones((3, 4)), out=frame[2:12:2, 3:11:2])
    frame[2:12:2, 3:11:2] = 7.0
    assert (frame == 7.0).all()


# --- batches, vectors, empty extents -------------------------------------------------------------------------------------

STACKS = [
    ((3, 1, 2, 4), (5, 4, 3)),
    ((7, 6, 5), (5, 4)),
    ((6, 5), (7, 5, 4)),
    ((1, 3, 4), (5, 4, 2)),
    ((2, 3, 4, 5), (2, 3, 5, 6)),
    ((2, 1, 4, 5), (1, 3, 5, 6)),
    ((5,), (3, 5, 4)),
    ((3, 4, 5), (5,)),
    ((2, 3, 4, 5), (5,)),
    ((5,), (5,)),
    ((5,), (5, 4)),
    ((4, 5), (5,)),
    ((50, 3, 3), (50, 3, 3)),
    ((40, 9, 9), (40, 9, 9)),
]


@pytest.mark.parametrize("dtype", "fdFDei?")
@pytest.mark.parametrize("left,right", STACKS)
def test_stacks_broadcast(dtype, left, right):
    a, b = integers(left, dtype, 1), integers(right, dtype, 2)
    same(fg.matmul(a, b), np.matmul(a, b))


@pytest.mark.parametrize("dtype", "fi")
def test_a_stack_whose_axes_are_strided_any_way(dtype):
    a, b = integers((4, 6, 5, 8), dtype, 1), integers((6, 4, 8, 3), dtype, 2)
    for x, y in [(a[::-1, ::2], b.transpose(1, 0, 2, 3)[:, ::2]), (a[:, ::-3], np.broadcast_to(b[0, 0], (4, 2, 8, 3)))]:
        same(fg.matmul(x, y), np.matmul(x.copy(), y.copy()))


EMPTY = [
    ((0, 3), (3, 2)),
    ((2, 3), (3, 0)),
    ((2, 0), (0, 3)),
    ((0, 0), (0, 0)),
    ((0,), (0,)),
    ((0,), (0, 3)),
    ((3,), (3, 0)),
    ((0, 3), (3,)),
    ((0, 2, 3), (0, 3, 4)),
    ((0, 2, 3), (3, 4)),
    ((1, 2, 3), (0, 3, 4)),
    ((2, 0, 3, 4), (2, 1, 4, 0)),
    ((5, 2, 0), (5, 0, 3)),
]


@pytest.mark.parametrize("dtype", "fdFDei?")
@pytest.mark.parametrize("left,right", EMPTY)
def test_empty_extents(dtype, left, right):
    a, b = np.ones(left, dtype), np.ones(right, dtype)
    same(fg.matmul(a, b), np.matmul(a, b))


@pytest.mark.parametrize("dtype", "fdFDe")
def test_an_empty_sum_writes_zeros_into_out(dtype):
    out = np.full((2, 3), np.nan, dtype)
    fg.matmul(np.ones((2, 0), dtype), np.ones((0, 3), dtype), out=out)
    assert (out == 0).all()


@pytest.mark.parametrize("dtype", "fdFDe")
@pytest.mark.parametrize("m,n,k", SHAPES)
def test_a_prefilled_out_is_never_read(dtype, m, n, k):
    a, b = integers((m, k), dtype, 1), integers((k, n), dtype, 2)
    out = np.full((m, n), np.nan, dtype)
    fg.matmul(a, b, out)
    np.testing.assert_array_equal(out, np.matmul(a, b))


# --- NaN and infinity ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", "fde")
@pytest.mark.parametrize("m,n,k", [(3, 5, 7), (17, 31, 45), (65, 67, 129)])
def test_nan_and_infinity_reach_their_row_and_column_and_no_other(dtype, m, n, k):
    a, b = np.ones((m, k), dtype), np.ones((k, n), dtype)
    a[m - 1, k - 1], b[0, n - 1] = np.nan, np.inf
    got = fg.matmul(a, b)
    assert np.isnan(got[m - 1]).all()
    assert np.isinf(got[: m - 1, n - 1]).all()
    assert (got[: m - 1, : n - 1] == k).all()


@pytest.mark.parametrize("dtype", "fd")
def test_infinity_times_zero_is_nan_without_a_warning(dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = fg.matmul(np.array([[np.inf, 1], [1, -np.inf]], dtype), np.array([[0, 1], [1, 1]], dtype))
    same(got, oracle.matmul(np.array([[np.inf, 1], [1, -np.inf]], dtype), np.array([[0, 1], [1, 1]], dtype)))


def test_nothing_beyond_the_edge_of_an_operand_leaks_in():
    """The operands are windows of a frame of NaN: a kernel that reads past an edge and lets it through shows."""
    for dtype, (m, n, k) in itertools.product(ENGINE, [(3, 5, 7), (13, 47, 30), (65, 33, 129)]):
        a, b = np.full((m + 6, k + 6), np.nan, dtype), np.full((k + 6, n + 6), np.nan, dtype)
        a[3:-3, 3:-3], b[3:-3, 3:-3] = integers((m, k), dtype, 1), integers((k, n), dtype, 2)
        same(fg.matmul(a[3:-3, 3:-3], b[3:-3, 3:-3]), np.matmul(a[3:-3, 3:-3].copy(), b[3:-3, 3:-3].copy()))


# --- rounding -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ENGINE)
@pytest.mark.parametrize("m,n,k", [(7, 5, 1000), (130, 140, 260)])
def test_rounding_stays_within_the_bound_of_an_fma_chain(dtype, m, n, k):
    rng = np.random.default_rng(9)
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (k, n)))
    if np.dtype(dtype).kind == "c":
        a, b = a + 1j * a[::-1], b - 1j * b[:, ::-1]
    wide = np.clongdouble if np.dtype(dtype).kind == "c" else np.longdouble
    exact = a.astype(wide) @ b.astype(wide)
    bound = 2 * k * np.finfo(dtype).eps * (abs(a).astype(np.longdouble) @ abs(b).astype(np.longdouble))
    assert (abs(fg.matmul(a, b) - exact) <= bound).all()


# --- any layout of small integers --------------------------------------------------------------------------------------------


@st.composite
def operands(draw):
    """Two arrays that multiply, of any dtypes, batch axes and layouts, holding small integers."""
    extent = st.integers(0, 12)
    m, n, k = draw(extent), draw(extent), draw(extent)
    batch = draw(st.lists(st.integers(1, 3), max_size=2))
    shapes = [[*batch, m, k], [*batch, k, n]]
    for shape in shapes:
        for axis in range(len(batch)):
            if draw(st.booleans()):
                shape[axis] = 1
        if draw(st.booleans()):
            del shape[: len(batch)]
    if draw(st.integers(0, 4)) == 0:
        shapes[0] = [k]
    if draw(st.integers(0, 4)) == 0:
        shapes[1] = [k]
    return [draw_layout(draw, shape, draw(st.sampled_from(DTYPES)), seed) for seed, shape in enumerate(shapes)]


def draw_layout(draw, shape, dtype, seed):
    x = integers(shape, dtype, seed, limit=3)
    order = draw(st.permutations(range(x.ndim)))
    steps = [draw(st.sampled_from([1, 1, 2, -1, -2])) for _ in shape]
    frame = np.zeros([abs(step) * max(extent, 1) for step, extent in zip(steps, shape, strict=True)], dtype)
    frame = frame.transpose(order).copy().transpose(np.argsort(order))
    view = frame[tuple(slice(None, None, step) for step in steps)][tuple(slice(extent) for extent in shape)]
    view[...] = x
    return view.astype(view.dtype.newbyteorder()) if draw(st.integers(0, 5)) == 0 else view


@settings(max_examples=150, deadline=None)
@given(operands(), st.sampled_from("CFAK"))
def test_whatever_numpy_multiplies(pair, order):
    a, b = pair
    got, want = fg.matmul(a, b, order=order), np.matmul(a, b, order=order)
    same(got, want)
    assert got.strides == want.strides


def test_as_many_axes_as_numpy_has():
    a, b = np.ones((1,) * 62 + (2, 2)), np.ones((2, 2))
    assert fg.matmul(a, b).shape == a.shape
    assert fg.matmul(b, b, out=np.empty(a.shape)).shape == a.shape


@pytest.mark.parametrize(
    ("a", "b", "options"),
    [
        ("abc", np.ones((5, 6)), {}),
        (np.ones((3, 4), "c8"), np.ones((5, 6)), {"dtype": "f4"}),
        (np.ones((4, 1), "c8"), np.ones((1, 7), "f4"), {"out": np.zeros((4, 8), "u1")}),
    ],
)
def test_a_dtype_is_looked_at_before_a_shape_as_numpy_does(a, b, options):
    for matmul in (np.matmul, fg.matmul):
        with pytest.raises(TypeError):
            matmul(a, b, **options)


def test_without_numbas_compiler_it_says_so():
    code = "import numpy as np, fastgemm as fg; fg.matmul(np.ones((300, 900)), np.ones((900, 400)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "NUMBA_DISABLE_JIT": "1"}
    )
    assert "RuntimeError: a product of float64 runs compiled loops, and NUMBA_DISABLE_JIT turns" in done.stderr
