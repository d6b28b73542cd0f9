"""fastgemm.matmul beside numpy.matmul, group by group, with the aim of every row: what docs/performance.md prints.

    python bench/side_by_side.py squares --dtype f4
    python bench/side_by_side.py --all --markdown docs/performance-tables.md

Both libraries run in turn in one process on the same number of threads; a ratio is the median of the pairs' (numpy's time over ours),
the peak is probed beside each pair for as long as ours took.  0.97 or more counts as a tie with noise.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # they slow a current numpy down
    os.environ.pop(variable, None)

import numpy as np

import fastgemm as fg
from fastgemm.measure import SETTLE, numpy_threads, pairs
from fastgemm.peak import peak_probe

SQUARES = (64, 80, 96, 100, 127, 128, 129, 191, 192, 200, 255, 256, 257, 320, 383, 384, 500, 509, 511, 512, 513, 640, 768,
           1000, 1021, 1023, 1024, 1025, 1152, 1536, 2039, 2047, 2048, 2049, 3072, 4096)  # fmt: skip
SMALL = (8, 12, 16, 20, 24, 28, 32, 40, 48)
SHARED = (64, 80, 96, 128, 160, 192, 256, 320, 384, 448, 512, 768, 1024, 1536, 2048, 3072)
COMPLEX = (64, 100, 128, 200, 256, 512, 1000, 1024, 2048)
SKINNY = tuple(
    shape
    for big in (1024, 4096)
    for thin in (1, 2, 4, 8, 32)
    for shape in ((thin, big, big), (big, thin, big), (big, big, thin))
) + ((4096, 64, 64), (64, 4096, 64), (64, 64, 4096), (2048, 256, 256), (256, 2048, 256), (256, 256, 8192))
BATCHES = {
    (1000, 3): (6.0, 6.0),
    (10000, 9): (2.0, 1.6),
    (1000, 16): (1.4, 1.2),
    (1000, 32): (1.0, 1.0),
    (64, 128): (1.05, 1.05),
}


@dataclass
class Row:
    """One line of a table."""

    group: str
    dtype: str
    what: str
    threads: int
    microseconds: float
    numpy_microseconds: float
    ratio: float
    gflops: float
    peak_share: float
    aim: float
    pairs: int


def operand(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Standard normal values."""
    values = rng.standard_normal(shape)
    if dtype in ("c8", "c16"):
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def measure(
    group: str, dtype: str, what: str, ours: Callable, peer: Callable, *, work: float, aim: float, threads: int = 1
) -> Row:
    """Time one pair; `work` in multiplications of the dtype."""
    seconds = min(6.0, max(0.4, 14 * work * (8 if dtype[0] == "c" else 2) / 1e11 / threads))
    probe = peak_probe(np.dtype(dtype), threads) if work > 1e7 else None
    with fg.threads(threads), numpy_threads(threads):
        taken = pairs(ours, peer, seconds=seconds, probe=probe, settle=SETTLE if threads > 1 else 0.0)
    rate = work * (8 if dtype[0] == "c" else 2) / 1e9 / taken.seconds
    share = rate / taken.peak if taken.peak else float("nan")
    return Row(
        group,
        dtype,
        what,
        threads,
        taken.seconds * 1e6,
        taken.peer_seconds * 1e6,
        taken.ratio,
        rate,
        share,
        aim,
        taken.count,
    )


def product(
    group: str,
    dtype: str,
    what: str,
    a: np.ndarray,
    b: np.ndarray,
    *,
    aim: float,
    threads: int = 1,
    out: bool = True,
    **options,
) -> Row:
    """a @ b, both libraries writing into an array of their own (or returning a new one)."""
    shape = np.matmul(a[..., :1, :], b[..., :, :1]).shape[:-2] + (a.shape[-2], b.shape[-1])
    work = math.prod(shape) * a.shape[-1]
    if out:
        mine, theirs = np.empty(shape, a.dtype), np.empty(shape, a.dtype)
        ours, peer = partial(fg.matmul, a, b, mine, **options), partial(np.matmul, a, b, out=theirs)
    else:
        ours, peer = partial(fg.matmul, a, b, **options), partial(np.matmul, a, b)
    return measure(group, dtype, what, ours, peer, work=work, aim=aim, threads=threads)


