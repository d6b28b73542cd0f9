"""reproducible=True: element (i, j) is a function of row i, column j, K, dtype, tile and policy only, bit for bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from test_matmul import LAYOUTS

import fastgemm as fg

M, N, K = 130, 75, 700  # several blocks of every kernel, with tails; K beyond one slab of small tiles
DTYPES = "fdFD"


def operands(dtype, m=M, n=N, k=K, seed=0):
    """Values of very different sizes, so that another order of summation shows in the bits."""
    rng = np.random.default_rng(seed)

    def some(shape):
        x = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)
        return (x + 1j * rng.standard_normal(shape)).astype(dtype) if dtype in "FD" else x.astype(dtype)

    return some((m, k)), some((k, n))


def bits(x):
    """The bytes of the values: equal only if every bit is."""
    return np.ascontiguousarray(x).tobytes()


def product(a, b, **options):
    return fg.matmul(a, b, reproducible=True, **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_thread_counts(dtype):
    a, b = operands(dtype)
    want = bits(product(a, b, threads=1))
    for threads in (2, 3, 8, None):
        assert bits(product(a, b, threads=threads)) == want


@pytest.mark.parametrize("dtype", DTYPES)
def test_cores(dtype):
    a, b = operands(dtype)
    want = bits(product(a, b))
    for cores in (1, 2, 3, 5, 24, 200):
        assert bits(product(a, b, cores=cores)) == want


@pytest.mark.parametrize("dtype", "fd")
def test_swizzles(dtype):
    a, b = operands(dtype)
    want = bits(product(a, b))
    for offset, direction in itertools.product((1, 2, 7, 100), (0, 1)):
        assert bits(product(a, b, swizzle=fg.IdentitySwizzle(offset, direction))) == want
    assert bits(product(a, b, swizzle=fg.RowMajor())) == want


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_strides(dtype, name):
    a, b = operands(dtype)
    want = bits(product(a, b))
    assert bits(product(LAYOUTS[name](a), b)) == want
    assert bits(product(a, LAYOUTS[name](b))) == want
    assert bits(product(LAYOUTS[name](a), LAYOUTS[name](b))) == want
    if name != "read-only":
        out = LAYOUTS[name](np.zeros((M, N), dtype))
        assert bits(np.asarray(product(a, b, out=out), dtype)) == want


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 2, 7, 63, 64, 65, 500])
def test_rows_do_not_depend_on_the_rows_beside_them(dtype, m):
    a, b = operands(dtype, m=500)
    whole = product(a, b)
    for start in sorted({0, 1, (500 - m) // 2, 500 - m} & set(range(500 - m + 1))):
        assert bits(product(a[start : start + m], b)) == bits(whole[start : start + m])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 7, 15, 16, 17, 48, 49, 300])
def test_columns_do_not_depend_on_the_columns_beside_them(dtype, n):
    a, b = operands(dtype, m=40, n=300)
    whole = product(a, b)
    for start in sorted({0, 1, (300 - n) // 2, 300 - n} & set(range(300 - n + 1))):
        assert bits(product(a, b[:, start : start + n])) == bits(whole[:, start : start + n])


@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_are_rows_and_columns(dtype):
    a, b = operands(dtype)
    whole = product(a, b)
    assert bits(product(a[3], b)) == bits(whole[3])
    assert bits(product(a, b[:, 5])) == bits(whole[:, 5])
    assert bits(product(a[3], b[:, 5])) == bits(whole[3, 5])


@pytest.mark.parametrize("dtype", "fd")
def test_a_matrix_in_a_stack_is_a_matrix_alone(dtype):
    a, b = operands(dtype)
    stack = product(np.stack([a, a[::-1], a]), b)
    assert bits(stack[0]) == bits(stack[2]) == bits(product(a, b))
    assert bits(stack[1]) == bits(product(a[::-1], b))
    small = operands(dtype, m=9 * 50, n=9, k=9)
    stack = product(small[0].reshape(50, 9, 9), small[1])
    assert bits(stack.reshape(450, 9)) == bits(product(*small))


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize("policy", ["Pingpong", "Preload", "PreloadAsync", "PreloadAsyncWithCallback", "HostPanels"])
def test_every_policy(dtype, policy):
    a, b = operands(dtype)
    options = {"policy": getattr(fg, policy)(), "tile": (32, 32, 64)}
    want = bits(product(a, b, threads=1, cores=1, **options))
    for threads, cores, offset in [(2, 2, 1), (2, 5, 3), (1, 24, 2)]:
        got = product(a, b, threads=threads, cores=cores, swizzle=fg.IdentitySwizzle(offset, 1), **options)
        assert bits(got) == want
    assert bits(product(a[7:40], b, **options)) == want[7 * N * a.itemsize : 40 * N * a.itemsize]


@pytest.mark.parametrize("dtype", "fd")
def test_policies_without_shuffled_k_agree(dtype):
    a, b = operands(dtype)
    results = [
        bits(fg.matmul(a, b, policy=policy, tile=(32, 32, 64)))
        for policy in (
            fg.Pingpong(),
            fg.Preload(shuffle_k=False),
            fg.PreloadAsync(shuffle_k=False),
            fg.PreloadAsyncWithCallback(shuffle_k=False),
        )
    ]
    assert len(set(results)) == 1


@pytest.mark.parametrize("policy", ["Preload", "PreloadAsync"])
def test_a_shuffled_k_cannot_be_reproducible(policy):
    a, b = operands("f")
    with pytest.raises(ValueError, match="shuffle_k"):
        product(a, b, policy=getattr(fg, policy)(shuffle_k=True))


def test_calls_repeat_themselves():
    a, b = operands("f", m=300, n=300)
    assert len({bits(product(a, b)) for _ in range(20)}) == 1


@pytest.mark.parametrize("dtype", ["f2", "bfloat16"])
def test_narrow_types_too(dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    a, b = (x.astype(dtype) for x in operands("f"))
    whole = product(a, b)
    assert bits(product(a[5:70], b, threads=2, cores=3)) == bits(whole[5:70])
