"""Lower bounds: no order beats them, an exhaustive search included, and the known figures of the article's kernels."""

from __future__ import annotations

import json

import numpy as np
import oracle_sched_extra as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastgemm.sched import synthetic
from fastgemm.sched.comparison import ARTICLE
from fastgemm.sched.evaluation import check_order, evaluate
from fastgemm.sched.inorder import static_machine
from fastgemm.sched.lower_bounds import bounds, just_in_time_order


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_no_order_beats_the_bounds(seed, loop):
    draw = np.random.default_rng(seed)
    dag = synthetic.random(int(draw.integers(0, 120)), rng=draw, span=int(draw.integers(1, 12)), loop=loop)
    lowest = bounds(dag)
    for order in (np.arange(dag.n), oracle.random_order(dag, draw), just_in_time_order(dag)):
        check_order(dag, order)
        result = evaluate(dag, order)
        assert lowest.cold <= result.cold and lowest.warm <= result.warm
        assert lowest.registers <= result.peak


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_the_optimum_of_tiny_dags(seed):
    draw = np.random.default_rng(seed)
    dag = synthetic.random(int(draw.integers(1, 7)), rng=draw, span=2)
    lowest = bounds(dag)
    best = min((evaluate(dag, order) for order in oracle.topological_orders(dag)), key=lambda result: result.cold)
    assert lowest.cold <= best.cold
    assert lowest.registers <= best.peak
    # the bound of a chain is the optimum
    if dag.n > 1 and lowest.critical_path > lowest.warm and best.cold == lowest.cold:
        assert best.cold == lowest.critical_path


@pytest.mark.parametrize("kernel", [*ARTICLE, "attention:128x64x64", "gemm:128x128x128:i8:base"])
def test_kernels(kernel):
    dag = synthetic.parse(kernel)
    lowest = bounds(dag)
    for order in (np.arange(dag.n), oracle.random_order(dag, np.random.default_rng(1)), just_in_time_order(dag)):
        result = evaluate(dag, order, spills=False)
        assert lowest.cold <= result.cold and lowest.warm <= result.warm and lowest.registers <= result.peak
    assert evaluate(dag, just_in_time_order(dag)).peak == lowest.just_in_time
    json.dumps(lowest.to_dict())


def test_matrix_bound_of_the_article():
    for kernel in ARTICLE:
        lowest = bounds(synthetic.parse(kernel))
        assert lowest.matrix == 127 * 8 + 1 and lowest.limiter == "matrix"
    narrow = static_machine().replace(in_flight={**static_machine().in_flight, "lds": 1})
    assert bounds(synthetic.parse(ARTICLE[0]), narrow).queues["lds"] == 131 * 50 + 1
    assert bounds(synthetic.parse(ARTICLE[0]), narrow).limiter == "lds"
