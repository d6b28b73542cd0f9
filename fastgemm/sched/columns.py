"""The columns of a `Dag`: dtypes, lengths and ranges.  Jitted code follows their numbers without a look, so they are checked where
a DAG comes in from outside: built from arrays, read from a file, or changed by `Dag.replace`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .model import DagError, EdgeKind, Flavor, OperandKind

__all__ = ["MAX_CYCLES", "NODE_COLUMNS", "check_columns"]

MAX_CYCLES = 1 << 24  # of any latency: sums of them have to fit 32 bits

# name of a per-node column -> (dtype, value where nothing is said)
NODE_COLUMNS: dict[str, tuple[type, int]] = {
    "opcode": (np.int32, 0),
    "flavor": (np.int8, int(Flavor.OTHER)),
    "latency": (np.int32, 0),
    "unit_cycles": (np.int32, 1),
    "micro_ops": (np.int8, 1),
    "matrix_cycles": (np.int32, -1),
    "repeat": (np.int16, 1),
    "window": (np.int16, -1),
    "copy_regs": (np.int16, 0),
    "flags": (np.int32, 0),
    "carried": (np.int32, 0),
}

# column -> the one beside it, and by how many entries it is longer
_LENGTH_OF = {
    **dict.fromkeys((*NODE_COLUMNS, "depth", "height"), ("opcode", 0)),
    **dict.fromkeys(("edge_start", "operand_start"), ("opcode", 1)),
    **dict.fromkeys(("edge_target", "edge_kind", "edge_latency", "edge_register"), ("edge_target", 0)),
    **dict.fromkeys(("operand_register", "operand_lanes", "operand_kind"), ("operand_register", 0)),
    **dict.fromkeys(("register_id", "register_size", "register_vector"), ("register_id", 0)),
    **{f"live_{side}_{what}": (f"live_{side}_register", 0) for side in ("in", "out") for what in ("register", "lanes")},
    **dict.fromkeys(("exit_source", "exit_kind", "exit_latency"), ("exit_source", 0)),
}
# column -> its smallest value, and its largest or the table it indexes
_RANGES: dict[str, tuple[int, int | str]] = {
    "opcode": (0, "opcodes"),
    "flavor": (0, max(Flavor)),
    "window": (-1, "windows"),
    "micro_ops": (0, 127),
    **dict.fromkeys(("latency", "unit_cycles", "edge_latency", "exit_latency"), (0, MAX_CYCLES)),
    **dict.fromkeys(("depth", "height"), (0, (1 << 31) - 1)),
    "matrix_cycles": (-1, MAX_CYCLES),
    "carried": (-MAX_CYCLES, MAX_CYCLES),
    **dict.fromkeys(("repeat", "copy_regs", "register_size"), (0, 32767)),
    **dict.fromkeys(("edge_target", "exit_source"), (0, "opcode")),
    **dict.fromkeys(("edge_kind", "exit_kind"), (0, max(EdgeKind))),
    "edge_register": (-(1 << 31), "register_id"),  # negative: none, or one outside the table
    **dict.fromkeys(("operand_register", "live_in_register", "live_out_register"), (0, "register_id")),
    "operand_kind": (0, max(OperandKind)),
}
_STARTS = {"edge_start": "edge_target", "operand_start": "operand_register"}


def check_columns(values: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise `DagError` where one of the named columns, or one beside it, does not fit the others.

    ``values``: every field of the `Dag` by its name.
    """
    changed = set(names)
    for name, (beside, extra) in _LENGTH_OF.items():
        if (name in changed or beside in changed) and values[name].shape != (values[beside].size + extra,):
            more = f"; {extra} more are needed" if extra else ""
            raise DagError(f"{name} has shape {values[name].shape}, {beside} has {values[beside].size} entries{more}")
    for start, column in _STARTS.items():
        if start in changed or column in changed:
            _check_starts(start, values[start], column, values[column].size)
    for name, (low, high) in _RANGES.items():
        if name in changed or high in changed:
            _check_range(name, values[name], low, high if isinstance(high, int) else len(values[high]) - 1)
    for what in ("operand", "live_in", "live_out"):
        register, lanes = f"{what}_register", f"{what}_lanes"
        if changed & {register, lanes, "register_size"}:
            _check_lanes(what.replace("_", "-"), values[register], values[lanes], values["register_size"])


def _check_range(name: str, column: NDArray[Any], low: int, high: int) -> None:
    if column.size and (int(column.min()) < low or int(column.max()) > high):
        place = int(np.flatnonzero((column < low) | (column > high))[0])
        raise DagError(f"{name}[{place}] is {column[place]}; {low} to {high} are possible")


def _check_starts(start: str, values: NDArray[Any], column: str, size: int) -> None:
    if values[0] != 0 or values[-1] != size or (np.diff(values) < 0).any():
        raise DagError(
            f"{start} has to rise from 0 to {size}, the number of entries of {column}; it ends at {values[-1]}"
        )


def _check_lanes(what: str, register: NDArray[Any], lanes: NDArray[Any], size: NDArray[Any]) -> None:
    """Slices of a register are counted by its lanes: none may lie beyond its last word."""
    width = np.clip(size[register].astype(np.int64), 1, 32)
    outside = np.flatnonzero((lanes >> (2 * width - 1).astype(np.uint64)) > 1)
    if outside.size:
        i = int(outside[0])
        raise DagError(
            f"{what} {i} touches lanes {int(lanes[i]):#x} of register {register[i]}, which has {width[i]} 32-bit registers"
        )
