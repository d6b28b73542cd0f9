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

    def __init__(self) -> None:
        self._parts: list[tuple[str, NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]] = []

    @classmethod
    def of(cls, edits: Mapping[str, int], columns: tuple[NDArray[np.int32], ...]) -> Candidates:
        """Candidates listed already: how many belong to each edit, and (source, target, latency) of all."""
        made, at = cls(), 0
        for edit, count in edits.items():
            source, target, latency = (column[at : at + count] for column in columns)
            made._parts.append((edit, source, target, latency))
            at += count
        made.__dict__["columns"] = columns
        return made

    def add(
        self, edit: str, source: NDArray[Any], target: NDArray[Any], latency: int | NDArray[np.integer] = 0
    ) -> None:
        """Append edges ``source[k] -> target[k]``."""
        lasts = np.full(len(source), latency, np.int32) if isinstance(latency, int) else latency.astype(np.int32)
        self._parts.append((edit, source.astype(np.int32), target.astype(np.int32), lasts))

    @cached_property
    def columns(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """Source, target and latency of every edge."""
        if not self._parts:
            return (np.zeros(0, np.int32),) * 3
        source, target, latency = (np.concatenate([part[i] for part in self._parts]) for i in (1, 2, 3))
        return source, target, latency

    def table(self) -> NDArray[Any]:
        """All of them, as `EDGE_DTYPE`."""
        table = np.zeros(self.columns[0].size, EDGE_DTYPE)
        table["source"], table["target"], table["latency"] = self.columns
        if self._parts:
            table["edit"] = np.repeat([part[0] for part in self._parts], [part[1].size for part in self._parts])
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