def squares(dtype: str, rng: np.random.Generator) -> Iterator[Row]:
    """Squares 64 ... 4096, one thread."""
    for n in SQUARES:
        yield product("squares", dtype, f"{n}", operand(rng, (n, n), dtype), operand(rng, (n, n), dtype), aim=1.0)


def small(dtype: str, rng: np.random.Generator) -> Iterator[Row]:
    """Squares 8 ... 48 through the public call, with and without `out=`."""
    for n in SMALL:
        a, b = operand(rng, (n, n), dtype), operand(rng, (n, n), dtype)
        yield product("small", dtype, f"{n}, out=", a, b, aim=1.2 if dtype == "f4" else 1.1)
        yield product("small", dtype, f"{n}, new array", a, b, aim=1.0, out=False)


def floor(dtype: str, rng: np.random.Generator) -> Iterator[Row]:
    """The cost of a call: 4 x 4 with `out=`."""
    yield product("floor", dtype, "4, out=", operand(rng, (4, 4), dtype), operand(rng, (4, 4), dtype), aim=1.25)


def policies(dtype: str, rng: np.random.Generator) -> Iterator[Row]:
    """Every policy with its defaults, with ShuffleK on and off, and with deeper rings."""
    chosen = {
        "auto": {},
        "Pingpong": {"policy": fg.Pingpong()},
        "Pingpong, staging copy": {"policy": fg.Pingpong(staging="copy")},
        "Pingpong, 3 stages": {"policy": fg.Pingpong(stages=3)},
        "Preload": {"policy": fg.Preload()},
        "Preload, no ShuffleK": {"policy": fg.Preload(shuffle_k=False)},
        "PreloadAsync": {"policy": fg.PreloadAsync()},
        "PreloadAsync, no ShuffleK": {"policy": fg.PreloadAsync(shuffle_k=False)},
        "PreloadAsync, 2 of 4 stages": {"policy": fg.PreloadAsync(preload_stages=2, l1_stages=4)},
        "PreloadAsyncWithCallback": {"policy": fg.PreloadAsyncWithCallback()},
        "Pingpong, 4 cores": {"policy": fg.Pingpong(), "cores": 4},
        "Pingpong, row-major": {"policy": fg.Pingpong(), "swizzle": fg.RowMajor()},
    }
    for n in (1024, 2048):
        a, b = operand(rng, (n, n), dtype), operand(rng, (n, n), dtype)
        for name, options in chosen.items():
            yield product("policies", dtype, f"{n}, {name}", a, b, aim=0.0, **options)


def skinny(dtype: str, rng: np.random.Generator) -> Iterator[Row]:
    """One small extent, and tall panels."""
    for m, n, k in SKINNY:
        yield product(
            "skinny", dtype, f"{m} x {n} x {k}", operand(rng, (m, k), dtype), operand(rng, (k, n), dtype), aim=1.0
        )


def layouts(dtype: str, rng: np.random.Generator) -> Iterator[Row]:
    """Transposed, strided and Fortran operands, a leading dimension of 4096, a product with the own transpose."""
    for n in (256, 1024, 2048):
        a, b = operand(rng, (n, n), dtype), operand(rng, (n, n), dtype)
        wide = operand(rng, (n, 4096), dtype)[:, :n]
        gaps = operand(rng, (n, 2 * n), dtype)[:, ::2]
        cases = {"A.T @ B": (a.T, b), "A @ B.T": (a, b.T), "A.T @ B.T": (a.T, b.T), "ld 4096": (wide, wide), "every second column": (gaps, gaps),
                 "reversed rows": (a[::-1], b[::-1]), "A @ A.T": (a, a.T), "A.T @ A": (a.T, a)}  # fmt: skip
        for name, (x, y) in cases.items():
            yield product("layouts", dtype, f"{n}, {name}", x, y, aim=1.0)


