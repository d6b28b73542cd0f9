"""Block schedulers ("swizzles"): which block of the result a core computes next.

A swizzle is a small object without a problem; ``.bind(problem=(M, N, K), tile=(m, n[, k]), cores=...)`` makes a
:class:`~fastgemm.scheduler.Scheduler` that answers for one problem.  The mappings are those of the CATLASS block schedulers.

Names: R, C and Kt are the tiles along M, N and K; T = R*C blocks; core c of P takes the tasks c, c + P, c + 2P, ... unless said
otherwise.  A swizzle whose parameters cannot be right raises ValueError when it is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index as as_int
from typing import TYPE_CHECKING, ClassVar

from .layout import (
    P_CUT_M,
    P_CUT_N,
    P_DIRECTION,
    P_LOOPS,
    P_NORMAL,
    P_OFFSET,
    P_SCHEDULER,
    P_SPLIT,
    SchedulerId,
)

if TYPE_CHECKING:
    from .scheduler import Scheduler

__all__ = [
    "AswtSwizzle",
    "ColumnBlockSwizzle",
    "DynamicIdentitySwizzle",
    "Geometry",
    "IdentitySwizzle",
    "L1FullLoadSwizzle",
    "RowMajor",
    "SingleCoreSplitKSwizzle",
    "SplitKSwizzle",
    "StreamKSwizzle",
    "Swizzle",
    "TailSplitKSwizzle",
    "split_factor",
]

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class Geometry:
    """A problem cut into tiles, in elements, and the cores it is dealt out to."""

    problem: tuple[int, int, int]
    tile: tuple[int, int, int]
    cores: int = 1
    batch: int = 1

    @property
    def grid(self) -> tuple[int, int, int]:
        """Tiles along M, N and K."""
        (m, n, k), (tm, tn, tk) = self.problem, self.tile
        return -(-m // tm), -(-n // tn), -(-k // tk)

    @property
    def blocks(self) -> int:
        """Blocks of one batch."""
        return self.grid[0] * self.grid[1]


def _checked_offset(offset: int, direction: int) -> tuple[int, int]:
    """offset and direction as ints that fit the vectors; ValueError if they mean nothing."""
    offset, direction = as_int(offset), as_int(direction)
    if offset < 1:
        raise ValueError(f"swizzle offset must be at least 1 (rows or columns of a band), got {offset}")
    if direction not in (0, 1):
        raise ValueError(f"swizzle direction must be 0 (bands of rows) or 1 (bands of columns), got {direction}")
    return min(offset, _INT64_MAX), direction


@dataclass(frozen=True)
class Swizzle:
    """What all block schedulers have in common."""

    id: ClassVar[SchedulerId]
    splits_k: ClassVar[bool] = False  # tasks that cover part of K
    cuts_blocks: ClassVar[bool] = False  # tasks that cover part of a block's rows or columns

    def bind(
        self,
        problem: tuple[int, int, int] | None = None,
        tile: tuple[int, ...] | None = None,
        loops: tuple[int, int] | None = None,
        cores: int | None = None,
        batch: int = 1,
    ) -> Scheduler:
        """A scheduler for problem (M, N, K) in tiles (m, n[, k]); without a problem it waits for its `update`.

        `loops` may give the block grid (R, C) where it is known already; it must be the one the problem and the tile make.
        Without a tile extent for k, K is one tile.  `cores` defaults to 1.
        """
        from .scheduler import Scheduler

        return Scheduler(self, problem, tile, loops, cores, batch)

    def fields(self, geometry: Geometry) -> dict[int, int]:
        """Values for the P vector."""
        return {P_SCHEDULER: self.id, P_LOOPS: geometry.blocks}

    def __str__(self) -> str:
        return f"{type(self).__name__}()"


@dataclass(frozen=True)
class _Banded(Swizzle):
    offset: int = 1
    direction: int = 0

    def __post_init__(self) -> None:
        offset, direction = _checked_offset(self.offset, self.direction)
        object.__setattr__(self, "offset", offset)
        object.__setattr__(self, "direction", direction)

    def fields(self, geometry: Geometry) -> dict[int, int]:
        return super().fields(geometry) | {P_OFFSET: self.offset, P_DIRECTION: self.direction}

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.offset}, {self.direction})"


@dataclass(frozen=True)
class RowMajor(Swizzle):
    """Blocks row by row, every row from the left: the baseline the other orders are compared with."""

    id: ClassVar[SchedulerId] = SchedulerId.ROW_MAJOR


@dataclass(frozen=True)
class IdentitySwizzle(_Banded):
    """Bands of `offset` rows (direction 0, "Zn") or columns (1, "Nz"), walked across the band first; odd bands run back."""

    id: ClassVar[SchedulerId] = SchedulerId.IDENTITY


class DynamicIdentitySwizzle(IdentitySwizzle):
    """The identity swizzle with parameters set at run time; schedulers bound before follow."""

    def set_swizzle_params(self, offset: int = 1, direction: int = 0) -> DynamicIdentitySwizzle:
        """Change offset and direction, here and in every scheduler bound to this object; returns the object."""
        offset, direction = _checked_offset(offset, direction)
        object.__setattr__(self, "offset", offset)
        object.__setattr__(self, "direction", direction)
        return self

    __hash__ = None  # type: ignore[assignment]  # its value changes


def split_factor(problem: tuple[int, int, int], tile: tuple[int, int, int], cores: int) -> int:
    """Slices of K that fill the cores: the rule of CATLASS's split-K examples, clamped to [1, Kt].

    A base of T blocks is multiplied until another slice would leave the last wave emptier than T whole blocks do, up to a cap
    that grows with K; K above 8192 (32768) takes at least 2 (4) slices to bound the length of the sums.
    """
    geometry = Geometry(problem, tile)
    base, kt, k = geometry.blocks, geometry.grid[2], problem[2]
    if base == 0 or kt == 0:
        return 1
    cap = 2 if k <= 1024 else 4 if k <= 2048 else 8 if k <= 4096 else 16
    factor = max(1, min(cores // base, cap))
    if base < cores:
        while factor + 1 <= cap and -(-base * factor // cores) >= -(-base // cores) * factor:
            factor += 1
    factor = min(factor, kt)
    least = 4 if k > 32768 else 2 if k > 8192 else 1
    return max(1, min(max(factor, least), kt))


@dataclass(frozen=True)
class SplitKSwizzle(_Banded):
    """K cut into `factor` slices, slices outermost; every slice walks all blocks in identity order.

    factor=None follows :func:`split_factor`; any factor is clamped to [1, Kt].  The first Kt mod factor slices are one K tile
    longer.
    """

    id: ClassVar[SchedulerId] = SchedulerId.SPLIT_K
    splits_k: ClassVar[bool] = True
    factor: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.factor is not None and as_int(self.factor) < 1:
            raise ValueError(f"split-K factor must be at least 1 slice of K, got {self.factor}")

    def slices(self, geometry: Geometry) -> int:
        """The factor in use."""
        wanted = self.factor
        if wanted is None:
            wanted = split_factor(geometry.problem, geometry.tile, geometry.cores)
        return max(1, min(wanted, geometry.grid[2]))

    def fields(self, geometry: Geometry) -> dict[int, int]:
        factor = self.slices(geometry)
        return super().fields(geometry) | {P_SPLIT: factor, P_LOOPS: geometry.blocks * factor}


@dataclass(frozen=True)
class TailSplitKSwizzle(_Banded):
    """Whole blocks in complete waves; the blocks of the last, partial wave cut along K into P div (T mod P) slices each."""

    id: ClassVar[SchedulerId] = SchedulerId.TAIL_SPLIT_K
    splits_k: ClassVar[bool] = True

    def fields(self, geometry: Geometry) -> dict[int, int]:
        tail = geometry.blocks % geometry.cores
        factor = max(1, min(geometry.cores // tail, geometry.grid[2])) if tail else 1
        normal = geometry.blocks - tail
        return super().fields(geometry) | {P_SPLIT: factor, P_NORMAL: normal, P_LOOPS: normal + tail * factor}


@dataclass(frozen=True)
class StreamKSwizzle(_Banded):
    """Complete waves of whole blocks; the K tiles of the T mod P blocks left over are dealt out evenly to all cores.

    A core's share may cross from one block into the next: such a task has two pieces.  Partial results of a block come from
    consecutive cores and are summed in their order (:meth:`~fastgemm.scheduler.Scheduler.first_core`).
    """

    id: ClassVar[SchedulerId] = SchedulerId.STREAM_K
    splits_k: ClassVar[bool] = True

    def fields(self, geometry: Geometry) -> dict[int, int]:
        streamed = geometry.blocks % geometry.cores
        normal = geometry.blocks - streamed
        # an empty K has no tiles to deal out, but its blocks are stored as zeros
        shares = min(streamed * geometry.grid[2], geometry.cores) if geometry.grid[2] else streamed
        return super().fields(geometry) | {P_NORMAL: normal, P_LOOPS: normal + shares}


@dataclass(frozen=True)
class SingleCoreSplitKSwizzle(_Banded):
    """A contiguous run of blocks per core, K outermost: every block is visited once per K tile and accumulates in the result.

    The order snakes both along and across its bands, so consecutive steps always share a row or a column of blocks.  Batches
    run one after the other.
    """

    id: ClassVar[SchedulerId] = SchedulerId.SINGLE_CORE_SPLIT_K
    splits_k: ClassVar[bool] = True
    offset: int = 20

    def fields(self, geometry: Geometry) -> dict[int, int]:
        return super().fields(geometry) | {P_LOOPS: geometry.blocks * max(1, geometry.grid[2])}


@dataclass(frozen=True)
class L1FullLoadSwizzle(_Banded):
    """Identity geometry, ranked so that every core walks a contiguous run and keeps its panel of A.

    Batches run one after the other.
    """

    id: ClassVar[SchedulerId] = SchedulerId.L1_FULL_LOAD


@dataclass(frozen=True)
class ColumnBlockSwizzle(Swizzle):
    """N dealt out evenly by columns: whole block columns, then a share of the columns left over to each core; m varies fastest."""

    id: ClassVar[SchedulerId] = SchedulerId.COLUMN_BLOCK
    cuts_blocks: ClassVar[bool] = True

    def fields(self, geometry: Geometry) -> dict[int, int]:
        step = geometry.cores * geometry.tile[1]
        full, rest = divmod(geometry.problem[1], step)
        loops = geometry.grid[0] * (full * geometry.cores + min(rest, geometry.cores))
        return super().fields(geometry) | {P_LOOPS: loops}


@dataclass(frozen=True)
class AswtSwizzle(Swizzle):
    """Adaptive sliding window: bands of `window` rows, the last one absorbing the remainder; odd bands run back.

    tail_split=True cuts the blocks of the last round into pieces (by rows and columns) for the cores that would idle.  The
    counts come from the edge tile and hold for every block of the round.  The start core of a problem can be moved
    (`stream.encode(start_core=)`), as grouped problems do: the next one starts at :func:`next_start_core`.
    """

    id: ClassVar[SchedulerId] = SchedulerId.ASWT
    window: int = 4
    tail_split: bool = False

    def __post_init__(self) -> None:
        if as_int(self.window) < 1:
            raise ValueError(f"the sliding window must be at least 1 row of blocks high, got {self.window}")

    @property
    def cuts_blocks(self) -> bool:  # type: ignore[override]
        """Whether tasks may cover part of a block."""
        return self.tail_split

    def cuts(self, geometry: Geometry) -> tuple[int, int]:
        """(row, column) pieces of a block of the last round."""
        total = geometry.blocks * geometry.batch
        remain = geometry.cores // (total - (-(-total // geometry.cores) - 1) * geometry.cores) if total else 1
        if not self.tail_split or remain <= 1:
            return 1, 1
        (m, n, _), (tm, tn, _), (rows, cols, _) = geometry.problem, geometry.tile, geometry.grid
        edge_m, edge_n = m - (rows - 1) * tm, n - (cols - 1) * tn
        cut_m, cut_n = min(edge_m, remain), min(edge_n, remain)
        while cut_m * cut_n > remain:
            if cut_m >= cut_n:
                cut_m -= 1
            else:
                cut_n -= 1
        # recount, so that no piece of the edge tile is empty
        return -(-edge_m // -(-edge_m // cut_m)), -(-edge_n // -(-edge_n // cut_n))

    def fields(self, geometry: Geometry) -> dict[int, int]:
        cut_m, cut_n = self.cuts(geometry)
        return super().fields(geometry) | {P_OFFSET: self.window, P_CUT_M: cut_m, P_CUT_N: cut_n}

    def __str__(self) -> str:
        return f"AswtSwizzle({self.window}{', tail_split=True' if self.tail_split else ''})"


def next_start_core(blocks: int, cores: int, start_core: int = 0) -> int:
    """The core that takes the first task of the next problem when this one has `blocks` tasks and began at start_core."""
    return (start_core + blocks) % cores
