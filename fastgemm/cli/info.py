"""``fastgemm info``: what the package found and what it would use."""

from __future__ import annotations

import argparse
from typing import Any

from .console import add_command, print_json

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "info",
        "Host, instruction set, caches, kernel rows in use, threads and where their number comes from, the folder of compiled "
        "code, versions.",
        "info",
        "info --json",
        "info --clear-cache",
        tables=False,
    )
    parser.add_argument("--clear-cache", action="store_true", help="remove the compiled code kept on disk first")


def run(args: argparse.Namespace) -> int:
    """Print the configuration."""
    from fastgemm.config import clear_cache, config_text, show_config

    freed = clear_cache() if args.clear_cache else None
    facts = show_config(mode="dicts")
    if args.json:
        print_json(facts if freed is None else {**facts, "cleared_bytes": freed})
        return 0
    if freed is not None:
        print(f"removed {freed} bytes of compiled code")
    print(config_text(facts))
    return 0
