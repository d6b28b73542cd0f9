"""Timing in pairs: who runs when, and what is made of it (never how long it took)."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from fastgemm import measure


def test_pairs_alternate_and_the_probe_follows_our_sample(monkeypatch):
    monkeypatch.setattr(measure, "sample_loops", lambda call, seconds: 1)
    seen: list[str] = []
    result = measure.pairs(
        lambda: seen.append("ours"),
        lambda: seen.append("peer"),
        seconds=0.0,
        probe=lambda seconds: seen.append("probe") or 7.0,
    )
    assert result.count == 5
    assert result.peak == 7.0
    assert seen == ["ours", "probe", "peer", "peer", "ours", "probe"] * 2 + ["ours", "probe", "peer"]


def test_a_rest_comes_with_an_unmeasured_call(monkeypatch):
    monkeypatch.setattr(measure, "sample_loops", lambda call, seconds: 3)
    rests: list[float] = []
    monkeypatch.setattr(measure.time, "sleep", rests.append)
    calls = {"ours": 0, "peer": 0}

    def count(name):
        calls[name] += 1

    measure.pairs(lambda: count("ours"), lambda: count("peer"), seconds=0.0, settle=0.25)
    assert rests == [0.25] * 10
    assert calls == {"ours": 20, "peer": 20}


def test_ratio_is_the_median_of_the_pairs(monkeypatch):
    monkeypatch.setattr(measure, "sample_loops", lambda call, seconds: 1)
    times = iter([1.0, 2.0, 8.0, 4.0, 1.0, 3.0, 10.0, 5.0, 2.0, 100.0])
    monkeypatch.setattr(measure, "_sample", lambda call, loops, settle: next(times))
    # pairs (ours, peer): (1, 2), (4, 8), (1, 3), (5, 10), (2, 100)
    result = measure.pairs(lambda: None, lambda: None, seconds=0.0)
    assert (result.seconds, result.peer_seconds, result.ratio, result.peak) == (2.0, 8.0, 2.0, 0.0)


def test_short_calls_are_repeated():
    assert measure.sample_loops(lambda: None) > 100


def test_numpy_threads_are_held_and_released():
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def blas():
        return [
            p["num_threads"]
            for p in threadpoolctl.threadpool_info()
            if p["user_api"] == "blas" and "numpy" in p["filepath"]
        ]

    np.matmul(np.ones((2, 2)), np.ones((2, 2)))
    before = blas()
    with measure.numpy_threads(1) as said:
        assert set(blas()) == {1}
        assert "1 thread(s)" in said
    assert blas() == before


def test_without_threadpoolctl_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    with measure.numpy_threads(1) as said:
        assert "not held" in said and "fastgemm[cli]" in said
