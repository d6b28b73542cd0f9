"""The kernel table: which micro-kernels exist for an instruction set and an element type, and where they are in memory.

An instruction set is a row of :data:`ISAS`, an element type a row of :data:`ELEMENTS`; nothing else names either.  A loaded table
is one flat vector of 64-bit integers that jitted loops read through its address (offsets below), so a loop is compiled once for
all of them.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from .. import store
from ..forks import hold_across_forks
from . import emit, emit_pack

__all__ = ["ELEMENTS", "ISAS", "Element", "Isa", "KernelTable", "host_isa", "kernel_table", "usable_isas"]

# Offsets in the vector.  SHARE and the six words from LOOPS on are the addresses of the loops of fastgemm.gemm.job and .multiply,
# filled in there.
ITEM, LANES, PANEL_VECS, PANEL_ROWS, WIDE_VECS, WIDE_ROWS = range(6)
COL_LANES, HAS_HALF, REAL, ZERO, SHARE, LOOPS = range(6, 12)
PACK_ROWS = 20  # + vecs: the kernel that cuts rows into panels of `vecs` vectors
PACK_SQUARE = 24  # the transposing kernel, 0 if there is none
DOT = 32  # + log2 rows, rows in 1, 2, 4, 8: dot products (real types only, else 0)
AXPY = 36  # + log2 rows
HEIGHT = 40  # + (width * 5 + vecs) * 17 + rows: the tallest kernel of at most `rows` rows
KERNEL = HEIGHT + 2 * 5 * 17  # + ((width * 5 + vecs) * 2 + masked) * 17 + rows: its address
TABLE_SIZE = KERNEL + 2 * 5 * 2 * 17


@dataclass(frozen=True)
class Isa:
    """An instruction set: vector width, what it needs, and the register tiles that fit it (vecs -> largest rows)."""

    name: str
    bits: int
    architecture: str  # "x86" | "arm" | "" (any)
    needs: tuple[str, ...]
    cpu: str  # what to compile for when the host has more
    fma: bool
    tiles: dict[int, int] = field(hash=False)
    panel_vecs: int  # width of packed panels: the tile with the best ratio of loads to FMAs
    wide_vecs: int  # width of the tile for operands read in place
    half: bool  # has kernels of half the width for narrow right edges


ISAS: dict[str, Isa] = {
    row.name: row
    for row in (
        Isa("avx512", 512, "x86", ("avx512f", "avx512vl", "avx512dq", "fma"), "skylake-avx512", True,
            {1: 16, 2: 12, 3: 8, 4: 6}, 3, 4, True),
        Isa("avx2", 256, "x86", ("avx2", "fma"), "haswell", True, {1: 12, 2: 6, 3: 4}, 2, 3, True),
        Isa("neon", 128, "arm", (), "generic", True, {1: 16, 2: 12, 3: 8, 4: 6}, 3, 4, False),
        Isa("generic", 128, "", (), "x86-64", False, {1: 8, 2: 6, 3: 4}, 2, 3, False),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Element:
    """An element type of the engine: how its kernels are built."""

    dtype: np.dtype
    llvm: str
    paired: bool  # complex: two real rows a row, two real lanes a column

    @property
    def real_size(self) -> int:
        return 4 if self.llvm == "float" else 8


ELEMENTS: dict[np.dtype, Element] = {
    np.dtype(code): Element(np.dtype(code), llvm, paired)
    for code, llvm, paired in (
        ("f4", "float", False),
        ("f8", "double", False),
        ("c8", "float", True),
        ("c16", "double", True),
    )
}


_loading = threading.RLock()
hold_across_forks(_loading)


def _architecture(triple: str) -> str:
    machine = triple.split("-")[0]
    return (
        "arm"
        if machine.startswith(("aarch64", "arm64"))
        else "x86"
        if machine.startswith(("x86_64", "i686", "amd64"))
        else ""
    )


@lru_cache(maxsize=1)
def _host() -> tuple[str, str, str, frozenset[str]]:
    import llvmlite.binding as llvm

    with _loading:  # llvmlite has a lock, too, which no fork waits for
        features = llvm.get_host_cpu_features()
        present = frozenset(name for name, on in features.items() if on)
        return _architecture(llvm.get_process_triple()), llvm.get_host_cpu_name(), features.flatten(), present


@lru_cache(maxsize=1)
def usable_isas() -> tuple[str, ...]:
    """The rows this machine can run, best first; the generic one is always among them."""
    architecture, _, _, present = _host()
    return tuple(
        row.name for row in ISAS.values() if row.architecture in ("", architecture) and present.issuperset(row.needs)
    )


@lru_cache(maxsize=1)
def host_isa() -> str:
    """The row in use: ``FASTGEMM_ISA`` if set (read once), else the best the machine can run.

    Raises ValueError if the variable names a row that does not exist or that the machine lacks.
    """
    chosen = os.environ.get("FASTGEMM_ISA")
    if not chosen:
        return usable_isas()[0]
    if chosen not in usable_isas():
        raise ValueError(
            f"FASTGEMM_ISA={chosen!r} is not one of the kernel rows this machine can run: {', '.join(usable_isas())}"
        )
    return chosen


def _target(isa: Isa) -> tuple[str, str]:
    """CPU and features to compile for: the host's own for its best row, the row's baseline otherwise."""
    architecture, cpu, features, _ = _host()
    if isa.name == usable_isas()[0] and isa.name != "generic":
        return cpu, features
    return (isa.cpu, "") if architecture == "x86" else ("generic", "")


def _kernels(isa: Isa, element: Element) -> dict[tuple[int, int, bool, int], emit.KernelSpec]:
    """(width, vecs, masked, rows) -> spec, for every kernel of the row; rows count rows of A as the caller sees them."""
    lanes = isa.bits // 8 // element.real_size
    per_row = 2 if element.paired else 1
    shapes = [(0, lanes, vecs, masked, tallest) for vecs, tallest in isa.tiles.items() for masked in (False, True)]
    if isa.half:
        shapes.append((1, lanes // 2, 1, True, isa.tiles[1]))
    return {
        (width, vecs, masked, rows): emit.KernelSpec(
            element.llvm,
            wide,
            rows * per_row,
            vecs,
            masked,
            isa.fma,
            element.paired,
            4 if rows * per_row * vecs <= 8 else 2,
        )
        for width, wide, vecs, masked, tallest in shapes
        for rows in range(1, tallest // per_row + 1)
    }


def _packers(isa: Isa, element: Element) -> dict[int, emit_pack.PackSpec | emit_pack.VectorSpec]:
    """Table offset -> packing kernel."""
    lanes = isa.bits // 8 // element.real_size
    group = 2 if element.paired else 1
    out: dict[int, emit_pack.PackSpec | emit_pack.VectorSpec] = {}
    out |= {
        PACK_ROWS + v: emit_pack.PackSpec(element.llvm, lanes, v, False, group) for v in range(1, isa.panel_vecs + 1)
    }
    if lanes // group > 1:
        out[PACK_SQUARE] = emit_pack.PackSpec(element.llvm, lanes, 1, True, group)
    return out


def _vector_kernels(isa: Isa, element: Element) -> dict[int, emit_pack.PackSpec | emit_pack.VectorSpec]:
    """Table offset -> kernel for a product with a vector; complex ones run the general kernels."""
    lanes = isa.bits // 8 // element.real_size
    if element.paired:
        return {}
    return {
        base + log: emit_pack.VectorSpec(kind, element.llvm, lanes, 1 << log, isa.fma)
        for base, kind in ((DOT, "dot"), (AXPY, "axpy"))
        for log in range(4)
    }


@dataclass(frozen=True)
class KernelTable:
    """Loaded kernels of one (instruction set, element type); ``address`` is what jitted loops take."""

    isa: Isa
    element: Element
    vector: np.ndarray
    names: tuple[str, ...]
    keep: object = field(repr=False)

    @property
    def address(self) -> int:
        return int(self.vector.ctypes.data)


_tables: dict[tuple[np.dtype, str], KernelTable] = {}


def kernel_table(dtype: np.dtype, isa: str | None = None) -> KernelTable:
    """Compile or load the kernels for an element type (float32, float64, complex64, complex128); kept for good.

    Object code is cached on disk; a damaged entry is compiled again.
    """
    key = (dtype, isa or host_isa())
    with _loading:
        if key not in _tables:
            _tables[key] = _load(ELEMENTS[dtype], ISAS[key[1]])
        return _tables[key]


def _load(element: Element, row: Isa) -> KernelTable:
    kernels, others = _kernels(row, element), _packers(row, element) | _vector_kernels(row, element)
    specs = [*kernels.values(), *others.values()]
    cpu, features = _target(row)
    names = [spec.name for spec in specs]
    name, key = f"kernels_{row.name}_{element.dtype.name}", f"{cpu}|{features}|{' '.join(names)}"
    payload = store.read(name, key)
    if payload is None:
        payload = emit.object_code(emit.module_ir(specs), cpu, features)
        store.write(name, key, payload)
    keep, addresses = emit.load_object(payload, names, cpu, features)
    return KernelTable(row, element, _fill(row, element, kernels, others, addresses), tuple(names), keep)


def _fill(
    row: Isa,
    element: Element,
    kernels: dict[tuple[int, int, bool, int], emit.KernelSpec],
    others: Iterable[int],
    addresses: list[int],
) -> np.ndarray:
    per_row = 2 if element.paired else 1
    vector = np.zeros(TABLE_SIZE, np.int64)
    vector[ITEM] = element.dtype.itemsize
    vector[LANES] = row.bits // 8 // element.dtype.itemsize
    vector[PANEL_VECS], vector[PANEL_ROWS] = row.panel_vecs, row.tiles[row.panel_vecs] // per_row
    vector[WIDE_VECS], vector[WIDE_ROWS] = row.wide_vecs, row.tiles[row.wide_vecs] // per_row
    vector[COL_LANES], vector[HAS_HALF], vector[REAL] = per_row, row.half, element.real_size
    for (width, vecs, masked, rows), address in zip(kernels, addresses, strict=False):
        vector[KERNEL + ((width * 5 + vecs) * 2 + masked) * 17 + rows] = address
    for offset, address in zip(others, addresses[len(kernels) :], strict=True):
        vector[offset] = address
    for width, vecs in {(width, vecs) for width, vecs, _, _ in kernels}:
        tallest = max(rows for w, v, _, rows in kernels if (w, v) == (width, vecs))
        for rows in range(17):
            vector[HEIGHT + (width * 5 + vecs) * 17 + rows] = min(rows, tallest)
    return vector


def word(table: int, offset: int) -> int:
    """One word of the table at an address, for Python."""
    return ctypes.c_int64.from_address(table + 8 * offset).value
