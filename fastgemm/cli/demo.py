"""``fastgemm demo``: the main job on real data, checked."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from .console import add_command, print_json, print_table, progress

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "demo",
        "Resample a real elevation model to a grid eight times finer with fastgemm.matmul under every dispatch policy, check "
        "each result against numpy in float64 and against the survey itself, and time it beside numpy and beside the peak. "
        "Then schedule three kernels with and without the DAG mutation.",
        "demo",
        "demo --seconds 2 --threads 1",
    )
    parser.add_argument("--seconds", type=float, default=0.6, help="time a row takes (default 0.6)")
    parser.add_argument(
        "--threads", type=int, action="append", help="may be repeated (default: 1, and what the host has)"
    )
    parser.add_argument("--no-schedule", action="store_true", help="leave the kernels out")
    parser.add_argument("--factor", type=int, default=8, help="how much finer the grid gets (default 8)")


def run(args: argparse.Namespace) -> int:
    """Run and print; 1 if a result is wrong."""
    import fastgemm
    from fastgemm import demo
    from fastgemm.measure import numpy_threads

    counts = args.threads or sorted({1, fastgemm.get_num_threads()})
    if min(counts) < 1 or args.factor < 1:
        raise ValueError(f"--threads {counts} and --factor {args.factor}: each has to be at least 1")
    progress("reading the elevation model")
    problem = demo.resampling(demo.read_elevation(), args.factor)
    rows = []
    for count in counts:
        with numpy_threads(count) as blas:
            rows += demo.time_policies(problem, threads=count, seconds=args.seconds, progress=progress)
    kernels = [] if args.no_schedule else demo.schedule_kernels(progress)
    progress("")
    ok = all(row.ok for row in rows)
    if args.json:
        payload = {"schema": 1, "command": "demo", "ok": ok, "a": problem.a.shape, "b": problem.b.shape, "peer": blas}
        print_json({**payload, "rows": list(map(asdict, rows)), "kernels": [each.to_dict() for each in kernels]})
    else:
        _print(problem, rows, blas)
        _print_kernels(kernels)
    return 0 if ok else 1


def _print(problem: Any, rows: list[Any], blas: str) -> None:
    (m, k), n = problem.a.shape, problem.b.shape[1]
    print(
        f"Elevation model {problem.survey.shape[0]} x {problem.survey.shape[1]} (Jacksboro fault), resampled to {m} x {n}:\n"
        f"({m} x {k}) @ ({k} x {n}), float32, {problem.work:.2f} GFLOP.  numpy's BLAS: {blas.rpartition(',')[0] or blas}."
    )
    table = [
        (
            row.policy,
            row.threads,
            f"{row.seconds * 1e3:.1f}",
            f"{row.rate:.1f}",
            f"{row.numpy_rate:.1f}",
            f"{row.ratio:.2f}",
            f"{row.peak:.1f}",
            f"{row.rate / row.peak:.1%}",
            f"{row.error * 1e3:.2f}",
            f"{row.survey_error * 1e3:.3f}",
            "right" if row.ok else "WRONG",
        )
        for row in rows
    ]
    called = next((row.blocks for row in rows if row.blocks), 0)
    print_table(
        [
            "policy",
            "threads",
            "ms",
            "GFLOP/s",
            "numpy's",
            "ratio",
            "peak",
            "of peak",
            "error, mm",
            "at survey, mm",
            "check",
        ],
        table,
        caption=(
            "numpy's: its GFLOP/s in the same run; ratio: its time over ours, median of pairs taken in turn; peak: of the "
            "multiply-add units, measured beside it; error: largest difference to float64; at survey: largest difference to the "
            f"surveyed elevations; the callback saw {called} blocks"
        ),
    )


def _print_kernels(kernels: list[Any]) -> None:
    if not kernels:
        return
    from fastgemm.sched.comparison import COLUMNS

    rows = [[row[column] for column in COLUMNS] for each in kernels for row in each.rows()]
    gains = ", ".join(f"{each.gain:.2f}" for each in kernels)
    print_table(
        COLUMNS,
        rows,
        title="Kernels scheduled without and with the DAG mutation, run on the in-order machine",
        caption=(
            f"cycles without over cycles with: {gains}; held: matrix instructions between a load and its first use, "
            "mean over the loads"
        ),
        left=(0, 2),
    )
