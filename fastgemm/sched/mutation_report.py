"""What a mutation did, in values one can test, print and draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .legal_edges import CYCLE, PRESENT, TAKEN

__all__ = ["EDGE_DTYPE", "Candidates", "Fragment", "MutationReport"]

EDGE_DTYPE = np.dtype([("source", "i4"), ("target", "i4"), ("latency", "i4"), ("edit", "U12")])


class Candidates:
    """Edges a mutation would like, in order, each labelled with the edit it belongs to."""

    __slots__ = ("_columns", "_counts", "_edits")  # batches keep thousands of them

    def __init__(self, edits: Mapping[str, int] | None = None, columns: NDArray[np.int32] | None = None) -> None:
        """Start with edges listed already: how many belong to each edit, and (source, target, latency) of all."""
        self._edits, self._counts = list(edits or ()), list((edits or {}).values())
        self._columns = np.zeros((3, 0), np.int32) if columns is None else np.array(columns, np.int32)

    def add(
        self, edit: str, source: NDArray[Any], target: NDArray[Any], latency: int | NDArray[np.integer] = 0
    ) -> None:
        """Append edges ``source[k] -> target[k]``."""
        new = np.empty((3, len(source)), np.int32)
        new[0], new[1], new[2] = source, target, latency
        self._columns = np.concatenate([self._columns, new], axis=1)
        self._edits.append(edit)
        self._counts.append(len(source))

    @property
    def columns(self) -> NDArray[np.int32]:
        """Three rows: source, target and latency of every edge."""
        return self._columns

    def table(self) -> NDArray[Any]:
        """All of them, as `EDGE_DTYPE`."""
        table = np.zeros(self._columns.shape[1], EDGE_DTYPE)
        table["source"], table["target"], table["latency"] = self._columns
        if self._edits:
            table["edit"] = np.repeat(self._edits, self._counts)
        return table


@dataclass(frozen=True, slots=True)
class Fragment:
    """What one virtual register holds: the LDS loads that fill it and when; positions count matrix instructions."""

    register: int  # the compiler's number
    vgprs: int  # 32-bit registers
    first_consumer: int
    last_consumer: int
    late_start: int  # latest position the loads may start at and still be in time
    anchor: int  # position they may not start before (0: no anchor)
    loads: tuple[int, ...]  # nodes

    @property
    def vgpr_positions(self) -> int:
        """Registers times positions it occupies from its anchor on."""
        return self.vgprs * (self.last_consumer - self.anchor + 1)


@dataclass(frozen=True, eq=False)
class MutationReport:
    """What a mutation did to one DAG. Fields that a mutation has no use for are empty."""

    mutation: str
    variant: str = ""
    edits: tuple[str, ...] = ()
    candidates: Candidates = field(default_factory=Candidates, repr=False)  # every edge asked for
    verdict: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))
    corrected: int = 0  # edges whose latency was changed
    load_latency: int = 0  # cycles
    wmma_latency: int = 0
    spacing: int = 0
    positions: int = 0  # matrix instructions
    budget: int = 0  # vector registers
    histogram_before: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    histogram_after: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    skipped: tuple[int, ...] = ()  # fragments left alone because an edge was illegal (slim)
    note: str = ""
    idempotent: bool = True  # a second application finds its edges present and its latencies set
    make_fragments: Callable[[], tuple[Fragment, ...]] = field(default=tuple, repr=False)

    @cached_property
    def fragments(self) -> tuple[Fragment, ...]:
        """Fragments in order of first consumer."""
        return self.make_fragments()

    @cached_property
    def wanted(self) -> NDArray[Any]:
        """Every edge asked for, as `EDGE_DTYPE`."""
        return self.candidates.table()

    @property
    def added(self) -> NDArray[Any]:
        """Edges added."""
        return self.wanted[self.verdict == TAKEN]

    @property
    def refused(self) -> NDArray[Any]:
        """Edges refused because they would close a cycle."""
        return self.wanted[self.verdict == CYCLE]

    @property
    def present(self) -> NDArray[Any]:
        """Edges that were there already."""
        return self.wanted[self.verdict == PRESENT]

    @property
    def changed(self) -> bool:
        """Whether the DAG came out different."""
        return bool(self.corrected or (self.verdict == TAKEN).any())

    def reasons(self) -> list[str]:
        """One line per refused edge."""
        return [
            f"{r['edit']}: {r['source']} -> {r['target']} refused, {r['target']} already leads to {r['source']}"
            for r in self.refused
        ]

    def edges_by_edit(self) -> dict[str, dict[str, int]]:
        """Per edit how many edges were added, refused and present."""
        result: dict[str, dict[str, int]] = {}
        for edit in dict.fromkeys(self.wanted["edit"].tolist()):
            mine = self.verdict[self.wanted["edit"] == edit]
            result[edit] = {
                "added": int((mine == TAKEN).sum()),
                "refused": int((mine == CYCLE).sum()),
                "present": int((mine == PRESENT).sum()),
            }
        return result

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "mutation": self.mutation,
            "variant": self.variant,
            "edits": list(self.edits),
            "budget": self.budget,
            "load_latency": self.load_latency,
            "wmma_latency": self.wmma_latency,
            "positions": self.positions,
            "corrected": self.corrected,
            "idempotent": self.idempotent,
            "edges": self.edges_by_edit(),
            "refused": [[int(r["source"]), int(r["target"]), str(r["edit"])] for r in self.refused],
            "fragments": [
                {
                    "register": f.register,
                    "vgprs": f.vgprs,
                    "first_consumer": f.first_consumer,
                    "last_consumer": f.last_consumer,
                    "late_start": f.late_start,
                    "anchor": f.anchor,
                    "loads": list(f.loads),
                }
                for f in self.fragments
            ],
            "histogram_before": self.histogram_before.tolist(),
            "histogram_after": self.histogram_after.tolist(),
            "note": self.note,
        }
