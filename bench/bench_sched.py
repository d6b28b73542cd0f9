"""The scheduler's speed: picks a second over real and synthetic kernels, growth, memory, cold start, beside their targets.

    pytest -o addopts= bench/bench_sched.py --benchmark-only -s
    FASTGEMM_CORPUS=path/to/corpus pytest -o addopts= bench/bench_sched.py --benchmark-only -s

Without ``FASTGEMM_CORPUS`` (a folder of corpus files) the kernels are those in ``tests/data/corpus``.  Reading and packing are
excluded from the picks a second, reachability and unit set-up are not; the cost of packing is printed beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import fastgemm.sched as sched
from fastgemm.sched import layout as L
from fastgemm.sched import synthetic
from fastgemm.sched.engine import run_batch, work_size

CORPUS = Path(os.environ.get("FASTGEMM_CORPUS", Path(__file__).parents[1] / "tests" / "data" / "corpus"))
COMPILER = {"llvm24-early": 15_400, "llvm24-late": 5_800}  # nodes/s of the compiler's own pass
SIMULATOR = {"llvm24-early": 54_000, "llvm24-late": 37_000}  # picks/s of a plain C++ simulator
TARGET = {"llvm24-early": 1.5e6, "llvm24-late": 0.7e6}


@pytest.mark.parametrize("profile", TARGET)
def test_corpus_regions_on_one_thread(benchmark, profile):
    dags = [region.dag for region in sched.read_corpus(CORPUS) if region.compiler == profile]
    sched.schedule(dags[0].replace())
    began = time.perf_counter()
    packed = [dag.packed for dag in dags]
    packing = time.perf_counter() - began
    addresses = np.array([p.ctypes.data for p in packed], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum([dag.n for dag in dags])]).astype(np.int64)
    ladder = sched.profile(profile)
    model = ladder.model(sched.machine(ladder.machine))
    work = np.empty(work_size(packed, 256), dtype=np.int64)
    out, log = np.zeros((starts[-1], L.OUT), dtype=np.int32), np.empty(1, dtype=np.int32)

    def run():
        run_batch(addresses, starts, np.array([0, len(dags)]), model, work, out, np.zeros(4, dtype=np.int64), log)

    run()
    benchmark.pedantic(run, rounds=20)
    rate = starts[-1] / benchmark.stats.stats.min
    print(
        f"\n{profile}: {starts[-1]} picks of {len(dags)} regions, {rate / 1e6:.2f} million picks/s (target "
        f"{TARGET[profile] / 1e6} million), {rate / COMPILER[profile]:.0f}x the compiler's pass, "
        f"{rate / SIMULATOR[profile]:.0f}x a plain simulator; packing {packing / starts[-1] * 1e9:.0f} ns a node more"
    )


def sweep(count):
    """Kernels of about 500 nodes, as somebody sweeps them: dtypes, cuts, tiles and buffers, over and over."""
    shapes = []
    for shape in product(
        ("f16", "bf16", "fp8", "mxfp8", "i8"),
        ("sliceNK", "sliceMNK", "single_warp", "base"),
        product((128, 256), (128, 256), (128, 256, 384, 512)),
        (2, 3),
    ):
        dtype, cut, tile, buffers = shape
        try:
            nodes = synthetic.gemm(*tile, dtype=dtype, buffers=buffers, schedule=cut).n
        except sched.DagError:  # the LDS does not hold it, or it cannot be cut so
            continue
        if 360 <= nodes <= 660:
            shapes.append(shape)
    began = time.perf_counter()
    dags = [
        synthetic.gemm(*tile, dtype=dtype, buffers=buffers, schedule=cut)
        for dtype, cut, tile, buffers in (shapes[i % len(shapes)] for i in range(count))
    ]
    return dags, len(shapes), time.perf_counter() - began


def test_ten_thousand_kernels_with_and_without_the_mutation(benchmark):
    batch, shapes, building = sweep(10_000)
    sched.schedule(batch[0], mutations=["wmma_window"])
    seconds = []

    def run():
        for mutations in ([], ["wmma_window"]):
            began = time.perf_counter()
            sched.schedule_batch(batch, threads=2, mutations=mutations)
            seconds.append(time.perf_counter() - began)

    benchmark.pedantic(run, rounds=1)
    print(
        f"\n10,000 kernels ({shapes} shapes, {sum(dag.n for dag in batch) / len(batch):.0f} nodes on average), two threads: plain "
        f"{seconds[0]:.1f} s, mutated {seconds[1]:.1f} s, together {sum(seconds):.1f} s (target 15 s); building them {building:.1f} s"
    )


GROWTH = """
import re, time
import numpy as np
import fastgemm.sched as sched
from fastgemm.sched import synthetic
rows = []
for k in (1024, 4096, 16384, 65536, 98304):
    dag = synthetic.gemm(128, 128, k, waves=4, dtype="f16", buffers=3)
    best = 1e9
    for _ in range(3):
        began = time.perf_counter()
        sched.schedule(dag)
        best = min(best, time.perf_counter() - began)
    rows.append((dag.n, best))
nodes, seconds = np.array(rows).T
exponent = np.polyfit(np.log(nodes), np.log(seconds), 1)[0]
status = open("/proc/self/status").read()  # getrusage starts from the peak of the process that started this one
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) / 1024
print(", ".join(f"{int(n)} nodes {s * 1e3:.1f} ms" for n, s in rows) + f": exponent {exponent:.2f} (target 1.15); "
      f"peak of the whole process {peak:.0f} MB (target 500)")
"""


def test_growth_with_k(benchmark):
    found = benchmark.pedantic(
        lambda: subprocess.run([sys.executable, "-c", GROWTH], check=True, capture_output=True, text=True), rounds=1
    )
    print(f"\n{found.stdout}")


def test_mutation_alone(benchmark):
    dag = synthetic.gemm(256, 256, 256, waves=4, dtype="f16", buffers=2)
    sched.mutate(dag, "wmma_window")
    benchmark(lambda: sched.mutate(dag, "wmma_window"))
    print(f"\nmutation: {benchmark.stats.stats.min / dag.n * 1e6:.2f} us a node (target 2)")


COLD = """
import time
began = time.perf_counter()
import fastgemm.sched as sched
dag = sched.synthetic.gemm(256, 128, 128, waves=4, dtype="f16", buffers=3, schedule="single_warp")
for profile in ("llvm24-late", "llvm24-early"):
    sched.schedule(dag, profile=profile)
first = time.perf_counter() - began
sched.schedule(sched.mutate(dag, "wmma_window")[0])
print(f"kernel built and scheduled by two profiles {first:.2f} s, mutated and scheduled again {time.perf_counter() - began:.2f} s")
"""


@pytest.mark.parametrize(("state", "target"), [("empty", 8.0), ("warm", 1.0)])
def test_cold_start(benchmark, state, target):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", COLD]
        environment = os.environ | {"FASTGEMM_CACHE_DIR": folder}
        if state == "warm":
            subprocess.run(command, env=environment, check=True, capture_output=True)
        found = []
        benchmark.pedantic(
            lambda: found.append(subprocess.run(command, env=environment, check=True, capture_output=True, text=True)),
            rounds=1,
        )
    print(f"\nfirst use in a process, cache {state}: {found[0].stdout.strip()} (target {target}); ", end="")
    print(f"the whole process {benchmark.stats.stats.min:.2f} s")
