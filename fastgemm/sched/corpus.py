"""Reader of corpus files: regions of real kernels with the compiler's own picks (``<kernel>.<compiler>.json.gz``)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .build import dag_from_arrays
from .dag import Dag
from .machine import machine
from .model import DagError, EdgeKind, Flag, parse_flavor, parse_reason

__all__ = ["PICK_DTYPE", "Queues", "Region", "read_corpus"]

# one pick of a compiler's log; `reason` is a `Reason`
PICK_DTYPE = np.dtype(
    [("node", "i4"), ("cycle", "i4"), ("ready", "i4"), ("reason", "i1"), ("vgpr", "i4"), ("sgpr", "i4")]
)

_KINDS = {"Data": EdgeKind.DATA, "Anti": EdgeKind.ANTI, "Out": EdgeKind.OUTPUT, "Ord": EdgeKind.MEMORY}
_NOTES = {
    "Barrier": EdgeKind.BARRIER,
    "Artificial": EdgeKind.ARTIFICIAL,
    "Weak": EdgeKind.WEAK,
    "Cluster": EdgeKind.CLUSTER,
}
_PHYSICAL = {"copy_from_phys": Flag.COPY_FROM_PHYS, "copy_to_phys": Flag.COPY_TO_PHYS, "imm_to_phys": Flag.IMM_TO_PHYS}


@dataclass(frozen=True, eq=False)
class Queues:
    """Queue contents before every pick, flat: pick j has Available `nodes[start[2j]:start[2j+1]]`, then Pending."""

    start: NDArray[np.int32]  # 2 * picks + 1
    nodes: NDArray[np.int32]
    logged: NDArray[np.bool_]  # picks; False: the compiler did not print its queues there

    def __len__(self) -> int:
        return int(self.logged.size)

    def __getitem__(self, pick: int) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
        if not -len(self) <= pick < len(self):
            raise IndexError(f"pick {pick} of {len(self)}")
        pick %= len(self)
        if not self.logged[pick]:
            return None
        a, b, c = self.start[2 * pick : 2 * pick + 3]
        return self.nodes[a:b], self.nodes[b:c]


@dataclass(frozen=True, eq=False)
class Region:
    """One scheduled region of a corpus file: its DAG and what the compiler did with it."""

    kernel: str
    compiler: str
    index: int
    block: str
    stage: str
    reverted: bool
    dag: Dag
    picks: NDArray[Any]  # PICK_DTYPE
    queues: Queues
    facts: tuple[str, ...] = field(repr=False)
    pressure_before: tuple[str, ...] = field(repr=False)
    pressure_after: str = field(repr=False)
    third_party: bool = False

    @property
    def order(self) -> NDArray[np.int32]:
        """The compiler's order of the nodes."""
        order: NDArray[np.int32] = self.picks["node"]
        return order


def read_corpus(path: str | Path) -> list[Region]:
    """Regions of a corpus file in the compiler's order, or of every corpus file below a folder in the files' order.

    Raises `DagError` if a file holds no corpus (machine IR and assembly have readers of their own).
    """
    path = Path(path)
    if path.is_dir():
        return [region for file in sorted(path.rglob("*.json.gz")) for region in read_corpus(file)]
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        try:
            data = json.load(file)
        except json.JSONDecodeError as error:
            raise DagError(f"{path} is no corpus file: {error}") from None
    if not isinstance(data, dict) or not {"kernel", "compiler", "regions"} <= data.keys():
        raise DagError(f"{path} is no corpus file: it has no 'kernel', 'compiler' and 'regions'")
    return list(_regions(data))


def _regions(data: Mapping[str, Any]) -> Iterator[Region]:
    names = list(dict.fromkeys(node["op"] for region in data["regions"] for node in region["nodes"]))
    number = {name: i for i, name in enumerate(names)}
    for index, raw in enumerate(data["regions"]):
        name = f"{data['kernel']}:{raw['block']}:{index}"
        yield Region(
            kernel=data["kernel"],
            compiler=data["compiler"],
            index=index,
            block=raw["block"],
            stage=raw["stage"],
            reverted=bool(raw["reverted"]),
            dag=_dag(raw, names, number, name, data["compiler"]),
            picks=_picks(raw["picks"]),
            queues=_queues(raw["queues"]),
            facts=tuple(raw.get("facts", ())),
            pressure_before=tuple(raw.get("pressure_before") or ()),
            pressure_after=raw.get("pressure_after") or "",
            third_party=bool(data.get("third_party", False)),
        )


