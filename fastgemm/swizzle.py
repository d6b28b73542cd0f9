"""Block schedulers ("swizzles"): which block of the result a core computes next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .layout import P_DIRECTION, P_LOOPS, P_OFFSET, P_SCHEDULER, SchedulerId

__all__ = ["DynamicIdentitySwizzle", "IdentitySwizzle", "RowMajor", "Swizzle"]


class Swizzle:
    """What the schedulers have in common."""

    id: ClassVar[SchedulerId]

    def fields(self, grid: tuple[int, int, int], problem: tuple[int, int, int], tile: tuple[int, int, int], cores: int, batch: int) -> dict[int, int]:
        return {P_SCHEDULER: self.id, P_LOOPS: grid[0] * grid[1]}


@dataclass(frozen=True)
class IdentitySwizzle(Swizzle):
    id: ClassVar[SchedulerId] = SchedulerId.IDENTITY
    offset: int = 1
    direction: int = 0

    def fields(self, grid, problem, tile, cores, batch):  # type: ignore[no-untyped-def]
        return {P_SCHEDULER: self.id, P_LOOPS: grid[0] * grid[1], P_OFFSET: self.offset, P_DIRECTION: self.direction}


class RowMajor(Swizzle):
    id: ClassVar[SchedulerId] = SchedulerId.ROW_MAJOR


DynamicIdentitySwizzle = IdentitySwizzle
