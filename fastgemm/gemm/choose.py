"""What a call runs: policy, swizzle, tile and cores, from shape, element size, options and threads alone (no numba here).

``policy="auto"`` is the host's own policy, HostPanels, whose blocking is chosen here; of the others the profile's tile, the swizzle
of the traffic law and the profile's cores are filled in where they are not given.

The numbers, and how they were found (docs/performance.md):

* ``kc``, the K slab: a group of eight rows of A, 8 x kc, stays in the L1 cache while B streams past, so kc is as long as that
  allows (C is then touched least often); and the packed slab kc x N must stay in the core's share of the last-level cache.  float32
  1152, float64 768, unless 9 MB / (N x item) is less.  At 4032: kc 576 95.9 % of the peak, 768 (12.4 MB) 93.6, 1152 (18.6 MB) 87.4.
* B is packed in column chunks: with one thread one chunk (each further one rereads A), 4608 columns at most to bound the buffer;
  with several threads two a thread at least, so that a core taken away by somebody else costs a chunk, not half the job.
* ``reproducible=True`` fixes kc by the element type alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arch import arch as profile
from ..options import Options
from ..policy import HostPanels, Policy
from ..swizzle import RowMajor, Swizzle
from ..traffic import auto_swizzle

__all__ = ["Blocking", "Schedule", "blocking", "schedule", "slab"]

# bytes of one row of a K slab, by the size of the real element
_SLAB_ROW = {4: 4608, 8: 6144}
_STRICT_ROW = {4: 2048, 8: 2816}
# the packed slab's share of the last-level cache: 9 of 32 MiB (other cores, other tenants and A want theirs)
CACHE_SHARE = 9 / 32
_COLUMNS = 4608
# Few rows of A pass over a packed slab once or twice: it is used while the L2 cache still holds it (2 x 4096 x 4096: 1.55 times
# numpy with 1 MiB, 1.30 with 9).
_FEW_ROWS, _FEW_ROWS_SLAB = 64, 1 << 20
_PANEL = 48
# rows of one multiplication, so that an interrupted product ends soon
_ROWS = 4096


@dataclass(frozen=True)
class Blocking:
    """Tile and cores of the host's own policy."""

    tile: tuple[int, int, int]
    cores: int


def _even(extent: int, most: int, step: int) -> int:
    """The part size that cuts ``extent`` into equal parts of at most ``most``, rounded up to ``step``."""
    parts = -(-extent // max(step, most))
    return -(-extent // (parts * step)) * step if parts > 1 else extent


def slab(m: int, k: int, n: int, item: int, real: int, cache: int, strict: bool) -> int:
    """The K slab for B of n columns (the ones packed at the same time) and m rows of A."""
    if strict:
        return _even(k, _STRICT_ROW[real] // item, 8)
    room = cache * CACHE_SHARE if m > _FEW_ROWS else _FEW_ROWS_SLAB
    limit = min(_SLAB_ROW[real] // item, int(room) // (max(1, n) * item))
    return _even(k, max(64, limit), 8)


def blocking(problem: tuple[int, int, int], item: int, real: int, threads: int, cache: int, strict: bool) -> Blocking:
    """Tile and (virtual) cores for a product whose B is packed; ``cache`` is the last-level cache in bytes."""
    m, n, k = problem
    chunks = max(-(-n // _COLUMNS), 2 * threads if threads > 1 else 1)
    # One thread gets whole panels; several get equal chunks, as 288 + 288 + 288 + 160 of 1024 would leave one waiting.
    step = _PANEL if threads == 1 else max(1, 64 // item)
    width = _even(n, max(_PANEL, -(-n // chunks)), step)
    kc = slab(m, k, min(n, _COLUMNS), item, real, cache, strict)
    cores = -(-n // width) if threads > 1 else 1
    return Blocking((_even(m, _ROWS, 8), width, kc), cores)


@dataclass(frozen=True)
class Schedule:
    """A policy with everything it needs to run; ``why`` says how swizzle and tile were chosen."""

    policy: Policy
    swizzle: Swizzle
    tile: tuple[int, int, int]
    cores: int
    host: bool
    why: str


def schedule(problem: tuple[int, int, int], dtype: np.dtype, options: Options, threads: int) -> Schedule:
    """The policy, swizzle, tile and cores that ``options`` mean for a problem (M, N, K).

    Raises ValueError where a tile does not fit the policy's buffers on the architecture.
    """
    arch = profile(options.arch)
    policy = HostPanels() if isinstance(options.policy, str) else options.policy
    if isinstance(policy, HostPanels) and arch.host:
        return _own(problem, dtype, options, policy, threads, arch.llc_bytes)
    tile = options.tile or arch.default_tile(dtype, problem, policy.slots().l1)
    policy.validate(arch, tile, dtype, options.reproducible)
    swizzle, why = options.swizzle, "swizzle as given"
    if isinstance(swizzle, str):
        swizzle, why = auto_swizzle(problem, tile.l1, dtype.itemsize, arch.llc_bytes, share=arch.swizzle_share)
    cores = options.cores or (threads if arch.host else arch.cores)
    return Schedule(policy, swizzle, tile.l1, cores, arch.host, why)


def _own(
    problem: tuple[int, int, int], dtype: np.dtype, options: Options, policy: HostPanels, threads: int, cache: int
) -> Schedule:
    real = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    blocks = blocking(problem, dtype.itemsize, max(4, real), policy.chunks or threads, cache, options.reproducible)
    tile = blocks.tile if options.tile is None else options.tile.l1
    tile = (tile[0], tile[1], policy.kc or tile[2])
    swizzle = RowMajor() if isinstance(options.swizzle, str) else options.swizzle
    why = "row-major: each core keeps its block columns, and their packed slab"
    return Schedule(policy, swizzle, tile, options.cores or blocks.cores, True, why)
