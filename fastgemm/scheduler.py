"""A swizzle bound to a problem: the interface of a CATLASS block scheduler."""

from __future__ import annotations

from functools import cached_property
from operator import index as as_int
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from . import layout as L
from .swizzle import DynamicIdentitySwizzle, Geometry, StreamKSwizzle, Swizzle

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Piece", "Scheduler"]


class Piece(NamedTuple):
    """One contiguous K range of a block (or of a part of one): m, n, k, k_tiles in tiles, the rest in elements."""

    m: int
    n: int
    k: int
    k_tiles: int
    k0: int
    klen: int
    m0: int
    n0: int
    rows: int
    cols: int
    part: int
    parts: int


_PIECE_FIELDS = [
    L.PIECE_M, L.PIECE_N, L.PIECE_K, L.PIECE_KT, L.PIECE_K0, L.PIECE_KLEN,
    L.PIECE_M0, L.PIECE_N0, L.PIECE_ROWS, L.PIECE_COLS, L.PIECE_PART, L.PIECE_PARTS,
]  # fmt: skip


def _extents(name: str, values: Sequence[int], counts: tuple[int, ...], least: int) -> tuple[int, ...]:
    """`values` as ints, checked for number and size."""
    extents = tuple(as_int(value) for value in values)
    if len(extents) not in counts:
        raise ValueError(f"{name} must have {' or '.join(map(str, counts))} extents, got {extents}")
    if min(extents) < least:
        raise ValueError(f"every extent of {name} must be at least {least}, got {extents}")
    return extents


