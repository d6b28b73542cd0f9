"""fastgemm.matmul and numpy.matmul under pytest-benchmark, one group a product: ``make bench``, or

    python -m pytest bench/bench_gemm.py --benchmark-enable --benchmark-json=bench.json

A handful of shapes of every kind, to be compared with an earlier run of the same machine (``--benchmark-compare``).
The two libraries run one after the other here; `bench/side_by_side.py` alternates them within milliseconds, has all the rows of
docs/performance.md, and is what a ratio should be read from.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # they slow a current numpy down
    os.environ.pop(variable, None)

import numpy as np  # noqa: E402
import pytest  # noqa: E402

import fastgemm as fg  # noqa: E402
from fastgemm.measure import SETTLE, numpy_threads  # noqa: E402
from fastgemm.peak import peak_probe  # noqa: E402

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Case:
    """One product: operand shapes as stored, how the operands are viewed, threads, and the keywords only fastgemm knows."""

    what: str
    dtype: str
    a: tuple[int, ...]
    b: tuple[int, ...] | None  # None: A itself
    threads: int = 1
    view: Callable[[Array, Array], tuple[Array, Array]] = field(default=lambda a, b: (a, b))
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> str:
        return f"{np.dtype(self.dtype).name} {self.what}" + (f", {self.threads} threads" if self.threads > 1 else "")

    def operands(self) -> tuple[Array, Array]:
        """Standard normal values, the same for both libraries."""
        rng = np.random.default_rng(0)
        made = [rng.standard_normal(shape) for shape in (self.a, self.b) if shape is not None]
        if self.dtype in ("c8", "c16"):
            made = [values + 1j * rng.standard_normal(values.shape) for values in made]
        a, *rest = [values.astype(self.dtype) for values in made]
        return self.view(a, rest[0] if rest else a)


def _square(n: int, dtype: str, **more: Any) -> Case:
    return Case(f"{n} x {n} x {n}", dtype, (n, n), (n, n), **more)


CASES = [
    *(_square(n, dtype) for dtype in ("f4", "f8") for n in (4, 16, 64, 129, 256, 512, 1024, 2048)),
    *(_square(n, dtype) for dtype in ("c8", "c16") for n in (128, 512)),
    *(_square(n, "f4", threads=2) for n in (256, 1024)),
    Case("row, 1 x 4096 x 4096", "f4", (1, 4096), (4096, 4096)),
    Case("column, 4096 x 1 x 4096", "f4", (4096, 4096), (4096, 1)),
    Case("8 x 1024 x 1024", "f8", (8, 1024), (1024, 1024)),
    Case("32 x 4096 x 4096", "f4", (32, 4096), (4096, 4096)),
    Case("4096 x 4096 x 2", "f4", (4096, 2), (2, 4096)),
    Case("1000 x (3, 3)", "f4", (1000, 3, 3), (1000, 3, 3)),
    Case("10000 x (9, 9)", "f8", (10000, 9, 9), (10000, 9, 9)),
    Case("1000 x (32, 32)", "f4", (1000, 32, 32), (1000, 32, 32)),
    Case("A @ B.T, 1024", "f4", (1024, 1024), (1024, 1024), view=lambda a, b: (a, b.T)),
    Case("A.T @ B, 1024", "f8", (1024, 1024), (1024, 1024), view=lambda a, b: (a.T, b)),
    Case("A @ A.T, 1024", "f4", (1024, 1024), None, view=lambda a, b: (a, b.T)),
    Case("leading dimension 4096, 512", "f4", (512, 4096), (512, 4096), view=lambda a, b: (a[:, :512], b[:, :512])),
    *(
        Case(f"1024, {policy}", "f4", (1024, 1024), (1024, 1024), options={"policy": policy})
        for policy in (fg.Pingpong(), fg.Preload(), fg.PreloadAsync())
    ),
]


@lru_cache(maxsize=1)
def _prepared(number: int) -> tuple[Array, Array, Array]:
    """Operands and product of a case, for both libraries in turn."""
    a, b = CASES[number].operands()
    return a, b, np.matmul(a, b)


@pytest.mark.parametrize("library", ["fastgemm", "numpy"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.group)
@pytest.mark.benchmark(max_time=0.25, min_rounds=5, warmup=True, warmup_iterations=2)
def test_product(benchmark, report, case, library):
    benchmark.group = case.group
    a, b, expected = _prepared(CASES.index(case))
    out = np.full_like(expected, np.nan, order="C")
    if library == "fastgemm":
        arguments, options = (a, b, out), case.options
    else:
        arguments, options = (a, b), {"out": out}
    call = fg.matmul if library == "fastgemm" else np.matmul
    with fg.threads(case.threads), numpy_threads(case.threads):
        if case.threads > 1:
            time.sleep(SETTLE)  # the other library's workers come to rest
        benchmark(call, *arguments, **options)
        scale = np.abs(expected).max()
        assert np.abs(out - expected).max() <= 1e-3 * scale
        if benchmark.stats is None:  # --benchmark-disable: only whether it runs
            return
        seconds = benchmark.stats.stats.median
        probe = peak_probe(np.dtype(case.dtype), case.threads)
        # the best of some: a probe disturbed by something else would flatter us
        peak = max(probe(min(0.1, max(0.01, seconds))) for _ in range(5)) if probe is not None else float("nan")
    work = (8 if out.dtype.kind == "c" else 2) * out.size * a.shape[-1] / 1e9
    benchmark.extra_info |= {"gflops": work / seconds, "peak_fraction": work / seconds / peak, "threads": case.threads}
    report(case.group, library, seconds=seconds, gflops=work / seconds, peak_fraction=work / seconds / peak)
