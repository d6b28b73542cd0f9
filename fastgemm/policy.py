"""Dispatch policies: in which order a core stages tiles, multiplies, writes back and calls back.

The first four are the dispatch policies of CATLASS; HostPanels is what `policy="auto"` runs on this host.  A policy is checked
twice: its own parameters when it is made, its buffers against a tile, a dtype and an architecture in :meth:`Policy.validate`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, fields
from operator import index as as_int
from typing import TYPE_CHECKING, Any, ClassVar

from .arch import Arch, Tile, accumulator_size, dtype_name, item_size
from .layout import (
    P_CALLBACK,
    P_POLICY,
    P_PRELOAD,
    P_SHUFFLE,
    P_STAGE_A,
    P_STAGE_B,
    P_STAGES,
    PolicyId,
    Realised,
)

if TYPE_CHECKING:
    BlockCallback = Callable[[int, int, int, int, int], Any]

__all__ = ["HostPanels", "Pingpong", "Policy", "Preload", "PreloadAsync", "PreloadAsyncWithCallback"]


def _is_integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint", "bool"))


@dataclass(frozen=True)
class _Staged:
    """How much of a buffer a policy uses: stages of A tiles, of B tiles."""

    l1: int
    l0a: int
    l0b: int
    l0c: int


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What the policies have in common.

    staging="auto" lets a host read A in place and pack a B tile only when no slot holds it; "copy" packs both tiles of every
    load, as the accelerator does.
    """

    id: ClassVar[PolicyId]
    staging: str = "auto"

    def __str__(self) -> str:
        """The constructor call, with the parameters that are not the defaults."""
        given = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given)})"

    def _check_staging(self) -> None:
        if self.staging not in ("auto", "copy"):
            raise ValueError(f"staging must be 'auto' or 'copy', got {self.staging!r}")

    def _check_counts(self, **least: int) -> None:
        """Fields that must be integers of at least so much."""
        for name, bound in least.items():
            value = as_int(getattr(self, name))
            if value < bound:
                raise ValueError(f"{type(self).__name__}: {name} must be at least {bound}, got {value}")
            object.__setattr__(self, name, value)

    def _take_flag(self, uint_flag: bool | None) -> None:
        """`uint_flag` is the spelling of the vendor's documents for the unit flag."""
        if uint_flag is not None:
            object.__setattr__(self, "unit_flag", uint_flag)

    def slots(self) -> _Staged:
        """Stages of the L1, L0A, L0B and L0C buffers."""
        return _Staged(2, 2, 2, 1)

    def unit_flag_for(self, dtype: object) -> bool:
        """Whether the unit flag is set: None means on for floating point, off for integers."""
        flag = getattr(self, "unit_flag", False)
        return not _is_integer(dtype_name(dtype)) if flag is None else bool(flag)

    def shuffles(self, reproducible: bool = False) -> bool:
        """Whether K starts at another tile on every core: None means on, but off under reproducible=True."""
        shuffle = getattr(self, "shuffle_k", False)
        if shuffle and reproducible:
            raise ValueError(
                f"{type(self).__name__}(shuffle_k=True) sums K in an order that depends on the core, which "
                "reproducible=True rules out; "
                "leave shuffle_k at None"
            )
        return not reproducible if shuffle is None else bool(shuffle)

    def stages_a(self, arch: Arch) -> bool:
        """Whether A tiles are copied into slots on this architecture."""
        return not (arch.host and self.staging == "auto")

    def validate(self, arch: Arch, tile: Tile, dtype: object, reproducible: bool = False) -> None:
        """Raise ValueError unless the tile fits the policy's buffers on the architecture; the message holds the numbers."""
        name, size, slots = dtype_name(dtype), item_size(dtype_name(dtype)), self.slots()
        (m, n, k), who = tile.l1, type(self).__name__
        m0, n0, k0 = tile.l0 or (m, n, arch.slice_k(tile, dtype, max(slots.l0a, slots.l0b)))
        self.shuffles(reproducible)
        if (m0, n0) != (m, n):
            raise ValueError(f"{who}: the l0 tile must have the l1 tile's m and n, got l0 {(m0, n0)} and l1 {(m, n)}")
        if k0 > k:
            raise ValueError(f"{who}: the l0 tile's k = {k0} is larger than the l1 tile's k = {k}")
        for axis, extent in zip("mnk", tile.l1, strict=True):
            if extent * size % arch.align:
                raise ValueError(
                    f"{who}: tile {axis} = {extent} is {extent * size:g} bytes of {name}; {arch.name} takes multiples of "
                    f"{arch.align} bytes"
                )
        a = m * k * size if self.stages_a(arch) else 0
        tiles = f"{m}x{k} + {k}x{n}" if a else f"{k}x{n}"
        self._fits("L1", arch, arch.l1, slots.l1 * (a + n * k * size), f"{slots.l1} stages of {tiles} {name}")
        self._fits("L0A", arch, arch.l0a, slots.l0a * m * k0 * size, f"{slots.l0a} stages of {m}x{k0} {name}")
        self._fits("L0B", arch, arch.l0b, slots.l0b * k0 * n * size, f"{slots.l0b} stages of {k0}x{n} {name}")
        accumulator = accumulator_size(name)
        what = f"{slots.l0c} stages of {m}x{n} accumulators of {accumulator} bytes"
        self._fits("L0C", arch, arch.l0c, slots.l0c * m * n * accumulator, what)
        if arch.events is not None:
            for buffer, used in (("L1", 2 * slots.l1), ("L0", slots.l0a + slots.l0b)):
                if used > arch.events:
                    raise ValueError(
                        f"{who}: the {buffer} slots of A and B take {used} event ids; {arch.name} has {arch.events}"
                    )
        if getattr(self, "unit_flag", None) and _is_integer(name):
            raise ValueError(
                f"{who}: the unit flag does not exist for {name} operands; pass unit_flag=False or leave it at None"
            )

    def _fits(self, buffer: str, arch: Arch, room: int, need: float, what: str) -> None:
        if need > room:
            raise ValueError(
                f"{type(self).__name__}: {what} take {need:.0f} bytes; {buffer} of {arch.name} has {room}. "
                "Use a smaller tile or fewer stages"
            )

    def fields(self, *, host: bool, reproducible: bool) -> dict[int, int]:
        """Values for the P vector."""
        in_place = host and self.staging == "auto"
        return {
            P_POLICY: self.id,
            P_STAGES: self.slots().l1,
            P_PRELOAD: getattr(self, "preload_stages", 1),
            P_SHUFFLE: self.shuffles(reproducible),
            P_CALLBACK: self.id == PolicyId.PRELOAD_ASYNC_WITH_CALLBACK,
            P_STAGE_A: Realised.IN_PLACE if in_place else Realised.COPIED,
            P_STAGE_B: Realised.CACHED if in_place else Realised.COPIED,
        }


