"""matmul's contract apart from values: out, overlap, order, dtype, casting, axes, errors, warnings, foreign types."""

from __future__ import annotations

import inspect
import itertools
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_matmul import integers, same

import fastgemm as fg
from fastgemm import errors
from fastgemm.options import KEYWORDS

A = np.arange(6.0).reshape(2, 3)
B = np.arange(12.0).reshape(3, 4)
V = np.arange(3.0)
S = np.arange(24.0).reshape(4, 2, 3)


def outcome(function, *args, **kwargs):
    """What a call gives: dtype, shape, strides and values of its result, or the exception it raises."""
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        return error
    return result.dtype, result.shape, result.strides, np.asarray(result).tolist()


def as_numpy(*args, **kwargs):
    """matmul and np.matmul agree: the same result to the last stride, or an exception of a class numpy's is caught by."""
    ours, numpys = outcome(fg.matmul, *args, **kwargs), outcome(np.matmul, *args, **kwargs)
    if not isinstance(numpys, Exception):
        assert ours == numpys
        return ours
    assert isinstance(ours, Exception), f"numpy raises {numpys!r}, matmul returns {ours}"
    public = next(c for c in type(numpys).__mro__ if c.__module__ in ("builtins", "numpy.exceptions"))
    assert isinstance(ours, public), f"numpy raises {numpys!r}, matmul {ours!r}"
    assert "matmul" in str(ours)
    return ours


# --- shapes and operands -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "a,b",
    [
        (A, A),
        (V, A.T[:2]),
        (A, np.ones(2)),
        (V, np.ones(2)),
        (S, np.ones((5, 3, 2))),
        (np.ones((2, 1, 2, 3)), np.ones((3, 5, 3, 2))[:, :4, :2]),
        (A, 3),
        (3.0, A),
        (A, np.float64(2)),
        (A, None),
        (np.array(1), np.array(2)),
        (A, [[1, 2], [3]]),
        (A, [["a"], ["b"], ["c"]]),
        (A, np.ones((3, 2), "m8[s]")),
        (A, np.ones((3, 2), "M8[D]")),
        (A, np.ones((3, 2), "S3")),
        (A, np.ones((3, 2), [("x", "f4")])),
    ],
)
def test_errors_of_operands(a, b):
    assert isinstance(as_numpy(a, b), Exception)


def test_a_mismatch_names_axes_and_both_shapes():
    with pytest.raises(ValueError, match=r"axis 1 of a .*3.*axis 0 of b .*2.*\(2, 3\).*\(2, 3\)"):
        fg.matmul(A, A)
    with pytest.raises(
        ValueError, match=r"batch axes .*\(4,\) of a of shape \(4, 2, 3\) with \(5,\) of b of shape \(5, 3, 2\)"
    ):
        fg.matmul(S, np.ones((5, 3, 2)))
    with pytest.raises(ValueError, match=r"b is a scalar.*\(2, 3\).*\(\)"):
        fg.matmul(A, 2.0)


def test_array_likes():
    class Like:
        def __array__(self, dtype=None, copy=None):
            return B

    same(fg.matmul([[1, 2], [3, 4]], [[1, 2.5], [3, 4]]), np.matmul([[1, 2], [3, 4]], [[1, 2.5], [3, 4]]))
    same(fg.matmul(((True, False),), [[True], [True]]), np.matmul(((True, False),), [[True], [True]]))
    same(fg.matmul(A, Like()), np.matmul(A, B))
    same(fg.matmul(memoryview(A), B), np.matmul(A, B))
    same(fg.matmul([1, 2], np.ones((2, 2), np.float32)), np.matmul([1, 2], np.ones((2, 2), np.float32)))
    same(fg.matmul([1.0, 2.0], [1j, 2]), np.matmul([1.0, 2.0], [1j, 2]))


def test_an_error_inside_an_array_method_is_not_hidden():
    class Broken:
        def __array__(self, dtype=None, copy=None):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fg.matmul(A, Broken())


def test_subclasses_come_back_as_plain_arrays():
    class Sub(np.ndarray):
        pass

    same(fg.matmul(A.view(np.matrix), B.view(np.matrix)), A @ B)
    same(fg.matmul(A.view(Sub), B), A @ B)
    out = np.zeros((2, 4)).view(Sub)
    assert fg.matmul(A, B, out=out) is out
    np.testing.assert_array_equal(out, A @ B)