def batches(dtype: str, rng: np.random.Generator) -> Iterator[Row]:
    """Stacks of small products, and broadcast weights."""
    for (count, n), aims in BATCHES.items():
        a, b = operand(rng, (count, n, n), dtype), operand(rng, (count, n, n), dtype)
        yield product("batches", dtype, f"{count} x ({n}, {n})", a, b, aim=aims[dtype == "f8"])
    a, b = operand(rng, (64, 128, 128), dtype), operand(rng, (128, 128), dtype)
    yield product("batches", dtype, "64 x (128, 128), one B", a, b, aim=1.05)


def shared(dtype: str, rng: np.random.Generator) -> Iterator[Row]:
    """Two threads."""
    for n in SHARED:
        yield product(
            "two threads", dtype, f"{n}", operand(rng, (n, n), dtype), operand(rng, (n, n), dtype), aim=1.0, threads=2
        )


def complexes(dtype: str, rng: np.random.Generator) -> Iterator[Row]:
    """Complex squares, one thread."""
    for n in COMPLEX:
        yield product("complex", dtype, f"{n}", operand(rng, (n, n), dtype), operand(rng, (n, n), dtype), aim=1.0)


GROUPS = {"squares": squares, "small": small, "floor": floor, "policies": policies, "skinny": skinny, "layouts": layouts,
          "batches": batches, "shared": shared, "complex": complexes}  # fmt: skip


def mean(rows: list[Row]) -> float:
    """Geometric mean of the ratios."""
    return math.exp(sum(math.log(row.ratio) for row in rows) / len(rows))


def markdown(rows: list[Row]) -> str:
    """A table and its summary line."""
    lines = ["| what | ours µs | numpy µs | ratio | GFLOP/s | of peak | aim | |", "|---|---|---|---|---|---|---|---|"]
    for r in rows:
        verdict = "" if r.aim == 0 or r.ratio >= r.aim else "tie" if r.aim <= 1 and r.ratio >= 0.97 else "missed"
        share = "" if math.isnan(r.peak_share) else f"{r.peak_share:.1%}"
        aim = f"{r.aim:g}" if r.aim else ""
        lines.append(
            f"| {r.what} | {r.microseconds:.4g} | {r.numpy_microseconds:.4g} | {r.ratio:.3f} | {r.gflops:.1f} | {share} | {aim} | {verdict} |"
        )
    slow = min(rows, key=lambda r: r.ratio)
    lines.append(f"\nGeometric mean {mean(rows):.3f}; lowest {slow.ratio:.3f} ({slow.what}).")
    return "\n".join(lines)


def main() -> int:
    """Run the groups asked for and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []])
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--dtype", action="append", help="f4, f8 (default both); c8, c16 for the complex group")
    parser.add_argument("--markdown", type=Path, help="write the tables here")
    parser.add_argument("--json", type=Path, help="write the rows here")
    args = parser.parse_args()
    rows: list[Row] = []
    text = []
    for group in GROUPS if args.all else args.groups:
        for dtype in args.dtype or (("c8", "c16") if group == "complex" else ("f4", "f8")):
            rng = np.random.default_rng(0)
            part = []
            for row in GROUPS[group](dtype, rng):
                part.append(row)
                print(f"{row.group:11} {row.dtype:3} {row.what:32} {row.microseconds:10.1f} us  numpy {row.numpy_microseconds:10.1f}  "
                      f"ratio {row.ratio:6.3f}  {row.gflops:6.1f} GF  {row.peak_share:6.1%}", file=sys.stderr, flush=True)  # fmt: skip
            rows += part
            text.append(f"### {GROUPS[group].__doc__.rstrip('.')}: {np.dtype(dtype).name}\n\n{markdown(part)}\n")
    print("\n".join(text))
    if args.markdown:
        stamp = time.strftime("%Y-%m-%d")
        args.markdown.write_text(
            f"<!-- made by: python bench/side_by_side.py {' '.join(sys.argv[1:])} ({stamp}) -->\n\n" + "\n".join(text)
        )
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
