"""Machines as data: JSON files that name opcodes, windows, latencies and queue sizes (`fastgemm/sched/machines`).

A file may extend another one.  An opcode is looked up in the exact table, then in the ordered list of glob rules, then the
overlays are laid over what was found; whatever none of them knows is unknown, and the caller says what happens then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .model import DagError, Flag, Flavor, parse_flavor

__all__ = ["COEXEC_CLASSES", "Facts", "Machine", "machine", "machines"]

FORMAT = "fastgemm-machine-1"
# co-execution classes; bit i of a stage's mask admits class i
COEXEC_CLASSES = ("CTRL", "VALU", "TRANS", "SALU", "DS", "VMEM", "SMEM", "WMMA")
MAX_WINDOW = 32  # stages


@dataclass(frozen=True, slots=True)
class Facts:
    """What a machine knows about one opcode (cycles; `window` is a pattern or None)."""

    flavor: Flavor
    latency: int
    unit_cycles: int = 1
    micro_ops: int = 1
    matrix_cycles: int = -1
    repeat: int = 1
    window: str | None = None
    flags: Flag = Flag(0)


@dataclass(frozen=True, slots=True)
class WindowTables:
    """Windows as the jitted code reads them; row = window, column = stage (0 beyond the window's length).

    `admits`: mask over `COEXEC_CLASSES`; `counts`: 0 nothing, 1 E, 2 I, 3 S, 4 A, 5 V; `prefer`, `avoid`: masks over flavors.
    """

    length: NDArray[np.int64]
    admits: NDArray[np.int64]
    counts: NDArray[np.int64]
    prefer: NDArray[np.int64]
    avoid: NDArray[np.int64]


class Machine:
    """One machine model. Load with `machine(name)` or `Machine.load(path)`; `data` is the merged JSON object."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        if data.get("format") != FORMAT:
            raise DagError(f"machine file says format {data.get('format')!r}; this version reads {FORMAT!r}")
        self.data = dict(data)
        self.name: str = data["name"]
        self.note: str = data.get("note", "")
        self.ds_latency: int = int(data["ds_latency"])
        self.ds_fifo: int = int(data["ds_fifo"])
        self.available_limit: int = int(data["available_limit"])
        self.vgprs: int = int(data["vgprs"])
        self.sgprs: int = int(data["sgprs"])
        self.vgpr_limit: int = self.vgprs - int(data["vgpr_margin"])
        self.pressure_gate: int = int(data["pressure_gate"])
        self.windows: tuple[str, ...] = tuple(data["windows"])
        self._opcodes: dict[str, Any] = data.get("opcodes", {})
        self._rules: Sequence[Any] = data.get("rules", ())
        self._overlays: Sequence[Any] = data.get("overlays", ())
        self._found: dict[str, Facts | None] = {}
        too_long = [pattern for pattern in self.windows if len(pattern) > MAX_WINDOW]
        if too_long:
            raise DagError(f"window {too_long[0]!r} of machine {self.name!r} has more than {MAX_WINDOW} stages")

    def __repr__(self) -> str:
        return f"Machine({self.name!r}, ds_latency={self.ds_latency}, vgprs={self.vgprs}, {len(self._opcodes)} opcodes)"

    @classmethod
    def load(cls, path: str | Path) -> Machine:
        """Read a machine file; its `extends` names a packaged machine or a file beside it."""
        path = Path(path)
        return cls(_merged(json.loads(path.read_text()), path.parent))

    def facts(self, opcode: str, *, vector: bool = False) -> Facts | None:
        """Facts of an opcode, None if unknown. COPY is a vector op if either side is a vector register (`vector`)."""
        key = f"{opcode}:vector" if vector and f"{opcode}:vector" in self._opcodes else opcode
        if key not in self._found:
            self._found[key] = self._look_up(key)
        return self._found[key]

    def _look_up(self, opcode: str) -> Facts | None:
        raw = self._opcodes.get(opcode)
        if raw is None:
            raw = next((facts for glob, facts in self._rules if fnmatchcase(opcode, glob)), None)
        if raw is None:
            return None
        merged = dict(raw)
        for glob, changes in self._overlays:
            if fnmatchcase(opcode, glob):
                merged.update(changes)
        flags = Flag(0)
        if merged.pop("load", 0):
            flags |= Flag.LOAD
        if merged.pop("scalar_issue", 0):
            flags |= Flag.SCALAR_ISSUE
        if opcode.partition(":")[0] == "COPY":
            flags |= Flag.COPY
        elif opcode == "IMPLICIT_DEF":
            flags |= Flag.IMPLICIT_DEF
        return Facts(flavor=parse_flavor(merged.pop("flavor")), flags=flags, **merged)

    @cached_property
    def tables(self) -> WindowTables:
        """The windows as arrays, in the order of `windows`."""
        shape = (len(self.windows), MAX_WINDOW)
        length = np.array([len(pattern) for pattern in self.windows], dtype=np.int64)
        admits, counts, prefer, avoid = (np.zeros(shape, dtype=np.int64) for _ in range(4))
        letters = self.data["letters"]
        for row, pattern in enumerate(self.windows):
            for stage, letter in enumerate(pattern):
                spec = letters[letter]
                admits[row, stage] = sum(1 << COEXEC_CLASSES.index(name) for name in spec["admits"])
                counts[row, stage] = " EISAV".index(spec["counts"] or " ")
            for stage_name, wishes in self.data["windows"][pattern].items():
                wanted, _, unwanted = wishes.partition("/")
                prefer[row, int(stage_name)] = _flavor_mask(wanted)
                avoid[row, int(stage_name)] = _flavor_mask(unwanted)
        return WindowTables(length, admits, counts, prefer, avoid)


def _flavor_mask(names: str) -> int:
    return sum(1 << int(parse_flavor(name)) for name in names.split())


def _merged(data: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    parent = data.pop("extends", None)
    if parent is None:
        return data
    beside = folder / f"{parent}.json" if folder is not None else None
    if beside is not None and beside.exists():
        base = _merged(json.loads(beside.read_text()), folder)
    else:
        base = _merged(_packaged(parent), None)
    own_only = data.pop("replace_opcodes", False)
    opcodes = data.get("opcodes", {}) if own_only else {**base.get("opcodes", {}), **data.get("opcodes", {})}
    rules = list(data.get("rules", ())) + ([] if own_only else list(base.get("rules", ())))
    overlays = list(base.get("overlays", ())) + list(data.get("overlays", ()))
    return {**base, **data, "opcodes": opcodes, "rules": rules, "overlays": overlays}


def _packaged(name: str) -> dict[str, Any]:
    source = files(__package__) / "machines" / f"{name}.json"
    if not source.is_file():
        raise DagError(
            f"no machine called {name!r}; there are {', '.join(machines())} (Machine.load reads your own file)"
        )
    result: dict[str, Any] = json.loads(source.read_text())
    return result


@lru_cache(maxsize=1)
def machines() -> tuple[str, ...]:
    """Names of the packaged machines."""
    folder = files(__package__) / "machines"
    return tuple(sorted(entry.name[: -len(".json")] for entry in folder.iterdir() if entry.name.endswith(".json")))


@lru_cache(maxsize=64)
def _machine(name: str) -> Machine:
    return Machine(_merged(_packaged(name), None))


def machine(name: str | Machine = "gfx1250") -> Machine:
    """A packaged machine by name (`machines()` lists them); a `Machine` comes back as it is."""
    return name if isinstance(name, Machine) else _machine(name)