@pytest.mark.parametrize("a,b", [(np.ma.masked_array(A), B), (A, np.ma.masked_array(B, B > 3))])
def test_masked_arrays_are_refused_with_a_way_out(a, b):
    with pytest.raises(TypeError, match=r"masked array.*\.filled\(0\)"):
        fg.matmul(a, b)


def test_a_masked_out_is_refused():
    with pytest.raises(TypeError, match="out is a masked array"):
        fg.matmul(A, B, out=np.ma.zeros((2, 4)))


@pytest.mark.parametrize("bad", [A.astype(object), [[1, 2, None]], A.astype("g"), A.astype("G")])
def test_object_and_extended_precision_are_refused_with_a_way_out(bad):
    with pytest.raises(TypeError, match="a (has|of) dtype.*(astype|convert to).*np.matmul"):
        fg.matmul(bad, B)


def test_extended_precision_narrows_when_asked():
    same(fg.matmul(A.astype("g"), B, dtype=np.float64), A @ B)


def test_types_that_override_numpy_are_refused():
    class OptsOut:
        __array_ufunc__ = None

    class Overrides:
        def __array_ufunc__(self, *args, **kwargs):
            return "theirs"

    class Sub(np.ndarray):
        def __array_ufunc__(self, *args, **kwargs):
            return "theirs"

    with pytest.raises(TypeError, match="b is a .*OptsOut.* opts out"):
        fg.matmul(A, OptsOut())
    with pytest.raises(TypeError, match=r"a is a .*Overrides.*np.asarray\(a\)"):
        fg.matmul(Overrides(), B)
    with pytest.raises(TypeError, match="out is a .*Sub"):
        fg.matmul(A, B, out=np.zeros((2, 4)).view(Sub))


# --- out -----------------------------------------------------------------------------------------------------------------------


def test_out_may_be_positional_keyword_or_a_tuple():
    for give in (lambda o: fg.matmul(A, B, o), lambda o: fg.matmul(A, B, out=o), lambda o: fg.matmul(A, B, out=(o,))):
        out = np.full((2, 4), np.nan)
        assert give(out) is out
        np.testing.assert_array_equal(out, A @ B)
    same(fg.matmul(A, B, out=(None,)), A @ B)
    scalar = np.full((), np.nan)
    assert fg.matmul(V, V, out=scalar) is scalar
    assert scalar == 5


@pytest.mark.parametrize(
    "a,b,shape",
    [
        (A, B, (3, 4)),
        (A, B, (4, 2)),
        (A, B, (4,)),
        (A, B, ()),
        (V, B, (3,)),
        (V, B, (5, 4)),
        (A, V, (3,)),
        (V, V, (3,)),
        (S, B, (1, 2, 4)),
        (S, B, (2, 4)),
        (S, B, (3, 4, 2, 4)),
        (S, B, (3, 1, 2, 4)),
        (A, B, (5, 2, 4)),
        (np.ones((0, 1, 1)), np.ones((0, 1, 1)), (1, 1, 1)),
    ],
)
def test_shapes_of_out(a, b, shape):
    ours = as_numpy(a, b, out=np.zeros(shape))
    if isinstance(ours, Exception):
        assert f"out has shape {shape}" in str(ours)


@pytest.mark.parametrize("out", [[[1]], 3, "text", (), (np.zeros((2, 4)),) * 2])
def test_what_cannot_be_out(out):
    assert isinstance(as_numpy(A, B, out=out), Exception)


def test_a_read_only_out_is_refused():
    out = np.zeros((2, 4))
    out.flags.writeable = False
    assert "read-only" in str(as_numpy(A, B, out=out))