@dataclass(frozen=True)
class Pingpong(Policy):
    """The block's next K tile is loaded before each multiplication; a block's first tile only when the block begins."""

    id: ClassVar[PolicyId] = PolicyId.PINGPONG
    stages: int = 2
    unit_flag: bool | None = None
    uint_flag: InitVar[bool | None] = None

    def __post_init__(self, uint_flag: bool | None) -> None:
        self._take_flag(uint_flag)
        self._check_staging()
        self._check_counts(stages=2)

    def slots(self) -> _Staged:
        return _Staged(self.stages, self.stages, self.stages, 1)


@dataclass(frozen=True)
class Preload(Policy):
    """Pingpong that also loads the next block's (or batch's) first tile during this block's last multiplication, and shuffles K.

    With shuffle_k core c begins every block at K tile c mod Kt and wraps round, so that cores in step read different tiles.
    """

    id: ClassVar[PolicyId] = PolicyId.PRELOAD
    stages: int = 2
    unit_flag: bool | None = None
    shuffle_k: bool | None = None
    uint_flag: InitVar[bool | None] = None

    def __post_init__(self, uint_flag: bool | None) -> None:
        self._take_flag(uint_flag)
        self._check_staging()
        self._check_counts(stages=2)

    def slots(self) -> _Staged:
        return _Staged(self.stages, self.stages, self.stages, 1)


@dataclass(frozen=True)
class PreloadAsync(Policy):
    """Loads run `preload_stages` tiles ahead of the multiplications through a ring of `l1_stages` slots, across blocks."""

    id: ClassVar[PolicyId] = PolicyId.PRELOAD_ASYNC
    preload_stages: int = 1
    l1_stages: int = 2
    l0a_stages: int = 2
    l0b_stages: int = 2
    l0c_stages: int = 1
    unit_flag: bool | None = False
    shuffle_k: bool | None = None
    uint_flag: InitVar[bool | None] = None

    def __post_init__(self, uint_flag: bool | None) -> None:
        self._take_flag(uint_flag)
        self._check_staging()
        self._check_counts(preload_stages=1, l1_stages=1, l0a_stages=1, l0b_stages=1, l0c_stages=1)
        if self.preload_stages >= self.l1_stages:
            raise ValueError(
                f"{type(self).__name__}: preload_stages = {self.preload_stages} must be smaller than l1_stages = {self.l1_stages}: "
                "the tiles loaded ahead and the one being multiplied each need a slot"
            )

    def slots(self) -> _Staged:
        return _Staged(self.l1_stages, self.l0a_stages, self.l0b_stages, self.l0c_stages)


@dataclass(frozen=True)
class PreloadAsyncWithCallback(PreloadAsync):
    """PreloadAsync that calls `before` and `after` around the write-back of every block, in block order on each core.

    A callback is called as callback(core, task, group, m, n) with block coordinates in tiles; it may be a Python callable or a
    jitted function.
    """

    id: ClassVar[PolicyId] = PolicyId.PRELOAD_ASYNC_WITH_CALLBACK
    before: BlockCallback | None = None
    after: BlockCallback | None = None

    def __post_init__(self, uint_flag: bool | None) -> None:
        super().__post_init__(uint_flag)
        for name in ("before", "after"):
            callback = getattr(self, name)
            if callback is not None and not callable(callback):
                raise TypeError(
                    f"{type(self).__name__}: {name} must be callable as {name}(core, task, group, m, n), got {callback!r}"
                )


@dataclass(frozen=True)
class HostPanels(Policy):
    """K slab outermost: B is packed once per slab and block column, A is read in place, blocks accumulate in the result.

    kc is the K extent of a slab (None: the tile's), pack_b=False reads B in place too (None: decided by size), chunks is the
    number of parts the threads share out (None: decided by size).
    """

    id: ClassVar[PolicyId] = PolicyId.HOST_PANELS
    kc: int | None = None
    pack_b: bool | None = None
    chunks: int | None = None

    def __post_init__(self) -> None:
        self._check_staging()
        self._check_counts(**{name: 1 for name in ("kc", "chunks") if getattr(self, name) is not None})

    def stages_a(self, arch: Arch) -> bool:
        return False

    def slots(self) -> _Staged:
        return _Staged(1, 2, 2, 1)

    def fields(self, *, host: bool, reproducible: bool) -> dict[int, int]:
        fields = super().fields(host=host, reproducible=reproducible)
        fields[P_STAGE_A] = Realised.IN_PLACE
        fields[P_STAGE_B] = Realised.IN_PLACE if self.pack_b is False else Realised.CACHED
        return fields
