"""Scratch memory: the bounds that docs/memory.md states hold, and nothing grows with the number of calls."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gemm_spy import Spy

import fastgemm as fg
from fastgemm import layout as L
from fastgemm.arch import Tile, arch
from fastgemm.gemm import engine, job, scratch
from fastgemm.options import DEFAULTS, Options

SHAPES = [
    (1024, 1024, 1024),
    (4096, 4096, 4096),
    (64, 4096, 4096),
    (100, 4608, 300),
    (100, 4609, 3000),
    (1000, 20000, 2000),
    (100000, 500, 500),
    (3000, 50, 90000),
    (65, 100000, 70),
]
TILE = Tile(l1=(16, 32, 24))
CORE_BYTES = 4096  # state of a core of a grid of up to 100 block columns


def layout(problem, dtype, options, threads, direct=True):
    dtype = np.dtype(dtype)
    return engine._layout.__wrapped__(
        problem, 1, dtype, job.loaded(dtype), options, threads, (False, False, direct, False)
    )


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("problem", SHAPES, ids=str)
def test_bound_of_the_hosts_own_policy(problem, dtype, threads):
    _, n, k = problem
    item, cache = np.dtype(dtype).itemsize, arch("host").llc_bytes
    chunks = max(-(-n // 4608), 2 * threads)
    depth = min(k, max(64, 9 / 32 * cache / (min(n, 4608) * item)))
    plan = layout(problem, dtype, DEFAULTS, threads)
    assert plan.own == 0, "the threads have nothing of their own"
    assert plan.bytes(threads) <= (depth + 8) * (n + 48 * chunks) * item + plan.cores * CORE_BYTES


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("problem", SHAPES, ids=str)
def test_bound_of_the_hosts_own_policy_into_an_output_with_gaps(problem, threads):
    m, n, k = problem
    chunks = max(-(-n // 4608), 2 * threads)
    plan = layout(problem, "f4", DEFAULTS, threads, direct=False)
    assert plan.own <= (min(m, 4096) + 8) * (min(n, 4608) + 48) * 4 + 64
    assert plan.common <= k * (n + 48 * chunks) * 4
    assert plan.bytes(threads) <= threads * plan.own + plan.common + plan.cores * CORE_BYTES


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize(
    ("policy", "a_slots", "b_slots"),
    [
        (fg.Pingpong(), 0, 2),
        (fg.Pingpong(stages=3, staging="copy"), 3, 3),
        (fg.Preload(), 0, 2),
        (fg.PreloadAsync(preload_stages=2, l1_stages=4), 0, 4),
    ],
    ids=str,
)
def test_bound_of_the_other_policies(policy, a_slots, b_slots, dtype, direct, threads):
    item = np.dtype(dtype).itemsize
    for problem in SHAPES[:3]:
        plan = layout(problem, dtype, Options(policy=policy), threads, direct)
        m, n, k = (int(plan.p[i]) for i in (L.P_TM, L.P_TN, L.P_TK))
        lane = (a_slots * m * k + b_slots * (n + 16) * k + (0 if direct else m * n)) * item + 64 * (
            a_slots + b_slots + 1
        )
        assert plan.common == 0
        assert plan.own <= lane
        assert plan.bytes(threads) <= threads * lane + plan.cores * CORE_BYTES


def products(rng):
    """One product of every kind; each is called with the same operands again and again."""
    a, b = rng.standard_normal((70, 160), "f4"), rng.standard_normal((160, 1300), "f4")
    small, stack = rng.standard_normal((20, 20)), rng.standard_normal((30, 9, 9))
    tall = rng.standard_normal((130, 40))
    column = rng.standard_normal((40, 3))[:, 1]
    callback = fg.PreloadAsyncWithCallback(after=lambda *block: None)
    return [
        lambda: fg.matmul(a, b),
        lambda: fg.matmul(a, b, threads=2),
        lambda: fg.matmul(small, small),
        lambda: fg.matmul(small, small.T, np.empty((20, 20))),
        lambda: fg.matmul(stack, stack),
        lambda: fg.matmul(tall, tall.T),
        lambda: fg.matmul(tall, column),
        lambda: fg.matmul(tall.astype(">f8"), tall.T, order="F"),
        lambda: fg.matmul(tall, tall.T, policy=fg.Pingpong(), tile=TILE, cores=3, threads=2),
        lambda: fg.matmul(tall, tall.T, policy=callback, tile=Tile(l1=(64, 64, 40)), cores=2, threads=2),
    ]


def resident():
    """Resident bytes of the process, 0 where the system does not tell in /proc."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * 4096 if status.exists() else 0


def test_nothing_grows_with_the_number_of_calls():
    calls = products(np.random.default_rng(0))

    def rounds(count):
        for _ in range(count):
            for call in calls:
                call()
        gc.collect()

    rounds(20)
    kept = scratch.kept_bytes()
    rounds(20)
    before = resident()
    tracemalloc.start()
    try:
        rounds(20)
        objects = tracemalloc.get_traced_memory()[0]
        rounds(200)
        grown = tracemalloc.get_traced_memory()[0] - objects
    finally:
        tracemalloc.stop()
    assert scratch.kept_bytes() == kept
    assert grown < 50_000, f"{grown} bytes of Python objects more after 2000 calls"
    assert resident() - before < 16 << 20


def test_what_is_kept_is_the_largest_and_never_beyond_the_limit():
    sizes = [scratch.kept_bytes()]
    for size in (1000, 1 << 20, 5000, 1 << 20, scratch.KEEP_BYTES + 1, 3000):
        with scratch.borrowed(size) as address:
            assert address % 4096 == 0
        sizes.append(scratch.kept_bytes())
    assert max(sizes) <= max(sizes[0], scratch.KEEP_BYTES) + 4096


def test_a_buffer_comes_back_after_an_exception():
    with scratch.borrowed(10_000):
        pass
    kept = scratch.kept_bytes()
    with pytest.raises(ZeroDivisionError), scratch.borrowed(10_000):
        assert scratch.kept_bytes() < kept
        raise ZeroDivisionError
    assert scratch.kept_bytes() == kept


def test_calls_at_the_same_time_have_buffers_of_their_own():
    with scratch.borrowed(50_000) as first, scratch.borrowed(50_000) as second:
        assert abs(first - second) >= 50_000


def test_a_run_stays_inside_its_scratch(monkeypatch):
    """The bytes behind what a layout asks for are untouched after the run."""
    spy = Spy(monkeypatch)
    guards = []

    class Guarded:
        def __init__(self, size):
            self.size, self.buffer = size, np.full(size + 3 * 4096, 0xA5, np.uint8)

        def __enter__(self):
            self.start = -self.buffer.ctypes.data % 4096 + 4096
            return self.buffer.ctypes.data + self.start

        def __exit__(self, *exception):
            guards.append((self.buffer[: self.start], self.buffer[self.start + self.size :]))

    monkeypatch.setattr(engine, "borrowed", Guarded)
    rng = np.random.default_rng(1)
    for dtype in ("f4", "c16"):
        a, b = rng.standard_normal((70, 160)).astype(dtype), rng.standard_normal((160, 2301)).astype(dtype)
        for order in "CF":
            for policy in ("auto", fg.Pingpong(staging="copy"), fg.PreloadAsync(preload_stages=2, l1_stages=4)):
                for threads in (1, 2):
                    tile = None if policy == "auto" else TILE
                    fg.matmul(a, b, np.empty((70, 2301), dtype, order), policy=policy, tile=tile, threads=threads)
    assert len(spy.runs) == len(guards) == 24
    assert all((part == 0xA5).all() for pair in guards for part in pair)
