"""Architecture profiles: buffer sizes, core counts and default tiles, as data.

``ascend_a2`` and ``ascend_950`` hold the vendor's figures.  ``host`` is made from the caches of this machine: the staging
buffer (L1) is a core's share of the last-level cache but at least its L2, because B is packed there and A is read in place;
operand panels (L0A, L0B) stream from the L2; the accumulator of a block (L0C) is the result itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import index as as_int
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

__all__ = ["Arch", "Caches", "Tile", "accumulator_size", "arch", "detect_caches", "evened", "item_size"]

_KIB, _MIB = 1 << 10, 1 << 20

# bytes per element; a dtype is named as numpy and ml_dtypes name it
_SIZES = {"int4": 0.5, "bfloat16": 2, "bool": 1, "complex64": 8, "complex128": 16}


def _extents(name: str, values: Sequence[int]) -> tuple[int, int, int]:
    extents = tuple(as_int(value) for value in values)
    if len(extents) != 3 or min(extents) < 1:
        raise ValueError(f"{name} must be three positive extents (m, n, k), got {values!r}")
    return extents


@dataclass(frozen=True)
class Tile:
    """The block staged at once, l1 = (m, n, k), and the slice of it fed to the matrix unit, l0 = (m, n, k), in elements.

    Without l0 the slice has the block's m and n and a K extent that fits the architecture.
    """

    l1: tuple[int, int, int]
    l0: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "l1", _extents("Tile l1", self.l1))
        if self.l0 is not None:
            object.__setattr__(self, "l0", _extents("Tile l0", self.l0))

    @classmethod
    def of(cls, value: Tile | Sequence[int]) -> Tile:
        """A Tile from a Tile or from (m, n, k)."""
        return value if isinstance(value, Tile) else cls(tuple(value))  # type: ignore[arg-type]


def item_size(dtype: str) -> float:
    """Bytes of an element of the named dtype ("int4" has half a byte)."""
    if dtype in _SIZES:
        return _SIZES[dtype]
    import numpy as np

    return np.dtype(dtype).itemsize


def dtype_name(dtype: object) -> str:
    """The dtype's full name: "f4", np.float32 and np.dtype("float32") are all "float32"."""
    if isinstance(dtype, str) and dtype in _SIZES:
        return dtype
    import numpy as np

    return str(np.dtype(cast("Any", dtype)).name)


def accumulator_size(dtype: str) -> int:
    """Bytes of an accumulator: float32 or int32 for narrow types, the type itself for wider ones."""
    return max(4, int(item_size(dtype)))


