"""Policies, swizzles, shapes and tiles as words of the command line.

A policy or swizzle is a name with fields: ``pingpong``, ``preload:stages=3,shuffle_k=true``, ``identity:offset=4,direction=1``.
"""

from __future__ import annotations

import argparse
import ast
from typing import Any

__all__ = ["POLICIES", "SWIZZLES", "add_plan_options", "plan_options", "parse_object", "parse_shape", "parse_tile"]

POLICIES = {
    "host-panels": "HostPanels",
    "pingpong": "Pingpong",
    "preload": "Preload",
    "preload-async": "PreloadAsync",
    "preload-async-with-callback": "PreloadAsyncWithCallback",
}
SWIZZLES = {
    "identity": "IdentitySwizzle",
    "dynamic-identity": "DynamicIdentitySwizzle",
    "row-major": "RowMajor",
    "split-k": "SplitKSwizzle",
    "tail-split-k": "TailSplitKSwizzle",
    "stream-k": "StreamKSwizzle",
    "single-core-split-k": "SingleCoreSplitKSwizzle",
    "l1-full-load": "L1FullLoadSwizzle",
    "aswt": "AswtSwizzle",
}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text.capitalize() if text in ("true", "false", "none") else text)
    except (ValueError, SyntaxError):
        raise ValueError(f"{text!r} is not a value: give a number, true, false or none") from None


def parse_object(text: str, names: dict[str, str], what: str) -> Any:
    """The policy or swizzle that ``name[:field=value,...]`` names; ``auto`` stays a string."""
    import fastgemm

    if text == "auto":
        return text
    name, _, fields = text.partition(":")
    key = name.lower().replace("_", "-")
    if key not in names:
        raise ValueError(f"{what} {name!r} is not known: choose from auto, {', '.join(names)}")
    keywords = {}
    for field in filter(None, fields.split(",")):
        label, equals, value = field.partition("=")
        if not equals:
            raise ValueError(f"{what} {text!r}: {field!r} is not of the form field=value")
        keywords[label.strip()] = _value(value.strip())
    try:
        return getattr(fastgemm, names[key])(**keywords)
    except TypeError as error:
        raise ValueError(f"{what} {text!r}: {error}") from None


def _extents(text: str, count: int, what: str) -> tuple[int, ...]:
    try:
        extents = tuple(int(word) for word in text.lower().split("x"))
    except ValueError:
        extents = ()
    if len(extents) != count or min(extents, default=0) < 1:
        raise ValueError(f"{what} {text!r} is not {'x'.join('MNK'[:count])} with positive integers")
    return extents


def parse_shape(text: str) -> tuple[int, int, int]:
    """``MxNxK``, or one number for a square problem."""
    if text.isdigit():
        text = f"{text}x{text}x{text}"
    m, n, k = _extents(text, 3, "shape")
    return m, n, k


def parse_tile(text: str) -> Any:
    """``MxNxK`` (the L1 tile) or ``MxNxK/K0`` (with the K extent of the L0 tile)."""
    import fastgemm

    outer, slash, inner = text.partition("/")
    m, n, k = _extents(outer, 3, "tile")
    if not slash:
        return fastgemm.Tile(l1=(m, n, k))
    if not inner.isdigit() or int(inner) < 1:
        raise ValueError(f"tile {text!r}: the K extent of the L0 tile after the slash is not a positive integer")
    return fastgemm.Tile(l1=(m, n, k), l0=(m, n, int(inner)))


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``fastgemm.plan`` that every command about a plan takes."""
    parser.add_argument("--policy", default="auto", help=f"auto, {', '.join(POLICIES)}; fields as preload:stages=3")
    parser.add_argument(
        "--swizzle", default="auto", help=f"auto, {', '.join(SWIZZLES)}; fields as identity:offset=4,direction=1"
    )
    parser.add_argument("--tile", help="MxNxK of the L1 tile, or MxNxK/K0 with the L0 tile's K")
    parser.add_argument("--cores", type=int, help="virtual cores of the schedule (default: the threads')")
    parser.add_argument("--arch", default="host", help="profile: host, ascend_a2, ascend_950 (default host)")
    parser.add_argument("--dtype", default="f4", help="element type as numpy spells it (default f4)")


def plan_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keywords for ``fastgemm.plan`` and ``fastgemm.trace`` from parsed arguments (the dtype stays with the caller)."""
    options: dict[str, Any] = {
        "policy": parse_object(args.policy, POLICIES, "policy"),
        "swizzle": parse_object(args.swizzle, SWIZZLES, "swizzle"),
        "arch": args.arch,
    }
    if args.tile:
        options["tile"] = parse_tile(args.tile)
    if args.cores is not None:
        options["cores"] = args.cores
    return options
