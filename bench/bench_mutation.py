"""Speed of the DAG mutations, synthetic kernels and the in-order machine: ``pytest bench/bench_mutation.py``.

``extra_info`` holds microseconds a node; a mutation has to stay below 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastgemm.sched import evaluate, mutate, synthetic
from fastgemm.sched.comparison import ARTICLE

KERNELS = {
    "mxfp8": ARTICLE[0],
    "f16": ARTICLE[1],
    "attention": "attention:128x128x128",
    "f16, K 12800": "gemm:256x128x12800:f16:single_warp:buffers=3",
    "random 1e5": "random:100000:1",
}


def note(benchmark: Any, nodes: int) -> None:
    """Write microseconds a node down."""
    if benchmark.stats is not None:  # None under --benchmark-disable
        benchmark.extra_info["us_per_node"] = round(benchmark.stats.stats.min * 1e6 / nodes, 3)


@pytest.mark.parametrize("variant", ["article", "slim"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_mutation(benchmark: Any, kernel: str, variant: str) -> None:
    dag = synthetic.parse(KERNELS[kernel])
    mutate(dag, variant=variant)
    benchmark(mutate, dag, variant=variant)
    note(benchmark, dag.n)


@pytest.mark.parametrize("kernel", KERNELS)
def test_synthetic(benchmark: Any, kernel: str) -> None:
    dag = benchmark(synthetic.parse, KERNELS[kernel])
    note(benchmark, dag.n)


@pytest.mark.parametrize("kernel", KERNELS)
def test_evaluate(benchmark: Any, kernel: str) -> None:
    dag = synthetic.parse(KERNELS[kernel])
    order = np.arange(dag.n)
    evaluate(dag, order)
    benchmark(evaluate, dag, order)
    note(benchmark, dag.n)