@dataclass(frozen=True)
class Arch:
    """One architecture.  Sizes are bytes; l1, l0a, l0b and l0c belong to one core, the last-level cache is shared by all."""

    name: str
    l1: int
    l0a: int
    l0b: int
    l0c: int
    llc_bytes: int
    cores: int
    tiles: Mapping[str, Tile] = field(default_factory=dict, hash=False)  # compared, but a mapping has no hash
    events: int | None = None  # event ids of a queue pair; the slots of A and B share them
    align: int = 1  # bytes every tile extent must be a multiple of
    host: bool = False  # A may be read in place
    swizzle_share: float = 0.75  # part of the last-level cache a swizzle band may fill (`fastgemm.traffic`)
    l1d: int = 0  # host only
    l2: int = 0  # host only

    def default_tile(self, dtype: object, problem: Sequence[int] | None = None, stages: int = 2) -> Tile:
        """The profile's tile for a dtype, its K extent halved until `stages` blocks of A and B fit the staging buffer.

        On a host the tile shrinks to a problem (M, N, K) that is smaller, and K is cut into equal tiles (1000 into 3 of 336,
        not 448 + 448 + 104).  A vendor's tile stays as it is.
        """
        name = dtype_name(dtype)
        if name not in self.tiles:
            raise ValueError(
                f"{self.name} has no default tile for {name}; pass tile=, or use one of {', '.join(sorted(self.tiles))}"
            )
        tile = self.tiles[name]
        m, n, k = tile.l1
        while k > 16 and stages * (m + n) * k * item_size(name) > self.l1:
            k = max(16, k // 2)
        if self.host and problem is not None:
            m, n, k = (evened(extent, step) for extent, step in zip(problem, (m, n, k), strict=True))
        return Tile((m, n, k), (m, n, min(tile.l0[2], k)) if tile.l0 else None)

    def slice_k(self, tile: Tile, dtype: object, stages: int = 2) -> int:
        """K extent of the L0 slice: the tile's own, or the largest aligned one that fits `stages` slots of L0A and L0B."""
        if tile.l0 is not None:
            return tile.l0[2]
        size = item_size(dtype_name(dtype))
        m, n, k = tile.l1
        step = max(1, int(self.align / size))
        fit = int(min(self.l0a / (stages * m * size), self.l0b / (stages * n * size)))
        return min(k, max(step, fit // step * step))


def evened(extent: int, step: int, multiple: int = 8) -> int:
    """The tile extent nearest below or at `step` that cuts `extent` into equal tiles, a multiple of `multiple`."""
    if extent <= step:
        return max(1, extent)
    count = -(-extent // step)
    return min(step, -(-extent // (count * multiple)) * multiple)


def _vendor_tiles(float32: Tile) -> Mapping[str, Tile]:
    half = Tile((128, 256, 256), (128, 256, 64))
    byte = Tile((128, 256, 512), (128, 256, 128))
    # the vendor has no 64-bit types; these fit the buffers, so that every dtype of the host can be traced
    wide, widest = Tile((128, 128, 128), (128, 128, 32)), Tile((64, 64, 128), (64, 64, 32))
    return MappingProxyType(
        {
            **dict.fromkeys(["float16", "bfloat16", "int16", "uint16"], half),
            **dict.fromkeys(["float32", "int32", "uint32"], float32),
            **dict.fromkeys(["int8", "uint8", "bool"], byte),
            "int4": Tile((128, 256, 1024), (128, 256, 256)),
            **dict.fromkeys(["float64", "complex64", "int64", "uint64"], wide),
            "complex128": widest,
        }
    )


_ASCEND_A2 = Arch(
    name="ascend_a2",
    l1=512 * _KIB,
    l0a=64 * _KIB,
    l0b=64 * _KIB,
    l0c=128 * _KIB,
    llc_bytes=192 * _MIB,
    cores=24,  # 910B2; 20 cores and 96 MiB on the 910B4
    tiles=_vendor_tiles(Tile((128, 128, 256), (128, 128, 64))),
    events=8,
    align=32,
)
_ASCEND_950 = Arch(
    name="ascend_950",
    l1=512 * _KIB,
    l0a=64 * _KIB,
    l0b=64 * _KIB,
    l0c=256 * _KIB,
    llc_bytes=128 * _MIB,
    cores=32,
    tiles=_vendor_tiles(Tile((256, 256, 128), (256, 256, 32))),
    events=8,
    align=32,
)


@dataclass(frozen=True)
class Caches:
    """Data caches of one core: sizes in bytes, and how many CPUs share the last level."""

    l1d: int
    l2: int
    llc: int
    llc_shared_by: int
    source: str


def _cpu_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _list_length(text: str) -> int:
    """CPUs in a list such as "0-3,8-11"."""
    total = 0
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def _bytes(text: str) -> int:
    """Bytes of "1024K", "32M" or a plain number."""
    text = text.strip()
    scale = {"K": _KIB, "M": _MIB, "G": _KIB * _MIB}.get(text[-1:].upper(), 1)
    return int(text.rstrip("KMGkmg")) * scale


def _linux_caches(root: Path) -> Caches:
    """The caches of the first CPU below root that describes any."""
    for cpu in sorted(root.glob("cpu[0-9]*/cache")):
        levels: dict[int, tuple[int, int]] = {}
        for entry in sorted(cpu.glob("index*")):
            if (entry / "type").read_text().strip() == "Instruction":
                continue
            shared = (entry / "shared_cpu_list").read_text()
            levels[int((entry / "level").read_text())] = (_bytes((entry / "size").read_text()), _list_length(shared))
        if 1 in levels:
            last = max(levels)
            l2, _ = levels.get(2, levels[last])
            return Caches(levels[1][0], l2, levels[last][0], max(1, levels[last][1]), "sysfs")
    raise OSError(f"no cache description below {root}")


def _mac_caches() -> Caches:
    """The caches of the performance cores."""
    names = ["hw.perflevel0.l1dcachesize", "hw.perflevel0.l2cachesize", "hw.perflevel0.cpusperl2", "hw.l3cachesize"]
    values = []
    for name in names:
        answer = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=False)
        values.append(int(answer.stdout) if answer.stdout.strip().isdigit() else 0)
    l1d, l2, per_l2, l3 = values
    if not (l1d and l2):
        raise OSError("sysctl does not tell the cache sizes")
    shared = max(1, per_l2)
    return Caches(l1d, l2 // shared, l3 or l2, _cpu_count() if l3 else shared, "sysctl")


def detect_caches(root: Path = Path("/sys/devices/system/cpu")) -> Caches:
    """The data caches of this machine; common sizes where the system does not tell."""
    try:
        if sys.platform.startswith("linux"):
            return _linux_caches(root)
        if sys.platform == "darwin":
            return _mac_caches()
    except (OSError, ValueError, subprocess.SubprocessError):
        pass
    return Caches(32 * _KIB, 512 * _KIB, 8 * _MIB, _cpu_count(), "default")


# Block extents on the host, (m, n, K bytes): large blocks are best, as A is read in place and B is packed once per block.
# Measured on Zen 4, float32 1024..4096: m 384..768, n = 384, k up to 1152.
HOST_BLOCK = (384, 384)
HOST_K_BYTES = 4608
HOST_DTYPES = (
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
)  # fmt: skip


def host_arch(caches: Caches, cpus: int) -> Arch:
    """The profile of a machine with these caches and so many usable CPUs."""
    l1 = max(caches.l2, caches.llc // (2 * min(caches.llc_shared_by, cpus)))
    tiles = {}
    for name in HOST_DTYPES:
        m, n = HOST_BLOCK
        k = int(HOST_K_BYTES / max(2.0, item_size(name)))  # bytes and halves: the K extent of halves suffices
        while 2 * (m + n) * k * item_size(name) > l1:
            m, n, k = (m, n, k // 2) if k > 64 else (m // 2, n // 2, k)
        tiles[name] = Tile((m, n, k))
    return Arch(
        name="host",
        l1=l1,
        l0a=max(caches.l2 // 2, 128 * _KIB),
        l0b=max(caches.l2 // 2, 128 * _KIB),
        l0c=max(l1, 4 * _MIB),
        llc_bytes=caches.llc,
        cores=cpus,
        tiles=MappingProxyType(tiles),
        host=True,
        l1d=caches.l1d,
        l2=caches.l2,
    )


@lru_cache(maxsize=1)
def _host() -> Arch:
    return host_arch(detect_caches(), _cpu_count())


ARCHES = ("host", "ascend_a2", "ascend_950")


def arch(name: str | Arch = "host") -> Arch:
    """The profile of that name: "host", "ascend_a2" or "ascend_950".  A profile passes through, so own ones can be used."""
    if isinstance(name, Arch):
        return name
    if name == "host":
        return _host()
    for profile in (_ASCEND_A2, _ASCEND_950):
        if name == profile.name:
            return profile
    raise ValueError(f"unknown architecture {name!r}; known are {', '.join(ARCHES)}, or pass an Arch")
