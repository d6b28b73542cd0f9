"""``fastgemm selftest``: is every kernel right on this machine?"""

from __future__ import annotations

import argparse
from typing import Any

from .console import add_command, print_json, print_table, progress

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "selftest",
        "Compare every kernel row this machine can run (each instruction set, the generic one too) and every policy with a plain "
        "reference, over shapes with edges, layouts and several calling threads.  Exit code 1 if anything differs.",
        "selftest",
        "selftest --quick --json",
    )
    parser.add_argument("--quick", action="store_true", help="fewer shapes; a few seconds")
    parser.add_argument("--callers", type=int, default=4, help="Python threads calling at once (default 4)")


def run(args: argparse.Namespace) -> int:
    """Run the checks; 1 if one failed."""
    from fastgemm.selfcheck import selftest

    report = selftest(quick=args.quick, callers=args.callers, progress=progress)
    progress("")
    if args.json:
        print_json(report.to_dict())
    else:
        rows = [(group.name, group.checks, group.failed, f"{group.worst:.2f}", group.detail) for group in report.groups]
        print_table(
            ["checked", "checks", "failed", "worst error / bound", "first failure"],
            rows,
            title=f"fastgemm selftest on {report.host}",
            caption=report.summary(),
            left=(0, 4),
        )
    return 0 if report.ok else 1