class Scheduler:
    """Answers for one problem: how many tasks, which block each is, who computes it."""

    def __init__(
        self,
        swizzle: Swizzle,
        problem: Sequence[int] | None = None,
        tile: Sequence[int] | None = None,
        loops: Sequence[int] | None = None,
        cores: int | None = None,
        batch: int = 1,
    ) -> None:
        self.swizzle = swizzle
        self.cores = 1 if cores is None else as_int(cores)
        self.batch = as_int(batch)
        if self.cores < 1:
            raise ValueError(f"cores must be at least 1, got {self.cores}")
        if self.batch < 0:
            raise ValueError(f"batch must not be negative, got {self.batch}")
        if problem is not None or tile is not None:
            self.update(problem, tile, loops)
        elif loops is not None:
            raise ValueError(f"loops={tuple(loops)} needs a problem and a tile")

    def update(
        self, problem: Sequence[int] | None, tile: Sequence[int] | None, loops: Sequence[int] | None = None
    ) -> Scheduler:
        """Take another problem (M, N, K), tile (m, n[, k]) and, if known, block grid; returns the scheduler."""
        if problem is None or tile is None:
            raise ValueError(f"a scheduler needs both a problem and a tile, got problem={problem} and tile={tile}")
        m, n, k = _extents("problem", problem, (3,), 0)
        edges = _extents("tile", tile, (2, 3), 1)
        geometry = Geometry(
            (m, n, k), (edges[0], edges[1], edges[2] if len(edges) == 3 else max(k, 1)), self.cores, self.batch
        )
        if loops is not None and _extents("loops", loops, (2, 3), 0)[:2] != geometry.grid[:2]:
            raise ValueError(
                f"loops={tuple(loops)} is not the block grid of problem {(m, n, k)} in tiles {edges}, which is {geometry.grid[:2]}"
            )
        self.geometry = geometry
        self.__dict__.pop("_encoded", None)
        return self

    @cached_property
    def _encoded(self) -> np.ndarray:
        if "geometry" not in self.__dict__:
            raise ValueError(f"{self.swizzle} is bound to no problem; call update(problem, tile) first")
        return encode_geometry(self.geometry, self.swizzle)

    @property
    def vector(self) -> np.ndarray:
        """The P vector (without a policy)."""
        if isinstance(self.swizzle, DynamicIdentitySwizzle):  # its parameters may have changed
            self._encoded[[L.P_OFFSET, L.P_DIRECTION]] = self.swizzle.offset, self.swizzle.direction
        return self._encoded

    def set_swizzle_params(self, offset: int = 1, direction: int = 0) -> Scheduler:
        """Run-time parameters of a DynamicIdentitySwizzle."""
        if not isinstance(self.swizzle, DynamicIdentitySwizzle):
            raise TypeError(f"{self.swizzle} has fixed parameters; bind a DynamicIdentitySwizzle to change them")
        self.swizzle.set_swizzle_params(offset, direction)
        return self

    @property
    def grid(self) -> tuple[int, int, int]:
        """Tiles along M, N and K."""
        return tuple(int(x) for x in self.vector[[L.P_ROWS, L.P_COLS, L.P_KT]])  # type: ignore[return-value]

    def core_loops(self, core: int | None = None) -> int:
        """Tasks of one batch; with a core, the steps this core makes over all batches."""
        if core is None:
            return int(self.vector[L.P_LOOPS])
        from .stream import core_steps

        return int(core_steps(self.vector, self._core(core)))

    def batch_idx(self, i: int) -> int:
        """The batch of task i."""
        return self._task(i) // self.core_loops()

    def pieces(self, i: int) -> list[Piece]:
        """What task i covers: one piece; two if it crosses from one block into the next (stream-K).

        The tail split of an AswtSwizzle deals one task's block out to several cores and shows in `schedule` only.
        """
        from .schedule import pieces_of_task

        out = np.empty(L.MAX_PIECES * L.PIECE_SIZE, np.int64)
        count = pieces_of_task(self.vector, self._task(i), out)
        return [Piece(*out[x * L.PIECE_SIZE :][_PIECE_FIELDS].tolist()) for x in range(count)]

    def block_coord(self, i: int) -> tuple[int, int, int]:
        """(m, n, k) of task i in tiles; i is reduced by the batches.  k is the first K tile of the task's first piece."""
        return self.pieces(i)[0][:3]

    def actual_block_shape(self, coord: Sequence[int], task: int | None = None) -> tuple[int, int, int]:
        """(rows, columns, K) of the block at coord: short in the last row and column.

        K is the whole K, or with a task the K range of the piece of that task which lies in the block: split and stream
        schedulers need it.
        """
        (m, n), (rows, cols, _) = (as_int(c) for c in coord[:2]), self.grid
        if not (0 <= m < rows and 0 <= n < cols):
            raise ValueError(f"block ({m}, {n}) lies outside the grid of {rows} x {cols} blocks")
        (full_m, full_n, k), (tm, tn, _) = self.geometry.problem, self.geometry.tile
        if task is not None:
            found = [piece for piece in self.pieces(task) if (piece.m, piece.n) == (m, n)]
            if not found:
                raise ValueError(f"task {task} does not compute block ({m}, {n}) but {self.pieces(task)[0][:2]}")
            k = found[0].klen
        return min(tm, full_m - m * tm), min(tn, full_n - n * tn), k

    def schedule(self) -> np.ndarray:
        """The whole order, every batch: a structured array with fields core, step, task, batch, m, n (tiles), k0, klen (elements).

        Rows run step by step (wave by wave) and in core order within a step; a task of two pieces takes two rows.  Schedulers that
        cut blocks (AswtSwizzle with tail_split, ColumnBlockSwizzle) add m0, n0, rows, cols (elements).
        """
        from .schedule import schedule

        return schedule(self.vector, self.swizzle.cuts_blocks)

    def first_core(self, block: int) -> int:
        """Stream-K: the share (core of the last wave) that holds the first K tile of stream block `block`, counted from 0.

        Block b is reduced by the cores [first_core(b), first_core(b + 1)); its partial results come from `contributors(b)`.
        """
        if not isinstance(self.swizzle, StreamKSwizzle):
            raise TypeError(f"{self.swizzle} has no stream blocks; only a StreamKSwizzle has")
        streamed = self.geometry.blocks % self.cores
        if not 0 <= block <= streamed:
            raise ValueError(f"block {block} is not one of the {streamed} stream blocks (or the end behind them)")
        kt = self.grid[2]
        length, longer = divmod(streamed * kt, self.cores)
        boundary = block * kt
        if boundary <= longer * (length + 1):
            return boundary // (length + 1)
        return longer + (boundary - longer * (length + 1)) // length

    def contributors(self, block: int) -> range:
        """Stream-K: the shares whose partial results, added in this order, make stream block `block`."""
        length, longer = divmod(self.geometry.blocks % self.cores * self.grid[2], self.cores)
        end = self.first_core(block + 1)
        crosses = end * length + min(end, longer) < (block + 1) * self.grid[2]
        return range(self.first_core(block), end + crosses)

    def _task(self, i: int) -> int:
        """i, checked against the number of tasks."""
        i = as_int(i)
        total = self.core_loops() * self.batch
        if not 0 <= i < total:
            raise IndexError(f"task {i} is not one of the {total} tasks ({self.batch} batches of {self.core_loops()})")
        return i

    def _core(self, core: int) -> int:
        core = as_int(core)
        if not 0 <= core < self.cores:
            raise IndexError(f"core {core} is not one of the {self.cores} cores")
        return core

    def __repr__(self) -> str:
        bound = (
            f"problem={self.geometry.problem}, tile={self.geometry.tile}"
            if "geometry" in self.__dict__
            else "no problem"
        )
        return f"Scheduler({self.swizzle}, {bound}, cores={self.cores}, batch={self.batch})"


def encode_geometry(geometry: Geometry, swizzle: Swizzle, start_core: int = 0) -> np.ndarray:
    """The P vector of a problem and its scheduler, the policy's fields still zero."""
    P = np.zeros(L.P_SIZE, np.int64)
    P[[L.P_M, L.P_N, L.P_K]] = geometry.problem
    P[[L.P_TM, L.P_TN, L.P_TK]] = geometry.tile
    P[[L.P_ROWS, L.P_COLS, L.P_KT]] = geometry.grid
    P[[L.P_BATCH, L.P_CORES, L.P_START]] = geometry.batch, geometry.cores, start_core
    P[[L.P_OFFSET, L.P_SPLIT, L.P_CUT_M, L.P_CUT_N]] = 1
    for index, value in swizzle.fields(geometry).items():
        P[index] = value
    return P
