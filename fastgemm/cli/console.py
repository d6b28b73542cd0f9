"""What commands print: tables through rich, JSON without it, progress for a person only."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["add_command", "check_tables", "print_json", "print_table", "progress", "require"]

# a table takes the width it needs, up to this: a cell that a narrow terminal wraps can still be read, one cut short cannot
_WIDTH = 200


def add_command(
    subparsers: Any, name: str, description: str, *examples: str, tables: bool = True
) -> argparse.ArgumentParser:
    """A parser for one command, with ``--json`` and its examples below the options.

    ``tables``: it prints tables unless asked for JSON or CSV; that they can be printed is then checked before it begins.
    """
    from . import COMMANDS

    text = "\n".join(f"  fastgemm {example}" for example in examples)
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=COMMANDS[name][1],
        description=textwrap.fill(description, 96),
        epilog=f"example:\n{text}\n\nexit codes: 0 ok, 1 a check failed, 2 wrong use",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON instead of " + ("a table" if tables else "text")
    )
    parser.set_defaults(tables=tables)
    return parser


def check_tables(args: argparse.Namespace) -> None:
    """Say now, not after minutes of measuring, that the package for tables is missing."""
    if args.tables and not args.json and not getattr(args, "csv", False):
        require("rich.table", "cli", "A table (--json works without it)")


def require(module: str, extra: str, purpose: str) -> Any:
    """Import an optional dependency, or say which extra brings it."""
    from importlib import import_module

    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        package = module.partition(".")[0]
        if missing.name is None or missing.name.partition(".")[0] != package:
            raise
        raise ModuleNotFoundError(
            f"{purpose} needs {package}, which is not installed: pip install 'fastgemm[{extra}]'", name=missing.name
        ) from None


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return value.tolist()
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return str(value)


def print_json(payload: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(payload, indent=2, default=_plain))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    title: str = "",
    caption: str = "",
    left: Sequence[int] = (0,),
) -> None:
    """A table on standard output; columns are right-aligned except those whose index is in ``left``."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, caption=caption or None, box=box.SIMPLE_HEAD, title_justify="left")
    table.caption_justify = "left"
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    Console(width=_WIDTH, highlight=False, markup=False, emoji=False).print(table)


def progress(text: str) -> None:
    """One line of progress on standard error, if somebody is watching."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="" if text else "\r", file=sys.stderr, flush=True)