def _dag(raw: Mapping[str, Any], names: list[str], number: Mapping[str, int], name: str, compiler: str) -> Dag:
    nodes = raw["nodes"]
    model = machine(compiler)
    dense = _RegisterNumbers(nodes, raw["live_in"], raw["live_out"])
    vector = set(raw["vector_regs"])
    windows = model.windows
    patterns = {node["window"] for node in nodes if "window" in node} - set(windows)
    if patterns:
        raise DagError(f"{name}: window {min(patterns)!r} is none of machine {model.name!r}")
    return dag_from_arrays(
        names,
        [number[node["op"]] for node in nodes],
        _edges(raw["edges"], dense),
        dense.operands,
        registers=(dense.sizes, [i in vector for i in dense.ids], dense.ids),
        machine=model,
        validate=False,
        name=name,
        flavor=[int(parse_flavor(node["flavor"])) for node in nodes],
        flags=[_flags(node) for node in nodes],
        window=[windows.index(node["window"]) if "window" in node else -1 for node in nodes],
        matrix_cycles=[-1 if (m := node.get("matrix_cycles")) is None else m for node in nodes],
        repeat=[node.get("repeat", 1) for node in nodes],
        **{key: [node[key] for node in nodes] for key in ("latency", "unit_cycles", "micro_ops", "depth", "height")},  # type: ignore[arg-type]
        copy_regs=[node.get("copy_regs", 0) for node in nodes],
        live_in=dense.live(raw["live_in"]),
        live_out=dense.live(raw["live_out"]),
        exits=_columns([(s, _KINDS[kind], latency) for s, kind, latency in raw["exit_edges"]], 3),
        vgpr_limit=raw["vgpr_limit"],
        sgpr_limit=raw["sgpr_limit"],
        whole_single_block_loop=bool(raw["whole_single_block_loop"]),
    )


def _flags(node: Mapping[str, Any]) -> int:
    flags = Flag(0)
    for key, flag in (
        ("load", Flag.LOAD),
        ("reads_sgpr", Flag.READS_SGPR),
        ("writes_sgpr", Flag.WRITES_SGPR),
        ("scalar_issue", Flag.SCALAR_ISSUE),
    ):
        if node.get(key):
            flags |= flag
    if node.get("physreg"):
        flags |= _PHYSICAL[node["physreg"]]
    if node["op"] == "COPY":
        flags |= Flag.COPY
    elif node["op"] == "IMPLICIT_DEF":
        flags |= Flag.IMPLICIT_DEF
    return int(flags)


class _RegisterNumbers:
    """Dense register numbers of a region, in order of first appearance."""

    def __init__(self, nodes: Sequence[Mapping[str, Any]], *live: Sequence[Sequence[int]]) -> None:
        self._dense: dict[int, int] = {}
        lanes: list[int] = []

        def enter(register: int, mask: int) -> int:
            index = self._dense.setdefault(register, len(lanes))
            if index == len(lanes):
                lanes.append(0)
            lanes[index] |= mask
            return index

        rows = [(i, enter(r, mask), mask, kind) for i, node in enumerate(nodes) for r, mask, kind in node["operands"]]
        for pairs in live:
            for register, mask in pairs:
                enter(register, mask)
        self.operands = _columns(rows, 4)
        self.ids = list(self._dense)
        self.sizes = [(mask.bit_length() + 1) // 2 for mask in lanes]

    def live(self, pairs: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
        """(dense register, lanes) columns of a live-in or live-out list."""
        return [self._dense[register] for register, _ in pairs], [mask for _, mask in pairs]

    def of_note(self, note: str, physical: dict[str, int]) -> int:
        """Register of an edge's note: dense number, -1 for none, below -1 for the physical registers of the region."""
        if not note.startswith("Reg="):
            return -1
        name = note[4:]
        if name.startswith("%"):
            return self._dense.get(int(name[1:].partition(".")[0]), -1)
        return physical.setdefault(name, -2 - len(physical))


def _edges(raw: Sequence[Sequence[Any]], dense: _RegisterNumbers) -> tuple[Any, ...]:
    physical: dict[str, int] = {}
    return _columns(
        [
            (
                source,
                target,
                _NOTES.get(note, _KINDS[kind]) if kind == "Ord" else _KINDS[kind],
                latency,
                dense.of_note(note, physical),
            )
            for source, target, kind, latency, note in raw
        ],
        5,
    )


def _columns(rows: Sequence[Sequence[int]], count: int) -> tuple[Any, ...]:
    return tuple(zip(*rows, strict=True)) if rows else ((),) * count


def _picks(raw: Sequence[Mapping[str, Any]]) -> NDArray[Any]:
    rows = [
        (
            pick["node"],
            pick["cycle"],
            pick["ready"],
            int(parse_reason(pick["reason"])),
            (pick.get("pressure") or {}).get("VGPR_32", 0),
            (pick.get("pressure") or {}).get("SReg_32", 0),
        )
        for pick in raw
    ]
    return np.array(rows, dtype=PICK_DTYPE)


def _queues(raw: Sequence[Sequence[Sequence[int]] | None]) -> Queues:
    flat: list[int] = []
    start = [0]
    for pair in raw:
        for queue in pair or ((), ()):
            flat.extend(queue)
            start.append(len(flat))
    logged = np.array([pair is not None for pair in raw], dtype=np.bool_)
    return Queues(np.array(start, dtype=np.int32), np.array(flat, dtype=np.int32), logged)
