"""``fastgemm explain``: the plan of a shape in words, and its traversal as a picture."""

from __future__ import annotations

import argparse
from typing import Any

from .console import add_command, print_json, require
from .specs import add_plan_options, parse_shape, plan_options

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "explain",
        "What matmul does for a shape: policy, swizzle, tile, grid, kernels, scratch, and the reason for each choice.",
        "explain 4096x1024x512",
        "explain 1024 --policy pingpong --tile 128x256x256 --swizzle identity:offset=3 --picture order.png",
        tables=False,
    )
    parser.add_argument("shape", help="MxNxK, or one number for a square problem")
    add_plan_options(parser)
    parser.add_argument("--picture", metavar="FILE", help="also draw the order of the blocks (needs the 'plot' extra)")


def run(args: argparse.Namespace) -> int:
    """Explain the plan."""
    import numpy as np

    import fastgemm

    m, n, k = parse_shape(args.shape)
    dtype = np.dtype(args.dtype)
    plan = fastgemm.plan(np.empty((m, k), dtype), np.empty((k, n), dtype), **plan_options(args))
    if args.json:
        print_json(plan.to_dict())
    else:
        print(plan.explain())
    if args.picture:
        _draw(plan, args.picture)
    return 0


def _draw(plan: Any, path: str) -> None:
    require("matplotlib", "plot", "A picture").use("Agg")
    from matplotlib.figure import Figure

    from fastgemm.explain import traversal_picture

    figure = Figure(layout="constrained")
    traversal_picture(plan, ax=figure.subplots())
    figure.savefig(path, dpi=120, bbox_inches="tight")
