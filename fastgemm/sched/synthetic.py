"""Synthetic kernels: GEMM main loops from a kernel's command line, attention, random code. Deterministic, vectorised.

`gemm` writes the loop body a Gluon kernel of that configuration compiles to: matrix instructions in slices, the LDS loads of
each slice's fragments, the next iteration's first fragments, address arithmetic, fences and tensor loads.  The two kernels of
the article on the DAG mutation are ``gemm(256, 256, 256, waves=4, dtype="mxfp8", buffers=2, schedule="sliceNK")`` and
``gemm(256, 128, 128, waves=4, dtype="f16", buffers=3, schedule="single_warp")``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from .dag import Dag
from .machine import Machine
from .model import DagError
from .synthetic_attention import attention
from .synthetic_parts import MATRIX, Assembler, MatrixOp, lane_mask, matrix_op
from .synthetic_random import random

__all__ = ["MATRIX", "SCHEDULES", "GemmSchedule", "attention", "gemm", "parse", "random"]

LDS_BYTES = 320 * 1024


@dataclass(frozen=True)
class GemmSchedule:
    """How a kernel author cuts a K tile into slices and when each slice's fragments are loaded.

    ``m``, ``n``, ``k`` count the slices (``k=0``: one per matrix instruction's depth); ``nest`` names the loops over them from the
    outermost in.  ``preload``: the fragments of slice s + 1 are loaded before the matrix instructions of slice s, otherwise
    before their own slice.  ``carried``: the first slice's fragments were loaded by the previous iteration.  ``blocked``:
    matrix instructions go by 2 x 2 tiles, otherwise row by row.  ``recompute``: the descriptors of tensor loads are computed anew
    with bounds checks, otherwise advanced.
    """

    m: int = 1
    n: int = 1
    k: int = 1
    nest: str = "kmn"
    preload: bool = False
    carried: bool = True
    blocked: bool = True
    recompute: bool = False


SCHEDULES = {
    "base": GemmSchedule(carried=False),
    "sliceK": GemmSchedule(k=2),
    "sliceN": GemmSchedule(n=2),
    "sliceNK": GemmSchedule(n=2, k=2),
    "sliceMNK": GemmSchedule(m=2, n=2, k=2),
    "single_warp": GemmSchedule(k=0, preload=True, blocked=False, recompute=True),
    "pipelined": GemmSchedule(k=0, carried=False, blocked=False, recompute=True),
}


@dataclass(frozen=True)
class _Wave:
    """The part of a tile one wave computes, in matrix tiles, and its slices (ranges of m, n and k tiles)."""

    op: MatrixOp
    m: int
    n: int
    k: int
    slices: tuple[tuple[range, range, range], ...]


def gemm(
    tile_m: int,
    tile_n: int,
    tile_k: int,
    *,
    waves: int = 4,
    dtype: str = "f16",
    buffers: int = 2,
    schedule: str | GemmSchedule | None = None,
    a_scales: bool = False,
    body: str = "full",
    unroll: int | None = None,
    machine: Machine | str | None = None,
) -> Dag:
    """The main loop body of a GEMM kernel with the given workgroup tile, as one wave executes it.

    ``dtype``: a key of `MATRIX` (f16, bf16, fp8, bf8, fp4, i8, f32; mxfp8, mxfp4 for block-scaled operands).  ``waves`` share the
    tile as evenly as a grid allows, more of them along m.  ``buffers`` LDS buffers of (tile_m + tile_n) x tile_k have to fit in
    320 KiB; a longer tile_k is cut into K tiles that do, one after the other in the region, each behind its own barrier
    (``unroll`` asks for several full K tiles instead).  ``body="core"`` leaves only the matrix instructions and the loads they
    consume in the region.  ``schedule``: a key of `SCHEDULES` or cuts of your own; without one the first of sliceNK, sliceN,
    sliceK and base the tile can be cut for (a slice is at least one matrix instruction deep and wide).  ``a_scales``: block
    scales of A are loaded too (with pre-shuffled scales only B's take instructions of their own here).
    Raises `DagError` on a tile the waves or the schedule cannot share evenly.
    """
    if body not in ("full", "core"):
        raise DagError(f"body {body!r} is neither 'full' nor 'core'")
    op = matrix_op(dtype)
    tile = (tile_m, tile_n, tile_k)
    if schedule is None:
        schedule = next(
            (name for name in _DEFAULTS if _can_be_cut(tile, waves, op, buffers, name, unroll)), _DEFAULTS[-1]
        )
    plan = SCHEDULES.get(schedule) if isinstance(schedule, str) else schedule
    if plan is None:
        raise DagError(f"schedule {schedule!r} is none of {', '.join(SCHEDULES)} (or give a GemmSchedule)")
    k_tile, copies = _k_tiles(*tile, op, buffers, plan, unroll)
    wave = _wave(tile_m, tile_n, k_tile, waves, op, plan)
    code = Assembler(machine)
    _Body(code, wave, plan, buffers, a_scales, core=body == "core").write()
    kind = schedule if isinstance(schedule, str) else "custom"
    name = f"gemm_{tile_m}x{tile_n}x{tile_k}_{dtype}_w{waves}_nb{buffers}_{kind}"
    return code.build(name if body == "full" else name + "_core", copies=copies, loop=body == "full")


def parse(text: str, *, machine: Machine | str | None = None) -> Dag:
    """A kernel from one line: ``gemm:MxNxK[:dtype][:waves=4][:buffers=2][:schedule=sliceNK]...``, ``attention:MxNxD[:dtype]...``
    or ``random:nodes[:seed]``."""
    kind, *parts = text.split(":")
    numbers = parts[0].split("x") if parts else []
    if kind not in ("gemm", "attention", "random") or not numbers or not all(x.isdigit() for x in numbers):
        raise DagError(
            f"{text!r} is no kernel; write gemm:256x256x256:mxfp8:schedule=sliceNK, attention:128x128x128 or random:1000:7"
        )
    if kind == "random":
        return random(int(numbers[0]), rng=int(parts[1]) if len(parts) > 1 else 0, machine=machine)
    if len(numbers) != 3:
        raise DagError(f"{text!r}: {kind} takes three extents, such as 256x128x128")
    options: dict[str, object] = {}
    for part in parts[1:]:
        key, equals, value = part.partition("=")
        if not equals:
            key, value = ("schedule", part) if part in SCHEDULES else ("dtype", part)
        key = {"w": "waves", "nb": "buffers"}.get(key, key)
        if key not in ("waves", "buffers", "unroll", "dtype", "schedule", "body", "a_scales"):
            raise DagError(f"{text!r}: no option {key!r}")
        options[key] = int(value) if value.isdigit() else value
    make = gemm if kind == "gemm" else attention
    try:
        return make(*(int(x) for x in numbers), machine=machine, **options)  # type: ignore[arg-type]
    except TypeError as error:
        raise DagError(f"{text!r}: {error}") from None


def _k_tiles(
    tile_m: int, tile_n: int, tile_k: int, op: MatrixOp, buffers: int, plan: GemmSchedule, unroll: int | None
) -> tuple[int, int]:
    """Depth of one K tile and how many of them the region holds."""
    if min(tile_m, tile_n, tile_k, buffers) <= 0 or tile_k % op.k:
        raise DagError(
            f"tile {tile_m}x{tile_n}x{tile_k} with {buffers} buffers: extents have to be positive, K a multiple of {op.k}"
        )
    steps, slices = tile_k // op.k, max(plan.k, 1)
    if steps % slices:
        raise DagError(
            f"the schedule cuts a K tile into {slices} slices, but K {tile_k} in steps of {op.k} makes {steps}: make K a "
            f"multiple of {slices * op.k} or cut along K otherwise (sliceN and base do not)"
        )
    per_k = (tile_m * op.a / op.m + tile_n * op.b / op.n) * 128 / op.k  # bytes of both operands per unit of k
    deepest = int(LDS_BYTES / (per_k * buffers))
    least = tile_k if unroll is not None else slices * op.k
    if least > deepest:
        raise DagError(
            f"{buffers} buffers of a {tile_m}x{tile_n} tile hold at most {deepest} of K in {LDS_BYTES} bytes of LDS, {least} are "
            "wanted at least; use fewer buffers or a smaller tile"
        )
    if unroll is not None:
        return tile_k, max(1, unroll)
    copies = next(c for c in range(1, steps + 1) if steps % c == 0 == steps // c % slices and tile_k // c <= deepest)
    return tile_k // copies, copies


_DEFAULTS = ("sliceNK", "sliceN", "sliceK", "base")


def _can_be_cut(
    tile: tuple[int, int, int], waves: int, op: MatrixOp, buffers: int, schedule: str, unroll: int | None
) -> bool:
    """Whether a schedule of `SCHEDULES` divides a tile."""
    plan = SCHEDULES[schedule]
    try:
        k_tile, _ = _k_tiles(*tile, op, buffers, plan, unroll)
        _wave(tile[0], tile[1], k_tile, waves, op, plan)
    except DagError:
        return False
    return True


def _wave(tile_m: int, tile_n: int, tile_k: int, waves: int, op: MatrixOp, plan: GemmSchedule) -> _Wave:
    """A wave's tiles and slices."""
    across = max((w for w in range(1, waves + 1) if waves % w == 0 and w * w <= waves), default=1)
    grid_m, grid_n = waves // across, across
    if tile_m % (grid_m * op.m) or tile_n % (grid_n * op.n):
        raise DagError(
            f"{waves} waves as {grid_m}x{grid_n} cannot share a {tile_m}x{tile_n} tile of {op.m}x{op.n} instructions"
        )
    m, n, k = tile_m // (grid_m * op.m), tile_n // (grid_n * op.n), tile_k // op.k
    counts = {"m": plan.m, "n": plan.n, "k": plan.k or k}
    extents = {"m": m, "n": n, "k": k}
    if sorted(plan.nest) != ["k", "m", "n"]:
        raise DagError(f"nest {plan.nest!r} has to name m, n and k once each")
    for axis in "mnk":
        if counts[axis] <= 0 or extents[axis] % counts[axis]:
            raise DagError(f"{counts[axis]} slices along {axis} do not divide {extents[axis]} tiles of a wave")

    def part(axis: str, index: int) -> range:
        step = extents[axis] // counts[axis]
        return range(index * step, (index + 1) * step)

    slices = []
    for where in product(*(range(counts[axis]) for axis in plan.nest)):
        at = dict(zip(plan.nest, where, strict=True))
        slices.append((part("m", at["m"]), part("n", at["n"]), part("k", at["k"])))
    return _Wave(op, m, n, k, tuple(slices))


class _Body:
    """Writes one K tile of the loop."""

    def __init__(
        self, code: Assembler, wave: _Wave, plan: GemmSchedule, buffers: int, a_scales: bool, *, core: bool
    ) -> None:
        self.code, self.wave, self.plan, self.buffers, self.core = code, wave, plan, buffers, core
        op = wave.op
        self.a_scales = a_scales and op.scaled
        self.acc = code.register(wave.m * wave.n, op.acc, carried=True).reshape(wave.m, wave.n)
        self.a = np.full((wave.k, wave.m), -1, np.int64)
        self.b = np.full((wave.k, wave.n), -1, np.int64)
        self.scale: list[int] = [-1] * len(wave.slices)  # of B, per slice
        self.scale_a: list[int] = [-1] * len(wave.slices)
        self.loaded: list[list[tuple[str, NDArray[np.int64]]]] = [self._claim(s) for s in range(len(wave.slices))]
        self.base = code.register(
            2 + op.scaled + self.a_scales, 1, carried=True
        )  # LDS offsets of a wave's lanes: A, B, scales
        self.counter = code.scalar(carried=True)
        self.stage = -1  # scalar offset of the LDS buffer in use
        self.address: dict[str, int] = {}  # operand -> vector register, once computed

    def _claim(self, s: int) -> list[tuple[str, NDArray[np.int64]]]:
        """Registers of the fragments slice ``s`` is the first to need."""
        wave, op = self.wave, self.wave.op
        rows, columns, depth = wave.slices[s]
        carried = self.plan.carried and s == 0
        claimed = []
        for name, table, tiles, words in (("a", self.a, rows, op.a), ("b", self.b, columns, op.b)):
            block = table[depth.start : depth.stop, tiles.start : tiles.stop]
            fresh = block < 0
            made = self.code.register(int(np.count_nonzero(fresh)), words, carried=carried)
            block[fresh] = made
            claimed.append((name, made))
        if op.scaled:
            for name, words, scales in (
                ("scale", max(1, len(columns) // 2), self.scale),
                ("scale_a", max(1, len(rows) // 2) if self.a_scales else 0, self.scale_a),
            ):
                if words:
                    made = self.code.register(1, words * len(depth), carried=carried)
                    scales[s] = int(made[0])
                    claimed.append((name, made))
        return claimed

    def write(self) -> None:
        """The whole tile, in program order."""
        plan, slices = self.plan, len(self.wave.slices)
        if plan.preload or not plan.carried:
            self._open()
        for s in range(slices):
            if s == 1 and not plan.preload and plan.carried:
                self._open()
            if plan.preload:
                if s == slices - 1:
                    self._close()
                self._load(s + 1 if s + 1 < slices else 0, last=s == slices - 1)
            elif s > 0 or not plan.carried:
                self._load(s)
            self._multiply(s)
        if not plan.preload:
            self._close()
            if plan.carried:
                self._load(0, last=True)
        if not self.core:
            self.code.emit("S_CMP_LG_U32", -1, self.counter)

    def _open(self) -> None:
        """The barrier in front of loads from another LDS buffer, and that buffer's offset."""
        if not self.core:
            self.stage, self.address = self._buffer_offset(), {}
            self.code.barrier()

    def _buffer_offset(self) -> int:
        """Scalar offset of the current LDS buffer: a mask for two buffers, a remainder for more."""
        code, counter = self.code, self.counter
        chain = ["S_AND_B32"] if self.buffers == 2 else ["S_MUL_HI_U32", "S_LSHR_B32", "S_MUL_I32", "S_SUB_I32"]
        value = counter
        for opcode in [*chain, "S_MUL_I32"]:
            made = code.scalar()
            code.emit(opcode, made, value, *([counter] if opcode == "S_SUB_I32" else []))
            value = made
        return value

    def _address(self, operand: str) -> int:
        """Vector register with an operand's LDS address, computed where it is first needed; scales and padded tiles cost more."""
        if self.core:
            return -1
        if operand not in self.address:
            code = self.code
            base = int(self.base[("a", "b", "scale", "scale_a").index(operand)])
            made = int(code.register(1, 1)[0])
            if operand in "ab" and self.buffers == 2:
                code.emit("V_ADD_U32_e32", made, self.stage, base)
            else:
                shifted, padded = code.scalar(), code.scalar()
                code.emit("S_LSHL_B32", shifted, self.stage)
                code.emit("S_LSHL_B32", padded, self.stage)
                if operand != "a":
                    code.emit("S_ADD_I32", shifted, shifted)
                code.emit("V_ADD3_U32_e64", made, shifted, padded, base)
                if operand not in "ab":
                    code.emit("V_ADD_U32_e32", made, made)
            self.address[operand] = made
        return self.address[operand]

    def _load(self, s: int, *, last: bool = False) -> None:
        """LDS loads of the fragments slice ``s`` brings in; with ``last`` those are the next iteration's."""
        if last and (self.core or not self.plan.carried):
            return
        if self.core and self.plan.carried and s == 0:
            return
        for name, registers in self.loaded[s]:
            if not registers.size:
                continue
            words = int(self.code.words(registers[0]))
            width = 4 if words % 4 == 0 and name in "ab" else 2 if words % 2 == 0 else 1
            opcode = {4: "DS_READ_B128_gfx9", 2: "DS_READ_B64_gfx9", 1: "DS_READ_B32_gfx9"}[width]
            if name not in "ab" and width == 2:
                opcode = "DS_READ2_B32_gfx9"
            parts = words // width
            registers = np.repeat(registers, parts)
            self.code.emit(opcode, registers, self._address(name), lanes={0: _part_masks(width, parts, registers.size)})

    def _multiply(self, s: int) -> None:
        """Matrix instructions of slice ``s``."""
        wave, op = self.wave, self.wave.op
        rows, columns, depth = wave.slices[s]
        k, m, n = _tile_order(len(depth), len(rows), len(columns), self.plan.blocked)
        acc = self.acc[rows.start + m, columns.start + n]
        uses = [self.b[depth.start + k, columns.start + n], self.a[depth.start + k, rows.start + m], acc]
        lanes = {}
        if op.scaled:
            for scales, tile, tiles in ((self.scale, n, len(columns)), (self.scale_a, m, len(rows))):
                if scales[s] >= 0:
                    words = max(1, tiles // 2)
                    word = np.minimum(k * words + tile // 2, words * len(depth) - 1)
                    lanes[len(uses) + 1] = np.array([lane_mask(1, w) for w in word.tolist()], np.uint64)
                    uses.append(np.full(acc.size, scales[s]))
        self.code.emit(op.opcode, acc, *uses, lanes=lanes)

    def _close(self) -> None:
        """Tensor loads of a later K tile behind a barrier, and the barrier in front of the next tile's first loads."""
        if self.core:
            return
        code = self.code
        code.fence("S_WAIT_TENSORCNT")
        code.barrier()
        step = code.scalar()
        code.emit("S_ADD_I32", step, self.counter)
        for _ in range(2 + self.wave.op.scaled + self.a_scales):
            names = {
                "counter": self.counter,
                "step": step,
                "pointer": code.scalar(2, carried=True),
                "shape": code.scalar(8, carried=True),
                "descriptor": code.scalar(4),
            }
            _write_scalars(code, _RECOMPUTE if self.plan.recompute else _ADVANCE, names)
            code.emit("TENSOR_LOAD_TO_LDS_d2", -1, names["descriptor"], names["shape"])
            code.emit("S_ADD_U64", names["pointer"], names["pointer"])
        code.emit("S_ADD_I32", self.counter, self.counter)
        if self.plan.carried:
            self._open()


@lru_cache(maxsize=64)
def _part_masks(width: int, parts: int, count: int) -> NDArray[np.uint64]:
    """Masks of loads that fill registers part by part, ``width`` words each."""
    return np.resize(np.array([lane_mask(width, width * p) for p in range(parts)], np.uint64), count)


# scalar code in front of a tensor load: opcode, destination[.first word[-last word]], sources
_ADVANCE = """
S_MUL_I32 descriptor.0 step
S_ADD_I32 descriptor.1 step
S_ADD_U64 descriptor.2-3 pointer"""
_RECOMPUTE = """
S_LSHL_B32 left counter
S_MUL_HI_I32 high counter
S_LSHR_B32 sign high
S_ADD_I32 quotient high sign
S_MUL_I32 product quotient
S_SUB_I32 buffer counter product
S_LSHL_B32 offset buffer
S_LSHL_B32 padding buffer
S_LSHR_B32 descriptor.0 step
S_LSHR_B32 offset offset
S_ADD_I32 offset padding offset
S_LSHL1_ADD_U32 descriptor.1 offset
S_ADD_U64 descriptor.2-3 pointer
S_SUB_I32 rest step left
S_MAX_I32 rest rest
S_CMP_GT_I32 - left
S_CSELECT_B32 rest rest
S_AND_B32 low rest
S_LSHR_B32 upper rest
S_ADD_I32 rows upper
S_MAX_I32 rows rows
S_LSHL_B32 shape.1 rest
S_LSHL_B32 packed rows
S_OR_B32 shape.2 packed low
S_LSHR_B32 packed rows
S_OR_B32 shape.3 packed"""


@lru_cache(maxsize=8)
def _parsed(text: str) -> tuple[tuple[str, str, list[str], dict[int, int] | None], ...]:
    """Opcode, destination, sources and lanes of the destination of each line."""
    rows = []
    for line in text.split("\n")[1:]:
        opcode, target, *sources = line.split()
        name, _, words = target.partition(".")
        first, _, last = words.partition("-")
        lanes = {0: lane_mask(int(last or first) - int(first) + 1, int(first))} if words else None
        rows.append((opcode, name, sources, lanes))
    return tuple(rows)


def _write_scalars(code: Assembler, text: str, names: dict[str, int]) -> None:
    """Emit scalar code over named registers; a name nobody gave is a new one-word register."""
    for opcode, name, sources, lanes in _parsed(text):
        for wanted in (name, *sources):
            if wanted != "-" and wanted not in names:
                names[wanted] = code.scalar()
        code.emit(opcode, names.get(name, -1), *(names[source] for source in sources), lanes=lanes)


@lru_cache(maxsize=64)
def _tile_order(
    depth: int, rows: int, columns: int, blocked: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Tiles (k, m, n) of a slice in the order they are multiplied: k step by k step, in one by 2 x 2 blocks or row by row."""
    m, n = (x.ravel() for x in np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"))
    if blocked:
        order = np.lexsort((n % 2, m % 2, n // 2, m // 2))
        m, n = m[order], n[order]
    return np.repeat(np.arange(depth), m.size), np.tile(m, depth), np.tile(n, depth)
