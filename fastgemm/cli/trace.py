"""``fastgemm trace``: the op stream of a plan, as a table, JSON or CSV."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

from .console import add_command, print_json, print_table
from .specs import add_plan_options, parse_shape, plan_options

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "trace",
        "The ops that execution runs, in each core's order: loads, multiplications, stores and callback points.",
        "trace 512x512x512 --policy preload --tile 256x256x128 --cores 2 --limit 20",
        "trace 1024 --policy pingpong --csv > ops.csv",
    )
    parser.add_argument("shape", help="MxNxK, or one number for a square problem")
    add_plan_options(parser)
    parser.add_argument("--batch", type=int, default=1, help="independent problems of this shape (default 1)")
    parser.add_argument("--core", type=int, help="only this core's ops")
    parser.add_argument("--limit", type=int, default=60, help="rows of the table (default 60; 0: all)")
    parser.add_argument("--csv", action="store_true", help="print CSV, every row")


def _records(ops: Any) -> Iterator[list[Any]]:
    from fastgemm import Op

    names = ops.dtype.names
    for record in ops:
        yield [Op(int(record[name])).name if name == "op" else record[name].item() for name in names]


def run(args: argparse.Namespace) -> int:
    """Print the ops."""
    import numpy as np

    import fastgemm

    m, n, k = parse_shape(args.shape)
    ops = fastgemm.trace(m, n, k, batch=args.batch, dtype=np.dtype(args.dtype), **plan_options(args))
    if args.core is not None:
        ops = ops[ops["core"] == args.core]
    columns = list(ops.dtype.names or ())
    if args.json:
        records = [dict(zip(columns, record, strict=True)) for record in _records(ops)]
        print_json({"shape": [m, n, k], "batch": args.batch, "ops": records})
    elif args.csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(columns)
        writer.writerows(_records(ops))
    else:
        shown = len(ops) if args.limit == 0 else min(args.limit, len(ops))
        caption = f"{shown} of {len(ops)} ops" + ("" if shown == len(ops) else "; --limit 0 shows all")
        print_table(
            columns, islice(_records(ops), shown), title=f"{m}x{n}x{k} {args.policy} {args.swizzle}", caption=caption
        )
    return 0
