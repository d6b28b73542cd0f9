"""Kernels as words of the command line: a synthetic kernel's specification, a corpus file or a file of our own format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastgemm.sched import Dag

__all__ = ["HELP", "parse_options", "read_kernels"]

HELP = (
    "a corpus file (.json, .json.gz), a file of our own format, or a synthetic kernel: gemm:256x256x256:mxfp8:schedule=sliceNK, "
    "attention:128x128x128, random:1000:7"
)


def read_kernels(text: str, region: str | None = None) -> list[Dag]:
    """The DAGs a word names; ``region`` keeps one region by its number or those of a basic block (``bb.1``)."""
    from fastgemm.sched import synthetic

    if text.partition(":")[0] in ("gemm", "attention", "random") and not Path(text).exists():
        dags, blocks = [synthetic.parse(text)], [""]
    else:
        dags, blocks = _read_file(Path(text))
    if region is None:
        return dags
    if region.isdigit():
        if int(region) >= len(dags):
            raise ValueError(f"region {region} of {text}: it has regions 0 to {len(dags) - 1}")
        return [dags[int(region)]]
    chosen = [dag for dag, block in zip(dags, blocks, strict=True) if block == region]
    if not chosen:
        raise ValueError(f"no region of {text} lies in block {region!r}; blocks are {', '.join(dict.fromkeys(blocks))}")
    return chosen


def _read_file(path: Path) -> tuple[list[Dag], list[str]]:
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file, and no synthetic kernel either ({HELP})")
    if path.name.endswith((".json", ".json.gz")):
        from fastgemm.sched import read_corpus

        regions = read_corpus(path)
        return [region.dag for region in regions], [region.block for region in regions]
    from fastgemm.sched import load

    dags = list(load(path))
    return dags, [""] * len(dags)


def parse_options(pairs: list[str]) -> dict[str, Any]:
    """``key=value`` words as keywords: numbers, true, false, none and lists (``a,b``) are read as such."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"option {pair!r} is not of the form key=value")
        options[key] = [_value(v) for v in value.split(",")] if "," in value else _value(value)
    return options


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if ":" in text:  # a pair, such as DS_READ:2 of a pattern
        return tuple(_value(part) for part in text.split(":"))
    return int(text) if text.lstrip("-").isdigit() else text
