"""The traffic law: how many tile loads of a swizzled schedule miss the last-level cache, and the band it recommends.

Model: cores in lock step take consecutive blocks, and every block loads a panel of A (tm x K) and one of B (K x tn).  A band of
s rows (or columns) of blocks is walked with its panels resident, so the panels of the other operand are read once per band.
Hits rise with s until the band no longer fits the cache, then fall off a cliff: take the largest band that fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from .swizzle import IdentitySwizzle, RowMajor, Swizzle

__all__ = ["auto_swizzle", "band_bytes", "predicted_miss", "size_text"]


def size_text(count: float) -> str:
    """Bytes for people."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"


def band_bytes(problem: Sequence[int], tile: Sequence[int], itemsize: float, offset: int, direction: int) -> float:
    """Bytes of the panels a band keeps: offset rows of A tiles (direction 0) or columns of B tiles (1), all of K."""
    extent, step = problem[direction], tile[direction]
    return min(offset * step, extent) * problem[2] * itemsize


def auto_swizzle(
    problem: Sequence[int],
    tile: Sequence[int],
    itemsize: float,
    llc_bytes: int,
    *,
    share: float = 0.75,
    rule: str = "note",
) -> tuple[IdentitySwizzle, str]:
    """The identity swizzle the traffic law picks for problem (M, N, K) and tile (m, n[, k]), and why.

    Direction 0 (bands of rows) if M >= N, else 1: the rule of the vendor's note.  rule="code" is that of the vendor's examples,
    which give a tie M = N direction 1.  The offset is the largest whose band fills at most `share` of the cache.
    """
    m, n, k = problem
    if rule not in ("note", "code"):
        raise ValueError(f"rule must be 'note' (a tie M = N takes direction 0) or 'code' (direction 1), got {rule!r}")
    direction = 0 if m > n or (m == n and rule == "note") else 1
    step, extent = tile[direction], problem[direction]
    strips = max(1, -(-extent // step))
    strip = step * k * itemsize
    offset = strips if strip == 0 else int(max(1, min(strips, share * llc_bytes // strip)))
    axis, operand = ("rows", "A") if direction == 0 else ("columns", "B")
    order = f"M = {m} {'>' if m > n else '<' if m < n else '='} N = {n}"
    used = band_bytes(problem, tile, itemsize, offset, direction)
    limit = f"{share:.0%} of the {size_text(llc_bytes)} cache"
    reason = f"direction {direction} ({order}: bands of {axis}); offset {offset}: "
    if offset >= strips:
        reason += f"all {strips} {axis} of {operand} tiles take {size_text(used)}, within {limit}"
    elif strip > share * llc_bytes:
        reason += f"one {axis[:-1]} of {operand} tiles alone takes {size_text(used)}, over {limit}"
    else:
        reason += f"the largest band within {limit}, {size_text(used)} of {operand}"
    return IdentitySwizzle(offset, direction), reason


def predicted_miss(
    problem: Sequence[int], tile: Sequence[int], itemsize: float, swizzle: Swizzle, cores: int, llc_bytes: int
) -> tuple[float | None, str]:
    """Share of the tile loads that miss the cache, by the closed form, and a remark; None where the law says nothing.

    Before the cliff, Zn (bands of s rows): tn/(s(tm+tn)) (1-rho) + tm/(C(tm+tn)); Nz the same with the axes exchanged; rho is the
    part of the long axis still cached when the snake turns, times (bands-1)/bands.  Row-major, per wave of P cores:
    (rows tm + columns tn)/(P(tm+tn)), or Zn with s = 1 and rho = 0 while a wave's panels fit.
    Everything fits: only the first touch of each tile misses.
    """
    (m, n, k), (tm, tn) = problem, tile[:2]
    rows, cols = -(-m // tm), -(-n // tn)
    if not (m and n and k):
        return None, "nothing is loaded"
    first_touch = (m + n) / (cols * m + rows * n)  # A is touched once per block column, B once per block row
    if (m * k + k * n) * itemsize <= llc_bytes:
        return first_touch, "both operands fit the cache: each tile misses once, whatever the order"
    if isinstance(swizzle, RowMajor):
        if (min(cores, cols) * tn + tm) * k * itemsize <= llc_bytes:  # a row's panel of A stays from wave to wave
            return (tn + tm / cols) / (
                tm + tn
            ), "row-major: a row of blocks keeps its panel of A, B streams once per row"
        touched_rows = max(1.0, cores / cols)
        return (touched_rows * tm + min(cores, cols) * tn) / (
            cores * (tm + tn)
        ), "row-major: every wave streams its panels anew"
    if not isinstance(swizzle, IdentitySwizzle):
        return None, "the law covers identity and row-major orders only"
    across, along, near, far = (rows, cols, tm, tn) if swizzle.direction == 0 else (cols, rows, tn, tm)
    offset = min(swizzle.offset, across)
    kept = offset * near * k * itemsize
    streamed = far * k * itemsize
    if kept + streamed > llc_bytes:
        return (
            None,
            f"beyond the cliff: a band of {size_text(kept)} and a panel of {size_text(streamed)} exceed the cache",
        )
    bands = -(-across // offset)
    # at a turn the cache holds two bands and the panels of a wave; what is left are streamed panels read again at once
    left = llc_bytes - 2 * kept - -(-cores // offset) * streamed
    turn = min(1.0, max(0.0, left) / (along * streamed)) * (bands - 1) / bands
    miss = far / (offset * (tm + tn)) * (1 - turn) + near / (along * (tm + tn))
    remark = f"{bands} bands; the snake saves {turn:.0%} of the streamed panels"
    if bands == 1:
        remark = "one band: its panels stay in the cache, the others stream once"
    return max(first_touch, min(1.0, miss)), remark
