"""``fastgemm fidelity``: replay compilers' logs and print how many picks agree, with the residue by cause."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .console import add_command, print_json, print_table, progress


def add_parser(subparsers: Any) -> None:
    """Options of the command."""
    parser = add_command(
        subparsers,
        "fidelity",
        "Follow a compiler's own picks through the regions of corpus files and compare every decision: node, cycle and ready "
        "cycle, printed reason, queue contents; and schedule each region freely and compare whole orders. Exits with 1 if "
        "anything differs.",
        "fidelity corpus/",
        "fidelity kernel.llvm24-early.json.gz --by kernel --json",
    )
    parser.add_argument("path", nargs="+", help="corpus files or folders of them")
    parser.add_argument("--profile", help="compare with this profile (default: the one named like the file's compiler)")
    parser.add_argument(
        "--by", choices=("compiler", "kernel"), default="compiler", help="one row per what (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Do it."""
    from fastgemm.sched import fidelity, read_corpus

    regions = []
    for path in args.path:
        progress(f"reading {path}")
        if not Path(path).exists():
            raise FileNotFoundError(f"{path}: no such file or folder")
        regions += read_corpus(path)
    if not regions:
        raise ValueError(f"no corpus files in {', '.join(args.path)}")
    groups: dict[str, list[Any]] = {}
    for region in regions:
        groups.setdefault(f"{region.kernel}.{region.compiler}" if args.by == "kernel" else region.compiler, []).append(
            region
        )
    rows = []
    for name, members in groups.items():
        progress(f"replaying {name}")
        rows += [{"what": name, **row} for row in fidelity(members, profile=args.profile)]
    progress("")
    perfect = all(row["perfect_regions"] == row["free_regions"] == row["regions"] for row in rows)
    if args.json:
        print_json(rows)
        return 0 if perfect else 1
    _print(rows)
    return 0 if perfect else 1


def _share(row: dict[str, Any], part: str, whole: str) -> str:
    return f"{row[part]} ({100 * row[part] / row[whole]:.2f} %)" if row[whole] else "0"


def _print(rows: list[dict[str, Any]]) -> None:
    columns = ("same_node", "same_cycle", "same_reason", "same_queues")
    table = [
        (row["what"], row["profile"], row["picks"], *(_share(row, name, "picks") for name in columns), row["regions"])
        + (_share(row, "perfect_regions", "regions"), _share(row, "free_regions", "regions"))
        for row in rows
    ]
    print_table(
        ("kernels", "profile", "picks", "node", "cycle", "reason", "queues", "regions", "perfect", "free-running"),
        table,
        title="picks with the compiler's own history before them; whole regions scheduled freely",
        left=(0, 1),
    )
    residue = [(row["what"], cause, count) for row in rows for cause, count in row["residue"].items()]
    if residue:
        print_table(("kernels", "first difference", "regions"), residue, title="residue by cause", left=(0, 1))
    else:
        print("no difference anywhere")
