"""Every policy under every block scheduler gives the exact product, whatever the strides, batches, cores and tiles."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_matmul import ENGINE, LAYOUTS, integers, same

import fastgemm as fg

POLICIES = {
    "Pingpong": lambda: fg.Pingpong(),
    "Pingpong, four stages": lambda: fg.Pingpong(stages=4),
    "Preload": lambda: fg.Preload(),
    "Preload in order": lambda: fg.Preload(shuffle_k=False),
    "PreloadAsync": lambda: fg.PreloadAsync(),
    "PreloadAsync, deep": lambda: fg.PreloadAsync(preload_stages=3, l1_stages=5, shuffle_k=True),
    "PreloadAsyncWithCallback": lambda: fg.PreloadAsyncWithCallback(),
    "HostPanels": lambda: fg.HostPanels(),
}
SWIZZLES = {
    "auto": lambda: "auto",
    "Identity 1 0": lambda: fg.IdentitySwizzle(1, 0),
    "Identity 3 1": lambda: fg.IdentitySwizzle(3, 1),
    "Identity beyond the grid": lambda: fg.IdentitySwizzle(100, 0),
    "DynamicIdentity": lambda: fg.DynamicIdentitySwizzle(2, 1),
    "RowMajor": lambda: fg.RowMajor(),
}
TILE = (16, 32, 24)


@pytest.mark.parametrize("dtype", ENGINE)
@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_and_swizzle(policy, swizzle, dtype):
    a, b = integers((53, 70), dtype, 1), integers((70, 75), dtype, 2)
    for cores in (1, 3, 50):
        got = fg.matmul(a, b, policy=POLICIES[policy](), swizzle=SWIZZLES[swizzle](), tile=TILE, cores=cores)
        same(got, np.matmul(a, b))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "m,n,k", [(1, 1, 1), (1, 90, 50), (90, 1, 50), (50, 60, 1), (16, 32, 24), (17, 33, 25), (48, 64, 72)]
)
def test_shapes_against_the_tile(policy, m, n, k):
    a, b = integers((m, k), "f", 1), integers((k, n), "f", 2)
    for cores in (1, 2, 7):
        same(fg.matmul(a, b, policy=POLICIES[policy](), tile=TILE, cores=cores), np.matmul(a, b))


@pytest.mark.parametrize("dtype", "fD")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_strides(policy, layout, dtype):
    a, b = integers((35, 40), dtype, 1), integers((40, 45), dtype, 2)
    options = {"policy": POLICIES[policy](), "tile": TILE, "cores": 3}
    want = np.matmul(a, b)
    lay = LAYOUTS[layout]
    same(fg.matmul(lay(a), b, **options), want)
    same(fg.matmul(a, lay(b), **options), want)
    if layout != "read-only":
        out = lay(np.full_like(want, np.nan))
        fg.matmul(lay(a), lay(b), out=out, **options)
        np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "left,right",
    [((3, 20, 30), (3, 30, 40)), ((3, 20, 30), (30, 40)), ((20, 30), (4, 30, 40)), ((2, 1, 20, 30), (3, 30, 40))],
)
def test_stacks(policy, left, right):
    a, b = integers(left, "d", 1), integers(right, "d", 2)
    for cores in (1, 4, 31):
        same(fg.matmul(a, b, policy=POLICIES[policy](), tile=TILE, cores=cores), np.matmul(a, b))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_product_with_its_own_transpose(policy):
    a = integers((70, 45), "f", 1)
    for x in (a, a.T):
        same(fg.matmul(x, x.T, policy=POLICIES[policy](), tile=TILE, cores=3), np.matmul(x, x.T))
        same(fg.matmul(x, x.T), np.matmul(x, x.T))


@pytest.mark.parametrize("policy", POLICIES)
def test_out_is_never_read_and_nan_stays_in_its_row(policy):
    a, b = integers((40, 50), "f", 1), integers((50, 60), "f", 2)
    want = np.matmul(a, b)
    a[7, 49] = np.nan
    out = np.full((40, 60), np.nan, "f")
    fg.matmul(a, b, out, policy=POLICIES[policy](), tile=TILE, cores=3)
    assert np.isnan(out[7]).all()
    np.testing.assert_array_equal(np.delete(out, 7, 0), np.delete(want, 7, 0))


@pytest.mark.parametrize("policy", POLICIES)
def test_out_that_overlaps(policy):
    square = integers((50, 50), "d", 3)
    want = np.matmul(square, square)
    np.testing.assert_array_equal(
        fg.matmul(square, square, square.T, policy=POLICIES[policy](), tile=TILE, cores=2), want
    )


def test_narrow_types_run_under_a_policy_too():
    a, b = integers((33, 40), "e", 1, limit=3), integers((40, 20), "e", 2, limit=3)
    for policy in POLICIES.values():
        same(fg.matmul(a, b, policy=policy(), tile=TILE, cores=2), np.matmul(a, b))


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(sorted(POLICIES)),
    st.sampled_from(sorted(SWIZZLES)),
    st.sampled_from("fdF"),
    st.tuples(*[st.integers(1, 70)] * 3),
    st.tuples(*[st.integers(1, 40)] * 3),
    st.integers(1, 40),
    st.integers(1, 3),
)
def test_any_problem(policy, swizzle, dtype, extents, tile, cores, batch):
    m, n, k = extents
    a, b = integers((batch, m, k), dtype, 1), integers((batch, k, n), dtype, 2)
    got = fg.matmul(a, b, policy=POLICIES[policy](), swizzle=SWIZZLES[swizzle](), tile=tile, cores=cores)
    same(got, np.matmul(a, b))


def test_callbacks_see_each_block_once_in_order_and_the_finished_block():
    a, b = integers((50, 60), "d", 1), integers((60, 70), "d", 2)
    want, out = np.matmul(a, b), np.full((50, 70), np.nan)
    seen = []

    def before(core, task, group, m, n):
        seen.append(("before", core, task, m, n))

    def after(core, task, group, m, n):
        seen.append(("after", core, task, m, n))
        block = slice(16 * m, 16 * m + 16), slice(32 * n, 32 * n + 32)
        np.testing.assert_array_equal(out[block], want[block])

    policy = fg.PreloadAsyncWithCallback(before=before, after=after)
    fg.matmul(a, b, out, policy=policy, tile=TILE, cores=2, swizzle=fg.IdentitySwizzle(1, 0))
    blocks = sorted((m, n) for when, _, _, m, n in seen if when == "after")
    assert blocks == sorted(itertools.product(range(4), range(3)))
    for core in (0, 1):
        mine = [entry for entry in seen if entry[1] == core]
        assert [entry[0] for entry in mine] == ["before", "after"] * (len(mine) // 2)
        assert [entry[2] for entry in mine[::2]] == list(range(core, 12, 2))


def test_a_failing_callback_surfaces_and_leaves_the_pool_usable():
    a, b = integers((50, 60), "d", 1), integers((60, 70), "d", 2)

    def fail(core, task, group, m, n):
        raise LookupError("on purpose")

    for _ in range(3):
        with pytest.raises(LookupError, match="on purpose"):
            fg.matmul(a, b, policy=fg.PreloadAsyncWithCallback(after=fail), tile=TILE, cores=2)
        same(fg.matmul(a, b, policy=fg.PreloadAsyncWithCallback(), tile=TILE, cores=2), np.matmul(a, b))


def test_an_accelerators_profile_runs_here():
    a, b = integers((300, 290), "f", 1), integers((290, 310), "f", 2)
    for name in ("ascend_a2", "ascend_950"):
        for arch in (name, fg.arch(name)):
            same(fg.matmul(a, b, policy=fg.Pingpong(), arch=arch), np.matmul(a, b))


@pytest.mark.parametrize(
    "policy,tile,numbers",
    [
        (lambda: fg.PreloadAsync(preload_stages=2, l1_stages=2), TILE, "2"),
        (lambda: fg.Pingpong(stages=0), TILE, "0"),
        (lambda: fg.Pingpong(), (4096, 4096, 4096), "4096"),
    ],
)
def test_a_violated_bound_is_an_error_with_the_numbers(policy, tile, numbers):
    a = np.ones((8, 8), np.float32)
    with pytest.raises(ValueError, match=numbers):
        fg.matmul(a, a, policy=policy(), tile=tile, arch="ascend_a2")