@pytest.mark.parametrize("operand,out", list(itertools.product("?bBhiqefdFD", repeat=2)))
@pytest.mark.parametrize("casting", ["no", "equiv", "safe", "same_kind", "unsafe"])
def test_dtypes_of_out(operand, out, casting):
    a = integers((2, 3), operand, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        as_numpy(a, integers((3, 2), operand, 2), out=np.zeros((2, 2), out), casting=casting)


@pytest.mark.parametrize("operand,dtype", list(itertools.product("?bBhiqefdFD", repeat=2)))
@pytest.mark.parametrize("casting", ["no", "equiv", "safe", "same_kind", "unsafe"])
def test_dtype_and_casting(operand, dtype, casting):
    a, b = integers((2, 3), operand, 1), integers((3, 2), operand, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        as_numpy(a, b, dtype=dtype, casting=casting)


@pytest.mark.parametrize("dtype", ["nonsense", ">f4" if np.dtype("<f4").isnative else "<f4", np.floating])
def test_what_is_no_dtype(dtype):
    assert isinstance(as_numpy(A, B, dtype=dtype), TypeError)


def test_dtype_takes_what_numpy_takes():
    for dtype in (None, float, np.float32, np.dtype("f4"), "float32", np.dtypes.Float32DType):
        as_numpy(A, B, dtype=dtype)


@pytest.mark.parametrize(
    "keywords", [{"casting": "rough"}, {"casting": None}, {"order": "Q"}, {"order": 3}, {"order": "K "}]
)
def test_values_of_casting_and_order(keywords):
    assert isinstance(as_numpy(A, B, **keywords), Exception)


def test_byte_order_is_a_cast_only_for_the_strictest_rules():
    swapped = A.astype(A.dtype.newbyteorder())
    for casting in ("no", "equiv", "safe"):
        as_numpy(swapped, B, casting=casting)
        as_numpy(A, B, out=np.zeros((2, 4), swapped.dtype), casting=casting)


# --- overlap -------------------------------------------------------------------------------------------------------------------

OVERLAPS = {
    "out is a": lambda s: (s, s + 1, s),
    "out is b": lambda s: (s + 1, s, s),
    "out is both": lambda s: (s, s, s),
    "out is a.T": lambda s: (s, s + 1, s.T),
    "out is b.T": lambda s: (s + 1, s, s.T),
    "out is a upside down": lambda s: (s, s + 1, s[::-1]),
    "out is b back to front": lambda s: (s + 1, s, s[:, ::-1]),
    "out is both, turned": lambda s: (s, s.T, s[::-1, ::-1]),
}


@pytest.mark.parametrize("dtype", "fdFDei?")
@pytest.mark.parametrize("n", [1, 5, 40, 129])
@pytest.mark.parametrize("name", OVERLAPS)
def test_out_that_overlaps(name, n, dtype):
    square = integers((n, n), dtype, 3, limit=2)
    if dtype == "?":
        square = square.view(np.uint8)
    a, b, out = OVERLAPS[name](square)
    if dtype == "?":
        a, b, out = (x % 2 == 1 if x.base is None else x.view(np.bool_) for x in (a, b, out))
    want = np.matmul(a.copy(), b.copy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.FastgemmPerformanceWarning)
        assert fg.matmul(a, b, out=out) is out
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("dtype", "fdF")
def test_out_that_overlaps_in_part(dtype):
    n = 33
    for shift_a, shift_b, shift_out in itertools.product((0, 1, n), (0, n * n - 1, 2 * n * n), (0, 1, n - 1, n * n)):
        buf = integers(3 * n * n + n, dtype, 4, limit=2)
        a, b, out = (buf[s : s + n * n].reshape(n, n) for s in (shift_a, shift_b, shift_out))
        want = np.matmul(a.copy(), b.copy())
        fg.matmul(a, b, out=out)
        np.testing.assert_array_equal(out, want)


def test_rows_shifted_by_one():
    buf = integers((65, 64), "d", 5, limit=2)
    want = np.matmul(buf[:-1].copy(), buf[:-1].copy())
    np.testing.assert_array_equal(fg.matmul(buf[:-1], buf[:-1], out=buf[1:]), want)


def test_stacks_that_overlap():
    stack = integers((4, 9, 9), "d", 6, limit=2)
    want = np.matmul(stack, stack)
    np.testing.assert_array_equal(fg.matmul(stack, stack, out=stack[::-1]), want)


def test_interleaved_memory_is_no_overlap_but_gives_the_same():
    buf = integers((16, 48), "f", 7, limit=2)
    want = np.matmul(buf[:, 0:32:2].copy(), buf[:16, 32:48].copy())
    np.testing.assert_array_equal(fg.matmul(buf[:, 0:32:2], buf[:16, 32:48], out=buf[:, 1:32:2]), want)


def test_an_out_that_overlaps_itself_is_written_after_the_product():
    row = np.full(5, np.nan)
    out = np.lib.stride_tricks.as_strided(row, (3, 5), (0, 8))
    fg.matmul(np.ones((3, 4)), np.ones((4, 5)), out=out)
    assert (row == 4).all()


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_windows_of_one_buffer(data):
    size = 400
    buf = integers(size, "d", 8, limit=3)

    def window(rows, cols):
        strides = [data.draw(st.sampled_from(sorted({1, -1, 2, rows, -cols, cols + 1}))) for _ in range(2)]
        low = sum(min(0, s * (n - 1)) for s, n in zip(strides, (rows, cols), strict=True))
        high = sum(max(0, s * (n - 1)) for s, n in zip(strides, (rows, cols), strict=True))
        start = data.draw(st.integers(-low, size - 1 - high))
        return np.lib.stride_tricks.as_strided(buf[start:], (rows, cols), [8 * s for s in strides])

    m, n, k = (data.draw(st.integers(1, 8)) for _ in range(3))
    a, b, out = window(m, k), window(k, n), window(m, n)
    want = np.matmul(a.copy(), b.copy())
    fg.matmul(a, b, out=out)
    addresses = np.lib.stride_tricks.as_strided(np.arange(size)[_start(buf, out) :], out.shape, out.strides)
    if len(set(addresses.ravel().tolist())) == out.size:  # else the last write to each address wins, whichever that is
        np.testing.assert_array_equal(out, want)


def _start(buf, view):
    return (view.__array_interface__["data"][0] - buf.__array_interface__["data"][0]) // buf.itemsize


# --- order and axes ---------------------------------------------------------------------------------------------------------

P = np.arange(120.0).reshape(5, 4, 2, 3).transpose(1, 0, 2, 3)


@pytest.mark.parametrize("order", ["C", "F", "A", "K", "c", "f", None])
@pytest.mark.parametrize(
    "a,b",
    [
        (A, B),
        (np.asfortranarray(A), B),
        (np.asfortranarray(A), np.asfortranarray(B)),
        (np.asfortranarray(A), V),
        (V, V),
        (S, B),
        (np.asfortranarray(S), np.asfortranarray(np.ones((4, 3, 5)))),
        (P, B),
        (P, np.ones((5, 4, 3, 6)).transpose(1, 0, 2, 3)),
        (P, np.ones((4, 5, 3, 6))),
        (P[:, ::-1], np.ones((4, 5, 3, 6))[::-1]),
        (P.transpose(1, 0, 2, 3)[None], np.ones((2, 1, 1, 3, 2))),
        (P, V),
    ],
)
def test_order(a, b, order):
    as_numpy(a, b, order=order)


AXES = [
    (A, A, [(0, 1), (1, 0), (0, 1)]),
    (A, A, [(-2, -1), (-1, -2), (-1, -2)]),
    (S, S, [(1, 2), (2, 1), (0, 1)]),
    (S, S, [(1, 2), (2, 1), (2, 0)]),
    (S, S, [(1, 0), (0, 1), (1, 2)]),
    (S, V, [(1, 2), 0, 0]),
    (S, V, [(1, 2), (0,), (-1,)]),
    (V, S, [0, (2, 1), 1]),
    (V, V, [0, 0, ()]),
    (V, V, [(0,), 0, ()]),
    (P, np.arange(60.0).reshape(3, 4, 5), [(2, 3), (0, 1), (1, 3)]),
]
BAD_AXES = [
    (A, A, ((0, 1), (1, 0), (0, 1))),
    (A, A, 3),
    (A, A, [(0, 1), (1, 0)]),
    (A, A, [(0, 1), (1, 0), (0, 1), (0, 1)]),
    (A, A, [[0, 1], (1, 0), (0, 1)]),
    (A, A, [(0, 1), (1, 0), (0, 5)]),
    (A, A, [(0, 7), (1, 0), (0, 1)]),
    (A, A, [(0, 0), (1, 0), (0, 1)]),
    (A, A, [(0, 1), (1, 0), (1, -1)]),
    (A, A, [0, (1, 0), (0, 1)]),
    (A, A, [(0, 1.0), (1, 0), (0, 1)]),
    (A, V, [(0, 1), (0, 1), 0]),
    (V, V, [0, 0, 0]),
    (V, V, [0, 0]),
]


@pytest.mark.parametrize("a,b,axes", AXES + BAD_AXES)
def test_axes(a, b, axes):
    ours = as_numpy(a, b, axes=axes)
    assert isinstance(ours, Exception) == any(axes is bad[2] for bad in BAD_AXES)


@pytest.mark.parametrize("order", "CFAK")
@pytest.mark.parametrize("a,b,axes", AXES)
def test_axes_with_order_and_out(a, b, axes, order):
    as_numpy(a, b, axes=axes, order=order)
    want = np.matmul(a, b, axes=axes)
    out = np.full(want.shape, np.nan)
    assert fg.matmul(a, b, axes=axes, out=out) is out
    np.testing.assert_array_equal(out, want)


# --- keywords ------------------------------------------------------------------------------------------------------------------


def test_the_signature_is_shown():
    parameters = inspect.signature(fg.matmul).parameters
    assert list(parameters) == ["a", "b", "out", *KEYWORDS]
    assert {name: parameters[name].default for name in KEYWORDS} == KEYWORDS


def test_defaults_given_change_nothing():
    same(fg.matmul(A, B, **KEYWORDS), A @ B)


def test_an_unknown_keyword_is_named():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'polciy'.*policy"):
        fg.matmul(A, B, polciy="auto")
    with pytest.raises(TypeError, match="positional"):
        fg.matmul(A, B, None, None)


@pytest.mark.parametrize(
    "keywords,error",
    [
        ({"cores": 0}, ValueError),
        ({"cores": 1.5}, TypeError),
        ({"cores": True}, TypeError),
        ({"threads": -1}, ValueError),
        ({"threads": "two"}, TypeError),
        ({"policy": "pingpong"}, ValueError),
        ({"policy": 3}, TypeError),
        ({"swizzle": "zigzag"}, ValueError),
        ({"swizzle": (3, 0)}, TypeError),
        ({"tile": 64}, TypeError),
        ({"tile": (64, 64)}, TypeError),
        ({"tile": (64, 0, 64)}, ValueError),
        ({"arch": "abacus"}, ValueError),
        ({"reproducible": 1}, TypeError),
        ({"epilogue": "relu"}, ValueError),
    ],
)
def test_values_of_our_keywords_are_checked_and_printed(keywords, error):
    (name, value) = next(iter(keywords.items()))
    with pytest.raises(error, match=name) as caught:
        fg.matmul(A, B, **keywords)
    shown = value[1] if isinstance(value, tuple) and error is ValueError else value
    assert repr(shown) in str(caught.value)


@pytest.mark.parametrize(
    "dtype,acc", [("f8", "f4"), ("i4", "i2"), ("i4", "f8"), ("f4", "D"), ("F", "f8"), ("?", "i4"), ("f4", "f2")]
)
def test_an_accumulator_that_is_too_narrow_or_of_another_kind(dtype, acc):
    a = np.ones((2, 2), dtype)
    with pytest.raises(ValueError, match=f"acc_dtype={np.dtype(acc)}.*{np.dtype(dtype)}"):
        fg.matmul(a, a, acc_dtype=acc)


def test_type_errors_are_numpys_and_survive_pickling():
    with pytest.raises(TypeError) as ours:
        fg.matmul(A, B, out=np.zeros((2, 4), int))
    with pytest.raises(TypeError) as numpys:
        np.matmul(A, B, out=np.zeros((2, 4), int))
    assert any(isinstance(ours.value, c) and c is not TypeError for c in type(numpys.value).__mro__[:3])
    assert str(pickle.loads(pickle.dumps(ours.value))) == str(ours.value)


# --- warnings --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def unwarned():
    """As in a process that has seen no slow path yet."""
    before = set(errors._warned)
    errors._warned.clear()
    yield
    errors._warned.clear()
    errors._warned.update(before)


def test_a_slow_path_warns_once_per_dtype_at_the_callers_line(unwarned):
    big = np.ones((64, 64), np.int32)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fg.matmul(big, big)
        fg.matmul(big, big)
        fg.matmul(big.astype(np.int8), big.astype(np.int8))
        fg.matmul(big[:63], big)
    assert [w.category for w in seen] == [fg.FastgemmPerformanceWarning] * 2
    assert {w.filename for w in seen} == {__file__}
    assert "int32" in str(seen[0].message)
    assert "int8" in str(seen[1].message)


def test_small_and_fast_work_does_not_warn(unwarned):
    fg.matmul(np.ones((63, 63), np.int32), np.ones((63, 63), np.int32))
    fg.matmul(np.ones((99, 99), np.float32), np.ones((99, 99), np.float32))


def test_the_warning_can_be_made_an_error(unwarned):
    big = np.ones((64, 64), np.int16)
    for _ in range(2):
        with pytest.raises(fg.FastgemmPerformanceWarning):
            fg.matmul(big, big)


def test_conversions_raise_no_floating_point_warnings():
    huge = np.full((2, 2), 1e300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(fg.matmul(huge, huge)).all()
        assert np.isinf(fg.matmul(huge, huge, dtype=np.float32)).all()
        assert np.isinf(fg.matmul(np.ones((2, 2)), huge, out=np.zeros((2, 2), np.float16))).all()


# --- warm-up ------------------------------------------------------------------------------------------------------------------


def test_warmup_returns_seconds_per_dtype():
    seconds = fg.warmup([np.float32, "int8"])
    assert list(seconds) == ["float32", "int8"]
    assert all(value >= 0 for value in seconds.values())
