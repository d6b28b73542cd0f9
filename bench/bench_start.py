"""What a start costs, in processes of their own: ``python bench/bench_start.py [--repeat 3] [--json FILE]``.

Rows: `import fastgemm` beyond `import numpy`; the first float32 call with an empty disk cache, for a product so small that it plans
nothing and for one that packs; the whole process, interpreter and imports included, with a warm cache.  Medians; the aims stand beside.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SMALL, LARGE = 8, 1024

_IMPORT = """
import time, numpy
start = time.perf_counter()
import fastgemm
print(time.perf_counter() - start)
"""
_FIRST_CALL = """
import sys, time, numpy as np, fastgemm as fg
a = np.ones((int(sys.argv[1]),) * 2, np.float32)
start = time.perf_counter()
c = fg.matmul(a, a)
print(time.perf_counter() - start)
assert (c == len(a)).all()
"""


def child(code: str, *arguments: str, cache: str | None = None) -> str:
    """Standard output of an interpreter that runs ``code``, its disk cache in ``cache``."""
    environment = dict(os.environ)
    if cache is not None:
        environment["FASTGEMM_CACHE_DIR"] = cache
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, check=True
    )
    return done.stdout


def import_seconds() -> float:
    """`import fastgemm` in a process that has imported numpy."""
    return float(child(_IMPORT))


def cold_call_seconds(n: int) -> float:
    """The first n x n product of a process whose cache folder is empty."""
    with tempfile.TemporaryDirectory() as cache:
        return float(child(_FIRST_CALL, str(n), cache=cache))


def warm_process_seconds(n: int, cache: str) -> float:
    """A process from start to end that multiplies once, everything it needs in the cache."""
    start = time.perf_counter()
    child(_FIRST_CALL, str(n), cache=cache)
    return time.perf_counter() - start


def rows(repeat: int) -> list[dict[str, object]]:
    """Every row: what, median seconds, aim, the samples."""
    with tempfile.TemporaryDirectory() as cache:
        kinds: list[tuple[str, Callable[[], float], float]] = [
            ("import fastgemm, beyond numpy", import_seconds, 0.05),
            *(
                (f"first call, empty cache, {n} x {n}", lambda n=n: cold_call_seconds(n), 7.0)  # type: ignore[misc]
                for n in (SMALL, LARGE)
            ),
            *(
                (f"whole process, warm cache, {n} x {n}", lambda n=n: warm_process_seconds(n, cache), 0.9)  # type: ignore[misc]
                for n in (SMALL, LARGE)
            ),
        ]
        out = []
        for what, sample, aim in kinds:
            if "warm" in what:
                sample()  # fills the cache
            samples = [sample() for _ in range(repeat)]
            out.append({"what": what, "seconds": statistics.median(samples), "aim": aim, "samples": samples})
        return out


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3, help="samples a row (default 3)")
    parser.add_argument("--json", type=Path, help="write the rows here")
    args = parser.parse_args()
    table = rows(args.repeat)
    print(f"{'what':40} {'seconds':>8} {'aim':>6}")
    for row in table:
        verdict = "" if row["seconds"] <= row["aim"] else "  missed"  # type: ignore[operator]
        print(f"{row['what']:40} {row['seconds']:8.3f} {row['aim']:6.2f}{verdict}")
    if args.json:
        args.json.write_text(json.dumps(table, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
