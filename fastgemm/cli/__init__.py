"""The command line: ``fastgemm COMMAND ...`` or ``python -m fastgemm COMMAND ...``.

A command is a module of this package with two functions: ``add_parser(subparsers)`` declares its options and
``run(args) -> int`` does the work and returns the exit code.  Only the module of the command that was asked for is imported,
so ``fastgemm --help`` costs what importing argparse costs.

Exit codes: 0 everything went well, 1 a check failed, 2 the command was used wrongly, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

__all__ = ["COMMANDS", "EXIT_FAILED", "EXIT_INTERRUPTED", "EXIT_OK", "EXIT_USAGE", "main"]

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

# name -> (module, what it does); the module is imported only when the command is asked for
COMMANDS: dict[str, tuple[str, str]] = {
    "info": ("fastgemm.cli.info", "host, caches, kernels in use, threads, cache folder, versions"),
    "selftest": ("fastgemm.cli.selftest", "compare every kernel this machine can run with a plain reference"),
    "demo": ("fastgemm.cli.demo", "the main job on real data, checked against numpy"),
    "warmup": ("fastgemm.cli.warmup", "compile the kernels now and keep them on disk"),
    "bench": ("fastgemm.cli.bench", "time matmul beside numpy and beside the machine's peak"),
    "trace": ("fastgemm.cli.trace", "the ops a policy and a swizzle run, one by one"),
    "explain": ("fastgemm.cli.explain", "what matmul would do for a shape, and why"),
    "schedule": ("fastgemm.cli.schedule", "schedule kernel DAGs as an accelerator compiler would"),
    "mutate": ("fastgemm.cli.mutate", "apply a DAG mutation and report what it did"),
    "fidelity": ("fastgemm.cli.fidelity", "compare schedules with a compiler's own, pick by pick"),
}


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    from fastgemm import __version__

    parser = argparse.ArgumentParser(
        prog="fastgemm",
        description="Tile-level GEMM machinery on CPU threads, and an instruction scheduler over kernel DAGs.",
        epilog="example: fastgemm bench 1024 --dtype f4\n\n'fastgemm COMMAND --help' shows a command's options and an example.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"fastgemm {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        if name == chosen:
            import_module(module).add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary, add_help=False)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; ``argv`` defaults to the process's arguments.  Returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    try:
        args = _parser(chosen).parse_args(arguments)
        import_module("fastgemm.cli.console").check_tables(args)
        return int(import_module(COMMANDS[args.command][0]).run(args))
    except SystemExit as leaving:  # argparse: --help, --version and usage errors
        return leaving.code if isinstance(leaving.code, int) else EXIT_USAGE
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        if isinstance(error, BrokenPipeError):  # the reader (head, less) has gone; nothing is left to tell it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_OK
        if os.environ.get("FASTGEMM_TRACEBACK"):
            raise
        print(f"fastgemm {chosen}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print(f"fastgemm {chosen}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
