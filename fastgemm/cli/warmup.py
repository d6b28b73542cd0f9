"""``fastgemm warmup``: compile now what the first call would compile."""

from __future__ import annotations

import argparse
import time
from typing import Any

from .console import add_command, print_json

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "warmup",
        "Compile the kernels of the given element types and keep them in the cache folder, so that no later process waits.",
        "warmup",
        "warmup --dtype f4 --dtype f8",
        tables=False,
    )
    parser.add_argument("--dtype", action="append", help="element type; may be repeated (default: f4 and f8)")


def run(args: argparse.Namespace) -> int:
    """Compile; report seconds and bytes."""
    import numpy as np

    import fastgemm
    from fastgemm import store

    dtypes = [np.dtype(word) for word in args.dtype or ["f4", "f8"]]
    start = time.perf_counter()
    fastgemm.warmup(dtypes=dtypes)
    seconds = time.perf_counter() - start
    facts = {
        "dtypes": [dtype.name for dtype in dtypes],
        "seconds": round(seconds, 3),
        "cache_folder": str(store.cache_dir()),
        "cache_bytes": store.size(),
    }
    if args.json:
        print_json(facts)
    else:
        names = ", ".join(dtype.name for dtype in dtypes)
        print(
            f"{names}: ready after {seconds:.2f} s; {store.size() / 1e6:.1f} MB of compiled code in {store.cache_dir()}"
        )
    return 0
