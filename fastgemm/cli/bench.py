"""``fastgemm bench``: matmul beside numpy's and beside the machine's peak, in one run."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from .console import add_command, print_json, print_table, progress
from .specs import POLICIES, parse_object, parse_shape

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "bench",
        "Time fastgemm.matmul and numpy.matmul in turn, with the same number of threads, and print the median of the ratios "
        "and the share of the peak of the multiply-add units, probed beside them.  Run it on a machine that does nothing else.",
        "bench 64 512 1024x256x4096",
        "bench 2048 --dtype f8 --policy auto --policy pingpong --threads 2 --json",
    )
    parser.add_argument("shapes", nargs="+", metavar="SHAPE", help="MxNxK, or one number for a square problem")
    parser.add_argument("--dtype", action="append", help="element type; may be repeated (default f4)")
    parser.add_argument(
        "--policy", action="append", help=f"auto, {', '.join(POLICIES)}; may be repeated (default auto)"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of both (default 1)")
    parser.add_argument("--seconds", type=float, default=0.5, help="time a row takes (default 0.5)")
    parser.add_argument("--seed", type=int, default=0, help="of the operands (default 0)")


def run(args: argparse.Namespace) -> int:
    """Measure every shape, dtype and policy."""
    import numpy as np

    from fastgemm.measure import numpy_threads

    if args.threads < 1:
        raise ValueError(f"--threads is {args.threads}; at least one has to work")
    policies = {word: parse_object(word, POLICIES, "policy") for word in args.policy or ["auto"]}
    shapes = [parse_shape(word) for word in args.shapes]
    dtypes = [np.dtype(word) for word in args.dtype or ["f4"]]
    rows = []
    with numpy_threads(args.threads) as blas:
        for dtype in dtypes:
            for shape in shapes:
                for name, policy in policies.items():
                    progress(f"{'x'.join(map(str, shape))} {dtype.name} {name}")
                    rows.append({**_row(shape, dtype, policy, args), "policy": name})
    progress("")
    if args.json:
        print_json(
            {"schema": 1, "command": "bench", "host": _host(), "peer": blas, "threads": args.threads, "rows": rows}
        )
    else:
        _print(rows, blas, args.threads)
    return 0


def _host() -> dict[str, Any]:
    from fastgemm.config import show_config

    facts = show_config(mode="dicts")
    return {name: facts[name] for name in ("host", "versions", "kernels")}


def _row(shape: tuple[int, int, int], dtype: Any, policy: Any, args: argparse.Namespace) -> dict[str, Any]:
    import numpy as np

    import fastgemm
    from fastgemm.measure import SETTLE, pairs
    from fastgemm.peak import peak_probe

    m, n, k = shape
    rng = np.random.default_rng(args.seed)
    a, b = (_operand(rng, extents, dtype) for extents in ((m, k), (k, n)))
    out = np.empty((m, n), np.result_type(a, b))
    peer_out = np.empty_like(out)
    # an option, even "auto", would leave the direct path of the plain call
    ours = partial(fastgemm.matmul, a, b, out, **({} if policy == "auto" else {"policy": policy}))
    peer = partial(np.matmul, a, b, out=peer_out)
    with fastgemm.threads(args.threads):
        probe, settle = peak_probe(dtype, args.threads), SETTLE if args.threads > 1 else 0.0
        result = pairs(ours, peer, seconds=args.seconds, probe=probe, settle=settle)
    work = m * n * k * (8 if dtype.kind == "c" else 2) / 1e9
    return {
        "m": m,
        "n": n,
        "k": k,
        "dtype": dtype.name,
        "seconds": result.seconds,
        "gflops": work / result.seconds,
        "numpy_gflops": work / result.peer_seconds,
        "ratio": result.ratio,
        "peak_gflops": result.peak or None,
        "peak_fraction": work / result.seconds / result.peak if result.peak else None,
        "pairs": result.count,
    }


def _operand(rng: Any, shape: tuple[int, int], dtype: Any) -> Any:
    if dtype.kind in "iub":
        return rng.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _print(rows: list[dict[str, Any]], blas: str, threads: int) -> None:
    import math

    table = [
        (
            f"{row['m']}x{row['n']}x{row['k']}",
            row["dtype"],
            row["policy"],
            f"{row['seconds'] * 1e3:.4g}",
            f"{row['gflops']:.1f}",
            f"{row['numpy_gflops']:.1f}",
            f"{row['ratio']:.2f}",
            f"{row['peak_fraction']:.1%}" if row["peak_fraction"] else "",
        )
        for row in rows
    ]
    mean = math.exp(sum(math.log(row["ratio"]) for row in rows) / len(rows))
    print_table(
        ["M x N x K", "dtype", "policy", "ms", "GFLOP/s", "numpy", "ratio", "of peak"],
        table,
        title=f"fastgemm.matmul beside numpy.matmul, {threads} thread(s)",
        caption=f"geometric mean of the ratios {mean:.3f}; numpy: {blas}",
        left=(0, 1, 2),
    )
